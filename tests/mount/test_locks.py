"""flock through a mount: among all who use it, whoever writes; let go of however its holder ends. Real FUSE."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

from quine.mount.locks import Locks, Waiting
from tests.mount.mounting import Part, first_line, needs_fuse
from tests.mount.mounting import mount as mount
from tests.mount.mounting import shared as shared

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
print("begun", flush=True)
fcntl.flock(file, int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """Another process that asks for a lock, waits until it has it, and holds it until it is ended."""

    def __init__(self, path: Path, kind: int = fcntl.LOCK_EX) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path), str(kind)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a line that was read with the one before would be waited for
        )
        assert first_line(self.process) == b"begun\n"

    def __enter__(self) -> Holder:
        return self

    def held(self) -> None:
        assert first_line(self.process) == b"held\n"

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


def taken(path: Path, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether another process holds a lock that conflicts."""
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@needs_fuse
def test_of_many_who_write_a_file_one_holds_it(mount: Part) -> None:
    path = mount.path / "lock"
    with Holder(path) as first:
        first.held()
        assert taken(path) and taken(path, fcntl.LOCK_SH)
        with Holder(path) as second, Holder(path) as third:
            third.process.send_signal(signal.SIGKILL)  # a waiting process can be killed
            assert third.process.wait(60) == -signal.SIGKILL
            assert second.process.poll() is None
            first.process.kill()
            second.held()
            assert taken(path)
    with Holder(path, fcntl.LOCK_SH) as first, Holder(path, fcntl.LOCK_SH) as second:
        first.held()
        second.held()
        assert taken(path) and not taken(path, fcntl.LOCK_SH)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        copy = os.dup(file.fileno())
        assert taken(path)
    assert taken(path)  # until the last descriptor of that file
    fcntl.flock(copy, fcntl.LOCK_UN)
    assert not taken(path)
    os.close(copy)


@needs_fuse
def test_a_lock_goes_with_its_file(mount: Part) -> None:
    """A renamed file stays locked under its new name and is unlocked there; the old name is free."""
    (mount.path / "d").mkdir()
    old, new = mount.path / "d" / "f", mount.path / "e" / "f"
    old.touch()
    with open(old, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (mount.path / "d").rename(mount.path / "e")
        assert taken(new)
        with Holder(new) as waiting:
            new.rename(mount.path / "g")
            fcntl.flock(file, fcntl.LOCK_UN)
            waiting.held()
            assert taken(mount.path / "g")
        (mount.path / "d").mkdir()
        assert not taken(old) and not taken(new)


@needs_fuse
def test_a_count_under_a_lock_is_right(mount: Part) -> None:
    """The holder of the lock sees every file closed before."""
    (mount.path / "count").write_text("0")
    code = (
        "import fcntl, sys\n"
        "for _ in range(5):\n"
        "    with open('lock', 'w') as lock:\n"
        "        fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "        count = int(open('count').read())\n"
        "        with open('count', 'w') as file: file.write(str(count + 1))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], cwd=mount.path) for _ in range(3)]
    assert [process.wait(100) for process in processes] == [0] * 3
    assert (mount.path / "count").read_text() == "15"


@needs_fuse
def test_a_signal_ends_the_wait(mount: Part) -> None:
    path = mount.path / "lock"
    code = (
        "import fcntl, signal, sys\n"
        "def ring(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "file = open(sys.argv[1], 'w')\n"
        "try:\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)\n"
        "    fcntl.flock(file, fcntl.LOCK_EX)\n"
        "except TimeoutError: print('rang')\n"
    )
    with Holder(path) as first:
        first.held()
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, timeout=60)
        assert done.stdout == b"rang\n", done.stderr


def test_turns_are_given_and_nothing_stays() -> None:
    locks = Locks()
    assert locks.ask("f", 1, fcntl.F_RDLCK) and locks.ask("f", 2, fcntl.F_RDLCK)
    assert not locks.ask("f", 3, fcntl.F_WRLCK)
    locks.wait(Waiting(30, "f", 3, True))
    locks.wait(Waiting(40, "f", 4, False))
    locks.wait(Waiting(50, "g", 5, True))
    assert locks.turns() == [40, 50]
    for handle in (1, 2):
        locks.release(handle)
    assert locks.turns() == []
    assert locks.ask("f", 4, fcntl.F_UNLCK)
    assert locks.turns() == [30]
    locks.wait(Waiting(60, "f", 6, False))
    assert locks.give_up(60) and not locks.give_up(60)
    locks.release(3)
    locks.release(5)
    assert len(locks) == 0
