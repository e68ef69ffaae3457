"""ssh as people have it: each form of ~/.ssh/config, of keys and of host keys, against real sshd.

Each is reached by the name of its form, with no other key in the inventory: it works, or it is refused with a cure.
The carrier is used in this process; that verbs print its refusals is tested with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from deploy import carriers, inventory
from tests.lab import Lab
from tests.lab.host import Host, Settings
from tests.lab.lab import SSH_CONFIG
from tests.support.waiting import read_until, until
from transport.carrier.child import end_all
from transport.carrier.dialer import SshTarget
from transport.carrier.ssh import connect
from transport.carrier.ssh.keys import message
from transport.errors import Interrupted, Unreachable

pytestmark = [pytest.mark.skipif(not shutil.which("ssh-agent"), reason="needs OpenSSH")]


class User:
    """A user of h1 and h2: files in ~/.ssh, an agent perhaps."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ssh = lab.home / ".ssh"
        self.env: dict[str, str | None] = {}
        self._agent: subprocess.Popen[bytes] | None = None
        self.close()

    def __getitem__(self, name: str) -> Host:
        return self.lab[name]

    def configure(self, text: str, name: str = "config") -> None:
        """`{p1}`, `{p2}`: ports; `{key}`: the key that may log in; `{ssh}`: ~/.ssh; `{me}`: the user."""
        facts = {"key": self.lab.identity, "ssh": self.ssh, "me": self["h1"].user}
        ports = {f"p{number}": self[f"h{number}"].port for number in (1, 2, 3)}
        (self.ssh / name).write_text(text.format(**facts, **ports) + SSH_CONFIG)

    def named(self, name: str = "box", of: str = "h1", **keys: object) -> str:
        """Put a host into the inventory of which that has nothing but the name."""
        none = dict.fromkeys(("address", "port", "user", "identity"))
        return self.lab.alias(name, of, **{**none, **keys})

    def dial(self, name: str, command: str = "echo up") -> tuple[str, list[str]]:
        """Run a command on a host of the inventory; return its output, and the steps of the way. Raises Unreachable."""
        steps: list[str] = []
        news: list[str] = []
        proxies: list[asyncio.subprocess.Process] = []
        execute = asyncio.create_subprocess_exec

        async def executed(*words: str, **more: Any) -> asyncio.subprocess.Process:
            proxies.append(await execute(*words, **more))
            return proxies[-1]

        def note(step: str, found: str = "", ok: bool = True) -> None:
            steps.append(f"{step} {found}")

        async def run() -> str:
            known = inventory.load(self.lab.inventory, {})
            connect = carriers.to(known.hosts[name], known, self.env.get("SSH_AUTH_SOCK"))
            try:
                duplex = await connect(command, note, news.append)
                got = b""
                while data := await duplex.read():
                    got += data
                duplex.close()
                await duplex.closed()
            finally:
                await end_all()
                for process in proxies:  # hung up by now; this loop reaps it
                    await process.wait()
            return got.decode()

        environ = mock.patch.dict(os.environ, self.lab.overlaid(self.env), clear=True)
        with environ, mock.patch.object(asyncio, "create_subprocess_exec", executed):
            done = asyncio.run(run())
        assert not news
        return done, steps

    def works(self, name: str = "box") -> None:
        assert self.dial(self.named(name))[0] == "up\n"

    def fails(self, detail: str, cure: str, name: str = "") -> None:
        with pytest.raises(Unreachable) as caught:
            self.dial(name or self.named())
        assert detail in caught.value.detail
        assert cure in caught.value.hint

    def make_key(self, name: str, *options: str, passphrase: str = "") -> Path:
        path = self.ssh / name
        words = ["ssh-keygen", "-q", *(options or ("-t", "ed25519")), "-N", passphrase, "-f", str(path)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        return path

    def lock(self, name: str) -> Path:
        """A copy of the key that may log in, with the passphrase `open sesame`."""
        path = self.ssh / name
        path.write_bytes(self.lab.identity.read_bytes())
        path.chmod(0o600)
        words = ["ssh-keygen", "-q", "-p", "-a1", "-P", "", "-N", "open sesame", "-f", str(path)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        return path

    def start_agent(self, *keys: Path) -> Path:
        path = self.lab.tmp.parent / "agent"
        self._agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE)
        assert self._agent.stdout is not None
        self._agent.stdout.readline()  # it listens
        env = {"SSH_AUTH_SOCK": str(path), "PATH": os.environ["PATH"]}
        subprocess.run(["ssh-add", "-q", *map(str, keys)], check=True, env=env)
        self.env = {"SSH_AUTH_SOCK": str(path)}
        return path

    def close(self) -> None:
        if self._agent is not None:
            self._agent.terminate()
            self._agent.communicate()
            (self.lab.tmp.parent / "agent").unlink(missing_ok=True)
            self._agent = None
        for path in self.ssh.iterdir():
            path.unlink() if path.is_file() else shutil.rmtree(path)
        (self.ssh / "config").write_text(SSH_CONFIG)


@pytest.fixture
def user(lab: Lab) -> Iterator[User]:
    if not lab["h1"].real:
        pytest.skip("needs sshd")
    user = User(lab)
    yield user
    user.close()


WAY = "HostName 127.0.0.1\n Port {p1}\n IdentityFile {key}\n"

HOPS = (
    "Host hop third\n HostName 127.0.0.1\n IdentityFile {key}\nHost hop\n Port {p2}\nHost third\n Port {p3}\n"
)
SSH = "ssh -F {ssh}/config -o UserKnownHostsFile={ssh}/known"

WORKING = {
    "plain": f"Host box\n {WAY}",
    "user": f"Host box\n User {{me}}\n {WAY}",
    "match host": f"Match host box\n {WAY}",
    "match originalhost": f"Host box\n HostName 127.0.0.1\nMatch originalhost box\n {WAY}",
    "match user": f"Host box\n User {{me}}\nMatch user {{me}} host box\n {WAY}",
    "match localuser": f"Match localuser {{me}}\n {WAY}",
    "match exec": f'Match exec "test %n = box"\n {WAY}',
    "match all": f"Match all\n {WAY}",
    "match final": f"Host box\n HostName 127.0.0.1\nMatch final host 127.0.0.1\n {WAY}",
    "include": "Include conf.d/*\n",
    "proxy jump": f"Host box\n ProxyJump {{me}}@hop\n {WAY}\n{HOPS}",
    "a chain of jumps": f"Host box\n ProxyJump hop,third\n {WAY}\n{HOPS}",
    "a jump with a jump": f"Host box\n ProxyJump third\n {WAY}\n{HOPS} ProxyJump hop\n",
    "a jump by its address": "Host box\n ProxyJump ssh://{me}@[127.0.0.1]:{p2}\n HostName 127.0.0.1\n Port {p1}\n"
    "Host *\n IdentityFile {key}\n",
    "proxy jump none": f"Host box\n ProxyJump none\n {WAY}\nHost *\n ProxyJump nowhere.invalid\n",
    "proxy command": f"Host box\n ProxyCommand python3 {{ssh}}/relay %h %p 2>/dev/null # %%\n {WAY}",
    "proxy command none": f"Host box\n ProxyCommand none\n {WAY}\nHost *\n ProxyCommand false\n",
    "proxy command of ssh": f"Host box\n ProxyCommand {SSH} -W %h:%p hop\n {WAY}\n{HOPS}",
    "address family": f"Host box\n AddressFamily inet\n {WAY}",
    "bind address": f"Host box\n BindAddress 127.0.0.7\n {WAY}",
    "connect timeout": f"Host box\n ConnectTimeout 1m\n {WAY}",
    "tokens of a key": "Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityFile %d/.ssh/of-%n-%r\n",
    "a key beside missing ones": f"Host box\n IdentityFile ~/.ssh/none\n {WAY}",
    "algorithms that asyncssh lacks": f"Host box\n KexAlgorithms sntrup761x25519-sha512@openssh.com,curve25519-sha256\n"
    f" Ciphers aes256-ctr,aes128-cbc\n MACs -hmac-sha1*\n {WAY}",
    "options without a meaning here": f"Host box\n ControlMaster auto\n ControlPath {{ssh}}/m\n RequestTTY yes\n"
    f" ForwardAgent yes\n RemoteCommand tmux\n SendEnv LC_*\n ServerAliveInterval 1m\n {WAY}",
}


@pytest.mark.long
@pytest.mark.parametrize("form", WORKING)
def test_a_form_of_the_configuration_works(user: User, form: str) -> None:
    conf = user.ssh / "conf.d"
    conf.mkdir()
    (conf / "10-box").write_text(f"Host box\n HostName 127.0.0.1\n Port {user['h1'].port}\n")
    (conf / "20-all").write_text(f"Host *\n Port 1\n IdentityFile {user.lab.identity}\n")
    (user.ssh / "relay").write_text(RELAY)
    shutil.copy(user.lab.identity, user.ssh / f"of-box-{user['h1'].user}")
    user.configure(WORKING[form])
    user.works()


RELAY = """
import os, socket, sys, threading
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := there.recv(65536):
    os.write(1, data)
"""

FAILING = {
    "a circle of jumps": (
        "Host *\n ProxyJump hop\n",
        "the jump hosts on the way to it go in a circle",
        "Host * !hop",
    ),
    "a proxy command that ends": (
        f"Host box\n ProxyCommand ls /no/such/%h\n {WAY}",
        "its ProxyCommand gives no connection: ls: cannot access",
        "try it by itself: ls /no/such/127.0.0.1",
    ),
    "a proxy command that leads elsewhere": (
        f"Host box\n ProxyCommand sh -c 'echo HTTP/1.1 403 No; read version'\n {WAY}",
        "its ProxyCommand leads to no ssh server, which says: http/1.1 403 no",
        "try it by itself: sh -c 'echo HTTP/1.1 403 No; read version'",
    ),
    "known hosts command": (
        f"Host box\n KnownHostsCommand /bin/true\n {WAY}",
        "line 2: KnownHostsCommand is not supported here (its host keys would not be known)",
        "see ~/.ssh/config",
    ),
    "a value that is none": (
        f"Host box\n AddressFamily ipx\n {WAY}",
        "AddressFamily ipx: unsupported",
        "see ~/.ssh",
    ),
    "a torn line": ('Host box\n User "ada\n', "config line 2: a quote is not closed", "see ~/.ssh/config"),
    "no public keys": (
        f"Host box\n PubkeyAuthentication no\n {WAY}",
        "permission denied",
        "PubkeyAuthentication is no in ~/.ssh/config",
    ),
    "a key that is not there": (
        "Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityFile ~/.ssh/of_work\n",
        "tried no usable key; there is no ~/.ssh/of_work",
        "correct IdentityFile in ~/.ssh/config, or make the key: ssh-keygen -f ~/.ssh/of_work",
    ),
    "gssapi": (
        "Host box\n GSSAPIAuthentication yes\n HostName 127.0.0.1\n Port {p1}\n IdentityFile none\n",
        "tried no usable key",
        'ssh-add a key (GSSAPI needs transport = "openssh")',
    ),
    "pkcs11": (
        "Host box\n PKCS11Provider /usr/lib/opensc.so\n HostName 127.0.0.1\n Port {p1}\n",
        "tried no usable key",
        'for PKCS11Provider set transport = "openssh"',
    ),
    "passwords": (
        "Host box\n PreferredAuthentications password\n HostName 127.0.0.1\n Port {p1}\n IdentityFile none\n",
        "tried no usable key",
        'for PreferredAuthentications password set transport = "openssh"',
    ),
    "an address of another family": (
        f"Host box\n AddressFamily inet6\n {WAY}",
        "unknown host name: 127.0.0.1",
        "set address in its table",
    ),
    "a certificate that is none": (
        "Host box\n HostName 127.0.0.1\n Port {p1}\n CertificateFile {ssh}/config\n",
        "permission denied",
        "config cannot be used",
    ),
}


@pytest.mark.parametrize("form", FAILING)
def test_a_form_that_cannot_work_has_a_cure(user: User, form: str) -> None:
    text, detail, cure = FAILING[form]
    user.configure(text)
    user.fails(detail, cure)


def test_what_is_passed_over_is_named(user: User) -> None:
    user.configure(f"Host box\n ForwardAgent yes\n LocalForward 8080 localhost:80\n {WAY}")
    said = "\n".join(user.dial(user.named())[1])
    for line, text in ((2, "ForwardAgent yes"), (3, "LocalForward 8080 localhost:80")):
        assert f"pass over {text} ({user.ssh}/config line {line})" in said


def ssh_takes(user: User) -> bool:
    """Whether ssh itself takes the user's configuration: in place of the home's, which it looks up by the user id."""
    path = user.ssh / "outer"
    path.write_text(f"Include {user.ssh}/config\n")  # an included file is checked as the user's own is
    done = subprocess.run(["ssh", "-G", "-F", str(path), "box"], capture_output=True, check=False)
    assert done.returncode == 0 or b"Bad owner or permissions" in done.stderr
    return done.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("which", ["config", "included"])
def test_a_configuration_that_others_can_write_is_refused(user: User, which: str) -> None:
    ran = user.ssh / "ran"
    text = f'Match exec "touch {ran}"\n {WAY}'
    user.configure("Include {ssh}/included\n" if which == "included" else text)
    user.configure(text, "included")
    path = user.ssh / which
    for mode in (0o666, 0o602):
        path.chmod(mode)
        user.fails(f"bad permissions of {path}: others can write it (mode {mode:04o})", f"chmod go-w {path}")
        assert not ran.exists() and not ssh_takes(user)
    path.chmod(0o644)
    user.works()
    assert ran.exists() and ssh_takes(user)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file away")
def test_a_configuration_of_another_owner_or_group_is_refused(user: User) -> None:
    user.configure(f"Host box\n {WAY}")
    path = user.ssh / "config"
    os.chown(path, 4242, -1)
    user.fails(f"bad owner of {path}: user id 4242, neither root nor you", f"chown 0 {path}")
    assert not ssh_takes(user)
    told = user.lab.run(["doctor"]).stdout.decode()
    assert f"bad owner of {path}" in told
    os.chown(path, 0, 4242)
    path.chmod(0o664)
    user.fails(f"bad permissions of {path}: others can write it (mode 0664)", f"chmod go-w {path}")
    assert not ssh_takes(user)


@pytest.fixture
def accepting(user: User) -> Iterator[Host]:
    host = user.lab.add("accepting", Settings(sshd=("AcceptEnv LC_* KITE_*",)))
    yield host
    user.lab.drop("accepting")


def test_variables_that_the_configuration_sends_and_sets(user: User, accepting: Host) -> None:
    """A job has them by way of its node, whose environment they are; the program `ssh` sends the same ones."""
    user.configure(
        "Host box\n SetEnv KITE_SET='a b' KITE_BOTH=set OTHER=1\n SetEnv KITE_LATE=1\n"
        " SendEnv KITE_S* KITE_BOTH KITE_API_TOKEN KITE_NOT LC_?IME\n SendEnv -KITE_N*\n SendEnv OTHER\n"
        f" HostName 127.0.0.1\n Port {accepting.port}\n IdentityFile {{key}}\n"
    )
    user.env = {
        **{
            "LC_TIME": "C",
            "OTHER": "2",
            "KITE_API_TOKEN": "x",
            "KITE_BOTH": "sent",
            "KITE_SENT": "é\n2",
            "KITE_NOT": "1",
        },
        "XDG_RUNTIME_DIR": str(user.ssh / "run"),
    }
    (user.ssh / "run").mkdir(mode=0o700)
    try:
        user.named(of="accepting")
        done = user.lab.run(
            ["run", "--on", "box", "--", "env", "-0"], env=user.env, check=True
        ).stdout.decode()
    finally:
        user.lab.run(["node", "--stop", "--force"], env=user.env)
        accepting.kill_processes()
    for text in (done, user.dial(user.named(of="accepting", transport="openssh"), "env -0")[0]):
        found = dict(line.split("=", 1) for line in text.split("\0") if line)
        assert {name: found[name] for name in found if name.startswith(("LC_TIME", "OTHER", "KITE_"))} == {
            "LC_TIME": "C",
            "KITE_SET": "a b",
            "KITE_BOTH": "set",
            "KITE_SENT": "é\n2",
        }


def test_a_server_that_has_only_ciphers_with_counters(user: User) -> None:
    """With the MAC that both sides like best, and with one that is computed before the encryption."""
    host = user.lab.add("counting", Settings(sshd=("Ciphers aes256-ctr",)))
    try:
        text = f"Host box\n HostName 127.0.0.1\n Port {host.port}\n IdentityFile {{key}}\n"
        user.configure(text)
        data = os.urandom(3 << 20)  # more than a window, both ways
        done = user.lab.run(["run", "--on", user.named(), "--", "cat"], input=data, check=True)
        assert done.stdout == data
        user.configure(f"{text} MACs hmac-sha2-256\n")
        assert user.dial(user.named(), "seq 100000")[0].split() == list(map(str, range(1, 100_001)))
    finally:
        user.lab.drop("counting")


def test_no_common_algorithm_is_said_to_be_that_however_fast_the_server_hangs_up(user: User) -> None:
    names = (b"curve25519-sha256", b"ssh-ed25519", *(b"3des-cbc",) * 2, *(b"hmac-sha2-256",) * 2)
    lists = (*names, b"none", b"none", b"", b"")
    payload = b"\x14" + bytes(16) + b"".join(len(each).to_bytes(4, "big") + each for each in lists) + bytes(5)
    padding = 4 + -(9 + len(payload)) % 8
    packet = (1 + len(payload) + padding).to_bytes(4, "big") + bytes([padding]) + payload + bytes(padding)

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + packet)
            connection.shutdown(socket.SHUT_WR)  # it has come before the client reads a byte of it
            while connection.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        user.configure(f"Host box\n HostName 127.0.0.1\n Port {listener.getsockname()[1]}\n")
        user.fails("no common algorithm: no matching encryption", 'set transport = "openssh"')
        server.join()


