"""`quine rsh`: the command line of ssh, followed, refused by name or passed over; the work is that of `quine run`."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
from collections.abc import Sequence

import pytest

from quine.base.errors import Misconfigured
from quine.cli.ssh_line import FLAGS, REFUSED, REFUSED_CONFIG, VALUES, Line
from tests.lab import Lab
from tests.lab.lab import CARRIER
from tests.support.waiting import read_until

reached_by_ssh = pytest.mark.skipif(CARRIER == "command", reason="its table has no user and no port")

# as these programs call ssh, then the user, the port and the command as they are read
CALLS = {
    "rsync": (
        "-l me h1 rsync --server -logDtpre.iLsfxC . dir",
        "me",
        "",
        "rsync --server -logDtpre.iLsfxC . dir",
    ),
    "git": ("-o SendEnv=GIT_PROTOCOL -4 -p 22 me@h1 'git-upload-pack /x'", "me", "22", "git-upload-pack /x"),
    "borg": ("-p 22 me@h1 borg serve --umask=077", "me", "22", "borg serve --umask=077"),
    "parallel": ("-p 22 -l me h1 -- exec perl -X", "me", "22", "exec perl -X"),
    "sftp": (
        "-o'ForwardX11 no' -o'PermitLocalCommand no' -o'ClearAllForwardings yes' -l me -s -- h1 sftp",
        *("me", "", "sftp"),
    ),
    "scp": ("-x -oPermitLocalCommand=no -oRemoteCommand=none -oRequestTTY=no -s -- h1 sftp", "", "", "sftp"),
    "ansible": (
        "-C -o ControlMaster=auto -o ControlPersist=60s -o StrictHostKeyChecking=no -o 'User=\"me\"' "
        "-o PreferredAuthentications=gssapi-with-mic,publickey -o ConnectTimeout=10 -tt h1 'echo ~'",
        *("me", "", "echo ~"),
    ),
    "mosh": ("-n -tt h1 -- mosh-server new", "", "", "mosh-server new"),
    "url": ("-q ssh://me@h1:22/ true", "me", "22", "true"),
    "options behind the host": ("h1 -T -lme cmd -l x", "me", "", "cmd -l x"),
    "letters in one word": ("-xqTaF none -enone -i /k h1", "", "", ""),
}


@pytest.mark.parametrize("program", CALLS)
def test_the_words_of_programs_that_start_ssh_are_understood(program: str) -> None:
    text, user, port, command = CALLS[program]
    line = Line(shlex.split(text), {})
    assert (line.host, line.user, line.port, " ".join(line.command)) == ("h1", user, port, command)
    assert line.subsystem == (command == "sftp")


@pytest.mark.parametrize("letter", sorted(FLAGS + VALUES))
def test_each_option_of_ssh_is_taken_or_refused_by_name(letter: str) -> None:
    words = [f"-{letter}", *(["User=x"] if letter in VALUES else []), "h1", "true"]
    if letter in REFUSED:
        with pytest.raises(Misconfigured, match=f"^-{letter} is not supported: "):
            Line(words, {})
    else:
        line = Line(words, {})
        assert (line.host, line.command) == ("h1", ["true"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(([f"-o{key}=x", "h1"], f"-o {key} is not supported: ") for key in REFUSED_CONFIG),
        (["-o", "StrictHostKeyChecking yes", "h1"], "-o StrictHostKeyChecking is not supported: "),
        (["-oSessionType=none", "h1"], "-o SessionType=none is not supported: "),
        (["-oFoo=x", "h1"], "-o Foo: no such option of ssh"),
        (["-Z", "h1"], "no such option of ssh: -Z"),
        (["-h", "h1"], "no such option of ssh: -h"),
        (["--foo", "h1"], "no such option: --foo"),
        (["h1", "-p"], "-p needs a value"),
        (["--inventory"], "--inventory needs a value: FILE"),
        (["-oSetEnv=A", "h1"], "-o SetEnv A: should be NAME=VALUE"),
    ],
)
def test_what_must_not_be_left_out_is_refused(words: Sequence[str], message: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        Line(list(words), {})
    assert refused.value.detail.startswith(message)


def test_values_that_ask_for_nothing_are_passed_over() -> None:
    words = [f"-o{key}={value}" for key in REFUSED_CONFIG for value in ("no", "none")]
    assert Line([*words, "-oStrictHostKeyChecking=accept-new", "h1"], {}).host == "h1"


def test_variables_are_set_and_sent_but_no_secrets() -> None:
    environ = {"LC_ALL": "C", "LC_TIME": "x", "GIT_PROTOCOL": "version=2", "API_TOKEN": "secret", "LANG": "y"}
    line = Line(["-oSendEnv=LC_* GIT_PROTOCOL API_TOKEN", "-o", "SetEnv=A=1 LC_TIME=z", "h1"], environ)
    assert line.env == {"LC_ALL": "C", "LC_TIME": "z", "GIT_PROTOCOL": "version=2", "A": "1"}


# -- with a host -----------------------------------------------------------------------------------


def test_words_are_joined_for_the_shell_of_the_account_at_home(lab: Lab) -> None:
    done = lab.run(["rsh", "-oSetEnv=A=b", "h1", "pwd;", "echo", "$A", "'a   b'", ";", "echo c  d;exit 7"])
    assert (done.returncode, done.stderr) == (7, b"")
    assert done.stdout.decode() == f"{lab['h1'].home}\nb a   b\nc d\n"


def test_it_is_the_login_shell_and_not_sh(lab: Lab) -> None:
    host = lab.alias("dash", "h1", env={"SHELL": "/bin/dash"})
    assert lab.run(["rsh", host, "echo $0"], check=True).stdout == b"/bin/dash\n"
    assert lab.run(["rsh", host], input="echo $0\n", check=True).stdout == b"/bin/dash\n"


def test_a_host_with_same_paths_starts_at_home_too(lab: Lab) -> None:
    """A program that starts ssh counts on it; only `quine run` follows the caller's directory there."""
    host = lab.alias("same", "h1", same_paths=True)
    assert lab.run(["rsh", host, "pwd"], check=True).stdout.decode() == f"{lab['h1'].home}\n"


