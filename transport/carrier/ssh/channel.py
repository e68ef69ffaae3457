"""A session channel of ssh as a `Duplex`. It imports no library: the owner of the connection calls it back.

Laws
1. Bytes wait here only until `attach`; after it the listener bounds them by its credits. While reading is paused
   the library keeps incoming bytes, at most one window of them.
2. The end is the end of the channel, not of its output: exit status and the last of stderr come between the two.
3. A line that the far side prints on stderr is kept, never mixed into the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from transport.carrier.duplex import STDERR_KEPT, DuplexProtocol
from transport.lean import Any, Protocol

WRITE_HIGH, WRITE_LOW = 256 << 10, 64 << 10
AT_ONCE = 256 << 10  # one read of the socket


class Channel(Protocol):
    """The part of the library's channel that is used here."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection(Protocol):
    """The part of the library's connection that is used here."""

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def set_keepalive(self, interval: float) -> None: ...


def _within_window(channel: Any, received: Callable[[bytes, int | None], None]) -> None:
    """Let a channel that was paused open its window only after all bytes kept meanwhile have been delivered.

    asyncssh opens the whole window with the first packet that it delivers, whatever it still keeps. Each short pause
    then lets in up to a window, so a peer that sends faster than its frames are handled fills the memory.
    """
    deliver = channel._deliver_data

    def delivered(data: bytes, datatype: int | None) -> None:
        if channel._recv_buf:
            received(data, datatype)
        else:
            deliver(data, datatype)

    channel._deliver_data = delivered


class SshDuplex:
    """The channel as a `Duplex`. `stderr` is the tail of the command's stderr, `exit` its exit status.

    Until `attach` it is used by awaiting `read` and `drain`: the bootstrap talks in lines.
    """

    def __init__(self) -> None:
        self.connections: Sequence[Connection] = ()  # those of the jump hosts, then the channel's own
        self.stderr = b""
        self.exit: int | None = None
        self.quick: Callable[[list[bytes]], bool] | None = None  # sends data if it can: see quick.py
        self._channel: Channel | None = None
        self._protocol: DuplexProtocol | None = None
        self._buffer: list[bytes | memoryview] = []
        self._size = 0  # bytes in it that came after `attach`
        self._ended: str | None = None  # the reason of the end, once it has ended
        self._over = False
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    # Called by the bootstrap and the link

    @property
    def ending(self) -> str:
        """How the command at the other end has ended, for people."""
        return "no status" if self.exit is None else f"status {self.exit}"

    @property
    def broken(self) -> str:
        """The reason why the connection broke; "" if it did not, or if only the command at its other end has ended."""
        return self._ended or ""

    async def read(self) -> bytes:
        """Return the next bytes as they came, b"" at end of file."""
        while not self._buffer and self._ended is None:
            self._news.clear()
            await self._news.wait()
        return bytes(self._buffer.pop(0)) if self._buffer else b""

    def unread(self, data: bytes) -> None:
        """Give back bytes that were read too far; the next read or `attach` delivers them first."""
        if data:
            self._buffer.insert(0, data)

    def writelines(self, chunks: list[bytes]) -> None:
        if self._ended is None and self.quick is not None and self.quick(chunks):
            return
        self.write(b"".join(chunks))  # each write is at least one packet, and a packet costs more than a copy

    def write(self, data: bytes) -> None:
        if self._channel is not None and self._ended is None:
            # In the one turn of the loop between the other end's close and connection_lost, asyncssh refuses writes.
            with contextlib.suppress(BrokenPipeError):
                self._channel.write(data)

    async def drain(self) -> None:
        """Wait until the write buffer is below its high-water mark."""
        await self._writable.wait()
        if self._ended is not None:
            raise ConnectionResetError(self._ended or "end of file")

    async def closed(self) -> None:
        """Wait until all connections are closed; call after `close`."""
        for connection in reversed(self.connections):
            await connection.wait_closed()

    def attach(self, protocol: DuplexProtocol) -> None:
        self.deliver()  # to the previous protocol: the next one is not ready for these bytes
        self._protocol = protocol
        for connection in self.connections:
            # The link has heartbeats of its own, and a timer set anew for each packet is a fifteenth of an upload.
            connection.set_keepalive(0)
        self.deliver()
        if not self._writable.is_set():
            protocol.pause_writing()
        if self._ended is not None:
            self._tell()

    def pause_reading(self) -> None:
        if self._channel is not None and self._ended is None:
            self._channel.pause_reading()  # bytes that still arrive are bounded by its window

    def resume_reading(self) -> None:
        if self._channel is not None and self._ended is None:
            self._channel.resume_reading()

    def close(self) -> None:
        self._end("")
        if self._channel is not None:
            self._channel.close()
        for connection in reversed(self.connections):
            connection.close()

    # Called by asyncssh

    def connection_made(self, chan: Channel) -> None:
        self._channel = chan
        chan.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        _within_window(chan, self.data_received)

    def session_started(self) -> None:
        pass

    def data_received(self, data: bytes | memoryview, datatype: int | None) -> None:
        if datatype is not None:
            self.stderr = (self.stderr + data)[-STDERR_KEPT:]
        elif self._over:
            pass  # connection_lost was the last call
        else:
            if self._protocol is None:
                self._buffer.append(bytes(data))
                self._news.set()
                return
            self._buffer.append(data)
            self._size += len(data)
            if self._size >= AT_ONCE:
                self.deliver()  # so the listener can pause before asyncssh lets go all that it kept
            elif len(self._buffer) == 1:
                asyncio.get_running_loop().call_soon(self.deliver)

    def deliver(self) -> None:
        """Deliver all bytes of one turn of the loop at once: handling each piece costs more than the copy."""
        if self._buffer and self._protocol is not None and not self._over:
            data: Any = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
            self._buffer.clear()
            self._size = 0
            self._protocol.data_received(data)

    def pause_writing(self) -> None:
        self._writable.clear()
        if self._protocol is not None and not self._over:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._protocol is not None and not self._over:
            self._protocol.resume_writing()

    def exit_status_received(self, status: int) -> None:
        self.exit = status

    def exit_signal_received(self, signal: str, core: bool, message: str, lang: str) -> None:
        self.stderr += f"killed by {signal}\n".encode()

    def eof_received(self) -> bool:
        # Not the end yet: the exit status and the last of stderr still come, then the channel closes
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.deliver()
        self._end("" if exc is None else str(exc) or type(exc).__name__)
        for connection in reversed(self.connections):
            connection.close()

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
        self._news.set()
        self._writable.set()
        if self._protocol is not None:
            self._tell()

    def _tell(self) -> None:
        if not self._over and self._protocol is not None:
            self._over = True
            self._protocol.connection_lost(self._ended or "")
