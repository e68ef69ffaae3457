"""Agents and their broker: found, shared, killed, idle; and every kind of process below an agent infers by it."""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quine.base.errors import Misconfigured
from quine.broker import client, key_sources, wire
from quine.broker.gate import START
from quine.broker.key_sources import Given
from quine.budget.ledger import MOST_REPLY
from quine.providers.metering import TOOLS
from tests.broker.serving import BYE, FIRST, Careless, Served, gone, said
from tests.support.agents import PATIENCE, QUINE
from tests.support.waiting import until
from tests.vendors.server import KEY, Seen

AGENT = " ".join(QUINE)
MANY = int(os.environ.get("QUINE_TEST_BROKER", 4))  # agents at one time; 50 is the long form


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


class Held:
    """Inferences wait until they are let go, so that a broker can be killed while they are under way."""

    def __init__(self, served: Served) -> None:
        self.come = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self._served = served
        served.provider.next = self.next  # type: ignore[method-assign]
        self._next = type(served.provider).next

    def next(self, seen: Seen, wrong: str | None) -> Any:
        self.come.release()
        self.go.acquire(timeout=100)
        return self._next(self._served.provider, seen, wrong)

    def arrive(self, count: int) -> None:
        for number in range(count):
            assert self.come.acquire(timeout=100), f"{number} of {count} have come"

    def let_go(self, count: int = 10_000) -> None:
        self.go.release(count)


