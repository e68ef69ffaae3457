"""Clients of a lab without the start of a Python: forks of a process that has loaded what they need.

A client costs far more to start than to run. Tests of what a client does, not of how it starts, take it from here.

Laws
1. A fork is a client as `Lab.popen` starts it: a child of the tests, with its own argv, environment, directory, process
   group and descriptors, and with the lab's mark.
2. What a fork cannot have (another Python environment, code before its exec) is started as ever.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import importlib
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.lab import Lab

ROOMS = ("quine.fanout", "quine.jobs", "transport.client")  # loaded ahead, with all that they need
VERBS = ("quine.cli.run", "quine.cli.job_verbs", "quine.remote.compose", "quine.remote.crowd")
CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56, "aarch64": 220}  # the number of clone(2); elsewhere clients start as ever
LARGEST = 100_000  # bytes of a request in one packet
BLANK = 4000  # bytes of an argv that is shown in place of the server's
HIGH = 100  # descriptors from here on are nobody's


# -- the server ------------------------------------------------------------------------------------


def serve(channel: socket.socket, listener: socket.socket) -> None:
    """Fork a client for each request, until the tests have gone; those of a shell get the status of theirs."""
    gc.disable()  # as the console script does
    from quine.__main__ import main

    for name in (*VERBS, *_modules()):
        importlib.import_module(name)
    from transport.this_build import build_hash

    build_hash()
    gc.collect()
    gc.freeze()
    poll, waiting = select.poll(), {}
    for fd in (channel.fileno(), listener.fileno()):
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in waiting:
                pid, shell = waiting.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                with shell, contextlib.suppress(OSError):  # one that was killed
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    shell.send(b"%d" % (code if code >= 0 else 128 - code))
                continue
            ours = fd == channel.fileno()
            sender = channel if ours else listener.accept()[0]
            data, fds, _, _ = socket.recv_fds(sender, 2 * LARGEST, HIGH)
            if not data and ours:
                return
            if not data:
                sender.close()
                continue
            pid = _fork() if ours else os.fork()
            if not pid:
                try:
                    _become(ast.literal_eval(data.decode()), fds)
                    main()
                except BaseException:
                    traceback.print_exc()
                os._exit(99)
            for each in fds:
                os.close(each)
            if ours:
                channel.send(b"%d" % pid)
            else:
                watch = os.pidfd_open(pid)
                waiting[watch] = pid, sender
                poll.register(watch, select.POLLIN)


def _modules() -> Iterator[str]:
    for room in ROOMS:
        package = importlib.import_module(room)
        yield from (module.name for module in pkgutil.walk_packages(package.__path__, room + "."))


def _fork() -> int:
    """Fork a child of this process's parent, which waits for it and has its status."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(python.syscall(CLONE[os.uname().machine], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    assert pid >= 0
    return pid


def _become(request: dict[str, Any], fds: Sequence[int]) -> None:
    from quine.base import exposure

    if request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.chdir(request["cwd"])
    os.environ.clear()
    for name, value in request["env"].items():
        os.environ[os.fsdecode(name)] = os.fsdecode(value)
    for at, fd in enumerate(fds):
        os.dup2(fd, HIGH + at)
    os.closerange(3, HIGH)
    for at, number in enumerate(request["fds"]):
        os.dup2(HIGH + at, number)
    os.closerange(HIGH, HIGH + len(fds))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty())  # type: ignore[union-attr]
    sys.argv[:] = map(os.fsdecode, request["argv"])
    Path("/proc/self/comm").write_text("quine")
    exposure.argv([sys.executable, *sys.argv])


# The `quine` of a shell: it hands its words, environment, directory and streams to the server, and waits.
PROGRAM = """\
#!{python} -SIE
import _socket, posix, sys
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.connect("{address}")
request = dict(argv=sys.argv, env=posix.environ, cwd=posix.getcwdb(), fds=[0, 1, 2], session=False, group=-1)
fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
server.sendmsg([ascii(request).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
status = int(server.recv(9) or b"99")
posix._exit(status)
"""


# -- the tests' side -------------------------------------------------------------------------------


class Server:
    """The process that forks the clients of one lab. Where a test has killed it they are started as ever."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="warm-"))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(address := str(self.folder / "socket"))
        self.listener.listen()
        program = self.folder / "quine"
        program.write_text(PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ready(self) -> None:
        """Start it, if need be again."""
        if not self.lives and os.uname().machine in CLONE:
            self._end()
            self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # the word is that of processes made ahead: the lab counts them as no job
            fds = [theirs.fileno(), self.listener.fileno()]
            words = [sys.executable, "-P", __file__, *map(str, fds), "--zygote", " " * BLANK]
            with theirs:
                self._process = subprocess.Popen(
                    words,
                    env=self.lab.env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=fds,
                )

    def close(self) -> None:
        self._end()
        self.listener.close()
        shutil.rmtree(self.folder)

    def _end(self) -> None:
        if self._process is not None:
            self.channel.close()
            self._process.wait()
            self._process = None

    def sh(self, line: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        """Lab.sh; limits of the shell and streams that it closes are those of a client that starts by itself."""
        if self.lives and "ulimit" not in line and "&-" not in line:
            env = {"PATH": f"{self.folder}:{self.lab.env['PATH']}", **(more.pop("env", None) or {})}
            more["env"] = env
        return type(self.lab).sh(self.lab, line, **more)

    def popen(self, args: Sequence[str | Path], **more: Any) -> subprocess.Popen[bytes]:
        """Lab.popen."""
        env = self.lab.overlaid(more.get("env"))
        cold = more.get("preexec") or any(
            name.startswith(("PYTHON", "LC_")) or (name == "LANG" and value != self.lab.env["LANG"])
            for name, value in env.items()
        )
        cold = cold or not self.lives
        if cold or sum(map(len, map(str, args))) + sum(map(len, (*env, *env.values()))) > LARGEST:
            return type(self.lab).popen(self.lab, args, **more)
        return Fork(
            self.channel,
            [self.lab.quine, *map(str, args)],
            stdin=more.get("stdin", subprocess.DEVNULL),
            stdout=more.get("stdout", subprocess.DEVNULL),
            stderr=more.get("stderr"),
            env=env,
            cwd=more.get("cwd") or self.lab.work,
            pass_fds=more.get("pass_fds", ()),
            start_new_session=more.get("new_session", False),
            process_group=None if more.get("new_session") else 0,
        )


class Fork(subprocess.Popen[bytes]):
    """A client by a server."""

    def __init__(self, channel: socket.socket, *args: Any, **more: Any) -> None:
        self._channel = channel
        super().__init__(*args, **more)

    def _execute_child(  # type: ignore[no-untyped-def]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, flags, shell, *rest
    ) -> None:
        pipes, (*_, session, group) = rest[:6], rest[6:]
        stdin, _, _, stdout, _, stderr = pipes
        ends = [end if end >= 0 else number for number, end in enumerate((stdin, stdout, stderr))]
        request = {"argv": args, "env": env, "cwd": str(cwd), "session": session, "group": group}
        data = ascii({**request, "fds": [0, 1, 2, *pass_fds]}).encode()
        socket.send_fds(self._channel, [data], [*ends, *pass_fds])
        self.pid = int(self._channel.recv(100) or b"-1")
        assert self.pid > 0, "no client was forked"
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


if __name__ == "__main__":
    serve(*(socket.socket(fileno=int(word)) for word in sys.argv[1:3]))
    os._exit(0)
