"""Conditional copies within a bucket, and tests of the conditions that its store heeds.

Laws
1. A condition is trusted after a test, made for each kind of call: some stores heed it for one kind alone.
2. A conditional copy is ours, or it does not happen: of two clients that copy to one key, one gets EEXIST.
3. An object is replaced by itself only while it is there: the condition is one of the target. That of the source is
   looked at first, and what is put after that would be lost.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from quine.files.api import Entry, error, pour, stale
from quine.files.stores.object.client import Bucket, Found, Unmet
from quine.files.stores.object.io import (
    MARK,
    MODE,
    MOST_PARTS,
    MTIME,
    PART,
    WHOLE,
    ObjectReader,
    ObjectWriter,
    Upload,
    entry,
    marked,
    mode_of,
    mtime_of,
    settled,
)
from quine.files.stores.spool import MEMORY

# Kinds of calls for which a store may heed a condition, each on its own: If-None-Match for three, If-Match for others.
PUT, PARTS, COPY, DELETION = "put", "parts", "copy", "deletion"
OVER, OVER_PUT, OVER_PARTS = "copy over", "put over", "parts over"
ABSENT = {"IfNoneMatch": "*"}


def matching(etag: str) -> dict[str, str]:
    return {"IfMatch": f'"{etag}"'}


def heeds(bucket: Bucket, key: str, path: str, what: str) -> bool:
    """Test on the unused `key` whether the store heeds the condition of `what`, one of the kinds above."""
    bucket.call("put_object", path, Key=key, Body=b"")
    unmet = ABSENT if what in (PUT, PARTS, COPY) else matching("0" * 32)
    try:
        if what == DELETION:
            bucket.drop(key, "0" * 32, path)
            return bucket.head(key, path) is not None
        if what in (PUT, OVER_PUT):
            bucket.call("put_object", path, Key=key, Body=b"", **unmet)
            return False
        if what in (COPY, OVER):
            of = {"Bucket": bucket.name, "Key": key}
            bucket.call("copy_object", path, Key=key, CopySource=of, MetadataDirective="REPLACE", **unmet)
            return False
        upload = Upload(bucket, key, path, {MARK: secrets.token_hex(8)})
        try:
            MEMORY.add(1)
            upload.send(b"1")
            upload.complete(unmet)
            return False
        finally:
            upload.abort()
    except (Unmet, FileExistsError):
        return True
    except OSError as fault:
        if fault.errno != errno.ENOTSUP and not (what in (COPY, OVER) and fault.errno == errno.EIO):
            raise  # EIO: some stores call an unknown header of a copy an invalid argument
        return False
    finally:
        with contextlib.suppress(OSError):
            bucket.call("delete_object", path, Key=key)


def by_copy(bucket: Bucket, here: Found, key: str, source: str, target: str) -> Entry:
    """Have the store copy conditionally, in one call. EEXIST; ENOENT, ESTALE if the source is gone or was replaced."""
    meta = {**here.meta, MODE: f"{mode_of(here):o}", MTIME: repr(mtime_of(here))}

    def copy() -> Any:
        return _copied(bucket, here, key, target, meta, ABSENT)

    try:
        etag = settled(copy, lambda: bucket.head(key, target), meta[MARK], target)
    except FileExistsError:
        raise
    except OSError:
        there = bucket.head(here.key, source)
        if there is None:
            raise error(errno.ENOENT, source) from None
        if there.etag != here.etag:
            raise stale(source) from None
        raise
    return entry(target, here._replace(meta=meta))._replace(version=etag)


def _copied(
    bucket: Bucket, here: Found, key: str, path: str, meta: Mapping[str, str], condition: Mapping[str, str]
) -> Any:
    return bucket.call(
        "copy_object",
        path,
        Key=key,
        CopySource={"Bucket": bucket.name, "Key": here.key},
        CopySourceIfMatch=f'"{here.etag}"',
        Metadata=meta,
        MetadataDirective="REPLACE",
        **condition,
    )["CopyObjectResult"]


def by_hand(bucket: Bucket, here: Found, key: str, source: str, target: str) -> Entry:
    """Copy a small object conditionally: read it here, and write it in one put.

    Some gateways check first and complete the parts later, so two clients both succeed. If one of them then undoes its
    copy, it removes the copy of both, while the other has removed the source. A put is decided in one step.
    """
    meta = {**here.meta, MODE: f"{mode_of(here):o}", MTIME: repr(mtime_of(here))}
    with (
        ObjectReader(bucket, here.key, source, 0, None) as reader,
        ObjectWriter(bucket, key, target, meta, True, 0, lambda: None) as writer,
    ):
        if reader.entry.version != here.etag:
            raise stale(source)
        pour(reader, writer)
        return writer.commit()


def by_parts(bucket: Bucket, source: Found, key: str, path: str, condition: Mapping[str, str]) -> Entry:
    """Have the store copy in parts: an object of any size, on a condition. Raises FileExistsError if that is unmet."""
    upload = Upload(bucket, key, path, source.meta)
    try:
        size = max(WHOLE // 5, -(-source.size // MOST_PARTS))
        for start in range(0, source.size, size):
            upload.copy(source, start, min(start + size, source.size) - 1)
        etag = upload.complete(condition)
    except BaseException:
        upload.abort()
        raise
    return entry(path, source)._replace(version=etag)


def renewal(here: Found, path: str, decides: Callable[[str, str], bool], unsafe: bool) -> str:
    """Return how `renewed` may replace an object. Raises ENOTSUP."""
    how = OVER_PARTS if here.size > WHOLE else OVER
    if decides(path, how):
        return how
    if here.size <= PART and decides(path, OVER_PUT):
        return OVER_PUT
    if unsafe:
        return ""
    text = (
        "this store does not heed If-Match of a copy: new modes and times could remove what is put meanwhile"
    )
    raise OSError(errno.ENOTSUP, f'{text}; "unsafe": true in QUINE_FS_OPTIONS', path)


def renewed(bucket: Bucket, here: Found, path: str, how: str) -> Entry:
    """Replace an object by itself with the metadata of `here`. FileExistsError: it was replaced meanwhile.

    `how`: OVER, OVER_PUT or OVER_PARTS, which the store heeds; "" for a copy without a condition. ENOENT if it is gone.
    """
    meta, condition = {**here.meta, MARK: secrets.token_hex(8)}, matching(here.etag) if how else {}

    def copy() -> Any:
        return _copied(bucket, here, here.key, path, meta, condition)

    def put() -> Any:
        with ObjectReader(bucket, here.key, path, 0, None) as reader:
            content = b"".join(iter(reader.read, b""))
        return bucket.call("put_object", path, Key=here.key, Body=content, Metadata=meta, **condition)

    if here.size > WHOLE:
        return by_parts(bucket, marked(here), here.key, path, condition)
    try:
        etag = settled(
            put if how == OVER_PUT else copy, lambda: bucket.head(here.key, path), meta[MARK], path
        )
    except FileExistsError:
        raise
    except OSError:
        if bucket.head(here.key, path) is None:
            raise error(errno.ENOENT, path) from None
        raise
    return entry(path, here)._replace(version=etag)
