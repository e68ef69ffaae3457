"""Spares the import of asyncssh two things that no dial needs, and every first dial would wait for.

Shared libraries are looked up in the loader's cache alone. ctypes.util.find_library asks gcc and ld for one that the
cache does not know: 25 ms where a compiler is installed, and a temporary file that stays if we are killed meanwhile.

X.509 certificates of hosts are left out, as in OpenSSH: 12 ms, also where they could not be used without pyOpenSSL.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import sys
from collections.abc import Iterator

X509 = "asyncssh.crypto.x509"


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Context for the import. Compilers are asked all the same if this Python lacks the function for the cache."""
    find = ctypes.util.find_library
    # its import fails then, which asyncssh is prepared for
    sys.modules.setdefault(X509, None)  # type: ignore[arg-type]
    ctypes.util.find_library = getattr(ctypes.util, "_findSoname_ldconfig", find)
    try:
        yield
    finally:
        ctypes.util.find_library = find
        if sys.modules[X509] is None:
            del sys.modules[X509]
