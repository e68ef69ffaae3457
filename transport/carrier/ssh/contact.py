"""One ssh handshake as it is watched: its steps, the server's words before its version, the check of the host key."""

from __future__ import annotations

import contextlib

from transport.carrier.dialer import Note, SshTarget
from transport.carrier.ssh import asyncssh_imports
from transport.carrier.ssh.host_keys import HostKeys
from transport.carrier.ssh.proxy_command import ProxyCommand
from transport.carrier.timeouts import Timeout
from transport.lean import Any
from transport.text import harmless

with asyncssh_imports.quickly():
    import asyncssh

HEARD = 500  # bytes kept of the lines before a version


class ServerKeys(HostKeys):
    """`HostKeys` with asyncssh's types."""

    def trusted(self, _host: str, _addr: str, _port: int | None) -> tuple[list[asyncssh.SSHKey], ...]:
        """Return trusted keys, trusted authorities and revoked keys; called by asyncssh."""
        lists: dict[str, list[asyncssh.SSHKey]] = {"": [], "cert-authority": [], "revoked": []}
        for entry in self.found:
            with contextlib.suppress(ValueError):  # an unknown type of key, or a torn line
                lists[entry.marker].append(asyncssh.import_public_key(entry.key))
        return tuple(lists.values())


def version_step(target: SshTarget) -> str:
    return f"hear the ssh version of {target.name}"


def _described(pair: asyncssh.SSHKeyPair) -> str:
    """Return the algorithm of a key, and its comment or file."""
    name = (pair.get_comment_bytes() or b"without a comment").decode(errors="replace")
    return f"{pair.get_algorithm()} {harmless(name, instead='?')}"


class Contact(asyncssh.SSHClient):
    """Watches one handshake: its steps, and the decision about an unknown host key."""

    def __init__(self, keys: ServerKeys, note: Note, keyless: bool) -> None:
        self._keys = keys
        self._keyless = keyless
        self._note = note
        self.connection: asyncssh.SSHClientConnection | None = None
        self.clock: Timeout | None = None  # of ConnectTimeout, which ends where the login begins
        self.proxy: ProxyCommand | None = None
        self.disagreed = ""  # the reason why there is no common algorithm
        self._before = b""

    @property
    def greeted(self) -> bool:
        """Whether the server has sent its version, as an sshd does."""
        return self.connection is not None and bool(self.connection.get_extra_info("server_version"))

    @property
    def heard(self) -> str:
        """The line that the server sent in place of its version, for a message."""
        lines = self._before.decode("utf-8", "replace").splitlines()
        return harmless((lines or [""])[-1], instead="?")[:100].lower()

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.connection = conn
        self._watch(conn)
        receive = conn.data_received

        def listen(data: bytes, datatype: int | None = None) -> None:
            self._before += data[:HEARD]
            if b"SSH-" in self._before or len(self._before) >= HEARD:
                vars(conn).pop("data_received", None)
            receive(data, datatype)

        conn.data_received = listen  # type: ignore[method-assign]
        if self._keyless:
            # asyncssh takes an empty list for none: it would load the usual files, and check no mode of theirs
            vars(conn)["_client_keys"] = []

    def _watch(self, connection: asyncssh.SSHClientConnection) -> None:
        """Note the server's version, offered keys and a lack of algorithms: asyncssh calls no method of ours then."""
        told, asked, target, note = (
            connection.set_extra_info,
            connection.public_key_auth_requested,
            self._keys.target,
            self._note,
        )

        def tell(**facts: Any) -> None:
            told(**facts)
            if version := facts.get("server_version"):
                note(version_step(target), harmless(str(version), instead="?"))
                note(f"exchange keys with {target.name}")

        async def ask() -> asyncssh.SSHKeyPair | None:
            if pair := await asked():
                note(f"authenticate to {target.name}", f"offers {_described(pair)}")
            return pair

        choose = connection._choose_alg

        def chosen(*lists: Any) -> bytes:
            # asyncssh loses this error if the server, which finds the same, hangs up in the same turn of the loop
            try:
                return choose(*lists)
            except asyncssh.KeyExchangeFailed as error:
                self.disagreed = str(error)
                raise

        connection._choose_alg = chosen  # type: ignore[assignment, method-assign]
        connection.set_extra_info = tell  # type: ignore[method-assign]
        connection.public_key_auth_requested = ask  # type: ignore[method-assign]
        note(version_step(target))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.proxy:
            self.proxy.end()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        return self._keys.acceptable(" ".join(key.export_public_key("openssh").decode().split()[:2]))

    def begin_auth(self, username: str) -> None:
        # Only here has the server proved that the key is its own
        if self.clock:
            self.clock.reschedule(None)
        if self._keys.record():
            if self.connection and (key := self.connection.get_server_host_key()):
                cipher = self.connection.get_extra_info("send_cipher")
                self._note(
                    f"exchange keys with {self._keys.target.name}",
                    f"{key.get_algorithm()} {key.get_fingerprint()}, {cipher}",
                )
            self._note(f"authenticate to {self._keys.target.name}")
        elif self.connection:
            self.connection.abort()
