"""The parts that tests of streaming requests share: a proxy that serves, and the requests of its job, as programs.

`streaming.py proxy HOST VERB ARG…` starts `streaming.py job VERB ARG…` on HOST and answers what it asks. `-- VERB ARG…`
behind it asks for more, one after the other; each prints a line.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.client import client
from transport.errors import Abandoned, RequestError
from transport.rpc.call import Relay
from transport.rpc.incoming import Incoming, Streaming
from transport.rpc.outgoing import Asked
from transport.spawn import Spawn

if TYPE_CHECKING:
    from tests.lab import Lab

ROOT = Path(__file__).resolve().parents[3]
BLOCK = 1 << 16


def block(seed: int, number: int) -> bytes:
    """No block of a stream is like another one, of this stream or of any other."""
    return random.Random(seed << 32 | number).randbytes(BLOCK)


def content(seed: int, size: int) -> bytes:
    return b"".join(block(seed, number) for number in range(-(-size // BLOCK)))[:size]


# -- the proxy's services ------------------------------------------------------------------------------


def echo(incoming: Incoming) -> None:
    while data := incoming.read(random.randrange(1, 300_000)):
        incoming.write(data)


def digest(incoming: Incoming) -> None:
    made, size = hashlib.sha256(), 0
    while data := incoming.read(1 << 18):
        made.update(data)
        size += len(data)
    incoming.write(f"{size} {made.hexdigest()}".encode())


def give(incoming: Incoming) -> None:
    """So many bytes of a stream, by its seed."""
    seed, size = map(int, incoming.read(1 << 16).split())
    for number in range(-(-size // BLOCK)):
        incoming.write(block(seed, number)[: size - number * BLOCK])


def refuse(incoming: Incoming) -> None:
    """Fail after the first byte, whatever more there is."""
    incoming.read(1)
    raise ValueError("enough of that")


def note(path: str, incoming: Incoming) -> None:
    """Note the fate of the body: a line in a file."""
    size = 0
    try:
        while data := incoming.read(1 << 18):
            size += len(data)
        end = "whole"
    except Abandoned:
        end = "abandoned"
    with open(path, "a") as file:
        file.write(f"{end} {size}\n")


def hold(incoming: Incoming) -> None:
    """Read nothing, and write until the asker has gone, which reads nothing either."""
    while True:
        incoming.write(bytes(BLOCK))


def spool(incoming: Incoming) -> None:
    """Into a file, as it comes, by descriptor and by hand in turn; and back in the same way."""
    with tempfile.TemporaryFile(buffering=0) as file:
        fd = file.fileno()
        while got := incoming.receive_file(fd, most := random.randrange(1, 1 << 21)):
            if got > most:
                raise AssertionError(f"{got} bytes of {most} went into the file")
            os.write(fd, incoming.read(70_000))
        left = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, 0, os.SEEK_SET)
        while left:
            left -= incoming.send_file(fd, random.randrange(1, 1 << 21))
            data = os.read(fd, min(left, random.randrange(1, 1 << 17))) if left else b""
            incoming.write(data)
            left -= len(data)


def services(directory: str) -> dict[str, client.Service]:
    noted = partial(note, f"{directory}/noted")
    made: dict[str, Callable[[Incoming], None]] = {
        "echo": echo, "digest": digest, "give": give, "refuse": refuse, "note": noted, "hold": hold, "spool": spool,
    }  # fmt: skip
    return {name: Streaming(handler) for name, handler in made.items()} | {
        "plain": lambda body: body[::-1],
        "noted": lambda _: (
            Path(directory, "noted").read_bytes() if Path(directory, "noted").exists() else b""
        ),
    }


def serve(where: str, words: list[str], made: Mapping[str, client.Service]) -> int:
    """Be the proxy of a Python program on the host; return its status."""
    context = {"inventory": os.environ["QUINE_INVENTORY"], "cwd": os.getcwd()}
    env = {"PYTHONPATH": str(ROOT), "QUINE_INVENTORY": os.environ["QUINE_INVENTORY"]}
    env |= {name: value for name, value in os.environ.items() if name.startswith("STREAMING_")}
    argv = [sys.executable, *words]
    spawn = Spawn(
        argv, where=where, env=env, context=context, lease=float(os.environ.get("STREAMING_LEASE", 60))
    )
    status = client.run(spawn, services=made)
    if status.detail:
        print(f"proxy: {status.detail}", file=sys.stderr)
    return status.code


# -- the job --------------------------------------------------------------------------------------------


def put(relay: Relay, size: str, seed: str = "1") -> str:
    """Send a stream; return the answer, which describes the bytes that came."""
    with relay.stream("digest") as asked:
        whole = hashlib.sha256()
        for number in range(-(-int(size) // BLOCK)):
            data = block(int(seed), number)[: int(size) - number * BLOCK]
            whole.update(data)
            asked.write(data)
        asked.end()
        said = asked.read(1000)
        assert asked.read(1) == b""
    return "same" if said.decode() == f"{size} {whole.hexdigest()}" else f"not the same: {said!r}"


def get(relay: Relay, size: str, seed: str = "2") -> str:
    with relay.stream("give") as asked:
        asked.write(f"{seed} {size}".encode())
        asked.end()
        got = 0
        for number in range(-(-int(size) // BLOCK)):
            want = block(int(seed), number)[: int(size) - got]
            while want:
                data = asked.read(len(want))
                if not data or data != want[: len(data)]:
                    return f"departs at {got}"
                want = want[len(data) :]
                got += len(data)
        return "same" if asked.read(1) == b"" else "too many bytes"


def both(relay: Relay, size: str, seed: str = "3") -> str:
    """Write and read an echo at once, in two threads."""
    body = content(int(seed), int(size))
    with relay.stream("echo") as asked:

        def write() -> None:
            for at in range(0, len(body), 100_000):
                asked.write(body[at : at + 100_000])
            asked.end()

        writer = threading.Thread(target=write)
        writer.start()
        got = bytearray()
        while data := asked.read(1 << 18):
            got += data
        writer.join()
    return "same" if got == body else f"{len(got)} bytes of {len(body)}, or others"


def many(relay: Relay, count: str, size: str) -> str:
    """So many streams at one time, of each kind."""
    kinds = (put, get, both)

    def one(number: int) -> str:
        return kinds[number % 3](relay, size, str(number))

    with ThreadPoolExecutor(int(count)) as pool:
        return " ".join(sorted(set(pool.map(one, range(int(count))))))


def short(relay: Relay, count: str, threads: str) -> str:
    """Make many small requests, one after the other in each thread; return the number of sockets opened for them."""

    def one(number: int) -> None:
        with relay.stream("echo") as asked:
            asked.end(b"%d" % number)
            assert asked.read(100) == b"%d" % number and asked.read(1) == b""

    numbers: set[str] = set()
    with ThreadPoolExecutor(int(threads)) as pool:
        for _ in pool.map(one, range(int(count))):
            if len(numbers) < 1000:
                for fd in os.listdir("/proc/self/fd"):
                    try:
                        target = os.readlink(f"/proc/self/fd/{fd}")
                    except OSError:
                        continue
                    numbers |= {target} if target.startswith("socket:") else set()
    return str(len(numbers))


def refused(relay: Relay, size: str) -> str:
    """A handler that raises early: return the error of the writer, and of the reader."""
    told = []
    with relay.stream("refuse") as asked:
        try:
            for number in range(int(size) // BLOCK):
                asked.write(block(1, number))
            asked.end()
        except (BrokenPipeError, RequestError) as error:
            told.append(type(error).__name__)
        try:
            asked.read(1)
        except RequestError as error:
            told.append(str(error))
    return " / ".join(told)


def die(relay: Relay, size: str, how: str) -> str:
    """Half a body, or a whole one, and the end of this process or of the request."""
    asked = relay.stream("note")
    asked.write(content(1, int(size)))
    if how == "ended":
        asked.end()
    if how == "closed":
        asked.close()
        while not (noted := relay.request("noted", b"")):
            time.sleep(0.05)
        return noted.decode()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def held(relay: Relay, size: str) -> str:
    """Against a handler that reads nothing: how much it takes until a write waits."""
    asked = relay.stream("hold")
    wrote = [0]

    def write() -> None:
        try:
            for number in range(int(size) // BLOCK):
                asked.write(block(1, number))
                wrote[0] += BLOCK
        except RequestError:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    before = -1
    while before != wrote[0] or not before:
        before = wrote[0]
        time.sleep(0.5)
    asked.close()
    writer.join()
    return str(wrote[0])


def forked(relay: Relay) -> str:
    """A child makes requests of its own; the open requests of the parent go on."""
    asked = relay.stream("echo")
    asked.write(b"before")
    assert asked.read(6) == b"before"
    pid = os.fork()
    if not pid:
        try:
            asked.write(b"x")
        except RequestError as error:
            fine = "belongs to the process" in str(error)
            asked.close()
            os._exit(0 if fine and put(relay, "100000") == "same" else 1)
        os._exit(2)
    child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    asked.write(b"after")
    asked.end()
    got = b""
    while data := asked.read(100):
        got += data
    return f"{child} {got.decode()}"


def files(relay: Relay, size: str) -> str:
    """By descriptors: there and back again."""
    with tempfile.TemporaryFile() as one, tempfile.TemporaryFile() as two, relay.stream("echo") as asked:
        one.write(content(4, int(size)))
        one.seek(0)
        sent: list[int] = []
        writer = threading.Thread(
            target=lambda: (sent.append(asked.send_file(one.fileno(), 1 << 40)), asked.end())
        )
        writer.start()
        got = asked.receive_file(two.fileno(), 1 << 40)
        writer.join()
        two.seek(0)
        return f"{sent[0]} {got} {'same' if two.read() == content(4, int(size)) else 'not the same'}"


def lent(relay: Relay, name: str, rounds: str, seed: str) -> str:
    """Bodies in pieces, of bytes and of descriptors, there and back through `name`; how many descriptors were lent."""
    drawn, count = random.Random(int(seed)), 0
    for _ in range(int(rounds)):
        body = content(drawn.randrange(1 << 20), drawn.choice([0, 1, 300_000, 3_000_000, 10_000_000]))
        plan = []  # (size, whether by a descriptor)
        while sum(size for size, _ in plan) < len(body):
            plan.append((drawn.randrange(1, 2_000_000), drawn.random() < 0.7))
        back = random.Random(drawn.random())
        with tempfile.TemporaryFile(buffering=0) as source, tempfile.TemporaryFile(buffering=0) as target:
            source.write(body)
            fd = source.fileno()
            os.lseek(fd, 0, os.SEEK_SET)
            with relay.stream(name) as asked:

                def write(asked: Asked = asked, fd: int = fd, plan: list[tuple[int, bool]] = plan) -> None:
                    for size, lends in plan:
                        if lends:
                            asked.send_file(fd, size)
                        else:
                            asked.write(os.read(fd, size))
                    asked.end()

                writer = threading.Thread(target=write)
                writer.start()
                to = target.fileno()
                while True:
                    if back.random() < 0.7:
                        got_now = asked.receive_file(to, most := back.randrange(1, 2_000_000))
                        if got_now > most:
                            return f"{got_now} bytes of {most} went into the file"
                        if not got_now:
                            break
                    elif data := asked.read(back.randrange(1, 200_000)):
                        os.write(to, data)
                    else:
                        break
                writer.join()
                count += asked._connection.lent
            os.lseek(to, 0, os.SEEK_SET)
            got = b"".join(iter(partial(target.read, 1 << 20), b""))
            if got != body:
                same = next((at for at in range(len(got)) if got[: at + 1] != body[: at + 1]), len(got))
                return f"not the same from {same} of {len(body)}, {len(got)} came; {plan}"
    return f"same {count}"


def readonly(relay: Relay) -> str:
    """A file that cannot be written."""
    told = []
    with tempfile.NamedTemporaryFile() as file, relay.stream("echo") as asked:
        file.write(content(1, 1_000_000))
        file.flush()
        with open(file.name, "rb") as source:
            asked.send_file(source.fileno(), 1 << 18)
            asked.end()
            try:
                asked.receive_file(source.fileno(), 1 << 20)
            except OSError as error:
                told.append(error.strerror or "")
    return " ".join(told)


def fraud(relay: Relay) -> str:
    """Say that a descriptor comes, and send none."""
    asked = relay.stream("digest")
    asked._session.lend(asked._number, 0, 0, {"fd": 7, "at": 0, "length": 1})
    asked._flush()
    try:
        asked.read(1)
    except RequestError as error:
        return str(error).removeprefix("the origin cannot be reached: ")
    return "nothing"


def lenddie(relay: Relay, path: str) -> str:
    """Killed with a descriptor lent in each direction."""
    for name in ("hold", "echo"):
        asked = relay.stream(name)
        file = os.open(path, os.O_RDWR)
        threading.Thread(target=asked.send_file, args=(file, 1 << 30), daemon=True).start()
    while asked._connection.lent == 0:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def leave(relay: Relay) -> str:
    """Leave requests behind whose handlers wait: for a body, for a reader, for nothing."""
    asked = [relay.stream(name) for name in ("digest", "hold", "give", "echo")]
    for each in asked:
        each.write(b"1 100000000")
    asked[2].end()
    assert asked[2].read(1)
    os._exit(7)


def mixed(relay: Relay, count: str) -> str:
    """Plain requests, and streams, while that many streams hold their threads."""
    asked = [relay.stream("hold") for _ in range(int(count))]
    for each in asked:
        each.write(b"x")
    said = relay.request("plain", b"abc").decode()
    wrote = put(relay, "100000")
    for each in asked:
        each.close()
    return f"{said} {wrote}"


VERBS: dict[str, Callable[..., str]] = {
    each.__name__: each
    for each in (
        put,
        get,
        both,
        many,
        short,
        refused,
        die,
        held,
        forked,
        fraud,
        files,
        leave,
        lenddie,
        lent,
        mixed,
        readonly,
    )
}


def main(words: list[str]) -> int:
    if words[0] == "proxy":
        return serve(words[1], [__file__, "job", *words[2:]], services(os.getcwd()))
    relay = Relay.from_environment()
    assert relay
    while words:
        asked, words = words[1:], []
        if "--" in asked:
            at = asked.index("--")
            asked, words = asked[:at], asked[at:]
        try:
            print(VERBS[asked[0]](relay, *asked[1:]))
        except RequestError as error:
            print(f"refused: {error}")
    return 0


def command(lab: Lab, host: str, *words: object) -> tuple[list[str], dict[str, Any]]:
    """Return argv, and the other arguments of Popen, for a proxy at the origin of a lab."""
    env = {**lab.env, "PYTHONPATH": str(ROOT), "STREAMING_LEASE": str(lab.lease)}
    words = ("proxy", host, *words)
    return [sys.executable, str(Path(__file__)), *map(str, words)], {"env": env, "cwd": lab.work}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
