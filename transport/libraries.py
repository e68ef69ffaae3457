"""Shared libraries by the loader's cache alone, while somebody is imported who looks for some.

ctypes.util.find_library asks gcc and ld for a library that the cache does not know. asyncssh does so as it is imported:
25 ms of each first dial where a compiler is installed, and a temporary file that stays if we are killed meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes.util
from collections.abc import Iterator


@contextlib.contextmanager
def by_cache() -> Iterator[None]:
    """Within it no compiler is asked. Where Python has no such function, all is as before."""
    find = ctypes.util.find_library
    ctypes.util.find_library = getattr(ctypes.util, "_findSoname_ldconfig", find)
    try:
        yield
    finally:
        ctypes.util.find_library = find
