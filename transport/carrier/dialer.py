"""Reaching a host, below ssh: the target, a limit on concurrent handshakes, a connected socket.

Laws
1. Not more handshakes at one time than sshd takes without dropping any, with the host and with each on the way.
2. A socket that cannot be connected is an `Unreachable` with a cure, told apart by errno.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from transport.carrier.timeouts import timeout
from transport.errors import Interrupted, Unreachable
from transport.lean import Protocol

# sshd drops handshakes at random from the eleventh that is not yet authenticated (MaxStartups 10:30:100)
HANDSHAKES = 5
TRIES = 6  # of a handshake that the server dropped before it sent its version
FULL = ("exceeded maxstartups", "not allowed at this time")  # an sshd's words in place of its version
ATTEMPT = 5.0  # seconds for one address of several
SILENCE = 45  # seconds that written bytes may stay unacknowledged: as long as keepalive takes to notice a pulled cable


class Note(Protocol):
    """Hears of the steps of a dial, as they happen.

    Without `found` a step begins, named by a verb and its object. With it the step of that name has come to know
    something; with `ok` False this way of it failed, and another one is tried.
    """

    def __call__(self, step: str, found: str = "", ok: bool = True) -> None: ...


def unheard(step: str, found: str = "", ok: bool = True) -> None:
    """A Note without a reader."""


@dataclass(frozen=True)
class SshTarget:
    """A host and the way to it: user, address, jump host. None means: as ~/.ssh/config says, else ssh's default."""

    name: str  # the name that messages show
    address: str
    user: str | None = None
    port: int | None = None
    identity: str | None = None
    jump: SshTarget | None = None
    agent: str | None = None  # path of the agent's socket

    def unreachable(self, detail: str, hint: str = "") -> Unreachable:
        return Unreachable(self.name, detail, hint)

    def interrupted(self, detail: str, hint: str = "") -> Interrupted:
        return Interrupted(self.name, detail, hint)


@contextlib.asynccontextmanager
async def handshakes(way: Sequence[str]) -> AsyncIterator[None]:
    """Hold a place among the few concurrent handshakes with each host of the way to a host, that one included.

    `way` has each host's address and port, the nearest to us first: all callers wait in the same order.
    """
    async with contextlib.AsyncExitStack() as stack:
        of_loop = _semaphores.setdefault(asyncio.get_running_loop(), {})
        for place in dict.fromkeys(way):
            await stack.enter_async_context(of_loop.setdefault(place, asyncio.Semaphore(HANDSHAKES)))
        yield


def of_sshd(said: str) -> bool:
    """Say whether an sshd has said this in place of its version, or began to before the line was cut."""
    said = said.lower()
    return any(said.startswith(words) or words.startswith(said) for words in ("ssh-", *FULL))


def pause(tried: int) -> float:
    """Return the seconds before the next try: a full sshd drops at random, and tries in step would add to it."""
    return random.uniform(0.2, 1.0) * 1.6**tried


_semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


async def connected(
    target: SshTarget, host: str, port: int, family: int, note: Note = unheard, source: str = ""
) -> socket.socket:
    """Return a connected socket, one that leaves from the address `source` if that is given. Raises Unreachable.

    asyncssh does not connect by itself, because it would lose the errno of a failure and set no TCP_USER_TIMEOUT.
    """
    loop = asyncio.get_running_loop()
    note(step := f"resolve {host}")
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
    except (socket.gaierror, UnicodeError):
        hint = f"set address in its table of the inventory, or Host {target.address} in ~/.ssh/config"
        raise target.unreachable(f"unknown host name: {host}", hint) from None
    note(step, ", ".join(dict.fromkeys(str(address[0]) for *_, address in found)))
    failure = OSError("no address")
    for left, (family, kind, proto, _, address) in reversed(list(enumerate(reversed(found)))):
        note(step := f"connect to {target.name} at {address[0]} port {port}")
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            # Unacknowledged bytes end the connection after this time: keepalive checks only an idle one
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE * 1000)
            if source:
                await _leave_from(sock, source)
            async with timeout(ATTEMPT if left else None):  # one dead route must not cost it all
                await loop.sock_connect(sock, address)
            return sock
        except OSError as error:  # TimeoutError is one
            sock.close()
            failure = error
            if left:
                note(step, _reason(error), False)
        except BaseException:
            sock.close()
            raise
    where = f"{host} port {port}"
    if isinstance(failure, ConnectionRefusedError):
        hint = f"start an sshd there, or correct address and port; try: ssh -p {port} {host}"
        raise target.unreachable(f"connection refused by {where}", hint)
    raise target.unreachable(
        f"cannot connect to {where}: {_reason(failure)}", "is it up, and is there a route to it?"
    )


def _reason(error: OSError) -> str:
    """Return why a socket was not connected; asyncio's own text for it is "connect call failed"."""
    if isinstance(error, TimeoutError) and not error.errno:
        return f"no answer within {ATTEMPT:g} s"
    return os.strerror(error.errno).lower() if error.errno else str(error)


async def _leave_from(sock: socket.socket, source: str) -> None:
    """Bind to an address of this machine. Raises OSError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            source, None, type=socket.SOCK_STREAM, family=sock.family
        )
        sock.bind(found[0][4])
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", "") or str(error)
        raise OSError(f"BindAddress {source}: {why.lower()}") from None
