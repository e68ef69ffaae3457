"""Whether git tracks a path: read from the index file itself, so that nothing which a repository configures is run.

Source: gitformat-index(5), versions 2 to 4.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FACTS = 62  # bytes of an entry before its name, with an object name of SHA-1; the last two are flags
_EXTENDED = 0x4000
_POINTER = b"gitdir:"


def tracks(path: str) -> bool:
    """Return whether the repository around `path` (absolute) tracks it, or anything in it. Raises OSError."""
    above = os.path.dirname(path)
    while True:
        git = os.path.join(above, ".git")
        if os.path.lexists(git):
            wanted = os.fsencode(os.path.relpath(path, above))
            return any(each == wanted or each.startswith(wanted + b"/") for each in _names(_directory(git)))
        if above == os.path.dirname(above):
            return False
        above = os.path.dirname(above)


def _directory(git: str) -> str:
    """Return the directory that has the index; of a submodule and of a linked work tree a file names it."""
    if os.path.isdir(git):
        return git
    with open(git, "rb") as file:
        head = file.read(1 << 16)
    return os.path.join(os.path.dirname(git), os.fsdecode(head.removeprefix(_POINTER).strip()))


def _digest_size(directory: str) -> int:
    """Return the bytes of an object name. The configuration of a linked work tree is that of the main one."""
    try:
        with open(os.path.join(directory, "commondir")) as file:
            directory = os.path.join(directory, file.read().strip())
    except FileNotFoundError:
        pass
    with open(os.path.join(directory, "config"), "rb") as file:
        return 32 if b"sha256" in file.read(1 << 16) else 20


def _names(directory: str) -> Iterator[bytes]:
    """Yield the paths in the index of a repository. Without an index git tracks nothing."""
    try:
        with open(os.path.join(directory, "index"), "rb") as file:
            data = file.read()
        digest = _digest_size(directory)
    except FileNotFoundError:
        return
    if data[:4] != b"DIRC":
        return
    version, number = struct.unpack_from(">II", data, 4)
    at, name = 12, b""
    for _ in range(number):
        begin, at = at, at + _FACTS - 20 + digest
        (flags,) = struct.unpack_from(">H", data, at - 2)
        at += 2 if version >= 3 and flags & _EXTENDED else 0
        if version == 4:
            drop, at = _number(data, at)
            end = data.index(b"\0", at)
            name, at = name[: len(name) - drop] + data[at:end], end + 1
        else:
            end = data.index(b"\0", at)
            name, at = data[at:end], begin + (end - begin + 8) // 8 * 8
        yield name


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, as packs have it, and the place behind it."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
