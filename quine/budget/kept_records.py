"""Records that outlive their process: memory that the keeper of a broker shares with its workers, one after the other.

Laws
1. The last record of a key counts. The memory has two halves, and one of them counts. A half that is full is left: the
   records of all keys are written into the other one.
2. A process that is killed at any point leaves the records of before or those of after. Each change ends with one byte,
   which names the half that counts and the place up to which it is written.
3. It is no file. A limit of the size of files fails a write, or cuts it, and any process of the user can set one for
   another process (prlimit(2)).
4. A record for which there is no room is refused, and nothing is changed. The last part of a key names its tree. The
   records of a tree can be refused beyond a share of the room that the others have left. So however many trees take
   their share, the next one finds room.
"""

from __future__ import annotations

import errno
import mmap
import struct
import threading
from collections import Counter

from transport import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Key = tuple[str | int, ...]

SIZE = 16 << 20  # bytes of a half, some hundred thousand processes; only what was written takes memory
LEAST = 1 << 19  # bytes after which a half is left, at the earliest
_PLACE = struct.Struct("<QQ")  # where the half that counts begins and ends
_HEAD = 64  # bytes: the number of the place that counts, and from 16 and 32 on two places


class KeptRecords:
    """Used from any thread. `memory` is zeros at first, and holds two halves of `size` bytes."""

    def __init__(self, memory: mmap.mmap | None = None, size: int = SIZE) -> None:
        self._memory = memory if memory is not None else mmap.mmap(-1, _HEAD + 2 * size)
        self._size = size
        self._lock = threading.Lock()
        self._lines: dict[Key, bytes] = {}
        self._sizes: Counter[str | int] = Counter()  # bytes of these lines, by the tree
        self._total = 0  # bytes of all of them
        self._begin = self._end = _HEAD
        self._most = LEAST

    def read(self) -> dict[Key, Any]:
        """Return the records that the process before has left. They are this one's from now on."""
        begin, end = _PLACE.unpack(self._memory[self._at(self._memory[0])])
        self._begin, self._end = (begin, end) if begin else (_HEAD, _HEAD)
        self._lines, self._total, found = {}, 0, {}
        self._sizes.clear()
        for line in self._memory[self._begin : self._end].splitlines(True):
            key, value = quickjson.loads(bytes(line))
            self._set(tuple(key), bytes(line))
            found[tuple(key)] = value
        return found

    def put(self, key: Key, value: object, share: float = 1.0) -> None:
        """Keep a record in place of the last one of this key. Raises OSError, and ValueError for what is no JSON.

        `share` is the part of what others leave of a half that the records of its tree may take with this one.
        """
        line = quickjson.dumps([key, value]).encode() + b"\n"
        with self._lock:
            before = self._sizes[key[-1]]
            most = share * (self._size - (self._total - before))
            if before + len(line) - len(self._lines.get(key, b"")) > most:
                raise OSError(errno.ENOSPC, "the broker has no room for more agents of this tree")
            if self._end - self._begin + len(line) <= min(self._most, self._size):
                begin, data = self._begin, line
            else:
                # The lines are kept as they are written: to make 4096 of them takes 40 ms.
                begin, data = self._other(), b"".join({**self._lines, key: line}.values())
                if len(data) > self._size:
                    raise OSError(errno.ENOSPC, "the broker has no room for more agents")
                self._most = max(LEAST, 2 * len(data))  # so that a line is copied once or twice
            at = self._end if begin == self._begin else begin
            self._memory[at : at + len(data)] = data
            self._publish(begin, at + len(data))
            self._set(key, line)

    def forget(self, key: Key) -> None:
        """Leave out the record of a key when a half is left. The next process may still find it."""
        with self._lock:
            self._set(key, b"")
            del self._lines[key]
            if not self._sizes[key[-1]]:
                del self._sizes[key[-1]]

    def close(self) -> None:
        self._memory.close()

    def _set(self, key: Key, line: bytes) -> None:
        more = len(line) - len(self._lines.get(key, b""))
        self._sizes[key[-1]] += more
        self._total += more
        self._lines[key] = line

    def _other(self) -> int:
        return _HEAD + self._size if self._begin == _HEAD else _HEAD

    def _publish(self, begin: int, end: int) -> None:
        number = 1 - self._memory[0]
        self._memory[self._at(number)] = _PLACE.pack(begin, end)
        self._memory[0] = number
        self._begin, self._end = begin, end

    def _at(self, number: int) -> slice:
        return slice(16 + 16 * number, 32 + 16 * number)
