"""A progress bar of one line on a terminal: hosts and bytes of uploads. Nothing is shown elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

INTERVAL = 0.2  # seconds between two pictures
CLEAR = "\r\x1b[K"


class Bar:
    """Shows how many of `hosts` are done. The descriptor is looked at once."""

    def __init__(self, hosts: int, fd: int = 2) -> None:
        self.done = 0
        self._hosts = hosts
        self._fd = fd
        self._shown = os.isatty(fd)

    def text(self, sent: int, announced: int) -> str:
        megabytes = f", {sent / 1e6:.1f} of {announced / 1e6:.1f} MB" if announced else ""
        return f"{self.done} of {self._hosts} hosts{megabytes}"

    async def run(self) -> None:
        """Draw it again and again, until it is cancelled."""
        while self._shown:
            self.draw()
            await asyncio.sleep(INTERVAL)

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Draw it meanwhile, a last time at the end, and take it away."""
        drawing = asyncio.create_task(self.run())
        try:
            yield
        finally:
            drawing.cancel()
            self.draw()
            self.clear()

    def draw(self) -> None:
        from deploy.push import uplink

        if self._shown:
            line = uplink()
            self._write(CLEAR + self.text(line.sent, line.announced))

    def clear(self) -> None:
        """Take it away, as before another line is written."""
        if self._shown:
            self._write(CLEAR)

    def _write(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode())
        except OSError:
            self._shown = False  # the terminal has gone
