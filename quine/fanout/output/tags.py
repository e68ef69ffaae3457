"""--tag: a tag and a TAB before each line of an output."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from quine.fanout.output.streams import Chunks


class Tags:
    """Puts a tag and a TAB before each line of a stream that comes in pieces."""

    def __init__(self, tag: bytes | None) -> None:
        self._tag = None if tag is None else tag + b"\t"
        self._at_line = True

    def put_before(self, data: bytes) -> bytes:
        if self._tag is None or not data:
            return data
        whole = data.endswith(b"\n")
        text = (data[:-1] if whole else data).replace(b"\n", b"\n" + self._tag)
        text = (self._tag if self._at_line else b"") + text + (b"\n" if whole else b"")
        self._at_line = whole
        return text


def tagged(chunks: Chunks, tag: bytes) -> Iterator[tuple[int, bytes]]:
    tags = {1: Tags(tag), 2: Tags(tag)}
    for stream, data in chunks:
        yield stream, tags[stream].put_before(data)
