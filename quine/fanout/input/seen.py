"""Values that were seen, by 12 bytes each: there may be millions, and a set has six times as much.

Laws
1. Two values with one hash are taken for the same. That is one pair in 2**64.
2. A value is compared with about as many others as a bucket has, however many there are; an addition moves no more of
   them (linear hashing). A table that is written anew when it is full would hold up the batch for that time.
"""

from __future__ import annotations

from array import array

BUCKET = 32  # hashes of a bucket, on average at most


class Seen:
    """How often each value was added, and not taken."""

    def __init__(self) -> None:
        self._buckets = [array("q")]  # of hashes, by their lower bits
        self._mask = 0  # of those bits; a bucket that is not there yet is in that without the highest of them
        self._count = 0

    def _of(self, key: int) -> array[int]:
        at = key & self._mask
        return self._buckets[at if at < len(self._buckets) else at & self._mask >> 1]

    def __contains__(self, value: object) -> bool:
        key = hash(value)
        return key in self._of(key)

    def add(self, value: object) -> None:
        key = hash(value)
        self._of(key).append(key)
        self._count += 1
        if self._count > BUCKET * len(self._buckets):
            self._split()

    def take(self, value: object) -> bool:
        """Take it out once; False if it is not there."""
        key = hash(value)
        try:
            self._of(key).remove(key)
        except ValueError:
            return False
        self._count -= 1
        return True

    def __len__(self) -> int:
        return self._count

    def _split(self) -> None:
        """Make one more bucket, of a part of another one."""
        if len(self._buckets) > self._mask:
            self._mask = 2 * self._mask + 1
        before = len(self._buckets) & self._mask >> 1
        keys, self._buckets[before] = self._buckets[before], array("q")
        self._buckets.append(array("q"))
        for key in keys:
            self._of(key).append(key)


class TakenNumbers:
    """Numbers of items, with the hashes of these."""

    def __init__(self) -> None:
        self._seen = Seen()

    def add(self, hash: str, number: int) -> None:
        self._seen.add(number)
        self._seen.add((hash, number))

    def by_another(self, hash: str, number: int) -> bool:
        """Whether an item has this number, and no item with this hash has it."""
        return number in self._seen and (hash, number) not in self._seen
