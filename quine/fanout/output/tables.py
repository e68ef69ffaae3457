"""--results FILE: a table with a row for each item, of comma-separated values, tabs between them, or JSON lines.

The columns of .csv and .tsv are those of GNU parallel:
    Seq Host Starttime JobRuntime Send Receive Exitval Signal Command | arguments | Stdout Stderr

Laws
1. A row is several writes, and a kill may come between two of them. A table that is resumed is cut behind its last
   whole row; otherwise all later rows would be read as a part of the torn one. A file that does not begin as a table of
   this batch does is not cut.
2. A table is opened as it is, locked, and emptied or cut when the batch begins: a batch that is refused does not touch
   it. Two batches would cut each other's rows.
3. A row that was torn earlier, with rows behind it, turns all quotes behind it round, and the cut would take the end of
   a whole row. So a table is cut only if all that stays has the form of its rows; otherwise the batch is refused.
"""

from __future__ import annotations

import contextlib
import os
import stat

from quine.base.errors import LOST, Failure, Misconfigured
from quine.fanout.joblog import PARALLEL
from quine.fanout.output import values
from quine.fanout.output.record_file import hold
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Sequence
    from mmap import mmap

    from quine.fanout.output.spool import Spool
    from quine.fanout.tasks import Task

SEPARATORS = {".csv": b",", ".tsv": b"\t", ".jsonl": b""}


BLOCK = 1 << 20  # bytes of a table that are read at once
CELLS = len(PARALLEL.split("\t")) + len(values.STREAMS)  # of a row without arguments


def kind_of(path: str) -> str:
    """Return the extension of a table; "" if the path is that of a directory. Raises Misconfigured."""
    kind = os.path.splitext(path)[1]
    if kind == ".json":
        raise Misconfigured(f"--results {path}: one object a line is .jsonl", f"--results {path}l")
    return kind if kind in SEPARATORS else ""


class Table:
    """One table. The rows of runs before stay if the batch is resumed."""

    def __init__(self, path: str, kind: str, resumed: bool, most: int = 0) -> None:
        """`most`: bytes of a stream in a row. Raises Misconfigured if it cannot be written."""
        self._path = path
        self._most = most
        self._separator = SEPARATORS[kind]
        self._columns = 0  # of arguments; 0 before the first row
        self._headed = False
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._refusal(error) from None
        try:
            facts = os.fstat(self._fd)
            self._stays = facts.st_size  # bytes of the runs before
            if stat.S_ISREG(facts.st_mode):
                hold(self._fd)
                self._stays = _whole(path, facts, self._separator) if resumed else 0
        except BlockingIOError:
            os.close(self._fd)
            raise Misconfigured(f"--results {path} is in use by another batch") from None
        except OSError as error:
            os.close(self._fd)
            raise self._refusal(error) from None
        except Misconfigured:
            os.close(self._fd)
            raise

    def begin(self) -> None:
        """Leave the whole rows of the runs before, or nothing if the batch is not resumed. Raises Misconfigured."""
        try:
            if os.fstat(self._fd).st_size > self._stays:
                os.ftruncate(self._fd, self._stays)
            self._headed = bool(self._stays)
        except OSError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: OSError) -> Misconfigured:
        return Misconfigured(f"--results {self._path}: {(error.strerror or str(error)).lower()}")

    def add(self, task: Task, spool: Spool) -> None:
        """Add the row of a task that has its end. Raises Failure."""
        row = self._row(task, spool) if self._separator else as_json(task, spool, self._most)
        size = os.fstat(self._fd).st_size
        try:
            for piece in values.gathered(row):
                write_all(self._fd, piece)
        except OSError as error:
            # A full disk takes a part. The next run added its first row behind it, and that was read as a part of it.
            with contextlib.suppress(OSError):  # no file
                os.ftruncate(self._fd, size)
            why = (error.strerror or str(error)).lower()
            raise Failure(LOST, f"--results {self._path}: {why}") from None
        self._headed = True

    def _row(self, task: Task, spool: Spool) -> Iterator[bytes]:
        """Yield the row of a task, below the names of the columns if it is the first one."""
        entry, args, fields = task.entry, task.item.args, task.item.fields or {}
        named = len(fields) == len(args)
        self._columns = self._columns or len(args)
        # A row has as many arguments as the first one: more stand in the last of them, and less leave some empty.
        shown = [*args[: self._columns - 1], " ".join(args[self._columns - 1 :])] if self._columns else []
        shown += [""] * (self._columns - len(shown))
        cells = [
            *(str(entry.seq), entry.host or ":", f"{entry.started:.3f}", f"{entry.seconds:.3f}"),
            *(str(entry.sent), str(entry.received), str(entry.code), str(entry.signal)),
            *(joined(task.argv), *shown),
        ]
        head = b""
        if not self._headed:
            names = list(fields) if named else [f"V{at}" for at in range(1, self._columns + 1)]
            head = self._cells([*PARALLEL.split("\t"), *names, "Stdout", "Stderr"]) + b"\n"
        yield head + self._cells(cells)
        for stream in values.STREAMS:
            yield self._separator
            yield from values.cell(spool, stream, self._most, self._separator)
        yield b"\n"

    def _cells(self, cells: Sequence[str]) -> bytes:
        return self._separator.join(self._quoted(os.fsencode(cell)) for cell in cells)

    def _quoted(self, cell: bytes) -> bytes:
        if not any(byte in cell for byte in (self._separator, b'"', b"\n", b"\r", b" ")):
            return cell
        return b'"' + cell.replace(b'"', b'""') + b'"'

    def close(self) -> None:
        os.close(self._fd)