def test_without_a_command_a_login_shell_reads_stdin(lab: Lab) -> None:
    done = lab.run(["rsh", "h1"], input="pwd\nexit 5\n")
    assert (done.returncode, done.stdout, done.stderr) == (5, f"{lab['h1'].home}\n".encode(), b"")


def test_stdin_streams_status_and_signals_are_those_of_the_command(lab: Lab) -> None:
    data = os.urandom(300_000)
    assert lab.run(["rsh", "h1", "cat"], input=data).stdout == data
    assert lab.run(["rsh", "-n", "h1", "cat"], input=data).stdout == b""
    assert lab.run(["rsh", "-oStdinNull=yes", "h1", "cat"], input=data).stdout == b""
    done = lab.run(["rsh", "h1", "echo out; echo err >&2; kill -TERM $$"])
    assert (done.returncode, done.stdout, done.stderr) == (-15, b"out\n", b"err\n")
    assert lab.run(["rsh", "h1", "no-such-command"]).returncode == 127


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["h1"], b"terminal\r\n"),
        (["-t", "h1", "tty >&2; echo on"], b"on\r\n"),
        (["-T", "h1", "tty; echo off"], b"not a tty\r\noff\r\n"),
        (["h1", "tty; echo off"], b"not a tty\r\noff\r\n"),
    ],
)
def test_a_terminal_is_given_as_by_ssh(lab: Lab, words: list[str], shown: bytes) -> None:
    ours, theirs = pty.openpty()
    process = lab.popen(
        ["rsh", *words], stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, new_session=True
    )
    os.close(theirs)
    try:
        if words == ["h1"]:
            os.write(ours, b"test -t 0 && test -t 1 && echo term''inal; exit\n")
        read_until(ours, shown)
    finally:
        os.close(ours)
        process.wait(60)


