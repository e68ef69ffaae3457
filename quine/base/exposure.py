"""The argv and the initial environment that /proc shows to other processes, rewritten in place.

The kernel put both into the memory of this process; changing os.environ changes neither.
"""

from __future__ import annotations

import os

from transport.lean import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


LOCALE = "QUINE_LOCALE"  # LC_ALL:LC_CTYPE of the login, where `deploy/there/installer.py` has set others
COERCED = ("C.UTF-8", "C.utf8", "UTF-8")  # locales that Python takes in place of C


def mission(text: str) -> None:
    """Show another mission in `ps`, truncated to the space of the initial argv."""
    argv(["quine", text.replace("\0", " ").encode("utf-8", "replace").decode()])


def argv(words: Sequence[str]) -> None:
    """Show another argv in `ps`, truncated to the space of the initial one."""
    with contextlib.suppress(OSError, ValueError):
        start, end = _stat(48, 49)
        shown = b"\0".join(map(os.fsencode, words))
        _write(start, shown[: end - start - 1].ljust(end - start, b"\0"))


def given(name: str) -> bool:
    """Return whether the variable was in the initial environment, so that Python did not add it; True if unknown."""
    with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
        return any(entry.startswith(name.encode() + b"=") for entry in file.read().split(b"\0"))
    return True


def drop_own_locale() -> None:
    """Remove the LC_CTYPE that Python sets for itself in the C locale (PEP 538): jobs have what this process was given.

    PYTHONCOERCECLOCALE=0 would not do: an isolated Python, as on hosts, does not read it. For PyPy, which does not help
    itself, the launcher of an installation has set the locale.
    """
    given_there = os.environ.pop(LOCALE, None)
    if given_there is not None:
        for variable, value in zip(("LC_ALL", "LC_CTYPE"), given_there.split(":")):
            os.environ.pop(variable, None)
            if value:
                os.environ[variable] = value
        return
    if os.environ.get("LC_CTYPE") in COERCED and not given("LC_CTYPE"):
        del os.environ["LC_CTYPE"]


def forget(names: Collection[str]) -> None:
    """Overwrite these variables in the initial environment.

    Variables still in os.environ are first copied to memory that /proc does not show, so that children get them.
    """
    if not names:
        return
    with contextlib.suppress(OSError, ValueError):
        start, end = _stat(50, 51)
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(start)
            data = memory.read(end - start)
        at = start
        for entry in data.split(b"\0"):
            name, equals, _ = entry.partition(b"=")
            if equals and (text := os.fsdecode(name)) in names:
                if text in os.environ:
                    os.environ[text] = os.environ[text]  # putenv copies it; C reads the copy from now on
                _write(at, bytes(len(entry)))
            at += len(entry) + 1


def _stat(*fields: int) -> list[int]:
    """Return fields of /proc/self/stat by their numbers in proc(5). ValueError if it ends early, as an emulator's."""
    with open("/proc/self/stat", "rb") as file:
        values = file.read().rpartition(b")")[2].split()  # begins with the third field
    if len(values) <= max(fields) - 3:
        raise ValueError("/proc/self/stat is too short")
    return [int(values[field - 3]) for field in fields]


def _write(at: int, data: bytes) -> None:
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(at)
        memory.write(data)
