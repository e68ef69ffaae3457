"""Progress of a transfer: one line on stderr if that is a terminal, erased when the transfer is over.

Laws
1. Nothing is shown in a pipe or a file, and nothing in the first second of a transfer.
2. The threads that move bytes report them, and redraw the line. No thread or timer serves the display alone.
"""

from __future__ import annotations

import os
import time

from quine.files.cli.output import human_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Lock

PATIENCE = 1.0  # seconds before the line first appears
EVERY = 0.1  # seconds between two updates
BAR = 20  # characters
ERASE = "\r\x1b[K"


class Progress:
    """Counts of bytes and files: done, and known so far."""

    def __init__(self, quiet: bool = False) -> None:
        self.fd = 2  # stderr
        self.on = not quiet and os.isatty(2)
        self.known, self.files_known = 0, 0  # bytes and files to do, as far as they were found
        self.done, self.files = 0, 0
        self.found_all = False
        self._begun = time.monotonic()
        self._said = 0.0
        self._shows = False
        self._lock = self._make_lock() if self.on else None

    def expect(self, size: int) -> None:
        """Count one more file to do, of `size` bytes."""
        self.known += size
        self.files_known += 1

    def add(self, size: int) -> None:
        """Count moved bytes."""
        if self._lock is None:
            return
        with self._lock:
            self.done += size
            self._look()

    def file(self) -> None:
        """Count a file as done."""
        if self._lock is None:
            return
        with self._lock:
            self.files += 1
            self._look()

    def clear(self) -> None:
        """Erase the line, before another message and at the end."""
        if self._shows:
            self._shows = False
            self._write(ERASE)

    def line(self, seconds: float) -> str:
        """The text of the line after so many seconds."""
        rate = self.done / seconds if seconds else 0.0
        text = f"{human_size(self.done)}B"
        if self.found_all and self.known:
            share = min(1.0, self.done / self.known)
            text = f"{'#' * int(share * BAR):-<{BAR}} {share:4.0%} {text} of {human_size(self.known)}B"
        text += f"  {human_size(rate)}B/s"
        if self.found_all and rate and self.known > self.done:
            left = int((self.known - self.done) / rate)
            text += f"  {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
        if self.files_known > 1:
            text += f"  {self.files} of {self.files_known}{'' if self.found_all else '+'} files"
        return text

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._begun < PATIENCE or now - self._said < EVERY:
            return
        self._said = now
        self._shows = True
        self._write(ERASE + self.line(now - self._begun)[: self._columns() - 1])

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self.fd).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        try:
            os.write(self.fd, text.encode())
        except OSError:
            self.on = False

    @staticmethod
    def _make_lock() -> Lock:
        from threading import Lock

        return Lock()
