"""The one place that owns a socket to a guest: sends what a dialect made, tries again where that can help.

Laws
1. A dialect is pure: values to a request body, a response body to values. It never sees this file.
2. Who classifies decides: only Unavailable is tried again; a key, a quota, a model or a full context never is.
3. The server's Retry-After is obeyed up to PATIENCE; a longer one means "not now" and is not waited for.
4. A connection belongs to the process that made it. A forked child makes its own.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import httpx

from quine.exits import USAGE, Misconfigured
from quine.guests.base import DEEPEST, GuestError, Refused, Reply, Request, Unavailable, too_deep

ATTEMPTS = 5
FIRST_PAUSE = 0.5  # seconds, doubled with each attempt
LONGEST_PAUSE = 8.0
PATIENCE = 120.0  # as the vendors' own clients: beyond it, a Retry-After is a refusal
TIMEOUT = httpx.Timeout(600.0, connect=10.0)  # a long answer is one response here, not a stream


class Stream(Protocol):
    """Puts one streamed answer together. A new one for each answer."""

    def feed(self, event: str, data: Any) -> bool:
        """One event: its name ("" for none) and its data, parsed JSON or the text "[DONE]". True = complete.

        Raises a GuestError for an error event.
        """

    def whole(self) -> Any:
        """The body of the same answer without streaming; Unavailable where the stream was cut before its end."""


class Dialect(Protocol):
    """Pure: values to a request, an answer to values. It never sees a socket."""

    def url(self, base: str) -> str:
        """Where to POST. `base` is as configured, without a slash at its end. Called before `body`."""

    def headers(self, key: str) -> dict[str, str]: ...

    def body(self, request: Request) -> dict[str, Any]:
        """Asks for a stream, where the body is the place for it."""

    def stream(self) -> Stream: ...

    def reply(self, data: Any) -> Reply:
        """From a whole body. Raises a GuestError where `data` is an error, or is no reply at all."""

    def fault(self, status: int, data: Any) -> GuestError:
        """What an HTTP status and a body (parsed JSON, or text) that is no reply mean."""


class HttpGuest:
    def __init__(
        self,
        dialect: Dialect,
        base: str,
        key: str,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._dialect = dialect
        self._url = dialect.url(base.rstrip("/"))
        try:
            httpx.URL(self._url)
        except httpx.InvalidURL as error:
            raise Misconfigured(f"QUINE_API_BASE is no URL: {error}") from None
        if not self._url.startswith(("http://", "https://")):
            raise Misconfigured(f"QUINE_API_BASE must begin with http:// or https://, not {base!r}")
        self._headers = {"Content-Type": "application/json", **dialect.headers(key)}
        self._transport = transport
        self._pause = pause
        self._client: httpx.Client | None = None
        self._owner = 0

    def infer(self, request: Request) -> Reply:
        # Half a surrogate pair, as in a mission of undecodable bytes, is refused by every provider.
        body = json.dumps(self._dialect.body(request), ensure_ascii=False).encode("utf-8", "replace")
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._once(body)
            except Unavailable as error:
                if attempt == ATTEMPTS or (error.after or 0.0) > PATIENCE:
                    raise
                self._pause(_pause(attempt, error.after))
        raise AssertionError("unreachable")

    def _once(self, body: bytes) -> Reply:
        try:
            response = self._connection().post(self._url, content=body, headers=self._headers)
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, UnicodeError):
            # Not what it says: that may show the header with the key.
            raise Refused(
                "the request cannot be sent", "see QUINE_API_BASE and QUINE_API_KEY", USAGE
            ) from None
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._url}: {str(error) or type(error).__name__}") from None
        try:
            data = response.json()
            if response.text.count("[") + response.text.count("{") > DEEPEST and too_deep(data, DEEPEST):
                raise ValueError("too deep")
        except (ValueError, RecursionError):
            data = response.text[:500]
        if response.is_success:
            return self._dialect.reply(data)
        fault = self._dialect.fault(response.status_code, data)
        if isinstance(fault, Unavailable):
            fault.after = _retry_after(response.headers)
        raise fault

    def _connection(self) -> httpx.Client:
        if self._client is None or self._owner != os.getpid():
            # The parent's client is dropped, not closed: closing speaks to the parent's server.
            self._client = httpx.Client(timeout=TIMEOUT, transport=self._transport, follow_redirects=False)
            self._owner = os.getpid()
        return self._client


def _pause(attempt: int, after: float | None) -> float:
    if after is not None and after > 0:
        return after
    return min(FIRST_PAUSE * 2.0 ** (attempt - 1), LONGEST_PAUSE) * (1 - 0.25 * random.random())


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from retry-after-ms or Retry-After (seconds or a date)."""
    try:
        if text := headers.get("retry-after-ms"):
            return float(text) / 1000
        text = headers.get("retry-after", "")
        try:
            return float(text)
        except ValueError:
            from email.utils import parsedate_to_datetime

            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
