"""Functions of libc by ctypes, with errno as OSError."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

try:
    import ctypes
except ImportError:  # an interpreter without libffi
    ctypes = None  # type: ignore[assignment]

__all__ = ["INT", "LONG", "POINTER", "call", "checked", "ctypes", "function", "in_libc"]

LIBC: Any = ctypes and ctypes.CDLL(None, use_errno=True)
INT: Any = ctypes and ctypes.c_int
LONG: Any = ctypes and ctypes.c_long
POINTER: Any = ctypes and ctypes.c_void_p


def in_libc(name: str) -> bool:
    return hasattr(LIBC, name)


def function(name: str, result: type[Any], *types: type[Any]) -> Callable[..., int]:
    """Return a function of libc with its types; syscall(2) has others for each number."""
    found: Callable[..., int] = LIBC[name]  # by item: a new object each time
    found.restype, found.argtypes = result, types  # type: ignore[attr-defined]
    return found


def call(asked: Callable[..., int], *args: object) -> int:
    """Return the result of a function that reports failure by -1 and errno. Raises OSError."""
    while True:
        result = asked(*args)
        if result != -1:
            return result
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def checked(number: int, path: str | bytes | None = None) -> None:
    """Raise the error of a function that returns its errno."""
    if number:
        raise OSError(number, os.strerror(number), path)
