"""Sizes as people write them: `500M`, `2G`, in powers of 1024."""

from __future__ import annotations

from quine.exits import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse(text: str, name: str) -> int:
    """In bytes. Misconfigured, in which it has a name."""
    digits, unit = (text[:-1], _UNITS[text[-1].lower()]) if text[-1:].lower() in _UNITS else (text, 1)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) * unit < 1 << 62):
        raise Misconfigured(f"{name} must be a size as 500M or 2G, not {text[:80]}")
    return int(digits) * unit


def of(environ: Mapping[str, str], name: str) -> int:
    """Of a variable; 0 where there is none."""
    return parse(environ[name], name) if environ.get(name) else 0
