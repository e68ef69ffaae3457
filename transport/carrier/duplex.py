"""The interface below a link: bytes both ways between two nodes, whatever carries them.

Laws
1. From `attach` on a duplex is used by callbacks alone (of the greeter, and of the link after it). Bytes that came
   before are delivered first.
2. `write` never blocks and never drops; a writer obeys `pause_writing` and `resume_writing`.
3. `connection_lost` is called exactly once, and nothing is called after it.
"""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import select
import socket
from collections import deque
from collections.abc import Sequence

from transport.lean import Protocol

# Size of a pipe that carries bulk; the default of 64 KiB costs a wakeup for each frame.
BULK_PIPE = 512 * 1024
# That of a pipe between nodes which has been full once: it takes a whole window. A full one wakes its writer for each
# read of the carrier, which are 32 KiB. Unprivileged users get no more.
LINE_PIPE = 1024 * 1024
STDERR_KEPT = 8 << 10  # bytes kept of the end of a far side's stderr
LARGE = 64 << 10  # bytes of a read that is one of bulk
LARGE_PIECE = 1 << 20
IOV_MAX = 512  # chunks of one writev(2); Linux takes 1024

_kept = False


def enlarge(fd: int, size: int = BULK_PIPE) -> None:
    """Give a pipe more room, if `fd` is a pipe and the user's quota of pipe memory allows it."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
    except OSError:
        pass


def keep_memory() -> None:
    """Have the C library keep memory that was freed, up to a window of bulk: called with each large read.

    It gives back the end of its heap as soon as that is larger than two of the largest pieces, and the kernel clears
    each page that is taken again, which showed as page faults in profiles of nodes that move bulk.
    """
    global _kept
    if _kept:
        return
    _kept = True
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 2 * LARGE_PIECE)  # M_MMAP_THRESHOLD
        mallopt(-1, 4 * LARGE_PIECE)  # M_TRIM_THRESHOLD
    except (ImportError, OSError, AttributeError):
        pass  # another C library, which has ways of its own


class DuplexProtocol(Protocol):
    """The callbacks of a duplex, always called from its event loop."""

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, why: str) -> None:
        """The duplex is gone; `why` is for people, "" for an orderly end of file."""


class Duplex(Protocol):
    """Bytes both ways."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, chunks: list[bytes]) -> None: ...

    def attach(self, protocol: DuplexProtocol) -> None: ...

    def pause_reading(self) -> None:
        """Stop calling `data_received`, so that back pressure reaches the other end. Only after `attach`."""

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """End both directions at once; pending writes may be lost."""


class Bootstrap(Duplex, Protocol):
    """A duplex to a command over there, which is first talked to by awaiting; the bootstrap ends with `attach`.

    `exit` is its exit status, None where it is not known; it says nothing of jobs.
    """

    exit: int | None

    @property
    def stderr(self) -> bytes:
        """The tail of its stderr."""

    @property
    def ending(self) -> str:
        """How the command at its other end has ended, for people: "status 3"."""

    @property
    def broken(self) -> str:
        """The reason why the carrier broke; "" if it did not, or if only the command at its other end has ended."""

    async def read(self) -> bytes:
        """Return the next bytes as they came, b"" at end of file; `exit` and `stderr` are complete then."""

    def unread(self, data: bytes) -> None:
        """Give back bytes that were read too far; the next read or `attach` delivers them first."""

    async def drain(self) -> None:
        """Wait until the write buffer is below its high-water mark. Raises ConnectionError after the end."""

    async def closed(self) -> None:
        """Wait until nothing of the carrier is left; call after `close`."""


