"""Values that were seen, by 8 bytes each: there may be millions, and a set has ten times as much.

Law: two values with one hash are taken for the same. That is one pair in 2**64.
"""

from __future__ import annotations

from array import array


class Seen:
    """A set that grows only."""

    def __init__(self) -> None:
        self._hashes: dict[int, array[int]] = {}  # by their upper bits

    def __contains__(self, value: object) -> bool:
        key = hash(value)
        return key in self._hashes.get(key >> 52, ())

    def add(self, value: object) -> None:
        key = hash(value)
        self._hashes.setdefault(key >> 52, array("q")).append(key)
