"""Room held in a store for files that are not there yet, so that the write that finds none can fail.

Laws
1. Room ends with `close`, and with the process that holds it.
2. A store that cannot tell what it has room for gives MUCH, and refuses at the commit.
3. A commit takes room of its own: its writer gives up what is held for that file if the store is too full for both.
"""

from __future__ import annotations

import errno

MUCH = 1 << 62  # bytes: no limit is known
LEAST = 4096  # bytes that a file counts as at least: one block of most disks
AHEAD = 8 << 20  # bytes that are held ahead at most, while there is plenty left
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

TYPE_CHECKING = False
if TYPE_CHECKING:
    Held = tuple[int, int]  # space and growth, as `Room.need` has them


def cost(size: int) -> int:
    """Bytes that a file of this size counts as."""
    return max(size, LEAST)


class Room:
    """The room of one holder, for any number of files; for one thread at a time."""

    def need(self, space: int, growth: int, ahead: int, path: str) -> Held:
        """Hold that much from now on, and up to `ahead` more if there is plenty; return (space, growth) held.

        `space`: bytes that the files take beside those that they replace; `growth`: bytes by which they are larger.
        Raises OSError, about `path`: ENOSPC, EDQUOT, and then what was held before is held on; errors of the store.
        """
        return MUCH, MUCH

    def close(self) -> None:
        """Give it all up; `need` holds room anew."""
