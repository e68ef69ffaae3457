"""--fold: identical outputs are printed once, at the end of the batch, each under the items that have it.

    ==> h[1-3,7] (4) <==
    the output

A newline is added where one is missing at the end of a stream, so that the next name stands in a line of its own.

Law: an output is held once, in one unlinked file, however many items have it. Only names grow with the items.
"""

from __future__ import annotations

import os
import tempfile

from transport.lean import blake2b
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from quine.fanout.output.spool import Spool
    from quine.fanout.tasks import Task

CHUNK = 1 << 16


class Group:
    """One output and the names of its items: where its two streams stand in the file."""

    def __init__(self, at: int, pieces: list[tuple[int, int]]) -> None:
        self.at = at
        self.pieces = pieces  # stream, length
        self.names: list[str] = []


class Fold:
    """The outputs of a batch so far."""

    def __init__(self) -> None:
        self._groups: dict[bytes, Group] = {}
        self._file = tempfile.TemporaryFile(prefix="quine-xargs-", buffering=0)  # noqa: SIM115 - closed by text()
        self._size = 0

    def add(self, task: Task, spool: Spool) -> None:
        """Add the output of an item that has its end. Raises OSError."""
        digests = {1: blake2b(digest_size=16), 2: blake2b(digest_size=16)}
        pieces: list[tuple[int, int]] = []
        at = self._size
        os.lseek(self._file.fileno(), at, os.SEEK_SET)
        for stream, data in spool.chunks():
            digests[stream].update(data)
            write_all(self._file.fileno(), data)
            self._size += len(data)
            if pieces and pieces[-1][0] == stream:
                pieces[-1] = (stream, pieces[-1][1] + len(data))
            else:
                pieces.append((stream, len(data)))
        key = digests[1].digest() + digests[2].digest()
        if key in self._groups:
            self._size = at  # the next one is written over it
        else:
            self._groups[key] = Group(at, pieces)
        self._groups[key].names.append(" ".join(task.item.args) or str(task.item.number))

    @property
    def outputs(self) -> int:
        return sum(len(group.names) for group in self._groups.values())

    def text(self) -> Iterator[tuple[int, bytes]]:
        """Yield all of it, once."""
        with self._file as file:
            for group in self._groups.values():
                count = f" ({len(group.names)})" if len(group.names) > 1 else ""
                yield 1, os.fsencode(f"==> {folded(group.names)}{count} <==\n")
                at, last = group.at, {1: b"\n", 2: b"\n"}
                for stream, size in group.pieces:
                    end = at + size
                    while at < end:
                        data = os.pread(file.fileno(), min(CHUNK, end - at), at)
                        if not data:
                            raise OSError("an output is shorter than it was")
                        at += len(data)
                        last[stream] = data[-1:]
                        yield stream, data
                yield from ((stream, b"\n") for stream, data in last.items() if data != b"\n")


def folded(names: list[str]) -> str:
    """Names written short if all of them are as those of hosts, else each as a shell would read it."""
    if any(char in ",[]'\"\\" or char.isspace() for name in names for char in name):
        from shlex import quote

        return " ".join(map(quote, names))
    from quine.base.host_ranges import fold

    return fold(names)
