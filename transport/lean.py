"""What a client starts with, without what the standard modules load for it: signal, socket, deque, Mapping, blake2b.

Laws
1. `signal` loads enum, and `socket` loads selectors, collections and functools: 8 ms, a third of what a client takes
   to start, for names of constants and for methods that nothing there calls. `hashlib` loads OpenSSL: 3 ms. What they
   wrap is written in C, and there.
2. A signal is a plain number here, and a socket has neither `with` nor `accept`. Who needs more takes the standard
   module; both are one thing to the kernel.
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