# -- rows of a run before ----------------------------------------------------------------------------


def _whole(path: str, facts: os.stat_result, separator: bytes) -> int:
    """Return the bytes of a table without the row that a killed run has left half written.

    Raises Misconfigured if it cannot be told where that row begins.
    """
    with contextlib.suppress(PermissionError):  # a table that cannot be read is not cut
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            head = os.fsencode(PARALLEL).replace(b"\t", separator) if separator else b'{"seq":'
            begins = os.pread(fd, len(head), 0)
            if os.path.samestat(facts, os.fstat(fd)) and head.startswith(begins):
                whole = whole_rows(fd, facts.st_size, quoted=bool(separator))
                if separator and 0 < whole < facts.st_size and (line := torn_line(fd, whole, separator)):
                    detail = f"--results {path}: line {line} begins a row that was torn earlier, with rows behind it"
                    raise Misconfigured(detail, "remove that row, or name another file")
                return whole
        finally:
            os.close(fd)
    return facts.st_size


def whole_rows(fd: int, size: int, quoted: bool) -> int:
    """Return the number of bytes up to the end of the last whole row; `quoted`: a newline in quotes ends none."""
    blocks, within = list(range(0, size, BLOCK)), [False]  # within quotes at the beginning of each block
    for at in blocks if quoted else ():
        within.append(within[-1] ^ bool(os.pread(fd, BLOCK, at).count(b'"') % 2))
    for index in reversed(range(len(blocks))):
        block = os.pread(fd, min(BLOCK, size - blocks[index]), blocks[index])
        parts = block.split(b'"') if quoted else [block]
        end = len(block)
        for number in reversed(range(len(parts))):
            end -= len(parts[number])
            is_within = quoted and within[index] ^ bool(number % 2)
            if not is_within and (found := parts[number].rfind(b"\n")) >= 0:
                return blocks[index] + end + found + 1
            end -= 1  # the quote before it
    return 0


def torn_line(fd: int, size: int, separator: bytes) -> int:
    """Return the number of the line in these bytes that begins something else than a whole row; 0 if there is none.

    A cell may be larger than the memory: the file is mapped, and the regular expressions save nothing for each quote.
    """
    import mmap
    import re

    split = re.escape(separator)
    first = re.compile(rb"(?:Seq|[0-9]+)(?=%b)" % split).match
    plain = re.compile(rb'[^"\n%b]*' % split).match
    # Most rows have no quote in a cell, and are matched at once.
    simple = re.compile(
        rb'(?:Seq|[0-9]+)(?:%b(?:"[^"]*"(?!")|[^"\n%b]*)){%d,}\n' % (split, split, CELLS - 1)
    ).match
    at = 0
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as data:
        while at < size:
            begins, cells = at, 0
            if found := simple(data, at):
                at = found.end()
                continue
            ends = b"" if not first(data, at) else separator
            while ends == separator:
                at, cells = _cell_end(data, at + bool(cells), plain), cells + 1
                ends = data[at : at + 1]
            if ends != b"\n" or cells < CELLS:
                return 1 + sum(
                    os.pread(fd, min(BLOCK, begins - start), start).count(b"\n")
                    for start in range(0, begins, BLOCK)
                )
            at += 1
    return 0


def _cell_end(data: mmap, at: int, plain: Callable[[mmap, int], re.Match[bytes] | None]) -> int:
    """Return the index behind a cell."""
    if data[at : at + 1] != b'"':
        found = plain(data, at)
        return found.end() if found else at
    while (at := data.find(b'"', at + 1)) >= 0:
        at += 1
        if data[at : at + 1] != b'"':
            return at
    return len(data)


def joined(argv: list[str]) -> str:
    from shlex import join

    return join(argv)


def _words(name: str, words: Sequence[str]) -> dict[str, list[str]]:
    """Return words as JSON has them: where one is not UTF-8 all of them stand in `name_base64`, too."""
    data = list(map(os.fsencode, words))
    found = {name: [word.decode(errors="replace") for word in data]}
    if any("\ufffd" in text and text.encode() != word for text, word in zip(found[name], data)):
        found[f"{name}_base64"] = list(map(_base64, data))
    return found


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def as_json(task: Task, spool: Spool, most: int) -> Iterator[bytes]:
    """Yield one line for an item; outputs that are not UTF-8 are in base64."""
    entry = task.entry
    found: dict[str, object] = {
        **{"seq": entry.seq, **_words("args", task.item.args), **_words("command", task.argv)},
        **{"state": entry.kind, "code": entry.code, "signal": entry.signal, "host": entry.host or "local"},
        **{"id": entry.id, "attempt": entry.attempt, "start": round(entry.started, 3)},
        "seconds": round(entry.seconds, 3),
        **task.facts,
    }
    return values.object_line(found, spool, most)
