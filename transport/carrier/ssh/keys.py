"""The private keys that are offered to one host, in the order in which ssh offers them.

Laws
1. First the agent's keys that a file names, then its other ones (not with IdentitiesOnly), then the files.
2. Nobody is asked here. A key with a passphrase is used if the agent holds it, or if it was unlocked in this process;
   otherwise a refused login is a `LockedKey`, and its caller may ask on a terminal.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence

from transport.carrier.dialer import SshTarget
from transport.carrier.ssh import asyncssh_imports
from transport.carrier.ssh.config import Config
from transport.carrier.ssh.host_keys import exposed
from transport.errors import LockedKey
from transport.lean import Any

with asyncssh_imports.quickly():
    import asyncssh

USUAL_KEYS = tuple(
    f"~/.ssh/{name}" for name in ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
)
AGENT = "the keys of the ssh agent"
_unlocked: dict[str, asyncssh.SSHKey] = {}  # by path, for as long as this process lives


class Keys:
    """The keys that may be offered. `tried` names them for messages, `cure` says why something could not be offered."""

    def __init__(self, target: SshTarget, config: Config) -> None:
        self.tried: list[str] = []
        self.absent: list[str] = []  # files that the configuration names
        self.cure = ""
        self._target, self._config = target, config
        self._pairs: list[asyncssh.SSHKeyPair] = []
        self._public: list[bytes] = []  # of the files, in their order, whether or not they can be read
        self._locked: list[str] = []
        self._only = config.yes("IdentitiesOnly")
        self._certificates: list[Any] = []
        self.agent = self._agent()
        if config.get("PubkeyAuthentication").lower() in ("no", "false"):
            self.cure = "PubkeyAuthentication is no in ~/.ssh/config, and only public keys are used here"
            self.agent = ""
            return
        self._certificates = self._load_certificates()
        for name in self._names():
            self._load(name)

    def _agent(self) -> str:
        named = self._config.get("IdentityAgent")
        if named in ("", "SSH_AUTH_SOCK"):
            return self._target.agent or ""
        if named.lower() == "none":
            return ""
        if named.startswith("$") and not named.startswith("${"):
            return os.environ.get(named[1:], "")
        return self._config.expand(named, file=True)

    def _names(self) -> Sequence[str]:
        if self._target.identity is not None:
            return [self._target.identity]
        named = self._config.words("IdentityFile")
        return [name for name in named if name.lower() != "none"] if named else USUAL_KEYS

    def _load_certificates(self) -> list[Any]:
        found: list[Any] = []
        for name in self._config.words("CertificateFile"):
            path = self._config.expand(name, file=True)
            try:
                loaded = asyncssh.load_certificates(path)
                if not loaded:
                    raise ValueError("there is none in it")
                found += loaded
            except (OSError, ValueError, asyncssh.Error) as error:
                self.cure = f"the certificate {name} cannot be used: {message(error)}"
        return found

    def _load(self, name: str) -> None:
        """Load one file. ssh skips one that is not there."""
        target = self._target
        given = target.identity is not None
        path = os.path.expanduser(name) if given else self._config.expand(name, file=True)
        try:
            self._note_public(path)
            if mode := exposed(path):
                self.cure = (
                    f"{name} can be read by others (mode {mode:04o}) and is not used: chmod 600 {name}"
                )
                if given:
                    detail = f"the identity {name} can be read by others (mode {mode:04o})"
                    raise target.unreachable(detail, f"chmod 600 {name}")
                return
            key: Any = _unlocked.get(path, path)
            self._pairs += asyncssh.load_keypairs([key], certlist=self._certificates)
            self.tried.append(name)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            if isinstance(error, FileNotFoundError):
                if self._config.words("IdentityFile"):  # nobody has named the usual ones
                    self.absent.append(name)
            else:
                self.cure = f"{name} cannot be read ({why}): look at its owner and mode"
            if given:
                detail = f"the identity {name} cannot be read: {why}"
                raise target.unreachable(detail, "correct identity in its table of the inventory") from None
        except (ValueError, asyncssh.Error) as error:
            if "assphrase" in str(error):
                self._locked.append(name)
            elif not path.endswith(".pub") and not _is_public(path):
                self.cure = f"{name} cannot be used: {message(error)}"

    def _note_public(self, path: str) -> None:
        """Remember the public half of a file, in the clear also with a passphrase: the agent may hold the other."""
        for beside in (path, f"{path}.pub"):
            try:
                self._public.append(asyncssh.read_public_key(beside).public_data)
                return
            except (OSError, ValueError, asyncssh.Error):
                continue
        self._public.append(b"")

    def offered(self, agents: Sequence[asyncssh.SSHKeyPair]) -> list[asyncssh.SSHKeyPair]:
        """Return all that is offered, given the agent's keys."""
        wanted = {data: place for place, data in reversed(list(enumerate(self._public))) if data}
        wanted.update({certificate.public_data: -1 for certificate in self._certificates})
        named = sorted(
            (pair for pair in agents if pair.public_data in wanted), key=lambda pair: wanted[pair.public_data]
        )
        certified = []
        for certificate in self._certificates:
            for pair in agents:
                if pair.public_data == certificate.key.public_data:
                    with_it = copy.copy(pair)
                    with_it.set_certificate(certificate)
                    certified.append(with_it)
        others = [] if self._only else [pair for pair in agents if pair.public_data not in wanted]
        from_agent = [*certified, *named, *others]
        if from_agent and AGENT not in self.tried:
            self.tried.append(AGENT)
        there = {pair.public_data for pair in from_agent}
        found = [*from_agent, *(pair for pair in self._pairs if pair.public_data not in there)]
        self._find_expired(found)
        return found

    def _find_expired(self, pairs: Sequence[asyncssh.SSHKeyPair]) -> None:
        """Name a certificate that is not valid now as the cure."""
        for pair in pairs:
            certificate: Any = getattr(pair, "_cert", None)
            try:
                if certificate is not None and not pair.has_x509_chain:
                    certificate.validate(asyncssh.public_key.CERT_TYPE_USER, None)
            except ValueError as error:
                self.cure = f"{message(error)}: have it signed anew"

    def locked_error(self, detail: str) -> LockedKey | None:
        """Return the error of a refused login if a key with a passphrase was left out."""
        if not self._locked:
            return None
        name = self._locked[0]
        path = os.path.expanduser(name) if self._target.identity else self._config.expand(name, file=True)

        def unlock(passphrase: str) -> bool:
            try:
                _unlocked[path] = asyncssh.read_private_key(path, passphrase)
            except (OSError, ValueError, asyncssh.Error):
                return False
            return True

        hint = f"{'ssh-add' if self.agent else 'start an ssh agent, and ssh-add'} {name}"
        return LockedKey(self._target.name, f"{detail}; {name} has a passphrase", hint, name, unlock)


def _is_public(path: str) -> bool:
    try:
        asyncssh.read_public_key(path)
    except (OSError, ValueError, asyncssh.Error):
        return False
    return True


def message(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]  # SSH stays
