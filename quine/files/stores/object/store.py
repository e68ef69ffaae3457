"""A files tier in a bucket of flat keys. A directory is a prefix and, if it was created, an empty object `dir/`.

Laws
1. A file is one object, visible to all from its put or the completion of its parts on. Parts that were never completed
   stay invisible, and `abort` drops them.
2. `if_absent` is If-None-Match at that moment. The store is tested before it is trusted, for a put and for parts: some
   stores heed it for only one of them.
   Each object bears a mark of its writer: a writer that repeats a request after a lost answer recognises its object.
3. A reader requests the one version that it opened, by ETag. If that version is gone, it raises ESTALE.
4. Mode and mtime are in the object's metadata. `stat` and `open` read it; a listing does not.
5. Operations of several calls (directories, rename) are not one step, and `docs/reference/shared-files.md` says so.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from quine.files import paths as names
from quine.files.api import DIRECTORY_MODE, FILE_MODE, Entry, Reader, Tier, Writer, check_range, error, stale
from quine.files.stores.object.client import Bucket, Found, Unmet, bare
from quine.files.stores.object.copies import (
    ABSENT,
    COPY,
    DELETION,
    PARTS,
    PUT,
    by_copy,
    by_hand,
    by_parts,
    heeds,
    renewal,
    renewed,
)
from quine.files.stores.object.io import (
    AGAIN,
    MARK,
    MODE,
    MTIME,
    PART,
    SMALL,
    WHOLE,
    ObjectReader,
    ObjectWriter,
    entry,
    marked,
    mode_of,
    mtime_of,
    settled,
)
from quine.files.stores.object.keys import ASIDE, depth, folders_of, key_of, path_below, path_of
from quine.files.stores.object.moves import Mover

LONGEST_KEY = 1024  # bytes, S3's limit
REST = 5.0  # seconds for which a directory, once seen, is assumed to exist


class ObjectTier(Tier):
    """s3://BUCKET/PREFIX."""

    copies = True

    def __init__(self, url: str, bucket: Bucket, prefix: str, unsafe: bool = False) -> None:
        """`unsafe`: move, and change modes and times, even if the store does not heed If-Match for it."""
        self.url = url
        self.bucket = bucket
        self._unsafe = unsafe
        self.base = key_of(prefix) + "/" if prefix else ""
        self.seen: dict[str, float] = {}  # directories assumed to exist, and until when
        self._conditional: dict[str, bool] = {}  # kind of call: is its condition heeded
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def key(self, path: str) -> str:
        key = self.base + key_of(path)
        if len(key.encode()) > LONGEST_KEY:
            raise error(errno.ENAMETOOLONG, path)
        return key

    def folder(self, path: str) -> str:
        """Return the prefix of all keys in a directory."""
        return self.key(path) + "/" if path else self.base

    # ----------------------------------------------------------------- looks

    def stat(self, path: str) -> Entry:
        if not path:
            return Entry("", "directory", mode=DIRECTORY_MODE)
        there = self.bucket.head(self.key(path), path)
        return self.directory(path) if there is None else entry(path, there)

    def directory(self, path: str) -> Entry:
        """As `stat`, for a path that is known not to be a file."""
        folder = self.folder(path)
        first = self.bucket.done(self.bucket.some(folder), path).get("Contents", ())[:1]
        if not first:
            raise self._missing(path)
        made = first[0]["LastModified"].timestamp() if first[0]["Key"] == folder else 0.0
        return Entry(path, "directory", mtime=made, mode=DIRECTORY_MODE)

    def _missing(self, path: str) -> OSError:
        """Return ENOENT, or ENOTDIR if a file stands above `path`."""
        above = [(self.key(each), each) for each in names.ancestors(path)]
        asked = [self.bucket.begin("head_object", Key=key) for key, _ in above]
        heads = [self.bucket.headed(future, *pair) for future, pair in zip(asked, above)]
        return error(errno.ENOTDIR if any(heads) else errno.ENOENT, path)

    def list(self, path: str) -> Iterator[Entry]:
        folder = self.folder(path)
        objects, below = self.bucket.listed(folder, path)
        if path and not objects and not below:
            if self.bucket.head(self.key(path), path) is not None:
                raise error(errno.ENOTDIR, path)
            raise self._missing(path)
        entries = {}
        for prefix in below:
            name = path_of(prefix[len(folder) : -1])
            if name:
                at = names.join(path, name)
                entries[name] = Entry(at, "directory", mode=DIRECTORY_MODE)
        for each in objects:
            name = path_of(each.key[len(folder) :])
            if name:
                entries[name] = entry(names.join(path, name), each)
        return iter([entries[name] for name in sorted(entries, key=os.fsencode)])

    def walk(self, path: str) -> Iterator[Entry]:
        """Walk with one call per thousand keys; `list` would take one per directory."""
        folder = self.folder(path)
        objects, _ = self.bucket.listed(folder, path, deep=True)
        if path and not objects:
            yield from self.list(path)  # raises ENOENT or ENOTDIR
        entries: dict[str, Entry] = {}
        for each in objects:
            key = each.key[len(folder) :]
            below = path_below(key)
            if below is None:
                continue
            for above in (*names.ancestors(below), *([below] if key.endswith("/") else [])):
                at = names.join(path, above)
                entries.setdefault(above, Entry(at, "directory", mode=DIRECTORY_MODE))
            if not key.endswith("/"):
                entries[below] = entry(names.join(path, below), each)
        order = sorted(entries, key=lambda below: [os.fsencode(name) for name in below.split("/")])
        yield from (entries[below] for below in order)

    def hidden(self, path: str) -> Iterator[str]:
        """Yield the keys that encode no name, as another tool would show them."""
        folder = self.folder(path)
        for each in self.bucket.listed(folder, path, deep=True)[0]:
            key = each.key[len(folder) :]
            if key and path_below(key) is None and (twin := names.nearest(key)):
                yield names.join(path, twin)

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        check_range(path, offset, length)
        if not path:
            raise error(errno.EISDIR, path)
        try:
            return ObjectReader(self.bucket, self.key(path), path, offset, length)
        except FileNotFoundError as missing:
            if "bucket" in str(missing.strerror):
                raise
        raise self.unlike_file(path)

    def unlike_file(self, path: str) -> OSError:
        if self.bucket.done(self.bucket.some(self.folder(path)), path).get("Contents"):
            return error(errno.EISDIR, path)
        return self._missing(path)

    # --------------------------------------------------------------- changes

    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        if not path:
            raise error(errno.EISDIR, path)
        if if_absent:
            self._heeds(path)
        # For a small file the check is left to the commit, which costs no more than a check here.
        missing = self._room(path, if_absent and (size is None or size > SMALL))
        meta = {
            MODE: f"{FILE_MODE if mode is None else mode & 0o777:o}",
            MTIME: repr(time.time() if mtime is None else mtime),
        }
        return ObjectWriter(
            self.bucket,
            self.key(path),
            path,
            meta,
            if_absent,
            size or 0,
            lambda: self.put_folders(missing),
            lambda: self._heeds(path, PARTS),
        )

    def _room(self, path: str, absent: bool) -> Sequence[str]:
        """Raise EISDIR or ENOTDIR if no file can be put at `path`; with `absent`, EEXIST if one exists.

        Return the directories above it that have no object yet.
        """
        key = self.key(path)
        below = self.bucket.some(self.folder(path))
        there = self.bucket.begin("head_object", Key=key) if absent else None
        missing = self.above(path)
        if self.bucket.done(below, path).get("Contents"):
            raise error(errno.EISDIR, path)
        if there is not None and self.bucket.headed(there, key, path) is not None:
            raise error(errno.EEXIST, path)
        return missing

    def above(self, path: str) -> Sequence[str]:
        """Return the directories above `path` that have no object yet. Raises ENOTDIR if one of them is a file."""
        now = time.monotonic()
        unsure = [each for each in names.ancestors(path) if self.seen.get(each, 0) < now]
        asked = []
        for each in unsure:
            key, folder = self.key(each), self.folder(each)
            asked.append((each, key, self.bucket.begin("head_object", Key=key)))
            asked.append((each, folder, self.bucket.begin("head_object", Key=folder)))
        heads = [(each, key, self.bucket.headed(future, key, path)) for each, key, future in asked]
        if any(head is not None for _, key, head in heads if not key.endswith("/")):
            raise error(errno.ENOTDIR, path)
        missing = [each for each, key, head in heads if key.endswith("/") and head is None]
        self._sure(each for each in unsure if each not in missing)
        return missing

    def _sure(self, paths: Iterable[str]) -> None:
        if len(self.seen) > 10_000:
            self.seen.clear()
        self.seen.update(dict.fromkeys(paths, time.monotonic() + REST))

    def put_folders(self, paths: Sequence[str]) -> None:
        """Create directories."""
        self.put_folder_keys({self.folder(each): each for each in paths})
        self._sure(paths)

    def put_folder_keys(self, keys: Mapping[str, str]) -> None:
        """Create the objects of directories, one level after the other. Values: the paths that errors name.

        A gateway with real directories makes those above a new one itself, and that may replace one that is created at
        the same time: SeaweedFS then lists it, but has no object of it.
        """
        for _, level in itertools.groupby(sorted(keys, key=depth), key=depth):
            asked = [(each, self.bucket.begin("put_object", Key=each, Body=b"")) for each in level]
            for each, future in asked:
                self.bucket.done(future, keys[each])

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        if not path:
            if not exist_ok:
                raise error(errno.EEXIST, path)
            return
        file = self.bucket.begin("head_object", Key=self.key(path))
        below = self.bucket.some(self.folder(path))
        missing = self.above(path)
        if self.bucket.headed(file, self.key(path), path) is not None:
            raise error(errno.EEXIST, path)
        there = [each["Key"] for each in self.bucket.done(below, path).get("Contents", ())]
        if there and not exist_ok:
            raise error(errno.EEXIST, path)
        if exist_ok or not self.decides(path):
            self.put_folders(missing if self.folder(path) in there else [*missing, path])
            return
        self.put_folders(missing)
        key, meta = self.folder(path), {MARK: secrets.token_hex(8)}
        settled(
            lambda: self.bucket.call("put_object", path, Key=key, Body=b"", Metadata=meta, IfNoneMatch="*"),
            lambda: self.bucket.head(key, path),
            meta[MARK],
            path,
        )

    def remove(self, path: str, recursive: bool = False) -> None:
        if not path:
            raise error(errno.EPERM, path)
        key, folder = self.key(path), self.folder(path)
        if self.bucket.head(key, path) is not None:
            self.bucket.call("delete_object", path, Key=key)
            return
        there = [each["Key"] for each in self.bucket.done(self.bucket.some(folder), path).get("Contents", ())]
        if not there:
            raise self._missing(path)
        if there != [folder]:
            if not recursive:
                raise error(errno.ENOTEMPTY, path)
            there = [each.key for each in self.bucket.listed(folder, path, deep=True)[0]]
        self.seen.clear()
        # The deepest first: some gateways keep a real directory, which must be empty.
        self.bucket.delete(sorted({*there, *folders_of(folder, there)}, reverse=True), path)

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        if not self.decides(source, DELETION) and not self._unsafe:
            text = (
                "this store does not heed If-Match of a deletion: a move could remove what is put meanwhile"
            )
            raise OSError(errno.ENOTSUP, f'{text}; cp and rm, or "unsafe": true in QUINE_FS_OPTIONS', source)
        Mover(self, self.decides(source, DELETION)).rename(source, target, if_absent)

    def copied_call(self, future: Future[Any], path: str) -> Any:
        try:
            return self.bucket.done(future, path)
        except Unmet:
            raise stale(path) from None

    def store_copy(self, source: Found, key: str, path: str) -> Future[Any] | None:
        """Start a copy by the store; return None if it took several calls and is done."""
        if source.size > WHOLE:
            whole = self.bucket.head(source.key, path)
            if whole is not None:
                by_parts(self.bucket, marked(whole), key, path, {})
            return None
        return self.bucket.begin(
            "copy_object",
            Key=key,
            CopySource={"Bucket": self.bucket.name, "Key": source.key},
            CopySourceIfMatch=f'"{source.etag}"',
        )

    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        """Change the metadata: the object is replaced by itself, if nothing was put there meanwhile."""
        for _ in range(AGAIN):
            here = self.bucket.head(self.key(path), path) if path else None
            if here is None:
                raise self.unlike_file(path) if path else error(errno.EISDIR, path)
            told = mode_of(here) if mode is None else mode & 0o777
            meta = {**here.meta, MODE: f"{told:o}", MTIME: repr(mtime_of(here) if mtime is None else mtime)}
            how = renewal(here, path, self.decides, self._unsafe)
            with contextlib.suppress(FileExistsError, FileNotFoundError):  # replaced meanwhile, or gone
                return renewed(self.bucket, here._replace(meta=meta), path, how)
        raise stale(path)

    def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
        if not source:
            raise error(errno.EISDIR, source)
        here = self.bucket.head(self.key(source), source)
        if here is None:
            raise self.unlike_file(source)
        return self.copied(marked(here), source, target, if_absent)

    def copied(self, here: Found, source: str, target: str, if_absent: bool) -> Entry:
        if not target:
            raise error(errno.EISDIR, target)
        if source == target and not if_absent:  # the store would refuse it
            return entry(source, here)
        if if_absent:
            self._heeds(target)
        in_one_step = if_absent and here.size <= WHOLE and self.decides(target, COPY)
        self.put_folders(self._room(target, if_absent and not in_one_step))
        key = self.key(target)
        if in_one_step:
            return by_copy(self.bucket, here, key, source, target)
        if if_absent and here.size <= PART:
            return by_hand(self.bucket, here, key, source, target)
        if if_absent:
            self._heeds(target, PARTS)
        if if_absent or here.size > WHOLE:
            return by_parts(self.bucket, here, key, target, ABSENT if if_absent else {})
        future = self.store_copy(here, key, source)
        answer = self.copied_call(future, source) if future is not None else {}
        return entry(target, here)._replace(version=bare(answer.get("CopyObjectResult", {})))

    def _heeds(self, path: str, what: str = PUT) -> None:
        if not self.decides(path, what):
            what = " of what comes in parts" if what == PARTS else ""
            text = f"this store does not heed If-None-Match{what}: it cannot decide who is first"
            raise OSError(errno.ENOTSUP, text, path)

    def decides(self, path: str, what: str = PUT) -> bool:
        """Return whether the store heeds the condition of a kind of call (copies.py). Tested once for each."""
        with self._lock:
            if what not in self._conditional:
                key = f"{self.base}{ASIDE}{secrets.token_hex(8)}"
                self._conditional[what] = heeds(self.bucket, key, path, what)
            return self._conditional[what]

    def close(self) -> None:
        self.bucket.close()
