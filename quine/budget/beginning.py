"""The beginning of a tree: its time, and the persona directories that there were (quine/agent/personas.py).

Any process of the user can write to the ledger. A command that changed these facts would make a persona of a file that
it has written. So they are in a sealed memory file of their own.

Law: the file names the ledger to which it belongs, and counts in the hands of the topmost process alone that holds this
ledger. A command can make another file, but not above the root of its tree. An agent that has lost its descriptors
takes up the file with the ledger: it is the topmost one when those above it have ended.
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
    fd: int = -1  # all descendants inherit it


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


def above(held: Sequence[inherit.MemoryFile], ledger: int, top: int) -> Beginning:
    """Return the beginning of the tree of this ledger (an inode), whose topmost holder is the process `top`.

    `held` is the part of `inherit.held_above`. Raises OSError.
    """
    for each in held:
        told = each.memo() if each.pid == top else {}
        begun, personas = told.get("begun"), told.get("personas")
        if told.get("ledger") == ledger and isinstance(begun, int) and isinstance(personas, str):
            own = [one.number for one in held if (one.pid, one.inode) == (os.getpid(), each.inode)]
            fd = own[0] if own else each.opened(os.O_RDONLY)
            os.set_inheritable(fd, True)
            return Beginning(begun, bytes.fromhex(personas), fd)
    return Beginning()
