"""What Google's driver would not send whole: a small file goes between boundaries that are always the same.

`gcsfs` sends what is below 5 MiB as one body, its parts divided by a line that begins with `--==0==`, with bare line
feeds. So a file that holds such a line would end there, and of one that ends with a carriage return that byte would be
taken for a part of the line's end. Such a file goes in chunks, as what is larger does.
"""

from __future__ import annotations

from typing import IO, Any

SMALL = 5 << 20  # bytes below which it goes as one body
BOUNDARY, RETURN = b"--==0==", b"\r"


def put(fs: Any, spool: IO[bytes], place: str, mode: str) -> bool:
    """Send what the driver would not send whole; False where that can be left to it."""
    size = spool.seek(0, 2)
    spool.seek(0)
    data = spool.read() if size < SMALL else b""
    if BOUNDARY not in data and not data.endswith(RETURN):
        return False
    from fsspec.asyn import sync  # type: ignore[import-untyped]
    from gcsfs.core import initiate_upload, upload_chunk  # type: ignore[import-untyped]

    bucket, key, _ = fs.split_path(place)
    kind = "application/octet-stream"
    where = sync(fs.loop, initiate_upload, fs, bucket, key, kind, mode=mode)
    sync(fs.loop, upload_chunk, fs, where, data, 0, size, kind)
    return True


def walked(fs: Any, place: str) -> list[tuple[str, dict[str, Any]]]:
    """All keys below a directory, relative to it, with what the driver tells of each; as few calls as there are pages.

    With directories, for a bucket may have some that no key tells of.
    """
    start = place.rstrip("/") + "/"
    found: dict[str, dict[str, Any]] = fs.find(place, withdirs=True, detail=True)
    return [(name[len(start) :], facts) for name, facts in found.items() if name.startswith(start)]


def expect_bucket(fs: Any, place: str) -> None:
    """FileNotFoundError where there is none: to the driver one without a file below the root looks the same."""
    bucket = fs.split_path(place)[0]
    try:
        fs.call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
    except FileNotFoundError:
        raise FileNotFoundError(2, f"there is no bucket {bucket}") from None
