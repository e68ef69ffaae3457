"""Verbs in forks of one process that has loaded them: most of a short verb's processor time is the start of a Python.

The fixtures are for a conftest.py: `lab.run` of its tests forks. Arguments, environment, directory, streams, process
group and exit status are those of a process of its own. `lab.popen` and `lab.sh` start a Python, as users do.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if __name__ != "__main__":
    import pytest

    from tests.lab import Lab
    from tests.support.agents import Agents

# Verbs, and what they load while they run.
LOADED = [
    "quine.__main__", "quine.base.cli_options", "quine.base.run_report", "quine.cli.app", "quine.cli.run",
    "quine.cli.job_verbs", "quine.cli.tape", "quine.cli.doctor", "quine.cli.doctor_host", "quine.cli.deployment",
    "quine.cli.visits", "quine.cli.top.main", "quine.cli.budget.main", "quine.cli.budget.listing",
    "quine.cli.budget.running", "quine.cli.ps_table", "quine.cli.help", "quine.cli.node.status",
    "quine.fanout.main", "quine.files.cli.main", "quine.files.select", "quine.jobs.client", "quine.jobs.detach",
    "quine.jobs.logind", "quine.jobs.attach_logs", "quine.jobs.remote", "quine.jobs.census", "quine.jobs.retry",
    "quine.jobs.did_you_mean", "quine.agent.main", "quine.remote.compose", "quine.remote.node_entry",
    "quine.providers.choice", "quine.mount.mounts", "transport.client.proxy", "deploy.dial",
    "deploy.upkeep.interpreter", "transport.carrier.ssh.connect", "tomllib", "typer._adapters", "pydantic.fields",
]  # fmt: skip
CLOSED = ">&-"
SIZE = 8  # bytes that tell the length of a request


def serve(channel: socket.socket) -> None:
    """Fork for each request, and answer with the pid and the wait status."""
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        head, streams, _, _ = socket.recv_fds(channel, SIZE, 3)
        if not head:
            return
        with channel.makefile("rb", buffering=0) as file:
            body, missing = b"", int.from_bytes(head, "big")
            while len(body) < missing:
                body += file.read(missing - len(body)) or b""
        pid = os.fork()
        if not pid:
            try:
                become(json.loads(body), streams, channel)
            finally:
                os._exit(70)
        for fd in streams:
            os.close(fd)
        channel.sendall(pid.to_bytes(SIZE, "big"))
        channel.sendall(os.waitpid(pid, 0)[1].to_bytes(SIZE, "big"))


def become(request: dict[str, Any], streams: list[int], channel: socket.socket) -> None:
    channel.close()
    os.setpgid(0, 0)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    if request["closed"]:  # as Python starts then
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv[:] = request["argv"]
    from quine.__main__ import main

    main()


class Forks:
    """The process, and verbs that run in forks of it, one at a time."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-P", __file__, str(theirs.fileno())]
            env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**env, "LANG": "C.UTF-8"},
            )

    def close(self) -> None:
        self._channel.close()
        self._process.wait()

    def run(
        self,
        words: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        cwd: Path,
        input: bytes | str | None = None,
        stdout: int | str | None = None,
        timeout: float = 120,
        check: bool = False,
    ) -> subprocess.CompletedProcess[bytes]:
        """`quine WORDS…`, as by `Lab.run`. No input: /dev/null. `stdout`: a descriptor, a path, or CLOSED."""
        argv = ["quine", *map(str, words)]
        data = input.encode() if isinstance(input, str) else input
        stdin, feed = (os.open(os.devnull, os.O_RDONLY), -1) if data is None else os.pipe()
        (out, into), (err, stderr) = os.pipe(), os.pipe()
        if stdout not in (None, CLOSED):
            os.close(into)
            into = os.open(stdout, os.O_WRONLY) if isinstance(stdout, str) else os.dup(stdout)  # type: ignore[arg-type]
        request = {"argv": argv, "env": dict(env), "cwd": str(cwd), "closed": stdout == CLOSED}
        body = json.dumps(request).encode()
        socket.send_fds(self._channel, [len(body).to_bytes(SIZE, "big")], [stdin, into, stderr])
        for fd in (stdin, into, stderr):
            os.close(fd)
        self._channel.sendall(body)
        pid = int.from_bytes(self._channel.recv(SIZE, socket.MSG_WAITALL), "big")
        said = talk(feed, data or b"", (out, err), time.monotonic() + timeout)
        if said is None:
            os.killpg(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(
            int.from_bytes(self._channel.recv(SIZE, socket.MSG_WAITALL), "big")
        )
        assert said is not None, f"{' '.join(argv)[:200]}: not done in {timeout} s"
        done = subprocess.CompletedProcess(argv, status, said[0], said[1])
        if check and status:
            raise AssertionError(f"{' '.join(argv)[:200]}: status {status}, stderr {done.stderr!r}")
        return done


def decoded(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def talk(feed: int, data: bytes, pipes: tuple[int, int], deadline: float) -> list[bytes] | None:
    """Write `data` and read both pipes to their ends, unless that takes too long. Closes all."""
    said = {fd: bytearray() for fd in pipes}
    opened = {feed, *pipes} - {-1}
    with selectors.DefaultSelector() as selector:
        for fd in pipes:
            selector.register(fd, selectors.EVENT_READ)
        if feed >= 0:
            os.set_blocking(feed, False)
            selector.register(feed, selectors.EVENT_WRITE)
        view = memoryview(data)
        while opened and (ready := selector.select(max(0, deadline - time.monotonic()))):
            for key, _ in ready:
                fd = int(key.fd)
                if fd == feed:
                    try:
                        view = view[os.write(fd, view) :]
                        more = bool(view)
                    except BrokenPipeError:
                        more = False
                else:
                    part = os.read(fd, 1 << 16)
                    said[fd] += part
                    more = bool(part)
                if not more:
                    selector.unregister(fd)
                    os.close(fd)
                    opened.remove(fd)
    for fd in opened:
        os.close(fd)
    return None if opened else [bytes(said[fd]) for fd in pipes]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
else:
    _shared: list[Forks] = []  # the folders of a session share one

    @pytest.fixture(scope="session")
    def forks() -> Iterator[Forks]:
        if not _shared:
            _shared.append(Forks())
        yield _shared[0]
        while _shared:
            _shared.pop().close()

    def _run(lab: Lab, forks: Forks, args: Sequence[str | Path], **more: Any) -> Any:
        env, cwd = lab.overlaid(more.pop("env", None)), more.pop("cwd", None) or lab.work
        return forks.run(args, env=env, cwd=cwd, **more)

    @pytest.fixture
    def lab(lab: Lab, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> Lab:
        monkeypatch.setattr(lab, "run", partial(_run, lab, forks))
        return lab

    class Asked(Agents):
        """Agents, and verbs that ask about them."""

        def __init__(self, directory: Path, forks: Forks) -> None:
            super().__init__(directory)
            self._forks = forks

        def run(
            self, *lines: dict[str, Any], mission: str = "work", input: bytes | None = None, **more: Any
        ) -> subprocess.CompletedProcess[bytes]:
            if lines:
                self.script(*lines)
            words = [*more.pop("options", ()), "--", mission]
            return self._forks.run(words, env=self.env, cwd=self.directory, input=input, **more)

        def quine(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
            env = {**self.env, **more.pop("env", {})}
            return decoded(self._forks.run(words, env=env, **{"cwd": self.directory, **more}))

    @pytest.fixture
    def agents(tmp_path: Path, forks: Forks) -> Asked:
        return Asked(tmp_path, forks)
