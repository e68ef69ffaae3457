"""The environment of a daemon that a command of an agent starts first: that of the user. Real processes."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys

import pytest

from transport import inherit

SHOW = "import json; from transport import inherit; print(json.dumps(inherit.users_environment()))"
# An agent as its descendants see it: it holds a memo, which they inherit or not.
AGENT = f"""\
import os, subprocess, sys
from transport import inherit
fd = inherit.write({{"lineage": {{}}}})
os.environ["PATH"] = "/changed"
mark = f"{{'inherit.stand_apart(); ' * (sys.argv[1] == 'daemon')}}"
theirs = {{"PATH": "/evil", "HOME": "/evil", "LD_X": "1", "XDG_RUNTIME_DIR": "/run/theirs"}}
passed = [fd] if sys.argv[1] == "passed" else []
show = "from transport import inherit; " + mark + {SHOW!r}
subprocess.run([sys.executable, "-c", show], env=theirs, pass_fds=passed, check=True)
"""


@pytest.mark.parametrize("memo", ["passed", "lost", "daemon"])
def test_below_an_agent_it_is_that_of_its_start(memo: str) -> None:
    env = {**os.environ, "PATH": "/bin:/usr/bin", "HOME": "/home/ada", "XDG_RUNTIME_DIR": "/run/ada"}
    done = subprocess.run([sys.executable, "-c", AGENT, memo], env=env, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert (found["PATH"], found["HOME"], found.get("LD_X")) == ("/bin:/usr/bin", "/home/ada", None)
    assert found["XDG_RUNTIME_DIR"] == "/run/theirs"  # where this client looks for the node


def test_of_a_shell_of_the_user_it_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/my/own:/bin")
    assert inherit.users_environment() == dict(os.environ)


HELD = """
import json, os, sys
from transport import inherit
names = ("first", "second")
inherit.stand_apart()
if sys.argv[1] == "keeps":
    os.close(int(sys.argv[3]))
else:
    os.closerange(3, 1000)
    inherit.stand_apart()
    os.memfd_create("first")
print(json.dumps([len(held) for held in inherit.held_above(*names).values()]))
"""


def test_a_memory_file_counts_when_its_maker_has_sealed_it() -> None:
    """A child would read the zeros of a ledger whose numbers are not written yet."""
    fd = os.memfd_create("first", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        assert inherit.held_above("first") == {"first": []}
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        (held,) = inherit.held_above("first")["first"]
        assert (held.pid, held.inode, held.number) == (os.getpid(), os.fstat(fd).st_ino, fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("how", "expected"), [("keeps", [2, 1]), ("closes", [1, 0])])
def test_a_mark_of_a_daemon_counts_for_one_that_has_closed_all(how: str, expected: list[int]) -> None:
    """A command that keeps one file of its tree, and closes the other, is not outside of the tree."""
    fds = [os.memfd_create(name) for name in ("first", "second")]
    try:
        words = [sys.executable, "-c", HELD, how, *map(str, fds)]
        done = subprocess.run(words, pass_fds=fds, capture_output=True, check=True)
    finally:
        for fd in fds:
            os.close(fd)
    assert json.loads(done.stdout) == expected
