"""Sizes, counts and times as people write them.

`500M`, `2G` of bytes in powers of 1024; `200k`, `2M` of other things in powers of 1000; `90`, `1.5m`, `2h` in seconds.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MULTIPLES = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
BYTES = {"k": 1 << 10, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}
UNITS = {unit: float(seconds) for unit, seconds in TIMES.items()}
# the greatest value of any limit: more is a typing error, and overflows clocks and counters
MOST = 10**9


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


def integer(environ: Mapping[str, str], name: str, default: int, units: Mapping[str, int] = MULTIPLES) -> int:
    """Return the whole number in a variable, which may have a unit. Raises Misconfigured."""
    text = environ.get(name, "")
    if not text:
        return default
    unit = units.get(text[-1:], 0)
    digits = (text[:-1] if unit else text).removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise Misconfigured(f"{name} must be an integer, not {text[:80]!r}")
    if text.startswith("-"):
        raise Misconfigured(f"{name} must not be negative, and is {text[:80]}")
    if len(digits) > 20 or int(digits) * (unit or 1) > MOST:
        raise Misconfigured(f"{name} must not be more than {MOST}")
    return int(digits) * (unit or 1)


def number(
    environ: Mapping[str, str], name: str, default: float, units: Mapping[str, int] | None = None
) -> float:
    """Return the number in a variable, which may have a unit. Raises Misconfigured."""
    text = environ.get(name, "")
    if not text:
        return default
    unit = (units or {}).get(text[-1:], 0)
    try:
        value = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        raise Misconfigured(f"{name} must be a number, not {text[:80]!r}") from None
    if not 0 <= value <= MOST:
        raise Misconfigured(f"{name} must be 0 or more, and not more than {MOST}, and is {text[:80]}")
    return value


def spent(name: str) -> Misconfigured:
    """Return the error for a limit of 0: a script has computed that nothing is left, and no limit is the opposite."""
    return Misconfigured(f"{name} is 0, and nothing can be done with that", f"no limit: leave {name} out")


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
