"""Looks up shared libraries in the loader's cache alone, during the import of a module that looks for some.

ctypes.util.find_library asks gcc and ld for a library that the cache does not know. asyncssh calls it when imported:
25 ms of each first dial where a compiler is installed, and a temporary file that stays if we are killed meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes.util
from collections.abc import Iterator


@contextlib.contextmanager
def by_cache() -> Iterator[None]:
    """Context in which no compiler is asked. It changes nothing if this Python lacks the function for the cache."""
    find = ctypes.util.find_library
    ctypes.util.find_library = getattr(ctypes.util, "_findSoname_ldconfig", find)
    try:
        yield
    finally:
        ctypes.util.find_library = find
