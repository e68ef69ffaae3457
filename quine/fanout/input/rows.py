"""Rows of arguments from records: columns, CSV, JSON lines; several sources combined; so many rows to a job.

Laws
1. Manners are those of GNU parallel: a line is an item, whatever stands in it; the first source varies slowest.
2. Only the first source is read lazily. The others are held in memory, because each is repeated.
3. None in a stream of rows means: nothing yet (quine/fanout/input/records.py).
4. A number of JSON is passed as its text: 1.10 stays 1.10, and 1e400 is no infinity.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Records = Iterable[bytes | None]
    Rows = Iterable["Row | None"]


SPLIT = 5.0  # seconds of the processor for the columns of one record
MARK = b"\xef\xbb\xbf"
POSIX = {  # classes of POSIX, as a set of Python has them
    "alnum": r"a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "word": r"\w",
    "xdigit": "0-9A-Fa-f",
}


class Row:
    """The arguments of one record; `fields` are those of a JSON object."""

    __slots__ = ("args", "fields")

    def __init__(self, args: tuple[str, ...], fields: Mapping[str, str] | None = None) -> None:
        self.args = args
        self.fields = fields


def plain(found: Records) -> Iterator[Row | None]:
    for record in found:
        yield None if record is None else Row((_text(record),))


def separator(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of --colsep, which may have classes of POSIX in it. Raises Misconfigured."""
    import re
    import warnings

    def posix(found: re.Match[str]) -> str:
        if found[1] not in POSIX:
            raise Misconfigured(f"--colsep {pattern}: no such class of characters: {found[0]}")
        return POSIX[found[1]]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of what means something else in another version
            return re.compile(re.sub(r"\[:(\w+):\]", posix, pattern))
    except (re.error, FutureWarning, DeprecationWarning) as error:
        detail = str(error)
        raise Misconfigured(f"--colsep {pattern}: {detail[:1].lower()}{detail[1:]}") from None


def split(found: Records, separator: re.Pattern[str]) -> Iterator[Row | None]:
    """Columns between matches of a regular expression. A group that takes no part in a match is an empty column."""
    repeats = any(letter in separator.pattern for letter in "*+{")
    number = 0
    for record in found:
        if record is None:
            yield None
            continue
        number += 1
        text = _text(record)
        columns = _bounded(separator, text, number) if repeats else separator.split(text)
        yield Row(tuple(column or "" for column in columns))


def _bounded(separator: re.Pattern[str], text: str, number: int) -> list[str]:
    """Split within SPLIT seconds of the processor: nested repetitions may never end, and hear no signal."""
    import signal

    def over(*_: object) -> None:
        hint = "write it without a repetition in a repetition"
        detail = f"record {number} takes longer than {SPLIT:g} s to split"
        raise Misconfigured(f"--colsep {separator.pattern}: {detail}", hint)

    try:
        before = signal.signal(signal.SIGVTALRM, over)
    except ValueError:  # in a thread, which hears no signals anyway
        return separator.split(text)
    signal.setitimer(signal.ITIMER_VIRTUAL, SPLIT)
    try:
        return separator.split(text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def unmarked(found: Records) -> Iterator[bytes | None]:
    """The records without the mark of UTF-8 that some programs write before the first one."""
    first = True
    for record in found:
        if first and record is not None:
            first, record = False, record.removeprefix(MARK)
        yield record


def csv(found: Records) -> Iterator[Row | None]:
    """Columns of comma-separated values; a quoted one may hold commas, doubled quotes and ends of lines."""
    import csv as library
    import sys

    library.field_size_limit(sys.maxsize)  # a column that no command takes may have any size
    held: list[str] = []
    odd, number = False, 0
    for record in found:
        if record is None:
            yield None
            continue
        number += 1
        text = _text(record)
        held.append(text)
        odd ^= bool(text.count('"') % 2)  # of all that is held: it would be counted again for each line
        if odd:
            continue
        try:
            (columns,) = list(library.reader(["\n".join(held)], strict=True)) or [[""]]
        except library.Error as error:
            raise Misconfigured(f"--csv: record {number}: {error}") from None
        held = []
        yield Row(tuple(columns))
    if held:
        raise Misconfigured("--csv: the input ends within quotes")


def objects(found: Records) -> Iterator[Row | None]:
    """JSON objects, one a record. Text stands for itself, null for nothing, any other value for its JSON."""
    import json

    def constant(name: str) -> None:
        raise Misconfigured(f"--jsonl: line {number}: {name} is no JSON")

    number = 0
    decode = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=constant).decode
    for record in found:
        if record is None:
            yield None
            continue
        number += 1
        if not record.strip():
            continue
        try:
            value = decode(record.decode(json.detect_encoding(record), "surrogatepass"))
            shown = (
                {name: _shown(each, json.dumps) for name, each in value.items()}
                if type(value) is dict
                else {}
            )
        except json.JSONDecodeError as error:
            raise Misconfigured(f"--jsonl: line {number}, character {error.pos + 1}: no JSON") from None
        except ValueError:
            raise Misconfigured(f"--jsonl: line {number}: no UTF-8") from None
        except RecursionError:
            raise Misconfigured(f"--jsonl: line {number}: too deep") from None
        if not isinstance(value, dict):
            raise Misconfigured(f"--jsonl: line {number}: not an object")
        yield Row((_text(record),), shown)


