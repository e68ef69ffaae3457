"""Copies within a bucket that may be conditional, and which conditions its store heeds at all.

Laws
1. A condition is trusted when it was tried out, of each kind of call by itself: some stores heed it of one alone.
2. A conditional copy is ours or is none: of two who copy to one key one is told EEXIST.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from typing import Any

from quine.files.api import Entry, error, pour, stale
from quine.files.stores.object.client import Bucket, Found, Unmet
from quine.files.stores.object.io import (
    MARK,
    MODE,
    MOST_PARTS,
    MTIME,
    WHOLE,
    ObjectReader,
    ObjectWriter,
    Upload,
    entry,
    mode_of,
    mtime_of,
    settled,
)
from quine.files.stores.spool import MEMORY

# What a store may heed If-None-Match of, and not of the others; a deletion's condition is If-Match.
PUT, PARTS, COPY, DELETION = "put", "parts", "copy", "deletion"


def heeds(bucket: Bucket, key: str, path: str, what: str) -> bool:
    """Does the store heed the condition, of PUT, PARTS, COPY or DELETION? Tried out on a key that nobody else has."""
    bucket.call("put_object", path, Key=key, Body=b"")
    try:
        if what == DELETION:
            bucket.drop(key, "0" * 32, path)
            return bucket.head(key, path) is not None
        if what == PUT:
            bucket.call("put_object", path, Key=key, Body=b"", IfNoneMatch="*")
            return False
        if what == COPY:
            of = {"Bucket": bucket.name, "Key": key}
            bucket.call(
                "copy_object", path, Key=key, CopySource=of, IfNoneMatch="*", MetadataDirective="REPLACE"
            )
            return False
        upload = Upload(bucket, key, path, {MARK: secrets.token_hex(8)})
        try:
            MEMORY.add(1)
            upload.send(b"1")
            upload.complete(if_absent=True)
            return False
        finally:
            upload.abort()
    except (Unmet, FileExistsError):
        return True
    except OSError as fault:
        if fault.errno != errno.ENOTSUP and not (what == COPY and fault.errno == errno.EIO):
            raise  # a copy with what it does not know is an invalid argument to some
        return False
    finally:
        with contextlib.suppress(OSError):
            bucket.call("delete_object", path, Key=key)


def by_copy(bucket: Bucket, here: Found, key: str, source: str, target: str) -> Entry:
    """A conditional copy by the store, in one call. EEXIST; ENOENT, ESTALE where the source is gone or was replaced."""
    meta = {**here.meta, MODE: f"{mode_of(here):o}", MTIME: repr(mtime_of(here)), MARK: secrets.token_hex(8)}

    def copy() -> Any:
        return bucket.call(
            "copy_object",
            target,
            Key=key,
            CopySource={"Bucket": bucket.name, "Key": here.key},
            CopySourceIfMatch=f'"{here.etag}"',
            IfNoneMatch="*",
            Metadata=meta,
            MetadataDirective="REPLACE",
        )["CopyObjectResult"]

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


def by_hand(bucket: Bucket, here: Found, key: str, source: str, target: str) -> Entry:
    """A conditional copy of what is small, to a key: by us, in one put.

    Some gateways look and then complete the parts, so that two are the first; and who takes his own back then
    takes that of both, of which one has removed the source. A put they decide in one step.
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


def by_parts(bucket: Bucket, source: Found, key: str, path: str, if_absent: bool) -> Entry:
    """A copy by the store which can be conditional, and of any size."""
    upload = Upload(bucket, key, path, {**source.meta, MARK: secrets.token_hex(8)})
    try:
        size = max(WHOLE // 5, -(-source.size // MOST_PARTS))
        for start in range(0, source.size, size):
            upload.copy(source, start, min(start + size, source.size) - 1)
        etag = upload.complete(if_absent)
    except BaseException:
        upload.abort()
        raise
    return entry(path, source)._replace(version=etag)
