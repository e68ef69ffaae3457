"""Server-sent events, sans-IO: bytes in, events out, wherever the bytes were split.

Laws
1. The grammar is the WHATWG's: lines end in LF, CR or CRLF, a line that begins with a colon is a comment, `data` lines
   of one event are joined by newlines, an event without data is none.
2. An event is given out with its empty line, not later. One that was begun when the stream ended is given by `close`:
   some servers do not send their last empty line, and whoever reads it sees whether it is whole.
3. What one event may hold is bounded; no byte is looked at twice because of how the stream was split.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 64 << 20  # bytes of one event: a whole answer may come in one

_LINE_END = re.compile(rb"\r\n|\r|\n")


class Event(NamedTuple):
    name: str
    data: str


class TooLong(ValueError):
    """More than a Decoder was told to hold."""


class Decoder:
    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._begun = bytearray()  # of a line whose end has not come
        self._after_cr = False  # a LF that comes first belongs to the CR before it
        self._first = True  # a byte order mark may stand before the first line
        self._name = ""
        self._data: list[str] = []
        self._held = 0  # bytes of the data lines of the event that is being read

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
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
        """What was begun and never got its empty line."""
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
