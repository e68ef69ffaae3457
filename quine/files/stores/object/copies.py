"""Conditional copies within a bucket, and tests of the conditions that its store heeds.

Laws
1. A condition is trusted after a test, made for each kind of call: some stores heed it for one kind alone.
2. A conditional copy is ours, or it does not happen: of two clients that copy to one key, one gets EEXIST.
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

# Kinds of calls for which a store may heed If-None-Match, each on its own; for a deletion the condition is If-Match.
PUT, PARTS, COPY, DELETION = "put", "parts", "copy", "deletion"


def heeds(bucket: Bucket, key: str, path: str, what: str) -> bool:
    """Test on the unused `key` whether the store heeds the condition of `what`: PUT, PARTS, COPY or DELETION."""
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
            raise  # EIO: some stores call an unknown header of a copy an invalid argument
        return False
    finally:
        with contextlib.suppress(OSError):
            bucket.call("delete_object", path, Key=key)


def by_copy(bucket: Bucket, here: Found, key: str, source: str, target: str) -> Entry:
    """Have the store copy conditionally, in one call. EEXIST; ENOENT, ESTALE if the source is gone or was replaced."""
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


def by_parts(bucket: Bucket, source: Found, key: str, path: str, if_absent: bool) -> Entry:
    """Have the store copy in parts: an object of any size, conditionally with `if_absent`."""
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
