"""Server-sent events, sans-IO: bytes in, events out, wherever the bytes were split.

Laws
1. The grammar is the WHATWG's: lines end in LF, CR or CRLF, a line that begins with a colon is a comment, `data` lines
   of one event are joined by newlines, an event without data is none.
2. An event is returned with its empty line, not later. An event that the end of the stream left unfinished is returned
   by `close`: some servers do not send their last empty line, and the caller can tell whether it is whole.
3. The size of an event is bounded; no byte is scanned twice because of how the stream was split.
"""

from __future__ import annotations

import re

from transport.lean import NamedTuple

LONGEST = 64 << 20  # bytes of one event: a whole answer may come in one

_LINE_END = re.compile(rb"\r\n|\r|\n")


class Event(NamedTuple):
    name: str
    data: str


class TooLong(ValueError):
    """An event is longer than the limit of its Decoder."""


class Decoder:
    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._begun = bytearray()  # bytes of an unfinished line
        self._after_cr = False  # a LF that comes first belongs to the CR before it
        self._first = True  # a byte order mark may stand before the first line
        self._name = ""
        self._data: list[str] = []
        self._held = 0  # bytes of the data lines of the unfinished event

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete."""
        if not data:
            return []
        if self._after_cr:
            data = data.removeprefix(b"\n")
        events: list[Event] = []
        at = 0
        for end in _LINE_END.finditer(data):
            self._begun += data[at : end.start()]
            at = end.end()
            self._line(bytes(self._begun), events)
            self._begun.clear()
        self._begun += data[at:]
        self._after_cr = data.endswith(b"\r")
        if self._held + len(self._begun) > self._longest:
            raise TooLong(f"an event of the stream is longer than {self._longest} bytes")
        return events

    def close(self) -> list[Event]:
        """Return the event that the stream left without its empty line, if any."""
        events: list[Event] = []
        if self._begun:
            self._line(bytes(self._begun), events)
            self._begun.clear()
        self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        if not line:
            if self._data:
                events.append(Event(self._name, "\n".join(self._data)))
            self._name, self._data, self._held = "", [], 0
            return
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
            self._held += len(value) + 1
        elif name == b"event":
            self._name = text
