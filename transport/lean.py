"""Substitutes for standard modules that a client loads at its start: signal, socket, deque, Mapping, blake2b.

Laws
1. `signal` loads enum, and `socket` loads selectors, collections and functools: 8 ms, a third of a client's start time,
   for names of constants and for methods that no client calls. `hashlib` loads OpenSSL: 3 ms. So the C modules below
   them are imported directly.
2. A signal is a plain number here, and a socket has neither `with` nor `accept`. A module that needs more imports the
   standard module; both work on the same kernel objects.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections import deque
    from collections.abc import Mapping
    from hashlib import blake2b
else:
    try:
        import _signal as signal
        import _socket as socket
        from _blake2 import blake2b
        from _collections import deque
        from _collections_abc import Mapping
    except ImportError:  # an interpreter that has them elsewhere
        import signal
        import socket
        from collections import deque
        from collections.abc import Mapping
        from hashlib import blake2b

__all__ = ["Mapping", "blake2b", "deque", "signal", "socket"]
