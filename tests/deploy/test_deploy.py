"""Getting onto a host: against real sshds, and every way in which it can fail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy import dial, inventory
from deploy.build import build
from deploy.host import Host as Table
from deploy.probe import Place
from quine.cli import visits
from tests.lab import Lab, processes
from tests.lab.host import OTHER, Host
from tests.lab.lab import SSH_CONFIG
from transport.errors import Unreachable

VERSION = ".".join(map(str, sys.version_info[:2]))
NUMBER = sys.version_info[0] * 100 + sys.version_info[1]
SYSTEMS = Path(f"/usr/bin/python{VERSION}")
REAL = SYSTEMS if SYSTEMS.exists() else Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
SHELLS = ["/bin/tcsh", "/usr/bin/fish", "/usr/bin/zsh", "/bin/bash"]


# 300 kB of its input to the command in its arguments
PASSES = """
import os, signal, subprocess, sys
shell = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, bufsize=0)
left = 300_000
try:
    while left and (data := os.read(0, left)):
        shell.stdin.write(data)
        left -= len(data)
    if not left and sys.argv[1] != "heard":
        shell.kill()
        shell.wait()
        os.kill(os.getpid(), signal.SIGKILL if sys.argv[1] == "killed" else 0)
        os._exit(1)
    shell.stdin.close()
except BrokenPipeError:
    pass
