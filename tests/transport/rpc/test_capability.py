"""Requests of a job to its origin: its own, with its capability, as long as it lives; and the memory they cost."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quine.base.sessions import new_session
from tests.lab import Lab, processes
from tests.support.agents import OK, call, says, sh
from tests.support.remote_agents import environment, results, tapes, warm
from tests.support.waiting import read_until
from transport.rpc import services
from transport.rpc.services import Services
from transport.wire.frames import CHUNK, Kind
from transport.wire.session import STDIN, STDOUT, Session

MiB = 1 << 20
CAPABILITY = "c" * 32
PYTHON = 'PYTHONPATH=$(dirname "$(command -v quine)")/lib python3 -SP'  # over there, with our modules


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


# -- over there, with a real node between ------------------------------------------------------------

# a process of a job that asks what it likes; each answer or refusal is a line
ASK = """
import json, os, sys
from transport import inherit
from transport.errors import RequestError
from transport.rpc.call import Relay
memo = inherit.read()
memo.update(json.loads(os.environ.get("OTHER", "{}")))
for name, body in json.loads(sys.argv[1]):
    try:
        print(len(Relay(memo["socket"], memo["token"], memo["capability"]).request(name, body.encode())))
    except RequestError as error:
        print(error)
"""


def asking(lab: Lab, *requests: tuple[str, str]) -> str:
    """Return a command in `sh` on the host."""
    script = lab.work / "ask.py"
    script.write_text(ASK)
    words = json.dumps(requests).replace("'", "'\\''")
    return f"{PYTHON} {script} '{words}'"


def lines(result: str) -> list[str]:
    return result.split("[STDOUT]\n")[1].split("\n[STDERR]")[0].splitlines()


def infer(session: str, ordinal: int = 0) -> tuple[str, str]:
    body = {"session": session, "mission": "other", "ordinal": ordinal, "wisdom": {}, "messages": []}
    return "infer", json.dumps(body)


def tape(session: str, **meta: object) -> tuple[str, str]:
    entry = {"type": "meta", "data": {"session_id": session, **meta}, "seq": 0, "ts": 1.0, "prev": ""}
    return "tape", json.dumps({"session": session, "lines": [json.dumps(entry)]})


def test_what_a_job_may_ask_and_what_not(lab: Lab, data: Path) -> None:
    """Its own tree, its own sessions, with its own capability; each refusal is a line in its log here."""
    other, fresh = new_session(), new_session()
    wrong = 'OTHER=\'{"capability": "' + "0" * 32 + "\"}' "
    stranger = tape(fresh, root_session_id=other, parent_session_id="", depth=0)
    env = environment(
        lab, data,
        says(
            sh(wrong + asking(lab, ("life", ""), infer(other))),
            sh(asking(lab, ("life", ""), ("secrets", ""), infer(other), stranger, ("tape", "x"))),
            OK,
            match="^work",
        ),
        says(OK),
    )  # fmt: skip
    done = lab.run(["--on", "h1", "work"], env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    first, second = (lines(result) for result in results(data, "work"))
    assert first == ["the capability is not that of this job"] * 2
    assert int(second[0]) > 100
    assert second[1:] == [
        "no service named 'secrets' at the origin",
        "infer: a session that is not of this job",
        "tape: the session belongs to another tree",
        "tape: expecting value: line 1 column 1 (char 0)" if "char 0" in second[4] else second[4],
    ]
    assert set(tapes(data)) == {"work"}
    session = tapes(data)["work"][0]["data"]["session_id"]
    log = (data / f"{session}.log").read_text()
    assert log.count("refused: the capability is not that of this job") == 2
    assert log.count("refused: ") == 6


@pytest.mark.long
def test_a_capability_dies_with_its_job(lab: Lab, data: Path) -> None:
    """And is worth nothing beside another job's name, which every process of the node's user could know."""
    tell = f"{PYTHON} -c 'import json; from transport import inherit; "
    tell += 'print(json.dumps({k: v for k, v in inherit.read().items() if k in ("token", "capability")}))\''
    env = environment(
        lab, data,
        says(sh(tell), OK, match="^first"),
        says(sh(asking(lab, ("life", ""))), OK, match="^second"),
    )  # fmt: skip
    assert lab.run(["--on", "h1", "first"], env=env).returncode == 0
    dead = json.loads(lines(results(data, "first")[0])[0])
    for other, words in (
        (dead, "no such job, or its origin is gone"),
        ({"capability": dead["capability"]}, "the capability is not that of this job"),
    ):
        env = environment(
            lab,
            data,
            says(sh(f"OTHER='{json.dumps(other)}' " + asking(lab, ("life", ""))), OK, match="^again"),
        )
        assert lab.run(["--on", "h1", f"again {words}"], env=env).returncode == 0
        assert lines(results(data, f"again {words}")[0]) == [words]


@pytest.mark.long
def test_no_capability_and_no_key_where_others_look(lab: Lab, data: Path) -> None:
    """argv, environment, files and logs over there and here; in an agent, its shell, a nested one and its children."""
    canary = "canary-0a1b2c3d4e5f"
    lab.alias("k1", "h1", may_fork=["h2"])
    tell = f"{PYTHON} -c 'from transport import inherit; "
    tell += 'print(inherit.read()["capability"])\' >&4'
    env = environment(
        lab, data,
        says(sh(tell), call("fork", intent="child", host="h2", wait=True), OK, match="^root"),
        says(sh("quine nested"), OK, match="^child"),
        says(sh(tell + "; echo up >&5; read x <&3; sleep 60"), OK, match="^nested"),
    )  # fmt: skip
    warm(lab, "k1", "h2")
    process = lab.popen(
        ["--on", "k1", "root"],
        env={**env, "OPENAI_API_KEY": canary, "QUINE_API_KEY": canary},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout
        secrets = [read_until(process.stdout.fileno(), b"\n").strip(), canary.encode()]
        assert len(secrets[0]) == 32
        while len(tapes(data).get("nested", ())) < 4:
            assert process.poll() is None
        seen = 0
        for host in ("h1", "h2"):
            for each in processes.marked(lab[host].mark):
                for name in ("cmdline", "environ"):
                    try:
                        text = Path(f"/proc/{each.pid}/{name}").read_bytes()
                    except OSError:  # it has just ended
                        continue
                    seen += len(text)
                    assert not any(secret in text for secret in secrets), (each, name)
            for path in (*lab[host].home.rglob("*"), *lab[host].run.rglob("*")):
                if path.is_file() and ".cache/quine" not in str(path):
                    with contextlib.suppress(FileNotFoundError):  # it was there for a moment
                        text = path.read_bytes()
                        assert not any(secret in text for secret in secrets), path
        assert seen > 1000
    finally:
        process.terminate()
        process.communicate()
    assert lab.wait_idle() == []
    for path in (*data.rglob("*"), *Path(lab.env["XDG_RUNTIME_DIR"]).rglob("*")):
        if path.is_file():
            text = path.read_bytes()
            assert canary.encode() not in text, path
            assert path.suffix == ".jsonl" or secrets[0] not in text, path


# -- what it makes us hold ---------------------------------------------------------------------------


class Pair:
    """The services of a job, and a node at the other end that asks."""

    def __init__(self, wake: int, **handlers: Callable[[bytes], bytes]) -> None:
        self.near, self.far = Session(True, {}), Session(False, {})
        self.notes: list[str] = []
        self.late = 0.0  # seconds that the clock of the services is ahead
        self.services = Services(
            self.near,
            handlers,
            wake,
            CAPABILITY,
            self.notes.append,
            clock=lambda: time.monotonic() + self.late,
        )
        self.replies: dict[int, str | None] = {}
        self.acked: dict[int, int] = {}
        self.got: dict[int, bytes] = {}
        self.move()

    def ask(self, name: str = "echo", capability: str = CAPABILITY) -> int:
        number = self.far.open(Kind.REQUEST, {"name": name, "capability": capability})
        self.move()
        return number

    def send(self, number: int, size: int) -> int:
        """As much of it as there is credit for; returns that."""
        sent = 0
        while sent < size and (part := min(CHUNK, self.far.flow(number, STDIN).credit, size - sent)):
            self.far.data(number, STDIN, bytes(part))
            sent += part
            self.move()
        return sent

    def end(self, number: int) -> None:
        self.far.eof(number, STDIN)
        self.move()

    def move(self) -> None:
        while (down := b"".join(self.far.pull(1 << 30))) or self.near.has_output:
            for frame in self.near.receive(down):
                self.services.on_frame(frame)
            for frame in self.far.receive(b"".join(self.near.pull(1 << 30))):
                if frame.kind == Kind.REPLY:
                    self.replies[frame.channel] = frame.body()["error"]
                elif frame.kind == Kind.DATA:
                    self.got[frame.channel] = self.got.get(frame.channel, b"") + frame.payload

    def wait(self, number: int) -> None:
        """Until a handler has answered."""
        read_until(self.reader, b"\0")
        self.services.send()
        self.move()
        assert number in self.replies or number in self.got

    reader = -1

    @property
    def held(self) -> int:
        return self.services._held


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    made: list[tuple[Pair, int, int]] = []

    def make(**handlers: Callable[[bytes], bytes]) -> Pair:
        read, write = os.pipe()
        pair = Pair(write, **handlers)
        pair.reader = read
        made.append((pair, read, write))
        return pair

    yield make
    for each, read, write in made:
        each.services.close()
        if each.services._pool:
            each.services._pool.shutdown(wait=True)
        os.close(read)
        os.close(write)


def test_the_capability_is_looked_at_first(pair: Callable[..., Pair]) -> None:
    called: list[bytes] = []
    both = pair(echo=lambda body: called.append(body) or b"yes")  # type: ignore[func-returns-value]
    for capability in ("", "c", "C" * 32, "é" * 32, CAPABILITY + "c"):
        number = both.ask(capability=capability)
        assert both.replies[number] == "the capability is not that of this job"
        both.far.data(number, STDIN, b"x")
        both.end(number)
    assert not called and both.held == 0
    good = both.ask()
    both.send(good, 3)
    both.end(good)
    both.wait(good)
    assert both.replies[good] is None and both.got[good] == b"yes" and called == [bytes(3)]


def test_refusals_do_not_fill_the_log(pair: Callable[..., Pair]) -> None:
    both = pair(echo=bytes)
    for _ in range(1000):
        both.far.last_word(both.ask(capability="x"))
    assert len(both.notes) == services.MOST_NOTES
    assert both.notes[-1].endswith("no more of these are noted")


def test_half_requests_hold_neither_slots_nor_memory(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them are begun: after a while each new one takes the place of an old one that got nowhere."""
    both = pair(echo=lambda body: b"%d" % len(body))
    for _ in range(services.MAX_OPEN):
        both.send(both.ask(), 10 * MiB)
    assert both.held <= services.HELD + services.MAX_BODY + services.MAX_OPEN * services.INITIAL_WINDOW
    late = both.ask()
    assert "requests at one time" in str(both.replies[late])
    both.late = services.STALLED + 1
    for _ in range(1000):
        both.ask()
    assert both.held <= services.HELD + services.MAX_BODY + services.MAX_OPEN * services.INITIAL_WINDOW
    assert sum("others needed the room" in str(reply) for reply in both.replies.values()) == services.MAX_OPEN


