"""JSON without the import of `json`: the same C code, a quarter of the client's start time less.

`import json` compiles regular expressions for its Python fallback and brings re, enum and functools with
it, 9 ms in all; the C scanner and encoder that do the work need none of them.

Laws
1. The same language as json.loads and json.dumps, but for NaN and infinities, which are refused both ways. So is
   1e999: a value is read only if it could be written again. Text that nests too deep for Python is a ValueError, too:
   it often comes from somebody else, and each reader has an answer to a ValueError.
2. Where the C parts are missing or are not as this file knows them, json itself is used. A test compares the two.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPACE = " \t\n\r"
_INFINITE = float("inf")
_TOO_DEEP = "it nests too deep"


def _finite(text: str) -> float:
    value = float(text)
    if value in (_INFINITE, -_INFINITE):
        raise ValueError("a number that is too large")
    return value


class _Context:
    """The attributes of a JSONDecoder that the C scanner reads."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = staticmethod(_finite)
    parse_int = int
    memo: dict[str, str] = {}  # noqa: RUF012 - the scanner clears it after each document

    @staticmethod
    def parse_constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")


def _unknown(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not JSON")


def _from_c() -> tuple[Callable[[str | bytes], Any], Callable[[object], str], Callable[[object], str]]:
    from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner

    scan = make_scanner(_Context)  # type: ignore[arg-type]

    def loads(text: str | bytes) -> Any:
        """The value of one JSON document; ValueError for anything else."""
        if isinstance(text, bytes):
            text = text.decode()
        text = text.strip(_SPACE)
        try:
            value, end = scan(text, 0)
        except (StopIteration, SystemError):
            # SystemError: the scanner takes its error from json.decoder. Before Python 3.12 it fails without it.
            raise ValueError("not JSON") from None
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        if end != len(text):
            raise ValueError("bytes after a JSON document")
        return value

    def dumps(value: object) -> str:
        """`value` as compact ASCII JSON; lone surrogates become escapes, as os.fsdecode wants them back."""
        encode = make_encoder({}, _unknown, encode_basestring_ascii, None, ":", ",", False, False, False)
        return "".join(encode(value, 0))

    def readable(value: object) -> str:
        """`value` as one line of JSON for a reader, with spaces, and with no escape but those of JSON."""
        encode = make_encoder({}, _unknown, encode_basestring, None, ": ", ", ", False, False, False)
        return "".join(encode(value, 0))

    if loads(dumps({"a": [1, 2.5, None, True, "\udcff\n"]})) != {"a": [1, 2.5, None, True, "\udcff\n"]}:
        raise ImportError("the C parts of json are not as they were")
    if readable({"a": [1, "\u00e9"]}) != '{"a": [1, "\u00e9"]}':
        raise ImportError("the C parts of json are not as they were")
    return loads, dumps, readable


def _from_json() -> tuple[Callable[[str | bytes], Any], Callable[[object], str], Callable[[object], str]]:
    import json

    def dumps(value: object) -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    def loads(text: str | bytes) -> Any:
        try:
            return json.loads(text, parse_constant=_Context.parse_constant, parse_float=_finite)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None

    def readable(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    return loads, dumps, readable


try:
    loads, dumps, readable = _from_c()
except (ImportError, TypeError, ValueError):
    loads, dumps, readable = _from_json()
