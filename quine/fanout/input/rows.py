"""Rows of arguments from records: columns, CSV, JSON lines; several sources combined; so many rows to a job.

Laws
1. Manners are those of GNU parallel: a line is an item, whatever stands in it; the first source varies slowest.
2. Only the first source is read lazily. The others are held in memory, because each is repeated.
3. None in a stream of rows means: nothing yet (quine/fanout/input/records.py).
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
    """Return the regular expression of --colsep. Raises Misconfigured."""
    import re

    try:
        return re.compile(pattern)
    except re.error as error:
        raise Misconfigured(f"--colsep {pattern}: {error}") from None


def split(found: Records, separator: re.Pattern[str]) -> Iterator[Row | None]:
    """Columns between matches of a regular expression."""
    for record in found:
        yield None if record is None else Row(tuple(separator.split(_text(record))))


def csv(found: Records) -> Iterator[Row | None]:
    """Columns of comma-separated values; a quoted one may hold commas, doubled quotes and ends of lines."""
    import csv as library

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

    number = 0
    for record in found:
        if record is None:
            yield None
            continue
        number += 1
        if not record.strip():
            continue
        try:
            value = json.loads(record)
        except json.JSONDecodeError as error:
            raise Misconfigured(f"--jsonl: line {number}, character {error.pos + 1}: no JSON") from None
        except ValueError:
            raise Misconfigured(f"--jsonl: line {number}: no UTF-8") from None
        except RecursionError:
            raise Misconfigured(f"--jsonl: line {number}: too deep") from None
        if not isinstance(value, dict):
            raise Misconfigured(f"--jsonl: line {number}: not an object")
        texts = {name: _shown(each, json.dumps) for name, each in value.items()}
        yield Row((_text(record),), texts)


def _shown(value: object, dumps: Callable[..., str]) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else dumps(value, ensure_ascii=False, separators=(",", ":"))


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
