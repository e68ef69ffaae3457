"""Paths of a store on an sshd: their names on the server, the checks of what is there, and the making of directories.

Law: no symlink is followed: each name of a path is checked before use.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import Sequence
from typing import Any

from quine.files import paths as names
from quine.files.api import error
from quine.files.stores.local.dirfd import TRIES
from quine.files.stores.sftp.session import FAILURE, NO_SUCH_FILE, code_of

REST = 5.0  # seconds for which a directory, once seen, is assumed to be one


class Places:
    """The paths below one root; "" is the root itself, `~/DIR` is below the remote home."""

    def __init__(self, root: str) -> None:
        self._told = os.fsencode(root)
        self._root = b""  # absolute, once the server has told the home directory
        self._seen: dict[str, float] = {}

    def forget(self) -> None:
        """Check every directory again: some may have been moved or removed."""
        self._seen.clear()

    async def at(self, client: Any, path: str = "") -> bytes:
        """Return the path on the server."""
        if not self._root:
            told = self._told
            if told == b"~" or told.startswith(b"~/"):
                told = (await client.realpath(b".")) + told[1:]
            self._root = told
        return self._root.rstrip(b"/") + b"/" + os.fsencode(path) if path else self._root

    async def look(self, client: Any, path: str) -> Any:
        """Return the attributes of a file or directory. Raises ENOENT; EPERM for anything else."""
        try:
            found = await client.lstat(await self.at(client, path))
        except Exception as fault:
            if code_of(fault) == NO_SUCH_FILE:
                raise error(errno.ENOENT, path) from None
            raise
        kind = stat.S_IFMT(found.permissions or 0)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            what = "a symlink, and none is followed" if kind == stat.S_IFLNK else "neither file nor directory"
            raise OSError(errno.EPERM, f"is {what} in the files tier", path)
        return found

    async def _way(self, client: Any, path: str) -> None:
        """Check that everything above `path` is a directory. Raises ENOENT, ENOTDIR, EPERM."""
        now = time.monotonic()
        unsure = [each for each in names.ancestors(path) if self._seen.get(each, 0) < now]
        looks = [self.look(client, each) for each in unsure]
        for found in await asyncio.gather(*looks, return_exceptions=True):
            if isinstance(found, OSError):
                raise OSError(found.errno, found.strerror, path)
            if isinstance(found, BaseException):
                raise found
            if not stat.S_ISDIR(found.permissions or 0):
                raise error(errno.ENOTDIR, path)
        self._sure(unsure)

    def _sure(self, paths: Sequence[str]) -> None:
        if len(self._seen) > 10_000:
            self._seen.clear()
        self._seen.update(dict.fromkeys(paths, time.monotonic() + REST))

    async def there(self, client: Any, path: str) -> Any:
        """As `look`, after a check that everything above `path` is a directory; in one round trip."""
        looks = (self._way(client, path), self.look(client, path))
        results: tuple[Any, Any] = await asyncio.gather(*looks, return_exceptions=True)
        for each in results:
            if isinstance(each, BaseException):
                raise each
        return results[1]

    async def maybe(self, client: Any, path: str) -> Any:
        """As `there`, but None if nothing is at `path`."""
        try:
            return await self.there(client, path)
        except FileNotFoundError:
            return None

    async def make(self, client: Any, path: str) -> bool:
        """Create a directory and its parents; return False if it existed. Raises ENOTDIR."""
        place = await self.at(client, path)
        for left in reversed(range(TRIES)):
            with contextlib.suppress(FileNotFoundError):
                found = await self.look(client, path)
                if not stat.S_ISDIR(found.permissions or 0):
                    raise error(errno.ENOTDIR, path)
                return False
            if path:
                await self.make(client, names.parent(path))
            elif place.count(b"/") > 1:
                await client.makedirs(place.rpartition(b"/")[0], exist_ok=True)
            try:
                await client.mkdir(place)
                if not path:
                    await client.chmod(place, 0o700)
                return True
            except Exception as fault:
                # Another client made it or removed its parent, or it cannot be made.
                if code_of(fault) not in (NO_SUCH_FILE, FAILURE) or not left:
                    raise
        raise AssertionError("unreachable")
