"""The settings of one connection: the target's and those of ~/.ssh/config, its private keys, the policy for host keys.

Laws
1. Keys: those of the agent, the inventory's, those of ~/.ssh/config, the usual files; `keys.py` says in which order. A
   key that others can read is not used.
2. A refused login names the keys that were tried, and has a cure.
3. asyncssh reads no configuration: all it uses is given here.
"""

from __future__ import annotations

import fnmatch
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from transport.carrier.dialer import SshTarget
from transport.carrier.ssh import asyncssh_imports
from transport.carrier.ssh.config import SYSTEM_CONFIG, Asked, Config, hop, read
from transport.carrier.ssh.directives import OTHER_LOGINS
from transport.carrier.ssh.host_keys import GLOBAL_FILES, USER_FILES, Policy, strictness
from transport.carrier.ssh.keys import AGENT, Keys, message
from transport.inherit import scrubbed
from transport.provenance.safe_path import Unsafe

with asyncssh_imports.quickly():
    import asyncssh

KEEPALIVE, KEEPALIVE_COUNT = 15, 3  # before a link listens, a pulled cable is noticed after 45 s
GCM = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
COUNTERS = (
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)  # last, with the MACs of asyncssh: slow, but some have no other
CIPHERS = (*GCM, "chacha20-poly1305@openssh.com", *COUNTERS)
FAMILIES = {"": socket.AF_UNSPEC, "any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
ALGORITHMS = ("Ciphers", "KexAlgorithms", "MACs", "HostKeyAlgorithms", "CASignatureAlgorithms")


class Settings:
    """The settings of the target and of ~/.ssh/config together. Reads files: made in a thread."""

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        try:
            self._config = config = configuration(target)
            self.policy = _policy(config)
            self.family = FAMILIES[config.get("AddressFamily").lower()]
            self.connect_timeout = config.seconds("ConnectTimeout")
            self.keys = Keys(target, config)
            self.hop = target.jump or self._proxy_jump()
            self.proxy_command = self._proxy_command() if self.hop is None else ""
            self.options = self._options()
        except (ValueError, OSError, asyncssh.Error) as error:
            hint = error.hint if isinstance(error, Unsafe) else "see ~/.ssh/config"
            raise target.unreachable(f"cannot use its configuration: {message(error)}", hint) from None
        except KeyError as error:
            detail = f"cannot use its configuration: AddressFamily {error.args[0]}: unsupported"
            raise target.unreachable(detail, "see ~/.ssh/config") from None
        self.address, self.port = config.hostname, config.port
        self.source = config.get("BindAddress")
        self.notes = config.notes
        self.host_key_algorithms = bool(config.get("HostKeyAlgorithms"))
        self.known_as = config.known_as
        self.known_port = 22 if config.get("HostKeyAlias") else config.port

    @property
    def place(self) -> str:
        """Return the host to which this is a handshake, whatever names lead to it."""
        return f"{self.address}:{self.port}"

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that SendEnv takes from `environ` and that SetEnv sets, as ssh sends them.

        Those that look like secrets are none of `environ`, whatever SendEnv says. Raises Unreachable.
        """
        patterns: list[str] = []
        for word in self._config.words("SendEnv"):
            if word.startswith("-"):
                patterns = [each for each in patterns if not _fits(each, [word[1:]])]
            else:
                patterns.append(word)
        sent = {name: text for name, text in scrubbed(environ).items() if _fits(name, patterns)}
        for word in self._config.words("SetEnv"):
            name, given, text = word.partition("=")
            if not (given and name):
                detail = f"cannot use its configuration: SetEnv {word}: should be NAME=VALUE"
                raise self.target.unreachable(detail, "see ~/.ssh/config")
            sent[name] = text
        return sent

    def denied(self, detail: str = "") -> Exception:
        """Return the error of a refused login, with the keys that were tried and the cure."""
        config, keys = self._config, self.keys
        where = f"permission denied for {config.user}" + (f" ({detail})" if detail else "")
        none = f"{AGENT}, and found none" if keys.agent and not keys.cure else "no usable key"
        detail = f"{where}; tried {', '.join(keys.tried) or none}"
        if keys.absent:
            detail = f"{detail}; there is no {', '.join(keys.absent)}"
        if locked := keys.locked_error(detail):
            return locked
        return self.target.unreachable(detail, self._cure(detail))

    def _cure(self, detail: str) -> str:
        config, keys = self._config, self.keys
        if keys.cure:
            return keys.cure
        if "too many" in detail:
            return "name the key in IdentityFile, and set IdentitiesOnly yes for the host in ~/.ssh/config"
        others = [
            name for name in OTHER_LOGINS if config.get(name).lower() not in ("", "no", "none", "internal")
        ]
        wanted = config.get("PreferredAuthentications").lower()
        if wanted and "publickey" not in wanted:
            others.insert(0, f"PreferredAuthentications {wanted}")
        if others:
            return f'only public keys are used here; for {others[0]} set transport = "openssh" in its table'
        if keys.absent and not keys.tried:
            return f"correct IdentityFile in ~/.ssh/config, or make the key: ssh-keygen -f {keys.absent[0]}"
        if not keys.tried:
            gssapi = ' (GSSAPI needs transport = "openssh")' if config.yes("GSSAPIAuthentication") else ""
            return (
                f"set identity in its table of the inventory, or start an ssh agent and ssh-add a key{gssapi}"
            )
        user, port, host = config.user, config.port, config.hostname
        return (
            f"is that the user? put a key over there: ssh-copy-id -i {keys.tried[0]} -p {port} {user}@{host}"
        )

    def _proxy_jump(self) -> SshTarget | None:
        """Return the last hop of ProxyJump in ~/.ssh/config; each hop is checked as strictly as the target."""
        config = self._config
        named = config.get("ProxyJump")
        if named.lower() in ("", "none"):
            return None
        before: SshTarget | None = None
        try:
            for text in config.expand(named).split(","):
                at = hop(text)
                before = SshTarget(
                    at.host, at.host, at.user or None, at.port, None, before, self.target.agent
                )
        except ValueError as error:
            raise ValueError(f"ProxyJump {named}: {error}") from None
        return before

    def _proxy_command(self) -> str:
        command = self._config.get("ProxyCommand")
        return "" if command.lower() == "none" else self._config.expand(command)

    def _options(self) -> asyncssh.SSHClientConnectionOptions:
        config = self._config
        with _AlgorithmFile(config) as path:
            return asyncssh.SSHClientConnectionOptions(
                config=path,
                host=config.hostname,
                port=config.port,
                username=config.user,
                client_keys=None,
                client_certs=(),
                agent_path=None,
                agent_forwarding=False,
                x11_forwarding=False,
                compression_algs=None,
                encryption_algs=() if config.get("Ciphers") else CIPHERS,
                preferred_auth=["publickey"],
                gss_host=None,
                known_hosts=b"",
                host_key_alias=config.get("HostKeyAlias") or None,
                keepalive_interval=KEEPALIVE,
                keepalive_count_max=KEEPALIVE_COUNT,
                connect_timeout=None,  # `connect.py` keeps it
                utf8_decode_errors="replace",  # of banners, debug messages and reasons: anybody's text
            )


def _fits(name: str, patterns: Sequence[str]) -> bool:
    """Return whether one of some patterns, of * and ? alone, means the name of a variable."""
    return any(fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


class _AlgorithmFile:
    """The lists of algorithms as a file: only there does asyncssh take names that it does not know."""

    def __init__(self, config: Config) -> None:
        self._lines = [f"{name} {config.get(name)}\n" for name in ALGORITHMS if config.get(name)]

    def __enter__(self) -> str | None:
        if not self._lines:
            return None
        self._fd = os.memfd_create("algorithms", os.MFD_CLOEXEC)
        os.write(self._fd, "".join(self._lines).encode())
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        if self._lines:
            os.close(self._fd)


def configuration(target: SshTarget) -> Config:
    """Read ssh's configuration for `target`. Raises ValueError, OSError."""
    asked = Asked(re.sub(r"^\[(.*)\]$", r"\1", target.address), target.user or "", target.port)
    return read(asked, Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG)


def policy_for(target: SshTarget) -> Policy:
    """Return the policy for the host keys of `target`. Raises ValueError, OSError."""
    return _policy(configuration(target))


def _policy(config: Config) -> Policy:
    def files(option: str, default: Sequence[str]) -> tuple[Path, ...]:
        named = config.words(option) or default
        return tuple(Path(config.expand(name, file=True)) for name in named if name.lower() != "none")

    revoked = config.get("RevokedHostKeys")
    return Policy(
        strictness(config.get("StrictHostKeyChecking")),
        files("UserKnownHostsFile", USER_FILES),
        files("GlobalKnownHostsFile", GLOBAL_FILES),
        config.yes("HashKnownHosts"),
        Path(config.expand(revoked, file=True)) if revoked and revoked.lower() != "none" else None,
    )