sys.exit(shell.wait())
"""


def installations(host: Host) -> list[str]:
    """Return the names in the cache of a host: complete installations, and leftovers if there are any."""
    folder = host.path_of(".cache/quine")
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def said(done: subprocess.CompletedProcess[bytes], host: str) -> str:
    """Return the one error and its hint, which name that host. No other output is allowed."""
    assert done.returncode == 69, done
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2, lines
    assert lines[0].startswith(f"quine: {host}: error: "), lines
    assert lines[1].startswith(f"quine: {host}: hint: "), lines
    assert not lines[0].endswith(".")
    return "\n".join(lines)


def refused(lab: Lab, host: str) -> str:
    """Return what `deploy` says of a host that it does not get onto."""
    return said(lab.run(["deploy", host]), host)


def refused_by_all(lab: Lab, host: str) -> str:
    """Return the same, which a command that was meant for the host says, too, and names that command.

    A node dials as `deploy` does; so the longer way is for one case of each step: login, shell, probe, upload.
    """
    text = refused(lab, host)
    ran = said(lab.run(["run", "--on", host, "--", "true"]), host)
    told = ran.splitlines()[0].removesuffix("; not run: true")
    assert (
        told != ran.splitlines()[0] and told[:40] == text.splitlines()[0][:40]
    )  # it may name bytes that differ
    return text


def nothing_is_there(host: Host) -> None:
    assert processes.wait_none(host.processes, 60) == []
    assert installations(host) == []


def needs_sshd(lab: Lab) -> None:
    if not lab["h1"].real:
        pytest.skip("needs a real sshd")


@pytest.fixture
def fresh(lab: Lab) -> Iterator[Lab]:
    """h1 without any installation."""

    def forget() -> None:
        lab.stop_nodes()
        shutil.rmtree(lab["h1"].home / ".cache", ignore_errors=True)

    forget()
    yield lab
    forget()


# -- it works ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_twice_is_once(fresh: Lab) -> None:
    first = fresh.run(["deploy", "h1"], check=True).stdout.decode()
    assert first.startswith("h1: deployed, ")
    (sha256,) = installations(fresh["h1"])
    again = fresh.run(["deploy", "h1"], check=True)
    assert again.stdout.decode().startswith("h1: already there, ") and again.stderr == b""
    assert installations(fresh["h1"]) == [Place(python=OTHER).name(build())]
    folder = fresh["h1"].home / ".cache" / "quine" / sha256
    assert sorted(os.listdir(folder)) == ["lib", "quine", "quine.pyz"]
    assert folder.stat().st_mode & 0o077 == 0
    # the shell that its connection had may be about to end
    assert processes.wait_none(fresh["h1"].processes, 60) == [], "deploy starts nothing"


@pytest.mark.long
def test_what_runs_there_is_this_build(lab: Lab) -> None:
    here = lab.run(["--version"], check=True).stdout
    there = lab.run(["run", "--on", "h1", "--", "quine", "--version"], check=True)
    assert there.stdout == here
    where = lab.run(["run", "--on", "h1", "--", "sh", "-c", "command -v quine"], check=True).stdout.decode()
    assert where.startswith(f"{lab['h1'].home}/.cache/quine/")
    here, there = (
        lab.run([*words, "deploy", "build"], check=True).stdout.splitlines()[1]
        for words in ([], ["run", "--on", "h1", "--", "quine"])
    )
    assert here == there, "over there it sends itself"


@pytest.mark.long
def test_hosts_check_tells_what_is_there(fresh: Lab) -> None:
    fresh.run(["deploy", "h2"], check=True)
    done = fresh.run(["hosts", "check", "h1,h2"], check=True)
    header, one, two = (line.split() for line in done.stdout.decode().splitlines())
    assert header == ["HOST", "STATE", "SYSTEM", "PYTHON", "BUILD", "FREE", "SLOTS", "SECONDS"]
    assert one[:2] == ["h1", "ok"] and one[5] == "none"
    assert two[:2] == ["h2", "ok"] and two[5] == "same"
    assert installations(fresh["h1"]) == []


@pytest.mark.long
def test_two_deployers_at_once(fresh: Lab) -> None:
    both = [fresh.popen(["deploy", "h1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(installations(fresh["h1"])) == 1
    fresh.run(["run", "--on", "h1", "--", "true"], check=True)


@pytest.mark.long
def test_several_hosts_at_once_and_one_is_down(fresh: Lab) -> None:
    fresh["h2"].stop()
    done = fresh.run(["deploy", "h1,h2"])
    assert done.returncode == 69
    assert done.stdout.decode().startswith("h1: deployed")
    assert done.stderr.decode().startswith("quine: h2: error: connection refused")


def test_many_logins_at_once_stay_below_what_sshd_drops(lab: Lab, odd_host: Callable[..., Host]) -> None:
    """Its sshd drops each login beyond the tenth; a stock one drops some of them, by chance.

    One that was dropped is tried again, so only the log of sshd tells.
    """
    needs_sshd(lab)
    host = odd_host("full", sshd=("MaxStartups 10:100:10",))
    names = [lab.alias(f"many{number}", of="full") for number in range(14)]
    done = lab.run(["hosts", "check", ",".join(names)])
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    assert host.connections() == len(names) and "MaxStartups" not in host.log.read_text()


@pytest.mark.long
def test_a_truncated_binary_is_replaced(fresh: Lab) -> None:
    fresh.run(["deploy", "h1"], check=True)
    (sha256,) = installations(fresh["h1"])
    binary = fresh["h1"].home / ".cache" / "quine" / sha256 / "quine.pyz"
    os.truncate(binary, 1000)
    assert fresh.run(["deploy", "h1"], check=True).stdout.startswith(b"h1: deployed")
    assert installations(fresh["h1"]) == [Place(python=OTHER).name(build())]
    assert binary.stat().st_size == build().size


@pytest.mark.long
def test_a_damaged_installation_is_replaced_when_it_does_not_start(fresh: Lab) -> None:
    fresh.run(["deploy", "h1"], check=True)
    (sha256,) = installations(fresh["h1"])
    lib = fresh["h1"].home / ".cache" / "quine" / sha256 / "lib"
    (lib / "quine" / "__main__.py").write_bytes(b"")  # as after a power cut
    (lib / "transport" / "address.py").unlink()
    done = fresh.run(["run", "--on", "h1", "--", "echo", "mended"])
    assert (done.stdout, done.returncode) == (b"mended\n", 0), done
    assert installations(fresh["h1"]) == [Place(python=OTHER).name(build())]


@pytest.mark.long
def test_what_a_killed_deployer_left_is_no_harm(fresh: Lab) -> None:
    proxy = fresh["h1"].proxy
    fresh.alias("h1-line", of="h1", via=proxy)
    try:
        proxy.delay(0.02)
        process = fresh.popen(["deploy", "h1-line", "-v"], stderr=subprocess.PIPE)
        assert process.stderr is not None
        for line in process.stderr:
            if b" send " in line:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
        left = processes.wait_none(fresh["h1"].processes, 60)
        assert left == [], "the installer ends with its connection"
        kept = installations(fresh["h1"])
    finally:
        proxy.delay(0)
    fresh.run(["deploy", "h1"], check=True)
    (name,) = installations(fresh["h1"])
    assert name == Place(python=OTHER).name(build())
    assert kept in ([], [f".part-{name}"]), "the bytes that came, if any did"


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "transport"),
    [
        ("deploy h1-line", "ssh"),
        pytest.param("run --on h1-line -- true", "ssh", marks=pytest.mark.whole),
        ("run --on h1-line -- true", "openssh"),
        ("deploy h1-line", "command"),
    ],
)
def test_it_gets_there_by_a_connection_that_lives_for_300_kb(fresh: Lab, first: str, transport: str) -> None:
    """The bytes that came stay: otherwise it would never arrive."""
    proxy = fresh["h1"].proxy
    fresh.alias("h1-line", of="h1", via=proxy, transport=transport)
    before = proxy.accepted()
    # many more cuts than are needed: bytes that a cut connection delivered and nobody read are lost
    proxy.cut_after(*[300_000] * 1000)
    try:
        fresh.run(first.split(), check=True)
    finally:
        proxy.heal()
    assert 4 <= proxy.accepted() - before < 1000
    assert len(installations(fresh["h1"])) == 1


@pytest.mark.long
@pytest.mark.parametrize("end", ["heard", "status", "killed"])
def test_it_gets_there_by_a_command_that_passes_300_kb(fresh: Lab, tmp_path: Path, end: str) -> None:
    """The installer's last word comes back, or nothing but a status, or that of a kill; none has the words of ssh."""
    words = [f"{key}={value}" for key, value in fresh["h1"].environment().items()]
    (program := tmp_path / "passes").write_text(PASSES)
    fresh.by_command("h1-line", "h1", command=[sys.executable, program, end, "env", "-i", *words, "sh"])
    assert fresh.run(["deploy", "h1-line"], check=True).stdout.startswith(b"h1-line: deployed, ")
    assert len(installations(fresh["h1"])) == 1


