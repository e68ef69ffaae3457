"""Shared counters: a memory file that all processes of a tree on one machine share: numbers under one lock, and slots.

A slot is a lock on one byte of the file (an open file description lock). The kernel releases it with the last
descriptor of the process that took it, however that process ends. So no slot is ever lost, and no file has to be
cleaned up.

Laws
1. Numbers are changed under one lock, with signals blocked: a process interrupted in the middle would stop the tree.
2. The record of a slot counts exactly as long as the slot is held. That of an inference whose holder was killed is
   charged, once: by `pay`, which can itself be killed at any point.
3. The inherited descriptor is read-only: a command that writes to all its descriptors changes nothing.
4. Any process of the user can open the file anew and write to it. An amount below 0, which would lift the limit of all
   others, and one that is not finite count as 0. A count that something is added to has a bound, far below that of its
   field: a sum that cannot be packed could not be paid.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from quine.base.errors import DEFECT, Failure, Misconfigured
from quine.base.sessions import LEDGER
from transport.inherit import link, reopened
from transport.lean import Any, NamedTuple, contextlib, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


NAME = LEDGER
LINK = link(NAME)
SHORTEST, LONGEST = 0.002, 0.2  # seconds between two tries for a free slot
PATIENCE = 60.0  # seconds to wait for the lock of the numbers, which is held for microseconds

_HEADER = struct.Struct("<QQQQddQQdQQQQ16sQQ40xQ")
_RECORDS = 256  # offset of the records of the first kind
_LOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_INFINITE = float("inf")
MOST = 1 << 62  # of a count
COUNTS = ("born", "tokens", "granted", "asked", "had", "back", "stored")
_BYTES = 1 << 22  # distance of two kinds in the range of lock bytes, where nothing is ever written


class Numbers(NamedTuple):
    """The numbers of a tree. The root writes the limits, once; 0 = no limit, but for depth."""

    depth: int
    agents: int
    concurrent: int
    limit_tokens: int
    limit_cost: float
    deadline: float  # seconds since boot
    born: int = 0  # agents so far
    tokens: int = 0  # settled
    cost: float = 0.0
    granted: int = 0  # places for agents on this machine, if the origin is another one; 0 at the origin
    asked: int = 0  # number of the last request for more of them
    had: int = 0  # number of the last request whose reply was read
    back: int = 0  # total of places given back
    ident: bytes = b""  # identifies these counters to the origin
    limit_stored: int = 0  # bytes in the shared files
    stored: int = 0  # bytes that the tree has put there, less those it replaced and removed
    paid: int = (
        0  # 1 + index of an inference that is in the totals, and whose record may still stand; 0 = none
    )


class Kind:
    """One kind of slot. Its records begin at `at`; with an empty `record` format it has none."""

    def __init__(self, number: int, most: int, record: str = "", at: int = 0) -> None:
        self.first = number * _BYTES
        self.most = most
        self.record = struct.Struct(record)
        self.at = at

    @property
    def end(self) -> int:
        return self.at + self.most * self.record.size


# Concurrent inferences, at most 768 without a limit. A record holds the reserved tokens and cost, and the part of both
# that is sure to be used. All records fit into 20 KiB, for a shell that may make only small files (ulimit -f).
INFER = Kind(2, 768, "<IfIf", _RECORDS)
# Files being written to a store with a quota; a record holds the reserved bytes.
PUT = Kind(3, 512, "<Q", INFER.end)
AGENT = Kind(1, 1 << 20)
MUTEX, ASKING = Kind(4, 1), Kind(5, 1)
# Changes of paths in such a store: one at a time for each path (by a hash), or one alone for all.
PATH, TURN, GATE = Kind(6, _BYTES), Kind(7, 1), Kind(8, 1)


class Locked(Exception):
    """Another process holds the lock of the numbers, and the caller must not wait. Nothing has been changed."""


class SharedCounters:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waits = True
        self._writer = -1

    @classmethod
    def create(cls, numbers: Numbers, name: str = NAME) -> SharedCounters:
        fd = -1
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, PUT.end)
            os.pwrite(fd, _HEADER.pack(*numbers), 0)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
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
        facts = Numbers(*_HEADER.unpack(os.pread(self.fd, _HEADER.size, 0)))
        limit, deadline, cost = map(amount, (facts.limit_cost, facts.deadline, facts.cost))
        counts = {name: min(getattr(facts, name), MOST) for name in COUNTS}
        paid = facts.paid if facts.paid <= INFER.most else 0
        return facts._replace(limit_cost=limit, deadline=deadline, cost=cost, paid=paid, **counts)

    @contextlib.contextmanager
    def changing(self) -> Iterator[Numbers]:
        """Lock the numbers and yield them, for `put` and `note`. Raises Failure after PATIENCE seconds."""
        fd = self.again()
        deadline = time.monotonic() + PATIENCE
        # Read before the first call that blocks signals: a handler that raises inside that call loses its result.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            while True:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                if lock(fd, MUTEX.first):
                    break
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                if not self._waits:
                    raise Locked
                if time.monotonic() > deadline:
                    raise Failure(
                        DEFECT,
                        "the ledger of the tree is locked",
                        "a process of the tree was stopped in the middle of a change: kill -CONT it",
                    )
                time.sleep(SHORTEST / 4)
            self._writer = fd
            yield self._finished(self.numbers())
        finally:
            os.close(fd)  # releases the lock
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def at_once(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that changes the numbers, or raise Locked. No other thread may change them meanwhile."""
        self._waits = False
        try:
            return function(*arguments)
        finally:
            self._waits = True

    def put(self, numbers: Numbers) -> None:
        """Write the numbers; inside `changing` only."""
        os.pwrite(self._writer, _HEADER.pack(*numbers), 0)

    def pay(self, facts: Numbers, index: int, tokens: int, cost: float) -> Numbers:
        """Add an inference to the totals and clear its record; return the new numbers. Inside `changing` only.

        Both or neither: the write that adds also says whose record is to be cleared, and it is one page, so a kill
        does not cut it in two. Whoever takes the lock next clears the record if the killed process had not yet.
        """
        facts = facts._replace(tokens=facts.tokens + tokens, cost=facts.cost + cost, paid=index + 1)
        self._add(facts, index)
        return self._finished(facts)

    def _add(self, facts: Numbers, index: int) -> None:
        """Write the totals that have the inference of this slot in them: from then on it is paid."""
        self.put(facts)

    def _finished(self, facts: Numbers) -> Numbers:
        if facts.paid:
            self.note(INFER, self._writer, facts.paid - 1, 0, 0.0, 0, 0.0)
            facts = facts._replace(paid=0)
            self.put(facts)
        return facts

    # -- slots -------------------------------------------------------------------------------------

    def slot(self, kind: Kind, limit: int, last: bool = False, begin: int = 0) -> tuple[int, int]:
        """Take the first free slot from `begin` on, or the `last`: (descriptor that holds it, index).

        Return (-1, -1) if all are held.
        """
        fd = self.again()
        indexes = range(begin, min(limit, kind.most))
        for index in reversed(indexes) if last else indexes:
            if lock(fd, kind.first + index):
                return fd, index
        os.close(fd)
        return -1, -1

    def held(self, kind: Kind, index: int = 0) -> bool:
        return self._locked(kind.first + index, 1)

    def count(self, kind: Kind, most: int = 0) -> int:
        """Return the number of held slots. With `most` it counts no more than so many ranges of them.

        Any process of the user can lock all of them, by one lock or by one for each.
        """
        held, at, ranges = 0, kind.first, 0
        while (found := self._first_range(at, kind.first + kind.most)) and not 0 < most <= ranges:
            held, at, ranges = held + found[1] - found[0], found[1], ranges + 1
        return held

    def _first_range(self, at: int, end: int) -> tuple[int, int] | None:
        """Return the first locked range from `at` to `end`. The kernel returns any lock there."""
        found, last = None, end
        while at < last and (lock := self._range(at, last - at)):
            found = last, _ = max(at, lock[0]), min(end, lock[1])
        return found

    def _locked(self, at: int, length: int) -> bool:
        return self._range(at, length) is not None

    def _range(self, at: int, length: int) -> tuple[int, int] | None:
        """Return the begin and end of a lock that another one holds in these bytes."""
        flock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, length, 0)
        how, _, start, size, _ = _LOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, flock))
        return None if how == fcntl.F_UNLCK else (start, start + size if size else at + length)

    def note(self, kind: Kind, fd: int, index: int, *values: float) -> None:
        """Write the record of a slot that the caller holds with `fd`."""
        os.pwrite(fd, kind.record.pack(*values), kind.at + index * kind.record.size)

    def records(self, kind: Kind, but: int = -1) -> Iterator[tuple[float, ...]]:
        """Yield the records of held slots, except empty ones and that of the index `but`."""
        for index, values in self._written(kind):
            if index != but and self.held(kind, index):
                yield values

    def abandoned(self, kind: Kind, own: int = -1) -> list[tuple[int, tuple[float, ...]]]:
        """Return (index, record) of slots whose holder died. That of `own`, held by the caller, is an earlier holder's.

        Inside `changing` only: a new holder of a slot writes its record under the lock, too.
        """
        return [
            (index, values)
            for index, values in self._written(kind)
            if index == own or not self.held(kind, index)
        ]

    def _written(self, kind: Kind) -> Iterator[tuple[int, tuple[float, ...]]]:
        size = kind.record.size
        data = os.pread(self.fd, kind.most * size, kind.at).rstrip(
            b"\0"
        )  # few slots have been held at one time
        data += bytes(-len(data) % size)
        for index, values in enumerate(kind.record.iter_unpack(data)):
            if any(values):
                yield index, tuple(map(amount, values))

    def again(self) -> int:
        """Open a new file description: a lock on it lasts as long as its last descriptor."""
        return reopened(f"/proc/self/fd/{self.fd}", os.O_RDWR)


def amount(value: float) -> float:
    """Return an amount that a file tells: 0 in place of one below 0 or not finite."""
    return value if 0 <= value < _INFINITE else 0.0


def inherited(path: str) -> int:
    """Return a read-only descriptor that all descendants inherit."""
    fd = reopened(path, os.O_RDONLY)
    os.set_inheritable(fd, True)
    return fd


def release(held: list[int]) -> None:
    for fd in held:
        os.close(fd)


def lock(fd: int, at: int, how: int = fcntl.F_WRLCK) -> bool:
    """Lock the byte `at` for the file description of `fd`: F_WRLCK alone, F_RDLCK shared, F_UNLCK. False if held."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(how, os.SEEK_SET, at, 1, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, says POSIX
        return False
    return True
