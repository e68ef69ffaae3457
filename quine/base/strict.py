"""Bodies of requests as models: strict, bounded, and read before anything is done.

Laws
1. An unknown field, a missing one, a value of another type or beyond its bounds is an error, which names the field.
2. Pure Python: a host that passes on the requests of a job has no compiled package.
"""

from __future__ import annotations

from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any, Sequence, TypeVar

MAX_BODY = (
    16 << 20
)  # a conversation of a million tokens is half of this; five times as much memory, if parsed
MAX_VALUES = 250_000  # JSON values in one body: each takes some hundred bytes here, two on the wire
_SEPARATORS = (b",", b"[", b"{")
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "list", dict: "object"}
HEX = "0123456789abcdef"
REQUIRED: Any = object()
Model = TypeVar("Model", bound="Strict")


class Field:
    """One field of a body.

    `least` and `most`: bounds of a number, or of the length of a text, list or object. `letters`: all that a text may
    consist of; `sizes`: the only lengths that it may have. `each`: of the items of a list, or of the values of an
    object. A number may be an integer, and a boolean is neither of them.
    """

    def __init__(
        self,
        kind: type,
        least: float = 0,
        most: float = float("inf"),
        *,
        letters: str = "",
        sizes: Sequence[int] = (),
        each: Field | None = None,
        default: Any = REQUIRED,
    ) -> None:
        self.kind: Any = kind
        self.least = least
        self.most = most
        self.letters = letters
        self.sizes = sizes
        self.each = each
        self.default = default

    def check(self, value: Any) -> None:
        """Raise ValueError if a value is not allowed here."""
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            raise ValueError(f"not of type {NAMES[self.kind]}")
        size = len(value) if self.kind in (str, list, dict) else value
        if not self.least <= size <= self.most:  # nor is it a NaN
            raise ValueError(f"not between {self.least:g} and {self.most:g}")
        if (self.sizes and size not in self.sizes) or (self.letters and value.strip(self.letters)):
            raise ValueError(f"not of the form that is expected: letters of {self.letters!r}")
        if self.each:
            for item in value.values() if isinstance(value, dict) else value:
                self.each.check(item)


class Strict:
    """A model: its class attributes that are Fields are its fields."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise ValueError("not an object")
        fields = {name: field for name, field in vars(type(self)).items() if isinstance(field, Field)}
        for name in body:
            if name not in fields:
                raise ValueError(f"{name}: extra inputs are not permitted")
        for name, field in fields.items():
            value = body.get(name, field.default)
            if value is REQUIRED:
                raise ValueError(f"{name}: missing")
            if name in body:
                try:
                    field.check(value)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
            setattr(self, name, value)


def text(
    most: float = float("inf"),
    least: int = 0,
    *,
    letters: str = "",
    sizes: Sequence[int] = (),
    default: Any = REQUIRED,
) -> Any:
    return Field(str, least, most, letters=letters, sizes=sizes, default=default)


def integer(most: float, *, default: Any = REQUIRED) -> Any:
    return Field(int, 0, most, default=default)


def number(most: float, *, default: Any = REQUIRED) -> Any:
    return Field(float, 0, most, default=default)


def flag(default: Any = REQUIRED) -> Any:
    return Field(bool, default=default)


def items(each: Field, most: float, least: int = 0, *, default: Any = REQUIRED) -> Any:
    return Field(list, least, most, each=each, default=default)


def mapping(each: Field | None = None) -> Any:
    return Field(dict, each=each)


def parse(model: type[Model], body: bytes) -> Model:
    """Return one body as a model. Raises RequestError, which names the error."""
    name = model.__name__.removeprefix("_").removesuffix("Request").lower()
    if len(body) > MAX_BODY:
        raise RequestError(f"{name}: {len(body)} bytes, and {MAX_BODY} are possible")
    try:
        return model(loads(body))
    except UnicodeDecodeError:
        raise RequestError(f"{name}: not JSON") from None
    except ValueError as error:
        raise RequestError(f"{name}: {error}") from None


def loads(body: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also if it has more than MAX_VALUES values."""
    if too_many(body):
        raise ValueError(f"more than {MAX_VALUES} values")
    return quickjson.loads(body)


def too_many(text: str | bytes) -> bool:
    """Return whether a JSON text has more than MAX_VALUES values. It tells in a moment, before anything is parsed."""
    if len(text) <= MAX_VALUES:
        return False
    return _values(text if isinstance(text, bytes) else text.encode("utf-8", "replace")) > MAX_VALUES


def _values(body: bytes) -> int:
    """Estimate the number of values in a JSON text; commas in quoted text alone do not exceed the bound."""
    count = sum(map(body.count, _SEPARATORS))
    if count <= MAX_VALUES:
        return count
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = bare.count(b'"')
    if quotes > 4 * MAX_VALUES:  # each value and its name in quotes
        return quotes // 4
    return sum(part.count(mark) for part in bare.split(b'"')[::2] for mark in _SEPARATORS)