@pytest.mark.long
def test_a_connection_that_brings_nothing_new_is_the_last(fresh: Lab) -> None:
    proxy = fresh["h1"].proxy
    fresh.alias("h1-line", of="h1", via=proxy)
    proxy.cut_after(200_000, *[9_000] * 20)  # too little for a login and the installer
    try:
        text = said(fresh.run(["deploy", "h1-line"]), "h1-line")
    finally:
        proxy.heal()
    assert "connection" in text


@pytest.mark.long
def test_the_file_sends_itself(fresh: Lab, tmp_path: Path) -> None:
    made = fresh.run(["deploy", "build", "-o", tmp_path / "quine"], check=True).stdout.decode()
    assert made.splitlines()[1] == f"sha256 {build().sha256}"
    done = subprocess.run(
        [sys.executable, tmp_path / "quine", "deploy", "h1"], env=fresh.env, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert installations(fresh["h1"]) == [Place(python=OTHER).name(build())]


@pytest.mark.parametrize("shell", SHELLS)
def test_any_login_shell(odd_host: Callable[..., Host], lab: Lab, shell: str) -> None:
    if not os.access(shell, os.X_OK):
        pytest.skip(f"no {shell} here")
    odd_host("odd", shell=shell, banner="Welcome! You have mail.\n\nno newline at the end")
    assert lab.run(["hosts", "check", "odd"], check=True).stdout.splitlines()[1].split()[1] == b"ok"


@pytest.mark.long
def test_a_noisy_login_shell(odd_host: Callable[..., Host], lab: Lab) -> None:
    odd_host("noisy", banner="Welcome!\n" * 1000 + "no newline at the end")
    done = lab.run(["run", "--on", "noisy", "--", "echo", "clean"], check=True)
    assert (done.stdout, done.stderr) == (b"clean\n", b"")


# -- ways to a host ----------------------------------------------------------------------------------


def test_through_a_jump_host(lab: Lab) -> None:
    needs_sshd(lab)
    before = lab["h2"].connections()
    lab.alias("behind", of="h1", jump="h2")
    lab.alias("placed", of="h1", jump=f"{lab['h2'].user}@127.0.0.1:{lab['h2'].port}")
    lab.run(["hosts", "check", "behind"], check=True)
    assert lab["h2"].connections() == before + 1
    # a place has no identity of its own: the usual files, and here there are none
    assert "permission denied" in lab.run(["hosts", "check", "placed"]).stderr.decode()


def test_a_jump_host_that_cannot_go_on(lab: Lab) -> None:
    lab.alias("beyond", of="h1", via=1, jump="h2")
    assert "cannot be reached from its jump host" in refused_by_all(lab, "beyond")


def test_the_users_ssh_configuration(lab: Lab) -> None:
    needs_sshd(lab)
    configuration = lab.home / ".ssh" / "config"
    host = lab["h1"]
    configuration.write_text(
        f"Host via-config\n  HostName 127.0.0.1\n  Port {host.port}\n  User {host.user}\n"
        f"  IdentityFile ~/.ssh/no-such-key\n  IdentityFile {lab.identity}\n  ProxyJump first-hop\n"
        f"  StrictHostKeyChecking accept-new\n  UserKnownHostsFile ~/.ssh/other_known_hosts\n"
        f"Host first-hop\n  HostName 127.0.0.1\n  Port {lab['h2'].port}\n  User {host.user}\n"
        f"  IdentityFile {lab.identity}\n{SSH_CONFIG}"
    )
    before = lab["h2"].connections()
    lab.alias("via-config", of="h1", port=None, user=None, identity=None, address=None)
    try:
        lab.run(["hosts", "check", "via-config"], check=True)
        assert lab["h2"].connections() == before + 1
        assert f"[127.0.0.1]:{host.port} " in (lab.home / ".ssh" / "other_known_hosts").read_text()
        (lab.home / ".ssh" / "other_known_hosts").write_text("")
        configuration.write_text("Host *\n  Port twenty-two\n")
        assert "cannot use its configuration" in refused_by_all(lab, "via-config")
    finally:
        configuration.write_text(SSH_CONFIG)


def test_keys_of_an_agent(lab: Lab, tmp_path: Path) -> None:
    lab.alias("keyless", of="h1", identity=None)
    socket = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()  # it says its socket when it listens
        env = {"SSH_AUTH_SOCK": socket}
        text = said(lab.run(["deploy", "keyless"], env=env), "keyless")
        assert "tried the keys of the ssh agent" in text
        subprocess.run(
            ["ssh-add", "-q", str(lab.identity)], env={**lab.env, **env}, check=True, capture_output=True
        )
        lab.run(["hosts", "check", "keyless"], env=env, check=True)
    finally:
        agent.terminate()
        agent.communicate()


def test_a_key_that_cannot_be_read_is_named(lab: Lab) -> None:
    lab.alias("keyless", of="h1", identity=None)
    key = lab.home / ".ssh" / "id_ed25519"
    key.mkdir(parents=True)
    try:
        text = said(lab.run(["deploy", "keyless"]), "keyless")
    finally:
        key.rmdir()
    assert "hint: ~/.ssh/id_ed25519 cannot be read (is a directory)" in text


# -- ways to fail ------------------------------------------------------------------------------------


def test_unknown_host(lab: Lab) -> None:
    known = b"no such host: 'h9'; known: h1, h2, h3"
    ran = lab.run(["run", "--on", "h9", "--", "true"])
    for done in (lab.run(["deploy", "h9"]), ran, lab.run(["hosts", "check", "h9"])):
        assert done.returncode == 69
        assert known in done.stderr
        assert b"quine: hint: " in done.stderr


def test_a_place_where_no_host_is(lab: Lab) -> None:
    lab.alias("lost", of="h1", address="no-such-host.invalid")
    assert "unknown host name: no-such-host.invalid" in refused(lab, "lost")
    lab.alias("shut", of="h1", via=1)
    assert "connection refused by 127.0.0.1 port 1" in refused(lab, "shut")


@pytest.mark.long
def test_wrong_key(lab: Lab, tmp_path: Path) -> None:
    for name, phrase in (("key", ""), ("locked", "secret")):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", str(tmp_path / name)]
        subprocess.run(keygen, check=True)
    lab.alias("strange", of="h1", identity=str(tmp_path / "key"))
    text = refused(lab, "strange")
    assert f"permission denied for {lab['h1'].user}; tried {tmp_path}/key" in text
    assert f"ssh-copy-id -i {tmp_path}/key" in text
    lab.alias("strange", of="h1", identity=str(tmp_path / "locked"))
    assert f"ssh-add {tmp_path}/locked" in refused(lab, "strange")
    lab.alias("strange", of="h1", identity=str(tmp_path / "none"))
    assert f"the identity {tmp_path}/none cannot be read" in refused(lab, "strange")


def test_first_contact_then_a_changed_host_key(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("turncoat")
    lab.run(["hosts", "check", "turncoat"], check=True)
    known = lab.home / ".ssh" / "known_hosts"
    lines = known.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.startswith(f"[127.0.0.1]:{host.port} "))
    host.stop()
    for path in (host.key, Path(f"{host.key}.pub")):
        path.unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host.key)], check=True)
    host.start()
    text = refused_by_all(lab, "turncoat")
    assert f"its host key has changed: not the one in {known} line {number}" in text
    assert known.read_text().splitlines() == lines
    cure = text.partition("(check with its admin), run: ")[2]
    subprocess.run(["sh", "-c", cure], check=True, capture_output=True)
    lab.run(["hosts", "check", "turncoat"], check=True)