def test_texts_of_a_server_need_not_be_utf_8(user: User) -> None:
    banner = user.ssh / "banner"
    banner.write_bytes("Zugang nur für Befugte\n".encode("latin-1"))
    try:
        user.lab.add("latin", Settings(sshd=(f"Banner {banner}",)))
        user.configure(f"Host box\n HostName 127.0.0.1\n Port {user['latin'].port}\n IdentityFile {{key}}\n")
        assert user.dial(user.named(of="latin"))[0] == "up\n"
    finally:
        user.lab.drop("latin")
        banner.unlink()


def test_a_violation_of_the_protocol_is_not_dialled_again(user: User) -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + b"\x00\x00\x00\x0c\x0a\x14" + bytes(10))
            while connection.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        user.configure(f"Host box\n HostName 127.0.0.1\n Port {listener.getsockname()[1]}\n")
        with pytest.raises(Unreachable, match="its sshd breaks the protocol") as caught:
            user.dial(user.named())
        assert not isinstance(caught.value, Interrupted)  # which is dialled again
        server.join()


@pytest.mark.skipif(os.getuid() != 0, reason="sshd changes its root, and logs in others, only for root")
def test_a_server_that_hangs_up_after_the_login(user: User) -> None:
    """For root sshd changes its root in the session, for others before one is opened."""
    key = " ".join(Path(f"{user.lab.identity}.pub").read_text().split()[:2])
    told = f"AuthorizedKeysCommand /bin/echo {key}\n AuthorizedKeysCommandUser nobody"  # it reads no file of ours
    there = f"Match User nobody\n {told}\n ChrootDirectory /no/such"
    host = user.lab.add("rootless", Settings(sshd=(there,)))
    try:
        user.configure(
            f"Host box\n User nobody\n HostName 127.0.0.1\n Port {host.port}\n IdentityFile {{key}}\n"
        )
        user.fails("the connection was lost as the session started: ", "is the ChrootDirectory there")
        until(host.connections, "it was logged in")
    finally:
        user.lab.drop("rootless")


