"""Protocol of the service `fs`: requests of a job and answers of the tier as bytes; sans-IO but for a `read` callback.

Laws
1. A message is 4 bytes of length and so many bytes of JSON. A put is its message and then marks of 8 bytes. A mark
   announces bytes that follow, or stands for zeros that do not; the last one is COMMIT. An answer is one message; the
   bytes of a get follow it. The answer to a list is several messages, the last of which says so. The body of a
   pipeline is requests one behind the other; there a put is its message and so many bytes as its size says, at most
   SMALL. The answers come in the order of the requests, each in at most ANSWER bytes and those of its file.
2. Input is foreign on both sides: its length is checked before it is read, and each field for its type and range. An
   unknown field of a request is refused. A violation raises Garbled, which names it.
3. A path is text; bytes that are no UTF-8 stand in it as os.fsdecode has them. It is cleaned here. An entry of a list
   is named relative to the listed directory, so it can be nowhere else.
4. An error travels as the name of its errno, so that it is the same error on the other side.
"""

from __future__ import annotations

import errno
import os
import struct

from quine.base.errors import Failure
from quine.files import paths
from quine.files.api import SMALL, Entry, OutcomeUnknown, Request
from transport import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from quine.files.api import Range

    Read = Callable[[int], bytes]

LONGEST_ASKED = 64 * 1024  # bytes of one request: two paths, each byte of which takes six in JSON
LONGEST_TOLD = 4 * 1024 * 1024  # bytes of one message of an answer
ANSWER = 2048  # bytes of one message of an answer in a pipeline
BATCH = 48 * 1024  # bytes of entries, about, in one message of a list
MOST_HOLES = 20_000  # a file with more holes than this is sent with all of them as zeros
MOST = 1 << 62  # bytes of anything
LONGEST_VERSION = 1024
LONGEST_TEXT = 500  # characters of an error

COMMIT = 0  # the mark that ends a put
HOLE = 1 << 63  # bit of a mark that stands for so many zeros, which are not sent

_LENGTH = struct.Struct("!I")
_MARK = struct.Struct("!Q")
_NUMBERS = {name: number for number, name in errno.errorcode.items()}

# operation -> its fields and the kind of each
OPERATIONS: dict[str, dict[str, str]] = {
    "url": {"path": "path"},
    "stat": {"path": "path"},
    "list": {"path": "path"},
    "walk": {"path": "path"},
    "hidden": {"path": "path"},
    "get": {"path": "path", "offset": "size", "length": "size?", "size": "size?"},
    "put": {"path": "path", "if_absent": "flag", "mode": "mode?", "mtime": "time?", "size": "size?"},
    "reserve": {},
    "mkdir": {"path": "path", "exist_ok": "flag"},
    "remove": {"path": "path", "recursive": "flag"},
    "rename": {"path": "path", "target": "path", "if_absent": "flag"},
    "move": {"path": "path", "target": "path", "if_absent": "flag"},
    "setattr": {"path": "path", "mode": "mode?", "mtime": "time?"},
    "copy": {"path": "path", "target": "path", "if_absent": "flag"},
    "pipeline": {},
}
PIPELINED = ("stat", "get", "put", "mkdir", "remove")


class Garbled(Exception):
    """The other side violates the protocol; str() names the violation."""


# -- bytes ---------------------------------------------------------------------------------------------


def exactly(read: Read, size: int) -> bytes:
    """Read exactly `size` bytes. Raises Garbled if the stream ends sooner."""
    block = read(size) if size else b""  # a stream waits for a byte before it returns none
    if len(block) == size:
        return block
    parts = [block]
    left = size - len(block)
    while left:
        block = read(left)
        if not block:
            raise Garbled("it ends in the middle of a word")
        parts.append(block)
        left -= len(block)
    return b"".join(parts)


def word(body: dict[str, Any]) -> bytes:
    """One message as bytes."""
    text = quickjson.dumps(body).encode()
    return _LENGTH.pack(len(text)) + text


def heard(read: Read, longest: int) -> dict[str, Any]:
    """Read the next message, of at most `longest` bytes. Raises Garbled."""
    (length,) = _LENGTH.unpack(exactly(read, _LENGTH.size))
    if length > longest:
        raise Garbled(f"a word of {length} bytes, and {longest} are allowed")
    try:
        body = quickjson.loads(exactly(read, length))
    except (ValueError, RecursionError):
        raise Garbled("a word that is not JSON") from None
    if not isinstance(body, dict):
        raise Garbled("a word that is no object")
    return body


def mark(length: int, hole: bool = False) -> bytes:
    """The mark that announces `length` bytes, or with `hole` stands for so many zeros."""
    return _MARK.pack(length | (HOLE if hole else 0))