class _Number(str):
    """The text of a number."""

    __slots__ = ()


def _shown(value: object, dumps: Callable[..., str]) -> str:
    if isinstance(value, str):
        return str(value)
    return "" if value is None else _json(value, dumps)


def _json(value: object, dumps: Callable[..., str]) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join([_json(each, dumps) for each in value])}]"
    if isinstance(value, dict):
        pairs = [f"{_json(name, dumps)}:{_json(each, dumps)}" for name, each in value.items()]
        return f"{{{','.join(pairs)}}}"
    return dumps(value, ensure_ascii=False)


def _text(record: bytes) -> str:
    return os.fsdecode(record)


def named(found: Rows) -> Iterator[Row | None]:
    """The rows behind the first one, which has the names of their columns. Raises Misconfigured."""
    names: tuple[str, ...] | None = None
    for row in found:
        if row is None:
            yield None
        elif names is None:
            names = row.args
            if doubled := [name for name in names if name and names.count(name) > 1]:
                raise Misconfigured(f"--header: two columns have the name {doubled[0][:40]}")
        else:
            yield Row(row.args, {**dict.fromkeys(names, ""), **dict(zip(names, row.args))})


def not_blank(found: Records) -> Iterator[bytes | None]:
    """The records that hold more than blanks."""
    return (record for record in found if record is None or record.strip())


def continued(found: Records) -> Iterator[bytes | None]:
    """A line with a blank at its end goes on in the next one."""
    held = b""
    for record in found:
        if record is None:
            yield None
            continue
        held += record
        if not record[-1:].isspace():
            yield held
            held = b""
    if held:
        yield held


def product(sources: Sequence[Rows]) -> Iterator[Row | None]:
    """Every combination of the sources' rows, the last source varying fastest."""
    import itertools

    first, *others = sources
    if not others:
        yield from first
        return
    rest = [_all(other) for other in others]
    for row in first:
        if row is None:
            yield None
        else:
            yield from (_one((row, *more)) for more in itertools.product(*rest))


def link(sources: Sequence[Rows], again: bool = True) -> Iterator[Row | None]:
    """The first rows of all sources, the second ones, and so on.

    A source that is shorter begins again, or without `again` ends all.
    """
    first, *others = sources
    rest = [_all(other) for other in others]
    if not all(rest):
        return
    longest = max(map(len, rest), default=0) if again else 0
    most = None if again else min(map(len, rest), default=None)
    kept: list[Row] = []  # of the first source, as far as it may have to be repeated
    at = 0
    for row in first:
        if row is None:
            yield None
            continue
        if at == most:
            return
        if at < longest:
            kept.append(row)
        yield _joined(row, rest, at)
        at += 1
    while kept and at < longest:
        yield _joined(kept[at % len(kept)], rest, at)
        at += 1


def _joined(row: Row, rest: list[list[Row]], at: int) -> Row:
    return _one((row, *(other[at % len(other)] for other in rest)))


def _all(rows: Rows) -> list[Row]:
    """All rows of a source, waiting for them."""
    return [row for row in rows if row is not None]


def grouped(rows: Rows, count: int) -> Iterator[Row | None]:
    """`count` rows to one, the last as many as there are."""
    held: list[Row] = []
    for row in rows:
        if row is None:
            yield None
            continue
        held.append(row)
        if len(held) == count:
            yield _one(held)
            held = []
    if held:
        yield _one(held)


def _one(rows: Sequence[Row]) -> Row:
    """All arguments of these, and of each field the first value, as in GNU parallel."""
    args = tuple(arg for row in rows for arg in row.args)
    fields: dict[str, str] = {}
    for row in rows:
        for name, value in (row.fields or {}).items():
            fields.setdefault(name, value)
    return Row(args, fields or None)


def shuffled(rows: Rows) -> Iterator[Row | None]:
    """All rows in a random order: the whole input is read first."""
    import random

    found = []
    for row in rows:
        if row is None:
            yield None
        else:
            found.append(row)
    random.shuffle(found)
    yield from found