def test_a_host_key_that_cannot_be_the_hosts(lab: Lab, odd_host: Callable[..., Host], tmp_path: Path) -> None:
    """One of another type counts as a changed one; a revoked one is refused, though it is the host's."""
    host = odd_host("retyped")
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(tmp_path / "key")], check=True)
    known = lab.home / ".ssh" / "known_hosts"
    before = known.read_text()
    known.write_text(f"{before}[127.0.0.1]:{host.port} {(tmp_path / 'key.pub').read_text()}")
    assert "its host key has changed: not the one in" in refused(lab, "retyped")
    known.write_text(f"{before}@revoked [127.0.0.1]:{host.port} {Path(f'{host.key}.pub').read_text()}")
    assert "its host key is refused" in refused(lab, "retyped")


def test_host_without_python(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("bare", python=False)
    assert "it has no python3" in refused_by_all(lab, "bare")
    checked = lab.run(["hosts", "check", "bare"])
    assert checked.stdout.splitlines()[1].split()[1] == b"unusable" and b"it has no python3" in checked.stderr
    nothing_is_there(host)


@pytest.mark.long
def test_a_build_whose_python_has_gone(lab: Lab, odd_host: Callable[..., Host]) -> None:
    """The build is there by its files; every verb says that it cannot start."""
    host = odd_host("nopy", python=False, scripts={"python3": f'#!/bin/sh\nexec {REAL} "$@"\n'})
    lab.run(["deploy", "nopy"], check=True)
    assert lab.run(["deploy", "--plan", "nopy"]).stdout == b"nopy: already there\n"
    (name,) = installations(host)
    launcher = host.path_of(f".cache/quine/{name}/quine")
    launcher.write_text(launcher.read_text().replace(f"exec {REAL}", "exec /none/python3"))
    assert "/none/python3" in launcher.read_text()
    (host.base / "bin" / "python3").unlink()
    assert "it has no python3" in refused(lab, "nopy")
    checked = lab.run(["hosts", "check", "nopy"])
    assert checked.returncode == 69 and checked.stdout.splitlines()[1].split()[1] == b"unusable"
    planned = lab.run(["deploy", "--plan", "nopy"])
    assert (planned.returncode, planned.stdout) == (69, b"nopy: needs Python\n")
    examined = lab.run(["doctor", "nopy"]).stdout
    assert b"this build is there and does not start" in examined and b"is not there" not in examined


@pytest.mark.long
def test_a_build_that_does_not_start_is_planned_and_replaced(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("moved")
    lab.run(["deploy", "moved"], check=True)
    (name,) = installations(host)
    launcher = host.path_of(f".cache/quine/{name}/quine")
    before = launcher.read_bytes()
    launcher.write_text("#!/bin/sh\nexec /none/python3\n")
    assert lab.run(["deploy", "--plan", "moved"]).stdout.startswith(b"moved: send ")
    assert b"already there" not in lab.run(["deploy", "moved"], check=True).stdout
    assert launcher.read_bytes() == before and lab.run(["run", "--on", "moved", "--", "true"]).returncode == 0


HANGS = "#!/bin/sh\nexec sleep 1000\n"


@pytest.mark.long
def test_a_python_that_hangs_does_not_block_a_host(lab: Lab, odd_host: Callable[..., Host]) -> None:
    odd_host("slow", scripts={"python3": HANGS})
    checked = lab.run(["hosts", "check", "-v", "slow"], check=True)
    assert checked.stdout.splitlines()[1].split()[1] == b"ok"
    assert b"/python3 does not start within 6 s" in checked.stderr
    assert lab.run(["run", "--on", "slow", "--", "true"]).returncode == 0


@pytest.mark.long
def test_the_only_python_hangs_and_is_named(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("stuck", python=False, scripts={"python3": HANGS})
    assert f"its {host.base}/bin/python3 does not start within 6 s" in refused(lab, "stuck")
    nothing_is_there(host)


@pytest.mark.long
def test_host_with_an_old_python(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("old", python=False, scripts={"python3": "#!/bin/sh\necho 308 99999999999\n"})
    assert "its newest Python is 3.8, and quine needs 3.9 or newer" in refused(lab, "old")
    nothing_is_there(host)


def test_a_check_tells_all_that_an_unfit_host_says(
    lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    """Unfit are its Python, that of the inventory or the installation there; one host cannot be reached.

    `deploy` and its plan say the same of the Python that the inventory names.
    """
    odd_host("named", inventory={"python": "/not/there"})
    text = refused(lab, "named")
    assert 'in the inventory: python = "/not/there"' in text and "correct `python` in its table" in text
    planned = lab.run(["deploy", "--plan", "named"])
    assert (planned.returncode, planned.stdout) == (69, b"named: cannot be deployed to\n")
    assert b'python = "/not/there"' in planned.stderr
    (tmp_path / "old").write_text("#!/bin/sh\necho 308 99999999999\n")
    (tmp_path / "quine").write_text("#!/bin/sh\necho 'quine 0.0.9 (build 0123456789ab)'\n")
    for name in ("old", "quine"):
        (tmp_path / name).chmod(0o755)
    lab.alias("aged", of="named", python=str(tmp_path / "old"))
    lab.alias("other", of="named", python=None, binary=str(tmp_path / "quine"))
    lab.alias("away", of="named", via=1)
    done = lab.run(["hosts", "check", "named,aged,other,away", "--json"])
    told = {fact["name"]: fact for fact in map(json.loads, done.stdout.splitlines())}
    assert {name: (fact["reachable"], fact["build"]) for name, fact in told.items()} == {
        "named": (True, False), "aged": (True, False), "other": (True, False), "away": (False, None),
    }  # fmt: skip
    assert (told["aged"]["python"], told["named"]["python"], told["other"]["python"]) == ("3.8", None, None)
    assert told["named"]["system"] == told["aged"]["system"] == "Linux" and told["named"]["free"] is None
    assert all(fact["error"] and fact["hint"] != "" for fact in told.values())
    rows = lab.run(["hosts", "check", "aged"]).stdout.decode().splitlines()[1].split()
    assert rows[:5] == ["aged", "unusable", "Linux", os.uname().machine, "3.8"]


def test_a_cure_that_is_not_known_is_null() -> None:
    assert visits._facts(Unreachable("h", "it is away"))["hint"] is None


def test_a_cache_where_no_file_is_kept(lab: Lab, odd_host: Callable[..., Host]) -> None:
    """Where the inventory puts it, in a home that is none, or where a file is in its way."""
    host = odd_host("homeless", env={"HOME": "/proc/none"})
    assert "its cache for quine cannot be written" in refused(lab, "homeless")
    lab.alias("shown", of="homeless", cache="/proc/x")
    text = refused(lab, "shown")
    assert "its cache for quine cannot be written: " in text and 'cache = "/scratch/me/quine"' in text
    (host.home / "file").write_text("a file in the way")
    lab.alias("readonly", of="homeless", cache=f"{host.home}/file")
    assert "cannot be written" in refused(lab, "readonly")
    assert (host.home / "file").read_text() == "a file in the way"


def test_host_of_another_kind(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("bsd", scripts={"uname": "#!/bin/sh\necho FreeBSD amd64\n"})
    assert "it is FreeBSD, and quine runs on Linux" in refused(lab, "bsd")
    nothing_is_there(host)


def test_full_disk(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("full", mount="size=2m")
    text = refused_by_all(lab, "full")
    assert re.search("its disk is full: [12] MB free", text)
    assert 'cache = "/scratch/me/quine"' in text
    nothing_is_there(host)


def test_disk_that_fills_on_the_way(lab: Lab, odd_host: Callable[..., Host]) -> None:
    # the probe sees the home, the cache lies on another file system: found out only while writing
    host = odd_host("filling", mount="size=2m", python=False, scripts={"python3": LIAR})
    text = refused(lab, "filling")
    assert "its disk is full: " in text and "make room there" in text
    nothing_is_there(host)


# Says of the disk what a quota would: there is room, as long as one does not write
LIAR = f"""#!/bin/sh
case "$*" in *statvfs*) echo {NUMBER} 99999999999;; *) exec {REAL} "$@";; esac
"""


@pytest.mark.long
def test_no_programs_allowed(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("strict", mount="noexec,size=200m")
    assert "mounted noexec" in refused(lab, "strict")
    nothing_is_there(host)


# Turns over bits of what comes after the first 100 kB, as a bad line under a bad cipher would
TAMPER = f"""#!/bin/sh
case "$*" in
*statvfs*|-I*lib*) exec {REAL} "$@";;
-I*) {REAL} -c "
import os
passed = 0
while data := os.read(0, 65536):
    os.write(1, data if passed < 100_000 else CHANGED)
    passed += len(data)
" | {REAL} "$@";;
*) exec {REAL} "$@";;
esac
"""


@pytest.mark.long
def test_binary_corrupted_on_the_way(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host(
        "noise",
        python=False,
        scripts={"python3": TAMPER.replace("CHANGED", "bytes(b ^ 1 for b in data)")},
    )
    text = refused(lab, "noise")
    assert "the binary was damaged on the way and was not installed" in text
    nothing_is_there(host)


@pytest.mark.long
def test_binary_cut_off_on_the_way(lab: Lab, odd_host: Callable[..., Host]) -> None:
    """Its Python sees the end of its input before the end of the file. The bytes that came stay, so that it arrives."""
    cut = TAMPER.replace("100_000", "400_000").replace("CHANGED", "data[:-1]); os._exit(0")
    host = odd_host("short", python=False, scripts={"python3": cut})
    assert lab.run(["deploy", "short"], check=True).stdout.startswith(b"short: deployed, ")
    (name,) = installations(host)
    assert not name.startswith(".part-")


def test_shell_that_runs_nothing(lab: Lab, odd_host: Callable[..., Host]) -> None:
    # with an escape sequence that would set the title of a terminal
    host = odd_host("menu", sshd=("ForceCommand printf '\\033]0;owned\\007This account is not available.'",))
    text = refused_by_all(lab, "menu")
    assert (
        "its login shell did not run the command (status 0); its last words: ]0;owned This account is not available"
        in text
    )
    assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) == {"\n"}
    nothing_is_there(host)


@pytest.mark.clock  # half a second is enough to get to the host
def test_a_line_that_goes_dead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = lab["h1"].proxy
    lab.alias("dead", of="h1", via=proxy)
    try:
        proxy.blackhole()
        for name, value in lab.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(dial, "DEADLINE", 0.5)
        known = inventory.load(lab.inventory, {})
        with pytest.raises(
            Unreachable, match=r"no answer within 0\.5 s; it was about to hear the ssh version of dead"
        ):
            asyncio.run(dial.dial(known.host("dead"), known, ssh_agent=None, note=lambda _: None))
    finally:
        proxy.heal()


def test_a_login_that_waits_for_input_is_told_from_a_network_that_is_down(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lab.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dial, "DEADLINE", 0.2)  # it never answers, however long it is waited for
    waits = ("sh", "-c", "read answer; exec sleep 600", "sh")
    known = inventory.Inventory({"box": Table("box", transport="command", command=waits)})
    with pytest.raises(Unreachable, match="it was about to find the binary") as caught:
        asyncio.run(dial.dial(known.host("box"), known, ssh_agent=None, note=lambda _: None))
    assert caught.value.hint.startswith("do its login files (.bashrc, .zshenv) wait for input? ")


@pytest.mark.long
def test_a_batch_system_is_not_built(lab: Lab) -> None:
    """It takes no part where others match, and by its name it is said what is wrong."""
    lab.alias("aa", of="h1", transport="slurm", tags=["some"])
    lab.alias("bb", of="h1", tags=["some"])
    done = lab.run(["run", "--on", "@some", "--", "sh", "-c", "echo $QUINE_NODE_NAME"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"bb\n", b"")
    for words in (["run", "--on", "aa", "--", "true"], ["hosts", "check", "aa"], ["deploy", "aa"]):
        done = lab.run(words)
        assert (done.returncode, b'aa: error: transport = "slurm" is not built yet' in done.stderr) == (
            2,
            True,
        )


def test_a_copy_never_replaces_what_is_no_file(tmp_path: Path) -> None:
    """Renaming over /dev/null, by root, took it from the whole machine."""
    import os

    from deploy.build import _copy
    from transport.errors import Refused

    (tmp_path / "binary").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="not a file"):
        _copy(tmp_path / "binary", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