def test_the_bind_address_is_seen_over_there(user: User) -> None:
    user.configure(WORKING["bind address"])
    user.works()
    user["h1"].wait_log("Accepted publickey for " + user["h1"].user + " from 127.0.0.7 ")


def test_a_server_that_says_nothing_is_given_up_at_connect_timeout(user: User) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        user.configure(f"Host box\n HostName 127.0.0.1\n Port {port}\n ConnectTimeout 1\n")
        user.fails("no answer within 1 s (ConnectTimeout)", "see ConnectTimeout in ~/.ssh/config")


# -- keys ------------------------------------------------------------------------------------------


def test_a_key_of_the_agent(user: User) -> None:
    user.configure("Host box\n HostName 127.0.0.1\n Port {p1}\n")
    user.start_agent(user.lab.identity)
    user.works()


def test_identity_agent_comes_before_the_environment(user: User) -> None:
    path = user.start_agent(user.lab.identity)
    user.env = {"MY_AGENT": str(path)}
    for form in (str(path), "$MY_AGENT", "${{MY_AGENT}}"):
        user.configure(f"Host box\n HostName 127.0.0.1\n Port {{p1}}\n IdentityAgent {form}\n")
        user.works()
    user.configure("Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityAgent none\n")
    user.env = {"SSH_AUTH_SOCK": str(path)}
    user.fails("tried no usable key", "ssh-add a key")


