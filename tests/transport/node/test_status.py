"""`quine node --status`: the hosts that the node of this machine knows."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from quine.cli.node import status
from tests.lab import Lab
from tests.support.waiting import read_until
from transport import node_socket, this_build
from transport.errors import Refused
from transport.node import rendezvous


def test_hosts_of_one_name_in_two_inventories_are_told_apart(lab: Lab) -> None:
    name = lab.alias("told", "h1")  # no test has met it
    other = lab.inventory.with_name("other.toml")
    other.write_text(lab.inventory.read_text())
    words = ["run", "--inventory", str(other), "--on", name, "--", "sh", "-c", "echo up; read line"]
    with lab.popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout
        read_until(job.stdout.fileno(), b"up\n")
        alone = json.loads(lab.run(["node", "--status", "--json"], check=True).stdout)
        assert name in alone["hosts"] and name in [line["host"] for line in alone["lines"]]
        lab.run(["run", "--on", name, "--", "true"], check=True)
        facts = json.loads(lab.run(["node", "--status", "--json"], check=True).stdout)
        text = lab.run(["node", "--status"], check=True).stdout.decode()
        job.communicate(b"\n", timeout=120)
    names = [f"{name} ({path})" for path in (other, lab.inventory)]
    assert [facts["hosts"][each]["running"] for each in names] == [1, 0]
    assert [line["host"] for line in facts["lines"] if line["host"].startswith(name)] == names
    jobs = {line[: -len(line.split()[-1])].split("  ")[0]: line.split()[-1] for line in text.splitlines()}
    assert [jobs[each] for each in names] == ["1", "0"]


REPORT = {"pid": 1, "launcher": 2, "seconds": 1.5, "cpu": 0, "jobs": 0, "links": 1, "hosts": {"h": {}}}
LINE = {"name": "n", "host": "h", "up": False, "down": 1.5, "channels": 0, "queued": 0}


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {**REPORT, "lines": [], "pid": "x"},
        {**REPORT, "lines": [], "launcher": -1},
        {**REPORT, "lines": [], "seconds": None},
        {**REPORT, "lines": [], "hosts": {"h": 1}},
        {**REPORT, "lines": {}},
        {**REPORT, "lines": [{**LINE, "host": []}]},
        {**REPORT, "lines": [{**LINE, "down": "x"}]},
        {**REPORT, "lines": [{"host": "h"}]},
    ],
)
def test_an_answer_of_a_stranger_is_no_report(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any program of the user may listen in the place of the node: its answer was a defect of ours."""

    def asked(report: object) -> dict[str, Any] | None:
        def tell() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                connection.sendall(json.dumps(report).encode() + b"\n")

        telling = threading.Thread(target=tell)
        telling.start()
        try:
            return rendezvous.status()
        finally:
            telling.join()

    with TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        path = node_socket.socket_path()
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        listener.bind(path)
        listener.listen()
        with pytest.raises(Refused, match="answers as no node does"):
            asked(answer)
        whole = {**REPORT, "lines": [LINE]}
        assert asked(whole) == whole and status._of_node(whole)


@pytest.mark.parametrize("program", ["pass", "import time; time.sleep(99)"])
def test_a_node_that_does_not_start_is_no_zombie(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch asks again for as long as it has items; one that hangs is ended."""
    monkeypatch.setattr(this_build, "own_command", lambda: [sys.executable, "-c", program])
    monkeypatch.setattr(rendezvous, "START_DEADLINE", 0.2)
    started: list[int] = []
    spawn = os.posix_spawn

    def spawned(*args: Any, **more: Any) -> int:
        started.append(spawn(*args, **more))
        return started[0]

    monkeypatch.setattr(os, "posix_spawn", spawned)
    with TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        with pytest.raises(Refused, match="does not start"):
            rendezvous.connect()
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)
