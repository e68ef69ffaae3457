"""A hostile node on a host of the lab, a good one beside it, and what a test wants to know of the origin meanwhile."""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab import Host, Lab, Process
from tests.support.agents import until
from tests.support.machine import nodes

DOUBLE = Path(__file__).with_name("hostile_program.py")
PAUSE = 0.01  # seconds between two beats: without it they would be most of the work of a test
Plan = list[list[Any]]


class Stage:
    """The origin's node, its log and its memory; a stream through the good node whose round trips are timed."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        lab.run(["run", "--on", "h1", "--", "true"], check=True)  # the node is up, and h1 has the binary
        self._echo = lab.popen(
            ["run", "--on", "h1", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.beats(1)  # it runs
        self._read = self._logs()
        self._binary = self._installed()
        self.node = self._alone()
        self.usual = self.beat(25)
        self._clear_peak()
        self._before = self._status("VmRSS")
        self._waited: list[float] = []

    def finish(self, client: subprocess.Popen[bytes]) -> Ended:
        """A client that did not read until now; with the beats since the beginning."""
        out, err = client.communicate(timeout=90)
        beats, self._waited = self._waited, []
        return Ended(client.returncode, out, err.decode(), beats)

    def close(self) -> None:
        self._echo.communicate(timeout=120)

    # -- the hostile node ----------------------------------------------------------------------------

    def give(self, host: Host, plan: Plan) -> None:
        """`host` keeps the double where the binary is looked for, with that plan."""
        binary = self._binary
        folder = host.home / ".cache/quine" / binary.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "plan"
        path.write_text("".join(json.dumps(step) + "\n" for step in plan))
        with open(folder / "quine.pyz", "wb") as file:
            file.truncate(binary.stat().st_size)
        os.utime(folder / "quine.pyz", (1, 1))
        launcher = folder / "quine"
        launcher.write_text(
            "#!/bin/sh\nexec " + shlex.join([sys.executable, "-P", str(DOUBLE), str(path)]) + "\n"
        )
        launcher.chmod(0o755)

    def done(self, host: Host) -> list[str]:
        """Return the steps that the host's double has done."""
        found = (host.home / ".cache/quine").glob("*/plan.done")
        return [line for path in found for line in path.read_text().split()]

    def said(self, host: Host) -> list[tuple[str | None, str]]:
        """Return the origin's answers to the double: (error, reply)."""
        (path,) = (host.home / ".cache/quine").glob("*/plan.said")
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()]

    def against(self, host: Host, *options: str, seconds: float = 90.0, **more: Any) -> Ended:
        """`quine run` on the hostile host, while the good node is used; until it has ended."""
        process = self.lab.popen(
            ["run", *options, "--on", host.name, "--", "cat"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )
        return self.watch(process, seconds)

    def watch(self, process: subprocess.Popen[bytes], seconds: float = 90.0) -> Ended:
        beats: list[float] = []
        deadline = time.monotonic() + seconds
        while process.poll() is None:
            beats += self.beats(1)
            time.sleep(PAUSE)
            if time.monotonic() > deadline:
                process.kill()
                _, err = process.communicate()
                raise AssertionError(f"not over in {seconds} s: {err!r}\n{self.log()}")
        out, err = process.communicate()
        return Ended(process.returncode, out, err.decode(), beats)

    # -- the origin ----------------------------------------------------------------------------------

    def _installed(self) -> Path:
        """Return the file from which the node of the good host was started. Others there may be newer."""
        running = nodes(self.lab["h1"].processes())
        argv = " ".join(max(running, key=lambda node: node.start).argv)
        place = re.search(r"/\.cache/quine/(\w+)/", argv)
        assert place, argv
        return self.lab["h1"].home / ".cache/quine" / place[1] / "quine.pyz"

    def _alone(self) -> Process:
        """Wait until one node is left; return it. Forks have its argv until their exec; a stopped one goes slowly."""
        found: list[Process] = []

        def alone() -> bool:
            found[:] = [process for process in self.lab.processes() if process.daemon]
            return len(found) == 1

        until(alone)
        return found[0]

    def beats(self, count: int) -> list[float]:
        """Seconds of round trips through the good node."""
        assert self._echo.stdin and self._echo.stdout
        taken = []
        for _ in range(count):
            begun = time.monotonic()
            self._echo.stdin.write(b"x\n")
            self._echo.stdin.flush()
            assert self._echo.stdout.readline() == b"x\n"
            taken.append(time.monotonic() - begun)
        return taken

    def beat(self, count: int) -> float:
        return statistics.median(self.beats(count))

    def log(self) -> str:
        """Return the lines that were logged since the beginning of the test, by whichever node of this machine."""
        return "".join(text[len(self._read.get(path, "")) :] for path, text in self._logs().items())

    def _logs(self) -> dict[Path, str]:
        paths = Path(self.lab.env["XDG_RUNTIME_DIR"]).glob("quine-*/*.log")
        return {path: path.read_text(errors="replace") for path in sorted(paths)}

    def wait_log(self, pattern: str, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log())):
            assert time.monotonic() < deadline, f"no {pattern!r} in\n{self.log()}"
            self._waited += self.beats(1)
        return found[0]

    def grown(self) -> int:
        """Bytes by which the node's memory was at most larger than at the beginning."""
        return self._status("VmHWM") - self._before

    def wait(self, what: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self.log()
            self.beats(1)

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.node.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    def _clear_peak(self) -> None:
        Path(f"/proc/{self.node.pid}/clear_refs").write_text("5")


class Ended:
    """The end of a client of the hostile host, and the round trips of the good node during it."""

    def __init__(self, status: int, out: bytes, err: str, beats: list[float]) -> None:
        self.status = status
        self.out = out
        self.err = err
        self.beats = beats

    @property
    def median(self) -> float:
        return statistics.median(self.beats) if self.beats else 0.0