def test_an_agent_that_is_gone_is_said_to_be(user: User) -> None:
    user.configure("Host box\n HostName 127.0.0.1\n Port {p1}\n")
    user.env = {"SSH_AUTH_SOCK": "/nowhere/agent"}
    user.fails("tried no usable key", "the ssh agent /nowhere/agent does not answer")


def test_of_an_agent_with_many_keys_the_named_one_comes_first(user: User) -> None:
    """sshd hangs up after six refused keys: the seventh of the agent would never be asked for."""
    many = [user.make_key(f"k{number}") for number in range(7)]
    shutil.copy(f"{user.lab.identity}.pub", user.ssh / "mine.pub")
    user.start_agent(*many, user.lab.identity)
    user.configure("Host box\n HostName 127.0.0.1\n Port {p1}\n")
    user.fails("too many authentication failures", "IdentitiesOnly yes")
    for name in ("mine", "mine.pub"):  # the private half may be with the agent alone
        user.configure(f"Host box\n HostName 127.0.0.1\n Port {{p1}}\n IdentityFile ~/.ssh/{name}\n")
        user.works()


def test_identities_only_leaves_out_the_agents_other_keys(user: User) -> None:
    user.start_agent(user.lab.identity)
    user.make_key("other")
    user.configure(
        "Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityFile ~/.ssh/other\n IdentitiesOnly yes\n"
    )
    user.fails("tried ~/.ssh/other", "ssh-copy-id -i ~/.ssh/other")
    user.configure(
        "Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityFile {key}.pub\n IdentitiesOnly yes\n"
    )
    user.works()


