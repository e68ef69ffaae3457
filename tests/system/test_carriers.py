"""Carriers beside asyncssh: the ssh program, and any command that gives bytes to a shell over there."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.lab import Lab, processes
from tests.lab.host import Host
from tests.lab.lab import SSH_CONFIG
from tests.lab.machine import make_key
from tests.support.agents import OK, says, sh
from tests.support.remote_agents import environment, results
from tests.support.waiting import until

Breaker = Callable[[], None]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["openssh", "command"])
def far(lab: Lab, request: pytest.FixtureRequest) -> tuple[str, Breaker]:
    """The name of h1 by another carrier, and a function that breaks the link to it."""
    return by(lab, request.param)


def by(lab: Lab, carrier: str) -> tuple[str, Breaker]:
    if carrier == "openssh":
        name = lab.alias("far", "h1", lab["h1"].proxy, transport="openssh", lease=60)
        return name, lambda: until(lab["h1"].proxy.cut, "there is a connection to cut")
    name = lab.by_command("far", "h1", lease=60)

    def dials() -> list[int]:
        return [process.pid for process in lab["h1"].processes() if "--dial" in process.argv]

    def kill() -> None:
        # The node has the streams of a dial, and may use them for a while after it was killed: then comes the next one.
        for pid in until(dials, "there is a dial to kill"):
            processes.kill(pid)

    return name, kill


def on(name: str, *words: str, options: tuple[str, ...] = ()) -> list[str]:
    return ["run", *options, "--on", name, "--", *words]


def test_streams_and_statuses(lab: Lab, far: tuple[str, Breaker]) -> None:
    name, _ = far
    data = os.urandom(2_000_000)
    done = lab.run(on(name, "sh", "-c", "cat; echo err >&2; exit 3"), input=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (3, True, b"err\n")
    done = lab.run(on(name, "sh", "-c", "kill -USR1 $$"))
    assert done.returncode == -signal.SIGUSR1
    assert lab.run(on(name, "sh", "-c", "exit 255")).returncode == 255
    where = lab.run(on(name, "sh", "-c", "echo $QUINE_NODE_NAME $HOME"), check=True).stdout.decode()
    assert where == f"far {lab['h1'].home}\n"


def test_a_link_that_breaks(lab: Lab, far: tuple[str, Breaker]) -> None:
    name, break_it = far
    data = os.urandom(30_000)
    command = ["sh", "-c", 'trap "echo term; exit 4" TERM; echo up; cat; while :; do sleep 0.1; done']
    with lab.popen(on(name, *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin and client.stdout
        assert client.stdout.readline() == b"up\n"
        client.stdin.write(data)
        break_it()
        client.stdin.write(b"\nend\n")
        client.stdin.close()
        assert client.stdout.read(30_005) == data + b"\nend\n"
        break_it()
        client.send_signal(signal.SIGTERM)
        assert client.stdout.read() == b"term\n"
        assert client.wait(60) == 4


def test_files_requests_and_detached_jobs(lab: Lab, tmp_path: Path) -> None:
    """By one of the carriers: above the link nothing knows which one it is."""
    name, _ = by(lab, "openssh")
    data = os.urandom(100_000)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(data)
    copy = on(name, "sh", "-c", "cp in/a out", options=("--files", "in", "--returns", "out"))
    lab.run(copy, cwd=tmp_path, check=True)
    assert (tmp_path / "out").read_bytes() == data

    tier = {"QUINE_FS": f"file://{tmp_path}/tier"}
    words = "quine fs put - x <in/a && quine fs cat x"
    done = lab.run(on(name, "sh", "-c", words, options=("--files", "in")), cwd=tmp_path, env=tier, check=True)
    assert done.stdout == data

    detach = ["run", "--detach", *on(name, "sh", "-c", "echo there; exit 5")[1:]]
    job = lab.run(detach, check=True).stdout.decode().strip()
    assert lab.run(["wait", job]).returncode == 5
    assert lab.run(["logs", job], check=True).stdout == b"there\n"


def test_an_agent(lab: Lab, tmp_path: Path) -> None:
    """It infers and records at its origin; the link breaks between two of its inferences."""
    name, break_it = by(lab, "openssh")
    data = tmp_path / "data"
    env = environment(
        lab, data,
        says(sh("echo cut >&4; read go <&3; echo on $QUINE_NODE_NAME $go"), match="^root"),
        says(OK, match="^root"),
    )  # fmt: skip
    with lab.popen(["--on", name, "root"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin and client.stdout
        assert client.stdout.readline() == b"cut\n"
        break_it()
        client.stdin.write(b"again\n")
        client.stdin.close()
        assert client.wait(120) == 0
    assert "on far again" in results(data, "root")[0]


def test_a_carrier_dies_with_its_node_and_has_no_keys(lab: Lab, far: tuple[str, Breaker]) -> None:
    """A killed node has no time to end its children: the end of their stdin does."""
    name, _ = far
    lab.stop_nodes()
    secret = {"ANTHROPIC_API_KEY": "sk-secret", "SSH_AUTH_SOCK": "/nowhere/agent"}
    lab.run(on(name, "true"), env=secret, check=True)
    dials = [each for each in lab["h1"].processes() if "--dial" in each.argv]
    ssh = [each for each in lab.processes() if each.carrier]
    assert dials and bool(ssh) == (not name_is_command(lab))
    for each in ssh:
        environ = Path(f"/proc/{each.pid}/environ").read_bytes()
        assert b"sk-secret" not in environ and b"SSH_AUTH_SOCK=/nowhere/agent" in environ
        assert os.getpgid(each.pid) == each.pid != os.getsid(each.pid)
    for node in [each for each in lab.processes() if each.daemon and not each.carrier]:
        processes.kill(node.pid)
    assert processes.wait_gone([*dials, *ssh], 60) == []


def name_is_command(lab: Lab) -> bool:
    return 'transport = "command"' in lab.inventory.read_text()


@pytest.mark.long
def test_a_first_deployment(lab: Lab, odd_host: Callable[..., Host], far: tuple[str, Breaker]) -> None:
    odd_host("bare")
    if name_is_command(lab):
        lab.by_command("new", "bare")
    else:
        lab.alias("new", "bare", transport="openssh")
    deployed = lab.run(["deploy", "new"], check=True)
    assert deployed.stdout.startswith(b"new: deployed, ") and deployed.stderr == b""
    assert lab.run(["deploy", "new"], check=True).stdout.startswith(b"new: already there, ")
    assert lab.run(["hosts", "check", "new"], check=True).stdout.splitlines()[1].split()[1] == b"ok"
    assert lab.run(on("new", "quine", "--version")).returncode == 0
    lab["bare"].kill_processes()


def refused(lab: Lab, name: str) -> str:
    done = lab.run(["deploy", name])
    assert (done.returncode, done.stdout) == (69, b""), done
    error, hint = done.stderr.decode().splitlines()
    assert error.startswith(f"quine: {name}: error: ") and hint.startswith(f"quine: {name}: hint: ")
    return f"{error} | {hint}"


@pytest.mark.long
def test_errors_of_ssh_have_a_cure(lab: Lab, tmp_path: Path) -> None:
    port = lab["h1"].port
    alias = partial(lab.alias, "wrong", "h1", transport="openssh")
    alias(address="no-such-host.invalid")
    assert "unknown host name: no-such-host.invalid | " in refused(lab, "wrong")
    alias(port=1)
    assert "connection refused" in refused(lab, "wrong")
    make_key(tmp_path / "other", "other")
    alias(identity=str(tmp_path / "other"))
    assert "permission denied" in refused(lab, "wrong")
    alias()
    known = lab.home / ".ssh" / "known_hosts"
    before = known.read_bytes() if known.exists() else b""
    config = lab.home / ".ssh" / "config"
    try:
        key = " ".join((tmp_path / "other.pub").read_text().split()[:2])
        known.write_text(f"[127.0.0.1]:{port} {key}\n")
        text = refused(lab, "wrong")
        assert "its host key has changed" in text and f"ssh-keygen -R '[127.0.0.1]:{port}'" in text
        # where only ~/.ssh/config knows address and port, and where it is the key of a host on the way
        config.write_text(f"Host wrong hop\n HostName 127.0.0.1\n Port {port}\n{SSH_CONFIG}")
        alias(address=None, port=None)
        text = refused(lab, "wrong")
        command = text.partition(" run: ")[2].splitlines()[0]
        assert command == f"ssh-keygen -R '[127.0.0.1]:{port}' -f {known}"
        alias(jump="hop:" + str(port))
        assert refused(lab, "wrong").partition(" run: ")[2].splitlines()[0] == command
        lab.sh(command)
        assert not known.read_text()
        alias()
        known.write_text("")
        config.write_text("Host *\n  StrictHostKeyChecking yes\n")
        assert "its host key is not known" in refused(lab, "wrong")
    finally:
        known.write_bytes(before)
        config.write_text(SSH_CONFIG)


def test_a_jump_by_ssh(lab: Lab) -> None:
    before = lab["h2"].connections()
    lab.alias("behind", "h1", transport="openssh", jump="h2")
    done = lab.run(on("behind", "sh", "-c", "echo $QUINE_NODE_NAME; cat"), input=b"in")
    assert (done.returncode, done.stdout) == (0, b"behind\nin")
    assert lab["h2"].connections() == before + 1


def test_commands_that_come_to_nothing(lab: Lab) -> None:
    lab.by_command("wrong", "h1", command=["no-such-program", "x"])
    assert "cannot start no-such-program: no such file or directory" in refused(lab, "wrong")
    lab.by_command("wrong", "h1", command=["sh", "-c", "echo no such container >&2; exit 0", "x"])
    text = refused(lab, "wrong")
    assert "its last words: no such container" in text and "ssh" not in text


@pytest.mark.long
def test_the_end_of_a_command_is_told(lab: Lab) -> None:
    """Its status is shown; one that has to be killed, as it closed its output and runs on, has none."""
    script = "echo no such pod >&2; exit 3"
    lab.by_command("wrong", "h1", command=["sh", "-c", script, "x"])
    text = refused(lab, "wrong")
    assert "its command leads to no shell (status 3); its last words: no such pod | " in text
    assert f"hint: echo true | sh -c '{script}' x /bin/sh must end with status 0" in text
    assert "ForceCommand" not in text and "login shell" not in text
    lab.by_command("wrong", "h1", command=["sh", "-c", "echo up >&2; exec sleep 600 >&-", "x"])
    text = refused(lab, "wrong")
    assert "leads to no shell (it closed its output and did not end); its last words: up | " in text
    lab.by_command("wrong", "h1", command=["sh", "-c", "kill -TERM $$", "x"])
    text = refused(lab, "wrong")
    assert (
        "the connection was lost before its shell had answered: the carrier ended: killed by SIGTERM" in text
    )
    assert "hint: run it again; if it stays, try: echo true | sh -c" in text


def test_a_command_needs_not_name_a_shell(lab: Lab) -> None:
    """/bin/sh is added to it, as to `docker exec -i box`."""
    words = [f"{name}={value}" for name, value in lab["h1"].environment().items()]
    lab.by_command("box", "h1", command=["env", "-i", *words])
    assert lab.run(on("box", "sh", "-c", "exit 9")).returncode == 9
