"""The settings of one connection: the target's and those of ~/.ssh/config, its private keys, the policy for host keys.

Laws
1. Keys: the agent, the inventory, ~/.ssh/config, the usual files. A key that others can read is not used.
2. A refused login names the keys that were tried, and has a cure.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from transport import libraries
from transport.carrier.dialer import SshTarget
from transport.carrier.ssh.host_keys import GLOBAL_FILES, USER_FILES, Policy, exposed, strictness

with libraries.by_cache():
    import asyncssh
    from asyncssh.config import SSHClientConfig

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")

KEEPALIVE, KEEPALIVE_COUNT = 15, 3  # before a link listens, a pulled cable is noticed after 45 s
USUAL_KEYS = tuple(
    f"~/.ssh/{name}" for name in ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")
)
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com")


class Settings:
    """The settings of the target and of ~/.ssh/config together. Reads files: made in a thread."""

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        given: dict[str, Any] = {"host": target.address}
        if target.port is not None:
            given["port"] = target.port
        if target.user is not None:
            given["username"] = target.user
        try:
            self.policy = policy_for(target)
            first = asyncssh.SSHClientConnectionOptions(config=(), client_keys=None, known_hosts=b"", **given)
            self._config: Any = first.config
            self.options = asyncssh.SSHClientConnectionOptions(config=(), **given, **self._choices())
        except (ValueError, OSError, asyncssh.Error) as error:
            raise target.unreachable(
                f"cannot use its configuration: {message(error)}", "see ~/.ssh/config"
            ) from None
        alias = self.options.host_key_alias
        self.host_key_algorithms = bool(self._config.get("HostKeyAlgorithms"))
        self.host = (alias or self.options.host).lower()
        self.port = 22 if alias else self.options.port

    def proxy_jump(self) -> SshTarget | None:
        """Return the last hop of ProxyJump in ~/.ssh/config; each hop is checked as strictly as the target."""
        named = self._config.get("ProxyJump")
        if not isinstance(named, str):
            return None
        hop: SshTarget | None = None
        for text in named.split(","):
            user, _, place = text.strip().rpartition("@")
            host, colon, port = place.rpartition(":")
            if not colon or not port.isdigit():
                host, port = place, ""
            host = host.strip("[]")
            hop = SshTarget(
                host, host, user or None, int(port) if port else None, None, hop, self._target.agent
            )
        return hop

    def denied(self) -> tuple[str, str]:
        """Return detail and cure of a refused login, with the keys that were tried."""
        tried = [*self._tried, *(["the keys of the ssh agent"] if self._agent else [])]
        user, host, port = self.options.username, self.options.host, self.options.port
        detail = f"permission denied for {user}; tried {', '.join(tried) or 'no usable key'}"
        if expired := _expired(self.pairs):
            return detail, f"{expired}: have it signed anew"
        if self._cure:
            return detail, self._cure
        if not tried:
            return (
                detail,
                "set identity in its table of the inventory, or start an ssh agent and ssh-add a key",
            )
        key = self._tried[0] if self._tried else "KEY"
        return detail, f"is that the user? put a key over there: ssh-copy-id -i {key} -p {port} {user}@{host}"

    def _choices(self) -> dict[str, Any]:
        config = self._config
        self.pairs = pairs = self._load_keys()
        named = config.get("IdentityAgent", "SSH_AUTH_SOCK")
        self._agent = (self._target.agent or "") if named == "SSH_AUTH_SOCK" else str(named or "")
        return {
            "client_keys": pairs,
            "agent_path": self._agent or None,
            "agent_forwarding": False,
            "x11_forwarding": False,
            "compression_algs": None,
            "encryption_algs": () if config.get("Ciphers") else CIPHERS,
            "preferred_auth": ["publickey"],
            "gss_host": None,
            "known_hosts": b"",
            "keepalive_interval": KEEPALIVE,
            "keepalive_count_max": KEEPALIVE_COUNT,
            "connect_timeout": None,  # the one deadline is the caller's
        }

    def _load_keys(self) -> list[asyncssh.SSHKeyPair]:
        """Load the private keys to try. ssh skips an IdentityFile that is not there, asyncssh would give up."""
        target, self._tried, self._cure = self._target, list[str](), ""
        names: Sequence[str] = self._config.get("IdentityFile", ()) or USUAL_KEYS
        if target.identity is not None:
            names = [target.identity]
        pairs: list[asyncssh.SSHKeyPair] = []
        for name in names:
            try:
                path = str(Path(name).expanduser())
                if mode := exposed(path):
                    self._cure = (
                        f"{name} can be read by others (mode {mode:04o}) and is not used: chmod 600 {name}"
                    )
                    if target.identity is not None:
                        detail = f"the identity {name} can be read by others (mode {mode:04o})"
                        raise target.unreachable(detail, f"chmod 600 {name}")
                    continue
                pairs += asyncssh.load_keypairs(path)
                self._tried.append(name)
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                if not isinstance(error, FileNotFoundError):
                    self._cure = f"{name} cannot be read ({why}): look at its owner and mode"
                if target.identity is not None:
                    detail = f"the identity {name} cannot be read: {why}"
                    raise target.unreachable(
                        detail, "correct identity in its table of the inventory"
                    ) from None
            except (ValueError, asyncssh.Error):  # it has a passphrase: the agent may hold it
                self._cure = f"{name} has a passphrase or cannot be used: ssh-add {name}"
        return pairs


class _Config(SSHClientConfig):
    """~/.ssh/config and the system's, with the options that asyncssh does not read: the policy for host keys."""

    _percent_expand: set[str] = SSHClientConfig._percent_expand | {"UserKnownHostsFile"}
    _handlers: dict[str, tuple[str, Callable[..., None]]] = {  # noqa: RUF012
        **SSHClientConfig._handlers,
        "stricthostkeychecking": ("StrictHostKeyChecking", SSHClientConfig._set_string),
        "hashknownhosts": ("HashKnownHosts", SSHClientConfig._set_bool),
        "revokedhostkeys": ("RevokedHostKeys", SSHClientConfig._set_string),
    }


def policy_for(target: SshTarget) -> Policy:
    """Read ssh's configuration for the host keys of `target`. Raises ValueError, OSError."""
    paths = [path for path in (Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG) if path.is_file()]
    user, port = target.user or (), target.port or ()
    config = _Config.load(None, paths, False, False, False, getpass.getuser(), user, target.address, port)

    def files(option: str, default: tuple[str, ...]) -> tuple[Path, ...]:
        named = config.get(option)
        return tuple(Path(name).expanduser() for name in (default if named is None else cast(Any, named)))

    revoked = config.get("RevokedHostKeys")
    return Policy(
        strictness(config.get("StrictHostKeyChecking")),
        files("UserKnownHostsFile", USER_FILES),
        files("GlobalKnownHostsFile", GLOBAL_FILES),
        bool(config.get("HashKnownHosts")),
        Path(str(revoked)).expanduser() if revoked else None,
    )


def _expired(pairs: Sequence[asyncssh.SSHKeyPair]) -> str:
    """Return the reason why a certificate among `pairs` is not valid now; "" if all are."""
    for pair in pairs:
        certificate: Any = getattr(pair, "_cert", None)
        try:
            if certificate is not None and not pair.has_x509_chain:
                certificate.validate(asyncssh.public_key.CERT_TYPE_USER, None)
        except ValueError as error:
            return message(error)
    return ""


def message(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
