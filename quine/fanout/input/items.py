"""The items of one command line: sources opened, read and combined as the options say."""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured, need_stdin
from quine.fanout.input import records, rows
from quine.fanout.input.template import Values

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

    from quine.fanout.input.rows import Row, Rows
    from quine.fanout.options import Options

SOURCES = (":::", "::::", ":::+", "::::+")
BLOCK = 10 << 20


class Item(Values):
    """One item: the values of its replacement strings and, with --pipe, the bytes of its stdin."""

    __slots__ = ("block",)

    def __init__(self, row: Row, number: int, block: bytes | None = None) -> None:
        super().__init__(row.args, number, fields=row.fields)
        self.block = block

    @property
    def size(self) -> int:
        """Bytes of its block and characters of its values."""
        fields = self.fields.values() if self.fields else ()
        return len(self.block or b"") + sum(map(len, (*self.args, *fields)))


class Items:
    """The items of a command line, in their order. An iterator; None means: nothing yet, poll `fd`."""

    def __init__(self, options: Options, words: list[str]) -> None:
        """`words` are the command and the sources behind it."""
        at = next((at for at, word in enumerate(words) if word in SOURCES), len(words))
        self.command = words[:at]
        self.fd = -1  # of the first source, which is read lazily; -1 if that needs no waiting
        self._opened = 0  # sources
        self._groups: list[int] = []  # sizes of the groups of sources that are linked
        self._fds: list[int] = []
        self._counts: list[
            Callable[[], int | None]
        ] = []  # of the records of each source, in the order of _rows
        self._options = options
        self._block = BLOCK
        self._separator: re.Pattern[str] | None = None  # of columns
        self._check(words[at:])
        self._sources = _sources(words[at:])
        self._items = self._numbered()

    def __iter__(self) -> Iterator[Item | None]:
        return self._items

    def _check(self, given: list[str]) -> None:
        options = self._options
        forms = [name for name in ("csv", "jsonl", "colsep") if getattr(options, name)]
        if len(forms) > 1:
            raise Misconfigured(f"--{forms[0]} and --{forms[1]} exclude each other")
        if options.null and options.delimiter:
            raise Misconfigured("--null and --delimiter exclude each other")
        if options.max_args and options.max_lines:
            raise Misconfigured("-n and -L exclude each other")
        if options.max_lines and given:
            raise Misconfigured(
                "-L counts the lines of one input", "use -n to count items of several sources"
            )
        if options.pipe and (given or options.stdin):
            raise Misconfigured("--pipe takes stdin itself: no items behind the command, and no --stdin")
        if not options.pipe and (options.block or options.recend):
            raise Misconfigured("--block and --recend go with --pipe")
        if options.header not in ("", ":"):
            raise Misconfigured(f"--header {options.header[:40]}: should be :")
        if options.header and options.jsonl:
            raise Misconfigured("--header names columns, and the fields of --jsonl have names")
        if options.pipe and options.block and (options.max_args or options.max_lines):
            raise Misconfigured("--block and -n exclude each other")
        options.number("max-args")
        options.number("max-lines")
        if len(options.arg_file) > 1 and options.pipe:
            raise Misconfigured("--pipe reads one input")
        if options.block:
            from quine.base import sizes

            self._block = sizes.parse(options.block, "--block")
            if self._block < 1:
                raise Misconfigured(f"--block {options.block}: should be 1 or more")
        if not (options.csv or options.jsonl):
            columns = options.colsep or ("\t" if options.header else "")  # as GNU parallel
            self._separator = rows.separator(columns) if columns else None

    def _numbered(self) -> Iterator[Item | None]:
        number = 0
        if self._options.pipe:
            for block in self._blocks():
                number += block is not None
                yield None if block is None else Item(rows.Row(()), number, block)
            return
        for row in self._rows():
            if row is None:
                yield None
                continue
            number += 1
            if any("\0" in arg for arg in row.args):
                raise Misconfigured(f"item {number} holds a NUL byte, which no argument can")
            yield Item(row, number)

    def _blocks(self) -> Iterator[bytes | None]:
        options, size = self._options, self._block
        self.fd = self._open(*options.arg_file or ("-",))
        end, count = options.bytes("recend", b"\n"), self._count

        def cut(data: records.Chunks) -> records.Chunks:
            return records.counted(data, count, end) if count else records.blocks(data, size, end)

        data = records.chunks(self.fd)
        return records.headed(data, end, cut) if options.header else cut(data)

    @property
    def _count(self) -> int:
        """Records of one job: -n or -L; 0 if none is given."""
        return self._options.number("max-args") or self._options.number("max-lines")

    def _rows(self) -> Rows:
        options = self._options
        # each is a list of sources that are linked to each other
        groups: list[list[Rows]] = [[self._file(path)] for path in options.arg_file]
        for kind, words in self._sources:
            files = kind.startswith("::::")
            made = [self._file(path) for path in words] if files else [self._words(words)]
            if kind.endswith("+") and groups:
                groups[-1] += made
            else:
                groups += [[each] for each in made]
        if not groups:
            groups = [[self._file("-")]]
        if options.link:
            groups = [[source for group in groups for source in group]]
        self._groups = list(map(len, groups))
        found = rows.product(
            [rows.link(group, options.link) if len(group) > 1 else group[0] for group in groups]
        )
        if options.shuf:
            found = rows.shuffled(found)
        return rows.grouped(found, self._count) if self._count > 1 else found

    @property
    def total(self) -> int | None:
        """The number of all items; None if that cannot be told without reading input that may not have come."""
        options = self._options
        # A record may be less than an item with these.
        if options.pipe or options.csv or options.jsonl or options.max_lines or options.no_run_if_empty:
            return None
        counts = [count() for count in self._counts]
        whole, at = 1, 0
        for size in self._groups:
            group = [count for count in counts[at : at + size] if count is not None]
            if len(group) < size:
                return None
            whole *= max(group) if options.link and all(group) else min(group)
            at += size
        return -(-whole // (self._count or 1))

    def _file(self, path: str) -> Rows:
        options = self._options
        separator = b"\0" if options.null else options.bytes("delimiter", b"\n")
        fd = self._open(path)
        self._counts.append(records.counter(fd, separator, bool(options.header)))
        if not self._opened:
            self.fd = fd
        self._opened += 1
        return self._parsed(records.records(records.chunks(fd, wait=fd != self.fd), separator))

    def _open(self, path: str) -> int:
        if path == "-":
            need_stdin("the items cannot be read: ")
            return 0
        try:
            self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise Misconfigured(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
        return self._fds[-1]

    def close(self) -> None:
        """Close the files that were opened; no item can be read after."""
        while self._fds:
            os.close(self._fds.pop())

    def _words(self, words: list[str]) -> Rows:
        self._opened += 1
        self._counts.append(lambda: max(0, len(words) - bool(self._options.header)))
        return self._parsed([os.fsencode(word) for word in words])

    def _parsed(self, found: rows.Records) -> Rows:
        options = self._options
        if options.max_lines:
            found = rows.continued(found)
        if options.no_run_if_empty:
            found = rows.not_blank(found)
        if options.jsonl or options.csv or options.header:
            found = rows.unmarked(found)
        if options.jsonl:
            return rows.objects(found)
        if options.csv:
            columns = rows.csv(found)
        elif self._separator:
            columns = rows.split(found, self._separator)
        else:
            return rows.plain(found)
        return rows.named(columns) if options.header else columns


def _sources(words: list[str]) -> list[tuple[str, list[str]]]:
    """Return the sources behind a command: `::: a b :::: FILE`."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word in SOURCES:
            found.append((word, []))
        else:
            found[-1][1].append(word)
    return found
