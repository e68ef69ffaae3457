"""Spares: processes that the launcher forks ahead of orders while starts follow each other, so that none waits.

Laws
1. A spare becomes one job; until then it runs errands on file systems: it removes folders, and looks for programs. A
   file system that does not answer holds up this process alone.
2. An order to start is carried out when the launcher has closed its end of the socket, and before that the report of
   the start: see `child.fork`.
3. One spare at most is idle, and for LIFE seconds at most: `ps` shows the age of a job's process.
4. A spare ends with its launcher.

Messages to a spare:
    S and the launcher's own message, with its descriptors      a start
    L and a path, with the folder's descriptor if there is one  a folder to leave; the answer of `workdir.leave`, a byte
    F and the parts of a key, separated by NUL                  a program to look for; the answer of `quick.find`
"""

from __future__ import annotations

import errno
import math
import os
import sys
import time

from transport import inherit, quickjson
from transport.launcher import child, quick, workdir
from transport.lean import signal, socket
from transport.status import NOT_STARTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # Given the launcher's message and its descriptors: the start that they order.
    Prepared = Callable[[bytes, "list[int]"], child.Start]

MESSAGE = 1 << 16  # bytes of one message; a larger one goes in a memfd
RIGHTS = 8  # most descriptors with one message
START, LEAVE, FIND = b"S", b"L", b"F"
NAME = b"quine-spare"  # the name of the process, until it is a job
LIFE = 2.0  # seconds
REPORT = 3  # place of the report among the descriptors of a start


class Spare:
    """One process, and the launcher's end of the socket to it. `errand`: a folder's number or a key, 0 if idle."""

    __slots__ = ("born", "errand", "pid", "socket")

    def __init__(self, prepared: Prepared) -> None:
        """Fork. OSError if no process can be made."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A signal to the child, while it has the parent's handlers, would be handled as one to the parent.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if not self.pid:
                try:
                    _serve(far, prepared)
                finally:
                    os._exit(NOT_STARTED)
        except OSError:
            near.close()
            raise
        finally:
            far.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.socket = near
        self.born = time.monotonic()
        self.errand: int | quick.Key = 0

    def send(self, data: bytes, fds: list[int]) -> bool:
        """Send an order. False if the process was killed, or the kernel has no room: then it is given up."""
        numbers = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if fds else []
        try:
            self.socket.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            self.socket.close()
            return False
        return True


class Spares:
    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._idle: Spare | None = None
        self._out: dict[int, Spare] = {}  # on an errand, by the descriptor of its socket

    @property
    def out(self) -> list[int]:
        """The descriptors to poll: each is readable when an errand is done."""
        return list(self._out)

    def due(self) -> float | None:
        """The time at which `dismiss` has something to do."""
        return self._idle.born + LIFE if self._idle else None

    def make(self) -> None:
        """Make sure that one is idle; without room for it there is none."""
        try:
            self._idle = self._idle or Spare(self._prepared)
        except OSError:
            pass  # the next order is carried out without one, and reports the error

    def dismiss(self, now: float) -> None:
        """Let the idle one go if it is too old by now."""
        if self._idle and now >= self._idle.born + LIFE:
            self._idle.socket.close()
            self._idle = None

    def close(self) -> None:
        """Let the idle one go, and wait for its end: where process 1 reaps nobody, it would stay as a zombie."""
        spare = self._idle
        self.dismiss(math.inf)
        if spare:
            try:
                os.waitpid(spare.pid, 0)
            except ChildProcessError:
                pass  # the kernel has reaped it

    def start(self, message: bytes, fds: list[int]) -> int:
        """Let the idle one become a job; return its pid, or 0 if there is none. It takes the report out of `fds`."""
        spare, self._idle = self._idle, None
        if spare is None or not spare.send(START + message, fds):
            return 0
        os.close(fds.pop(REPORT))
        spare.socket.close()
        return spare.pid

    def leave(self, number: int, path: str, fds: list[int]) -> None:
        """Have a folder removed if it is empty. Raises OSError."""
        self._send(number, LEAVE + os.fsencode(path), fds)

    def find(self, key: quick.Key) -> None:
        """Have a program looked for, unless that is being done. Raises OSError."""
        if not any(spare.errand == key for spare in self._out.values()):
            self._send(key, FIND + os.fsencode("\0".join(key)), [])

    def _send(self, errand: int | quick.Key, data: bytes, fds: list[int]) -> None:
        spare, self._idle = self._idle, None
        if spare is None or not spare.send(data, fds):
            spare = Spare(self._prepared)
            if not spare.send(data, fds):
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        spare.errand = errand
        self._out[spare.socket.fileno()] = spare

    def done(self, fd: int) -> tuple[int | quick.Key, int]:
        """Return an errand and its result, which is 0 (a folder that is gone, no program) if the process was killed.

        Its spare is idle again.
        """
        spare = self._out.pop(fd)
        answer = b""
        try:
            answer = spare.socket.recv(1)
        except OSError:
            pass
        errand, spare.errand = spare.errand, 0
        if answer and self._idle is None:
            self._idle = spare
        else:
            spare.socket.close()
        return errand, answer[0] if answer else 0


def receive(channel: socket.socket, flags: int = 0) -> tuple[bytes, list[int]]:
    """Receive one message with its descriptors, which the caller owns; b"" if the other end is closed."""
    space = socket.CMSG_SPACE(4 * RIGHTS)
    data, rights, _, _ = channel.recvmsg(MESSAGE + 1, space, flags | socket.MSG_CMSG_CLOEXEC)
    return data, [
        int.from_bytes(numbers[at : at + 4], sys.byteorder)
        for _, _, numbers in rights
        for at in range(0, len(numbers), 4)
    ]


def read(data: bytes, fds: list[int]) -> list[Any]:
    """Parse a message of the node; a large one is in the last of its descriptors."""
    words: list[Any] = quickjson.loads(data)
    if words == ["large"]:
        words = quickjson.loads(os.pread(fds[-1], os.fstat(fds[-1]).st_size, 0))
    return words


def _serve(far: socket.socket, prepared: Prepared) -> None:
    """The process: carry out orders until one is a start, or the launcher has closed its end."""
    os.setsid()
    child.default_signals()
    inherit.close_others({far.fileno()})
    name = os.open(
        "/proc/self/comm", os.O_WRONLY
    )  # open() would copy fifty pages more of the launcher's memory
    os.write(name, NAME)
    os.close(name)
    while True:
        data, fds = receive(far)
        if data[:1] == LEAVE:
            result = workdir.leave(os.fsdecode(data[1:]), fds[0] if fds else -1)
            far.send(bytes([result]), socket.MSG_NOSIGNAL)
        elif data[:1] == FIND:
            directory, command, path = os.fsdecode(data[1:]).split("\0")
            far.send(bytes([quick.find((directory, command, path))]), socket.MSG_NOSIGNAL)
        elif data[:1] == START:
            far.recv(1)  # to its end
            report = socket.socket(fileno=fds.pop(REPORT))
            child.run(prepared(data[1:], fds), report)
            return
        else:
            os._exit(0)
