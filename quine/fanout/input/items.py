"""The items of one command line: sources opened, read and combined as the options say."""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured
from quine.fanout.input import records, rows
from quine.fanout.input.template import Values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Items:
    """The items of a command line, in their order. An iterator; None means: nothing yet, poll `fd`."""

    def __init__(self, options: Options, words: list[str]) -> None:
        """`words` are the command and the sources behind it."""
        at = next((at for at, word in enumerate(words) if word in SOURCES), len(words))
        self.command = words[:at]
        self.fd = -1  # of the first source, which is read lazily; -1 if that needs no waiting
        self._opened = 0  # sources
        self._fds: list[int] = []
        self._options = options
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
        options.number("max-args")
        options.number("max-lines")

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
        from quine.base import sizes

        options = self._options
        size = sizes.parse(options.block, "--block") if options.block else BLOCK
        if size < 1:
            raise Misconfigured(f"--block {options.block}: should be 1 or more")
        if len(options.arg_file) > 1:
            raise Misconfigured("--pipe reads one input")
        self.fd = self._open(*options.arg_file or ("-",))
        return records.blocks(records.chunks(self.fd), size, options.bytes("recend", b"\n"))

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
        found = rows.product(
            [rows.link(group, options.link) if len(group) > 1 else group[0] for group in groups]
        )
        if options.shuf:
            found = rows.shuffled(found)
        count = options.number("max-args") or options.number("max-lines") or 1
        return found if count == 1 else rows.grouped(found, count)

    def _file(self, path: str) -> Rows:
        options = self._options
        separator = b"\0" if options.null else options.bytes("delimiter", b"\n")
        fd = self._open(path)
        if not self._opened:
            self.fd = fd
        self._opened += 1
        return self._parsed(records.records(records.chunks(fd, wait=fd != self.fd), separator))

    def _open(self, path: str) -> int:
        if path == "-":
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
        return self._parsed([os.fsencode(word) for word in words])

    def _parsed(self, found: rows.Records) -> Rows:
        options = self._options
        if options.max_lines:
            found = rows.continued(found)
        if options.no_run_if_empty:
            found = rows.not_blank(found)
        if options.csv:
            return rows.csv(found)
        if options.jsonl:
            return rows.objects(found)
        return rows.split(found, options.colsep) if options.colsep else rows.plain(found)


def _sources(words: list[str]) -> list[tuple[str, list[str]]]:
    """Return the sources behind a command: `::: a b :::: FILE`."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word in SOURCES:
            found.append((word, []))
        else:
            found[-1][1].append(word)
    return found
