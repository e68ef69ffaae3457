"""The check of a host key: the policy of ssh's configuration, the recorded keys, and the text of a refusal.

Laws
1. A recorded key must match; a changed or revoked one is refused whatever the configuration says. There is no switch.
2. An unknown key is refused under `yes` and `ask`, and recorded under `accept-new`, `no` and where nothing is
   configured. A key that cannot be recorded is refused: it would be a first contact for ever.
3. No library: keys are text here, "algorithm base64".
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from transport.carrier.dialer import SshTarget
from transport.carrier.ssh import known_hosts
from transport.errors import UnknownHostKey, Unreachable

USER_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_FILES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
HOST_KEYS = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)
KRL = b"SSHKRL\n\0"  # how a binary list of revoked keys begins


@dataclass(frozen=True)
class Policy:
    """ssh's configuration for the keys of one host. `strict` is "" if it is not set."""

    strict: str = ""  # yes, ask, accept-new, no
    user_files: tuple[Path, ...] = ()
    global_files: tuple[Path, ...] = ()
    hashes: bool = False
    revoked: Path | None = None


def strictness(value: object) -> str:
    """Return StrictHostKeyChecking as one of the words of `Policy`. Raises ValueError for another value."""
    words = {"yes": "yes", "true": "yes", "ask": "ask", "accept-new": "accept-new"}
    words |= {"no": "no", "false": "no", "off": "no", "": ""}
    found = words.get(str(value or "").lower())
    if found is None:
        raise ValueError(f"StrictHostKeyChecking {value}: unsupported option")
    return found


