"""What a tree may still spend on this machine: agents, concurrent inferences, tokens, money, time, in one memory file.

The ledger is a memfd that every process of the tree inherits. A slot is a lock on one byte of it (an open file
description lock): it dies with the last descriptor of the process that took it, however that ends. So no slot is ever
lost, nothing lies in a directory, and there is nothing to sweep.

Laws
1. What a slot reserves counts exactly as long as its lock is held; what was settled counts for ever.
2. All slots that a step needs are taken before the step begins, or none.
3. Limits are written once, by the root of the tree. A descendant can set itself a narrower mark, never a wider one,
   and which ledger is its own is decided by what the processes above it hold, not by what it is told.
4. Numbers are changed under one lock, with signals held back: who is stopped in the middle would stop the tree.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quine.exits import DEFECT, Failure, Misconfigured
from quine.life import Limits
from transport.inherit import held_above, reopened

NAME = "quine-ledger"
SHORTEST, LONGEST = 0.002, 0.2  # seconds between two looks for something free
PATIENCE = 60.0  # seconds for the lock of the numbers, which is held for microseconds
LEAST_REPLY = 256  # tokens: with less than that no reply is worth its prompt
MOST_REPLY = 16384  # tokens of a reply that are reserved where the tree has that many

# the limits of the root: levels, agents, inferences, tokens, cost, deadline (since boot); agents so far, tokens, cost
_HEADER = struct.Struct("<QQQQddQQd")
_RECORD = struct.Struct("<Qd")  # tokens, cost that an inference slot has reserved
_RECORDS = 256  # where the records begin
_MUTEX, _AGENT, _INFER = 1 << 20, 1 << 21, 1 << 22  # bytes to lock; nothing is ever written there
_MOST = 1 << 10  # inferences at one time where there is no limit: each has a record
_MOST_AGENTS = 1 << 20
_LOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


class Spent(Exception):
    """The tree has used up what it may use. str() says what, `option` where it is set."""

    def __init__(self, detail: str, option: str) -> None:
        super().__init__(detail)
        self.option = option


class Mark(NamedTuple):
    """How far the totals of the tree may go, for this process and those below it; 0 = no limit."""

    tokens: int = 0
    cost: float = 0.0
    deadline: float = 0.0  # seconds since boot


class Hold:
    """One inference under way: its slot, and what it has reserved."""

    def __init__(self, fd: int, index: int, output: int) -> None:
        self.fd = fd
        self.index = index
        self.output = output  # the most tokens that the reply may have; 0 = as the guest likes


class _Numbers(NamedTuple):
    depth: int
    agents: int
    concurrent: int
    limit_tokens: int
    limit_cost: float
    deadline: float
    born: int
    tokens: int
    cost: float


class Ledger:
    def __init__(self, fd: int, mark: Mark | None = None) -> None:
        """`fd` is for reading only, and inherited: a command that writes to all its descriptors changes nothing."""
        self.fd = fd
        facts, mark = self._numbers(), mark or Mark()
        self.mark = Mark(
            int(_least(facts.limit_tokens, mark.tokens)),
            _least(facts.limit_cost, mark.cost),
            _least(facts.deadline, mark.deadline),
        )

    @classmethod
    def create(cls, limits: Limits) -> Ledger:
        """The ledger of a new tree."""
        fd = -1
        try:
            fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, _RECORDS + _MOST * _RECORD.size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            deadline = _now() + limits.deadline if limits.deadline else 0.0
            wide = (limits.depth, limits.agents, limits.concurrent, limits.tokens)
            os.pwrite(fd, _HEADER.pack(*_Numbers(*wide, limits.cost, deadline, 0, 0, 0.0)), 0)
            return cls(_inherited(f"/proc/self/fd/{fd}"))
        except OSError as error:
            why = (error.strerror or "").lower()
            raise Misconfigured(
                f"the ledger of the tree cannot be made: {why}", "see ulimit -n and -f"
            ) from None
        finally:
            if fd >= 0:
                os.close(fd)

    @classmethod
    def join(
        cls, told: object, limits: Limits, above: Sequence[tuple[int, int, str]] | None = None
    ) -> Ledger | None:
        """The ledger of the tree that we descend from, narrowed by our own `limits`; None at the top of a tree.

        It is the one that the topmost process above us holds; what a memo has `told` can make it narrower only.
        `above` is what inherit.held_above has found, where somebody has looked already.
        """
        if above is None:
            above = held_above(NAME)[NAME]
        if not above:
            return None
        _, inode, path = above[-1]
        ours = [
            int(path.rpartition("/")[2]) for pid, each, path in above if (pid, each) == (os.getpid(), inode)
        ]
        # The places of agents are descriptors of the same file, but for writing.
        reading = [fd for fd in ours if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY]
        fd = reading[0] if reading else _inherited(path)
        if not isinstance(told, dict):
            return cls(fd)._narrowed(limits)
        mark = told.get("mark")
        ledger = cls(
            fd, Mark(int(mark[0]), float(mark[1]), float(mark[2])) if isinstance(mark, list) else None
        )
        return ledger if told.get("given") == _given(limits) else ledger._narrowed(limits)

    def _narrowed(self, limits: Limits) -> Ledger:
        """A budget of our own inside the tree's: so much from now on, and never more than is left above."""
        facts, mark = self._numbers(), self.mark
        self.mark = Mark(
            int(_least(mark.tokens, limits.tokens and facts.tokens + limits.tokens)),
            _least(mark.cost, limits.cost and facts.cost + limits.cost),
            _least(mark.deadline, limits.deadline and _now() + limits.deadline),
        )
        return self

    def bound(self, limits: Limits) -> Limits:
        """These, as far as the root of the tree allows them."""
        facts = self._numbers()
        return limits._replace(
            depth=min(limits.depth, facts.depth),
            agents=int(_least(limits.agents, facts.agents)),
            concurrent=int(_least(limits.concurrent, facts.concurrent)),
        )

    def to_json(self, limits: Limits) -> dict[str, object]:
        """For the memo: how far this process and those below it may go, and what they were told of that."""
        return {"mark": list(self.mark), "given": _given(limits)}

    # -- agents ------------------------------------------------------------------------------------

    def agents(self, limit: int, count: int = 1) -> list[int] | None:
        """`count` places for agents as descriptors, or None where fewer are free. limit 0: none is needed, so []."""
        held: list[int] = []
        try:
            with (
                self._changing() as facts
            ):  # one at a time: two that want two would each take one, and be refused
                for _ in range(count if limit else 0):
                    fd, _index = self._slot(_AGENT, min(limit, _MOST_AGENTS))
                    if fd < 0:
                        _release(held)
                        return None
                    held.append(fd)
                self._put(facts._replace(born=facts.born + count))
        except BaseException:
            _release(held)
            raise
        return held

    # -- inferences --------------------------------------------------------------------------------

    def reserve(self, concurrent: int, prompt: int, price: Callable[[int, int], float] | None = None) -> Hold:
        """A slot for one inference of about `prompt` tokens; blocks while others hold what is needed.

        `price` gives dollars for (prompt, reply) tokens. Raises Spent where waiting would not help. A handler that
        raises ends the waiting.
        """
        pause = SHORTEST
        while True:
            fd, index = self._slot(_INFER, min(concurrent or _MOST, _MOST))
            if fd >= 0:
                try:
                    hold = self._reserve(fd, index, prompt, price)
                except BaseException:
                    os.close(fd)
                    raise
                if hold is not None:
                    return hold
                os.close(fd)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)

    def _reserve(
        self, fd: int, index: int, prompt: int, price: Callable[[int, int], float] | None
    ) -> Hold | None:
        """None: not now, but it may fit when others have settled."""
        mark = self.mark
        if not mark.tokens and not mark.cost:
            # Whoever held this slot may have died with something reserved.
            os.pwrite(
                fd, _RECORD.pack(prompt, price(prompt, 0) if price else 0.0), _RECORDS + index * _RECORD.size
            )
            return Hold(fd, index, 0)
        with self._changing() as facts:
            tokens, cost = self._reserved(index)
            output = MOST_REPLY
            if mark.tokens:
                output = min(output, mark.tokens - facts.tokens - tokens - prompt)
            if mark.cost and price:
                first = price(prompt, 0)
                each = (price(prompt, MOST_REPLY) - first) / MOST_REPLY
                room = mark.cost - facts.cost - cost - first
                output = min(output, int(room / each) if each else output if room >= 0 else 0)
            if output >= LEAST_REPLY:
                wanted = _RECORD.pack(prompt + output, price(prompt, output) if price else 0.0)
                os.pwrite(fd, wanted, _RECORDS + index * _RECORD.size)
                return Hold(fd, index, output)
            if tokens or cost:
                return None
            if mark.tokens and mark.tokens - facts.tokens - prompt < LEAST_REPLY:
                raise Spent(
                    f"{facts.tokens} of {mark.tokens} tokens are used, and the next reply needs about "
                    f"{prompt + LEAST_REPLY}",
                    "--max-tokens",
                )
            raise Spent(f"{facts.cost:.4f} of {mark.cost:.4f} US dollars are used", "--max-cost")

    def settle(self, hold: Hold, tokens: int, cost: float = 0.0) -> None:
        """What the inference really took; its slot is free after that."""
        try:
            with self._changing() as facts:
                self._put(facts._replace(tokens=facts.tokens + tokens, cost=facts.cost + cost))
                os.pwrite(hold.fd, _RECORD.pack(0, 0.0), _RECORDS + hold.index * _RECORD.size)
        finally:
            os.close(hold.fd)

    def _reserved(self, ours: int) -> tuple[int, float]:
        """What others have reserved: the records of the slots that somebody holds at this moment."""
        tokens, cost = 0, 0.0
        data = os.pread(self.fd, _MOST * _RECORD.size, _RECORDS)
        for index, (each, price) in enumerate(_RECORD.iter_unpack(data)):
            if (each or price) and index != ours and self._held(_INFER + index):
                tokens, cost = tokens + each, cost + price
        return tokens, cost

    # -- what is left ------------------------------------------------------------------------------

    def left(self) -> tuple[int | None, float | None]:
        """(tokens, dollars) that nobody has used or reserved; None where there is no limit."""
        mark = self.mark
        if not mark.tokens and not mark.cost:
            return None, None
        with self._changing() as facts:
            tokens, cost = self._reserved(-1)
        return (
            max(0, mark.tokens - facts.tokens - tokens) if mark.tokens else None,
            max(0.0, mark.cost - facts.cost - cost) if mark.cost else None,
        )

    def time_left(self) -> float | None:
        """Seconds until the deadline, negative after it; None where there is none."""
        return self.mark.deadline - _now() if self.mark.deadline else None

    def totals(self) -> tuple[int, int, float]:
        """(agents, tokens, dollars) of the whole tree so far."""
        facts = self._numbers()
        return facts.born, facts.tokens, facts.cost

    # -- locks and numbers -------------------------------------------------------------------------

    def _slot(self, kind: int, limit: int) -> tuple[int, int]:
        """(descriptor that holds it, index) of the first free slot; (-1, -1) where all are held."""
        fd = self._again()
        for index in range(limit):
            if _lock(fd, kind + index):
                return fd, index
        os.close(fd)
        return -1, -1

    def _held(self, at: int) -> bool:
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
        return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def _again(self) -> int:
        """An open file description of its own: the lock on it belongs to whoever has its descriptor."""
        return reopened(f"/proc/self/fd/{self.fd}", os.O_RDWR)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Numbers]:
        """The numbers, with the right to change them."""
        fd = self._again()
        deadline = time.monotonic() + PATIENCE
        # Asked for first: a handler that raises may run inside the call that blocks, and then its answer is lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            while True:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                if _lock(fd, _MUTEX):
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
            yield self._numbers()
        finally:
            os.close(fd)  # and the lock with it
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _numbers(self) -> _Numbers:
        return _Numbers(*_HEADER.unpack(os.pread(self.fd, _HEADER.size, 0)))

    def _put(self, facts: _Numbers) -> None:
        os.pwrite(self._writer, _HEADER.pack(*facts), 0)


def _given(limits: Limits) -> list[float]:
    """What a process was told its budget is; a nested one that was told the same has no other."""
    return [limits.tokens, limits.cost, limits.deadline]


def _now() -> float:
    """Seconds since boot, also those that the machine was asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _lock(fd: int, at: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, says POSIX
        return False
    return True


def _least(*values: float) -> float:
    """Of limits, where 0 is none."""
    return min((value for value in values if value), default=0)


def _inherited(path: str) -> int:
    """A descriptor for reading that all that descends from us gets: it counts here."""
    fd = reopened(path, os.O_RDONLY)
    os.set_inheritable(fd, True)
    return fd


def _release(held: list[int]) -> None:
    for fd in held:
        os.close(fd)
