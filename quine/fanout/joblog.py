"""The record of a batch, a line for each item that has ended, and resuming by it.

    Seq Host Starttime JobRuntime Send Receive Exitval Signal Command | Node Id Attempt State Hash

The first nine columns are those of GNU parallel. Hash names the item by its content: arguments, command, stdin.

Laws
1. A line is written when the output of its item has been passed on, in one write. So a kill of this process loses no
   line that was written; fsync, once a second and at the end, is for a machine that loses its power.
2. A job that is in the journal without a line here was sent when the batch was killed: see `journal`.
3. A last line without its end was torn by a crash: it is cut off, and its item has no line.
4. An item is known by its hash, and equal ones are counted: order and length of the list do not matter. If its returns
   have replaced its files then its line has SENT:CAME, and each of the two is that item.
5. There is one line an item. The line of an item that is run again stays until the item has a new one: the list may be
   another one now, or end early, and what is known of the others was dropped with them. The new line says so behind its
   Attempt, with the State of the old one (`2:failed`), until that is removed at the end. So if this process is killed
   before, no run counts both; a job that was sent says it in the journal. Equal items are told apart by nothing else:
   in later runs they have other numbers, and one run counts ends that another does not.
6. An item that was ended because the batch was has no end of its own: its State is STOPPED, and resuming runs it. One
   whose job has ended and whose returns did not come is UNRETURNED: resuming asks for them, and runs nothing.
7. Where {#} names results, an item is not started under the number of another one that has its line, or runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections import Counter
from itertools import chain

from quine.base.errors import Misconfigured
from quine.fanout.files.replaced import SUFFIX, Replaced
from quine.fanout.input.seen import Seen, TakenNumbers
from quine.fanout.journal import Journal
from quine.fanout.outcome import LOST, NEVER
from quine.fanout.output.record_file import NEW, locked, replaced, unrecorded, whole_lines, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quine.fanout.outcome import Unreturned

PARALLEL = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand"
HEAD = PARALLEL + "\tNode\tId\tAttempt\tState\tHash\n"
COLUMNS = HEAD.count("\t") + 1
STRANGE = 20  # items, at most, behind which an edited command is told: all of them run again
NO_LOG = "--resume and --resume-failed need --joblog FILE"
EVERY = 1.0  # seconds between fsyncs
NUMBER = re.compile("[0-9]{1,18}").fullmatch  # of an item
RUNNING = "running"
STOPPED = "stopped"
UNRETURNED = "unreturned"
ESCAPES = {ord("\\"): "\\\\", ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}


class Entry:
    """One line."""

    __slots__ = (
        *("attempt", "code", "command", "fetched", "hash", "host", "id", "kind", "number", "received"),
        *("renews", "seconds", "sent", "seq", "signal", "started", "stopped", "unreturned"),
    )

    def __init__(self, seq: int, hash: str) -> None:
        self.seq = seq
        self.hash = hash
        self.command = self.host = self.id = ""
        self.fetched = ""  # the id of the job, of a run before, whose returns were asked for
        self.kind = NEVER
        self.stopped = False
        self.unreturned: Unreturned | None = None
        self.renews: str | None = (
            None  # the State of the old line that this is in place of; None: not looked for yet
        )
        self.attempt = self.code = self.signal = self.sent = self.received = 0
        self.number = 0  # that the job of a run before has; 0: `seq`
        self.started = self.seconds = 0.0

    def line(self) -> str:
        state = STOPPED if self.stopped else UNRETURNED if self.unreturned else self.kind.replace(" ", "-")
        number = f"#{self.number}" if self.number not in (0, self.seq) else ""
        attempt = f"{self.attempt}{number}:{self.renews or ''}".rstrip(":")
        columns = (
            *(str(self.seq), self.host or ":", f"{self.started:.3f}", f"{self.seconds:10.3f}"),
            *(str(self.sent), str(self.received), str(self.code), str(self.signal)),
            *(self.command.translate(ESCAPES), self.host or "local", self.id, attempt),
            *(state, self.hash),
        )
        return "\t".join(columns) + "\n"


class Past:
    """The runs before, as a log and its journal tell of them."""

    def __init__(self, path: str, journal: Journal, keep: Iterable[str]) -> None:
        """`keep`: kinds of the ends that count. Raises OSError, and Misconfigured."""
        self._again: dict[str, Seen] = {}  # State -> hashes of lines whose ends do not count
        self._ends: dict[str, Seen] = {}  # kind -> hashes of the others
        self._numbers = Seen()  # that their items had, with their hashes
        self.taken = TakenNumbers()
        self._running: dict[str, list[str]] = {}  # hash -> ids that were sent, and have no line
        self._unreturned: dict[str, list[str]] = {}  # hash -> ids of jobs whose returns did not come
        self._path = path
        self._journal, self._keep = journal, frozenset(keep)
        self._renewed: Counter[tuple[str, str]] = Counter()  # hash and State of lines that have a new one
        self.replaced = Replaced(path)
        self.replaced.read()
        self.count = self._strange = 0
        journal.read()
        if next(whole_lines(path), HEAD) != HEAD:
            raise OSError(errno.EINVAL, "not a log that can be resumed")
        for columns in self._all():
            journal.ended(columns[-4], columns[-2] != UNRETURNED)
            if renews := columns[-3].partition(":")[2]:
                self._renewed[columns[-1], renews] += 1
        under_way = Counter((sent.hash, sent.renews) for sent in journal.sent.values() if sent.renews)
        for columns in self.latest():
            self.count += 1
            kind, hash = columns[-2].replace("-", " "), columns[-1]
            if under_way[hash, columns[-2]]:
                under_way[hash, columns[-2]] -= 1
                kind = RUNNING  # the job that was sent
            elif kind == UNRETURNED and columns[-4] in journal.unreturned:
                self._unreturned.setdefault(hash, []).append(columns[-4])
            elif kind == UNRETURNED:
                kind = LOST  # the journal has gone, and with it the place of the results, or they are written over
            if kind not in self._keep:
                self._again.setdefault(columns[-2], Seen()).add(hash)
            else:
                self._ends.setdefault(kind, Seen()).add(hash)
                self._numbers.add((hash, int(columns[0])))
            if kind == UNRETURNED or kind in self._keep:
                self.taken.add(hash, int(columns[-3].partition(":")[0].partition("#")[2] or columns[0]))
        journal.keep_unreturned({id for ids in self._unreturned.values() for id in ids})
        for id, sent in journal.sent.items():
            self._running.setdefault(sent.hash, []).append(id)
            self.taken.add(sent.hash, sent.numbers.job)

    def _all(self) -> Iterator[list[str]]:
        """Yield the columns of the lines of items."""
        for line in whole_lines(self._path):
            columns = line[:-1].split("\t")
            if len(columns) == COLUMNS and NUMBER(columns[0]):
                yield columns

    def latest(self) -> Iterator[list[str]]:
        """Yield those of lines that have no new one, read anew: there may be millions."""
        renewed = self._renewed.copy()
        for columns in self._all():
            if renewed[columns[-1], columns[-2]]:
                renewed[columns[-1], columns[-2]] -= 1  # the new one is behind it
            else:
                yield columns

    def claim(self, hash: str, state: str = "") -> str:
        """Return the State of a line whose end does not count, for one of these items that will have a new one.

        "" if there is none. `state`: of a line with this one.
        """
        for each in [state] if state else self._again:
            if each in self._again and self._again[each].take(hash):
                return each
        return ""

    def take(self, hash: str) -> tuple[str, str]:
        """Return the kind of the end that one of these items had: "" if it has none that counts.

        RUNNING, and the id of its job: it was sent when the batch was killed. UNRETURNED: so with one that has ended.
        """
        for kind, hashes in self._ends.items():
            if hashes.take(hash):
                return kind, ""
        if ids := self._running.get(hash):
            return RUNNING, ids.pop(0)  # in their order: equal items have the outputs that they had
        if ids := self._unreturned.get(hash):
            id = ids.pop(0)
            if id in self._journal.unreturned:
                return UNRETURNED, id
            return (LOST, "") if LOST in self._keep else ("", "")  # written over in this run
        return "", ""

    def strangers(self, known: bool) -> int:
        """Count one more of the first items; return their number, once, where these runs have none of them."""
        self._strange = -1 if known or self._strange < 0 else self._strange + 1
        return self._strange if self._strange == min(STRANGE, self.count) else 0

    def is_over(self, hash: str) -> bool:
        """Whether the next one of these items has an end that counts."""
        return any(hash in hashes for hashes in self._ends.values())

    def knows(self, hash: str) -> bool:
        """Whether these runs had such an item, whatever became of it."""
        seen = (*self._ends.values(), *self._again.values())
        return hash in self._running or hash in self._unreturned or any(hash in hashes for hashes in seen)

    @property
    def left(self) -> int:
        """Jobs without an end in the log, or whose results did not come."""
        return sum(map(len, (*self._running.values(), *self._unreturned.values())))

    def has(self, hash: str, number: int) -> bool:
        """Whether one of these items had this number, and an end that counts."""
        return (hash, number) in self._numbers


def _settled(columns: list[str]) -> str:
    """Return the line of these columns, which is in place of no other one."""
    columns[-3] = columns[-3].partition(":")[0]
    return "\t".join(columns) + "\n"


def past(path: str, keep: Iterable[str]) -> Past:
    """Return what a log tells, and leave it as it is. Raises Misconfigured."""
    path = os.path.realpath(path)
    try:
        return Past(path, Journal(path), set(keep))
    except OSError as error:
        raise Misconfigured(f"{path}: {(error.strerror or str(error)).lower()}") from None


class Joblog:
    """The log of this run, and of those before if it is resumed."""

    def __init__(
        self, path: str, keep: Iterable[str] | None = None, elsewhere: bool = False, begins: bool = True
    ) -> None:
        """`keep`: resume; items whose lines are of these kinds are not run again. With `lost` keep what was running.

        `elsewhere`: also what ran on another machine. Without `begins` it is locked and read, and stays as it is until
        `begin`, or `leave`. Raises Misconfigured if it cannot be had.
        """
        path = os.path.realpath(path)  # a rename would replace a symbolic link
        self._path = path
        self.journal = Journal(path)
        self.replaced = Replaced(path)
        self._synced = 0.0
        self._dirty = False
        self._past: Past | None = None
        self._old = 0  # lines of the runs before, with the first one,
        self._renewed = Seen()  # and hash and State of those of them that have a new one
        self._fds: list[int] = []
        self._log = -1
        self._made = not os.path.lexists(path)
        with self._or_refused():
            self._fds.append(locked(path))
            if keep is not None:
                self._past = Past(path, self.journal, keep)
                self.replaced = self._past.replaced
                self.journal.check_owner(elsewhere)
            else:
                check_forgets_none(path)
        if begins:
            self.begin()

    def begin(self) -> None:
        """Write it anew, with the lines of the runs before that count. Raises Misconfigured."""
        self._made = False
        with self._or_refused():
            kept: Iterable[str] = ()
            if self._past:
                kept, self._old = map(_settled, self._past.latest()), 1 + self._past.count
            else:
                self.replaced.forget()
            mode = stat.S_IMODE(os.fstat(self._fds[0]).st_mode)
            # The journal first: a job whose line is here must not be in it, or it would count as lost.
            self.journal.begin()
            self._fds.append(replaced(self._path, chain((HEAD,), kept), mode))
            self._log = self._fds[-1]

    @contextlib.contextmanager
    def _or_refused(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            self.leave()
            raise Misconfigured(f"{self._path} is in use by another batch") from None
        except Misconfigured:
            self.leave()
            raise
        except OSError as error:
            self.leave()
            raise Misconfigured(f"{self._path}: {(error.strerror or str(error)).lower()}") from None

    def before(self, hash: str) -> tuple[str, str]:
        """See `Past.take`."""
        return self._past.take(hash) if self._past else ("", "")

    def found(self, entry: Entry, note: Callable[[str], None] = lambda _: None) -> tuple[str, str]:
        """Return what `before` does for the item of an entry, which gets the line that its own will be in place of."""
        kind, id = self.before(entry.hash)
        if self._past and kind in ("", RUNNING, UNRETURNED):
            renews = self.journal.sent[id].renews if kind == RUNNING else kind
            entry.renews = "" if kind == RUNNING and not renews else self._past.claim(entry.hash, renews)
        if self._past and (count := self._past.strangers(bool(kind or entry.renews))):
            note(f"none of the first {count} items is in {self._path}: their command or files are other ones")
        return kind, id

    def is_over(self, hash: str) -> bool:
        """See `Past.is_over`."""
        return self._past is not None and self._past.is_over(hash)

    def knows(self, hash: str) -> bool:
        """See `Past.knows`."""
        return self._past is not None and self._past.knows(hash)

    def has(self, hash: str, number: int) -> bool:
        """See `Past.has`."""
        return self._past is not None and self._past.has(hash, number)

    def taken(self, hash: str, number: int) -> bool:
        """Whether another item has this number (law 7)."""
        return self._past is not None and self._past.taken.by_another(hash, number)

    def end(self, entry: Entry, now: float) -> None:
        """An item has its end, and its output was passed on."""
        if entry.unreturned:
            self.journal.no_returns(entry.id, entry.unreturned)
        if self._past and entry.renews is None:
            entry.renews = self._past.claim(entry.hash)
        written(self._log, entry.line(), self._path)
        self.journal.ended(entry.id, returned=not entry.unreturned)
        for id in {entry.fetched, entry.id} - ({entry.id} if entry.unreturned else set()):
            self.journal.unreturned.pop(id, None)
        if entry.renews:
            self._renewed.add((entry.hash, entry.renews))
        self._dirty = True
        if now - self._synced >= EVERY:
            self._sync(now)

    def _sync(self, now: float) -> None:
        if self._dirty:
            self._synced, self._dirty = now, False
            try:
                os.fsync(self._log)
            except OSError as error:
                raise unrecorded(self._path, error) from None

    def close(self) -> None:
        """Raises Failure if it may not outlast a loss of power."""
        try:
            self._sync(0.0)
            self._drop_renewed()
            self.journal.close()
        finally:
            self._close()

    def _drop_renewed(self) -> None:
        """Remove the lines of the runs before whose items have a new one."""
        if not len(self._renewed):
            return
        try:
            mode = stat.S_IMODE(os.fstat(self._log).st_mode)
            self._fds.append(replaced(self._path, self._but_renewed(), mode))
        except OSError as error:
            raise unrecorded(self._path, error) from None

    def _but_renewed(self) -> Iterator[str]:
        for at, line in enumerate(whole_lines(self._path)):
            columns = line[:-1].split("\t")
            if not (0 < at < self._old and self._renewed.take((columns[-1], columns[-2]))):
                yield _settled(columns)

    def leave(self) -> None:
        """The batch was refused, or is over: close what is open. A log that was only made to be locked is removed."""
        if self._made and self._fds and not os.fstat(self._fds[0]).st_size:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._close()

    def _close(self) -> None:
        self.journal.leave()
        self.replaced.close()
        while self._fds:
            os.close(self._fds.pop())


def files_of(path: str) -> list[str]:
    """Return the paths of the files that a batch with this log writes."""
    path = os.path.realpath(path)
    return [path + suffix + new for suffix in ("", ".started", ".outputs", SUFFIX) for new in ("", NEW)]


def check_forgets_none(path: str) -> None:
    """Raise Misconfigured if jobs of a batch before have no end in its log, or results there: they would run twice."""
    path = os.path.realpath(path)
    if not os.path.exists(f"{path}.started"):
        return
    try:
        left = past(path, ()).left
    except Misconfigured:
        return  # there is nothing that could be resumed
    if left:
        raise Misconfigured(
            f"{path}: {left} jobs of the batch before may still run, or have results that did not come",
            f"--resume goes on with them; without {path}.started they are forgotten, and their items run again",
        )
