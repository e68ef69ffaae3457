"""signal, socket, deque and Mapping without what the standard modules load for them: what a client starts with.

Laws
1. `signal` loads enum, and `socket` loads selectors, collections and functools: 8 ms, a third of what a client takes
   to start, for names of constants and for methods that nothing there calls. What they wrap is written in C, and there.
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
else:
    try:
        import _signal as signal
        import _socket as socket
        from _collections import deque
        from _collections_abc import Mapping
    except ImportError:  # an interpreter that has them elsewhere
        import signal
        import socket
        from collections import deque
        from collections.abc import Mapping

__all__ = ["Mapping", "deque", "signal", "socket"]
