"""The second half of a move by a hard link: the old name goes, if it still is the file that was linked.

Laws
1. Of many who have linked one file to names of theirs the one who takes its old name away has moved it.
2. A look and a removal would remove what somebody has put there in between, which was acknowledged. So a name is moved
   away to where nobody looks, and looked at there.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from quine.files.stores.local.dirfd import MOVED
from quine.files.stores.sftp.session import NO_SUCH_FILE, code_of


class Taking:
    """`linked` is what was known of the file before it was linked; `aside` a directory in which nobody looks."""

    def __init__(self, client: Any, aside: bytes, linked: Any) -> None:
        self._client, self._aside, self._linked = client, aside, _facts(linked)

    async def settle(self, old: bytes, new: bytes) -> None:
        """NO_SUCH_FILE where another one has moved it: then our link, `new`, is one too many, and goes."""
        try:
            await self._remove(old)
        except Exception as fault:
            if code_of(fault) == NO_SUCH_FILE:
                with contextlib.suppress(Exception):
                    await self._remove(new)
            raise

    async def _remove(self, place: bytes) -> None:
        """Remove a name if it still is that file, as far as size and time tell."""
        kept = self._aside + f"/{MOVED}{secrets.token_hex(8)}".encode()
        await self._client.posix_rename(place, kept)
        if _facts(await self._client.lstat(kept)) != self._linked:
            with contextlib.suppress(Exception):  # replaced once more: that one is the newer
                await self._client.link(kept, place)
        await self._client.remove(kept)


def _facts(found: Any) -> tuple[object, ...]:
    """By which two files are told apart; the number of a file is not told."""
    return found.size, found.mtime, found.permissions, found.uid
