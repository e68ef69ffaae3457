"""The only owner of a socket to a guest: it sends the requests that a dialect makes, and retries where that can help.

Laws
1. A dialect is pure: values to a request body, an answer to values. It never sees this file.
2. Only Unavailable is tried again; a key, a quota, a model or a full context never is. The server can overrule this by
   `x-should-retry`, and sets the pause by Retry-After up to PATIENCE. A longer one ends the tries and is reported.
3. An answer that was cut, in whatever way, is no answer: nothing of it was acted upon, so it is asked for again.
4. A server's data is bounded in size and in the time without a byte, but not in its total time.
5. A connection belongs to the process that made it. A forked child makes its own.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import httpx

from quine import __version__
from quine.base import backoff
from quine.base.errors import FAILED, USAGE, Misconfigured
from quine.base.messages import DEEPEST, GuestError, Refused, Reply, Request, Unavailable, too_deep
from quine.providers.dialects import sse
from quine.providers.dialects.dialect import Dialect, Stream
from quine.providers.dialects.faults import Adapted, printable
from quine.tape.redact import Mask

# Tries after the first one, by HTTP status: throttling is worth more tries than a defect of the server.
RETRIES = {429: 5, 529: 5}
OTHER_RETRIES = 3  # all other statuses, a network that fails, an answer that was cut or is not a reply
FIRST_PAUSE = (
    0.5  # seconds, doubled with each try, and up to half of it more: agents of a tree must not retry in step
)
LONGEST_PAUSE = 8.0
PATIENCE = 120.0  # seconds, as in the vendors' own clients: a longer Retry-After is a refusal
# Between two reads, not in total. Before the first byte a model may be loaded, or think, for minutes.
TIMEOUT = httpx.Timeout(600.0, connect=10.0)
# A proxy in the environment serves the outside: it cannot reach a server on this machine.
HERE = ("127.0.0.1", "localhost", "[::1]")
NO_PROXY: dict[str, httpx.BaseTransport | None] = {f"all://{host}": None for host in HERE}
LARGEST = 64 << 20  # bytes of a body
LARGEST_STREAM = 4 * LARGEST  # on the wire each token has an envelope of some 200 bytes around it
LINGER = 0.5  # seconds that a complete answer may take to end


class HttpGuest:
    def __init__(
        self,
        dialect: Dialect,
        base: str,
        key: str,
        *,
        timeout: httpx.Timeout = TIMEOUT,
        pause: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        try:
            httpx.URL(base)
        except httpx.InvalidURL as error:
            raise Misconfigured(f"QUINE_API_BASE is no URL: {error}") from None
        if not base.startswith(("http://", "https://")):
            raise Misconfigured(
                f"QUINE_API_BASE must begin with http:// or https://, not {_without_password(base)!r}"
            )
        self._dialect = dialect
        self._url = dialect.url(base.rstrip("/"))
        self._shown = _without_password(self._url)
        self._mask = Mask([key])  # some servers quote the key that they refuse
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"quine/{__version__}",
            **dialect.headers(key),
        }
        self._timeout = timeout
        self._pause = pause
        self.note = note  # called for every try but the first
        self._client: httpx.Client | None = None
        self._owner = 0

    def infer(self, request: Request) -> Reply:
        body = self._body(request)
        failed = 0
        while True:
            status, forbidden = 0, False
            try:
                with closing(self._send(body)) as response:
                    status = response.status_code
                    forbidden = response.headers.get("x-should-retry") == "false"
                    return self._read(response)
            except GuestError as error:
                fault = self._masked(error)
            if isinstance(fault, Adapted):
                changed = self._body(request)
                if changed != body:
                    self.note(f"asked again without what the server refused: {fault}")
                    body = changed
                    continue
                fault = self._masked(fault.fault)
            if not isinstance(fault, Unavailable):
                raise fault
            failed += 1
            self._wait(failed, 0 if forbidden else RETRIES.get(status, OTHER_RETRIES), fault)

    def _wait(self, failed: int, limit: int, fault: Unavailable) -> None:
        """Wait until the next try; raise `fault` if there is none."""
        if fault.after is not None and fault.after > PATIENCE:
            raise Unavailable(f"{fault}; it asks to wait {fault.after:.0f} s", fault.after)
        if failed > limit:
            raise fault
        seconds = _pause(failed, fault.after)
        self.note(f"try {failed + 1} of {limit + 1} in {seconds:.1f} s: {fault}")
        self._pause(seconds)

    def _masked(self, fault: GuestError) -> GuestError:
        fault.args = tuple(map(self._mask.of, fault.args))
        return fault

    def close(self) -> None:
        if self._client is not None and self._owner == os.getpid():
            self._client.close()
        self._client = None

    def _body(self, request: Request) -> list[bytes]:
        return list(_encoded(self._dialect.body(request)))

    def _send(self, body: list[bytes]) -> httpx.Response:
        """Return the response, of which only the head has been read."""
        try:
            client = self._connection()
            headers = {**self._headers, "Content-Length": str(sum(map(len, body)))}
            request = client.build_request("POST", self._url, content=iter(body), headers=headers)
            return client.send(request, stream=True)
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, UnicodeError):
            # The text of the error is left out: it may show the header with the key.
            raise Refused(
                "the request cannot be sent", "see QUINE_API_BASE and QUINE_API_KEY", USAGE
            ) from None
        except httpx.HTTPError as error:
            raise Unavailable(self._why(error)) from None

    def _connection(self) -> httpx.Client:
        if self._client is None or self._owner != os.getpid():
            # The parent's client is dropped, not closed: closing speaks to the parent's server.
            # Plain HTTP on this machine needs no CA certificates; loading them takes longer than all the rest.
            plain = self._url.startswith(tuple(f"http://{host}{end}" for host in HERE for end in ":/"))
            self._client = httpx.Client(
                timeout=self._timeout, follow_redirects=False, mounts=NO_PROXY, verify=not plain
            )
            self._owner = os.getpid()
        return self._client

    def _why(self, error: httpx.HTTPError) -> str:
        silent = isinstance(error, httpx.ReadTimeout)
        text = f"nothing came for {self._timeout.read:.0f} s" if silent else printable(str(error))
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            _, number, reason = text.rpartition("] ") if text.startswith("[Errno ") else ("", "", "")
            text = reason[:1].lower() + reason[1:] if number else text
            return f"cannot reach the model server at {self._shown}: {text or 'it does not answer'}"
        return f"{self._shown}: {text or type(error).__name__}"

    def _read(self, response: httpx.Response) -> Reply:
        if response.is_success and _is_stream(response.headers):
            return self._dialect.reply(self._streamed(response))
        try:
            raw = b"".join(_chunks(response, LARGEST))
        except httpx.HTTPError as error:
            raise Unavailable(self._why(error)) from None
        if response.has_redirect_location:
            # Not followed: the key would be sent to wherever the redirect points.
            to = printable(_without_password(response.headers["location"]))
            raise Refused(f"{self._shown} has moved to {to}", "see QUINE_API_BASE", USAGE)
        try:
            data = _parse(raw)
        except ValueError:
            data = raw.decode("utf-8", "replace")
        if response.is_success:
            return self._dialect.reply(data)
        fault = self._dialect.fault(response.status_code, self._mask.of(data))
        after = _retry_after(response.headers)
        if _is_plain(fault) and response.headers.get("x-should-retry") == "true":
            fault = Unavailable(str(fault))
        if isinstance(fault, Unavailable) and after is not None:
            fault.after = after
        raise fault

    def _streamed(self, response: httpx.Response) -> Any:
        """Return the whole of a streamed answer."""
        stream, decoder = self._dialect.stream(), sse.Decoder()
        chunks = _chunks(response, LARGEST_STREAM)
        broken = ""
        try:
            for chunk in chunks:
                if _fed(stream, decoder.feed(chunk)):
                    _drain(response, chunks)
                    break
            else:
                _fed(stream, decoder.close())
        except httpx.HTTPError as error:
            broken = self._why(error)
        except sse.TooLong as error:
            raise Refused(str(error)) from None
        try:
            return stream.whole()
        except Unavailable as cut:
            raise Unavailable(f"{cut}: {broken}" if broken else str(cut), cut.after) from None


def _encoded(body: dict[str, Any]) -> Iterator[bytes]:
    """Yield the body in pieces of one message each. As one text it would be in memory three times while it is sent."""
    before = "{"
    for key, value in body.items():
        yield f"{before}{json.dumps(key)}: ".encode()
        before = ", "
        if isinstance(value, list) and value:
            for n, item in enumerate(value):
                yield b", " if n else b"["
                yield _json(item)
            yield b"]"
        else:
            yield _json(value)
    yield b"}"


def _json(value: Any) -> bytes:
    # Half a surrogate pair, as in a mission of undecodable bytes, is refused by every provider.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _is_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def _without_password(url: str) -> str:
    """Return `url` as it may be shown, without the user:password@ that authenticates at a proxy."""
    return re.sub(r"//[^/?#]*@", "//", url)


def _is_plain(fault: GuestError) -> bool:
    """Return True for a refusal without a known cause."""
    return isinstance(fault, Refused) and fault.status == FAILED


def _chunks(response: httpx.Response, most: int) -> Iterator[bytes]:
    size = 0
    for chunk in response.iter_bytes():
        size += len(chunk)
        if size > most:
            raise Refused(f"the server's answer is larger than {most >> 20} MiB")
        yield chunk


def _fed(stream: Stream, events: list[sse.Event]) -> bool:
    """Feed the events; return True if the answer is complete with one of them."""
    return any(stream.feed(event.name, _value(event.data)) for event in events if event.data.strip())


def _value(data: str) -> Any:
    if data.strip() == "[DONE]":
        return "[DONE]"
    try:
        return _parse(data)
    except ValueError:
        raise Unavailable(f"an event of the stream is not JSON: {printable(data, 100)}") from None


def _parse(text: str | bytes) -> Any:
    """Return the JSON value, with NaN and infinities as null, as they could not be sent back. ValueError if invalid."""
    try:
        data = json.loads(text, parse_constant=lambda name: None, parse_float=_finite)
    except RecursionError:
        raise ValueError("too deep") from None
    brackets = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, brackets)) > DEEPEST and too_deep(data, DEEPEST):  # type: ignore[arg-type]
        raise ValueError("too deep")
    return data


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _drain(response: httpx.Response, chunks: Iterator[bytes]) -> None:
    """Read a complete answer to its end: only then can its connection serve the next one.

    A server that sends [DONE] and leaves the connection open is cut off after LINGER.
    """
    stream = response.extensions["network_stream"]
    timer = threading.Timer(LINGER, _shut, (stream.get_extra_info("socket"),))
    timer.start()
    try:
        for _ in chunks:
            pass
    except httpx.HTTPError:  # the answer is complete, whatever comes now
        pass
    finally:
        timer.cancel()
        timer.join()


def _shut(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS, which would wait for the peer
    except OSError:  # gone already
        pass


def _pause(failed: int, after: float | None) -> float:
    if after is not None and after > 0:
        return after * (1 + 0.1 * random.random())  # never earlier than the server asks
    return backoff.pause(failed, FIRST_PAUSE, LONGEST_PAUSE, jitter=(1, 1.5))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds from retry-after-ms or Retry-After (seconds or a date); None if absent or invalid."""
    milliseconds, text = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds:
            seconds = float(milliseconds) / 1000
        elif text:
            seconds = _seconds(text)
        else:
            return None
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        from email.utils import parsedate_to_datetime

        return parsedate_to_datetime(text).timestamp() - time.time()