CROWDED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
for _ in range(1100):
    os.set_inheritable(os.dup(0), True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_an_agent_has_no_client_of_http(served: Served) -> None:
    """Neither the first one, which makes the broker, nor the next one, which finds it.

    The first one is started with a thousand descriptors and gets its broker: select(2) takes none from 1024 on.
    """
    agent = [*QUINE, "--", FIRST]
    for command in ([sys.executable, "-c", CROWDED, *agent], agent):
        done = subprocess.run(
            command,
            cwd=served.directory,
            env={**served.env, "PYTHONPROFILEIMPORTTIME": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
        lines = [line for line in done.stderr.decode().splitlines() if line.startswith("import time:")]
        loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in lines}
        assert "quine" in loaded
        assert not loaded & {"httpx", "ssl", "_ssl", "pydantic", "asyncio", "anyio", "ctypes"}


def test_a_soft_limit_of_the_first_agent_is_none_of_the_broker(served: Served) -> None:
    limited = ["sh", "-c", 'ulimit -S -f 99; exec "$@"', "sh", *QUINE, "--", FIRST]
    done = subprocess.run(
        limited,
        cwd=served.directory,
        env=served.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    assert {resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in served.brokers()} == {(hard, hard)}


def test_agents_that_start_together_share_one(served: Served) -> None:
    agents = [served.start(FIRST) for _ in range(MANY)]
    try:
        ends = [agent.communicate(timeout=120) for agent in agents]
        assert [(agent.returncode, *end) for agent, end in zip(agents, ends, strict=True)] == [
            (0, b"hi\n", b"")
        ] * MANY
        assert len(served.brokers()) == 2  # a keeper and a worker
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


def test_other_keys_have_another_broker(served: Served) -> None:
    assert served.run(mission=FIRST).returncode == 0
    done = served.run(mission=FIRST, env={"OPENROUTER_API_KEY": "another-key-0123456789"})
    assert done.returncode == 0, done.stderr
    assert len(served.brokers()) == 4 and len(served.sockets()) == 2
    assert {path.stat().st_mode & 0o777 for path in served.sockets()} == {0o600}
    assert served.run(mission=FIRST).returncode == 0
    assert len(served.brokers()) == 4


def test_it_ends_when_it_is_idle_and_not_under_an_agent(served: Served) -> None:
    """The agent is busy for longer than the idle time between its two inferences."""
    served.plan[FIRST] = [said("sleep 1; echo hi >&4"), BYE]
    done = served.run(mission=FIRST, env={"QUINE_BROKER_IDLE": "0.01"})
    assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
    assert gone(served.brokers())
    assert served.sockets() == []


NESTED = {
    "of another session": "sh -c 'sh -c \"setsid -w quine inner-errand\"'",
    "env -i": "env -i PATH=$PATH XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR quine inner-errand",
    "no descriptors": 'python3 -c \'import subprocess; subprocess.run(["quine", "inner-errand"])\'',
    "orphan": "(setsid sh -c 'quine inner-errand >$PWD/out 2>&1; touch $PWD/over' &) ; "
    "while ! [ -e $PWD/over ]; do sleep 0.05; done; cat $PWD/out",
    "detached": "id=$(quine --detach inner-errand); quine wait $id; quine logs $id",
}


def test_every_process_below_infers(served: Served, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    quine = tmp_path / "bin" / "quine"
    quine.write_text(f'#!/bin/sh\nexec {" ".join(QUINE)} "$@"\n')
    quine.chmod(0o755)
    served.env["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    served.plan[FIRST] = [said(*NESTED.values()), BYE]
    done = served.run(mission=FIRST)
    assert done.returncode == 0, done.stderr
    results = dict(zip(NESTED, served.results(FIRST), strict=False))
    assert len(results) == len(NESTED)
    assert {way: text for way, text in results.items() if "inner" not in text.split("[STDOUT]")[1]} == {}
    assert len(served.brokers()) == 2
    assert all(seen.headers["authorization"] == f"Bearer {KEY}" for seen in served.provider.requests)


def test_a_daemon_of_a_command_ends_with_its_agent_and_a_detached_one_goes_on(served: Served) -> None:
    """Both hold the ledger. The daemon is told so; the detached agent and one nested in it infer."""
    late = "while ! [ -e $PWD/over ]; do sleep 0.05; done"
    daemon = f"{late}; {AGENT} inner-errand >$PWD/out 2>&1; echo $? >$PWD/ended"
    daemon = f"(setsid sh -c '{daemon}' >/dev/null 2>&1 3<&- 4>&- 5>&- &)"
    served.plan[FIRST] = [said(f"{daemon}; {AGENT} --detach later-errand >&4"), BYE]
    served.plan["later-errand"] = [said(f"{late}; {AGENT} inner-errand >&4"), BYE]
    done = served.run(mission=FIRST)
    assert done.returncode == 0, done.stderr
    (served.directory / "over").touch()
    job = done.stdout.decode().strip()
    assert served.quine("wait", job).returncode == 0, served.quine("logs", job)
    assert served.quine("logs", job).stdout == "inner\n"
    until(
        lambda: (served.directory / "ended").exists() and (served.directory / "ended").read_text(),
        "the daemon ended",
    )
    assert (served.directory / "ended").read_text() == "77\n"
    assert "no living agent of this broker is above it" in (served.directory / "out").read_text()


def test_a_command_cannot_send_the_key_elsewhere(served: Served, tmp_path: Path) -> None:
    """Nor does it get another price, nor a ledger of its own."""
    (tmp_path / "other").mkdir()
    with Served(tmp_path / "other") as other:
        other.provider.vendor = Careless(other.provider.vendor)
        base = f"QUINE_API_BASE={other.provider.base}/v1"
        served.plan[FIRST] = [said(f"{base} {' '.join(QUINE)} inner-errand"), BYE]
        assert served.run(mission=FIRST).returncode == 0
        (first, *_) = other.provider.requests
        assert KEY not in json.dumps(first)


# ----------------------------------------------------------------------------------------- its death


def ended(agents: list[subprocess.Popen[bytes]]) -> list[tuple[int, bytes, bytes]]:
    ends = [agent.communicate(timeout=200) for agent in agents]
    return [(agent.returncode, *end) for agent, end in zip(agents, ends, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("victim", ["worker", "keeper"])
def test_a_killed_one_under_many_agents(served: Served, victim: str) -> None:
    """The next worker makes each inference again; without a keeper the worker goes on."""
    held = Held(served)
    agents = [served.start(FIRST) for _ in range(MANY)]
    under_way = min(MANY, int(START))  # the others wait at the gate
    try:
        held.arrive(under_way)
        keeper, worker = served.brokers()
        served.kill(worker if victim == "worker" else keeper)
        if victim == "worker":
            held.arrive(under_way)
        held.let_go()
        assert ended(agents) == [(0, b"hi\n", b"")] * MANY
        assert len(served.provider.requests) == 2 * MANY + (under_way if victim == "worker" else 0)
    finally:
        held.let_go()
        for agent in agents:
            agent.kill()
            agent.wait()


def test_both_killed_and_a_squatter_in_their_place(served: Served) -> None:
    """Nobody has the key any more: the inference is reported, with the cure. The next agent makes a broker anew.

    A socket of the same user in the place of the broker's is recognised: an agent makes a broker under another name.
    """
    held = Held(served)
    with served.start(FIRST) as agent:
        held.arrive(1)
        served.kill(*served.brokers())
        out, err = agent.communicate(timeout=120)
        held.let_go()
    assert (agent.returncode, out) == (69, b"")
    assert b"the process that holds the keys has ended" in err and b"hint: start the agent anew" in err
    assert served.run(mission=FIRST).returncode == 0  # the next one has the key
    (path,) = served.sockets()
    served.kill(*served.brokers())
    path.unlink()
    heard: list[bytes] = []
    with Squatter(path, heard):
        done = served.run(mission=FIRST)
    assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
    assert heard and KEY.encode() not in b"".join(heard)
    assert len(served.sockets()) == 2


def test_a_server_without_a_key_outlives_both(served: Served) -> None:
    served.provider.vendor = Careless(served.provider.vendor)
    del served.env["QUINE_API_KEY"]
    held = Held(served)
    with served.start(FIRST) as agent:
        held.arrive(1)
        served.kill(*served.brokers())
        held.arrive(1)
        held.let_go()
        out, err = agent.communicate(timeout=120)
    assert (agent.returncode, out, err) == (0, b"hi\n", b"")


def test_a_cut_inference_is_charged_once(served: Served) -> None:
    most = 1_000_000
    held = Held(served)
    with served.start(FIRST, "--max-tokens", str(most)) as agent:
        held.arrive(1)
        served.kill(served.brokers()[1])
        held.arrive(1)
        held.let_go()
        agent.communicate(timeout=120)
    assert agent.returncode == 0
    (result,) = served.results(FIRST)
    left = int(result.partition("[TOKENS LEFT] ")[2].split()[0])
    cut = most - left - 110  # besides the usage of the reply
    prompt = len(json.dumps(served.provider.bodies[0])) // 4 + TOOLS
    assert MOST_REPLY < cut < MOST_REPLY + 2 * prompt, "its reservation: the prompt, and the longest reply"


# ----------------------------------------------------------------------------------------- its key


def test_a_key_from_a_file(served: Served, tmp_path: Path) -> None:
    """Its path is that of the caller, though the broker reads it from another directory."""
    (tmp_path / "key").write_text(f"{KEY}\n")
    del served.env["QUINE_API_KEY"]
    served.plan[FIRST] = [BYE]
    assert served.run(mission=FIRST, env={"QUINE_API_KEY_FILE": "key"}).returncode == 0
    done = served.run(mission=FIRST, env={"QUINE_API_KEY_FILE": "none"})
    assert done.returncode == 2 and b"QUINE_API_KEY_FILE" in done.stderr


def test_a_key_is_read_from_no_pipe(tmp_path: Path) -> None:
    """A command can put one in the place of the file, and its open or its end may never come."""
    file = tmp_path / "key"
    os.mkfifo(file)
    pipe = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(pipe, KEY.encode().ljust(key_sources.LONGEST))
        with pytest.raises(Misconfigured, match="cannot be read: no regular file"):
            Given({"QUINE_API_KEY_FILE": str(file)}).key()
    finally:
        os.close(pipe)
    file.unlink()
    file.write_text(f"{KEY}\n")
    assert Given({"QUINE_API_KEY_FILE": str(file)}).key() == KEY


def test_a_key_from_a_command(served: Served, tmp_path: Path) -> None:
    """It runs once for two agents, and a nested one."""
    del served.env["QUINE_API_KEY"]
    served.plan[FIRST] = [said(f"{' '.join(QUINE)} inner-errand >&4"), BYE]
    served.plan["second-errand"] = [BYE]
    served.env["QUINE_API_KEY_COMMAND"] = f"echo x >>{tmp_path}/runs; echo {KEY}"
    for mission in (FIRST, "second-errand"):
        assert served.run(mission=mission).returncode == 0
    assert (tmp_path / "runs").read_text() == "x\n"
    done = served.run(mission=FIRST, env={"QUINE_API_KEY_COMMAND": "exit 3"})
    assert done.returncode == 2 and b"failed with status 3" in done.stderr


PROVES = """
from quine.base.errors import Failure
from quine.broker import finding
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
try:
    finding.broker(Ledger.create(Limits()), 1, [], {})
    print("admitted")
except Failure as failure:
    print(failure.detail)
"""


def test_a_command_begins_no_tree_by_the_name_of_the_command_that_has_the_key(served: Served) -> None:
    """It knows that name, as all that a proof needs, and may not be able to run that command, which asks a person."""
    del served.env["QUINE_API_KEY"]
    proves = served.directory / "proves.py"
    proves.write_text(PROVES)
    served.plan[FIRST] = [said(f"{sys.executable} -P {proves} >&4"), BYE]
    for name, value, answer in (
        ("QUINE_API_KEY_COMMAND", f"echo {KEY}", "the broker refuses to infer: its ledger is not that of"),
        ("QUINE_API_KEY_FILE", str(served.directory / "key"), "admitted"),
    ):
        (served.directory / "key").write_text(KEY)
        done = served.run(mission=FIRST, env={name: value})
        assert done.returncode == 0 and done.stdout.decode().startswith(answer), done
    assert len(served.brokers()) == 4


def test_the_output_of_a_command_that_has_the_key_cannot_be_opened(tmp_path: Path) -> None:
    there, go = tmp_path / "there", tmp_path / "go"
    os.mkfifo(there)
    os.mkfifo(go)
    given = Given({"QUINE_API_KEY_COMMAND": f"echo $$ >{there}; read x <{go}; echo {KEY}"})
    with ThreadPoolExecutor(1) as pool:
        key = pool.submit(given.key)
        pid = int(there.read_text())
        with pytest.raises(OSError) as failed:
            os.open(f"/proc/{pid}/fd/1", os.O_RDONLY | os.O_NONBLOCK)
        go.write_text("\n")
        assert failed.value.errno == errno.ENXIO and key.result(PATIENCE) == KEY


@pytest.mark.parametrize(
    "command",
    ["sleep 100", "exec >&-; exec sleep 100", "head -c 70000 /dev/zero"],
    ids=["silent", "closed", "long"],
)
def test_a_command_that_gives_no_key(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sources, "PATIENCE", PATIENCE if "head" in command else 0.1)
    with pytest.raises(Misconfigured, match=r"one line|has printed no key"):
        Given({"QUINE_API_KEY_COMMAND": command}).key()


class Squatter:
    def __init__(self, path: Path, heard: list[bytes]) -> None:
        import socket

        self._listener = socket.socket(socket.AF_UNIX)
        with wire.reachable(str(path)) as name:
            self._listener.bind(name)
        self._listener.listen()
        self._heard = heard
        self._thread = threading.Thread(target=self._squat)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        import socket

        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _squat(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with line:
                for text in (b'{"nonce": "00"}', b'{"proof": "00"}'):
                    line.sendall(len(text).to_bytes(4, "big") + text)
                    self._heard.append(line.recv(1 << 16))


def test_a_thread_of_any_kind_is_one() -> None:
    """A maker with threads loads all modules before the fork; those of a pool of requests are not `threading`'s."""
    code = """
import _thread
from quine.broker import keeper
lock = _thread.allocate_lock()
lock.acquire()
print(keeper._has_threads())
_thread.start_new_thread(lock.acquire, ())
print(keeper._has_threads(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.stdout == b"False\nTrue\n", done.stderr


def test_a_fork_closes_the_connections_of_living_brokers_and_pays_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **calls: registered.append(calls))
    monkeypatch.setattr(client.Broker, "_greeted", lambda self, line: (line, client.Guest("", "")))
    before = set(client._living)
    near, far = socket.socketpair()
    with near, far:
        makes = functools.partial(client.Broker, "", mock.MagicMock(), 1, ())
        for _ in range(100):
            makes(line=near.dup()).close()
        broker = makes(line=near)
        assert not registered and {living() for living in client._living - before} == {broker}
        pid = os.fork()
        if not pid:
            os._exit(0 if near.fileno() < 0 else 1)
        assert os.waitpid(pid, 0)[1] == 0 and near.fileno() >= 0
