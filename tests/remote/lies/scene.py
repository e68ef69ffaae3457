"""A host that lies, an honest one beside it, and the origin of both: how it ends, and what it costs there.

The lying host is reached by a command: the program of tests/transport/node/hostile_program.py, with a plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import Lab, clear_peak, peak_rss, processes
from tests.lab.lab import TIMEOUT
from tests.support import peak
from tests.support.machine import node_file, only_node
from tests.transport.node import hostile_program

Plan = list[list[Any]]


class Ended(NamedTuple):
    """The end of a command of the origin."""

    status: int
    out: bytes
    err: str
    memory: dict[
        str, int
    ]  # the most bytes that each process of the origin has had more than before the command
    disk: int  # bytes that the command has written to files, and the node to its log
    log: str


class Scene:
    """The host `good` of a lab, and a liar. `alone`: with a new node, whose memory no other test has enlarged."""

    def __init__(self, lab: Lab, folder: Path, alone: bool) -> None:
        self.lab, self.folder, self._alone = lab, folder, alone
        if alone:
            lab.run(["node", "--stop", "--force"])
        lab.alias("good", "h1", slots=2)
        lab.run(["run", "--on", "good", "--", "true"], check=True)  # the node is up, and has a link

    def liar(self, name: str, plan: Plan, **keys: object) -> str:
        """A host that does this. `keys` are those of its table in the inventory."""
        path = self.folder / f"{name}.plan"
        path.write_text("".join(json.dumps(step) + "\n" for step in plan))
        command = [sys.executable, "-P", hostile_program.__file__, str(path), "sh"]
        none = dict.fromkeys(("address", "port", "user", "identity", "python"))
        return self.lab.alias(name, "h1", **{**none, "transport": "command", "command": command, **keys})

    def begun(self, name: str) -> str:
        """The file in which a liar notes its steps."""
        return str(self.folder / f"{name}.plan.done")

    def said(self, name: str) -> list[list[str]]:
        """The answers to the requests of a liar: [error, reply]."""
        path = self.folder / f"{name}.plan.said"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def origin(self, words: Sequence[str], env: dict[str, str]) -> Ended:
        """Run a command of the origin to its end."""
        log = node_file(self.lab, "log")
        length = log.stat().st_size
        # A worker of the suite may have used the node and brokers before: their memory until now is not this command's.
        before = {each.pid: _cleared(each.pid) for each in self._processes()}
        told = self.folder / "peak"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", peak.__file__, str(told), self.lab.quine, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.lab.overlaid(env),
            cwd=self.lab.work,
            process_group=0,
        )
        try:
            out, err = process.communicate(timeout=2 * TIMEOUT)
        except BaseException:
            os.killpg(process.pid, 9)
            process.communicate()
            raise
        memory, disk = map(int, told.read_text().split())
        with open(log, errors="replace") as file:
            file.seek(length)
            text = file.read()
        peaks = {"command": memory}
        for each in self._processes():
            peaks[f"{each.pid} {each.name}"] = max(0, _peak(each.pid) - before.get(each.pid, 0))
        return Ended(process.returncode, out, err.decode(), peaks, disk + len(text), text)

    def _processes(self) -> list[processes.Process]:
        """The node and the brokers of the origin: not those of hosts and of other builds."""
        node = only_node(self.lab)
        origin = f"XDG_RUNTIME_DIR={self.lab.env['XDG_RUNTIME_DIR']}"
        return [
            each
            for each in processes.marked(origin, brokers=True)
            if each.broker or (each.name == node.name and hostile_program.__file__ not in each.argv)
        ]

    def close(self) -> None:
        """No double is left, and no file that came."""
        self.lab.forget_aliases()
        if self._alone:
            self.lab.run(["node", "--stop", "--force"], check=True)
        subprocess.run(["rm", "-rf", str(self.lab.work / "out")], check=True)
        left = [each for each in processes.marked(self.lab.mark) if hostile_program.__file__ in each.argv]
        for each in left:
            processes.kill(each.pid)
        processes.wait_gone(left, 60)


def _cleared(pid: int) -> int:
    """Let the peak of a process begin here; return its memory now, 0 if it has ended."""
    try:
        return clear_peak(pid)
    except OSError:
        return 0


def _peak(pid: int) -> int:
    """Return the peak memory of a process, 0 if it has ended."""
    try:
        return peak_rss(pid)
    except OSError:
        return 0
