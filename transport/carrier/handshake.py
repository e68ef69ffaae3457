"""The first words of a connection between two nodes, driven over its duplex until the other end's hello is here.

Laws
1. What follows the hello is the link's: it is kept for it, and so is the news that the connection has ended meanwhile.
2. Who does not greet in time, or not by the rules, is hung up on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from transport.carrier.duplex import Duplex
from transport.errors import ProtocolError
from transport.wire.frames import GREETING
from transport.wire.line import Handshake


class Greeter:
    """The first words with another node over a connection, until its hello is here. Implements DuplexProtocol."""

    def __init__(self, duplex: Duplex, first: bytes = b"") -> None:
        """`first` is our own hello, where it is for us to speak first."""
        self.duplex = duplex
        self.handshake = Handshake()
        self.lost: str | None = None  # the connection has ended meanwhile; a link that gets it must know
        self._heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        duplex.attach(self)
        duplex.write(GREETING + first)

    async def hello(self, seconds: float) -> dict[str, Any]:
        """The other end's. Raises ProtocolError, and closes the connection then."""
        try:
            async with asyncio.timeout(seconds):
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
            self.handshake.decoder.hold(data)  # for the link, which is just being told
            return
        try:
            if self.handshake.feed(data):
                self._heard.set_result(None)
        except ProtocolError as error:
            self._refuse(error)

    def _refuse(self, error: ProtocolError) -> None:
        self._heard.set_exception(error)
        self._heard.exception()  # whoever waits sees it; nobody waiting is no warning

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, why: str) -> None:
        if not self._heard.done():
            self.lost = why
            self._refuse(ProtocolError(why or "the connection was closed"))
        elif not self._heard.cancelled() and self._heard.exception() is None:
            self.lost = why  # else we have closed it for what was said: no break that another dial would mend
