"""The record of a batch, a line for each item that has ended, and resuming by it.

    Seq Host Starttime JobRuntime Send Receive Exitval Signal Command | Node Id Attempt State Hash

The first nine columns are those of GNU parallel. Hash names the item by its content: arguments, command, stdin.

Laws
1. A line is written when the output of its item has been passed on, in one write. So a kill of this process loses no
   line that was written; fsync, once a second and at the end, is for a machine that loses its power.
2. Before a job is sent its id is added to FILE.started. A job that is in there without a line in the log was sent when
   the batch was killed: it is looked for on the hosts, and is lost if none of them knows of it. This, too, is one write
   and no fsync: after a loss of power the jobs of the last seconds may run twice.
3. A last line without its end was torn by a crash: it is cut off, and its item has no line.
4. An item is known by its hash, and equal ones are counted: order and length of the list do not matter.
5. There is one line an item: resuming drops the lines of the items that it runs again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from math import inf
from typing import NamedTuple

from quine.base import errors
from quine.base.errors import Failure, Misconfigured
from quine.fanout.outcome import NEVER
from transport.address import boot_id
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PARALLEL = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand"
HEAD = PARALLEL + "\tNode\tId\tAttempt\tState\tHash\n"
COLUMNS = HEAD.count("\t") + 1
EVERY = 1.0  # seconds between fsyncs
RUNNING = "running"
JOURNAL = "quine batch"  # first words of FILE.started
COMPACT = 20_000  # lines of it after which it is written anew, if most of them are of jobs that have ended
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


class Sent(NamedTuple):
    """A job that was sent: the item, its try, and when, in seconds of `_clock`."""

    hash: str
    attempt: int
    when: float


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
        self._running: dict[str, list[str]] = {}  # hash -> ids that were sent, and have no line
        self.batch, self._secret = os.urandom(16).hex(), os.urandom(16).hex()
        self.hosts: dict[str, None] = {}  # on which jobs have started,
        self.wheres: dict[str, None] = {}  # and WHEREs that jobs were sent to
        self._run = 1  # of this batch
        self._open: dict[str, Sent] = {}  # by their ids, the jobs that were sent and have no line
        self._lines = 0  # of the journal
        self._second = -inf  # the latest one noted there
        self._fds: list[int] = []
        try:
            self._fds.append(_locked(path))
            kept: list[str] = [HEAD]
            if keep is not None:
                kept += self._read(set(keep))
            # The journal first: a job whose line is dropped must not be in it, or it would count as lost.
            self._started = self._replaced(self._journal, self._journal_text(), 0o600)
            self._log = self._replaced(path, "".join(kept))
        except BlockingIOError:
            self._close()
            raise Misconfigured(f"{path} is in use by another batch") from None
        except OSError as error:
            self._close()
            raise Misconfigured(f"{path}: {(error.strerror or str(error)).lower()}") from None

    def _read(self, keep: set[str]) -> list[str]:
        """Return the lines that are kept."""
        kept = []
        self._read_journal()
        lines = _lines(self._path)
        if lines and lines[0] != HEAD:
            raise OSError(errno.EINVAL, "not a log that can be resumed")
        for line in lines:
            columns = line[:-1].split("\t")
            if len(columns) != COLUMNS or not columns[0].isdigit():
                continue
            kind, hash = columns[-2].replace("-", " "), columns[-1]
            self._open.pop(columns[-4], None)
            if kind in keep:
                kept.append(line)
                self._before.setdefault(hash, []).append(kind)
        for id, sent in self._open.items():
            self._running.setdefault(sent.hash, []).append(id)
        return kept

    def _read_journal(self) -> None:
        lines = _lines(self._journal)
        head = lines[0].split() if lines else []
        if lines and (head[:2] != JOURNAL.split() or len(head) != 6 or not head[3].isdigit()):
            raise OSError(errno.EINVAL, f"{self._journal} is none of this version")
        if head:
            self.batch, self._run, self._secret = head[2], int(head[3]) + 1, head[4]
        second = -inf
        same = bool(head) and head[5] == boot_id()  # else the clock is another one
        for line in lines[1:]:
            word, *rest = line.split()
            if word == "time" and len(rest) == 1:
                second = float(rest[0]) if same else -inf
            elif word == "host" and len(rest) == 1:
                self.hosts[rest[0]] = None
            elif word == "where":
                self.wheres[line[len(word) + 1 : -1]] = None
            elif len(rest) == 3 and rest[1].isdigit():
                self._open.pop(rest[2], None)
                self._open[word] = Sent(rest[0], int(rest[1]), second)

    def _journal_text(self) -> str:
        text = [
            f"{JOURNAL} {self.batch} {self._run} {self._secret} {boot_id()}\n",
            *(f"host {host}\n" for host in self.hosts),
        ]
        text += (f"where {where}\n" for where in self.wheres)
        for id, sent in self._open.items():
            text.append(f"time {sent.when:.3f}\n{id} {sent.hash} {sent.attempt} -\n")
        self._lines, self._second = len(text), -inf
        return "".join(text)

    def _replaced(self, path: str, text: str, mode: int = 0o666) -> int:
        """Replace a file as a whole, or not at all, also where the machine loses its power. Return it, to append to."""
        new = path + ".new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._fds.append(fd := os.open(new, flags, mode))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it has the name that others lock
        write_all(fd, os.fsencode(text))
        os.fsync(fd)
        os.replace(new, path)
        return fd

    def before(self, hash: str) -> tuple[str, str]:
        """Return the kind of the end that one of these items had in a run before: "" if it has none that counts.

        RUNNING, and the id of its job: it was sent when the batch was killed.
        """
        if kinds := self._before.get(hash):
            return kinds.pop(), ""
        if ids := self._running.get(hash):
            return RUNNING, ids.pop()
        return "", ""

    @property
    def sent(self) -> dict[str, Sent]:
        """The jobs that were sent and have no line, by their ids."""
        return self._open

    def age(self, id: str) -> float:
        """Return for how many seconds at most a job has been sent; inf if that cannot be known."""
        return _clock() - self._open[id].when

    def id_of(self, hash: str, number: int, attempt: int) -> str:
        """Return the id of a try of an item, which has this number in this run."""
        return hash_of(os.fsencode(f"{part}") for part in (self.batch, self._run, hash, number, attempt))

    def capability(self, id: str) -> str:
        """Return the secret that a job shows with its requests, also after it was adopted."""
        return hash_of(map(os.fsencode, (self._secret, id)))

    def output(self, id: str) -> str:
        """Return the path of the file for an output that does not fit into memory."""
        return os.path.join(f"{self._path}.outputs", id)

    def start(self, id: str, hash: str, attempt: int, before: str = "") -> None:
        """A job is about to be sent; `before` is the id of the try before, whose end is known."""
        now = _clock()
        noted = "" if now - self._second < 1 else f"time {now:.3f}\n"
        if noted:
            self._second = now
        self._write(self._started, f"{noted}{id} {hash} {attempt} {before or '-'}\n")
        self._open.pop(before, None)
        self._open[id] = Sent(hash, attempt, self._second)
        self._lines += 1
        if self._lines > COMPACT + 4 * len(self._open):
            self._compact()

    def _compact(self) -> None:
        """Raises Failure."""
        replaced = self._started
        try:
            self._started = self._replaced(self._journal, self._journal_text(), 0o600)
        except OSError as error:
            raise Failure(errors.LOST, f"{self._journal}: {(error.strerror or '').lower()}") from None
        self._fds.remove(replaced)
        os.close(replaced)

    def sends_to(self, where: str) -> None:
        """Jobs are about to be sent to hosts of this WHERE."""
        if where not in self.wheres:
            self.wheres[where] = None
            self._write(self._started, f"where {where}\n")

    def on_host(self, host: str) -> None:
        """A job has started on a host."""
        if host not in self.hosts:
            self.hosts[host] = None
            self._write(self._started, f"host {host}\n")

    def end(self, entry: Entry, now: float) -> None:
        """An item has its end, and its output was passed on."""
        self._write(self._log, entry.line())
        self._open.pop(entry.id, None)
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

    def close(self) -> None:
        self._sync(0.0)
        if not self._open:
            os.unlink(self._journal)
            try:
                os.rmdir(f"{self._path}.outputs")
            except OSError:
                pass  # there is none, or something else is in it
        self._close()

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _clock() -> float:
    """Seconds since this machine was booted: nobody sets it, and it goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


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
