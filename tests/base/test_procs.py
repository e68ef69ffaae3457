"""Processes below another one: those of our session alone, and also where /proc hides those of other users."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.base import procs

ROOT = Path(__file__).resolve().parents[2]

# The tested process has a child, which has another one, and a daemon below each of them.
SESSIONS = """
import os, sys, time
from quine.base import procs

def started(*below, daemon=False):
    pid = os.fork()
    if not pid:
        if daemon:
            os.setsid()
        for each in below:
            each()
        os.write(said, b"%d %d\\n" % (os.getpid(), daemon))
        os.read(go, 1)
        os._exit(0)
    return pid

heard, said = os.pipe()
go, end = os.pipe()
daemon = lambda: started(daemon=True)
child = started(daemon, lambda: started(daemon))
lines = b""
while lines.count(b"\\n") < 4:
    lines += os.read(heard, 100)
found = dict(map(int, line.split()) for line in lines.splitlines())
here = sorted([os.getpid(), *(pid for pid, is_daemon in found.items() if not is_daemon)])
assert len(here) == 3
print(sorted(procs.tree(os.getpid())) == here, sorted([os.getpid(), *procs.below(os.getpid())]) == here)
for _ in found:
    os.write(end, b"x")
"""

# A process that is not root any more, with a child that is, below a /proc that hides it.
HIDDEN = """
import os, sys, time
from quine.base import procs

def shown(pid):
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []

go, end = os.pipe()
hidden = os.fork()
if not hidden:
    os.read(go, 1)
    os._exit(0)
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
seen = os.fork()
if not seen:  # a process that has changed its user is hidden as well, until it is another program
    os.dup2(go, 0)
    os.execv("/usr/bin/head", ["head", "-c1"])
until = time.monotonic() + 60
while time.monotonic() < until and not shown(seen):
    pass
try:
    os.listdir(f"/proc/{hidden}/task")
except PermissionError:
    print("hidden", end=" ")
print(seen in procs.below(os.getpid()))
sys.stdout.flush()
os.write(end, b"xx")
os.waitpid(seen, 0)  # all processes of the namespace are killed with this one
"""


def run(*words: str) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_daemons_below_any_of_them_are_left_out() -> None:
    assert run(sys.executable, "-c", SESSIONS) == "True True\n"


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare")
def test_a_process_of_another_user_hides_no_other(tmp_path: Path) -> None:
    script = 'mount -t proc -o hidepid=1 proc /proc && exec "$0" -c "$1"'
    words = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, sys.executable, HIDDEN]
    if subprocess.run([*words[:-1], "pass"], capture_output=True, timeout=60).returncode:
        pytest.skip("no namespaces here")
    assert run(*words) == "hidden True\nx"


# A process that forks when it is told to end, as one does that is about to fork when its processes are listed
FORKS = """
import subprocess, sys
from quine.base import procs

procs.adopt_orphans()
script, group = sys.argv[2], int(sys.argv[1])
words = ["sh", "-c", script] if group == 0 else [sys.executable, "-c", script]
own = {} if group else {"process_group": 0}
child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **own)
child.stdout.readline()
procs.end_all({child.pid: procs.look(child.pid)}, None, 60)
child.wait()
procs.reap_orphans()
print(procs.is_empty(child.pid))
"""


IN_ITS_GROUP = 'trap "sleep 86391 >&2 & exit 0" TERM; echo; while :; do sleep 0.01; done'
# As timeout(1), which makes a group and forks at its start, and may have been listed before that.
IN_ONE_OF_ITS_OWN = """
import os, signal, time
def end(*_):
    os.setpgid(0, 0)
    if os.fork():
        os._exit(0)
    os.dup2(2, 1)
    os.execvp("sleep", ["sleep", "86392"])
signal.signal(signal.SIGTERM, end)
print(flush=True)
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize(("group", "script"), [("0", IN_ITS_GROUP), ("-1", IN_ONE_OF_ITS_OWN)])
def test_what_is_forked_while_its_parent_ends_is_ended_too(group: str, script: str) -> None:
    assert run(sys.executable, "-c", FORKS, group, script) == "True\n"


def test_a_shell_is_signalled_before_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on with its list. The order does not come from the pids, which may be reused."""
    script = "sh -c 'sh -c \"echo; read x; :\"; :'; :"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        pids = procs.tree(child.pid)
        found = {pid: process for pid in reversed(pids) if (process := procs.look(pid))}
        monkeypatch.setattr(procs, "_grown", lambda mine, table: [pid for pid in found if pid in table])
        told: list[int] = []
        opened: dict[int, int] = {}

        def pidfd_open(pid: int, real: Callable[[int], int] = os.pidfd_open) -> int:
            fd = real(pid)
            opened[fd] = pid
            return fd

        def send(fd: int, number: int, real: Callable[[int, int], None] = signal.pidfd_send_signal) -> None:
            if number == signal.SIGTERM:
                told.append(opened[fd])
            real(fd, number)

        monkeypatch.setattr(os, "pidfd_open", pidfd_open)
        monkeypatch.setattr(procs.signal, "pidfd_send_signal", send)
        procs.end_all(found, None, 60)
    assert len(pids) == 3
    assert told == pids


def test_a_parent_that_has_ended_before_its_child_asks_to_end_with_it() -> None:
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            read, write = os.pipe()
            os.close(read)
            procs.set_parent_death_signal(write, os.getpid())
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
