"""The ways of Google's driver around which a store has to go.

Uploads that it would cut: it separates the parts of a small upload by a constant boundary.

`gcsfs` sends a file below 5 MiB as one body. Its parts are divided by a line that begins with `--==0==`, with bare line
feeds. A file that holds such a line would end there. A carriage return at the end of a file would be lost to the line
ending. Such a file is sent in chunks, as larger files are.
"""

from __future__ import annotations

from typing import IO, Any

# Its own cache reads ahead in tasks, and a reader waits for ever for one whose object was replaced meanwhile.
READING = {"cache_type": "readahead"}
SMALL = 5 << 20  # bytes; the driver sends a smaller file as one body
BOUNDARY, RETURN = b"--==0==", b"\r"


def put(fs: Any, spool: IO[bytes], place: str, mode: str) -> bool:
    """Send a file that the driver would cut, and return True; return False if the driver can send it."""
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
    """Return all keys below a directory, relative to it, with the driver's facts of each. One call a page.

    Directories are included: a bucket may have some that no key shows.
    """
    start = place.rstrip("/") + "/"
    found: dict[str, dict[str, Any]] = fs.find(place, withdirs=True, detail=True)
    return [(name[len(start) :], facts) for name, facts in found.items() if name.startswith(start)]


def drop(fs: Any, place: str, generation: str) -> bool:
    """Remove one generation of an object. Return False if another client has removed or replaced it.

    Raises FileNotFoundError if it is gone after a request without an answer, which may have removed it.
    """
    from fsspec.asyn import sync

    bucket, key, _ = fs.split_path(place)
    once = getattr(type(fs)._request, "__wrapped__", None)  # the driver's request without its repetitions
    try:
        if once:
            sync(fs.loop, once, fs, "DELETE", "b/{}/o/{}", bucket, key, ifGenerationMatch=generation)
            return True
    except (FileNotFoundError, FileExistsError):  # 404, 412
        return False
    except Exception:  # again, with the driver's repetitions
        pass
    try:
        fs.call("DELETE", "b/{}/o/{}", bucket, key, ifGenerationMatch=generation)
    except FileExistsError:  # 412
        return False
    return True


def expect_bucket(fs: Any, place: str) -> None:
    """Raise FileNotFoundError if there is no bucket: the driver lists it like one without a file below the root."""
    bucket = fs.split_path(place)[0]
    try:
        fs.call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
    except FileNotFoundError:
        raise FileNotFoundError(2, f"there is no bucket {bucket}") from None
