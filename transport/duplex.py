"""The seam below a link: bytes both ways between two nodes, whatever carries them.

Laws
1. A duplex is used in two phases: first by awaiting `read` (the bootstrap talks in lines), then, from
   `attach` on, by callbacks alone (the link). What was buffered is delivered first.
2. `write` never blocks and never drops; whoever writes watches `pause_writing` / `resume_writing`.
3. `connection_lost` is called exactly once, and nothing is called after it.
"""

from __future__ import annotations

from typing import Protocol


class DuplexProtocol(Protocol):
    """What a duplex calls, always from its event loop."""

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, why: str) -> None:
        """The duplex is gone; `why` is for people, "" for an orderly end of file."""


class Duplex(Protocol):
    """Bytes both ways."""

    async def read(self) -> bytes:
        """Next bytes as they came, b"" at end of file. Only before `attach`."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until the write buffer is below its high-water mark. Only before `attach`."""

    def attach(self, protocol: DuplexProtocol) -> None: ...

    def close(self) -> None:
        """End both directions at once; pending writes may be lost."""
