"""Moves in a bucket, which has no rename: a copy, then a removal of exactly the version that was copied.

Laws
1. The client that removes the copied version has moved it. If the store heeds If-Match of a deletion, that is only one.
2. An object that was replaced after the copy stays where it is. A copy is taken back if it has its mark, since all
   objects of one content may have one ETag.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from quine.files.api import OutcomeUnknown, error
from quine.files.stores.object.client import Found
from quine.files.stores.object.io import AGAIN, MARK, marked
from quine.files.stores.object.keys import folders_of, path_of
from quine.files.stores.rename_rules import moves, replaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Any, Protocol

    from quine.files.api import Entry
    from quine.files.stores.object.client import Bucket

    class Objects(Protocol):
        """`quine.files.stores.object.store.ObjectTier`, as a rename uses it."""

        bucket: Bucket
        seen: dict[str, float]

        def key(self, path: str) -> str: ...
        def folder(self, path: str) -> str: ...
        def above(self, path: str) -> Sequence[str]: ...
        def stat(self, path: str) -> Entry: ...
        def directory(self, path: str) -> Entry: ...
        def list(self, path: str) -> Iterator[Entry]: ...
        def decides(self, path: str) -> bool: ...
        def copied(self, here: Found, source: str, target: str, if_absent: bool) -> Entry: ...
        def copied_call(self, future: Future[Any], path: str) -> Any: ...
        def store_copy(self, source: Found, key: str, path: str) -> Future[Any] | None: ...
        def put_folders(self, paths: Sequence[str]) -> None: ...
        def put_folder_keys(self, keys: Mapping[str, str]) -> None: ...
        def unlike_file(self, path: str) -> OSError: ...


REMOVED = 16  # objects that are removed at a time, each by its own call


class Mover:
    """`decides`: the store heeds If-Match of a deletion."""

    def __init__(self, tier: Objects, decides: bool) -> None:
        self.tier = tier
        self._decides = decides

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        here = self.tier.bucket.head(self.tier.key(source), source) if source else None
        if here is None and source:
            self.tier.directory(source)
        if not moves(source, here is None, target, if_absent):
            return
        if here is None:
            self._rename_folder(source, target, if_absent)
        else:
            self._move(here, source, target, if_absent)

    def _move(self, here: Found | None, source: str, target: str, if_absent: bool) -> None:
        """Copy, then remove the copied version: of many clients, the one that removes it has moved it.

        Without an object at the target the copy is conditional. Then the copy is ours, and we may undo it.
        """
        left = ""
        for again in range(AGAIN):
            if again:
                here = self.tier.bucket.head(self.tier.key(source), source)
            if here is None:
                break
            new = self.tier.bucket.head(self.tier.key(target), target) is None and self.tier.decides(target)
            try:
                ours = marked(here)
                made = self.tier.copied(ours, source, target, if_absent or new)
            except FileExistsError:
                if if_absent:
                    raise
                continue
            except OSError as fault:
                if fault.errno not in (errno.ENOENT, errno.ESTALE):
                    raise
                continue  # another client moved or replaced the source
            gone = self._drop(here, source)
            if gone is None and not self.tier.bucket.stands(here, source):
                # Removed by us or by another client: if we undid the copy, the file could be lost.
                raise OutcomeUnknown(
                    errno.EIO, f"the answer was lost, it may have been moved to {target}", source
                )
            if gone:
                return
            if new:
                there = self.tier.bucket.head(self.tier.key(target), target)
                if there and there.etag == made.version and there.meta.get(MARK) == ours.meta[MARK]:
                    self._drop(there, target)
            left = "" if new else f"; {target} is a copy of it now"
        unlike = self.tier.unlike_file(source)
        raise OSError(unlike.errno, f"{unlike.strerror}{left}", source)

    def _drop(self, version: Found, path: str) -> bool | None:
        """As `Bucket.drop`; if the store does not decide it, check the version first."""
        if self._decides:
            return self.tier.bucket.drop(version.key, version.etag, path)
        if not self.tier.bucket.stands(version, path):
            return False
        self.tier.bucket.call("delete_object", path, Key=version.key)
        return True

    def _rename_folder(self, source: str, target: str, if_absent: bool) -> None:
        with contextlib.suppress(FileNotFoundError):
            replaces(True, not self.tier.stat(target).is_file, target, if_absent)
            if next(self.tier.list(target), None) is not None:
                raise error(errno.ENOTEMPTY, target)
        self.tier.put_folders([*self.tier.above(target), target])
        old, new = self.tier.folder(source), self.tier.folder(target)
        objects, _ = self.tier.bucket.listed(old, source, deep=True)
        # The objects of directories are created: some gateways do not copy them.
        folders = [each.key for each in objects if each.key.endswith("/")]
        files = [each for each in objects if not each.key.endswith("/")]
        self.tier.put_folder_keys({new + key[len(old) :]: target for key in folders if key != old})
        self._each(files, lambda each: self.tier.store_copy(each, new + each.key[len(old) :], target))
        self.tier.seen.clear()
        if self._copied_away(files, source):
            gone = {*folders, *folders_of(old, (each.key for each in files))}
            self.tier.bucket.delete(sorted(gone, reverse=True), source)

    def _copied_away(self, objects: Sequence[Found], path: str) -> bool:
        """Remove the copied versions. Return False if one was replaced (it stays) or removed meanwhile."""

        def gone(each: Found) -> bool:
            away = self._drop(each, path)
            if away is None and self.tier.bucket.stands(each, path):
                raise OSError(errno.EIO, f"{path_of(each.key)} cannot be removed where it was", path)
            return away is not False

        with ThreadPoolExecutor(REMOVED) as pool:
            return all(list(pool.map(gone, objects)))

    def _each(self, objects: Iterable[Found], begin: Callable[[Found], Future[Any] | None]) -> None:
        """Call `begin` for each object, at most 16 calls at a time."""
        waiting: deque[tuple[str, Future[Any]]] = deque()
        for each in objects:
            future = begin(each)
            if future is not None:
                waiting.append((each.key, future))
            if len(waiting) >= 16:
                key, first = waiting.popleft()
                self.tier.copied_call(first, key)
        for key, future in waiting:
            self.tier.copied_call(future, key)
