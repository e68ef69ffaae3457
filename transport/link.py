"""A link: one session driven over one duplex, with heartbeats.

Laws
1. A link dies once, with one reason, and tells every channel that was open on it.
2. A peer's bytes can at worst end its own link: a ProtocolError closes it, a defect of ours closes it and is
   logged with its traceback; the node goes on.
3. Not more than one scheduling round waits outside the session, so control never queues behind bulk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from transport.duplex import Duplex
from transport.errors import LinkLost, ProtocolError
from transport.frames import Frame, Kind
from transport.session import Session

log = logging.getLogger("quine.link")

HEARTBEAT = 5.0  # seconds between pings; keeps idle timeouts of sshd and of middle boxes away, too
SILENCE = 20.0  # seconds without a byte after which a link is dead
ROUND = 128 * 1024  # bytes handed to the duplex at a time: two frames, four packets of ssh


class Handler(Protocol):
    """What stands behind a channel."""

    def on_frame(self, frame: Frame) -> None: ...

    def on_lost(self, why: str) -> None:
        """The link is gone. Nothing more can be sent on this channel."""


class Link:
    """One end of a live link. Implements DuplexProtocol."""

    def __init__(
        self,
        duplex: Duplex,
        session: Session,
        name: str,
        on_open: Callable[[Link, Frame], Handler],
        on_lost: Callable[[Link, str], None],
        remote: bool,
    ) -> None:
        self.session = session
        self.name = name
        self.remote = remote  # to another machine: it has heartbeats, and its end is not its peer's
        self.handlers: dict[int, Handler] = {}
        self.dead = ""
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.idle_since = time.monotonic()
        self._duplex = duplex
        self._on_open = on_open
        self._on_lost = on_lost
        self._paused = False
        self._flush_due = False
        self._heard = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(HEARTBEAT, self._beat) if remote else None

    def start(self) -> None:
        """Begin. What came meanwhile is delivered from here, and that may be the link's end already."""
        self._duplex.attach(self)
        self.wake()

    # -- from the duplex ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.dead:
            return
        self._heard = time.monotonic()
        try:
            for frame in self.session.receive(data):
                self._dispatch(frame)
                if self.dead:
                    return
            if self.session.peer and not self.ready.done():
                self.ready.set_result(self.session.peer)
        except ProtocolError as error:
            self.fail(f"protocol error: {error}")
        except Exception:
            log.exception("%s: defect while handling a frame", self.name)
            self.fail("a defect in quine; see the node's log")
        else:
            self.flush()

    def _dispatch(self, frame: Frame) -> None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("< %s %r", self.name, frame)
        if frame.kind in (Kind.SPAWN, Kind.REQUEST):
            self.handlers[frame.channel] = self._on_open(self, frame)
            return
        handler = self.handlers.get(frame.channel)
        if frame.channel not in self.session.channels:
            self.forget(frame.channel)
        if handler:
            handler.on_frame(frame)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def connection_lost(self, why: str) -> None:
        self.fail(why or "the connection was closed")

    # -- for the node ------------------------------------------------------------------------------

    def open(self, kind: int, body: dict[str, Any], handler: Handler) -> int:
        """Open a channel. ValueError when the body is too large, LinkLost when the link has ended."""
        if self.dead:
            raise LinkLost(self.dead)
        number = self.session.open(kind, body)
        self.handlers[number] = handler
        self.wake()
        return number

    def forget(self, number: int) -> None:
        """Drop the handler of a channel that the session has forgotten."""
        self.handlers.pop(number, None)
        if not self.handlers:
            self.idle_since = time.monotonic()

    def wake(self) -> None:
        """Something was queued: write it in this turn of the loop, together with what else comes."""
        if not self._flush_due and not self.dead:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_due = False
        while not self._paused and not self.dead:
            chunks = self.session.pull(ROUND)
            if not chunks:
                return
            self._duplex.writelines(chunks)

    def fail(self, why: str) -> None:
        """End the link. Every handler hears of it."""
        if self.dead:
            return
        self.dead = why
        log.log(logging.INFO if self.remote else logging.DEBUG, "%s: link ended: %s", self.name, why)
        if self._timer:
            self._timer.cancel()
        self._duplex.close()
        if not self.ready.done():
            self.ready.set_exception(ProtocolError(why))
            self.ready.exception()  # whoever waits sees it; nobody waiting is no warning
        handlers, self.handlers = self.handlers, {}
        for handler in handlers.values():
            try:
                handler.on_lost(why)
            except Exception:
                log.exception("%s: defect while a link ended", self.name)
        self._on_lost(self, why)

    def _beat(self) -> None:
        silent = time.monotonic() - self._heard
        if silent > SILENCE:
            self.fail(f"nothing heard for {silent:.0f} seconds")
            return
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        self.session.ping(0)
        self.flush()
