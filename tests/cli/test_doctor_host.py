"""`quine doctor HOST…` against real sshds: each step in its order, and the cure at the first one that fails."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable

import pytest

from tests.lab import Lab
from tests.lab.host import Host
from tests.lab.machine import make_key

LINE = re.compile(r"(ok|no)  (\S+)  (.+?) +(\d+) ms(?:  (.*))?")
WAY = [
    "read its table in the inventory",
    "make the file for hosts",
    "resolve ADDRESS",
    "connect to HOST at ADDRESS port PORT",
    "hear the ssh version of HOST",
    "exchange keys with HOST",
    "authenticate to HOST",
    "start the session",
    "start the login shell",
    "find the binary",
    "start the node",
    "speak with the node",
    "mount the files tier",
    "ping the node",
]


def steps(done: subprocess.CompletedProcess[bytes]) -> dict[str, tuple[str, str, str]]:
    """Return state, host and detail of each step, in order. A cure, at the end, has the step ""."""
    found = {}
    for line in done.stdout.decode().splitlines():
        if line.startswith("    "):
            found[""] = ("", *line.strip().split(": ", 1))
            continue
        match = LINE.fullmatch(line)
        assert match, line
        state, host, step, _, detail = match.groups()
        assert step not in found, step
        found[step] = (state, host, detail or "")
    return found


def way(host: Host, names: list[str] = WAY) -> list[str]:
    values = {"HOST": host.name, "ADDRESS": host.address, "PORT": str(host.port)}
    return [re.sub("HOST|ADDRESS|PORT", lambda match: values[match[0]], name) for name in names]


def failing(lab: Lab, host: str, step: str, why: str, cure: str) -> None:
    """The steps before are ok, this one is the last, and its cure is printed."""
    done = lab.run(["doctor", host])
    assert done.returncode == 69, done
    found = steps(done)
    *before, last, hint = found
    assert (last, hint) == (step, ""), found
    assert found[last][0] == "no" and why in found[last][2], found
    assert found[hint][1] == host and cure in found[hint][2], found
    assert {found[name][0] for name in before} <= {"ok"}, found


def needs_sshd(lab: Lab) -> None:
    if not lab["h1"].real:
        pytest.skip("needs a real sshd")


def test_every_step_to_a_host_that_has_this_build(lab: Lab) -> None:
    needs_sshd(lab)
    host = lab["h1"]
    done = lab.run(["doctor", "h1"], check=True)
    found = steps(done)
    assert list(found) == way(host), done.stdout.decode()
    assert {(state, name) for state, name, _ in found.values()} == {("ok", "h1")}
    details = [detail for _, _, detail in found.values()]
    assert details[2] == host.address
    assert details[4].startswith("SSH-2.0-OpenSSH")
    assert re.match(r"ssh-ed25519 SHA256:\S{43}, aes128-gcm", details[5])
    assert details[6] == f"offers ssh-ed25519 lab; accepted as {host.user}"
    assert "Python 3." in details[9] and details[9].endswith("this build is there")
    assert details[11].startswith("this build, protocol ")
    assert details[12].startswith(("it can be a directory there: --mount", "no QUINE_MOUNT there: "))
    assert details[13].startswith("round trip ")
    assert done.stderr == b""


def test_the_build_is_put_there_on_the_way(lab: Lab, odd_host: Callable[..., Host]) -> None:
    odd_host("fresh")
    found = steps(lab.run(["doctor", "fresh"], check=True))
    assert found["find the binary"][2].endswith("this build is not there")
    assert any(re.fullmatch(r"send \d+ kB", step) for step in found)
    assert "ping the node" in found
    assert b"already there" in lab.run(["deploy", "fresh"], check=True).stdout


def test_each_hop_has_its_steps(lab: Lab) -> None:
    needs_sshd(lab)
    lab.alias("far", of="h2", jump="h1")
    found = list(steps(lab.run(["doctor", "far"], check=True)))
    first, then = found.index("authenticate to h1"), found.index("connect to far by its jump host")
    assert first < then < found.index("authenticate to far")


def test_a_noisy_login_shell_is_named(lab: Lab, odd_host: Callable[..., Host]) -> None:
    odd_host("noisy", banner="Welcome!\n\033[1mno newline at the end")
    _, _, detail = steps(lab.run(["doctor", "noisy"], check=True))["start the login shell"]
    assert detail.endswith("prints before the command: Welcome! [1mno newline at the end")


def test_steps_that_fail_before_the_login_shell(lab: Lab) -> None:
    lab.alias("lost", of="h1", address="nowhere.invalid")
    failing(lab, "lost", "resolve nowhere.invalid", "unknown host name", "set address")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    lab.alias("shut", of="h1", via=port)
    step = f"connect to shut at 127.0.0.1 port {port}"
    failing(lab, "shut", step, "connection refused", "start an sshd there")
    key = lab.home / "other_key"
    if not key.exists():
        make_key(key, "stranger")
    lab.alias("closed", of="h1", identity=str(key))
    failing(lab, "closed", "authenticate to closed", "offers ssh-ed25519 stranger", "ssh-copy-id")


def test_a_jump_host_that_is_down(lab: Lab) -> None:
    lab.alias("far", of="h2", jump="h1")
    port = lab["h1"].port
    lab["h1"].stop()
    why = "its jump host h1: connection refused"
    failing(lab, "far", f"connect to h1 at 127.0.0.1 port {port}", why, "start an sshd")
    done = lab.run(["run", "--on", "far", "--", "true"])
    assert done.stderr.decode().startswith(f"quine: far: error: {why} by 127.0.0.1 port {port}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_shows_the_step_that_hangs(lab: Lab, number: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        lab.alias("mute", of="h1", via=mute.getsockname()[1])
        process = lab.popen(["doctor", "mute"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with mute.accept()[0]:
            assert process.stdout
            while not process.stdout.readline().startswith(b"ok  mute  connect to mute "):
                pass
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-number, b"")
    (last,) = out.decode().splitlines()
    assert re.fullmatch(r"no  mute  hear the ssh version of mute  +\d+ ms  interrupted", last), last


def test_a_login_shell_that_runs_no_command(lab: Lab, odd_host: Callable[..., Host]) -> None:
    needs_sshd(lab)
    odd_host("menu", sshd=("ForceCommand echo closed",))
    failing(lab, "menu", "start the login shell", "its last words: closed", "ForceCommand")


def test_no_python(lab: Lab, odd_host: Callable[..., Host]) -> None:
    odd_host("bare", python=False)
    failing(lab, "bare", "find the binary", "it has no python3", "install python3.9 or newer there")


def test_another_system(lab: Lab, odd_host: Callable[..., Host]) -> None:
    odd_host("bsd", scripts={"uname": "#!/bin/sh\necho FreeBSD amd64\n"})
    failing(lab, "bsd", "find the binary", "it is FreeBSD, and quine runs on Linux", "choose another host")


@pytest.mark.long
def test_a_damaged_installation_is_replaced(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("broken")
    lab.run(["deploy", "broken"], check=True)
    (folder,) = host.path_of(".cache/quine").iterdir()
    shutil.rmtree(folder / "lib")
    done = lab.run(["doctor", "broken"], check=True)
    text = done.stdout.decode()
    assert re.search(r"^no  broken  start the node .*; the binary is replaced$", text, re.M), text
    assert text.splitlines()[-1].startswith("ok  broken  ping the node")


def test_hosts_are_gone_to_at_once_and_told_in_order(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        for name, listener in (("one", server), ("two", other)):
            lab.alias(name, of="h1", via=listener.getsockname()[1])
        process = lab.popen(["doctor", "one", "two", "h2"], stdout=subprocess.PIPE)
        for listener in (other, server):  # the second one while the first one waits
            connection, _ = listener.accept()
            listener.close()
            connection.close()
        text = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 69
    # hosts in trouble hide no other
    assert list(dict.fromkeys(re.findall(r"^(?:ok|no)  (\S+)", text, re.M))) == ["one", "two", "h2"]
    assert text.splitlines()[-1].startswith("ok  h2  ping the node")


def test_the_guest_is_not_asked_from_a_host(lab: Lab) -> None:
    done = lab.run(["doctor", "--guest", "h1"])
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"quine: error: one of HOST, --guest: the guest is asked from this machine\n"


# -- hosts --json ------------------------------------------------------------------------------------


def test_hosts_as_json(lab: Lab) -> None:
    lab.alias("gpu", of="h1", tags=["gpu"], slots=3, about="two cards", env={"TOKEN": "hidden"}, jump="h2")
    done = lab.run(["hosts", "gpu,h2", "--json"], check=True)
    second, first = map(json.loads, done.stdout.splitlines())
    assert (first["name"], first["tags"], first["slots"], first["jump"]) == ("gpu", ["gpu"], 3, "h2")
    assert (first["address"], first["port"]) == (lab["h1"].address, lab["h1"].port)
    assert (first["transport"], first["about"]) == ("ssh", "two cards")
    assert second["name"] == "h2" and second["about"] == ""
    assert b"hidden" not in done.stdout and str(lab.identity).encode() not in done.stdout


def test_a_check_as_json(lab: Lab) -> None:
    lab.alias("lost", of="h1", address="nowhere.invalid")
    done = lab.run(["hosts", "check", "h1,lost", "--json"])
    assert done.returncode == 69
    there, lost = map(json.loads, done.stdout.splitlines())
    assert there["reachable"] is True and there["build"] is True and there["system"] == "Linux"
    assert re.fullmatch(r"3\.\d+", there["python"]) and there["seconds"] > 0 and there["free"] > 0
    assert (there["error"], there["hint"]) == (None, None)
    assert lost["reachable"] is False and lost["build"] is lost["python"] is lost["seconds"] is None
    assert "unknown host name" in lost["error"] and "set address" in lost["hint"]
    assert there.keys() == lost.keys()