def test_in_a_crowd_the_oldest_gets_on_and_the_others_follow(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "HELD", 4 * MiB)
    both = pair(echo=lambda body: b"%d" % len(body))
    numbers = [both.ask() for _ in range(10)]
    left = dict.fromkeys(numbers, 2 * MiB)
    order = []
    while left:
        moved = {
            number: both.send(number, 300_000 if size > 300_000 else size) for number, size in left.items()
        }
        assert any(moved.values()), "nobody gets on"
        assert both.held <= 4 * MiB + 2 * MiB + len(numbers) * services.INITIAL_WINDOW
        for number, sent in moved.items():
            left[number] -= sent
            if not left[number]:
                del left[number]
                both.end(number)
                both.wait(number)
                both.far.last_word(number)
                both.move()
                order.append(number)
    assert sorted(order) == numbers and {both.got[n] for n in numbers} == {b"%d" % (2 * MiB)}
    assert both.held == 0


def test_a_crowd_of_half_requests_gives_way(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "HELD", MiB)
    both = pair(echo=lambda body: b"%d" % len(body))
    stuck = [both.ask() for _ in range(8)]
    for number in stuck:
        both.send(number, 10 * MiB)
    honest = both.ask()
    sent = both.send(honest, MiB)
    assert sent < MiB and both.services.crowded
    for _ in range(11):
        both.late += services.STALLED + 1
        both.services.relieve(None)
        both.move()
        sent += both.send(honest, MiB - sent)
    assert sent == MiB
    both.end(honest)
    both.wait(honest)
    assert both.got[honest] == b"%d" % MiB


