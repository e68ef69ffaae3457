"""The log of one session: events of the host loop that belong neither to the guest nor on stderr.

Laws
1. `note` is for unexpected events (a retry, a defect). They are kept in `<session>.log` beside the tape.
2. `detail` is for an observer: it is shown with -v, and not kept.
3. A note that cannot be written is not an error.
"""

from __future__ import annotations

import os
import time

from quine.base.errors import say
from transport.lean import contextlib
from transport.provenance import regular_file


class Log:
    def __init__(self, path: str, verbose: bool = False) -> None:
        """An empty `path` keeps nothing: a remote agent leaves no log in its host's data directory."""
        self.path = path
        self._verbose = verbose

    def note(self, text: str) -> None:
        self.detail(text)
        with contextlib.suppress(OSError):
            self.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} quine[{os.getpid()}] {text}\n")

    def detail(self, text: str) -> None:
        if self._verbose:
            from transport.text import harmless

            say(harmless(f"quine[{os.getpid()}]: {text}\n", keep="\n\t"))

    def write(self, text: str) -> None:
        """Append `text` unchanged. Raises OSError."""
        if self.path:
            fd = regular_file.written(self.path, os.O_APPEND)
            with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
