"""The tier of a job over a real link: a finished put is kept, an unfinished one leaves nothing, however it stops."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quine.files.api import BLOCK, Tier
from quine.files.wire import protocol
from tests.files import job_stores
from tests.files.job_stores import Door
from tests.lab import Lab
from transport.errors import RequestError

pytestmark = pytest.mark.timeout(300)


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def put(tier: Tier, path: str, data: bytes, if_absent: bool = False) -> None:
    with tier.create(path, if_absent=if_absent) as writer:
        for at in range(0, len(data), BLOCK):
            writer.write(data[at : at + BLOCK])
        writer.commit()


def get(tier: Tier, path: str) -> bytes:
    with tier.open(path) as reader:
        return b"".join(iter(reader.read, b""))


@pytest.fixture
def door(lab: Lab, tmp_path: Path) -> Iterator[Door]:
    with job_stores.opened(lab, "h1", tmp_path / "fs") as made:
        yield made


def test_what_a_job_puts_is_at_the_origin(door: Door) -> None:
    tier = door.tier()
    for size in (0, 1, 5000, 3 * BLOCK + 1):
        data = content(size)
        put(tier, f"d/{size}", data)
        assert (door.root / "d" / str(size)).read_bytes() == data == get(tier, f"d/{size}")
    assert [entry.path for entry in tier.list("d")] == ["d/0", "d/1", f"d/{3 * BLOCK + 1}", "d/5000"]
    tier.rename("d/0", "e/0")
    tier.remove("d", recursive=True)
    assert door.kept() == ["e/0"]
    with pytest.raises(FileNotFoundError):
        tier.stat("d")
    assert tier.url_of("e/0").startswith("file://")
    # A hole takes no room at the origin before it is kept.
    with tier.create("hole") as writer:
        writer.hole(1 << 40)
        writer.write(b"x")
        assert writer.commit().size == (1 << 40) + 1
    assert os.stat(door.root / "hole").st_blocks * 512 < 1 << 20
    with tier.open("hole", 1 << 40) as reader:
        assert reader.read(10) == b"x"
    # A file that is not committed leaves nothing, nor does one that leads out.
    with tier.create("f") as writer:
        writer.write(content(3 * BLOCK))
    door.settled("e/0", "hole")
    with pytest.raises(OSError) as caught, tier.create("../f") as writer:
        writer.write(content(3 * BLOCK))
        writer.commit()
    assert caught.value.errno == errno.EPERM
    door.settled("e/0", "hole")
    tier.close()


# -- time and size -------------------------------------------------------------------------------------


def once_below(seconds: float, act: Callable[[], object], times: int = 40) -> float:
    """Return the least time in seconds of at most `times` runs: load of the machine adds to the time of the link."""
    taken: list[float] = []
    while not taken or (min(taken) >= seconds and len(taken) < times):
        begun = time.monotonic()
        act()
        taken.append(time.monotonic() - begun)
    return min(taken)


@pytest.mark.long
def test_an_operation_over_a_long_link_is_one_round_trip(lab: Lab, tmp_path: Path) -> None:
    """Each takes less than two round trips, and the delay of the line makes certain that two are never faster."""
    way = 0.2
    host = lab.slow("h3", way)
    lab.run(["run", "--on", host, "--", "true"], check=True)
    with job_stores.opened(lab, host, tmp_path / "fs") as door:
        tier = door.tier()
        for number in range(200):
            (door.root / "d").mkdir(parents=True, exist_ok=True)
            (door.root / "d" / str(number)).write_bytes(b"x" * number)
        names = iter(range(10**6))
        assert 2 * way <= once_below(4 * way, lambda: tier.url_of("")) < 4 * way
        for name, act in {
            "stat": lambda: tier.stat("d/7"),
            "get": lambda: get(tier, "d/199"),
            "put": lambda: put(tier, f"e/{next(names)}", content(50_000)),
            "list": lambda: list(tier.list("d")),
            "walk": lambda: list(tier.walk("")),
            "mkdir": lambda: tier.mkdir(f"m/{next(names)}/n"),
            "rename": lambda: tier.rename(f"d/{next(names)}", f"e/n{next(names)}"),
            "copy": lambda: tier.copy("d/199", f"c/{next(names)}"),
            "absent": lambda: put(tier, f"l/{next(names)}", b"", if_absent=True),
        }.items():
            assert 2 * way <= once_below(4 * way, act) < 4 * way, name
        tier.close()


@pytest.mark.long
def test_thousands_of_entries(door: Door) -> None:
    directory = door.root / "many"
    directory.mkdir(parents=True)
    names = [f"{number:05} {'name' * (number % 20)}" for number in range(3000)]
    for name in names:
        (directory / name).touch()
    tier = door.tier()
    assert [entry.path for entry in tier.list("many")] == [f"many/{name}" for name in names]
    assert sum(1 for _ in tier.walk("")) == 3001
    tier.close()


def test_a_slow_reader_holds_up_who_sends_and_nobody_else(door: Door) -> None:
    tier = door.tier()
    data = content(24 * BLOCK)
    put(tier, "f", data)
    before = resident(door.proxy.pid)
    with tier.open("f") as reader:
        first = reader.data(1000)
        for number in range(20):  # while it waits
            put(tier, f"g{number}", b"x" * 1000)
        assert resident(door.proxy.pid) - before < 16 * BLOCK
        assert first + b"".join(iter(reader.read, b"")) == data
    tier.close()


def resident(pid: int) -> int:
    """Bytes of memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_sixty_four_operations_at_one_time(door: Door) -> None:
    tier, wrong = door.tier(), []
    gate = threading.Barrier(64)

    def work(number: int) -> None:
        data = content(20_000 + number, number)
        try:
            with tier.create(f"d/{number}") as writer:
                writer.write(data)
                gate.wait(120)
                writer.commit()
            if get(tier, f"d/{number}") != data:
                wrong.append(f"{number} is another")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(list(tier.list("d"))) == 64
    tier.close()


