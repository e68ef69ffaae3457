"""The folders that jobs of a launcher are in: one descriptor each, and the removal by the last job that leaves.

Laws
1. A folder is entered once for all the jobs that are in it together, and its node gets a copy of that descriptor. So
   both hold one lock, which outlives either of them.
2. All jobs of this launcher count, from their order on. The node counts those of the launchers before it, and holds
   their lock: a folder with such a job in it is found held.
3. The last descriptor of a removed folder is closed here, not in the node: the file system frees the folder then, which
   takes milliseconds on some, and the exit record would wait for it.
4. A job that has ended counts as long as a process of its group lives: its folder would be removed under it. One that
   has left the group, a daemon, is not seen. Asking the kernel for a group costs a microsecond, a look at all processes
   milliseconds.
5. The processes of a job that was told to end are about to end, too: DYING seconds pass before they are taken for some
   that stay. The folder of a job beyond its deadline was named as left, with nothing in it.
"""

from __future__ import annotations

import os
import time

from transport.launcher import workdir
from transport.launcher.termination import lives
from transport.lean import deque

SOON = 0.05  # seconds
LOOK = 1.0  # seconds between two looks at the processes that jobs have left
DYING = 0.8  # seconds; a node waits a second for the answer


class Folders:
    def __init__(self) -> None:
        self._jobs: dict[str, int] = {}
        self._held: dict[str, tuple[int, os.stat_result]] = {}
        self._removed: deque[tuple[float, int]] = deque()  # when a descriptor is closed
        self._groups: dict[int, str] = {}  # process groups of jobs that have ended, and their folders
        self._dying: dict[int, float] = {}  # those that were told to end, and until when they may take
        self._asked: list[tuple[int, str, int]] = []  # for whom the answer waits: number, folder, descriptor
        self._next = 0.0  # time of the next look at them

    def join(self, path: str) -> None:
        """A job is ordered there."""
        if path:
            self._jobs[path] = self._jobs.get(path, 0) + 1

    def enter(self, path: str) -> tuple[int, bool]:
        """Return the descriptor of a folder, which stays here, and whether it was entered just now. Raises OSError."""
        if held := self._held.get(path):
            try:
                if os.path.samestat(os.stat(path), held[1]):
                    return held[0], False
            except OSError:
                pass  # a job has removed it
            self._drop(path)
        fd = workdir.enter_once(path)
        self._held[path] = fd, os.fstat(fd)
        return fd, True

    def left(self, path: str, removes: bool) -> int:
        """A job has left, or was not started. The last one removes the folder if it is empty and `removes`.

        Returns the result of `workdir.leave`, or -1 if others are in it or nothing was tried.
        """
        if not path:
            return -1
        self._jobs[path] -= 1
        if self._jobs[path]:
            return -1
        del self._jobs[path]
        if path not in self._held:
            return -1
        if not removes:
            self._drop(path)
            return -1
        try:
            result = workdir.remove(path, self._held[path][0])
            if result == workdir.GONE:
                self._removed.append((time.monotonic() + SOON, self._held.pop(path)[0]))
            else:
                workdir.share(self._held[path][0])  # the node holds the same lock, and has still to leave
            return result
        finally:
            self._drop(path)

    def ended(self, path: str, group: int, removes: bool, told: bool) -> int:
        """As `left`, for a job that was reaped: as long as processes of its group live it has not left.

        `told`: it was told to end.
        """
        if not path or not _lives(group):
            return self.left(path, removes)
        now = time.monotonic()
        if told:
            self._dying[group] = now + DYING
        soonest = now + (SOON if told else LOOK)
        self._next = min(self._next, soonest) if self._groups else soonest
        self._groups[group] = path
        return workdir.KEPT if removes else -1

    def waits(self, number: int, path: str, fd: int) -> bool:
        """Whether the answer on a folder has to wait for processes that are dying; `fd` is kept here for it then."""
        now = time.monotonic()
        waits = any(
            each == path and self._dying.get(group, 0.0) > now for group, each in self._groups.items()
        )
        if waits:
            self._asked.append((number, path, fd))
        return waits

    def is_used(self, path: str) -> bool:
        """Whether a folder has a process that a job has left."""
        return any(each == path and lives(group) for group, each in self._groups.items())

    @property
    def due(self) -> float | None:
        """The time at which `turn` has something to do."""
        times = [self._removed[0][0]] if self._removed else []
        return min([*times, *([self._next] if self._groups else [])], default=None)

    def turn(self, now: float) -> list[tuple[int, str, list[int]]]:
        """Close the descriptors of folders that were removed: the node has closed its own by now.

        Return the folders that are to be removed if they are empty: those whose last process has ended, and those on
        which an answer has waited, each with the number of the request, or 0, and its descriptor.
        """
        while self._removed and self._removed[0][0] <= now:
            os.close(self._removed.popleft()[1])
        if not self._groups or now < self._next:
            return []
        over = [group for group in self._groups if not _lives(group)]
        paths = [self._groups.pop(group) for group in over]
        for path in paths:
            self.left(path, removes=False)
        self._dying = {
            group: end for group, end in self._dying.items() if group in self._groups and end > now
        }
        self._next = now + (SOON if self._dying else LOOK)
        asked, self._asked = self._asked, []
        answered = {path for _, path, _ in asked}
        free = [path for path in dict.fromkeys(paths) if path not in self._jobs and path not in answered]
        return [*((number, path, [fd]) for number, path, fd in asked), *((0, path, []) for path in free)]

    def close(self) -> None:
        """Release all folders, though jobs are in them.

        The jobs of a dead node were ended, but their folders stayed for ever: this process still held them.
        """
        for path in list(self._held):
            self._drop(path)
        for _, _, fd in self._asked:
            os.close(fd)
        self._asked = []

    def _drop(self, path: str) -> None:
        if path in self._held:
            os.close(self._held.pop(path)[0])


def _lives(group: int) -> bool:
    """Whether a group has a process that has not ended: one that was not reaped yet counts for the kernel."""
    if not lives(group):
        return False
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:  # orphans of a job; its leader was reaped
            pass
    except ChildProcessError:
        pass
    return lives(group)
