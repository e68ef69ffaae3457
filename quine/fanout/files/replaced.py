"""The files that results of a batch have replaced or added, and what they were before: `LOG.replaced`.

An item is the same one in the next run by its name and the contents of its files. Results that replace these files, or
come to lie among them, change the contents; items that were done ran again, on results of their own batch.

Laws
1. A replacement is on record before it is made, also on the disk: after a loss of power the result is there, and maybe
   the line of its item. The record speaks of the state that came, and of no other: if it was not made, or if somebody
   has written there since, a file counts as it is.
2. The record stays as long as its log does. It is begun anew with it.
"""

from __future__ import annotations

import contextlib
import os

from quine.base.errors import Misconfigured
from quine.fanout.output.record_file import replaced, unrecorded, whole_lines, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ABSENT = "-"
SUFFIX = ".replaced"


class Replaced:
    """`log` is the path of the log. States are words, and names paths (quine/fanout/files/contents.py)."""

    def __init__(self, log: str) -> None:
        self._path = log + SUFFIX
        self._fd = -1
        self._before: dict[bytes, str] = {}
        self._came: dict[bytes, set[str]] = {}

    def read(self) -> None:
        """Go on with the record of the runs before. Raises OSError, and Misconfigured for a damaged one."""
        from urllib.parse import unquote_to_bytes

        for number, line in enumerate(whole_lines(self._path), 1):
            words = line.split()
            if len(words) != 3:
                raise Misconfigured(f"line {number} of {self._path} is damaged")
            self._add(unquote_to_bytes(words[2]), words[0], words[1])

    def forget(self) -> None:
        """Begin anew. Raises OSError, and Misconfigured for another file in the place of the record: it stays."""
        self.read()
        self._before, self._came = {}, {}
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass

    def before(self, name: bytes, state: str) -> str:
        """Return the state that a file had before results replaced it; `state` is that of now."""
        return self._before[name] if state in self._came.get(name, ()) else state

    def add(self, rows: Iterable[tuple[bytes, str, str]]) -> None:
        """Record that files are about to be replaced: (name, state of now, state that comes). Raises Failure."""
        lines = []
        for name, state, comes in rows:
            before = self.before(name, state)
            if before != comes:
                self._add(name, before, comes)
                lines.append(_line(name, before, comes))
        if lines:
            if self._fd < 0:
                self._begin()
            else:
                written(self._fd, "".join(lines), self._path, lasting=True)

    def _add(self, name: bytes, before: str, came: str) -> None:
        if self._before.get(name) != before:
            self._before[name], self._came[name] = before, set()
        self._came[name].add(came)

    def _begin(self) -> None:
        try:
            self._fd = replaced(self._path, self._lines(), 0o600)
        except OSError as error:
            raise unrecorded(self._path, error) from None
        with contextlib.suppress(OSError):  # of a file system that syncs no directory
            folder = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _lines(self) -> Iterator[str]:
        for name, before in self._before.items():
            yield from (_line(name, before, came) for came in sorted(self._came[name]))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _line(name: bytes, before: str, came: str) -> str:
    from urllib.parse import quote_from_bytes

    return f"{before} {came} {quote_from_bytes(name)}\n"
