"""Checks of server data, for all dialects: it is untrusted, so it is checked once, here, before it is used.

Laws
1. Data that is not a reply raises Unavailable, whatever its fault: a wrong type, a depth, a NaN. `read` raises nothing
   else.
2. Data that passes can be kept on a tape and sent back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from quine.base.messages import DEEPEST, Unavailable, too_deep
from transport import quickjson


class Foreign(BaseModel):
    """Demands little: servers differ in every optional field."""

    model_config = ConfigDict(extra="allow")


Model = TypeVar("Model", bound=Foreign)


def read(model: type[Model], data: Any) -> Model:
    """Return `data` as the model; the data can also be written as JSON again."""
    if too_deep(data, DEEPEST):
        raise Unavailable(f"the server's answer is no reply: it nests more than {DEEPEST} levels deep")
    try:
        quickjson.dumps(data)
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Unavailable(f"the server's answer is no reply: {where}: {first['msg'].lower()}") from None
    except (ValueError, TypeError) as error:
        raise Unavailable(f"the server's answer is no reply: {error}") from None


def number(data: Any, *path: str) -> int:
    """Return a count somewhere in an object; 0 if it is missing, partial or null."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, int) and not isinstance(data, bool) and data > 0 else 0


def unused(wanted: object, taken: set[str]) -> str:
    """Return the id of a call and add it to `taken`; a new id if the server sent none, or the same one twice."""
    text = str(wanted) if isinstance(wanted, str | int) and wanted != "" else ""
    if not text or text in taken:
        text = next(name for n in itertools.count(len(taken)) if (name := f"call_{n}") not in taken)
    taken.add(text)
    return text


def refused(fields: Mapping[str, re.Pattern[str]], status: int, text: str) -> frozenset[str]:
    """Return the optional fields that an error of status 400 or 422 refuses; each pattern matches a refusal."""
    return frozenset(name for name, look in fields.items() if status in (400, 422) and look.search(text))
