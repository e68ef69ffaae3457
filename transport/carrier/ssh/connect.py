"""One SSH connection to a host with one session channel on it, as a duplex.

Laws
1. One connection, one session channel, one command: sshd's MaxSessions never matters. Nothing is
   forwarded, no terminal is asked for, nothing is compressed.
2. Host keys are always checked, by the policy of ssh's configuration (`host_keys.py`). asyncssh supports neither that
   policy nor a missing file, hence `policy_for` and `ServerKeys`.
3. Bytes only (`encoding=None`), and texts of the server are decoded without an error: one byte that is not UTF-8 would
   otherwise close the whole connection.
4. Any failure before the channel is open is one `Unreachable` with a cure; errors are told apart by
   their type.
5. No prompt: nobody is there to answer.
6. An sshd that refuses before it sends its version is asked again, later each time, never at once. Other words in place
   of a version are no sshd's, and the end. So is a violation of the protocol, which another dial would meet again: an
   address that dials four times a second is banned.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from transport.carrier.dialer import TRIES, Note, SshTarget, connected, handshakes, of_sshd, pause
from transport.carrier.ssh import asyncssh_imports, cipher, private, quick
from transport.carrier.ssh.channel import SshDuplex
from transport.carrier.ssh.contact import Contact, ServerKeys, version_step
from transport.carrier.ssh.keys import message
from transport.carrier.ssh.proxy_command import ProxyCommand
from transport.carrier.ssh.settings import Settings
from transport.carrier.timeouts import timeout
from transport.errors import Unreachable

with asyncssh_imports.quickly():
    import asyncssh
    from asyncssh.constants import MSG_IGNORE
    from asyncssh.packet import PacketDecodeError

if private.fit():
    cipher.install()

News = Callable[[str], None]


def _unheard(text: str) -> None:
    """Drop a message: the caller wants none."""


def _of_hop(name: str, news: News, text: str) -> None:
    news(f"jump host {name}: {text}")


# Memory is bounded by the credits of our own streams; this only has to exceed bandwidth x round trip
WINDOW = 16 << 20
PACKET = 32 << 10  # larger ones break dropbear, and gain little with OpenSSH
LOST_AT_START = "the connection was lost as the session started: {}"
LOOK_THERE = (
    "if it stays so, look at the log of its sshd: is the ChrootDirectory there, is the account's shell?"
)
PENALTY = 15.0  # seconds: sshd enforces no shorter one (PerSourcePenalties)
DEEPEST = 16  # hosts on the way to one


async def connect(target: SshTarget, command: str, note: Note, news: News = _unheard) -> SshDuplex:
    """Connect, authenticate, start `command`; raises Unreachable.

    `note` hears of each step, `news` is called with messages for the user about first contacts.
    """
    way = await _resolved(target)
    env = way[-1].environment(os.environ)
    connections = await _reach(way, note, news)
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
            env=[(os.fsencode(name), os.fsencode(text)) for name, text in env.items()],
            send_env=None,
        )
    except asyncssh.ChannelOpenError as error:
        _abort(connections)
        if connections[-1].is_closed():
            raise target.interrupted(LOST_AT_START.format(message(error)), LOOK_THERE) from None
        hint = "look at MaxSessions, ForceCommand and the account's shell in its sshd_config"
        raise target.unreachable(f"sshd opens no session: {message(error)}", hint) from None
    except (asyncssh.Error, OSError) as error:
        _abort(connections)
        if isinstance(error, asyncssh.ProtocolError):
            raise _no_protocol(target, message(error)) from None
        raise target.interrupted(LOST_AT_START.format(message(error)), LOOK_THERE) from None
    except BaseException:
        _abort(connections)
        raise
    duplex = cast(SshDuplex, cast(object, session))
    duplex.connections = connections
    if private.fit():
        duplex.quick = quick.Sender(connections[-1], duplex._channel).send
    return duplex


async def files(
    target: SshTarget, note: Note, news: News = _unheard
) -> tuple[asyncssh.SFTPClient, list[asyncssh.SSHClientConnection]]:
    """Return an SFTP session with paths as bytes, and the connections to close, the last first; raises Unreachable."""
    connections = await _reach(await _resolved(target), note, news)
    try:
        _quicken(connections)
        return await connections[-1].start_sftp_client(path_encoding=None), connections
    except (asyncssh.Error, OSError) as error:
        cut = isinstance(error, (OSError, asyncssh.ConnectionLost)) or connections[-1].is_closed()
        _abort(connections)
        if cut:
            raise target.unreachable(f"the connection broke: {message(error)}") from None
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

    A read of the socket brings sixteen packets. Data of a session goes past it.
    """
    if private.fit() and "gcm" in str(connection.get_extra_info("recv_cipher")):
        quick.Arrivals.begin(connection)


