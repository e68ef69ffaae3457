"""~/.ssh/config means what it means to ssh: each configuration is read by both, and `ssh -G` is the judge."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from transport.carrier.ssh import canonical, config
from transport.carrier.ssh.config import Asked, read

OPTIONS = (
    *(
        "addressfamily",
        "bindaddress",
        "canonicalizehostname",
        "canonicaldomains",
        "certificatefile",
        "ciphers",
    ),
    *(
        "connecttimeout",
        "globalknownhostsfile",
        "hashknownhosts",
        "hostkeyalias",
        "identitiesonly",
        "identityagent",
    ),
    *("identityfile", "kexalgorithms", "macs", "port", "proxycommand", "proxyjump", "pubkeyauthentication"),
    *("revokedhostkeys", "setenv", "stricthostkeychecking", "user", "userknownhostsfile"),
)
ME = getpass.getuser()
CONFIGS = {
    "first value wins": "Host h\n  Port 1001\n  User ada\nHost *\n  Port 1002\n  User bob\n  HostName other\n",
    "keyword forms": 'hOsT h\nPORT=1001\n\tUser = "ada"\n  HostName   h.example   # the good one\n#Port 3\n',
    "patterns": "Host a h?\n Port 1\nHost !h *\n Port 2\nHost h *.x\n Port 3\n",
    "negation": "Host * !h\n  Port 1001\n  ProxyJump b\nHost *\n  User ada\n",
    "hostname token": "Host h\n  HostName %h.example.org\nMatch host h.example.org\n  User ada\n",
    "percent": "Host h\n  HostName 100%%.example\n",
    "match originalhost": "Host h\n  HostName x\nMatch originalhost h\n  Port 1001\nMatch host h\n  Port 1002\n",
    "match user": "Host h\n  User ada\nMatch user ada,bob\n  Port 1001\nMatch user bob\n  HostName no\n",
    "match localuser": f"Match localuser {ME}\n  Port 1001\nMatch !localuser {ME}\n  User ada\n",
    "match exec": 'Match exec "test %n = h"\n  Port 11\nMatch exec false\n  User ada\nMatch !exec false\n  User bob\n',
    "match exec tokens": 'Port 7\nUser ada\nMatch exec "test %h-%p-%r-%u-%% = h-7-ada-$(id -un)-%%"\n  Port 8\n',
    "match exec in a row": 'Match host h !exec "true" user x\n  Port 1\nMatch host "h,i" exec "true"\n  Port 2\n',
    "match all": "Host x\n  Port 1\nMatch all\n  Port 1001\n",
    "match final": "Match final\n  User ada\nMatch final host h.example\n Port 7\nHost h\n  HostName h.example\n",
    "the final pass": "Match final\n  AddressFamily inet\nHost h.example\n Port 7\nHost h\n  HostName h.example\n",
    "no other name in the final pass": "Match final host h\n  HostName other\n  Port 7\n",
    "match canonical": "CanonicalizeHostname yes\nMatch canonical\n  Port 7\nMatch !canonical\n User ada\n",
    "canonical fails": "CanonicalizeHostname yes\nCanonicalDomains nowhere.invalid\nHost h\n  Port 5\n",
    "proxy jump": "Host h\n  ProxyJump ada@b1:2022,[::1]:2023,b3\n  ProxyCommand nc %h %p\n",
    "proxy command": "Host h\n  ProxyCommand nc -X 5 '%h' %p # not a comment\n  ProxyJump b\n",
    "proxy jump none": "Host h\n  ProxyJump none\nHost *\n  ProxyJump b\n  ProxyCommand false\n",
    "proxy command none": "Host h\n  ProxyCommand none\nHost *\n  ProxyJump b\n",
    "keys": "Host h\n IdentityFile ~/a\n IdentityFile ~/%r\n IdentitiesOnly yes\nHost *\n IdentityFile ~/a\n",
    "no key": "IdentityFile none\nPubkeyAuthentication no\n",
    "certificates": "CertificateFile ~/.ssh/a-cert.pub\nCertificateFile /c\nIdentityAgent /run/agent\n",
    "known hosts": "UserKnownHostsFile /a /b\nGlobalKnownHostsFile none\nHashKnownHosts yes\nRevokedHostKeys /r\n",
    "alias": "Host h\n  HostKeyAlias k\n  AddressFamily inet6\n  ConnectTimeout 1m30\n  BindAddress 127.0.0.2\n",
    "quotes": 'Host "h" other\n  UserKnownHostsFile "/a b" /c\\ d "/e \\"f\\""\n  IdentityFile "/g h"\n',
    "strict": "HashKnownHosts no\nCiphers aes256-ctr\nMACs hmac-sha2-256\nKexAlgorithms curve25519-sha256\n",
    "unknown but ignored": "IgnoreUnknown Use*,Foo\nUseKeychain yes\nFoo bar baz\nPort 9\n",
    "set env": "SetEnv A=1\nSetEnv B=2\n",
    "capitals of hosts": "Host H\n  Port 2\nHost ?\n  User bob\nHost !H h\n  HostName up.example\n",
    "capitals in matches": "Match originalhost H\n  Port 2\nMatch host H user ROOT,Ada\n  ConnectTimeout 3\n",
    "carriage returns": "Host h\r\n  Port 12\r\n",
    "include": "Include DIR/*.conf\nPort 3\n",
    "include in a block": "Host h\n  Include DIR/20*.conf\n  Port 5\nHost other\n  Include DIR/10*.conf\n",
    "include ends its block": "Host h\n  Include DIR/nobody.conf\n  Port 5\n",
}
INCLUDED = {
    "10-a.conf": "Host h\n  User ada\n",
    "20-b.conf": "User bob\nPort 4\nInclude DIR/deep/*\n",
    "nobody.conf": "Host nobody\n  User eve\n",
    "deep/x": "ConnectTimeout 7\n",
}
NORMAL = {"yes": "true", "no": "false"}

pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="no ssh here to compare with")


def asked_of_ssh(path: Path, *words: str) -> dict[str, list[str]]:
    done = subprocess.run(
        ["ssh", "-G", "-F", str(path), *words, "h"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        if name in OPTIONS:
            found.setdefault(name, []).append(value)
    return found


def both(tmp_path: Path, text: str, *words: str, user: str = "", port: int | None = None) -> tuple[Any, Any]:
    """Return the meaning of a configuration by both readers; ssh's default stands for an option that is not set."""
    for name, inner in INCLUDED.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(inner.replace("DIR", str(tmp_path)))
    path, nothing = tmp_path / "config", tmp_path / "nothing"
    path.write_text(text.replace("DIR", str(tmp_path)), newline="")
    nothing.touch()
    expected, usual = asked_of_ssh(path, *words), asked_of_ssh(nothing, *words)
    ours = read(Asked("h", user, port), path, nothing)
    found = dict(usual)
    for name in OPTIONS:
        if values := ours.words(name):
            found[name] = [NORMAL.get(value, value) for value in values]
            if name not in ("identityfile", "certificatefile"):
                found[name] = [" ".join(values)]
    found["hostname"], expected["hostname"] = [ours.hostname], asked_hostname(path, *words)
    if seconds := ours.seconds("ConnectTimeout"):
        found["connecttimeout"] = [f"{seconds:g}"]
    for each in (found, expected):
        for name in ("hashknownhosts", "identitiesonly", "pubkeyauthentication", "canonicalizehostname"):
            each[name] = [NORMAL.get(value, value) for value in each.get(name, [])]
        for name in ("proxyjump", "proxycommand"):
            if each.get(name) == ["none"]:
                each.pop(name)
    return found, expected


