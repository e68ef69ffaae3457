"""Bodies of HTTP requests and answers, without a socket: the JSON sent, the events and the JSON read, the headers."""

from __future__ import annotations

import json
import math
import re
import time

from quine.base.messages import DEEPEST, Unavailable, too_deep
from quine.base.strict import too_many
from quine.providers.dialects import sse
from quine.providers.dialects.dialect import Stream
from quine.providers.dialects.faults import printable
from transport.lean import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping


PIECE = 1 << 16  # bytes of a request that are written at once


def encoded(body: dict[str, Any]) -> Iterator[bytes]:
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


def is_stream(first: bytes, headers: Mapping[str, str]) -> bool:
    """Return whether an answer that begins so is a stream of events. Its label counts if these do not tell."""
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith((b"data:", b"event:", b"id:", b"retry:", b":")):
        return True
    if text.startswith((b"{", b"[", b"<")):
        return False
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


async def pieces(body: list[bytes]) -> AsyncIterator[bytes]:
    """Yield the body in larger pieces: each is a write of its own."""
    held: list[bytes] = []
    size = 0
    for part in body:
        held.append(part)
        size += len(part)
        if size >= PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def fed(stream: Stream, events: list[sse.Event]) -> bool:
    """Feed the events; return True if the answer is complete with one of them."""
    return any(stream.feed(event.name, _value(event.data)) for event in events if event.data.strip())


def _value(data: str) -> Any:
    if data.strip() == "[DONE]":
        return "[DONE]"
    try:
        return parse(data)
    except ValueError:
        raise Unavailable(f"an event of the stream is not JSON: {printable(data, 100)}") from None


def parse(text: str | bytes) -> Any:
    """Return the JSON value, with NaN and infinities as null, as they could not be sent back. ValueError if invalid.

    Also if it has more values than a request may have: a command can name the server, and the broker has other trees.
    """
    if too_many(text):
        raise ValueError("too many values")
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


def retry_after(headers: Mapping[str, str]) -> float | None:
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


def below(base: str, path: str) -> str:
    """Return the URL of a path below the base of a server, or below its root if the path begins with a slash.

    The root is the base without the version at its end. A query of the base stays.
    """
    place, mark, query = base.partition("?")
    if path.startswith("/"):
        place = re.sub(r"/v\d\w*$", "", place)
    joined = f"{place}/{path.lstrip('/')}"
    return f"{joined}{'&' if '?' in joined else '?'}{query}" if mark else joined
