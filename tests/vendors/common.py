"""The parts that the strict vendors share: faults that a check finds, and the cutting of answers into pieces."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

PIECE = 5  # characters of a delta; small, so that a character or an escape is cut in every place

_numbers = itertools.count(1)


class Wrong(Exception):
    """A fault that the vendor would refuse, in the vendor's own words."""


def example(name: str) -> Any:
    """A request or an answer as the vendors' own clients send and read it (2026-11)."""
    return json.loads(Path(__file__).with_name("examples.json").read_text(encoding="utf-8"))[name]


def found(check: Callable[[], None]) -> str | None:
    """Return the first fault that a check finds."""
    try:
        check()
    except Wrong as wrong:
        return str(wrong)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return f"malformed: {type(error).__name__}: {error}"
    return None


def need(true: object, otherwise: str) -> None:
    if not true:
        raise Wrong(otherwise)


def closed(value: Any, where: str, required: str, optional: str = "") -> None:
    """An object with these fields and no others; names are separated by spaces."""
    need(isinstance(value, dict), f"{where}: Input should be an object")
    for name in required.split():
        need(name in value, f"{where}.{name}: Field required")
    extra = value.keys() - {*required.split(), *optional.split()}
    need(not extra, f"{where}.{min(extra, default='')}: Extra inputs are not permitted")


def fresh() -> int:
    """A number that no answer had before."""
    return next(_numbers)


def seal(*values: Any) -> str:
    """Stands for a signature: changes with the value that it is of, as that travels (a lone surrogate does not)."""
    return hashlib.sha256(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()[:24]


def pieces(text: str) -> Iterator[str]:
    for at in range(0, max(len(text), 1), PIECE):
        yield text[at : at + PIECE]


def arguments(call: Mapping[str, Any]) -> str:
    """As text, broken or not."""
    given = call["arguments"]
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def as_object(call: Mapping[str, Any]) -> dict[str, Any]:
    """As the object that a vendor makes of them, which is empty for what is none."""
    try:
        value = json.loads(arguments(call))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