def marked(read: Read) -> tuple[int, bool]:
    """Read a mark: (length in bytes, whether they are zeros that are not sent); (COMMIT, False) at the end."""
    (value,) = _MARK.unpack(exactly(read, _MARK.size))
    length, hole = value & (HOLE - 1), value >= HOLE
    if length > MOST or (hole and not length):
        raise Garbled("a mark out of range")
    return length, hole


# -- requests ------------------------------------------------------------------------------------------


def ask(op: str, **fields: object) -> bytes:
    """A request as bytes; fields that are None or False are left out."""
    given = {name: value for name, value in fields.items() if value is not None and value is not False}
    return word({"op": op, **given})


def piece(request: Request) -> bytes:
    """A request of a pipeline as bytes, with the content of a put."""
    fields = {name: getattr(request, name) for name in OPERATIONS[request.op]}
    return ask(request.op, **fields) + request.content


def small(request: Request) -> int:
    """The bytes of content that a request of a pipeline, or its answer, has at most.

    A get counts with the size in its listing. A file that grew since then would fill the origin's answers, while the
    sender waits for credit and reads none of them: such a file is opened by itself.
    """
    return SMALL if request.size is None else min(request.size, SMALL)


def pieces(read: Read) -> tuple[dict[str, Any], bytes]:
    """Read the next request of a pipeline, for `checked`, and the content of a put. Raises Garbled."""
    body = heard(read, LONGEST_ASKED)
    if body.get("op") not in PIPELINED:
        raise Garbled(f"no operation of a pipeline: {str(body.get('op'))[:40]!r}")
    size = body.get("size") if body["op"] == "put" else 0
    if not isinstance(size, int) or not 0 <= size <= SMALL:
        raise Garbled(f"a put in a pipeline with a bad size: {str(size)[:40]}")
    return body, exactly(read, size)


def asked(read: Read) -> Request:
    """Read the request at the beginning of a stream. Raises Garbled, and OSError for an invalid path in it."""
    return checked(heard(read, LONGEST_ASKED))


def checked(body: dict[str, Any]) -> Request:
    """The request of a message. Raises as `asked`."""
    op = body.pop("op", None)
    fields = OPERATIONS.get(op) if isinstance(op, str) else None
    if fields is None:
        raise Garbled(f"no such operation: {str(op)[:40]!r}")
    for name, value in body.items():
        kind = fields.get(name)
        if kind is None or not _is(kind, value):
            raise Garbled(f"{op} with a bad field {name[:40]!r}")
    for name, kind in fields.items():
        if kind == "path":
            if name not in body:
                raise Garbled(f"{op} without {name}")
            body[name] = path(body[name])
    return Request(op, **body)


def _is(kind: str, value: object) -> bool:
    if kind == "path":
        return isinstance(value, str)
    if kind == "flag":
        return isinstance(value, bool)
    if value is None or isinstance(value, bool):
        return value is None and kind.endswith("?")
    if kind == "time?":
        return isinstance(value, (int, float)) and abs(value) < 1 << 53
    return isinstance(value, int) and 0 <= value <= (0o7777 if kind == "mode?" else MOST)


def path(text: str) -> str:
    """Clean a received path. Raises OSError as `paths.clean` does, and EINVAL for text that encodes to no name."""
    try:
        return paths.clean(os.fsencode(text))
    except UnicodeEncodeError:
        shown = text.encode("utf-8", "backslashreplace").decode()
        raise OSError(errno.EINVAL, "half of a surrogate pair in a name", shown) from None


def need(space: int, growth: int, ahead: int) -> bytes:
    """One message of a `reserve`, which has any number of them: the room that is needed from then on."""
    return word({"space": space, "growth": growth, "ahead": ahead})


def needed(read: Read) -> tuple[int, int, int]:
    """Read the next (space, growth, ahead). Raises Garbled."""
    space, growth, ahead = _sizes(heard(read, LONGEST_ASKED), ("space", "growth", "ahead"))
    return space, growth, ahead


def held(answer: dict[str, Any]) -> tuple[int, int]:
    """The (space, growth) that an answer to `need` says are held. Raises Garbled."""
    space, growth = _sizes(answer, ("space", "growth"))
    return space, growth


def _sizes(body: dict[str, Any], names: tuple[str, ...]) -> tuple[int, ...]:
    if sorted(body) != sorted(names) or not all(_is("size", body[name]) for name in names):
        raise Garbled("room that is no numbers of bytes")
    return tuple(body[name] for name in names)


# -- answers -------------------------------------------------------------------------------------------


def row(entry: Entry, beginning: str = "") -> list[object]:
    """An entry as a JSON array, named relative to the directory `beginning`."""
    name = entry.path[len(beginning) :].lstrip("/") if beginning else entry.path
    return [name, "f" if entry.is_file else "d", entry.size, entry.mtime, entry.mode, entry.version]


