"""One SSH connection to a host with one session channel on it, as a duplex.

Laws
1. One connection, one session channel, one command: sshd's MaxSessions never matters. Nothing is
   forwarded, no terminal is asked for, nothing is compressed.
2. Host keys are always checked, by the policy of ssh's configuration (`host_keys.py`). asyncssh supports neither that
   policy nor a missing file, hence `policy_for` and `_Keys`.
3. Bytes only (`encoding=None`): one byte that is not UTF-8 would otherwise close the whole connection.
4. Any failure before the channel is open is one `Unreachable` with a cure; errors are told apart by
   their type.
5. No prompt: nobody is there to answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from transport import libraries
from transport.carrier.dialer import Note, SshTarget, connected, handshakes
from transport.carrier.ssh.channel import SshDuplex
from transport.carrier.ssh.host_keys import HostKeys
from transport.carrier.ssh.packets import by_packet
from transport.carrier.ssh.settings import Settings, message
from transport.text import harmless

with libraries.by_cache():
    import asyncssh
    from asyncssh.constants import MSG_IGNORE

News = Callable[[str], None]


def _unheard(text: str) -> None:
    """Drop a message: the caller wants none."""


def _of_hop(name: str, news: News, text: str) -> None:
    news(f"jump host {name}: {text}")


# Memory is bounded by the credits of our own streams; this only has to exceed bandwidth x round trip
WINDOW = 16 << 20
PACKET = 32 << 10  # larger ones break dropbear, and gain little with OpenSSH
LOST_AT_START = "the connection was lost as the session started: {}"
TRIES = 3  # of a handshake that the server dropped before it sent its version


async def connect(target: SshTarget, command: str, note: Note, news: News = _unheard) -> SshDuplex:
    """Connect, authenticate, start `command`; raises Unreachable.

    `note` hears of each step, `news` is called with messages for the user about first contacts.
    """
    async with handshakes(target):
        connections = await _reach(target, note, news)
    _quicken(connections)
    try:
        note("start the session")
        _, session = await connections[-1].create_session(
            cast(Any, SshDuplex),  # it has the methods, not the base class
            command,
            encoding=None,
            window=WINDOW,
            max_pktsize=PACKET,
            request_pty=False,
            env=None,
            send_env=None,
        )
    except asyncssh.ChannelOpenError as error:
        _abort(connections)
        if connections[-1].is_closed():
            raise target.interrupted(LOST_AT_START.format(message(error))) from None
        hint = "look at MaxSessions, ForceCommand and the account's shell in its sshd_config"
        raise target.unreachable(f"sshd opens no session: {message(error)}", hint) from None
    except (asyncssh.Error, OSError) as error:
        _abort(connections)
        raise target.interrupted(LOST_AT_START.format(message(error))) from None
    except BaseException:
        _abort(connections)
        raise
    duplex = cast(SshDuplex, cast(object, session))
    duplex.connections = connections
    return duplex


async def files(
    target: SshTarget, note: Note, news: News = _unheard
) -> tuple[asyncssh.SFTPClient, list[asyncssh.SSHClientConnection]]:
    """Return an SFTP session with paths as bytes, and the connections to close, the last first; raises Unreachable."""
    async with handshakes(target):
        connections = await _reach(target, note, news)
    try:
        _quicken(connections)
        return await connections[-1].start_sftp_client(path_encoding=None), connections
    except (asyncssh.Error, OSError) as error:
        _abort(connections)
        hint = "is there a `Subsystem sftp` in its sshd_config?"
        raise target.unreachable(f"it offers no sftp: {message(error)}", hint) from None
    except BaseException:
        _abort(connections)
        raise


def _quicken(connections: list[asyncssh.SSHClientConnection]) -> None:
    for connection in connections:
        _no_chaff(connection)
        _in_packets(connection)


def _no_chaff(connection: asyncssh.SSHClientConnection) -> None:
    """Drop the empty ignore packet that asyncssh puts before each packet, a system call and an encryption each.

    It answers an attack on chained IVs (RFC 4251, 9.3.1), which does not apply to ciphers with counters. Measured: a
    third of the time of an upload.
    """
    if not any(kind in str(connection.get_extra_info("send_cipher")) for kind in ("gcm", "chacha20", "ctr")):
        return
    send = connection.send_packet

    def without(kind: int, *args: bytes, **options: Any) -> None:
        if kind != MSG_IGNORE:
            send(kind, *args, **options)

    connection.send_packet = without  # type: ignore[assignment, method-assign]


def _in_packets(connection: asyncssh.SSHClientConnection) -> None:
    """Hand asyncssh one packet at a time: for each packet it copies all bytes at hand twice.

    A read of the socket brings eight packets. Measured: an eighth of the time of an upload.
    """
    if "gcm" in str(connection.get_extra_info("recv_cipher")):
        connection.data_received = by_packet(connection.data_received)  # type: ignore[method-assign]


async def _reach(target: SshTarget, note: Note, news: News) -> list[asyncssh.SSHClientConnection]:
    """Return the connections to the target; those of the hosts on the way come first."""
    settings = await asyncio.get_running_loop().run_in_executor(None, Settings, target)
    before: list[asyncssh.SSHClientConnection] = []
    hop = target.jump or settings.proxy_jump()
    try:
        if hop is not None:
            before = await _reach(hop, note, partial(_of_hop, hop.name, news))
        for left in reversed(range(TRIES)):
            try:
                before.append(await _handshake(target, settings, before[-1] if before else None, note, news))
                note(f"authenticate to {target.name}", f"accepted as {settings.options.username}")
                return before
            except _Dropped as error:
                if not left:
                    raise target.interrupted(error.args[0], error.args[1]) from None
                note(_version_of(target), f"{error.args[0]}; tried again", False)
                # sshd drops at random under load; an immediate retry, in step with others, would add to it
                await asyncio.sleep(random.uniform(0.2, 1.0))
    except BaseException:
        _abort(before)
        raise
    raise AssertionError("unreachable")


class _Dropped(Exception):
    """The server hung up before it sent its version: MaxStartups or a penalty. Worth another try."""


async def _handshake(
    target: SshTarget,
    settings: Settings,
    through: asyncssh.SSHClientConnection | None,
    note: Note,
    news: News,
) -> asyncssh.SSHClientConnection:
    keys = _Keys(target, settings.host, settings.port, settings.policy)
    more: dict[str, Any] = {"tunnel": through}
    if through is None and settings.options.proxy_command is None:
        options = settings.options
        more["sock"] = await connected(target, options.host, options.port, options.family, note)
    else:
        note(f"connect to {target.name} by its {'ProxyCommand' if through is None else 'jump host'}")
    contact = _Contact(keys, note, keyless=not settings.pairs)
    try:
        connection = await asyncssh.connect(
            target.address,
            () if target.port is None else target.port,
            options=settings.options,
            known_hosts=keys.trusted,
            server_host_key_algs=() if settings.host_key_algorithms else keys.algorithms(),
            client_factory=lambda: contact,
            **more,
        )
        if keys.failure:
            connection.abort()  # aborted before the login, which asyncssh takes for an orderly end
            raise keys.failure
        return connection
    except asyncssh.HostKeyNotVerifiable as error:
        raise keys.refusal(message(error)) from None
    except asyncssh.PermissionDenied:
        raise target.unreachable(*settings.denied()) from None
    except asyncssh.KeyExchangeFailed as error:
        hint = "see Ciphers and KexAlgorithms"
        raise target.unreachable(f"no common algorithm: {message(error)}", hint) from None
    except asyncssh.ChannelOpenError as error:
        assert through is not None
        hint = "look at the address and port, and at AllowTcpForwarding and PermitOpen over there"
        raise target.unreachable(f"cannot be reached from its jump host: {message(error)}", hint) from None
    except (asyncssh.Error, OSError) as error:
        if keys.failure:
            raise keys.failure from None
        if contact.greeted:
            hint = f"look at the log of its sshd; ssh -v {target.address} shows more"
            raise target.interrupted(
                f"the connection was lost in the handshake: {message(error)}", hint
            ) from None
        hint = (
            "if it is an sshd, it may be full (MaxStartups) or penalise this address (PerSourcePenalties): "
            "wait a minute"
        )
        raise _Dropped(f"the server hung up before the handshake: {message(error)}", hint) from None
    except ValueError as error:
        raise target.unreachable(
            f"cannot use its configuration: {message(error)}", "see ~/.ssh/config"
        ) from None
    finally:
        for text in keys.news:
            news(text)


def _version_of(target: SshTarget) -> str:
    return f"hear the ssh version of {target.name}"


def _described(pair: asyncssh.SSHKeyPair) -> str:
    """Return the algorithm of a key, and its comment or file."""
    name = (pair.get_comment_bytes() or b"without a comment").decode(errors="replace")
    return f"{pair.get_algorithm()} {harmless(name, instead='?')}"


class _Contact(asyncssh.SSHClient):
    """Watches one handshake: its steps, and the decision about an unknown host key."""

    def __init__(self, keys: _Keys, note: Note, keyless: bool) -> None:
        self._keys = keys
        self._keyless = keyless
        self._note = note
        self.connection: asyncssh.SSHClientConnection | None = None

    @property
    def greeted(self) -> bool:
        """Whether the server has sent its version, as an sshd does."""
        return self.connection is not None and bool(self.connection.get_extra_info("server_version"))

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.connection = conn
        self._watch(conn)
        if self._keyless:
            # asyncssh takes an empty list for none: it would load the usual files, and check no mode of theirs
            vars(conn)["_client_keys"] = []

    def _watch(self, connection: asyncssh.SSHClientConnection) -> None:
        """Note the server's version and each key that is offered; asyncssh calls no method of ours for either."""
        told, asked, target, note = (
            connection.set_extra_info,
            connection.public_key_auth_requested,
            self._keys.target,
            self._note,
        )

        def tell(**facts: Any) -> None:
            told(**facts)
            if version := facts.get("server_version"):
                note(_version_of(target), harmless(str(version), instead="?"))
                note(f"exchange keys with {target.name}")

        async def ask() -> asyncssh.SSHKeyPair | None:
            if pair := await asked():
                note(f"authenticate to {target.name}", f"offers {_described(pair)}")
            return pair

        connection.set_extra_info = tell  # type: ignore[method-assign]
        connection.public_key_auth_requested = ask  # type: ignore[method-assign]
        note(_version_of(target))

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        return self._keys.acceptable(" ".join(key.export_public_key("openssh").decode().split()[:2]))

    def begin_auth(self, username: str) -> None:
        # Only here has the server proved that the key is its own
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


class _Keys(HostKeys):
    """`HostKeys` with asyncssh's types."""

    def trusted(self, _host: str, _addr: str, _port: int | None) -> tuple[list[asyncssh.SSHKey], ...]:
        """Return trusted keys, trusted authorities and revoked keys; called by asyncssh."""
        lists: dict[str, list[asyncssh.SSHKey]] = {"": [], "cert-authority": [], "revoked": []}
        for entry in self.found:
            with contextlib.suppress(ValueError):  # an unknown type of key, or a torn line
                lists[entry.marker].append(asyncssh.import_public_key(entry.key))
        return tuple(lists.values())


def _abort(connections: Sequence[asyncssh.SSHClientConnection]) -> None:
    for connection in reversed(connections):
        connection.abort()
