"""The second half of a move by a hard link: the old name is removed if it still is the linked file.

Laws
1. Several clients may link one file to names of their own. The client that removes the old name has moved the file.
2. A check and then a removal could remove a file that was put there, and acknowledged, in between. So the name is moved
   to a hidden directory first and checked there.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from quine.files.stores.local.dirfd import MOVED
from quine.files.stores.sftp.session import NO_SUCH_FILE, code_of


class Taking:
    """`linked`: the attributes of the file before it was linked; `aside`: a hidden directory."""

    def __init__(self, client: Any, aside: bytes, linked: Any) -> None:
        self._client, self._aside, self._linked = client, aside, _facts(linked)

    async def settle(self, old: bytes, new: bytes) -> None:
        """Remove `old`. If another client moved it, remove our link `new` and raise NO_SUCH_FILE."""
        try:
            await self._remove(old)
        except Exception as fault:
            if code_of(fault) == NO_SUCH_FILE:
                with contextlib.suppress(Exception):
                    await self._remove(new)
            raise

    async def _remove(self, place: bytes) -> None:
        """Remove a name if it still is the linked file, compared by `_facts`."""
        kept = self._aside + f"/{MOVED}{secrets.token_hex(8)}".encode()
        await self._client.posix_rename(place, kept)
        if _facts(await self._client.lstat(kept)) != self._linked:
            with contextlib.suppress(Exception):  # replaced once more: the file there now is newer
                await self._client.link(kept, place)
        await self._client.remove(kept)


def _facts(found: Any) -> tuple[object, ...]:
    """Return the attributes that tell two files apart; the protocol has no inode number."""
    return found.size, found.mtime, found.permissions, found.uid