def entry(received: object, beginning: str = "") -> Entry:
    """The entry of a received row; the name "" stands for `beginning` itself. Raises Garbled."""
    if not isinstance(received, list) or len(received) != 6:
        raise Garbled("an entry that is none")
    name, kind, size, mtime, mode, version = received
    good = (
        isinstance(name, str)
        and kind in ("f", "d")
        and _is("size", size)
        and _is("time?", mtime)
        and mtime is not None
        and _is("mode?", mode)
        and mode is not None
        and isinstance(version, str)
        and len(version) <= LONGEST_VERSION
    )
    if not good:
        raise Garbled("an entry with a bad field")
    try:
        whole = paths.join(beginning, path(name))
    except OSError as error:
        raise Garbled(f"an entry with a bad name: {error.strerror}") from None
    return Entry(whole, "file" if kind == "f" else "directory", size, float(mtime), mode, version)


def batches(entries: Iterable[Entry], beginning: str) -> Iterable[bytes]:
    """A list as messages of about BATCH bytes; the last one says that it is the last."""
    rows: list[list[object]] = []
    size = 0
    for each in entries:
        rows.append(row(each, beginning))
        size += 64 + len(each.path)
        if size >= BATCH:
            yield word({"entries": rows, "more": True})
            rows, size = [], 0
    yield word({"entries": rows, "more": False})


def batch(answer: dict[str, Any], beginning: str) -> tuple[list[Entry], bool]:
    """(entries of one message of a list, whether more messages follow). Raises Garbled."""
    rows, more = answer.get("entries"), answer.get("more")
    if not isinstance(rows, list) or not isinstance(more, bool):
        raise Garbled("a list that is none")
    found = [entry(each, beginning) for each in rows]
    if any(each.path == beginning for each in found):
        raise Garbled("a list that has the directory itself in it")
    return found, more


def opened(answer: dict[str, Any], at: str) -> tuple[Entry, int, int, tuple[Range, ...]]:
    """(entry, offset, length, holes) of the answer to a get. Raises Garbled."""
    offset, length, holes = answer.get("offset"), answer.get("length"), answer.get("holes", [])
    if not _is("size", offset) or not _is("size", length) or not isinstance(holes, list):
        raise Garbled("an open file that is none")
    assert isinstance(offset, int) and isinstance(length, int)
    end, ranges = offset, []
    for hole in holes:
        if not (isinstance(hole, list) and len(hole) == 2 and all(_is("size", number) for number in hole)):
            raise Garbled("a hole that is none")
        start, size = hole
        if start < end or not size or start + size > offset + length:
            raise Garbled("a hole out of place")
        ranges.append((start, size))
        end = start + size
    return entry(answer.get("entry"), at), offset, length, tuple(ranges)


# -- errors --------------------------------------------------------------------------------------------


def wrong(error: Exception) -> dict[str, Any]:
    """The body of the message that reports an error."""
    if isinstance(error, OSError):
        number = errno.errorcode.get(error.errno or 0, "EIO")
        named = error.filename
        text = error.strerror or str(error) or "failed"
        found: dict[str, Any] = {"errno": number, "text": text[:LONGEST_TEXT]}
        if isinstance(named, (str, bytes)):
            found["path"] = os.fsdecode(named)[: paths.LONGEST_PATH]
        if isinstance(error, OutcomeUnknown):
            found["unknown"] = True
        return found
    if isinstance(error, Failure):
        return {
            "failure": error.status,
            "text": error.detail[:LONGEST_TEXT],
            "hint": error.hint[:LONGEST_TEXT],
        }
    return {"errno": "EIO", "text": f"a defect at the origin: {type(error).__name__}: {str(error)[:200]}"}


def short(error: Exception) -> bytes:
    """The message that reports an error, in at most ANSWER bytes and without the path, which the requester knows."""
    body = wrong(error)
    body.pop("path", None)
    while len(text := word(body)) > ANSWER:
        body |= {name: body[name][: len(body[name]) // 2] for name in ("text", "hint") if name in body}
    return text


def is_error(answer: dict[str, Any]) -> bool:
    return "errno" in answer or "failure" in answer


def check(answer: dict[str, Any], at: str = "") -> dict[str, Any]:
    """Return an answer that reports no error. Otherwise raise it: OSError, or Failure if the store cannot be opened."""
    text, named = answer.get("text", ""), answer.get("path", at)
    if not isinstance(text, str) or not isinstance(named, str):
        raise Garbled("an error that is none")
    if "errno" in answer:
        number = answer["errno"]
        kind = OutcomeUnknown if answer.get("unknown") is True else OSError
        raise kind(_NUMBERS.get(number, errno.EIO) if isinstance(number, str) else errno.EIO, text, named)
    if "failure" in answer:
        status, hint = answer["failure"], answer.get("hint", "")
        good = isinstance(status, int) and 1 <= status <= 255 and isinstance(hint, str)
        raise Failure(status if good else 1, text, hint if good else "")
    return answer