async def _resolved(target: SshTarget) -> list[Settings]:
    return await asyncio.get_running_loop().run_in_executor(None, _way, target)


async def _reach(way: list[Settings], note: Note, news: News) -> list[asyncssh.SSHClientConnection]:
    """Return the connections to the last host of the way; those of the hosts before it come first."""
    connections: list[asyncssh.SSHClientConnection] = []
    async with handshakes([settings.place for settings in way]):
        try:
            for settings in way:
                through = connections[-1] if connections else None
                say = news if settings is way[-1] else partial(_of_hop, settings.target.name, news)
                try:
                    connections.append(await _patiently(settings, through, note, say))
                except Unreachable as error:
                    if settings is not way[-1]:
                        name = way[-1].target.name
                        error.detail, error.host = f"its jump host {error.host}: {error.detail}", name
                    raise
        except BaseException:
            _abort(connections)
            raise
    return connections


def _way(target: SshTarget) -> list[Settings]:
    """Return the settings of the hosts on the way to the target, its own last. Reads files."""
    way = [Settings(target)]
    while (hop := way[0].hop) is not None:
        if len(way) == DEEPEST:
            hint = f"exempt the jump host in ~/.ssh/config, as in: Host * !{hop.address}"
            raise target.unreachable("the jump hosts on the way to it go in a circle", hint)
        way.insert(0, Settings(hop))
    return way


async def _patiently(
    settings: Settings, through: asyncssh.SSHClientConnection | None, note: Note, news: News
) -> asyncssh.SSHClientConnection:
    """Connect and authenticate; ask again where the server has hung up before its version."""
    for text in settings.notes:
        note(text)
    penalised = False
    for tried in range(TRIES):
        try:
            connection = await _handshake(settings, through, note, news)
            note(f"authenticate to {settings.target.name}", f"accepted as {settings.options.username}")
            return connection
        except _Dropped as error:
            last = error
        if last.penalty and penalised:
            break
        penalised = penalised or last.penalty
        if tried < TRIES - 1:
            seconds = pause(tried)
            note(version_step(settings.target), f"{last.detail}; tried again", False)
            if last.penalty:
                seconds += PENALTY
                note(f"wait until {settings.target.name} takes connections from here again: {last.detail}")
            await asyncio.sleep(seconds)
    raise settings.target.interrupted(last.detail, last.hint)


class _Dropped(Exception):
    """The server hung up before it sent its version: MaxStartups or a penalty. Worth another try."""

    def __init__(self, said: str, error: BaseException) -> None:
        self.penalty = "not allowed at this time" in said.lower()
        self.detail = f"the server hung up before the handshake: {said or message(error)}"
        self.hint = (
            "if it is an sshd, it may be full (MaxStartups) or penalise this address (PerSourcePenalties): "
            "wait a minute"
        )
        if self.penalty:
            self.detail = f"its sshd refuses this address for a while (PerSourcePenalties): {said}"
            self.hint = "failed logins from here cause that: mend them, then wait some minutes"


async def _handshake(
    settings: Settings, through: asyncssh.SSHClientConnection | None, note: Note, news: News
) -> asyncssh.SSHClientConnection:
    target, limit = settings.target, settings.connect_timeout
    keys = ServerKeys(target, settings.known_as, settings.known_port, settings.policy)
    agent, offered = await _offered(settings, note)
    contact = Contact(keys, note, keyless=not offered)
    try:
        async with timeout(limit) as contact.clock:
            more: dict[str, Any] = {"tunnel": through}
            if through is not None:
                note(f"connect to {target.name} by its jump host")
            elif settings.proxy_command:
                note(f"connect to {target.name} by its ProxyCommand")
                contact.proxy = ProxyCommand(settings.proxy_command)
                more["sock"] = await contact.proxy.start()
            else:
                at = (settings.address, settings.port, settings.family)
                more["sock"] = await connected(target, *at, note, settings.source)
            connection = await _login(settings, keys, contact, client_keys=offered or None, **more)
        if keys.failure:
            connection.abort()  # aborted before the login, which asyncssh takes for an orderly end
            raise keys.failure
        return connection
    except TimeoutError:
        hint = "is it up, is there a route to it? see ConnectTimeout in ~/.ssh/config"
        raise target.unreachable(f"no answer within {limit:g} s (ConnectTimeout)", hint) from None
    except ValueError as error:
        detail = f"cannot use its configuration: {message(error)}"
        raise target.unreachable(detail, "see ~/.ssh/config") from None
    except BaseException:
        contact.connection_lost(None)
        raise
    finally:
        if agent:
            agent.close()
        for text in keys.news:
            news(text)


