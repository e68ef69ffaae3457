"""The log of one session: what the host loop did that belongs neither to the guest nor on stderr.

Laws
1. `note` is for what went otherwise than meant (a try again, a defect): it is kept, in `<session>.log` beside the tape.
2. `detail` is for who watches: it is seen with -v, and kept nowhere.
3. A log that cannot be written ends nothing.
"""

from __future__ import annotations

import contextlib
import os
import time

from quine.base.errors import say


class Log:
    def __init__(self, path: str, verbose: bool = False) -> None:
        """`path` "" keeps nothing: the data directory of an agent elsewhere is not ours to fill."""
        self.path = path
        self._verbose = verbose

    def note(self, text: str) -> None:
        self.detail(text)
        with contextlib.suppress(OSError):
            self.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} quine[{os.getpid()}] {text}\n")

    def detail(self, text: str) -> None:
        if self._verbose:
            say(f"quine[{os.getpid()}]: {text}\n")

    def write(self, text: str) -> None:
        """As it is. OSError where it cannot be."""
        if self.path:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