@pytest.mark.parametrize("options", [(), ("-t", "ecdsa", "-m", "PEM")], ids=["openssh", "pem"])
def test_a_key_with_a_passphrase_and_no_terminal(user: User, options: tuple[str, ...]) -> None:
    if options:
        user.make_key("locked", *options, passphrase="open sesame")
    else:
        user.lock("locked")
    user.configure("Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityFile ~/.ssh/locked\n")
    user.fails("~/.ssh/locked has a passphrase", "start an ssh agent, and ssh-add ~/.ssh/locked")


def test_a_key_with_a_passphrase_that_the_agent_holds(user: User) -> None:
    user.lock("locked")
    user.start_agent(user.lab.identity)
    user.configure(
        "Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityFile ~/.ssh/locked\n IdentitiesOnly yes\n"
    )
    user.works()  # its public half is in the clear


def on_a_terminal(user: User, *answers: bytes) -> tuple[int, bytes]:
    """Run `hosts check` on a terminal, and answer each question for a passphrase."""
    ours, theirs = pty.openpty()
    words = ["setsid", "--ctty", "--wait", user.lab.quine, "hosts", "check", user.named()]
    process = subprocess.Popen(
        words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=user.lab.overlaid(user.env)
    )
    os.close(theirs)
    shown = b""
    for answer in answers:
        shown += read_until(ours, b"passphrase of ~/.ssh/locked: ")
        os.write(ours, answer + b"\n")
    _, err = process.communicate(timeout=60)
    os.set_blocking(ours, False)
    try:
        shown += os.read(ours, 65536)
    except OSError:
        pass  # the other end is closed, and nothing is left
    os.close(ours)
    assert b"sesame" not in shown + err
    return process.returncode, err