async def _login(
    settings: Settings, keys: ServerKeys, contact: Contact, **more: Any
) -> asyncssh.SSHClientConnection:
    target = settings.target
    try:
        return await asyncssh.connect(
            settings.address,
            settings.port,
            config=None,
            options=settings.options,
            known_hosts=keys.trusted,
            server_host_key_algs=() if settings.host_key_algorithms else keys.algorithms(),
            client_factory=lambda: contact,
            **more,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise keys.refusal(message(error)) from None
    except asyncssh.PermissionDenied:
        raise settings.denied() from None
    except asyncssh.KeyExchangeFailed as error:
        raise _no_common(target, message(error)) from None
    except PacketDecodeError as error:
        raise _no_protocol(target, message(error)) from None
    except asyncssh.ChannelOpenError as error:
        hint = "look at the address and port, and at AllowTcpForwarding and PermitOpen over there"
        raise target.unreachable(f"cannot be reached from its jump host: {message(error)}", hint) from None
    except (asyncssh.Error, OSError) as error:
        if keys.failure:
            raise keys.failure from None
        if contact.disagreed:
            raise _no_common(target, message(Exception(contact.disagreed))) from None
        if "too many authentication failures" in message(error).lower():
            raise settings.denied(message(error)) from None
        if contact.greeted and isinstance(error, asyncssh.ProtocolError):
            raise _no_protocol(target, message(error)) from None
        if contact.greeted:
            hint = f"look at the log of its sshd; ssh -v {target.address} shows more"
            detail = f"the connection was lost in the handshake: {message(error)}"
            raise target.interrupted(detail, hint) from None
        contact.connection_lost(None)
        if contact.proxy and not contact.heard:
            hint = f"try it by itself: {settings.proxy_command}"
            detail = f"its ProxyCommand gives no connection: {contact.proxy.said or message(error)}"
            raise target.unreachable(detail, hint) from None
        if not of_sshd(contact.heard):
            raise _no_server(settings, contact) from None
        raise _Dropped(contact.heard, error) from None


def _no_protocol(target: SshTarget, why: str) -> Unreachable:
    hint = f'does ssh {target.address} work? set transport = "openssh" in its table of the inventory'
    return target.unreachable(f"its sshd breaks the protocol: {why}", hint)


def _no_common(target: SshTarget, why: str) -> Unreachable:
    hint = (
        "name one that it has in Ciphers, KexAlgorithms, MACs or HostKeyAlgorithms of ~/.ssh/config; "
        'or set transport = "openssh" in its table of the inventory'
    )
    return target.unreachable(f"no common algorithm: {why}", hint)


def _no_server(settings: Settings, contact: Contact) -> Unreachable:
    if contact.proxy:
        hint = f"try it by itself: {settings.proxy_command}"
        return settings.target.unreachable(
            f"its ProxyCommand leads to no ssh server, which says: {contact.heard}", hint
        )
    where = f"{settings.address} port {settings.port}"
    detail = f"no ssh server answers at {where}, which says: {contact.heard}"
    return settings.target.unreachable(detail, "correct address and port in its table of the inventory")


async def _offered(
    settings: Settings, note: Note
) -> tuple[asyncssh.SSHAgentClient | None, list[asyncssh.SSHKeyPair]]:
    """Return the keys to offer, and the agent that signs with its own ones, to be closed after the login."""
    path, agent = settings.keys.agent, None
    held: Sequence[asyncssh.SSHKeyPair] = ()
    if path:
        note(step := f"ask the ssh agent {path}")
        try:
            agent = await asyncssh.connect_agent(path)
            held = await agent.get_keys()
            note(step, f"holds {len(held)} keys")
        except (OSError, ValueError, asyncssh.Error) as error:
            settings.keys.cure = (
                settings.keys.cure or f"the ssh agent {path} does not answer: {message(error)}"
            )
    return agent, settings.keys.offered(held)


def _abort(connections: Sequence[asyncssh.SSHClientConnection]) -> None:
    for connection in reversed(connections):
        connection.abort()
