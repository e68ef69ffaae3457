"""The move of a file in a flat store, which has no move of its own: a copy, and the removal of the version copied.

Laws
1. When many clients move one file, the client that removes it has moved it.
2. A copy to a free place is conditional. So it is this client's own, and goes again if another client was first.
3. A copy stays if this client may have removed the source: an answer was lost, and the file could be lost with it.
"""

from __future__ import annotations

import contextlib

from quine.files.api import stale
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
    for _ in range(AGAIN):
        new = if_absent or free
        try:
            made = tier.copy(here.path, target, new)
        except FileExistsError:
            if if_absent:
                raise
            free = False
            continue
        if drop(here):
            return
        if new and made.size == here.size:  # else another client has replaced it since
            with contextlib.suppress(FileNotFoundError):
                drop(made)
        here = tier.stat(here.path)
    raise stale(here.path)