def test_a_passphrase_is_asked_for_on_the_terminal(user: User) -> None:
    user.lock("locked")
    user.configure("Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityFile ~/.ssh/locked\n")
    assert on_a_terminal(user, b"close sesame", b"open sesame") == (0, b"")


def test_a_wrong_passphrase_is_asked_for_three_times(user: User) -> None:
    user.lock("locked")
    user.configure("Host box\n HostName 127.0.0.1\n Port {p1}\n IdentityFile ~/.ssh/locked\n")
    status, said = on_a_terminal(user, b"a", b"b", b"c")
    assert status == 69 and b"~/.ssh/locked has a passphrase" in said


# -- certificates ----------------------------------------------------------------------------------


@pytest.fixture
def authority(user: User) -> Path:
    return user.make_key("ca")


def sign(authority: Path, public: Path, *options: str) -> Path:
    """Sign `x.pub`; return `x-cert.pub`."""
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", *options, str(public)], check=True
    )
    return public.with_name(f"{public.stem}-cert.pub")


@pytest.fixture
def trusting(user: User, authority: Path) -> Iterator[Host]:
    """A host that lets in those whom the authority has signed, and no other."""
    lines = (f"TrustedUserCAKeys {authority}.pub",)
    host = user.lab.add("ca", Settings(sshd=lines))
    yield host
    user.lab.drop("ca")


@pytest.mark.long
@pytest.mark.parametrize(
    "form", ["beside the key", "CertificateFile", "agent", "certificate with the agent's key"]
)
def test_a_certificate(user: User, authority: Path, trusting: Host, form: str) -> None:
    key = user.make_key("mine")
    certificate = sign(authority, user.ssh / "mine.pub", "-n", trusting.user)
    text = f"Host box\n HostName 127.0.0.1\n Port {trusting.port}\n"
    if form == "CertificateFile":
        certificate.rename(user.ssh / "elsewhere.pub")
        text += " CertificateFile ~/.ssh/elsewhere.pub\n IdentityFile ~/.ssh/mine\n"
    elif form == "agent":
        user.start_agent(key)
        for path in user.ssh.glob("mine*"):
            path.unlink()
    elif form == "certificate with the agent's key":
        certificate.rename(user.ssh / "elsewhere.pub")
        user.start_agent(key)
        for path in user.ssh.glob("mine*"):
            path.unlink()
        text += " CertificateFile ~/.ssh/elsewhere.pub\n IdentitiesOnly yes\n IdentityFile none\n"
    else:
        text += " IdentityFile ~/.ssh/mine\n"
    user.configure(text)
    user.works()