def test_bodies_behind_those_of_slow_handlers_wait(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inference takes minutes: as many bodies as requests would be held meanwhile, each as large as may be."""
    monkeypatch.setattr(services, "HELD", 2 * MiB)
    gate = threading.Event()
    both = pair(echo=lambda body: b"%d" % len(body) if gate.wait(120) else b"")
    numbers = [both.ask() for _ in range(8)]
    left = dict.fromkeys(numbers, MiB)

    def go_on() -> bool:
        moved = {number: both.send(number, size) for number, size in left.items()}
        for number, sent in moved.items():
            left[number] -= sent
            if not left[number]:
                del left[number]
                both.end(number)
        return any(moved.values())

    while go_on():
        assert both.held <= 3 * MiB + len(numbers) * services.INITIAL_WINDOW
    both.late += services.STALLED + 1
    both.services.relieve(None)
    assert 0 < len(left) < 8 and not both.replies  # none of them gives way: they wait for us
    gate.set()
    while len(both.replies) < len(numbers):
        read_until(both.reader, b"\0")
        both.services.send()
        both.move()
        for number in both.replies:
            if number in both.far.channels:
                both.far.last_word(number)
        both.move()
        go_on()
    assert {both.got[number] for number in numbers} == {b"%d" % MiB} and both.held == 0


def test_bytes_without_credit_and_bodies_without_end(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MAX_BODY", MiB)
    monkeypatch.setattr(services, "HELD", 2 * MiB)
    both = pair(echo=bytes)
    endless = both.ask()
    while not both.replies.get(endless):
        assert both.send(endless, CHUNK)
    assert "more than" in str(both.replies[endless])
    filler = [both.ask() for _ in range(4)]
    for number in filler:
        both.send(number, MiB)
    flood = both.ask()  # it has its first window, and no credit after it: there is a crowd
    for _ in range(3 * services.INITIAL_WINDOW // CHUNK):
        if not both.replies.get(flood):
            both.far.data(flood, STDIN, bytes(CHUNK))
            both.move()
    assert both.replies[flood] == "more bytes than there was credit for"
    assert both.held <= 3 * MiB + 5 * services.INITIAL_WINDOW


def test_replies_that_nobody_reads(pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is cheap and its answer large, and the job reads none of it."""
    monkeypatch.setattr(services, "HELD", 4 * MiB)
    both = pair(echo=lambda body: bytes(MiB))
    numbers = [both.ask() for _ in range(30)]
    for number in numbers:
        both.end(number)
        both.wait(number)
        assert both.held <= 9 * MiB
    assert sum("nobody reads" in str(both.replies.get(number)) for number in numbers) >= 20
    for number in numbers:
        flow = both.far.flow(number, STDOUT)
        while not flow.ended:
            both.far.ack(number, STDOUT, flow.offset)
            both.move()
        both.far.last_word(number)
        both.move()
    assert both.held == 0
