"""The record of a batch, a line for each item that has ended, and resuming by it.

    Seq Host Starttime JobRuntime Send Receive Exitval Signal Command | Node Id Attempt State Hash

The first nine columns are those of GNU parallel. Hash names the item by its content: arguments, command, stdin.

Laws
1. A line is written when the output of its item has been passed on, in one write. So a kill of this process loses no
   line that was written; fsync, once a second and at the end, is for a machine that loses its power.
2. Before an item is started its hash is added to FILE.started. An item that is in there without a line in the log was
   running when the batch was killed: its outcome is lost.
3. A last line without its end was torn by a crash: it is cut off, and its item has no line.
4. An item is known by its hash, and equal ones are counted: order and length of the list do not matter.
5. There is one line an item: resuming drops the lines of the items that it runs again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import Counter

from quine.base import errors
from quine.base.errors import Failure, Misconfigured
from quine.fanout.outcome import LOST, NEVER
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PARALLEL = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand"
HEAD = PARALLEL + "\tNode\tId\tAttempt\tState\tHash\n"
COLUMNS = HEAD.count("\t") + 1
EVERY = 1.0  # seconds between fsyncs
RUNNING = "running"
ESCAPES = {ord("\\"): "\\\\", ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}


class Entry:
    """One line."""

    __slots__ = (
        *("attempt", "code", "command", "hash", "host", "id", "kind", "received"),
        *("seconds", "sent", "seq", "signal", "started"),
    )

    def __init__(self, seq: int, hash: str) -> None:
        self.seq = seq
        self.hash = hash
        self.command = self.host = self.id = ""
        self.kind = NEVER
        self.attempt = self.code = self.signal = self.sent = self.received = 0
        self.started = self.seconds = 0.0

    def line(self) -> str:
        columns = (
            *(str(self.seq), self.host or ":", f"{self.started:.3f}", f"{self.seconds:10.3f}"),
            *(str(self.sent), str(self.received), str(self.code), str(self.signal)),
            *(self.command.translate(ESCAPES), self.host or "local", self.id, str(self.attempt)),
            *(self.kind.replace(" ", "-"), self.hash),
        )
        return "\t".join(columns) + "\n"


def hash_of(parts: Iterable[bytes]) -> str:
    """Return the name of an item by its content; where one part ends and the next begins counts."""
    from transport.lean import blake2b

    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


class Joblog:
    """The log of this run, and of those before if it is resumed."""

    def __init__(self, path: str, keep: Iterable[str] | None = None) -> None:
        """`keep`: resume behind the lines of these kinds, and drop others; with `lost` also keep what was running.

        Raises Misconfigured if it cannot be had.
        """
        path = os.path.realpath(path)  # a rename would replace a symbolic link
        self._path, self._journal = path, path + ".started"
        self._synced = 0.0
        self._dirty = False
        self._before: dict[str, list[str]] = {}  # hash -> kinds of the ends of runs before
        self._fds: list[int] = []
        try:
            self._fds.append(_locked(path))
            kept: list[str] = [HEAD]
            if keep is not None:
                kept += self._read(set(keep))
            begun = (f"{hash}\n" for hash, kinds in self._before.items() for _ in kinds)
            # The journal first: an item whose line is dropped must not be in it, or it would count as lost.
            self._started = self._replaced(self._journal, "".join(begun))
            self._log = self._replaced(path, "".join(kept))
        except BlockingIOError:
            self._close()
            raise Misconfigured(f"{path} is in use by another batch") from None
        except OSError as error:
            self._close()
            raise Misconfigured(f"{path}: {(error.strerror or str(error)).lower()}") from None

    def _read(self, keep: set[str]) -> list[str]:
        """Return the lines that are kept."""
        kept, begun = [], Counter(line.strip() for line in _lines(self._journal))
        lines = _lines(self._path)
        if lines and lines[0] != HEAD:
            raise OSError(errno.EINVAL, "not a log that can be resumed")
        for line in lines:
            columns = line[:-1].split("\t")
            if len(columns) != COLUMNS or not columns[0].isdigit():
                continue
            kind, hash = columns[-2].replace("-", " "), columns[-1]
            begun[hash] -= 1
            if kind in keep:
                kept.append(line)
                self._before.setdefault(hash, []).append(kind)
        for hash in (+begun).elements() if LOST in keep else ():
            self._before.setdefault(hash, []).append(RUNNING)
        return kept

    def _replaced(self, path: str, text: str) -> int:
        """Replace a file as a whole, or not at all, also where the machine loses its power. Return it, to append to."""
        new = path + ".new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._fds.append(fd := os.open(new, flags, 0o666))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it has the name that others lock
        write_all(fd, os.fsencode(text))
        os.fsync(fd)
        os.replace(new, path)
        return fd

    def before(self, hash: str) -> str:
        """Return the kind of the end that one of these items had in a run before: "" if it has none that counts.

        RUNNING: it was running when the batch was killed.
        """
        kinds = self._before.get(hash)
        return kinds.pop() if kinds else ""

    def start(self, hash: str) -> None:
        """An item is about to be started for the first time."""
        self._write(self._started, f"{hash}\n")

    def end(self, entry: Entry, now: float) -> None:
        """An item has its end, and its output was passed on."""
        self._write(self._log, entry.line())
        self._dirty = True
        if now - self._synced >= EVERY:
            self._sync(now)

    def _write(self, fd: int, text: str) -> None:
        """Raises Failure: a batch that cannot be recorded does not go on."""
        try:
            write_all(fd, os.fsencode(text))
        except OSError as error:
            raise Failure(errors.LOST, f"{self._path}: {(error.strerror or '').lower()}") from None

    def _sync(self, now: float) -> None:
        if self._dirty:
            self._synced, self._dirty = now, False
            os.fsync(self._log)

    def close(self, whole: bool) -> None:
        """`whole`: nothing is running, so that no outcome is open but of items that were not in the input."""
        self._sync(0.0)
        if whole and not any(RUNNING in kinds for kinds in self._before.values()):
            os.unlink(self._journal)
        self._close()

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _lines(path: str) -> list[str]:
    """Return the whole lines of a file, none if it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return [line for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def _locked(path: str) -> int:
    """Open a log and lock it. Raises BlockingIOError if another batch has it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # it was replaced in between