def asked_hostname(path: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["ssh", "-G", "-F", str(path), *words, "h"], capture_output=True, text=True, check=True
    )
    return [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("hostname ")]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_means_what_it_means_to_ssh(name: str, tmp_path: Path) -> None:
    found, expected = both(tmp_path, CONFIGS[name])
    assert found == expected


def test_what_is_asked_for_comes_before_the_files(tmp_path: Path) -> None:
    text = "Match user eve\n  BindAddress ::1\nHost *\n  User ada\n  Port 9\n"
    found, expected = both(tmp_path, text, "-l", "eve", "-p", "77", user="eve", port=77)
    assert found == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Host h\n  KnownHostsCommand /bin/keys %H\n", "KnownHostsCommand is not supported here"),
        ("BindInterface eth0\n", "BindInterface is not supported here"),
        ("ProxyUseFdpass yes\n", "ProxyUseFdpass is not supported here"),
        ("Match localnetwork 10.0.0.0/8\n  Port 1\n", "Match localnetwork is not supported here"),
    ],
)
def test_what_would_change_the_connection_is_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"# a comment\n{text}")
    with pytest.raises(ValueError, match=named) as caught:
        read(Asked("h"), path, tmp_path / "none")
    assert f"{path} line " in str(caught.value) and 'transport = "openssh"' in str(caught.value)
    path.write_text(f"Host other\n{text.removeprefix('Host h')}")
    if not text.startswith("Match"):
        read(Asked("h"), path, tmp_path / "none")  # not for this host


