"""A lock with a wait for changes: threading.Condition as far as it is used here, 0.7 MB of each proxy less.

Law: it does what that does. Where the interpreter lacks its parts, it is that.
"""

from __future__ import annotations

import _thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Condition as Changes
else:

    class Changes:
        """A thread may take the lock again that it holds."""

        def __init__(self):
            self._lock = _thread.RLock()
            self._waiting = []

        def __enter__(self):
            return self._lock.__enter__()

        def __exit__(self, *error):
            return self._lock.__exit__(*error)

        def wait(self):
            """Let the lock go until `notify_all` is called, and take it again."""
            mine = _thread.allocate_lock()
            mine.acquire()
            self._waiting.append(mine)
            held = self._lock._release_save()
            try:
                mine.acquire()
            finally:
                self._lock._acquire_restore(held)

        def notify_all(self):
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                each.release()

    if not hasattr(_thread, "RLock") or not hasattr(_thread.RLock, "_release_save"):
        from threading import Condition as Changes

__all__ = ["Changes"]
