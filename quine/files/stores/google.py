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
SMALL = 5 << 20  # bytes; the driver sends a smaller file as one body,
CHUNK = 50 << 20  # and a larger one in chunks of this size
BOUNDARY, RETURN = b"--==0==", b"\r"


def put(fs: Any, spool: IO[bytes], place: str, mode: str) -> dict[str, Any]:
    """Send a file. Return the facts of its new version from the store's answer; {} if the driver does not give them."""
    from fsspec.asyn import sync  # type: ignore[import-untyped]

    made: dict[str, Any] | None = sync(fs.loop, _put, fs, spool, place, mode)
    return made if made and made.get("generation") else {}


async def _put(fs: Any, spool: IO[bytes], place: str, mode: str) -> Any:
    from gcsfs import core  # type: ignore[import-untyped]

    bucket, key, _ = fs.split_path(place)
    zonal = getattr(fs, "_is_zonal_bucket", None)
    if zonal and await zonal(bucket):  # its objects are appended to, by another protocol
        return await fs._put_file(f"/proc/self/fd/{spool.fileno()}", place, mode=mode)
    size = spool.seek(0, 2)
    spool.seek(0)
    data, kind = spool.read(CHUNK), "application/octet-stream"
    check = fs.consistency
    if size < SMALL and BOUNDARY not in data and not data.endswith(RETURN):
        return await core.simple_upload(
            fs, bucket, key, data, consistency=check, content_type=kind, mode=mode
        )
    checker = core.get_consistency_checker(check)
    where = await core.initiate_upload(fs, bucket, key, kind, mode=mode)
    try:
        for at in range(0, size, CHUNK):
            made = await core.upload_chunk(fs, where, data, at, size, kind)
            checker.update(data)
            data = spool.read(CHUNK)
    except Exception:
        await fs._call("DELETE", where.replace("&ifGenerationMatch=0", ""))
        raise
    checker.validate_json_response(made)
    return made


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
