"""Sizes, counts and times as people write them.

`500M`, `2G` of bytes in powers of 1024; `200k`, `2M` of other things in powers of 1000; `90`, `1.5m`, `2h` in seconds.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MULTIPLES = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
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


def count(text: str, name: str) -> int:
    """Return a count, as 200, 50k or 2M. Raises Misconfigured, which mentions `name`."""
    multiple = MULTIPLES.get(text[-1:], 0)
    try:
        digits = text[:-1] if multiple else text
        if not digits.replace(".", "", 1).isdigit() or not digits.isascii() or len(digits) > 20:
            raise ValueError(text)
        value = float(digits) * (multiple or 1)
        if value != int(value):
            raise ValueError(text)
    except ValueError:
        raise Misconfigured(f"{name} must be a number as 5000, 200k or 2M, not {text[:80]!r}") from None
    return int(value)


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
