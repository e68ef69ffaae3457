"""Reaching a host, below ssh: the target, a limit on concurrent handshakes, a connected socket.

Laws
1. Not more handshakes at one time than sshd takes without dropping any, with the host and with each on the way.
2. A socket that cannot be connected is an `Unreachable` with a cure, told apart by errno.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from transport.errors import Interrupted, Unreachable
from transport.timeouts import timeout

# sshd drops handshakes at random from the eleventh that is not yet authenticated (MaxStartups 10:30:100)
HANDSHAKES = 5
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
async def handshakes(target: SshTarget) -> AsyncIterator[None]:
    """Hold a place among the few concurrent handshakes with this host, and with each host on the way to it."""
    async with contextlib.AsyncExitStack() as stack:
        hop: SshTarget | None = target
        hops: list[SshTarget] = []
        while hop is not None:
            hops.append(hop)
            hop = hop.jump
        for hop in reversed(hops):  # outermost first: all callers wait in the same order
            await stack.enter_async_context(_places(hop))
        yield


_semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


def _places(target: SshTarget) -> asyncio.Semaphore:
    of_loop = _semaphores.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(f"{target.address}:{target.port}", asyncio.Semaphore(HANDSHAKES))


async def connected(
    target: SshTarget, host: str, port: int, family: int, note: Note = unheard
) -> socket.socket:
    """Return a connected socket. Raises Unreachable.

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
