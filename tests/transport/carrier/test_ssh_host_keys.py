"""Host keys are accepted as ssh's own configuration says, against real sshd; and private keys that others can read."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.lab.lab import SSH_CONFIG
from tests.support.waiting import read_until
from transport.carrier.dialer import SshTarget
from transport.carrier.ssh import settings
from transport.carrier.ssh.host_keys import HostKeys, Policy, exposed, fingerprint, strictness
from transport.carrier.ssh.known_hosts import KnownHosts
from transport.errors import Unreachable

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBp6ndiISvbBCiCCZujMNBiRrjOxSSfqlBl3f69wp82i"
OTHER = KEY[:-1] + "j"


class Stranger:
    """h1 of a lab, before anybody has met it, and the ssh configuration of its origin."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ssh = lab.home / ".ssh"
        self.known = self.ssh / "known_hosts"
        self.name = f"[127.0.0.1]:{lab['h1'].port}"
        self.key = " ".join(Path(f"{lab['h1'].key}.pub").read_text().split()[:2])
        self.known.unlink(missing_ok=True)

    def configure(self, *lines: str, hashes: str = "no") -> None:
        (self.ssh / "config").write_text(
            "".join(f"{line}\n" for line in (*lines, f"HashKnownHosts {hashes}"))
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """A command by way of a new link: the node here is ended first, a link that stands asks for no key."""
        self.lab.run(["node", "--stop", "--force"])
        return self.lab.run(words or ["run", "--on", "h1", "--", "true"])

    def recorded(self, *paths: Path) -> list[str]:
        return [entry.key for entry in KnownHosts(paths or [self.known]).find(self.name)]


@pytest.fixture
def stranger(lab: Lab) -> Iterator[Stranger]:
    if not lab["h1"].real:
        pytest.skip("needs sshd")
    yield Stranger(lab)
    lab.run(["node", "--stop", "--force"])
    (lab.home / ".ssh" / "config").write_text(SSH_CONFIG)
    (lab.home / ".ssh" / "known_hosts").unlink(missing_ok=True)


@pytest.mark.long
def test_where_nothing_is_said_a_first_contact_is_recorded_and_its_fingerprint_printed(
    stranger: Stranger,
) -> None:
    stranger.configure()
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", f"{stranger.lab['h1'].key}.pub"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[1]
    first, second = stranger.run(), stranger.run()
    said = f"quine: h1: first contact: its host key (ED25519 {listed}) is recorded in {stranger.known}\n"
    assert (first.returncode, first.stderr.decode()) == (0, said)
    assert (second.returncode, second.stderr) == (0, b"")
    assert stranger.recorded() == [stranger.key]
    stranger.known.unlink()
    checked = stranger.run("hosts", "check", "h1")
    assert (checked.returncode, checked.stderr.decode()) == (0, said)


@pytest.mark.long
def test_accept_new_records_without_a_word(stranger: Stranger) -> None:
    stranger.configure("StrictHostKeyChecking accept-new")
    done = stranger.run()
    assert (done.returncode, done.stderr, stranger.recorded()) == (0, b"", [stranger.key])


@pytest.mark.long
def test_no_is_accept_new_and_said_so(stranger: Stranger) -> None:
    stranger.configure("Host *", "  StrictHostKeyChecking off")
    done = stranger.run()
    assert done.returncode == 0 and stranger.recorded() == [stranger.key]
    assert b"warning: StrictHostKeyChecking no is treated as accept-new" in done.stderr
    stranger.known.write_text(f"{stranger.name} {OTHER}\n")
    done = stranger.run()
    assert done.returncode == 69 and b"its host key has changed" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("word", ["yes", "true", "YES"])
def test_yes_takes_no_key_that_is_not_recorded(stranger: Stranger, word: str) -> None:
    stranger.configure(f"StrictHostKeyChecking {word}")
    done = stranger.run()
    text = done.stderr.decode()
    assert (done.returncode, stranger.recorded()) == (69, [])
    assert "is not known, and StrictHostKeyChecking is yes" in text and fingerprint(stranger.key) in text
    line = text.partition(f"add this line to {stranger.known}: ")[2].splitlines()[0]
    stranger.known.write_text(f"{line}\n")
    done = stranger.run()
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.long
def test_ask_without_a_terminal_refuses(stranger: Stranger) -> None:
    stranger.configure("StrictHostKeyChecking ask")
    done = stranger.run()
    assert (done.returncode, stranger.recorded()) == (69, [])
    assert b"hint: quine hosts check h1 asks on a terminal" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(("answer", "status"), [(b"no\n", 69), (b"yes\n", 0)])
def test_ask_on_a_terminal_asks(stranger: Stranger, answer: bytes, status: int) -> None:
    stranger.configure("StrictHostKeyChecking ask")
    ours, theirs = pty.openpty()
    words = ["setsid", "--ctty", "--wait", stranger.lab.quine, "hosts", "check", "h1"]
    env = stranger.lab.overlaid(None)
    process = subprocess.Popen(
        words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=stranger.lab.work
    )
    os.close(theirs)
    asked = read_until(ours, b"(yes/no)? ").decode()
    assert fingerprint(stranger.key) in asked
    os.write(ours, answer)
    process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == status
    assert stranger.recorded() == ([] if status else [stranger.key])


@pytest.mark.long
def test_files_are_those_that_the_configuration_names(stranger: Stranger, tmp_path: Path) -> None:
    first, second = tmp_path / "first file", tmp_path / "second"
    stranger.configure(f'UserKnownHostsFile "{first}" {second}', "StrictHostKeyChecking accept-new")
    second.write_text("")
    assert stranger.run().returncode == 0
    assert (stranger.recorded(first), stranger.recorded(second), stranger.recorded()) == (
        [stranger.key],
        [],
        [],
    )
    first.rename(second)
    stranger.configure(f'UserKnownHostsFile "{first}" {second}', "StrictHostKeyChecking yes")
    assert stranger.run().returncode == 0 and not first.exists()
    shared = tmp_path / "shared"
    second.rename(shared)
    stranger.configure(f"GlobalKnownHostsFile {shared}", "StrictHostKeyChecking yes")
    assert stranger.run().returncode == 0
    shared.write_text(f"{stranger.name} {OTHER}\n")
    assert b"its host key has changed" in stranger.run().stderr


@pytest.mark.long
@pytest.mark.parametrize("where", ["/dev/null", "none", "{tmp}/a/file/below", "{tmp}"])
@pytest.mark.parametrize("strict", ["", "StrictHostKeyChecking no"])
def test_a_contact_that_cannot_be_recorded_is_refused(
    stranger: Stranger, tmp_path: Path, where: str, strict: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("")
    stranger.configure(f"UserKnownHostsFile {where.format(tmp=tmp_path)}", *filter(None, [strict]))
    done = stranger.run()
    text = done.stderr.decode()
    assert done.returncode == 69
    assert "cannot be recorded in" in text or "cannot be read: is a directory" in text
    assert "quine: h1: hint: " in text
    assert stranger.recorded() == []


@pytest.mark.long
def test_names_are_hashed_where_the_configuration_says_so(stranger: Stranger) -> None:
    stranger.configure("StrictHostKeyChecking accept-new", hashes="yes")
    for _ in range(2):
        assert stranger.run().returncode == 0
    (line,) = stranger.known.read_text().splitlines()
    assert line.startswith("|1|") and "127.0.0.1" not in line and stranger.recorded() == [stranger.key]
    subprocess.run(
        ["ssh-keygen", "-F", stranger.name, "-f", str(stranger.known)], check=True, capture_output=True
    )


@pytest.mark.long
def test_a_key_of_revoked_host_keys_is_refused(stranger: Stranger, tmp_path: Path) -> None:
    revoked = tmp_path / "revoked"
    revoked.write_text(f"# bad ones\n{stranger.key} comment\n")
    stranger.known.write_text(f"{stranger.name} {stranger.key}\n")
    stranger.configure(f"RevokedHostKeys {revoked}")
    done = stranger.run()
    assert done.returncode == 69 and b"its host key is refused" in done.stderr
    stranger.known.unlink()
    assert stranger.run().returncode == 69 and stranger.recorded() == []
    revoked.write_bytes(b"SSHKRL\n\0")
    assert b"binary list" in stranger.run().stderr
    revoked.unlink()
    assert b"revoked cannot be read" in stranger.run().stderr
    revoked.write_text(f"{OTHER}\n")
    assert stranger.run().returncode == 0


def test_the_systems_configuration_stands_behind_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    system = tmp_path / "ssh_config"
    monkeypatch.setattr(settings, "SYSTEM_CONFIG", system)
    system.write_text(
        "Host *\n  StrictHostKeyChecking yes\n  HashKnownHosts yes\n  Ciphers what-nobody-knows\n"
        "Match host b\n  UserKnownHostsFile ~/of-%h\n"
    )
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host a\n  StrictHostKeyChecking=accept-new\n")
    one, two = (settings.policy_for(SshTarget(name, name)) for name in "ab")
    assert (one.strict, two.strict, one.hashes, two.hashes) == ("accept-new", "yes", True, True)
    assert one.user_files[0] == tmp_path / ".ssh" / "known_hosts"
    assert two.user_files == (tmp_path / "of-b",)
    system.write_text("StrictHostKeyChecking maybe\n")
    with pytest.raises(ValueError, match="maybe: unsupported option"):
        settings.policy_for(SshTarget("b", "b"))


def test_words_of_the_policy() -> None:
    assert [strictness(word) for word in (None, "Yes", "TRUE", "off", "False", "Accept-New", "ask")] == [
        *("", "yes", "yes", "no", "no", "accept-new", "ask")
    ]


def test_a_known_key_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"[h]:2222 {KEY}\n")
    for strict in ("", "yes", "ask", "accept-new", "no"):
        keys = HostKeys(SshTarget("h", "h"), "h", 2222, Policy(strict, (path,)))
        assert not keys.acceptable(OTHER) and keys.record()
        refusal = keys.refusal("x")
        assert isinstance(refusal, Unreachable) and "its host key has changed" in refusal.detail
        assert refusal.hint == (
            f"if the host was reinstalled (check with its admin), run: ssh-keygen -R '[h]:2222' -f {path}"
        )
    assert path.read_text() == f"[h]:2222 {KEY}\n"


# -- private keys ----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_private_key_that_others_can_read_is_not_used(lab: Lab, tmp_path: Path) -> None:
    key = tmp_path / "id"
    key.write_bytes(lab.identity.read_bytes())
    key.chmod(0o644)
    lab.alias("open", "h1", identity=str(key))
    done = lab.run(["hosts", "check", "open"])
    assert done.returncode == 69
    assert f"the identity {key} can be read by others (mode 0644)".encode() in done.stderr
    assert f"hint: chmod 600 {key}".encode() in done.stderr
    key.chmod(0o600)
    assert lab.run(["hosts", "check", "open"]).returncode == 0
    usual = lab.home / ".ssh" / "id_ed25519"
    usual.write_bytes(lab.identity.read_bytes())
    try:
        usual.chmod(0o640)
        lab.alias("usual", "h1", identity=None)
        text = lab.run(["hosts", "check", "usual"]).stderr.decode()
        assert "tried no usable key" in text
        assert "~/.ssh/id_ed25519 can be read by others (mode 0640) and is not used: chmod 600" in text
    finally:
        usual.unlink()


def test_only_private_keys_of_ours_are_held_to_that(tmp_path: Path) -> None:
    for name, mode, found in (("a", 0o644, 0o644), ("a.pub", 0o644, 0), ("b", 0o600, 0), ("c", 0o400, 0)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
        assert exposed(str(tmp_path / name)) == found
    assert exposed("/etc/passwd") == (0o644 if not os.getuid() else 0)


@pytest.mark.long
def test_an_expired_certificate_is_said_to_be_expired(lab: Lab, tmp_path: Path) -> None:
    for name in ("ca", "id"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    sign = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "x", "-n", "x", "-V", "20200101:20200102"]
    subprocess.run([*sign, str(tmp_path / "id.pub")], check=True)
    lab.alias("late", "h1", identity=str(tmp_path / "id"))
    text = lab.run(["hosts", "check", "late"]).stderr.decode()
    assert "permission denied" in text and "hint: certificate expired: have it signed anew" in text
