"""The uplink of this machine, which uploads to several hosts share: few at a time, and their bytes are counted.

Without a bound, twenty uploads by a slow line are each slower than an upload may be, and all of them fail.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from weakref import WeakKeyDictionary

UPLOADS = 5  # at one time
WAIT = 3600.0  # seconds for a place among them, which do not count for the deadline of a host


class Uplink:
    """`announced`: bytes of all uploads that are waited for, under way or done; `sent`: those handed to connections."""

    def __init__(self) -> None:
        self.announced = 0
        self.sent = 0
        self._places = asyncio.Semaphore(UPLOADS)

    @contextlib.asynccontextmanager
    async def place(
        self, size: int, allow: Callable[[float, str], None]
    ) -> AsyncIterator[Callable[[int], None]]:
        """Hold one of the places for an upload of `size` bytes; give the function that counts those sent."""
        mine = 0

        def count(bytes_sent: int) -> None:
            nonlocal mine
            mine += bytes_sent
            self.sent += bytes_sent

        self.announced += size
        try:
            allow(WAIT, "wait for a place among the uploads")
            async with self._places:
                yield count
        finally:
            self.announced -= size - mine  # those that a cut kept back are announced again


_uplinks: WeakKeyDictionary[asyncio.AbstractEventLoop, Uplink] = WeakKeyDictionary()


def uplink() -> Uplink:
    """Return that of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _uplinks:
        _uplinks[loop] = Uplink()
    return _uplinks[loop]
