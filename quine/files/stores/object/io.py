"""Reader and writer of an object: a reader gets one version, a writer sends one body or parts.

Laws
1. An object becomes visible whole or not at all: by one call, or by the call that completes its parts.
2. A reader requests the version that it opened, and resumes it where a body broke off; never another version.
3. An incomplete part is in memory only while it is small, then on disk. Parts in flight share one memory budget
   (spool.py), whatever the announced size of a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from quine.files.api import BLOCK, FILE_MODE, Entry, Reader, Writer, error, stale
from quine.files.stores.object.client import Bucket, Found, Unmet, bare, found
from quine.files.stores.spool import MEMORY, expect_room, spool
from transport.writes import write_at

PART = 8 << 20  # bytes; an object up to this size is put in one call
MOST_PART = 512 << 20  # bytes; `MOST_PARTS` of these make the largest possible object
TOLD_PART = 64 << 20  # bytes; the largest part chosen from an announced size
SMALL = 256 << 10  # bytes collected in memory before the spool
MOST_PARTS = 10_000  # S3's limit for one object
WHOLE = 5 << 30  # bytes; the largest object that the store copies in one call
IN_FLIGHT = 3  # parts sent at a time
AGAIN = 3  # tries for a body that broke off, and for a race that the store cannot decide

MODE, MTIME, MARK = "quine-mode", "mtime", "quine-mark"  # metadata; MTIME is rclone's


def entry(path: str, there: Found) -> Entry:
    return Entry(path, "file", there.size, mtime_of(there), mode_of(there), there.etag)


def mode_of(there: Found) -> int:
    try:
        return int(there.meta[MODE], 8) & 0o777
    except (KeyError, ValueError):
        return FILE_MODE


def mtime_of(there: Found) -> float:
    try:
        told = float(there.meta[MTIME])
    except (KeyError, ValueError):
        return there.modified
    return told if abs(told) < 1 << 53 else there.modified  # other tools write it too; NaN fails the test


def marked(there: Found) -> Found:
    """Return the object with a mark of its own in its metadata, for a copy that is to be told from all others."""
    return there._replace(meta={**there.meta, MARK: secrets.token_hex(8)})


class Upload:
    """A multipart upload of one object."""

    def __init__(self, bucket: Bucket, key: str, path: str, meta: Mapping[str, str]) -> None:
        self._bucket, self._key, self._path, self._meta = bucket, key, path, meta
        made = self._bucket.call("create_multipart_upload", path, Key=key, Metadata=dict(meta))
        self._same = {"Key": key, "UploadId": made["UploadId"]}
        self._parts: list[Future[Any]] = []
        self._etags: list[str] = []

    def send(self, data: bytes | bytearray) -> None:
        """Send a part; block while more than IN_FLIGHT are on their way. Its share of MEMORY is freed on arrival."""
        number, size = len(self._etags) + len(self._parts) + 1, len(data)
        try:
            part = self._bucket.begin("upload_part", PartNumber=number, Body=data, **self._same)
        except BaseException:
            MEMORY.give(size)
            raise
        part.add_done_callback(lambda _: MEMORY.give(size))
        self._parts.append(part)
        while len(self._parts) > IN_FLIGHT:
            self._arrived()

    def copy(self, source: Found, first: int, last: int) -> None:
        number = len(self._etags) + len(self._parts) + 1
        more = {} if last + 1 - first == source.size else {"CopySourceRange": f"bytes={first}-{last}"}
        future = self._bucket.begin(
            "upload_part_copy",
            PartNumber=number,
            CopySource={"Bucket": self._bucket.name, "Key": source.key},
            CopySourceIfMatch=f'"{source.etag}"',
            **more,
            **self._same,
        )
        self._parts.append(future)
        while len(self._parts) > IN_FLIGHT:
            self._arrived()

    def _arrived(self) -> None:
        try:
            answer = self._bucket.done(self._parts.pop(0), self._path)
        except Unmet:
            raise stale(self._path) from None
        self._etags.append(bare(answer.get("CopyPartResult", answer)))

    @property
    def count(self) -> int:
        return len(self._etags) + len(self._parts)

    def complete(self, condition: Mapping[str, str]) -> str:
        """Make the object visible and return its ETag. Raises FileExistsError."""
        while self._parts:
            self._arrived()
        parts = [{"PartNumber": n, "ETag": f'"{etag}"'} for n, etag in enumerate(self._etags, 1)]
        return settled(
            lambda: self._bucket.call(
                "complete_multipart_upload",
                self._path,
                MultipartUpload={"Parts": parts},
                **condition,
                **self._same,
            ),
            lambda: self._bucket.head(self._key, self._path),
            self._meta[MARK],
            self._path,
        )

    def abort(self) -> None:
        for future in self._parts:
            future.cancel()
        for future in self._parts:
            # Wait for each: a part that arrived after the abort would remain.
            with contextlib.suppress(BaseException):
                future.result(60)
        self._parts.clear()
        with contextlib.suppress(OSError, Unmet):
            self._bucket.call("abort_multipart_upload", self._path, **self._same)


def settled(act: Callable[[], Any], look: Callable[[], Found | None], mark: str, path: str) -> str:
    """Run `act` and return the ETag of the object it put. Raises FileExistsError if another client was first.

    After a lost answer the request is repeated and meets our own object, which `mark` identifies.
    """
    for left in reversed(range(AGAIN)):
        try:
            return bare(act())
        except Unmet as unmet:
            there, fault = look(), OSError(errno.EIO, f"the store cannot decide: {unmet}", path)
            if there is not None and there.meta.get(MARK) != mark:
                raise error(errno.EEXIST, path) from None
        except OSError as refused:
            there, fault, left = look(), refused, 0
            if isinstance(refused, FileNotFoundError) and "bucket" not in str(refused.strerror):
                fault = OSError(errno.EIO, "the store has lost the parts of it", path)
        if there is not None and there.meta.get(MARK) == mark:
            return there.etag
        if not left:
            raise fault
    raise AssertionError("unreachable")


class ObjectWriter(Writer):
    """Holds data in memory while it is small, then on disk up to one part; then sends part after part."""

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        path: str,
        meta: Mapping[str, str],
        if_absent: bool,
        size: int,
        before: Callable[[], None],
        parted: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` runs before the object is visible, `parted` before a first part with `if_absent`; both may raise."""
        self._bucket, self._key, self._path = bucket, key, path
        self._if_absent, self._before, self._parted = if_absent, before, parted
        self._condition = {"IfNoneMatch": "*"} if if_absent else {}
        self._meta = {MARK: secrets.token_hex(8), **meta}
        self._part = min(max(PART, -(-size // (MOST_PARTS - 100))), TOLD_PART)
        self._held = bytearray()  # the data after the content of the spool
        self._spool, self._spooled = -1, 0  # descriptor, and bytes in it
        self._upload: Upload | None = None
        self._size = 0
        self._done = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        self._size += len(view)
        while view:
            room = self._part - self._spooled - len(self._held)
            if not room:
                self._send_part()
                continue
            self._held += view[:room]
            view = view[room:]
            if len(self._held) > SMALL:
                self._unload()

    def _unload(self) -> None:
        if self._spool < 0:
            self._spool = spool()
        expect_room(self._spool, self._spooled, len(self._held), self._path)
        write_at(self._spool, bytes(self._held), self._spooled)
        self._spooled += len(self._held)
        self._held.clear()

    def _content(self) -> bytearray:
        """Return the collected data, and take its share of MEMORY."""
        size = self._spooled + len(self._held)
        MEMORY.take(size)
        try:
            content = bytearray(size)
            at = 0
            with memoryview(content) as view:
                while at < self._spooled:
                    at += os.preadv(self._spool, [view[at : self._spooled]], at) or self._torn()
                view[at:] = self._held
        except BaseException:
            MEMORY.give(size)
            raise
        self._spooled = 0
        self._held.clear()
        return content

    def _torn(self) -> int:
        raise error(errno.EIO, self._path)

    def _send_part(self) -> None:
        if self._upload is None:
            if self._if_absent:
                self._parted()
            self._upload = Upload(self._bucket, self._key, self._path, self._meta)
        self._upload.send(self._content())
        if not self._upload.count % 1000:  # the size is unknown, and the number of parts limited
            self._part = min(2 * self._part, MOST_PART)

    def commit(self) -> Entry:
        if self._done:
            raise error(errno.EINVAL, self._path)
        self._before()
        if self._upload is not None:
            if self._spooled or self._held:
                self._upload.send(self._content())
            etag = self._upload.complete(self._condition)
        else:
            etag = self._put()
        self._done = True
        self._let_go()
        mtime, mode = float(self._meta[MTIME]), int(self._meta[MODE], 8)
        return Entry(self._path, "file", self._size, mtime, mode, etag)

    def _put(self) -> str:
        bucket, key = self._bucket, self._key
        content = self._content()
        try:
            return settled(
                lambda: bucket.call(
                    "put_object", self._path, Key=key, Body=content, Metadata=self._meta, **self._condition
                ),
                lambda: bucket.head(key, self._path),
                self._meta[MARK],
                self._path,
            )
        finally:
            MEMORY.give(len(content))

    def abort(self) -> None:
        if not self._done and self._upload is not None:
            self._upload.abort()
        self._done = True
        self._let_go()

    def _let_go(self) -> None:
        self._held.clear()
        if self._spool >= 0:
            os.close(self._spool)
        self._spool = -1


class ObjectReader(Reader):
    """Reads one version of an object, by ETag; a body that breaks off is requested again from there on."""

    def __init__(self, bucket: Bucket, key: str, path: str, offset: int, length: int | None) -> None:
        self._bucket, self._key, self._path = bucket, key, path
        self._body: Any = None
        there = self._first(offset, length)
        if there is None:
            raise error(errno.ENOENT, path)
        super().__init__(entry(path, there), offset, length)
        self._place, self._end = offset, offset + self.length

    def _first(self, offset: int, length: int | None) -> Found | None:
        """Get version and bytes in one call; for an empty range, the version by HEAD."""
        if length == 0:
            return self._bucket.head(self._key, self._path)
        try:
            return self._get(offset, None if length is None else offset + length, "")
        except OSError as fault:
            self._let_go()
            if fault.errno != errno.ERANGE:
                raise
        return self._bucket.head(self._key, self._path)

    def _get(self, start: int, end: int | None, etag: str) -> Found:
        whole = not start and end is None
        more = {} if whole else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        if etag:
            more["IfMatch"] = f'"{etag}"'
        try:
            answer = self._bucket.call("get_object", self._path, Key=self._key, **more)
        except Unmet:
            raise stale(self._path) from None
        except FileNotFoundError:
            if etag:
                raise stale(self._path) from None
            raise
        self._body = answer["Body"]
        there = found(self._key, answer)
        if etag and there.etag != etag:
            raise stale(self._path)
        if start and not str(answer.get("ContentRange", "")).startswith(f"bytes {start}-"):
            raise OSError(errno.EIO, "the store sends another part than was asked for", self._path)
        return there

    def data(self, size: int) -> bytes:
        size = min(size, BLOCK, self._end - self._place)
        if size <= 0:
            return b""
        for left in reversed(range(AGAIN)):
            if self._body is None:
                self._get(self._place, self._end, self.entry.version)
            try:
                block: bytes = self._bucket.run(_filled(self._body, size), self._path)
            except OSError:
                self._let_go()
                if not left:
                    raise
                continue
            if block:
                self._place += len(block)
                return block
            self._let_go()
        raise OSError(errno.EIO, "the store sends less than it promised", self._path)

    def _let_go(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            self._bucket.soon(body.close)

    def close(self) -> None:
        self._let_go()


async def _filled(body: Any, size: int) -> bytes:
    """Read up to `size` bytes, less at the end of the body. Bytes read before a fault are returned."""
    parts: list[bytes] = []
    while size:
        try:
            block = await body.read(size)
        except Exception:
            if parts:
                break  # the fault comes again with the next call
            raise
        if not block:
            break
        parts.append(block)
        size -= len(block)
    return b"".join(parts)
