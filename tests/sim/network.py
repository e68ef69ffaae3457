"""Connections in memory between two ends, and what breaks them.

A connection has two pipes, one for each direction, each with a delay and a bounded buffer. It can be cut at any byte,
it can become a hole that takes bytes and tells nobody, and it can be late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.world import World

HIGH_WATER = 24 * 1024  # bytes under way in one direction before its writer is told to pause
READ = 256 * 1024  # bytes that one read takes


class End:
    """One end of a connection. Implements transport.carrier.duplex.Duplex.

    `soon` has a function called in the process that this end belongs to, at its next turn.
    """

    def __init__(self, world: World, soon: Callable[..., object], delay: float) -> None:
        self.world = world
        self.soon = soon
        self.delay = delay  # seconds from here to the other end
        self.peer: End = self
        self.protocol: Any = None
        self.closed = False
        self.hole = False  # bytes written here are lost, without notice
        self.limit: int | None = None  # bytes that may still be written here before the connection breaks
        self.on_break: Callable[[], None] | None = None
        self.late = 0.0  # seconds of delay for the next write, and for all that comes behind it
        self.sent = 0
        self._buffer: deque[bytes] = deque()
        self._under_way = 0  # bytes written here that the other end has not read
        self._last = 0.0  # world time at which the last write arrives
        self._lost: str | None = None
        self._told = False
        self._due = False
        self._reading = True
        self._paused = False

    # -- the interface of a duplex ------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, chunks: list[bytes]) -> None:
        data = b"".join(chunks)
        if self.closed or not data or self._lost is not None:
            return
        self.sent += len(data)
        breaks = self.limit is not None and len(data) >= self.limit
        if self.limit is not None:
            data = data[: self.limit]
            self.limit -= len(data)
        self._under_way += len(data)
        if not self.hole and data:
            self._later(self.peer.arrive, data)
        if self._under_way > HIGH_WATER and not self._paused and self.protocol is not None:
            self._paused = True
            self.protocol.pause_writing()
        if breaks:
            self.limit = None
            if self.on_break:
                self.on_break()
            self.cut("connection reset by peer")

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        """At the other end, after all that was written before."""
        self._last = max(self._last, self.world.now + self.delay + self.late)
        self.late = 0.0
        self.world.clock.after(self._last - self.world.now, call, *args)

    def attach(self, protocol: Any) -> None:
        self.protocol = protocol
        self._wake()
        if self._paused:
            protocol.pause_writing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._wake()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._buffer.clear()
        if not self.hole:
            self._later(self.peer.lose, "")

    # -- what comes ---------------------------------------------------------------------------------

    def arrive(self, data: bytes) -> None:
        if not self.closed and self._lost is None:
            self._buffer.append(data)
            self._wake()

    def lose(self, why: str) -> None:
        """The connection has ended; bytes that have arrived are still read."""
        if not self.closed and self._lost is None:
            self._lost = why
            self._wake()

    def _wake(self) -> None:
        if (
            not self._due
            and self.protocol is not None
            and self._reading
            and (self._buffer or self._lost is not None)
        ):
            self._due = True
            self.soon(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        if self.closed or not self._reading:
            return
        if self._buffer:
            data = b"".join(self._buffer)
            self._buffer.clear()
            if len(data) > READ:
                self._buffer.append(data[READ:])
                data = data[:READ]
            self._later(self.peer._taken, len(data))
            self.protocol.data_received(data)
            self._wake()
        elif self._lost is not None:
            why, self.closed = self._lost, True
            self.protocol.connection_lost(why)

    def _taken(self, size: int) -> None:
        """The other end has read so much."""
        self._under_way -= size
        if self._paused and self._under_way <= HIGH_WATER // 2 and not self.closed:
            self._paused = False
            self.soon(self._resume)

    def _resume(self) -> None:
        if not self.closed and not self._paused:
            self.protocol.resume_writing()

    # -- what breaks --------------------------------------------------------------------------------

    def cut(self, why: str) -> None:
        """Both ends get the break, each after the bytes that are on their way to it."""
        for end in (self, self.peer):
            if not end.peer.hole:
                end.peer._later(end.lose, why)


def connect(
    world: World,
    near: Callable[..., object],
    far: Callable[..., object],
    there: float = 0.0,
    back: float = 0.0,
) -> tuple[End, End]:
    """Two ends; seconds that a byte takes from the first to the second, and back."""
    ours, theirs = End(world, near, there), End(world, far, back)
    ours.peer, theirs.peer = theirs, ours
    return ours, theirs
