"""A host whose Python is another one, and an older one, than the origin's: PyPy at the level of Python 3.9."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab, processes
from tests.lab.host import Host
from tests.support.agents import call, says, sh
from tests.support.remote_agents import environment, results, tapes
from tests.support.waiting import until

PYPY = shutil.which("pypy3")
pytestmark = [pytest.mark.long, pytest.mark.skipif(not PYPY, reason="no pypy3 here")]


@pytest.fixture
def pypy(odd_host: Callable[..., Host], lab: Lab) -> Host:
    host = odd_host("pypy", inventory={"python": "pypy3", "lease": 60, "may_fork": ["h1"]})
    deployed = lab.run(["deploy", "pypy"], check=True)
    assert deployed.stdout.startswith(b"pypy: deployed, ")
    return host


def on(*words: str, options: tuple[str, ...] = ()) -> list[str]:
    return ["run", *options, "--on", "pypy", "--", *words]


def test_a_command_there(pypy: Host, lab: Lab, tmp_path: Path) -> None:
    """Streams byte for byte, statuses, signals and requests; a link that is cut; files; a detached job; the tier."""
    (launcher,) = (pypy.home / ".cache/quine").glob("*/quine")
    assert "/pypy3" in launcher.read_text()
    data = os.urandom(10_000_000)
    done = lab.run(on("sh", "-c", "cat; echo err >&2; exit 3"), input=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (3, True, b"err\n")
    done = lab.run(on("sh", "-c", "kill -USR1 $$"))
    assert done.returncode == -signal.SIGUSR1
    assert lab.run(on("quine", "--version"), check=True).stdout == lab.run(["--version"], check=True).stdout

    lab.alias("pypy", "pypy", pypy.proxy, python="pypy3", lease=60)
    command = ["sh", "-c", 'trap "echo term; exit 4" TERM; echo up; cat; while :; do sleep 0.1; done']
    with lab.popen(on(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin and client.stdout
        assert client.stdout.readline() == b"up\n"
        client.stdin.write(data[:30_000])
        pypy.proxy.cut()
        client.stdin.write(b"\nend\n")
        client.stdin.close()
        assert client.stdout.read(30_005) == data[:30_000] + b"\nend\n"
        client.send_signal(signal.SIGTERM)
        assert client.stdout.read() == b"term\n"
        assert client.wait(60) == 4

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(data[:100_000])
    lab.run(
        on("sh", "-c", "cp in/a out; chmod 700 out", options=("--files", "in", "--returns", "out")),
        cwd=tmp_path, check=True,
    )  # fmt: skip
    assert (tmp_path / "out").read_bytes() == data[:100_000] and os.access(tmp_path / "out", os.X_OK)

    job = (
        lab.run(["run", "--detach", *on("sh", "-c", "echo there; exit 5")[1:]], check=True)
        .stdout.decode()
        .strip()
    )
    assert lab.run(["wait", job]).returncode == 5
    assert lab.run(["logs", job], check=True).stdout == b"there\n"
    assert job[:18].encode() in lab.run(["ps", "--on", "pypy", "-a"], check=True).stdout

    tier = {"QUINE_FS": f"file://{tmp_path}/tier"}
    words = "quine fs put - x <in/a && quine fs ls && quine fs cat x"
    done = lab.run(on("sh", "-c", words, options=("--files", "in")), cwd=tmp_path, env=tier, check=True)
    assert done.stdout == b"x\n" + data[:100_000]
    assert (tmp_path / "tier" / "x").read_bytes() == data[:100_000]


def test_an_agent_there(pypy: Host, lab: Lab, tmp_path: Path) -> None:
    """It infers and records at its origin, and its child lands on a host with the origin's Python."""
    data = tmp_path / "data"
    leave = call("exit", status=0)
    env = environment(
        lab, data,
        says(sh("quine hosts; tr a-z A-Z <&3 >&4"), match="^root"),
        says(call("fork", intent="child", host="h1", wait=True), leave, match="^root"),
        says(sh("echo child of $QUINE_NODE_NAME; quine hosts >&2"), leave, match="^child"),
    )  # fmt: skip
    done = lab.run(["--on", "pypy", "root"], env=env, input=b"material\n")
    assert (done.returncode, done.stdout) == (0, b"MATERIAL\n"), done
    assert "pypy (here)" in results(data, "root")[0] and "h1" in results(data, "root")[0]
    assert any("child of h1" in result for result in results(data, "child"))
    assert all(entries[-1]["type"] == "outcome" for entries in tapes(data).values())
    lab.stop_nodes()
    until(lambda: not processes.marked(pypy.mark), "nothing is left there")
