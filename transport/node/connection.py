"""One connection of a link, as its duplex calls it: bytes, a pause, the end.

Law: bytes that arrive over an earlier connection of the link are ignored.
"""

from __future__ import annotations

from transport.lean import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

    from transport.carrier.duplex import Duplex


class Owner(Protocol):
    """`transport.node.link.Link`."""

    connection: LinkConnection | None
    parted: asyncio.Future[None] | None  # after `close`: done once the connection is closed

    def received(self, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def cut(self, why: str) -> None: ...


class LinkConnection:
    """Callbacks of a connection, ignored once the link has another one. Implements DuplexProtocol."""

    __slots__ = ("_behind", "_link", "_lost", "duplex", "paused")

    def __init__(self, link: Owner, duplex: Duplex) -> None:
        self._link = link
        self.paused = False  # the duplex takes no more for now
        self._behind = False
        self._lost: str | None = None  # why it ended, while bytes from before that are not handled yet
        self.duplex = duplex

    @property
    def _current(self) -> bool:
        return self._link.connection is self

    def data_received(self, data: bytes) -> None:
        if self._current:
            self._link.received(data)

    def pause_writing(self) -> None:
        if self._current:
            self.paused = True

    def resume_writing(self) -> None:
        if self._current:
            self.paused = False
            self._link.flush()

    def connection_lost(self, why: str) -> None:
        if self._behind:
            self._lost = why
        elif self._current:
            self._link.cut(why)
        elif self._link.parted:
            self.hang_up(self._link.parted)

    def hang_up(self, parted: asyncio.Future[None]) -> None:
        self.duplex.close()
        if not parted.done():
            parted.set_result(None)

    def fall_behind(self) -> None:
        if not self._behind:
            self._behind = True
            self.duplex.pause_reading()

    def caught_up(self) -> None:
        if not self._behind:
            return
        self._behind = False
        if self._lost is not None:
            self.connection_lost(self._lost)
        else:
            self.duplex.resume_reading()
