"""An output as a value of something: text or base64 in a JSON object, a cell of a table.

Laws
1. A value is written in pieces. An output that a host made large costs disk, and no memory.
2. A value has at most `most` bytes of a stream (--json-limit). A longer one is cut there; an object tells of it by
   `cut`: the stream, and the bytes that it had.
"""

from __future__ import annotations

import codecs

from quine.base import sizes
from quine.base.errors import LOST, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from quine.fanout.output.spool import Spool

OPTION = "--json-limit"
MOST = "1G"  # without the option
PIECE = 1 << 16
STREAMS = {1: "stdout", 2: "stderr"}
_decoder = codecs.getincrementaldecoder("utf-8")


def limit(given: str) -> int:
    """Return the bytes of a stream that a value has; 0 = all. Raises Misconfigured."""
    return sizes.parse(given or MOST, OPTION)


def cut(got: Sequence[int], most: int) -> dict[str, int]:
    """Return the streams that are cut, with their bytes; `got` has the bytes of each stream."""
    return {name: got[stream] for stream, name in STREAMS.items() if 0 < most < got[stream]}


def fault_of(cut: Mapping[str, int], most: int, what: str) -> Failure:
    """Return the error of an output that is cut, that of `what`."""
    (name, size), *_ = cut.items()
    return Failure(
        LOST, f"{name} of {what} has {size} bytes, and was cut at {most}", f"{OPTION} SIZE, 0 = no limit"
    )


def object_line(facts: Mapping[str, object], spool: Spool, most: int) -> Iterator[bytes]:
    """Yield one line, an object with these facts and both streams; those that are not UTF-8 are in base64."""
    return gathered(_object(facts, spool, most))


def cell(spool: Spool, stream: int, most: int, separator: bytes) -> Iterator[bytes]:
    """Yield a stream as a cell, in quotes where they are needed."""
    special = (separator, b'"', b"\n", b"\r", b" ")
    pieces = spool.of(stream, most)
    if not any(mark in data for data in pieces for mark in special):
        yield from spool.of(stream, most)
        return
    yield b'"'
    yield from (data.replace(b'"', b'""') for data in spool.of(stream, most))
    yield b'"'


def _object(facts: Mapping[str, object], spool: Spool, most: int) -> Iterator[bytes]:
    import json

    shortened = cut(spool.sizes, most)
    facts = {**facts, "cut": shortened} if shortened else facts
    yield json.dumps(facts, ensure_ascii=False).encode()[:-1]
    for stream, name in STREAMS.items():
        whole = name not in shortened
        if _is_text(spool.of(stream, most), whole):
            yield f', "{name}": "'.encode()
            decode = _decoder().decode
            for data in spool.of(stream, most):
                yield json.dumps(decode(data), ensure_ascii=False).encode()[1:-1]
        else:
            yield f', "{name}_base64": "'.encode()
            yield from _base64(spool.of(stream, most))
        yield b'"'
    yield b"}\n"


def _is_text(pieces: Iterable[bytes], whole: bool) -> bool:
    """Return whether a stream is UTF-8. One that is not `whole` may end within a character, which is left out."""
    decode = _decoder().decode
    try:
        for data in pieces:
            decode(data)
        decode(b"", whole)
    except UnicodeDecodeError:
        return False
    return True


def _base64(pieces: Iterable[bytes]) -> Iterator[bytes]:
    from binascii import b2a_base64

    rest = b""
    for data in pieces:
        data = rest + data
        end = len(data) // 3 * 3
        rest = data[end:]
        yield b2a_base64(data[:end], newline=False)
    yield b2a_base64(rest, newline=False)


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of PIECE bytes or more: most objects are small, and are written at once."""
    waiting, size = [], 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
