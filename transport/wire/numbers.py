"""Numbers that another machine has told: checked before anything is calculated with them.

Laws
1. A number of another machine has bounds. Infinity, NaN, a number beyond the bounds, and a value of another type are
   refused with ValueError: an integer of 400 digits cannot be converted to a float, and JSON has no infinity.
2. A text is a number if it is one in ASCII digits, of at most LONGEST characters. float() also takes "inf" and "1_0",
   isdigit() also takes "²", and int() fails on a text of 5000 digits.
"""

from __future__ import annotations

SECONDS = 1e9  # no time that a machine tells is longer: 31 years
PROCESSORS = 8192  # that another machine is believed to have: Linux counts no more
LONGEST = 20  # characters of a number in a text


def number(value: object, most: float, least: float = 0.0) -> float:
    """Raises ValueError."""
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]  # nor a bool
        raise ValueError(f"not a number from {least:g} to {most:g}")
    return float(value)  # type: ignore[arg-type]


def whole(value: object, most: int, least: int = 0) -> int:
    """Raises ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"not a whole number from {least} to {most}")
    return value


def decimal(text: str, most: float, least: float = 0.0) -> float:
    """Return the number that a text of digits, with a point or without, stands for. Raises ValueError."""
    if not _is_number(text.replace(".", "", 1), text):
        raise ValueError("not a decimal number")
    return number(float(text), most, least)


def digits(text: str, most: int, least: int = 0) -> int:
    """Return the whole number that a text of digits stands for. Raises ValueError."""
    if not _is_number(text, text):
        raise ValueError("not a whole number")
    return whole(int(text), most, least)


def _is_number(figures: str, text: str) -> bool:
    return len(text) <= LONGEST and figures.isascii() and figures.isdigit()
