"""/proc of the processes that stand for a job and live as long as it does: no key of the user is shown there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quine.base import exposure
from tests.lab import Lab, processes
from tests.support.agents import OK, says, sh
from tests.support.detached import go as go
from tests.support.waiting import until, wait_for

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-canary-0123456789", "GITHUB_TOKEN": "ghp_canary0123456789"}
SHOWN = {**KEYS, "COPY": f"https://me:{KEYS['ANTHROPIC_API_KEY']}@host"}  # a name that says nothing


def showing(lab: Lab) -> list[str]:
    """Return the argv of each process of the origin whose environment shows a key."""
    found = []
    for process in lab.processes():
        try:
            text = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue  # it has just ended
        found += [" ".join(process.argv) for key in KEYS.values() if key.encode() in text]
    return found


@contextmanager
def started(lab: Lab, words: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with lab.popen(words, env=env, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            processes.kill(process.pid)


def guest(lab: Lab, tmp_path: Path, command: str) -> dict[str, str]:
    """For an agent that does one thing. There is a node already, whose starter held no copy of a key."""
    lab.run(["run", "--on", "h1", "--", "true"], env=KEYS, check=True)
    script = lab.script([says(sh(command), OK)], f"{tmp_path.name}.jsonl")
    return {**script, "QUINE_DATA_DIR": str(tmp_path / "data"), **SHOWN}


@pytest.mark.parametrize("where", [[], ["--on", "h1"]], ids=["here", "elsewhere"])
def test_what_keeps_a_detached_agent_and_who_waits_for_it(
    lab: Lab, tmp_path: Path, go: Path, where: list[str]
) -> None:
    env = guest(lab, tmp_path, f"touch {tmp_path}/there; read x <{go}")
    job = lab.run(["--detach", *where, "work"], env=env, check=True).stdout.decode().strip()
    with started(lab, ["wait", job], KEYS) as waiting, started(lab, ["attach", job], KEYS) as attached:
        wait_for(tmp_path / "there")
        until(lambda: not showing(lab), "no process shows a key")  # the last two may not have begun
        assert waiting.poll() is None and attached.poll() is None
        go.write_text("\n")
        assert (waiting.wait(120), attached.wait(120)) == (0, 0)


def test_the_proxy_of_an_agent_and_the_client_of_a_command_elsewhere(
    lab: Lab, tmp_path: Path, go: Path
) -> None:
    env = guest(lab, tmp_path, f"touch {tmp_path}/there; read x <{go}")
    command = ["sh", "-c", f"touch {tmp_path}/too; read x <{go}"]
    with (
        started(lab, ["--on", "h1", "work"], env) as proxy,
        started(lab, ["run", "--on", "h1", "--", *command], KEYS) as client,
    ):
        wait_for(tmp_path / "there")
        wait_for(tmp_path / "too")
        assert showing(lab) == []
        with open(go, "w") as gate:
            gate.write("\n\n")
        assert (proxy.wait(120), client.wait(120)) == (0, 0)


def test_what_is_no_longer_shown_is_still_passed_on() -> None:
    """Processes started by Python get it, and so do those started with the environment that C has."""
    text = """
import os
from quine.base import exposure
exposure.forget(["TOKEN", "ABSENT"])
assert os.environ["TOKEN"] == "canary-1" and "ABSENT" not in os.environ
assert b"canary" not in open("/proc/self/environ", "rb").read()
assert os.system('test "$TOKEN" = canary-1') == 0
del os.environ["TOKEN"]
assert os.system('test -z "$TOKEN"') == 0
"""
    subprocess.run([sys.executable, "-c", text], env={"TOKEN": "canary-1"}, check=True)


def test_an_emulator_that_does_not_tell_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The /proc/self/stat of qemu's user mode ends early: nothing can be overwritten, and nothing fails."""
    short = tmp_path / "stat"
    short.write_text("1 (quine) 0" + " 0" * 41 + "\n")
    real = open
    given = lambda path, *how, **more: real(short if path == "/proc/self/stat" else path, *how, **more)  # noqa: E731
    monkeypatch.setattr(exposure, "open", given, raising=False)
    monkeypatch.setenv("TOKEN", "canary-1")
    exposure.forget(["TOKEN"])
    exposure.mission("of its own")
    assert os.environ["TOKEN"] == "canary-1"
