"""The move of a file in a flat store, which has no move of its own: a copy, and the removal of the version copied.

Laws
1. When many clients move one file, the client that removes it has moved it.
2. A copy to a free place is conditional. So it is this client's own, and goes again if another client was first.
3. A copy stays if this client may have removed the source: an answer was lost, and the file could be lost with it.
4. A copy is taken back by the version in the answer to its own put, since a look shows what another client has put
   there meanwhile. A copy that stays is named in the error: over an existing file, or where the driver gave no version.
"""

from __future__ import annotations

import contextlib
import errno

from quine.files.api import OutcomeUnknown, stale
from quine.files.stores.object.io import AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.files.api import Entry, Tier


def move(
    tier: Tier, here: Entry, target: str, if_absent: bool, free: bool, drop: Callable[[Entry], bool]
) -> None:
    """Move a file. A version of it that comes meanwhile is moved instead.

    `free`: nothing was at the target, and the store puts on that condition. `drop` removes one version; it returns
    False if another client has removed or replaced it, and raises FileNotFoundError if this one may have.
    """
    left = False
    try:
        for _ in range(AGAIN):
            new = if_absent or free
            try:
                made = tier.copy(here.path, target, new)
            except FileExistsError:
                if if_absent:
                    raise
                free = False
                continue
            left = True
            if _is_dropped(here, drop):
                return
            if new and made.version:
                with contextlib.suppress(FileNotFoundError):
                    drop(made)
                left = False
            elif if_absent:
                break  # a second copy would meet the first
            here = tier.stat(here.path)
        raise stale(here.path)
    except OSError as fault:
        if not left:
            raise
        raise type(fault)(fault.errno, f"{fault.strerror}; {target} is a copy of it now", here.path) from None


def _is_dropped(here: Entry, drop: Callable[[Entry], bool]) -> bool:
    try:
        return drop(here)
    except FileNotFoundError:
        raise OutcomeUnknown(errno.EIO, "the answer was lost, it may have been moved", here.path) from None
