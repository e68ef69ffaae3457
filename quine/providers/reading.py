"""Reading what a server sent, for all dialects: it is foreign, so it is checked once, here, before it is believed.

Laws
1. What is no reply is Unavailable, whatever is odd about it: a wrong type, a depth, a NaN. Nothing else leaves here.
2. What passes can be kept on a tape and sent back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from quine.base.messages import DEEPEST, Unavailable, too_deep
from transport.wire import quickjson


class Foreign(BaseModel):
    """Demands little: servers differ in all that they need not send."""

    model_config = ConfigDict(extra="allow")


Model = TypeVar("Model", bound=Foreign)


def read(model: type[Model], data: Any) -> Model:
    """`data` as the model; it can also be written again."""
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
    """A count somewhere in an object. Missing, partial, null: what is not told is 0."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, int) and not isinstance(data, bool) and data > 0 else 0


def unused(wanted: object, taken: set[str]) -> str:
    """The id of a call, one of its own where the server sent none, or the same one twice."""
    text = str(wanted) if isinstance(wanted, str | int) and wanted != "" else ""
    if not text or text in taken:
        text = next(name for n in itertools.count(len(taken)) if (name := f"call_{n}") not in taken)
    taken.add(text)
    return text


def refused(fields: Mapping[str, re.Pattern[str]], status: int, text: str) -> frozenset[str]:
    """Which of the fields that a dialect can do without an error is about; a pattern is what a refusal looks like."""
    return frozenset(name for name, look in fields.items() if status in (400, 422) and look.search(text))