def test_a_key_without_its_certificate_is_refused(user: User, authority: Path, trusting: Host) -> None:
    user.make_key("mine")
    user.configure(f"Host box\n HostName 127.0.0.1\n Port {trusting.port}\n IdentityFile ~/.ssh/mine\n")
    user.fails("tried ~/.ssh/mine", "ssh-copy-id")


# -- host keys -------------------------------------------------------------------------------------


STRICT = f"Host box\n StrictHostKeyChecking yes\n {WAY}"


def known_line(host: Host, names: str) -> str:
    return f"{names} {' '.join(Path(f'{host.key}.pub').read_text().split()[:2])}\n"


def test_a_hashed_name_in_known_hosts(user: User) -> None:
    known = user.ssh / "known_hosts"
    known.write_text(known_line(user["h1"], f"[127.0.0.1]:{user['h1'].port}"))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert known.read_text().startswith("|1|")
    user.configure(STRICT)
    user.works()
    known.write_text(known_line(user["h2"], f"[127.0.0.1]:{user['h1'].port}"))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    user.fails("its host key has changed", "ssh-keygen -R")


def test_the_alias_of_a_host_key(user: User) -> None:
    (user.ssh / "known_hosts").write_text(known_line(user["h1"], "the-box"))
    user.configure(STRICT.replace("Host box\n", "Host box\n HostKeyAlias the-box\n"))
    user.works()


def test_a_revoked_host_key(user: User) -> None:
    name = f"[127.0.0.1]:{user['h1'].port}"
    line = known_line(user["h1"], name)
    (user.ssh / "known_hosts").write_text(f"{line}@revoked * {line.partition(' ')[2]}")
    user.configure(f"Host box\n {WAY}")
    user.fails("its host key is refused", "known_hosts")


@pytest.fixture
def certified(user: User, authority: Path) -> Iterator[Host]:
    """A host whose key the authority has signed, for the name `box.example`."""
    host = user.lab.add("signed")
    sign(authority, Path(f"{host.key}.pub"), "-h", "-n", "box.example")
    host.stop()
    host.settings = Settings(sshd=(f"HostCertificate {host.key}-cert.pub",))
    host.start()
    yield host
    user.lab.drop("signed")


@pytest.mark.long
def test_an_authority_for_host_keys(user: User, authority: Path, certified: Host) -> None:
    public = Path(f"{authority}.pub").read_text()
    known = user.ssh / "known_hosts"
    text = f"Host box\n HostKeyAlias box.example\n StrictHostKeyChecking yes\n {WAY}".replace(
        "{p1}", str(certified.port)
    )
    user.configure(text)
    known.write_text(f"@cert-authority *.example {public}")
    user.works()
    known.write_text(f"@cert-authority *.other {public}")
    user.fails("is not known, and StrictHostKeyChecking is yes", "compare it with its admin's")
    known.write_text(f"@cert-authority *.example {public}@revoked * {public}")
    user.fails("its host key is refused", "known_hosts")
    user.configure(text.replace("box.example", "wrong.example"))
    known.write_text(f"@cert-authority *.example {public}")
    user.fails("its host key is refused", "known_hosts")


# -- IPv6 ------------------------------------------------------------------------------------------


