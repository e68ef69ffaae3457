"""The beginning of a tree: its time, and the persona directories that there were (quine/agent/personas.py).

Any process of the user can write to the ledger. A command that changed these facts would make a persona of a file that
it has written. So they are in a sealed memory file of their own.

Law: the file names the ledger to which it belongs. If several name the same ledger, the file of the topmost process is
the true one: a command can make another, but not above the root of its tree.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured
from transport import inherit
from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "quine-beginning"


class Beginning(NamedTuple):
    """No file is older than a `begun` of 0: such a tree has no personas."""

    begun: int = 0  # nanoseconds, by the clock of this machine's files
    personas: bytes = b""
    fd: int = -1  # of the maker; all descendants inherit it


def create(ledger: int, begun: int, personas: bytes) -> Beginning:
    """Make the file of a new tree; `ledger` is the inode of its counters."""
    try:
        fd = inherit.write({"ledger": ledger, "begun": begun, "personas": personas.hex()}, NAME)
    except OSError as error:
        why = (error.strerror or "").lower()
        raise Misconfigured(
            f"the beginning of the tree cannot be noted: {why}", "see ulimit -n and -f"
        ) from None
    os.set_inheritable(fd, True)
    return Beginning(begun, personas, fd)


def above(held: Sequence[inherit.MemoryFile], ledger: int) -> Beginning:
    """Return the beginning of the tree of this ledger (an inode). `held` is the part of `inherit.held_above`.

    Raises OSError.
    """
    for each in reversed(held):
        told = each.memo()
        begun, personas = told.get("begun"), told.get("personas")
        if told.get("ledger") == ledger and isinstance(begun, int) and isinstance(personas, str):
            return Beginning(begun, bytes.fromhex(personas))
    return Beginning()