def test_what_is_not_applied_is_noted_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "ForwardAgent yes\nLocalForward 8080 localhost:80\nSetEnv A=b\nRequestTTY no\nControlMaster auto\n"
        "IgnoreUnknown Mine\nMine x\nNotYetKnown 1\nForwardAgent no\nHost other\n  RemoteCommand tmux\n"
    )
    notes = read(Asked("h"), path, tmp_path / "none").notes
    assert notes == [
        f"pass over ForwardAgent yes ({path} line 1)",
        f"pass over LocalForward 8080 localhost:80 ({path} line 2)",
        f"pass over NotYetKnown 1 ({path} line 8)",
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Port ssh\n", "line 1: Port ssh: not a number"),
        ('\nUser "ada\n', "line 2: a quote is not closed"),
        ("IdentityFile\n", "line 1: IdentityFile has no value"),
        ("Match exec\n", "line 1: Match exec has no value"),
        ("Match weekday monday\n", "line 1: Match weekday is not supported"),
        ("Include DIR/config\n", "too many files include each other"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text.replace("DIR", str(tmp_path)))
    with pytest.raises(ValueError, match=wrong):
        read(Asked("h"), path, tmp_path / "none")


def test_a_command_of_match_does_not_run_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "EXEC", 0.05)
    path = tmp_path / "config"
    path.write_text('Match exec "exec sleep 60"\n  Port 1\n')
    with pytest.raises(ValueError, match="line 1: Match exec takes longer"):
        read(Asked("h"), path, tmp_path / "none")


def test_tokens_of_files_and_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("WORK", "/work")
    path = tmp_path / "config"
    path.write_text("Host h\n  HostName %h.example\n  Port 22022\n  User eve\n  ProxyJump x,ada@b\n")
    ours = read(Asked("h"), path, tmp_path / "none")
    assert ours.expand("~/%n/%h/%p/%r/%j/%i/%%", file=True) == (
        f"/home/ada/h/h.example/22022/eve/b/{os.getuid()}/%"
    )
    assert (
        ours.expand("${WORK}/%d/%k/%L", file=True)
        == f"/work//home/ada/h/{socket.gethostname().split('.')[0]}"
    )
    assert ours.expand("nc %h ${NOT}") == "nc h.example ${NOT}"
    for text, wrong in (("%x", "unknown token %x"), ("${NOT_THERE}", "there is no variable NOT_THERE")):
        with pytest.raises(ValueError, match=wrong):
            ours.expand(text, file=True)


class Resolver:
    """The names of a domain, and their aliases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
        self.names = names
        monkeypatch.setattr(canonical.socket, "getaddrinfo", self.found)

    def found(self, name: str, _port: object, **_: object) -> list[tuple[object, ...]]:
        key = name.replace(".", "_")
        if key not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(0, 0, 0, self.names[key], ())]


def test_a_short_name_becomes_canonical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Resolver(
        monkeypatch, h_b_example="h.b.example", www_b_example="h.cdn.example", c_b_example="x.evil.example"
    )
    path = tmp_path / "config"
    path.write_text(
        "CanonicalizeHostname yes\nCanonicalDomains a.example b.example\n"
        "CanonicalizePermittedCNAMEs *.b.example:*.cdn.example\n"
        "Host *.b.example\n  User ada\nMatch canonical host h.cdn.example\n  Port 7\nHost h\n  ConnectTimeout 3\n"
    )

    def found(name: str) -> tuple[str, str, int]:
        ours = read(Asked(name), path, tmp_path / "none")
        return ours.hostname, ours.get("User"), ours.port

    assert found("h") == ("h.b.example", "ada", 22)
    assert found("www") == ("h.cdn.example", "", 7)
    assert found("c") == ("c.b.example", "ada", 22)  # its alias is not permitted
    assert found("nobody") == ("nobody", "", 22)
    assert found("h.x.y") == ("h.x.y", "", 22)  # too many dots
    assert found("::1") == ("::1", "", 22)
    path.write_text(path.read_text() + "Host *\n  CanonicalizeFallbackLocal no\n")
    with pytest.raises(ValueError, match=r"nobody is in none of CanonicalDomains a\.example b\.example"):
        found("nobody")
    path.write_text("Host *\n  ProxyJump b\n" + path.read_text())
    assert found("nobody")[0] == "nobody"  # the jump host resolves it
    path.write_text(path.read_text().replace("Hostname yes", "Hostname always"))
    assert found("h")[0] == "h.b.example"
