"""The files tier without its reserved directory `.quine`: ordinary use neither sees nor changes it.

Laws
1. A compromised host may spoil the files of a tree, but can neither forge nor read the record of other sessions.
2. A name that some filesystem takes for `.quine` (such as `.QUINE`) is reserved in every store.
3. No slip of the hand removes that record: not `rm -r '*'`, and not a sync with --delete.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from quine.files import paths
from quine.files.api import Entry, Reader, Tier, Writer
from quine.files.room import Room
from quine.files.urls import RESERVED


class Unreserved(Tier):
    """A store without `.quine`, as commands here and jobs elsewhere use it."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.most = tier.most

    @property
    def url(self) -> str:  # type: ignore[override]
        """Read on demand: a store at another origin has to ask for it over the link."""
        return self._tier.url

    def stat(self, path: str) -> Entry:
        return self._tier.stat(others(path, errno.ENOENT))

    def list(self, path: str) -> Iterator[Entry]:
        entries = self._tier.list(others(path, errno.ENOENT))
        return entries if path else (entry for entry in entries if not paths.is_alias(entry.path, RESERVED))

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        return self._tier.open(others(path, errno.ENOENT), offset, length)

    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        return self._tier.create(others(path), if_absent=if_absent, mode=mode, mtime=mtime, size=size)

    def reserve(self) -> Room:
        return self._tier.reserve()

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        self._tier.mkdir(others(path), exist_ok)

    def remove(self, path: str, recursive: bool = False) -> None:
        self._tier.remove(others(path), recursive)

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        self._tier.rename(others(source), others(target), if_absent)

    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        return self._tier.setattr(others(path, errno.ENOENT), mode=mode, mtime=mtime)

    def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
        return self._tier.copy(others(source, errno.ENOENT), others(target), if_absent)

    def walk(self, path: str) -> Iterator[Entry]:
        if path:
            yield from self._tier.walk(others(path, errno.ENOENT))
            return
        for entry in self.list(""):
            yield entry
            if not entry.is_file:
                try:
                    yield from self._tier.walk(entry.path)
                except FileNotFoundError:
                    continue  # removed meanwhile

    def hidden(self, path: str) -> Iterator[str]:
        if not path:
            yield RESERVED
        yield from self._tier.hidden(others(path, errno.ENOENT))

    def url_of(self, path: str) -> str:
        return self._tier.url_of(others(path))

    def directory_here(self) -> str:
        return self._tier.directory_here()

    def close(self) -> None:
        self._tier.close()


def others(path: str, number: int = errno.EPERM) -> str:
    """Return `path` if it is not reserved. Raises OSError with errno `number` otherwise."""
    if paths.is_alias(path.partition("/")[0], RESERVED):
        text = os.strerror(number) if number == errno.ENOENT else "is reserved"
        raise OSError(number, text, path)
    return path
