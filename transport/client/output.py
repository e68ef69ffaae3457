"""One of the caller's output descriptors, written without ever blocking and without changing it.

Laws
1. O_NONBLOCK belongs to the open file, which the caller's shell shares. So pipes and terminals are opened
   anew through /proc, sockets are written with MSG_DONTWAIT, and regular files never block for long.
2. Where none of that is possible, a write that poll allowed is kept to PIPE_BUF bytes.
3. `taken` counts the bytes that the kernel took; nothing else is ever acknowledged.
"""

from __future__ import annotations

import errno
import os
import select
import stat

from transport.lean import deque, socket
from transport.wire.frames import BULK, BULK_PAYLOAD, CHUNK


class Used:
    """A job's use of our streams: whether stdin was read (or closed), and whether stdout was written."""

    __slots__ = ("stdin", "stdout")

    def __init__(self) -> None:
        self.stdin = self.stdout = False


class Output:
    """A queue in front of a descriptor. `poll_fd` is -1 when there is nothing to wait for."""

    def __init__(self, fd: int) -> None:
        self.taken = 0
        self.pending = 0  # bytes queued
        self.poll_fd = fd
        self._fd = fd
        self._queue: deque[memoryview] = deque()
        self._owned = -1
        self._socket: socket.socket | None = None
        self._limit = 1 << 20
        self._broken = False
        self.error = ""  # why a write failed; "" if only its reader has gone
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            self.poll_fd = -1  # closed by the caller, as in >&-: the first write fails
            return
        if stat.S_ISFIFO(mode) or os.isatty(fd):
            self._reopen(fd)
        elif stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
        elif stat.S_ISREG(mode):
            self.poll_fd = -1

    def _reopen(self, fd: int) -> None:
        try:
            self._owned = os.open(
                f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
            self.poll_fd = self._owned
        except OSError:  # another user's terminal or pipe, or no /proc
            self._limit = select.PIPE_BUF

    def put(self, data: bytes) -> None:
        self._queue.append(memoryview(data))
        self.pending += len(data)

    def write(self) -> bool:
        """Write as much as the descriptor takes now.

        Return False, and drop the queue, if its reader is gone or a write failed (`error`).
        """
        while self._queue and not self._broken:
            if self._limit == select.PIPE_BUF and not self._has_room():
                return True
            chunk = self._queue[0]
            try:
                sent = self._send(chunk[: self._limit])
            except BlockingIOError:
                return True
            except OSError as error:
                self._broken = True
                if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                    self.error = error.strerror or "write failed"
                break
            self.taken += sent
            self.pending -= sent
            if sent == len(chunk):
                self._queue.popleft()
            else:
                self._queue[0] = chunk[sent:]
            if self._limit == select.PIPE_BUF:
                return True  # only what poll allowed
        if not self._broken and not self._queue:
            self._broken = self._reader_gone()
        if self._broken:
            self._queue.clear()
            self.pending = 0
            self.poll_fd = -1
        return not self._broken

    def _has_room(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(0))

    def _send(self, chunk: memoryview) -> int:
        if self._socket:
            return self._socket.send(chunk, socket.MSG_DONTWAIT)
        return os.write(self._owned if self._owned >= 0 else self._fd, chunk)

    def _reader_gone(self) -> bool:
        """Return whether the reader of a pipe has gone, even if there is nothing to write."""
        if self.poll_fd < 0:
            return False
        poll = select.poll()
        poll.register(self.poll_fd, 0)
        # A pipe says POLLERR; a socket or a terminal whose other end has gone says only POLLHUP.
        return any(events & (select.POLLERR | select.POLLNVAL | select.POLLHUP) for _, events in poll.poll(0))

    def lendable(self) -> int:
        """Return the descriptor by which the node may write in place of this process, -1 if it must not."""
        from transport.rpc import lendable  # here: few clients have so much to write

        if self._broken or not lendable.output(self._fd):
            return -1
        if not stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            return self._fd
        if self._owned >= 0:
            enlarged(self._owned)
        return self._owned

    def close(self) -> None:
        """Close the descriptors opened here; the caller's stays open."""
        if self._owned >= 0:
            os.close(self._owned)
            self._owned = -1
        if self._socket:
            self._socket.close()
            self._socket = None
        self.poll_fd = -1


def enlarged(fd: int) -> int:
    """Give a pipe that was full the room of large frames; return how many bytes are worth a read of `fd`.

    A read that asks for more than comes costs the mapping of memory for it.
    """
    import fcntl  # here: few clients have so much to read

    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 2 * BULK_PAYLOAD)
        return BULK
    except (OSError, AttributeError):
        return CHUNK
