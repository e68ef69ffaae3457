"""Paths of the tier: text relative to the root, with `/` between names; every byte of a name survives.

Laws
1. A path is `str` as the operating system gives it (surrogateescape): a name that is no UTF-8 goes there and back.
2. A clean path has no empty name, no `.`, no `..`, no NUL; the root is "". A path that would lead out of the tier is
   refused before any store sees it.
"""

from __future__ import annotations

import errno
import os

from transport.provenance.aliases import is_alias as is_alias
from transport.provenance.aliases import plain as plain
from transport.provenance.aliases import stands_for as stands_for

LONGEST_NAME = 255  # bytes: the limit of the filesystems that a tier may be copied to
LONGEST_PATH = 4096 - 256  # bytes: below PATH_MAX, so that it can still be joined to a directory


def clean(path: str | bytes) -> str:
    """The clean form of a path: `/a//b/./c/` is `a/b/c`. Raises OSError: EINVAL, ENAMETOOLONG, EPERM for `..`."""
    text = os.fsdecode(path)
    if "\0" in text:
        raise OSError(errno.EINVAL, "a NUL in a name", text)
    names = [name for name in text.split("/") if name not in ("", ".")]
    if ".." in names:
        out = os.path.normpath("/".join(names)).partition("/")[0] == ".."
        what = "leads out of the files tier" if out else "has .. in it, which the files tier takes in no path"
        raise PermissionError(errno.EPERM, what, text)
    encoded = [os.fsencode(name) for name in names]
    if (
        any(len(name) > LONGEST_NAME for name in encoded)
        or sum(map(len, encoded)) + len(names) > LONGEST_PATH
    ):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), text)
    return "/".join(names)


def nearest(text: str) -> str:
    """The leading names of `text` that a clean path can have: that path itself, or a directory above it."""
    found: list[str] = []
    for name in text.split("/"):
        if name == ".." or "\0" in name or len(os.fsencode(name)) > LONGEST_NAME:
            break
        if name not in ("", "."):
            found.append(name)
    return "/".join(found)


def parent(path: str) -> str:
    """The parent directory of a clean path; that of the root is the root."""
    return path.rpartition("/")[0]


def name(path: str) -> str:
    """The last name of a clean path."""
    return path.rpartition("/")[2]


def join(*parts: str) -> str:
    """Join clean paths."""
    return "/".join(part for part in parts if part)


def within(path: str, top: str) -> bool:
    """Return whether `path` is `top` or lies below it."""
    return path == top or path.startswith(f"{top}/")


def moved(path: str, source: str, target: str) -> str:
    """The path after a rename of `source` to `target`; unchanged if the rename does not affect it."""
    return target + path[len(source) :] if within(path, source) else path


def ancestors(path: str) -> list[str]:
    """The directories above a clean path, nearest last, without the root."""
    names = path.split("/")[:-1]
    return ["/".join(names[: count + 1]) for count in range(len(names))]
