"""Azure directories that are empty blobs of other tools: the driver lists and removes them wrongly.

Such a blob is called `dir/`, or `dir` with `hdi_isfolder` in its metadata. If `dir/` exists, `adlfs` lists nothing else
in the directory. It removes neither blob. Its listing of `dir` also requests every directory with that name prefix.
"""

from __future__ import annotations

import contextlib
from typing import IO, Any

FOLDER = "hdi_isfolder"


def listed(fs: Any, place: str) -> list[dict[str, Any]]:
    """List a directory, in the form of the driver's `ls`. Raises FileNotFoundError if there is no container."""
    from fsspec.asyn import sync  # type: ignore[import-untyped]

    found: list[dict[str, Any]] = sync(fs.loop, _listed, fs, place)
    return found


def walked(fs: Any, place: str) -> list[tuple[str, dict[str, Any]]]:
    """Return all keys below a directory, relative to it, with the driver's facts of each. One call a page.

    Raises FileNotFoundError if there is no container.
    """
    from fsspec.asyn import sync

    found: list[tuple[str, dict[str, Any]]] = sync(fs.loop, _walked, fs, place)
    return found


async def _walked(fs: Any, place: str) -> list[tuple[str, dict[str, Any]]]:
    from azure.core.exceptions import ResourceNotFoundError

    container, path, _ = fs.split_path(place)
    prefix = f"{path}/" if path else ""
    try:
        async with fs.service_client.get_container_client(container=container) as client:
            listed = client.list_blobs(name_starts_with=prefix or None, include=["metadata"])
            blobs = [each async for each in listed]
    except ResourceNotFoundError:
        raise FileNotFoundError(2, f"there is no container {container}") from None
    keys = [each.name[len(prefix) :] for each in blobs]
    return list(zip(keys, await fs._details(blobs)))


async def _listed(fs: Any, place: str) -> list[dict[str, Any]]:
    from azure.core.exceptions import ResourceNotFoundError
    from azure.storage.blob.aio import BlobPrefix

    container, path, _ = fs.split_path(place)
    try:
        async with fs.service_client.get_container_client(container=container) as client:
            walked = client.walk_blobs(name_starts_with=f"{path}/" if path else None, include=["metadata"])
            found = [each async for each in walked]
    except ResourceNotFoundError:
        raise FileNotFoundError(2, f"there is no container {container}") from None
    prefixes = [each for each in found if isinstance(each, BlobPrefix)]
    directories = [{"name": f"{container}/{each.name}", "type": "directory"} for each in prefixes]
    files = await fs._details([each for each in found if not isinstance(each, BlobPrefix)])
    return [*directories, *files]  # files last: of a file and a directory of one name the file is shown


def put(fs: Any, spool: IO[bytes], place: str, mode: str) -> dict[str, Any]:
    """Send a file. Return the facts of its new version from the store's answer. Raises FileExistsError."""
    from fsspec.asyn import sync

    made: dict[str, Any] = sync(fs.loop, _put, fs, spool, place, mode)
    return made


async def _put(fs: Any, spool: IO[bytes], place: str, mode: str) -> dict[str, Any]:
    """Upload as the driver does, which keeps the answer to itself."""
    from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError

    container, path, _ = fs.split_path(place)
    words = {"max_concurrency": fs.max_concurrency, **getattr(fs, "_timeout_kwargs", {})}
    size = spool.seek(0, 2)
    spool.seek(0)
    async with fs.service_client.get_blob_client(container, path) as client:
        try:
            made = await client.upload_blob(
                spool, overwrite=mode != "create", metadata={"is_directory": "false"}, **words
            )
        except ResourceExistsError:
            raise FileExistsError(17, "the blob exists") from None
        except ResourceNotFoundError:
            raise FileNotFoundError(2, f"there is no container {container}") from None
    return {"size": size, "etag": made["etag"], "last_modified": made["last_modified"]}


def drop(fs: Any, place: str, etag: str) -> bool:
    """Remove one version of a blob. Return False if another client has removed or replaced it.

    Raises FileNotFoundError if it is gone after a request without an answer, which may have removed it.
    """
    from fsspec.asyn import sync

    removed: bool = sync(fs.loop, _drop, fs, place, etag)
    return removed


async def _drop(fs: Any, place: str, etag: str) -> bool:
    from azure.core import MatchConditions
    from azure.core.exceptions import AzureError, ResourceModifiedError, ResourceNotFoundError

    container, path, _ = fs.split_path(place)
    version = {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}
    async with fs.service_client.get_container_client(container=container) as client:
        try:
            await client.delete_blob(path, **version, retry_total=0)
            return True
        except (ResourceModifiedError, ResourceNotFoundError):
            return False
        except AzureError:  # again, with the repetitions of the library
            pass
        try:
            await client.delete_blob(path, **version)
        except ResourceModifiedError:
            return False
        except ResourceNotFoundError:
            raise FileNotFoundError(2, "the blob is gone") from None
    return True


def forget(fs: Any, place: str) -> None:
    """Remove the blob that another tool made of a directory."""
    from fsspec.asyn import sync

    sync(fs.loop, _forget, fs, place)


def close(fs: Any) -> None:
    """Close the connections. The driver's own finalizer keeps the instance alive whose end it waits for."""
    from fsspec.asyn import sync

    sync(fs.loop, fs.service_client.close)


async def _forget(fs: Any, place: str) -> None:
    from azure.core import MatchConditions
    from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError

    container, path, _ = fs.split_path(place)
    async with fs.service_client.get_container_client(container=container) as client:
        with contextlib.suppress(ResourceNotFoundError):
            await client.delete_blob(f"{path}/")
        with contextlib.suppress(ResourceNotFoundError, ResourceModifiedError):
            found = await client.get_blob_client(path).get_blob_properties()
            if FOLDER in (found.metadata or {}):  # it may have become a file meanwhile
                await client.delete_blob(path, etag=found.etag, match_condition=MatchConditions.IfNotModified)
