"""Lists of hosts written short, as ClusterShell writes them: `h[1-3,7],db`, and taken apart again.

Laws
1. `unfold(fold(names))` are the names, each once, provided none has a comma or a bracket in it.
2. A range counts with the width of its first number: `[08-10]` is 08, 09, 10, and `[8-10]` is 8, 9, 10.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    Row: TypeAlias = "tuple[tuple[str, ...], ...]"

MOST = 100_000  # names that one text stands for
_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,15})(?![0-9])")  # a longer row of digits is text
_PART = re.compile(r"((?:[^\[\],]|\[[0-9,-]*\])+)(?:,|\Z)")
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")


def fold(names: Iterable[str]) -> str:
    """Return the names as one text, in the order of their words and numbers.

    Every number of a name may become a set, the last one first: rack[1-2]-node[1-3].
    """
    # A name is a row of text, number, text, number … text; a number that is folded has several writings.
    rows: list[Row] = [
        tuple((part,) for part in _NUMBER.split(name)) for name in sorted(set(names), key=_order)
    ]
    for at in range(max(map(len, rows), default=0) - 2, 0, -2):
        rows = _folded(rows, at)
    return ",".join("".join(map(_written, row)) for row in rows)


def _order(name: str) -> list[tuple[str, int, int]]:
    parts = [*_NUMBER.split(name), "0"]
    return [(text, int(digits), len(digits)) for text, digits in zip(parts[::2], parts[1::2])]


def _folded(rows: list[Row], at: int) -> list[Row]:
    """Make one row of those that differ in the number at that place alone."""
    numbers: dict[tuple[Row, Row], list[str]] = {}
    for row in rows:
        found = numbers.setdefault((row[:at], row[at + 1 :]), [])
        if at < len(row):
            found += row[at]
    return [
        (*before, *([tuple(found)] if found else []), *after) for (before, after), found in numbers.items()
    ]


def _written(part: tuple[str, ...]) -> str:
    if len(part) == 1:
        return part[0]
    runs: list[list[str]] = []
    ends: dict[str, list[str]] = {}  # the number that would continue a run -> the run
    for digits in sorted(part, key=lambda digits: (int(digits), len(digits))):
        run = ends.pop(digits, None)
        if run is None:
            run = [digits]
            runs.append(run)
        run[1:] = [digits]
        ends[str(int(digits) + 1).zfill(len(run[0]))] = run
    return f"[{','.join(run[0] if run[0] == run[-1] else f'{run[0]}-{run[-1]}' for run in runs)}]"


def unfold(text: str) -> list[str]:
    """Return the names that a text stands for, in its order. Raises ValueError for a wrong one, or too many names."""
    names: list[str] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(f"not a list of hosts: {text[at:][:80]}")
        names += _product(part[1], MOST - len(names))
        at = part.end()
    if not text or text.endswith(","):
        raise ValueError(f"not a list of hosts: {text[:80]!r}")
    return names


def _product(part: str, most: int) -> list[str]:
    found = [""]
    for i, piece in enumerate(re.split(r"\[([^\]]*)\]", part)):
        ends = _numbers(piece, most // len(found)) if i % 2 else [piece]
        if len(found) * len(ends) > most:
            raise ValueError(f"more than {MOST} names: {part[:80]}")
        found = [begun + end for begun in found for end in ends]
    return found


def _numbers(text: str, most: int) -> list[str]:
    found: list[str] = []
    for each in text.split(","):
        limits = _RANGE.fullmatch(each)
        if limits is None:
            raise ValueError(f"not a number or a range: [{text[:80]}]")
        first = int(limits[1])
        last = int(limits[2] or limits[1])
        if last < first:
            raise ValueError(f"a range that goes down: [{each}]")
        if last - first >= most - len(found):
            raise ValueError(f"more than {MOST} names: [{text[:80]}]")
        found += [str(number).zfill(len(limits[1])) for number in range(first, last + 1)]
    return found
