"""Resources that tests take from the machine: namespaces, forked processes, the nodes among a lab's processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests.lab import processes
from tests.lab.lab import Lab
from tests.lab.machine import UNSHARE
from tests.lab.processes import Process
from tests.support.waiting import until
from transport import node_socket
from transport.node import rendezvous

CONTAINER = [*UNSHARE, "--pid", "--fork", "--mount-proc", "--kill-child"]
containers = pytest.mark.skipif(
    subprocess.run([*CONTAINER, "true"], capture_output=True).returncode != 0,
    reason="needs namespaces",
)


def in_child(what: Callable[[], object]) -> int:
    """Run it in a forked process that then waits to be killed; its pid, once it has done it."""
    done, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            what()
            os.write(told, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    assert os.read(done, 1) == b"x"
    os.close(done)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def nodes(found: list[Process]) -> list[Process]:
    return [process for process in found if process.daemon and "--dial" not in process.argv]


def node_file(lab: Lab, suffix: str) -> Path:
    """The socket, log or other file of the node of this build at the origin of a lab."""
    with mock.patch.dict(os.environ, HOME=str(lab.home)):
        (directory,) = Path(lab.env["XDG_RUNTIME_DIR"]).glob("quine-*")
        return directory / f"{node_socket.node_name()}.{suffix}"


def only_node(lab: Lab) -> Process:
    """The node that serves the socket of this build there. Others have another build, or a session of their own."""

    def serving() -> Process | None:
        facts = rendezvous.status(str(node_file(lab, "sock")))
        return processes.find(facts["pid"]) if facts else None

    found: Process = until(serving, "a node")
    return found