@pytest.fixture
def sixth(user: User) -> Iterator[Host]:
    """A host at ::1."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    host = user.lab.add("six", Settings(address="::1"))
    yield host
    user.lab.drop("six")


def test_ipv6_as_an_address_and_of_a_jump_host(user: User, sixth: Host) -> None:
    for address in ("::1", "[::1]"):
        assert user.dial(user.lab.alias("box", "six", address=address))[0] == "up\n"
    assert (user.ssh / "known_hosts").read_text().startswith(f"[::1]:{sixth.port} ssh-ed25519 ")
    user.configure("Host *\n IdentityFile {key}\n")
    hop = f"{sixth.user}@[::1]:{sixth.port}"
    steps = user.dial(user.lab.alias("box", "h1", jump=hop))[1]
    assert any(step.startswith("authenticate to ::1 ") for step in steps), steps
    user.configure(f"Host box\n ProxyJump {hop}\n {WAY}\nHost *\n IdentityFile {{key}}\n")
    user.works()
    until(lambda: sixth.connections() == 4, "each of these went by way of it")


# -- servers that are full or refuse ---------------------------------------------------------------


def test_a_full_server_is_asked_again(user: User) -> None:
    """MaxStartups: sshd drops a connection while another one has not logged in yet."""
    host = user.lab.add("full", Settings(sshd=("MaxStartups 1:100:1",)))
    try:
        with socket.create_connection((host.address, host.port)) as first:
            assert first.recv(4) == b"SSH-"  # it is counted now

            def leave() -> None:
                host.wait_log("MaxStartups throttling")
                first.shutdown(socket.SHUT_RDWR)

            thread = threading.Thread(target=leave)
            thread.start()
            assert user.dial("full")[0] == "up\n"
            thread.join()
    finally:
        user.lab.drop("full")


@pytest.mark.parametrize("garbage", ["no sshd\\n", "\\001\\377\\000", "\\001\\377\\n"])
def test_garbage_in_place_of_a_version_is_asked_for_once(user: User, garbage: str) -> None:
    asked = user.ssh / "asked"
    try:
        user.configure(f"Host box\n ProxyCommand echo >>{asked}; printf '{garbage}'\n {WAY}")
        user.fails("its ProxyCommand", "try it by itself")
        assert asked.read_text() == "\n"
    finally:
        asked.unlink(missing_ok=True)


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_another_server_than_an_sshd_is_asked_no_more(user: User, transport: str) -> None:
    """`ssh` names its words with -v only: the second connection is for them."""
    connections = 0

    def serve(listener: socket.socket) -> None:
        nonlocal connections
        with contextlib.suppress(OSError):
            while True:
                there, _ = listener.accept()
                connections += 1
                with there:
                    there.sendall(b"HTTP/1.1 400 Bad Request\r\n")
                    there.shutdown(socket.SHUT_WR)
                    while there.recv(4096):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            with pytest.raises(Unreachable) as caught:
                user.dial(user.lab.alias("web", "h1", via=listener.getsockname()[1], transport=transport))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    text = caught.value.detail.lower()
    assert "no ssh server answers" in text and "http/1.1 400 bad request" in text, text
    assert caught.value.hint.startswith("correct ")
    assert connections == (1 if transport == "ssh" else 2)


class Penalising:
    """A server that refuses its first connections as sshd does under PerSourcePenalties, then hands on to another."""

    def __init__(self, refusals: int, to: int) -> None:
        self.refusals, self.to, self.connections = refusals, to, 0
        self.tasks: list[asyncio.Task[None]] = []

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task
        self.tasks.append(task)
        if self.connections <= self.refusals:
            writer.write(b"Not allowed at this time\r\n")
            writer.close()
            await writer.wait_closed()
            return
        there, onwards = await asyncio.open_connection("127.0.0.1", self.to)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
            finally:  # a side that was reset leaves none open: it would be closed without a loop
                sink.close()
                await sink.wait_closed()

        await asyncio.gather(pump(reader, onwards), pump(there, writer), return_exceptions=True)

    async def visit(self, identity: Path, notes: list[str]) -> None:
        async with await asyncio.start_server(self.meet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            target = SshTarget("box", "127.0.0.1", None, port, str(identity))

            def note(step: str, found: str = "", ok: bool = True) -> None:
                notes.append(f"{step} {found}")

            try:
                duplex = await connect.connect(target, "true", note)
                duplex.close()
                await duplex.closed()
            finally:
                await asyncio.gather(*self.tasks)


def test_a_penalty_is_waited_out_once(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect.PENALTY >= 15  # sshd enforces no shorter one
    monkeypatch.setattr(connect, "PENALTY", 0.01)
    monkeypatch.setenv("HOME", str(user.lab.home))
    notes: list[str] = []
    once = Penalising(1, user["h1"].port)
    asyncio.run(once.visit(user.lab.identity, notes))
    assert once.connections == 2
    assert [note for note in notes if note.startswith("wait until box takes connections from here again")]
    ever = Penalising(99, user["h1"].port)
    with pytest.raises(Interrupted, match="its sshd refuses this address for a while") as caught:
        asyncio.run(ever.visit(user.lab.identity, notes))
    assert "PerSourcePenalties" in caught.value.detail and "failed logins from here" in caught.value.hint
    assert ever.connections == 2


def test_an_error_begins_small_but_for_an_abbreviation() -> None:
    assert message(ValueError("Connection lost")) == "connection lost"
    assert message(ValueError("SSH connection closed")) == "SSH connection closed"


def test_an_error_of_the_system_is_told_without_its_number() -> None:
    assert message(BrokenPipeError(32, "Broken pipe")) == "broken pipe"
    assert message(PermissionError(13, "Permission denied", "/x")) == "permission denied: /x"
    assert message(OSError("No luck")) == "no luck"