class FdDuplex:
    """A duplex over descriptors of ours: a socket (twice the same number) or a pair of pipes.

    Takes ownership: both descriptors are made non-blocking and closed at the end. Not usable for
    regular files.
    """

    READ_SIZE = 256 * 1024
    LITTLE = (
        16 * 1024
    )  # while no more comes than this: memory for more is mapped and given back with each read
    HIGH_WATER = 128 * 1024  # bytes that wait here: one scheduling round of the link, no more

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_fd, self._write_fd = read_fd, write_fd
        self._protocol: DuplexProtocol | None = None
        self._buffer: deque[bytes | memoryview] = deque()
        self._size = 0
        self._most = self.LITTLE  # bytes of the next read
        self._roomy = False
        self._paused = False
        self._closed = False
        for fd in {read_fd, write_fd}:
            os.set_blocking(fd, False)
            enlarge(fd)

    def attach(self, protocol: DuplexProtocol) -> None:
        self._protocol = protocol
        self._loop.add_reader(self._read_fd, self._readable)
        if self._paused:
            protocol.pause_writing()

    def pause_reading(self) -> None:
        if not self._closed:
            self._loop.remove_reader(self._read_fd)

    def resume_reading(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._read_fd, self._readable)

    def _readable(self) -> None:
        try:
            data = self._take()
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error.strerror or "read failed")
            return
        self._most = self.READ_SIZE if len(data) >= self.LITTLE else self.LITTLE
        if len(data) >= LARGE:
            keep_memory()
        if not data:
            self._lost("")
        elif self._protocol:
            self._protocol.data_received(data)

    def _take(self) -> bytes:
        return os.read(self._read_fd, self._most)

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, chunks: list[bytes]) -> None:
        """Write all of `chunks` in order, at once as far as the kernel takes them."""
        if self._closed:
            return
        left: Sequence[bytes | memoryview] = chunks
        if not self._buffer:
            left = self._write_now(chunks)
            if not left or self._closed:
                return
            if not self._roomy:
                self._roomy = True
                self._make_room()
            self._loop.add_writer(self._write_fd, self._writable)
        self._buffer.extend(left)
        self._size += sum(map(len, left))
        if self._size > self.HIGH_WATER and not self._paused and self._protocol:
            self._paused = True
            self._protocol.pause_writing()

    def _write_now(self, chunks: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Write what the kernel takes; return what is left, which is not copied."""
        try:
            sent = os.writev(self._write_fd, chunks[:IOV_MAX])
        except BlockingIOError:
            sent = 0
        except OSError as error:
            # Reported from the loop: the caller is in the middle of its write.
            self._loop.call_soon(self._lost, error.strerror or "write failed")
            return []
        for index, chunk in enumerate(chunks):
            if sent < len(chunk):
                return [memoryview(chunk)[sent:], *chunks[index + 1 :]]
            sent -= len(chunk)
        return []

    def _make_room(self) -> None:
        """The kernel has not taken all of a write, for the first time."""
        enlarge(self._write_fd, LINE_PIPE)

    def _writable(self) -> None:
        left = self._write_now(list(self._buffer))
        self._buffer = deque(left)
        self._size = sum(map(len, left))
        if not left and not self._closed:
            self._loop.remove_writer(self._write_fd)
        if self._paused and self._size <= self.HIGH_WATER // 2 and self._protocol:
            self._paused = False
            self._protocol.resume_writing()

    def _lost(self, why: str) -> None:
        if self._closed:
            return
        self.close()
        if self._protocol:
            self._protocol.connection_lost(why)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._buffer.clear()
        self._loop.remove_reader(self._read_fd)
        self._loop.remove_writer(self._write_fd)
        for fd in {self._read_fd, self._write_fd}:
            os.close(fd)


class ClientDuplex(FdDuplex):
    """The socket of a client, which may send descriptors. `lent` has them by their number on this connection."""

    MOST = 256  # descriptors that nobody has asked for yet; the oldest beyond these is closed

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection.fileno(), connection.fileno())
        self.lent: dict[int, int] = {}
        self._count = 0
        self._socket = connection

    def _take(self) -> bytes:
        data, ancillary, flags, _ = self._socket.recvmsg(
            self._most, socket.CMSG_SPACE(4 * self.MOST), socket.MSG_CMSG_CLOEXEC
        )
        for fd in descriptors(ancillary):
            self.lent[self._count] = fd
            self._count += 1
            if len(self.lent) > self.MOST:
                os.close(self.lent.pop(next(iter(self.lent))))
        if flags & socket.MSG_CTRUNC:  # some had no room, and later ones would get their numbers
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return data

    @property
    def gone(self) -> bool:
        """True if the client has ended, also while bytes from before that are not read yet."""
        poll = select.poll()
        poll.register(self._socket, 0)  # an end is always told
        return bool(poll.poll(0))

    def _make_room(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BULK_PIPE)  # or as much as is allowed

    def close(self) -> None:
        if not self._closed:
            super().close()
            self._socket.detach()
            while self.lent:
                os.close(self.lent.popitem()[1])


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a message."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


class DialDuplex(FdDuplex):
    """The streams of a dial process, which waits with us: each ends when the other does.

    `dial` is the process's connection to us; it is owned here, as the descriptors are.
    """

    def __init__(self, read_fd: int, write_fd: int, dial: socket.socket) -> None:
        super().__init__(read_fd, write_fd)
        self._dial = dial
        self._loop.add_reader(dial.fileno(), self._lost, "the dial process ended")

    def close(self) -> None:
        if not self._closed:
            self._loop.remove_reader(self._dial.fileno())
            self._dial.close()
        super().close()
