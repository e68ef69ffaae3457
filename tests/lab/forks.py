"""Programs of quine without the start of a Python: forks of one process that has loaded what verbs need.

    with forks.serving(): forks.popen(["…/quine", "ps"], env=…, …)      # else as subprocess.Popen

Most of what a short verb costs is the start of its interpreter and its imports: 25 to 150 ms of a processor, where the
verb itself takes 5. A worker of the tests has one such process, and `Lab.popen` asks it.

Laws
1. A fork looks like a program that was started: a child of the tests, with its own argv and environment (also in
   /proc), directory, process group and descriptors.
2. A request that a fork cannot serve starts a program: code before the exec, variables that Python reads at its
   start, an environment too large. A test of the start itself takes the fixture `cold`.
3. A server that a test has killed is no loss: programs are started until `ready` makes it again.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import importlib
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOMS = ("quine.fanout", "quine.jobs", "transport.client", "deploy")  # loaded with all that is in them
MODULES = (
    "asyncssh", "encodings.idna", "grp", "pydantic.fields", "quine.agent.main", "quine.base.cli_options",
    "quine.base.run_report", "quine.cli.app", "quine.cli.budget.listing", "quine.cli.budget.main",
    "quine.cli.budget.running", "quine.cli.deployment", "quine.cli.doctor.host", "quine.cli.doctor.machine",
    "quine.cli.help", "quine.cli.job_verbs", "quine.cli.node.status", "quine.cli.ps_table", "quine.cli.run",
    "quine.cli.tape", "quine.cli.top.main", "quine.cli.visits", "quine.files.cli.main", "quine.files.select",
    "quine.mount.mounts",
    "quine.providers.choice", "quine.remote.compose", "quine.remote.crowd", "quine.remote.node_entry", "tomllib",
    "transport.carrier.ssh.connect", "typer._adapters",
)  # fmt: skip
THERE = ("deploy.there",)  # modules that run on a host alone
CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56, "aarch64": 220}  # the number of clone(2)
LARGEST = 100_000  # bytes of a request in one packet
ROOM, SPACE = 30_000, 4000  # bytes of the environment of a fork, and of its argv, that /proc shows
FILL = "FILL"  # the variable that takes this room in the server's own environment
MODULE = [sys.executable, "-P", "-m", "quine"]  # a way to name the program in place of its script
HIGH = 100  # descriptors from here on are free
CANNOT_START = 99  # exit status of a fork that raised

_server: subprocess.Popen[bytes] | None = None
_channel: socket.socket
_asking = threading.Lock()  # two threads of a test would have each other's answers


# -- the server ------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> None:
    """Fork a program for each request, until the tests have gone."""
    gc.disable()  # as the console script does
    for name in (*MODULES, *_modules()):
        importlib.import_module(name)
    from transport.this_build import build_hash

    build_hash()
    gc.collect()
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 2 * LARGEST, HIGH)
        if not data:
            return
        pid = _fork()
        if not pid:
            channel.close()
            try:
                _become(ast.literal_eval(data.decode()), fds)
                from quine.__main__ import main

                main()
            except BaseException:
                traceback.print_exc()
            os._exit(CANNOT_START)
        for fd in fds:
            os.close(fd)
        channel.send(b"%d" % pid)


def _modules() -> Iterator[str]:
    for room in ROOMS:
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, room + "."):
            if not module.name.startswith(THERE):
                yield module.name


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
    time.tzset()
    for at, fd in enumerate(fds):
        os.dup2(fd, HIGH + at)
    os.closerange(3, HIGH)
    for at, number in enumerate(request["fds"]):
        os.dup2(HIGH + at, number)
    os.closerange(HIGH, HIGH + len(fds))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty())  # type: ignore[union-attr]
    words = [os.fsdecode(word) for word in request["argv"]]
    exposure.argv(words if words[0] == sys.executable else [sys.executable, *words])
    sys.argv[:] = ["quine", *words[len(MODULE) :]] if words[: len(MODULE)] == MODULE else words
    Path("/proc/self/comm").write_text("quine")
    start, end = exposure._stat(50, 51)
    entries = (os.fsencode(name) + b"=" + os.fsencode(value) for name, value in request["env"].items())
    exposure._write(start, b"\0".join(entries)[: end - start - 1].ljust(end - start, b"\0"))


# -- the tests' side -------------------------------------------------------------------------------


@contextmanager
def serving() -> Iterator[None]:
    """Have a server."""
    try:
        ready()
        yield
    finally:
        _end()


def ready() -> None:
    """Start the server, if need be again."""
    global _server, _channel
    if os.uname().machine not in CLONE or (_server and _server.poll() is None):
        return
    _end()
    _channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        _server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), " " * SPACE],
            env={"LANG": "C.UTF-8", "PATH": os.environ["PATH"], FILL: " " * ROOM},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd="/",
        )


def _end() -> None:
    global _server
    if _server:
        _channel.close()
        _server.wait()
        _server = None


def can(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether the server can start that."""
    at_start = any(
        name.startswith(("PYTHON", "LC_")) or (name == "LANG" and value != "C.UTF-8")
        for name, value in env.items()
    )
    size = sum(map(len, (*argv, *env, *env.values())))
    return bool(_server and _server.poll() is None) and not at_start and size < ROOM


def popen(argv: Sequence[str], *, env: Mapping[str, str], **more: Any) -> subprocess.Popen[bytes]:
    """subprocess.Popen of a program of quine, by a fork where that can be."""
    kind = subprocess.Popen if more.get("preexec_fn") or not can(argv, env) else _Fork
    return kind(argv, env=env, **more)


class _Fork(subprocess.Popen[bytes]):
    """A process that the server forks for us."""

    def _execute_child(  # type: ignore[no-untyped-def]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, flags, shell, *rest
    ) -> None:
        pipes, (*_, session, group) = rest[:6], rest[6:]
        stdin, _, _, stdout, _, stderr = pipes
        ends = [end if end >= 0 else number for number, end in enumerate((stdin, stdout, stderr))]
        request = {
            "argv": args,
            "env": env,
            "cwd": str(cwd or os.getcwd()),
            "session": session,
            "group": group,
        }
        data = ascii({**request, "fds": [0, 1, 2, *pass_fds]}).encode()
        with _asking:
            try:
                socket.send_fds(_channel, [data], [*ends, *pass_fds])
                self.pid = int(_channel.recv(100) or b"-1")
            except BaseException:
                # The test's timeout: the next program would take this answer for its own.
                _end()
                raise
        assert self.pid > 0, "no program was forked"
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