def test_a_terminal_that_is_not_there_is_not_missed(lab: Lab) -> None:
    done = lab.run(["rsh", "-tt", "h1", "echo ok"])
    assert (done.returncode, done.stdout) == (0, b"ok\n")
    assert done.stderr == b"quine: no terminal for the command: stdin is none\n"
    assert lab.run(["rsh", "-q", "-tt", "h1", "echo ok"]).stderr == b""


@reached_by_ssh
def test_a_host_is_one_of_the_inventory_with_its_user_and_port(lab: Lab) -> None:
    host = lab["h1"]
    done = lab.run(["rsh", "-p", host.port, f"{host.user}@h1", "echo ok"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ok\n", b"")
    for words, name, known, cure in (
        (["me@h1"], "user me", host.user, 'user = "me"'),
        (["-l", "me", "h1"], "user me", host.user, 'user = "me"'),
        (["-oPort=1", "h1"], "port 1", host.port, "port = 1"),
    ):
        done = lab.run(["rsh", *words, "touch ran"])
        assert done.returncode == 69 and not (host.home / "ran").exists()
        assert done.stderr.decode().splitlines() == [
            f"quine: h1: error: {name}: the inventory gives {known}",
            f"quine: h1: hint: put {cure} into the table [hosts.h1] of {lab.inventory}",
        ]
    done = lab.run(["rsh", "me@nosuch", "true"])  # with a user it needs no table
    assert done.returncode == 69 and b"quine: me@nosuch: error: unknown host name: nosuch" in done.stderr
    for wrong in ("nosuch", "any", "local", "h1,h2", "h1!h2", "[::1]"):
        done = lab.run(["rsh", wrong, "true"])
        assert done.returncode == 69 and b"error: no such host: " in done.stderr and b"hint: " in done.stderr
    assert lab.run(["rsh", "--inventory=/no/such", "h1", "true"]).returncode == 2


@reached_by_ssh
def test_user_and_port_may_be_those_of_the_configuration_of_ssh(lab: Lab) -> None:
    host, config = lab["h1"], lab.home / ".ssh" / "config"
    before = config.read_text()
    lab.alias("named", "h1", address=None, user=None, port=None)
    try:
        port, user = host.port, host.user
        config.write_text(f"Host named\n HostName 127.0.0.1\n Port {port}\n User {user}\n{before}")
        assert lab.run(["rsh", "-p", str(port), f"{user}@named", "echo in"], check=True).stdout == b"in\n"
        for words, said in (
            (["eve@named"], f"user eve: ~/.ssh/config gives {user}"),
            (["-p1", "named"], f"port 1: ~/.ssh/config gives {port}"),
        ):
            done = lab.run(["rsh", *words, "touch ran"])
            assert done.returncode == 69 and not (host.home / "ran").exists()
            assert done.stderr.decode().startswith(f"quine: named: error: {said}\n")
    finally:
        config.write_text(before)


@reached_by_ssh
def test_git_is_told_that_options_of_ssh_are_understood(lab: Lab) -> None:
    host = lab["h1"]
    done = lab.run(["rsh", "-G", "-p", "1", "h1"], check=True)
    assert done.stdout.decode() == f"host h1\nuser {host.user}\nhostname {host.address}\nport {host.port}\n"
    assert lab.run(["rsh", "-G", "nosuch"], check=True).stdout == b"host nosuch\n"


def test_sftp_is_the_subsystem_and_the_script_is_one_word(lab: Lab) -> None:
    done = lab.sh("quine-rsh h1 echo ok; echo pwd | sftp -q -b - -S quine-rsh h1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"ok\nsftp> pwd\nRemote working directory: {lab['h1'].home}\n"
    done = lab.run(["rsh", "-s", "h1", "netconf"])
    assert (done.returncode, done.stderr[:41]) == (2, b"quine: error: -s: no such subsystem: 'net")


def test_help_and_version(lab: Lab) -> None:
    assert lab.run(["rsh", "--help"], check=True).stdout.startswith(b"usage: quine rsh ")
    done = lab.run(["rsh", "-V"], check=True)
    assert (done.stdout, done.stderr) == (b"", lab.run(["run", "--version"]).stdout)
    assert lab.run(["rsh"]).returncode == 2
