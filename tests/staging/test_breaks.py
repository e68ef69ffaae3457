"""Staging while the link is cut or a process is killed: the old or the new is there, whole, and sent once.

CI does each a few times; QUINE_TEST_BREAKS=50 is the long form.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab, Process, processes
from tests.support.agents import until
from tests.support.trees import facts
from tests.support.trees import there as there
from tests.system import breaks
from tests.system.breaks import LONG

ROUNDS = int(os.environ.get("QUINE_TEST_BREAKS", "3"))
SEED = int(os.environ.get("QUINE_TEST_SEED", "20261122"))
MiB = 1 << 20


def plant(top: Path, size: int, seed: int = 1) -> None:
    """Small files and large ones, `size` bytes in all."""
    rng = random.Random(seed)
    top.mkdir(parents=True, exist_ok=True)
    for number in range(200):
        (top / f"small{number}").write_bytes(rng.randbytes(size // 1000))
    for number in range(4):
        (top / f"large{number}").write_bytes(rng.randbytes(size // 5))


@pytest.mark.long
def test_each_content_crosses_the_link_once_for_a_host(
    lab: Lab, through: Callable[..., str], tmp_path: Path, there: Path
) -> None:
    host, proxy, size = through("h1"), lab["h1"].proxy, 8 * MiB
    plant(tmp_path / "t", size)
    for folder in ("1", "2"):
        (there / folder).mkdir()
    before = proxy.carried()
    both = [
        lab.popen(
            ["run", "--on", host, "--cwd", there / folder, "--files", "t", "--", "true"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        for folder in ("1", "2")
    ]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said == [b"", b""]
    assert size < proxy.carried() - before < 1.5 * size, "two jobs at the same time, one transfer"
    before = proxy.carried()
    words = ["run", "--on", host, "--cwd", there / "1", "--files", "t", "--returns", "t", "--", "true"]
    lab.run(words, cwd=tmp_path, check=True)
    assert proxy.carried() - before < 200_000, "nothing has changed, there or here"
    assert facts(there / "1") == facts(there / "2") == facts(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", range(ROUNDS))
def test_cuts_in_both_directions(
    lab: Lab, through: Callable[..., str], tmp_path: Path, there: Path, number: int
) -> None:
    host, proxy, size = through("h1"), lab["h1"].proxy, (200 if LONG else 8) * MiB
    plant(tmp_path / "t", size, SEED + number)
    done = proxy.cuts()
    proxy.cut_after(*breaks.plan(SEED + number, 4, 2 * size))
    words = [*breaks.QUIET, "--on", host, "--cwd", there, "--files", "t", "--returns", "r", "--"]
    result = lab.run([*words, "sh", "-c", "mv t r && touch r/large1 -d @5"], cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert proxy.cuts() - done == 4
    os.utime(tmp_path / "t" / "large1", (5, 5))
    assert facts(tmp_path / "r") == facts(tmp_path / "t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "t"]


def victim(lab: Lab, who: str) -> list[Process]:
    far = processes.marked(lab["h1"].mark)
    near = processes.marked(lab.mark)
    proxies = [process for process in near if "--files" in process.argv or "--returns" in process.argv]
    return {
        # the process that lays out is a copy of the launcher
        "wrapper": [process for process in far if "--stage" in process.argv or process.copy],
        "node there": [process for process in far if process.daemon],
        "node here": [process for process in near if process.daemon],
        "proxy": [process for process in proxies if not process.copy],
        "proxy, and who renames": proxies,
    }[who]


@pytest.mark.long
@pytest.mark.parametrize("who", ["wrapper", "proxy", "node there", "node here"])
def test_who_is_killed_while_files_go_leaves_nothing_half(
    lab: Lab, tmp_path: Path, there: Path, who: str
) -> None:
    rng = random.Random(SEED)
    plant(tmp_path / "t", 8 * MiB)
    wanted = facts(tmp_path)
    words = ["run", "--on", "h1", "--cwd", there, "--files", "t", "--", "touch", "started"]
    for _ in range(ROUNDS):
        shutil.rmtree(lab["h1"].home / ".cache" / "quine" / "staging", ignore_errors=True)
        _end_after(lab, tmp_path, words, who, rng.uniform(0, 0.5))
        until(lambda: not victim(lab, "wrapper"))  # the process that lays out has its lease, and its pause
        # and may only be about to begin: a job was on its way when its proxy or its node was killed
        until(lambda: _seen(there) in ({}, wanted))
        shutil.rmtree(there / "t", ignore_errors=True)
        (there / "started").unlink(missing_ok=True)
    lab.run(words, cwd=tmp_path, check=True)
    (there / "started").unlink()
    assert _seen(there) == wanted
    until(lambda: not list(there.glob(".quine*")))  # killed processes leave nothing behind


@pytest.mark.long
@pytest.mark.parametrize("who", ["wrapper", "proxy", "proxy, and who renames", "node there", "node here"])
def test_who_is_killed_while_files_come_leaves_the_old_or_the_new(
    lab: Lab, tmp_path: Path, there: Path, who: str
) -> None:
    rng = random.Random(SEED)
    plant(there / "t", 8 * MiB)
    new = facts(there)
    plant(tmp_path / "t", MiB, 2)
    old = facts(tmp_path)
    words = ["run", "--on", "h1", "--cwd", there, "--returns", "t", "--", "true"]
    for _ in range(ROUNDS):
        _end_after(lab, tmp_path, words, who, rng.uniform(0.05, 0.6))
        if "renames" not in who:  # it outlives the proxy; killed as well, it has a journal for who comes next
            until(lambda states=(old, new): _seen(tmp_path) in states)  # type: ignore[misc]
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
        plant(tmp_path / "t", MiB, 2)
        old = _seen(tmp_path)
    lab.run(words, cwd=tmp_path, check=True)
    assert facts(tmp_path) == new


@pytest.mark.parametrize(("verb", "reached"), [("run", True), ("xargs", True), ("xargs", False)])
def test_returns_that_are_cut_are_asked_for_again(
    lab: Lab, through: Callable[..., str], tmp_path: Path, verb: str, reached: bool
) -> None:
    """The node of this machine is killed while they come. Where the host is not to be reached, they stay there."""
    host, proxy, size = through("h1"), lab["h1"].proxy, 16 * MiB
    make = f'pwd >>{tmp_path}/ran; yes "$0" | head -c {size} >"$0.out"'
    more = ["--cleanup", "--joblog", "log", "--resume"] if verb == "xargs" else []
    item = ["{}", ":::", "a"] if verb == "xargs" else ["a"]
    words = [verb, "--on", host, *more, "--returns", "a.out", "--", "sh", "-c", make, *item]
    done = proxy.cuts()
    proxy.refuse()
    proxy.cut_after(size // 4)
    process = lab.popen(words, cwd=tmp_path, stderr=subprocess.PIPE)
    until(lambda: proxy.cuts() > done)
    for node in victim(lab, "node here"):
        processes.kill(node.pid)
    if reached:
        proxy.heal()
    error = process.communicate(timeout=120)[1].decode()
    proxy.heal()
    if not reached:
        assert process.returncode == 74 and "the files cannot be brought back: " in error
        assert (tmp_path / "log").read_text().count("\tunreturned\t") == 1
        assert not (tmp_path / "a.out").exists()
        process = lab.popen(words, cwd=tmp_path, stderr=subprocess.PIPE)
        error = process.communicate(timeout=120)[1].decode()
        assert "\tunreturned\t" not in (tmp_path / "log").read_text()
        assert not Path((tmp_path / "ran").read_text()[:-1], "a.out").exists(), "it is cleaned up there"
    assert (process.returncode, error) == (0, "")
    assert (tmp_path / "a.out").stat().st_size == size
    assert (tmp_path / "ran").read_text().count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a.out", "ran", *["log"] * bool(more)])


def _seen(top: Path) -> object:
    """Return the facts of the files, without those of processes at work; None while they change."""
    try:
        return {name: fact for name, fact in facts(top).items() if not name.startswith((".quine", "started"))}
    except OSError:
        return None


def _end_after(lab: Lab, work: Path, words: list[str | Path], who: str, seconds: float) -> None:
    process = lab.popen(words, cwd=work, stderr=subprocess.PIPE)
    killed = threading.Event()

    def kill() -> None:
        time.sleep(seconds)  # the moment is the test's input
        while process.poll() is None and not killed.is_set():
            for one in victim(lab, who):
                killed.set()
                processes.kill(one.pid)
            time.sleep(0.005)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        error = process.communicate(timeout=120)[1]
    finally:
        process.kill()
        thread.join()
    assert killed.is_set() or process.returncode == 0, error
    assert lab.wait_idle(90) == []


def heeds(process: subprocess.Popen[bytes], number: int) -> bool:
    """Has it a handler for this signal?"""
    status = Path("/proc", str(process.pid), "status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> number - 1 & 1)


def test_the_signals_of_a_caller_end_it_at_any_moment(lab: Lab, tmp_path: Path, there: Path) -> None:
    plant(tmp_path / "t", 4 * MiB)
    words = ["run", "--on", "h1", "--cwd", there, "--files", "t", "--", "sleep", "1000"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process = lab.popen(words, cwd=tmp_path)
        if number == signal.SIGINT:
            # an interpreter that is interrupted while it starts ends with status 1, and no code of ours has run
            until(lambda one=process: heeds(one, signal.SIGTERM))  # type: ignore[misc]
        time.sleep(random.Random(int(number)).uniform(0, 0.6))
        process.send_signal(number)
        assert process.wait(120) == -number
        assert lab.wait_idle(90) == []
        shutil.rmtree(lab["h1"].home / ".cache" / "quine" / "staging", ignore_errors=True)
    assert not [path for path in there.iterdir() if path.name.startswith(".quine")]


def test_a_disk_that_is_full_is_said_and_nothing_is_started(lab: Lab, tmp_path: Path, there: Path) -> None:
    """A limit on the size of a file fails a write as a full disk does."""
    plant(tmp_path / "t", 8 * MiB)
    words = [
        "run",
        "--on",
        "h1",
        "--cwd",
        there,
        "--limit",
        "fsize=1m",
        "--files",
        "t",
        "--",
        "touch",
        "started",
    ]
    done = lab.run(words, cwd=tmp_path)
    assert done.returncode == 69
    assert (
        done.stderr
        == b"quine: h1: error: the files cannot be laid out there: file too large; not run: touch started\n"
    )
    assert list(there.iterdir()) == []
