"""Run scripted agents as real processes, and read what they left on tape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.lab import forks, processes
from tests.lab.machine import RUN
from transport.inherit import is_secret

QUINE = [sys.executable, "-P", "-m", "quine"]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def sh(command: str, **more: Any) -> dict[str, Any]:
    return call("sh", command=command, **more)


OK = call("exit", status=0)


def says(*calls: dict[str, Any], text: str = "", **guards: Any) -> dict[str, Any]:
    """One line of a script: a reply with these calls."""
    return {**guards, "reply": {"text": text, "tool_calls": list(calls)}}


# a command that waits until the child in the background has ended and waits to be reaped: all threads of it
UNTIL_ENDED = """pid=$(sed 's/.*"pid":\\([0-9]*\\).*/\\1/' "$QUINE_DATA_DIR"/jobs/*/job)
while ! grep -q ') Z ' /proc/$pid/stat || [ "$(ls /proc/$pid/task)" != $pid ]; do sleep 0.01; done"""


class Started(subprocess.Popen[bytes]):
    """A process that a failing `with` ends: a test that waited in vain must not wait again in its clean-up."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.terminate()
            try:
                self.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        super().__exit__(kind, *rest)


def until(holds: Callable[[], object], seconds: float = 60) -> None:
    """Look until it holds. The sleeps leave the processor to the processes that are waited for."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


class Agents:
    """A directory in which scripted agents run; its data directory is `data` in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("QUINE_", "PYTHON")) and not is_secret(name) and name != "OLLAMA_HOST"
        }
        self.env |= {
            "QUINE_API_TYPE": "script",
            "QUINE_BROKER_IDLE": "5",
            "QUINE_DATA_DIR": str(self.data),
            "XDG_STATE_HOME": str(directory / "state"),
        }

    def script(self, *lines: dict[str, Any]) -> None:
        path = self.directory / "script.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.env["QUINE_API_BASE"] = str(path)

    def start(self, mission: str, *options: str, **more: Any) -> subprocess.Popen[bytes]:
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        env = {**self.env, **more.pop("env", {})}
        return Started([*QUINE, *options, "--", mission], cwd=self.directory, env=env, **more)

    def run(
        self, *lines: dict[str, Any], mission: str = "work", input: bytes | None = None, **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Script and run one agent to its end."""
        if lines:
            self.script(*lines)
        return self._end([*more.pop("options", ()), "--", mission], input, **more)

    def quine(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end."""
        data = more.pop("input", None)
        done = self._end(words, data.encode() if isinstance(data, str) else data, **more)
        out, err = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def _end(
        self, words: Sequence[str], input: bytes | None, **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        streams = {
            "stdin": subprocess.DEVNULL if input is None else subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        env, check = {**self.env, **more.pop("env", {})}, more.pop("check", False)
        with forks.popen([*QUINE, *words], env=env, **{"cwd": self.directory, **streams, **more}) as process:
            try:
                out, err = process.communicate(input, timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()  # else the end of the block waits for it
                raise
        assert not (check and process.returncode), (words, process.returncode, err)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def tapes(self) -> list[list[dict[str, Any]]]:
        """All tapes, oldest first. A line that is just being written is none yet."""
        paths = sorted(self.data.glob("*.jsonl"))
        return [[json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] for path in paths]

    def tape(self, mission: str = "work") -> list[dict[str, Any]]:
        """The one tape of a mission."""
        (found,) = [tape for tape in self.tapes() if tape and tape[0]["data"]["mission"] == mission]
        return found

    def results(self, mission: str = "work") -> list[str]:
        return [e["data"]["content"] for e in self.tape(mission) if e["type"] == "tool_result"]

    def outcome(self, mission: str = "work") -> dict[str, Any]:
        entry = self.tape(mission)[-1]
        assert entry["type"] == "outcome"
        data: dict[str, Any] = entry["data"]
        return data


def section(result: str, name: str) -> str:
    """The text of [STDOUT] or [STDERR] in a result."""
    after = result.split(f"[{name}]\n", 1)[1]
    for following in (
        "\n[STDERR]",
        "\n[TURNS LEFT]",
        "\n[CONTEXT USED]",
        "\n[SHELL]",
        "\n[BACKGROUND",
        "\n[TIMEOUT]",
    ):
        after = after.split(following, 1)[0]
    return after


def running(*words: str) -> list[int]:
    """Processes of this run of the tests whose command line holds all of these words."""
    return [
        process.pid
        for process in processes.marked(RUN)
        if all(word in " ".join(process.argv) for word in words)
    ]


PATIENCE = 60.0  # seconds for what comes at once on an idle machine
LOOK = 0.01  # seconds between two looks


def left(*words: str) -> list[int]:
    """Return the processes that do not end soon. A killed process may have to wait for a processor to die on."""
    deadline = time.monotonic() + PATIENCE
    while (found := running(*words)) and time.monotonic() < deadline:
        time.sleep(LOOK)
    return found
