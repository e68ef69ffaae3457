"""Sizes and times as people write them: `500M`, `2G` in powers of 1024; `90`, `1.5m`, `2h` in seconds."""

from __future__ import annotations

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse(text: str, name: str) -> int:
    """Return a size in bytes. Raises Misconfigured, which mentions `name`."""
    from transport import rlimits

    try:
        return rlimits.size(text)
    except ValueError:
        raise Misconfigured(f"{name} must be a size as 500M or 2G, not {text[:80]}") from None


def of(environ: Mapping[str, str], name: str) -> int:
    """Return the size in a variable in bytes; 0 if it is unset or empty."""
    return parse(environ[name], name) if environ.get(name) else 0


def seconds(text: str, name: str) -> float:
    """Return a time in seconds; `inf` is one. Raises Misconfigured, which mentions `name`."""
    unit = UNITS.get(text[-1:], 0.0)
    try:
        value = float(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        value = -1.0
    if not value >= 0:  # nan, too
        raise Misconfigured(f"{name} {text[:40]}: should be a number of seconds, or as 5m or 2h")
    return value
