"""Calls to a bucket of an S3 store through s3fs: single requests, their answers, and failures as OSError.

Laws
1. Listings are not cached: a call returns the store's own answer. A reply that is not a store's (of a gateway whose
   connection broke off, of a login page) is an error. Tries are few and bounded, as are silences.
2. A forked process opens its own client; the open connections stay the parent's.
3. A condition that does not hold raises `Unmet`, distinct from every other failure.
4. Keys come from the given environment, from the options, or from the usual chain of the AWS tools (a profile, the role
   of a machine). No message holds one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from quine.base.errors import Misconfigured
from quine.files.api import is_unreached
from transport.wire.numbers import digits

TRIES = 4  # of a call, with pauses between them
CONNECT, SILENCE = 15, 60  # seconds
AT_ONCE = 32  # connections
LARGEST = 1 << 62  # bytes of an object
MORE = 1000  # keys that the store deletes in one call

_ERRNO = {
    **dict.fromkeys(("404", "NoSuchKey", "NotFound", "NoSuchUpload"), errno.ENOENT),
    **dict.fromkeys(("KeyTooLongError", "KeyTooLong"), errno.ENAMETOOLONG),
    **dict.fromkeys(("EntityTooLarge", "InvalidPartNumber"), errno.EFBIG),
    **dict.fromkeys(("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"), errno.ENOSPC),
    **dict.fromkeys(("NotImplemented", "501", "MethodNotAllowed"), errno.ENOTSUP),
    **dict.fromkeys(("403", "401", "AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId"), errno.EACCES),
    **dict.fromkeys(("416", "InvalidRange", "RequestedRangeNotSatisfiable"), errno.ERANGE),
    **dict.fromkeys(("SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"), errno.EACCES),
}
# A field that each answer must have: an empty answer would mean an empty directory, or a copy whose source may go.
_SAYS = {
    "list_objects_v2": "IsTruncated",
    "copy_object": "CopyObjectResult",
    "upload_part_copy": "CopyPartResult",
    "create_multipart_upload": "UploadId",
    **dict.fromkeys(("put_object", "upload_part", "complete_multipart_upload"), "ETag"),
    **dict.fromkeys(("head_object", "get_object"), "LastModified"),
}
_UNMET = ("412", "PreconditionFailed", "ConditionalRequestConflict", "409")


class Unmet(Exception):
    """If-Match or If-None-Match did not hold."""


def _asked(error: Exception, again: int) -> Exception:
    """Attach to an error how often the library retried before that answer."""
    error.again = again  # type: ignore[attr-defined]
    return error


def _asks_once(client: Any) -> bool:
    """Stop the HTTP library from resending: it repeats a DELETE without a report. Return False if it may still."""
    http = getattr(getattr(client, "_endpoint", None), "http_session", None)
    sessions = list((getattr(http, "_sessions", None) or {}).values())
    for session in sessions:
        if not hasattr(session, "_retry_connection"):
            return False
        session._retry_connection = False  # the layers above retry, and count it
    return bool(sessions)


class Found(NamedTuple):
    """An object."""

    key: str
    size: int  # bytes
    etag: str
    modified: float  # seconds since the epoch
    meta: Mapping[str, str] = {}


class Bucket:
    """Blocking calls, by any number of threads."""

    def __init__(self, name: str, environ: Mapping[str, str], options: Mapping[str, Any]) -> None:
        self.name = name
        self._options = settings(environ, options)
        self._hidden = [
            value for key in ("key", "secret", "token") if isinstance(value := self._options.get(key), str)
        ]
        self._lock = threading.Lock()
        self._driver: Any = None
        # Clients of the parent process: kept, because a dropped one would close the parent's connections.
        self._others: list[Any] = []
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        if self._driver is not None:
            self._others.append(self._driver)
            self._driver = None

    def driver(self) -> Any:
        """Return the s3fs filesystem of this process. Raises Misconfigured if it cannot be opened."""
        with self._lock:
            if self._driver is None:
                try:
                    import s3fs  # type: ignore[import-untyped]
                except ImportError:
                    from deploy.install import with_extra

                    raise Misconfigured("s3:// needs s3fs", with_extra("s3")) from None
                try:
                    self._driver = s3fs.S3FileSystem(**_limited(self._options))
                    self._driver.retries = 1  # the library below retries, and knows which errors
                except (TypeError, ValueError) as error:
                    raise Misconfigured(
                        f"s3:// cannot be opened: {self._text(error)}", "see QUINE_FS_OPTIONS"
                    ) from None
            return self._driver

    def begin(self, method: str, **call: Any) -> Future[Any]:
        """Start a call; `done` waits for it."""
        driver = self.driver()
        return asyncio.run_coroutine_threadsafe(self._answer(driver, method, call), driver.loop)

    async def _answer(self, driver: Any, method: str, call: dict[str, Any]) -> Any:
        answer = await driver._call_s3(method, Bucket=self.name, **call)
        if method in _SAYS and answer.get(_SAYS[method]) in (None, "", {}):
            raise ValueError("the endpoint is not an S3 store: its reply lacks the expected field")
        return answer

    def done(self, future: Future[Any], path: str) -> Any:
        """Wait for a call and return its answer. Raises Unmet, and OSError about `path`."""
        try:
            return future.result()
        except Exception as error:
            raise self.fault(error, path) from None
        except BaseException:  # a signal: the caller stops waiting
            future.cancel()
            raise

    def call(self, method: str, path: str, **call: Any) -> Any:
        return self.done(self.begin(method, **call), path)

    def run(self, coroutine: Any, path: str) -> Any:
        """Run a coroutine in the driver's loop and return its result."""
        return self.done(asyncio.run_coroutine_threadsafe(coroutine, self.driver().loop), path)

    def soon(self, call: Any) -> None:
        """Schedule a function in the driver's loop."""
        with contextlib.suppress(RuntimeError):  # the loop has ended with the process
            self.driver().loop.call_soon_threadsafe(call)

    # ----------------------------------------------------------------- calls

    def head(self, key: str, path: str) -> Found | None:
        return self.headed(self.begin("head_object", Key=key), key, path)

    def headed(self, future: Future[Any], key: str, path: str) -> Found | None:
        try:
            return found(key, self.done(future, path))
        except FileNotFoundError:
            return None

    def stands(self, version: Found, path: str) -> bool:
        """Return whether the object still has this version."""
        there = self.head(version.key, path)
        return there is not None and there.etag == version.etag

    def some(self, prefix: str) -> Future[Any]:
        """Start a listing of the first two keys with a prefix."""
        return self.begin("list_objects_v2", Prefix=prefix, MaxKeys=2)

    def listed(self, prefix: str, path: str, deep: bool = False) -> tuple[list[Found], list[str]]:
        """Return the objects whose keys have a prefix and, unless `deep`, the prefixes that stand for directories."""
        objects: list[Found] = []
        below: list[str] = []
        more: dict[str, str] = {} if deep else {"Delimiter": "/"}
        while True:
            page = self.call("list_objects_v2", path, Prefix=prefix, **more)
            objects += [
                Found(each["Key"], each["Size"], bare(each), each["LastModified"].timestamp())
                for each in page.get("Contents", ())
            ]
            below += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return objects, below
            more["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: list[str], path: str) -> None:
        """Delete keys, `MORE` in a call; a missing key is no error."""
        for start in range(0, len(keys), MORE):
            some = [{"Key": key} for key in keys[start : start + MORE]]
            answer = self.call("delete_objects", path, Delete={"Objects": some, "Quiet": True})
            for refused in answer.get("Errors", ()):
                if refused.get("Code") not in ("NoSuchKey", "NotFound"):
                    raise OSError(
                        _ERRNO.get(str(refused.get("Code")), errno.EIO),
                        f"the store does not delete it: {refused.get('Code')}",
                        path,
                    )

    def drop(self, key: str, etag: str, path: str) -> bool | None:
        """Delete one version. Return False if it was gone, None if an answer may have been lost and either is possible.

        An unmet condition after a retry may be the effect of the first request, so the result is None then.
        """
        known = False

        async def once() -> Any:
            nonlocal known
            driver = self.driver()
            await driver.set_session()
            client = await driver.get_s3(self.name)
            known = _asks_once(client)
            return await client.delete_object(Bucket=self.name, Key=key, IfMatch=f'"{etag}"')

        try:
            self.run(once(), path)
        except (Unmet, FileNotFoundError) as refused:
            return False if known and not getattr(refused, "again", 0) else None
        except OSError as fault:
            if fault.errno != errno.EIO:
                raise
            return None
        return True

    # ---------------------------------------------------------------- faults

    def fault(self, error: BaseException, path: str) -> BaseException:
        """Return the exception to raise for `error`."""
        cause = error.__cause__ if hasattr(error.__cause__, "response") else error
        answer = getattr(cause, "response", None)
        if isinstance(answer, dict):
            said = answer.get("Error", {})
            code, text = str(said.get("Code", "")), self._text(str(said.get("Message") or ""))
            again = answer.get("ResponseMetadata", {}).get("RetryAttempts", 0)
            if code in _UNMET:
                return _asked(Unmet(text), again)
            if code == "NoSuchBucket":
                return OSError(errno.ENOENT, f"there is no bucket {self.name}", path)
            number = _ERRNO.get(code, errno.EIO)
            if number in (errno.ENOENT, errno.ENAMETOOLONG):
                return _asked(OSError(number, os.strerror(number), path), again)
            return OSError(number, f"the store refuses: {text or code}", path)
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"):
            text = "no keys for s3://: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY at the origin"
            return OSError(errno.EACCES, text, path)
        if isinstance(error, Misconfigured):
            return error
        away = is_unreached(error)
        what = "cannot be reached" if away else "cannot be used"
        return OSError(
            errno.EHOSTUNREACH if away else errno.EIO, f"the store {what}: {self._text(error)}", path
        )

    def _text(self, error: object) -> str:
        text = re.sub(r"\?[^\s\"']*", "", str(error)) or type(error).__name__  # a URL loses its query
        for hidden in self._hidden:
            text = text.replace(hidden, "***")
        return text[:1].lower() + text[1:300].rstrip(".")

    def close(self) -> None:
        with self._lock:
            driver, self._driver = self._driver, None
        creator = getattr(driver, "_s3creator", None)
        if creator is not None:
            closing = asyncio.run_coroutine_threadsafe(creator.__aexit__(None, None, None), driver.loop)
            with contextlib.suppress(Exception):  # closed already, or hanging: no reason for an error
                closing.result(5)


def found(key: str, answer: Mapping[str, Any]) -> Found:
    """Return the object that the answer to a HEAD or GET describes."""
    _, _, total = str(answer.get("ContentRange", "")).partition("/")
    try:
        size = digits(total, LARGEST)
    except ValueError:
        size = answer["ContentLength"]
    meta = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return Found(key, size, bare(answer), answer["LastModified"].timestamp(), meta)


def bare(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _limited(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add a timeout for a peer that takes no more bytes: the driver alone waits for it without end."""
    import aiobotocore.config  # type: ignore[import-untyped]

    config = {"connector_args": {"socket_factory": _socket}, **options["config_kwargs"]}
    try:
        aiobotocore.config.AioConfig(**config)
    except Exception:  # an older version has no `socket_factory`; other errors appear elsewhere
        return options
    return {**options, "config_kwargs": config}


def _socket(address: Any) -> socket.socket:
    made = socket.socket(*address[:3])
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE * 1000)
    return made


def settings(environ: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of s3fs. `options` take precedence over the environment."""
    names = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
    told = {option: environ[name] for option, name in names.items() if environ.get(name)}
    base = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if base:
        told["endpoint_url"] = base
    if environ.get("AWS_PROFILE") and "key" not in told:
        told["profile"] = environ["AWS_PROFILE"]
    if {"key", "secret", "anon", "profile"} & options.keys():
        told = {name: value for name, value in told.items() if name == "endpoint_url"}
    own = {
        "use_listings_cache": False,
        "skip_instance_cache": True,
        "config_kwargs": {
            "connect_timeout": CONNECT,
            "read_timeout": SILENCE,
            "max_pool_connections": AT_ONCE,
            "retries": {"mode": "standard", "total_max_attempts": TRIES},
            **options.get("config_kwargs", {}),
        },
    }
    return {**told, **options, **own}