@dataclass
class HostKeys:
    """The keys of one target. `news` is for its user, after a first contact."""

    target: SshTarget
    host: str  # as recorded: the alias or the name
    port: int
    policy: Policy
    news: list[str] = field(default_factory=list)
    failure: Unreachable | None = None  # why the key is refused although the server has proved it
    _new: str = ""
    _unknown: str = ""
    _files: known_hosts.KnownHosts = field(init=False)
    found: list[known_hosts.Entry] = field(init=False)

    def __post_init__(self) -> None:
        """Read the files. Raises Unreachable."""
        try:
            self._files = known_hosts.KnownHosts([*self.policy.user_files, *self.policy.global_files])
            revoked = self._revoked()
        except OSError as error:
            detail = f"{error.filename} cannot be read: {(error.strerror or '').lower()}"
            raise self.target.unreachable(detail, f"mend {error.filename}") from None
        self.found = [*self._files.find(self.name), *revoked]

    @property
    def name(self) -> str:
        return known_hosts.name_of(self.host, self.port)

    def _revoked(self) -> list[known_hosts.Entry]:
        """Return the keys of RevokedHostKeys, which ssh refuses for every host."""
        path = self.policy.revoked
        if path is None:
            return []
        data = path.read_bytes()
        if data.startswith(KRL):
            detail = f"RevokedHostKeys {path} is a binary list, which cannot be read here"
            raise self.target.unreachable(detail, "write the revoked keys as text, one public key a line")
        lines = [
            (number, line.split())
            for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1)
        ]
        return [
            known_hosts.Entry("revoked", "*", f"{words[0]} {words[1]}", path, number)
            for number, words in lines
            if len(words) > 1 and not words[0].startswith("#")
        ]

    @property
    def known(self) -> bool:
        """Whether any key is recorded for this name and port; then no other one is acceptable."""
        return any(entry.marker != "revoked" for entry in self.found)

    def algorithms(self) -> list[str]:
        """Return the algorithms of the recorded keys first, as ssh does: the server shows a known one; then all others.

        asyncssh alone would offer only the recorded ones, and a key of another type would look like a lost connection.
        """
        known = [name for entry in self.found if entry.marker != "revoked" for name in _signatures(entry)]
        return list(dict.fromkeys([*known, *HOST_KEYS]))

    def acceptable(self, key: str) -> bool:
        """Return whether to go on with a key that is not among the trusted ones."""
        if self.known or any(entry.key == key for entry in self.found):
            return False
        if any(entry.key == key and not entry.marker for entry in self._files.find(self.host.lower())):
            return True  # known without its port, which ssh accepts too
        if self.policy.strict in ("yes", "ask"):
            self._unknown = key
            return False
        self._new = key
        return True

    def record(self) -> bool:
        """Record a first contact, after the server has proved the key. Return False if it is refused: see `failure`."""
        key, self._new = self._new, ""
        if not key:
            return True
        files, cure = self.policy.user_files, "name a file that can be written in UserKnownHostsFile"
        where = str(files[0]) if files else "UserKnownHostsFile none"
        try:
            if not files:
                raise OSError(0, "there is no such file")
            self._files.record(self.name, key, hashed=self.policy.hashes)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            detail = f"its host key ({fingerprint(key)}) cannot be recorded in {where}: {why}"
            self.failure = self.target.unreachable(detail, cure)
            return False
        if self.policy.strict != "accept-new":
            self.news.append(f"first contact: its host key ({fingerprint(key)}) is recorded in {where}")
        if self.policy.strict == "no":
            self.news.append("warning: StrictHostKeyChecking no is treated as accept-new")
        return True

    def refusal(self, detail: str) -> Unreachable:
        """Return the error for a key that is refused; `detail` is the library's message."""
        if self._unknown:
            return self._unknown_key(self._unknown)
        known = next((entry for entry in self.found if not entry.marker), None)
        if "revoked" in detail:
            known = None
            self.found.sort(key=lambda entry: entry.marker != "revoked")
        if known is None:
            where = next(
                (entry.path for entry in self.found),
                self.policy.user_files[0] if self.policy.user_files else "",
            )
            return self.target.unreachable(f"its host key is refused: {detail}", f"see {where}")
        detail = f"its host key has changed: not the one in {known.path} line {known.line}"
        cure = f"ssh-keygen -R '{self.name}' -f {known.path}"
        return self.target.unreachable(
            detail, f"if the host was reinstalled (check with its admin), run: {cure}"
        )

    def _unknown_key(self, key: str) -> Unreachable:
        strict, files = self.policy.strict, self.policy.user_files
        detail = f"its host key ({fingerprint(key)}) is not known, and StrictHostKeyChecking is {strict}"
        if strict == "ask" and files:
            hint = f"quine hosts check {self.target.name} asks on a terminal, and records it"

            def record() -> None:
                self._files.record(self.name, key, hashed=self.policy.hashes)

            return UnknownHostKey(self.target.name, detail, hint, record)
        where = files[0] if files else "known_hosts"
        return self.target.unreachable(
            detail, f"compare it with its admin's, and add this line to {where}: {self.name} {key}"
        )


def fingerprint(key: str) -> str:
    """Return `ED25519 SHA256:…`, as ssh shows it."""
    algorithm, _, data = key.partition(" ")
    digest = hashlib.sha256(base64.b64decode(data)).digest()
    kind = re.sub(r"^(ssh|ecdsa-sha2)-|-.*$", "", algorithm).upper()
    return f"{'ECDSA' if kind.startswith('NISTP') else kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def exposed(path: str) -> int:
    """Return the mode of `path` if it is a private key of ours that others can read, as ssh checks it; else 0."""
    facts = os.stat(path)
    mode = stat.S_IMODE(facts.st_mode)
    private = stat.S_ISREG(facts.st_mode) and not path.endswith(".pub") and facts.st_uid == os.getuid()
    return mode if private and mode & 0o077 else 0


def _signatures(entry: known_hosts.Entry) -> list[str]:
    """Return the names under which a recorded key, or an authority, may sign."""
    if entry.marker == "cert-authority":
        return [f"{name}-cert-v01@openssh.com" for name in HOST_KEYS]
    name = entry.key.split()[0]
    names = ["rsa-sha2-512", "rsa-sha2-256"] if name == "ssh-rsa" else [name]
    return [name for name in names if name in HOST_KEYS]
