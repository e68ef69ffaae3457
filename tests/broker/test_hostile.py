"""A hostile command of an ordinary user looks for the key of its agent in a dozen ways, and finds it in none."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.serving import BYE, Served, said
from tests.lab import processes
from tests.support.agents import Started
from tests.support.waiting import until
from tests.vendors.server import KEY

USER = 40_000 + os.getpid() % 20_000  # of nobody else: thieves of the same user would find each other

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="starts processes of another user"),
    pytest.mark.skipif(not (shutil.which("strace") and shutil.which("gdb")), reason="needs strace and gdb"),
    pytest.mark.timeout(600),
]

AS = {"user": USER, "group": USER, "extra_groups": []}
PATHS = os.pathsep.join([str(Path(__file__).parents[2]), sysconfig.get_paths()["purelib"]])


def python() -> str:
    """Return an interpreter that USER can run, with the packages of this one; the test is skipped if there is none."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, shutil.which(version, path="/usr/bin:/usr/local/bin")):
        if path:
            try:
                words = [path, "-P", "-c", "import httpx, quine.broker"]
                subprocess.run(words, env={"PYTHONPATH": PATHS}, check=True, capture_output=True, **AS)  # type: ignore[call-overload]
            except (OSError, subprocess.CalledProcessError):
                continue
            return path
    pytest.skip("no interpreter here can be run by an ordinary user")


WAYS = (
    "environ", "fd", "mem", "inherited", "runtime", "strace", "gdb", "vm_readv", "false_quine", "own_server", "core",
    "squatted",
)  # fmt: skip


class Robbed(Served):
    """All processes are of USER, and so are the files. No process of USER but the agents was given the key."""

    def __init__(self, directory: Path) -> None:
        self.python = python()  # or the test is skipped, before anything is open
        super().__init__(directory, KEY)
        self.env |= {
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "THIEF_QUINE": f"{self.python} -P -m quine",
            "THIEF_ROOM": str(directory / "room"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": PATHS,
        }
        hint = directory / "hint"
        hint.write_text(KEY[::-1])
        (directory / "room").mkdir()
        self.plan = {
            "rob-errand": [said(f"{_command(self)} >&4 2>&5"), BYE],
            "work-errand": [said("echo hi >&4"), BYE],
        }
        self.plan["inner-"] = [said("echo inner >&4"), BYE]

    def __enter__(self) -> Robbed:
        super().__enter__()
        for path in (self.directory, *self.directory.rglob("*")):
            os.chown(path, USER, USER)
        return self

    def rob(self, *options: str, mission: str = "rob-errand") -> subprocess.CompletedProcess[bytes]:
        words = [self.python, "-P", "-m", "quine", *options, "--", mission]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with Started(words, cwd=self.directory, env=self.env, **pipes, **AS) as process:  # type: ignore[call-overload]
            out, err = process.communicate(timeout=500)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def robbed() -> Iterator[Robbed]:
    directory = Path(tempfile.mkdtemp(prefix="rob-", dir="/tmp"))  # the one of this run is closed to others
    try:
        with Robbed(directory) as made:
            yield made
    finally:
        processes.kill_marked(f"SERVED={directory}")
        shutil.rmtree(directory)


@pytest.mark.long
@pytest.mark.parametrize(
    "where",
    [pytest.param((), id="here", marks=pytest.mark.whole), pytest.param(("--on", "local"), id="by a node")],
)
def test_a_thief(robbed: Robbed, where: tuple[str, ...]) -> None:
    done = robbed.rob(*where)
    lines = done.stdout.decode().splitlines()
    assert [line for line in lines if line.startswith("found")] == []
    assert [line for line in lines if line.startswith("done")] == [f"done {way}" for way in WAYS], done
    assert f"came: {not where}" in lines  # an agent of a node asks its origin, whatever its variables say
    # An agent without keys has nothing to prove, and nothing to lose but its own words.
    assert any(line.startswith("after it: ") and line != "after it: 0" for line in lines)
    # The squatter still answers in the place of the broker that it has killed.
    later = robbed.rob(mission="work-errand")
    assert (later.returncode, later.stdout) == (0, b"hi\n"), later.stderr
    caught = (robbed.directory / "room" / "squatted").read_bytes()
    assert b"proof" in caught and KEY.encode() not in caught


def test_the_prover_is_closed_to_its_user_and_the_agent_is_not(robbed: Robbed) -> None:
    """The prover waits for another process that makes a broker; the kernel gives its files in /proc to root."""
    runtime = robbed.runtime / f"quine-{USER}"
    runtime.mkdir(0o700)
    os.chown(runtime, USER, USER)
    lock = os.open(runtime, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    words = [robbed.python, "-P", "-m", "quine", "--", "work-errand"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Started(words, cwd=robbed.directory, env=robbed.env, **pipes, **AS) as agent:  # type: ignore[call-overload]
        (prover,) = until(lambda: processes.descendants(agent.pid), "there is a prover")
        until(lambda: Path(f"/proc/{agent.pid}/mem").stat().st_uid == USER, "the agent has left its keys")
        assert Path(f"/proc/{prover}/mem").stat().st_uid == 0
        os.close(lock)
        assert (agent.communicate(timeout=120), agent.returncode) == ((b"hi\n", b""), 0)


def test_the_thief_finds_what_is_there(robbed: Robbed) -> None:
    """The same thief, beside a process that was given the key and does not hide it."""
    robbed.plan["rob-errand"][0] = said(f"{_command(robbed)} environ mem vm_readv >&4 2>&5")
    careless = ["sleep", "1000"]
    env = {**robbed.env, "OTHER": KEY}
    with subprocess.Popen(careless, env=env, **AS) as sleeper:  # type: ignore[call-overload]
        try:
            done = robbed.rob()
        finally:
            sleeper.kill()
    found = {line.split()[1] for line in done.stdout.decode().splitlines() if line.startswith("found")}
    assert found == {"environ", "mem", "vm_readv"}


def _command(robbed: Robbed) -> str:
    return f"{robbed.python} {Path(__file__).parent}/thief.py {robbed.directory}/hint"
