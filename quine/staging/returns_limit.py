"""--returns-limit SIZE[,NAMES]: how much one job may bring back.

Law: a host announces bytes and names before it sends them. More than the limit is refused then, and stays on the host.
"""

from __future__ import annotations

from quine.base import sizes
from quine.base.errors import Misconfigured
from quine.staging.manifest import LARGEST, MOST, BadManifest, Manifest
from transport.spawn import LEASE

OPTION = "--returns-limit"
BYTES = 10 << 30
NAMES = 100_000
NAME = 256  # bytes of a manifest for each name: 52 for its columns and its digest, the others for its path
SLOWEST = 16 << 20  # bytes of results that a host reads in a second, at least


class TooMuch(BadManifest):
    """More than the limit allows: the files themselves are as good as any."""


class Bound:
    """`text` is the value of the option, "" if it was not given; 0 = no limit. Raises Misconfigured."""

    def __init__(self, text: str = "") -> None:
        size, comma, names = text.partition(",")
        self.bytes = sizes.parse(size, OPTION) or LARGEST if size else BYTES
        self.names = sizes.count(names, OPTION) or MOST if names else NAMES
        if comma and not (size and names):
            raise Misconfigured(f"{OPTION} must be SIZE or SIZE,NAMES, as 20G,500k, not {text[:80]}")

    @property
    def manifest(self) -> int:
        """Bytes that a manifest may have."""
        return self.names * NAME

    @property
    def patience(self) -> float:
        """Seconds for which a host may say nothing: it may read all that it may send for the digests first."""
        return max(LEASE, self.bytes / SLOWEST)

    def check_names(self, count: int) -> None:
        """Raises TooMuch."""
        if count > self.names:
            raise TooMuch(f"{count} names, and {OPTION} allows {self.names}")

    def check_bytes(self, manifest: Manifest) -> None:
        """Raises TooMuch."""
        size = sum(manifest.sizes)
        if size > self.bytes:
            raise TooMuch(f"{size} bytes, and {OPTION} allows {self.bytes}")
