"""A host whose Python is another one than the origin's: CPythons, PyPy at the level of 3.9, CPython for arm64."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab, arm64, processes, pythons
from tests.lab.host import Host
from tests.mount.mounting import needs_fuse
from tests.support.agents import call, says, sh
from tests.support.remote_agents import environment, results, tapes
from tests.support.waiting import until

PYTHONS = ("pypy3", pytest.param("arm64", marks=pytest.mark.whole))  # the latter is fetched, and emulated
STARTS = 4
# An emulated Python takes some seconds for each of a dozen commands, and several times that on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def emulated() -> str:
    python, why = arm64.python()
    if python is None:
        pytest.skip(f"no Python for arm64: {why}")
    return str(python)


@pytest.fixture(params=PYTHONS)
def other(request: pytest.FixtureRequest, odd_host: Callable[..., Host], lab: Lab) -> Host:
    """A host of this kind, with this build."""
    python = request.getfixturevalue("emulated") if request.param == "arm64" else request.param
    if not shutil.which(python):
        pytest.skip(f"no {python} here")
    keys = {"python": python, "lease": 60, "may_fork": ["h1"], "mount": True}
    host = odd_host("other", inventory=keys)
    deployed = lab.run(["deploy", "other"], check=True)
    assert deployed.stdout.startswith(b"other: deployed, ")
    (launcher,) = (host.home / ".cache/quine").glob("*/quine")
    assert python in launcher.read_text()
    # On a busy machine an emulated node took longer to start than the 30 s that a dial waits; a later dial finds it.
    for _ in range(STARTS):
        if not lab.run(on("true")).returncode:
            break
    return host


def on(*words: str, options: tuple[str, ...] = ()) -> list[str]:
    return ["run", *options, "--on", "other", "--", *words]


@pytest.mark.whole
def test_a_command_there(other: Host, lab: Lab, tmp_path: Path) -> None:
    """Streams byte for byte, statuses, signals and requests; a link that is cut; files; a detached job; the tier."""
    data = os.urandom(10_000_000)
    done = lab.run(on("sh", "-c", "cat; echo err >&2; exit 3"), input=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (3, True, b"err\n")
    done = lab.run(on("sh", "-c", "kill -USR1 $$"))
    assert done.returncode == -signal.SIGUSR1
    assert lab.run(on("quine", "--version"), check=True).stdout == lab.run(["--version"], check=True).stdout

    lab.alias("other", "other", other.proxy)
    command = ["sh", "-c", 'trap "echo term; exit 4" TERM; echo up; cat; while :; do sleep 0.1; done']
    with lab.popen(on(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin and client.stdout
        assert client.stdout.readline() == b"up\n"
        client.stdin.write(data[:30_000])
        other.proxy.cut()
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
    assert job[:18].encode() in lab.run(["ps", "--on", "other", "-a"], check=True).stdout

    tier = {"QUINE_FS": f"file://{tmp_path}/tier"}
    words = "quine fs put - x <in/a && quine fs ls && quine fs cat x"
    done = lab.run(on("sh", "-c", words, options=("--files", "in")), cwd=tmp_path, env=tier, check=True)
    assert done.stdout == b"x\n" + data[:100_000]
    assert (tmp_path / "tier" / "x").read_bytes() == data[:100_000]


@pytest.mark.parametrize("minor", [minor for minor in pythons.HOSTS if minor != sys.version_info.minor])
def test_each_python_of_a_host(odd_host: Callable[..., Host], lab: Lab, tmp_path: Path, minor: int) -> None:
    """A job and an agent there, each with what it starts: node, launcher, zygote, and the requests to the origin."""
    python = pythons.find(minor)
    if not python:
        pytest.skip(f"no CPython 3.{minor} here")
    odd_host("other", inventory={"python": python, "lease": 60}, bare=True)
    done = lab.run(on("sh", "-c", "cat; quine --version >&2; exit 3"), input=b"material")
    version = lab.run(["--version"], check=True).stdout
    assert (done.returncode, done.stdout, done.stderr) == (3, b"material", version)
    data, leave = tmp_path / "data", call("exit", status=0)
    env = environment(
        lab, data,
        says(sh("tr a-z A-Z <&3 >&4"), match="^root"),
        says(call("fork", intent="child", wait=True), leave, match="^root"),
        says(sh("echo a child; echo x | quine fs put - x; quine fs cat x"), leave, match="^child"),
    )  # fmt: skip
    done = lab.run(["--on", "other", "root"], env=env, input=b"material\n")
    assert (done.returncode, done.stdout) == (0, b"MATERIAL\n"), done
    result = results(data, "child")[-1]  # behind those of its parent
    assert result.startswith("[EXIT CODE] 0\n[STDOUT]\na child\nx\n"), result


@needs_fuse
def test_a_mount_there(other: Host, lab: Lab, tmp_path: Path) -> None:
    """The shared files as a directory, from the origin, for a plain program."""
    words = (
        'cd "$QUINE_MOUNT" && mkdir d && cat >d/x && mv d/x d/y && ls d && cmp d/y - </dev/null; wc -c <d/y'
    )
    data = os.urandom(300_000)
    done = lab.run(on("sh", "-c", words), input=data, env={"QUINE_FS": f"file://{tmp_path}/tier"}, check=True)
    assert done.stdout.split() == [b"y", b"300000"], done
    assert (tmp_path / "tier" / "d" / "y").read_bytes() == data


@pytest.mark.whole
def test_an_agent_there(other: Host, lab: Lab, tmp_path: Path) -> None:
    """It infers and records at its origin, and its child lands on a host with the origin's Python."""
    data = tmp_path / "data"
    leave = call("exit", status=0)
    env = environment(
        lab, data,
        says(sh("quine hosts; tr a-z A-Z <&3 >&4"), match="^root"),
        says(call("fork", intent="child", host="h1", wait=True), leave, match="^root"),
        says(sh("echo child of $QUINE_NODE_NAME; quine hosts >&2"), leave, match="^child"),
    )  # fmt: skip
    done = lab.run(["--on", "other", "root"], env=env, input=b"material\n")
    assert (done.returncode, done.stdout) == (0, b"MATERIAL\n"), done
    assert "other (here)" in results(data, "root")[0] and "h1" in results(data, "root")[0]
    assert any("child of h1" in result for result in results(data, "child"))
    assert all(entries[-1]["type"] == "outcome" for entries in tapes(data).values())
    lab.stop_nodes()
    until(lambda: not processes.marked(other.mark), "nothing is left there")


@pytest.mark.whole
@pytest.mark.parametrize("python", ["python3", "pypy3"])
def test_a_host_with_another_locale(
    odd_host: Callable[..., Host], lab: Lab, tmp_path: Path, python: str
) -> None:
    """Names and arguments are bytes: those that its login would take for others arrive, and disturb no other job."""
    if not (shutil.which(python) and shutil.which("localedef")):
        pytest.skip(f"needs {python} and localedef")
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(tmp_path / "en_US.ISO-8859-1")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this machine has no sources of locales")
    latin = {"LOCPATH": str(tmp_path), "LANG": "en_US.ISO-8859-1"}
    odd_host("latin", env=latin, inventory={"python": python})
    run = ["run", "--on", "latin", "--"]
    with lab.popen([*run, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin and other.stdout
        other.stdin.write(b"one")
        other.stdin.flush()
        assert other.stdout.read(3) == b"one"
        for word in ("ü", "€", os.fsdecode(b"\xfc")):
            done = lab.run([*run, "sh", "-c", 'printf %s "$0"; echo >"$0"; ls', word], check=True)
            assert done.stdout == os.fsencode(word) * 2 + b"\n"
        other.stdin.close()
        assert (other.stdout.read(), other.wait(60)) == (b"", 0)
