"""The end of what a program prints on its stderr, read from a pipe while it runs.

Laws
1. The last STDERR_KEPT bytes are kept, however much is printed: there is no file that could fill a disk.
2. One callback makes one read, so a program that prints without a pause holds up nothing else on the loop.
"""

from __future__ import annotations

import asyncio
import os

from transport.carrier.duplex import STDERR_KEPT

PIECE = 1 << 16
FULL = 1 << 20  # bytes that a pipe may hold


class Tail:
    """`text` is the end of what came from `fd`, which this object owns."""

    def __init__(self, fd: int) -> None:
        self.text = b""
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    def _readable(self) -> bool:
        """Read once; return whether there may be more."""
        try:
            data = os.read(self._fd, PIECE)
        except BlockingIOError:
            return False
        self.text = (self.text + data)[-STDERR_KEPT:]
        if not data:
            self.close()
        return bool(data)

    def drain(self) -> None:
        """Read what was printed until now, as much as a pipe holds: another program may go on printing."""
        left = FULL // PIECE
        while left and self._fd >= 0 and self._readable():
            left -= 1

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
