"""Bodies of requests as models: strict, bounded, and read before anything is done."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from transport import quickjson
from transport.errors import RequestError

MAX_BODY = 64 << 20  # a conversation of a million tokens is a tenth of this
MAX_VALUES = 250_000  # JSON values in one body: each takes some hundred bytes here, two on the wire
_SEPARATORS = (b",", b"[", b"{")
Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def parse(model: type[Model], body: bytes) -> Model:
    """Return one body as a model. Raises RequestError, which names the error."""
    name = model.__name__.removeprefix("_").lower()
    if len(body) > MAX_BODY:
        raise RequestError(f"{name}: {len(body)} bytes, and {MAX_BODY} are possible")
    if _values(body) > MAX_VALUES:
        raise RequestError(f"{name}: more than {MAX_VALUES} values")
    try:
        # Not model_validate_json: half a surrogate pair, as undecodable bytes become here, is an error for it.
        return model.model_validate(quickjson.loads(body))
    except (RecursionError, UnicodeDecodeError):
        raise RequestError(f"{name}: not JSON") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(f"{name}: {where}: {first['msg'].lower()}") from None
    except ValueError as error:
        raise RequestError(f"{name}: {error}") from None


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
