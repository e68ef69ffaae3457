"""The memory file that all processes of a tree on one machine share: numbers under one lock, and slots.

A slot is a lock on one byte of the file (an open file description lock): it dies with the last descriptor of the
process that took it, however that ends. So no slot is ever lost, nothing lies in a directory, and there is nothing to
sweep.

Laws
1. Numbers are changed under one lock, with signals held back: who is stopped in the middle would stop the tree.
2. What a slot's record says counts exactly as long as the slot is held.
3. What a process inherits is for reading only: a command that writes to all its descriptors changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from quine.base.errors import DEFECT, Failure, Misconfigured
from transport.job.inherit import reopened

NAME = "quine-ledger"
SHORTEST, LONGEST = 0.002, 0.2  # seconds between two looks for something free
PATIENCE = 60.0  # seconds for the lock of the numbers, which is held for microseconds

_HEADER = struct.Struct("<QQQQddQQdQQQQ16sQQQ32s")
_RECORDS = 256  # where the records of the first kind begin
_LOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_BYTES = 1 << 22  # from one kind of slot to the next, in the bytes to lock; nothing is ever written there


class Numbers(NamedTuple):
    """Limits are the root's, and written once; 0 = none, but for depth."""

    depth: int
    agents: int
    concurrent: int
    limit_tokens: int
    limit_cost: float
    deadline: float  # seconds since boot
    born: int = 0  # agents so far
    tokens: int = 0  # settled
    cost: float = 0.0
    granted: int = 0  # places for agents here, of a tree whose origin is elsewhere; 0 at the origin
    asked: int = 0  # how often more of them were asked for
    had: int = 0  # the last of these whose answer was taken
    back: int = 0  # how many were given back, in all
    ident: bytes = b""  # names this book to the origin
    limit_stored: int = 0  # bytes in the files tier
    stored: int = 0  # what the tree has put there, less what it replaced and removed
    begun: int = 0  # when the tree began, and what its directories of personas were: quine/agent/personas.py
    personas: bytes = b""


class Kind:
    """Slots of one kind, each with a record if `record` has a size."""

    def __init__(self, number: int, most: int, record: str = "", at: int = 0) -> None:
        self.first = number * _BYTES
        self.most = most
        self.record = struct.Struct(record)
        self.at = at

    @property
    def end(self) -> int:
        return self.at + self.most * self.record.size


# Inferences at one time where there is no limit: 768. Tokens and cost that are reserved, and how much of that is
# sure to be used: the prompt. All in 20 KiB, for a shell that makes only small files (ulimit -f).
INFER = Kind(2, 768, "<IfIf", _RECORDS)
# Files that are being written to a tier with a quota: the bytes that are reserved for each.
PUT = Kind(3, 512, "<Q", INFER.end)
AGENT = Kind(1, 1 << 20)
MUTEX, ASKING = Kind(4, 1), Kind(5, 1)
# Who changes what a path of such a tier is: one at a time for each, by a hash; or one alone for all.
PATH, TURN, GATE = Kind(6, _BYTES), Kind(7, 1), Kind(8, 1)


class Book:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._writer = -1

    @classmethod
    def create(cls, numbers: Numbers, name: str = NAME) -> Book:
        fd = -1
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, PUT.end)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            os.pwrite(fd, _HEADER.pack(*numbers), 0)
            return cls(inherited(f"/proc/self/fd/{fd}"))
        except OSError as error:
            why = (error.strerror or "").lower()
            raise Misconfigured(
                f"the ledger of the tree cannot be made: {why}", "see ulimit -n and -f"
            ) from None
        finally:
            if fd >= 0:
                os.close(fd)

    # -- numbers -----------------------------------------------------------------------------------

    def numbers(self) -> Numbers:
        return Numbers(*_HEADER.unpack(os.pread(self.fd, _HEADER.size, 0)))

    @contextlib.contextmanager
    def changing(self) -> Iterator[Numbers]:
        """The numbers, with the right to `put` and `note` others."""
        fd = self.again()
        deadline = time.monotonic() + PATIENCE
        # Asked for first: a handler that raises may run inside the call that blocks, and then its answer is lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            while True:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                if lock(fd, MUTEX.first):
                    break
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                if time.monotonic() > deadline:
                    raise Failure(
                        DEFECT,
                        "the ledger of the tree is locked",
                        "a process of the tree was stopped in the middle of a change: kill -CONT it",
                    )
                time.sleep(SHORTEST / 4)
            self._writer = fd
            yield self.numbers()
        finally:
            os.close(fd)  # and the lock with it
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def put(self, numbers: Numbers) -> None:
        """Inside `changing` only."""
        os.pwrite(self._writer, _HEADER.pack(*numbers), 0)

    # -- slots -------------------------------------------------------------------------------------

    def slot(self, kind: Kind, limit: int) -> tuple[int, int]:
        """(descriptor that holds it, index) of the first free slot; (-1, -1) where all are held."""
        fd = self.again()
        for index in range(min(limit, kind.most)):
            if lock(fd, kind.first + index):
                return fd, index
        os.close(fd)
        return -1, -1

    def held(self, kind: Kind, index: int = 0) -> bool:
        return self._locked(kind.first + index, 1)

    def count(self, kind: Kind) -> int:
        """How many slots somebody holds."""
        held = 0
        for at in range(kind.first, kind.first + kind.most):
            if not self._locked(at, kind.first + kind.most - at):
                break  # the rest is free
            held += self._locked(at, 1)
        return held

    def _locked(self, at: int, length: int) -> bool:
        flock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, length, 0)
        return bool(_LOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, flock))[0] != fcntl.F_UNLCK)

    def note(self, kind: Kind, fd: int, index: int, *values: float) -> None:
        """Write the record of a slot that we hold with `fd`."""
        os.pwrite(fd, kind.record.pack(*values), kind.at + index * kind.record.size)

    def records(self, kind: Kind, but: int = -1) -> Iterator[tuple[float, ...]]:
        """Of the slots that somebody holds at this moment, where they say anything."""
        data = os.pread(self.fd, kind.most * kind.record.size, kind.at)
        for index, values in enumerate(kind.record.iter_unpack(data)):
            if any(values) and index != but and self.held(kind, index):
                yield values

    def again(self) -> int:
        """An open file description of its own: the lock on it belongs to whoever has its descriptor."""
        return reopened(f"/proc/self/fd/{self.fd}", os.O_RDWR)


def inherited(path: str) -> int:
    """A descriptor for reading that all that descends from us gets."""
    fd = reopened(path, os.O_RDONLY)
    os.set_inheritable(fd, True)
    return fd


def release(held: list[int]) -> None:
    for fd in held:
        os.close(fd)


def lock(fd: int, at: int, how: int = fcntl.F_WRLCK) -> bool:
    """One byte, for the open file description of `fd`: F_WRLCK alone, F_RDLCK with others, F_UNLCK. False: held."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(how, os.SEEK_SET, at, 1, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, says POSIX
        return False
    return True
