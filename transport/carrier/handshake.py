"""The handshake of a connection between two nodes, driven over its duplex until the peer's hello has come.

Laws
1. Bytes after the hello belong to the link: they are kept for it, and so is the news of an end of the connection.
2. A peer that does not greet in time, or breaks the rules, is disconnected.
"""

from __future__ import annotations

import asyncio

from transport.carrier.duplex import Duplex
from transport.carrier.timeouts import timeout
from transport.errors import ProtocolError
from transport.lean import Any
from transport.wire.frames import GREETING
from transport.wire.resume import GOODBYE, Handshake, Line


class Greeter:
    """Drives the handshake with another node until its hello has come. Implements DuplexProtocol."""

    def __init__(self, duplex: Duplex, first: bytes = b"") -> None:
        """`first` is our own hello, if we speak first."""
        self.duplex = duplex
        self.handshake = Handshake()
        self.lost: str | None = None  # why the connection has ended meanwhile; for the link
        self._heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        duplex.attach(self)
        duplex.write(GREETING + first)

    async def hello(self, seconds: float) -> dict[str, Any]:
        """Return the peer's hello, or raise ProtocolError after `seconds`. Any failure closes the connection."""
        try:
            async with timeout(seconds):
                await self._heard
        except TimeoutError:
            self.duplex.close()
            raise ProtocolError("no greeting") from None
        except BaseException:
            self.duplex.close()
            raise
        return self.handshake.peer

    @property
    def noise(self) -> str:
        return self.handshake.decoder.noise.decode(errors="replace").strip()

    def data_received(self, data: bytes) -> None:
        if self._heard.done():
            self.handshake.decoder.hold(data)  # for the link, which is being set up
            return
        try:
            if self.handshake.feed(data):
                self._heard.set_result(None)
        except ProtocolError as error:
            self._refuse(error)

    def _refuse(self, error: ProtocolError) -> None:
        self._heard.set_exception(error)
        self._heard.exception()  # a waiter gets it; without a waiter asyncio must not warn

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, why: str) -> None:
        if not self._heard.done():
            self.lost = why
            self._refuse(ProtocolError(why or "the connection was closed"))
        elif not self._heard.cancelled() and self._heard.exception() is None:
            self.lost = why  # else we closed it for a violation, which another dial would not mend


async def round_trip(greeter: Greeter, seconds: float) -> float:
    """Return the seconds of one ping, on a connection whose hello has come; then say goodbye and close it.

    Raises ProtocolError if there is no answer within `seconds`.
    """
    ping = _Ping(greeter)
    loop = asyncio.get_running_loop()
    began = loop.time()
    greeter.duplex.write(ping.line.ping(1))
    try:
        async with timeout(seconds):
            await ping.answered
        taken = loop.time() - began
        greeter.duplex.write(GOODBYE)
        return taken
    except TimeoutError:
        raise ProtocolError("no answer to a ping") from None
    finally:
        greeter.duplex.close()


class _Ping:
    """Waits for the answer to the ping of a line without channels. Implements DuplexProtocol."""

    def __init__(self, greeter: Greeter) -> None:
        self.line = Line(True, str(greeter.handshake.peer["link"]))
        self.line.join(greeter.handshake)
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        greeter.duplex.attach(self)
        self.data_received(b"")  # frames that came with the hello

    def data_received(self, data: bytes) -> None:
        if self.answered.done():
            return
        try:
            for _ in self.line.receive(data):
                pass
        except ProtocolError as error:
            self.answered.set_exception(error)
            return
        if self.line.pong >= 0:
            self.answered.set_result(None)

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, why: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(ProtocolError(why or "the connection was closed"))