def test_a_fork_has_streams_of_its_own(door: Door) -> None:
    """Open streams belong to the parent: neither the child's actions nor its end change them."""
    tier = door.tier()
    data = content(4 * BLOCK)
    put(tier, "f", data)
    with tier.open("f") as reader, tier.create("g") as writer:
        first = reader.data(10)
        writer.write(data)
        pid = os.fork()
        if not pid:
            status = 1
            try:
                put(tier, "child", data)
                with contextlib.suppress(OSError):
                    writer.commit()
                    os._exit(2)
                writer.abort()
                reader.close()
                status = 0 if get(tier, "child") == data else 3
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert first + b"".join(iter(reader.read, b"")) == data
        writer.commit()
    assert get(tier, "child") == get(tier, "g") == data
    tier.close()


# -- what a hostile job may try --------------------------------------------------------------------------


def test_anothers_right_and_garbage_are_refused_and_harm_nobody(door: Door) -> None:
    for more in ({"capability": "0" * 32}, {"token": "0" * 32}, {"capability": ""}):
        tier = door.tier(**more)
        with pytest.raises(OSError, match=r"capability|no such job") as caught:
            put(tier, "f", b"x")
        assert caught.value.errno == errno.ENOTCONN
        tier.close()
    door.settled()
    relay, drawn = door.relay(), random.Random(3)
    said = [
        b"",
        b"\xff" * 100,
        struct.pack("!I", 1 << 31),
        protocol.word({"op": "get"}),
        protocol.word({"op": "exec", "path": "x"}),
        protocol.ask("put", path="f") + b"\xff" * 64,
        protocol.ask("put", path="f") + protocol.mark(1 << 61),
        protocol.ask("put", path="f") + protocol.mark(10) + b"x",
        protocol.ask("get", path="../../etc/passwd"),
        protocol.ask("get", path="/etc/passwd"),
        protocol.ask("stat", path="a/\0"),
        protocol.ask("rename", path="x", target="../../tmp/x"),
        *(drawn.randbytes(drawn.choice((5, 500, 300_000))) for _ in range(20)),
    ]
    for body in said:
        with relay.stream("fs") as asked, contextlib.suppress(RequestError, BrokenPipeError):
            asked.write(body)
            asked.end()
            told = b"".join(iter(lambda asked=asked: asked.read(1 << 16), b""))  # type: ignore[misc]
            with pytest.raises(OSError):
                protocol.check(protocol.heard(io.BytesIO(told).read, 1 << 20))
    relay.close()
    door.settled()
    tier = door.tier()
    put(tier, "f", b"x")
    assert door.kept() == ["f"]
    tier.close()


def test_files_go_by_their_descriptors(door: Door, tmp_path: Path) -> None:
    """Lent to the nodes at both ends; one that becomes shorter on the way is an error, and no file."""
    tier, data = door.tier(), content(8 * BLOCK + 5)
    (tmp_path / "here").write_bytes(data)
    with open(tmp_path / "here", "rb", buffering=0) as source, tier.create("f", size=len(data) - 7) as writer:
        source.seek(7)
        assert writer.take(source.fileno(), len(data) - 7) == len(data) - 7
        writer.commit()
    assert (door.root / "f").read_bytes() == data[7:]
    with tier.open("f") as reader, open(tmp_path / "there", "wb", buffering=0) as target:
        while reader.give(target.fileno(), 3 * BLOCK):
            pass
    assert (tmp_path / "there").read_bytes() == data[7:]
    with tier.open("f") as reader:
        os.truncate(door.root / "f", BLOCK)
        with pytest.raises(OSError) as caught, open(tmp_path / "there", "wb", buffering=0) as target:
            while reader.give(target.fileno(), 3 * BLOCK):
                pass
        assert caught.value.errno == errno.ESTALE
    tier.close()
    assert door.kept() == ["f"]
