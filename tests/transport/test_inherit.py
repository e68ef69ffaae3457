"""The environment of a daemon that a command of an agent starts first: that of the user. Real processes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import stat
import subprocess
import sys
from unittest import mock

import pytest

from tests.support.named_files import NamedFile
from transport import inherit
from transport.errors import Unseen
from transport.provenance import memory_file

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


# Only the topmost process holds the memo. The last one ends its parent while the walk looks at one of both.
ORPHAN = """
import json, os, signal, sys, time
from transport import inherit
inherit.adopt_orphans()
fd = inherit.write({"lineage": {}})
if os.fork():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            os._exit(0)
os.close(fd)
if os.fork():
    signal.pause()
parent, look = os.getppid(), inherit._open_files
os.environ["PATH"] = "/evil"
def slowly(pid):
    if os.getppid() == parent and pid == {"itself": os.getpid(), "parent": parent}[sys.argv[1]]:
        os.kill(parent, signal.SIGKILL)
        while os.path.exists(f"/proc/{parent}"):
            time.sleep(0.01)
    return look(pid)
inherit._open_files = slowly
print(json.dumps(inherit.users_environment()["PATH"]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("looked_at", ["itself", "parent"])
def test_a_walk_reaches_the_top_when_a_process_between_ends(looked_at: str) -> None:
    env = {**os.environ, "PATH": "/bin:/usr/bin"}
    done = subprocess.run([sys.executable, "-c", ORPHAN, looked_at], env=env, capture_output=True)
    assert json.loads(done.stdout) == "/bin:/usr/bin", done.stderr


def test_a_walk_that_cannot_go_on_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command can take descriptors away from a process that walks."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(Unseen, match="has ended"):
        inherit.held_above("first", pid=ended.pid)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        with pytest.raises(Unseen, match="too many open files"):
            inherit.held_above("first")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    monkeypatch.setattr(
        inherit, "reopened", mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    )
    fd = os.memfd_create("first")
    try:
        with pytest.raises(Unseen, match="too many open files"):
            inherit.held_above("first")
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", [stat.S_IFREG, stat.S_IFIFO])
def test_a_file_with_the_name_of_a_memory_file_is_none(kind: int) -> None:
    """The kernel shows both by the same words; a pipe would be waited for, as a file of FUSE whose server is silent."""
    name = f"quine-{os.getpid()}"
    with NamedFile(name, kind) as named:
        assert inherit.held_above(name) == {name: []}
        with pytest.raises(FileNotFoundError, match="closed since"):
            inherit.reopened(named.link, os.O_RDONLY, inode=named.inode)


def test_a_process_that_is_closed_to_others_tells_memory_files_on_an_old_kernel_too() -> None:
    """Before Linux 5.14 its /proc/self/fdinfo is root's, and os.fstat asks the server of a file of FUSE."""
    opened = os.open

    def of_old(path: str, flags: int) -> int:
        if "fdinfo" in path:
            raise PermissionError
        return opened(path, flags)

    memo = inherit.write({})
    with NamedFile(inherit.NAME) as named:
        try:
            with mock.patch.object(os, "open", of_old), named.unasked():
                assert memory_file.is_memory_file(memo)
                assert inherit.inode_at(f"/proc/self/fd/{memo}", inherit.LINK)
                assert not memory_file.is_memory_file(named.fd)
                with pytest.raises(FileNotFoundError, match="closed since"):
                    inherit.inode_at(named.link, inherit.LINK)
        finally:
            os.close(memo)


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
