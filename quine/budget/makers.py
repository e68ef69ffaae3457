"""The living makers of purses, by the descriptors that the kernel shows of them.

Laws
1. A purse can name any process. Its maker is a process with that pid and start which holds the purse.
2. A maker is another process, which may hold anything: a file whose server never answers, and any number of files. So
   the kernel alone is asked, also for a file that no mode lets be opened, and MOST descriptors at most are looked at.
   That still takes some milliseconds for each process: an event loop has it done by a thread.
"""

from __future__ import annotations

import os

from quine.budget import purse
from transport.address import closed_since, start_time
from transport.inherit import inode_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Maker = tuple[int, int]  # pid and start

MOST = 1 << 12  # the descriptors with the lowest numbers: a maker makes its purse when it has few


def living(named: Mapping[Maker, Collection[int]]) -> set[Maker]:
    """Return the processes that live and hold one of the purses, by inode, that name them.

    A process that is closed to others shows none. Raises OSError where nothing is known, as without free descriptors.
    """
    return {
        maker
        for maker, inodes in named.items()
        if start_time(maker[0]) == maker[1] and _holds(maker[0], inodes)
    }


def _holds(pid: int, inodes: Collection[int]) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_inode(entry.path) in inodes for _, entry in zip(range(MOST), entries))
    except OSError as error:
        if closed_since(error) or isinstance(error, PermissionError):
            return False
        raise


def _inode(path: str) -> int:
    """Return the inode of a purse; 0 if the descriptor is of another file, or was closed. Raises OSError."""
    try:
        return inode_at(path, purse.LINK) if os.readlink(path) == purse.LINK else 0
    except OSError as error:
        if closed_since(error):
            return 0
        raise
