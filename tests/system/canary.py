"""Looks for secrets where a machine could keep them: files, environments, arguments and the memory of its processes.

Laws
1. Memory is read as the kernel shows it (/proc/PID/maps, /proc/PID/mem), memfds by their descriptors; only what nobody
   could have written to (a library's code) is left out, because files are searched as files.
2. Nothing may change its place unseen: a search during a run holds the processes still in a known place.
3. A search that finds nothing proves nothing by itself: whoever uses this also plants a secret and finds it.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PIECE = 16 << 20


class Found(NamedTuple):
    what: str  # environ, cmdline, memory, memfd or file
    where: str
    secret: str


class Search:
    """`secrets`: by a name, the bytes to look for; as they are and as base64 spells them."""

    def __init__(self, secrets: dict[str, bytes]) -> None:
        self._needles = [(name, needle) for name, secret in secrets.items() for needle in _spelled(secret)]
        self._longest = max(len(needle) for _, needle in self._needles)
        self.bytes = 0  # looked at

    def processes(self, pids: Iterable[int]) -> list[Found]:
        found: list[Found] = []
        for pid in pids:
            for what in ("environ", "cmdline"):
                found += self._data(what, str(pid), _read(Path(f"/proc/{pid}/{what}")))
            found += self._memory(pid)
        return found

    def files(self, *folders: Path) -> list[Found]:
        found: list[Found] = []
        for folder in folders:
            for top, _, names in os.walk(folder):
                for path in (Path(top, name) for name in names):
                    try:
                        regular = stat.S_ISREG(path.lstat().st_mode)
                    except FileNotFoundError:
                        continue
                    if regular:
                        found += self._data("file", str(path), _read(path))
                    found += self._data("file", f"the name of {path}", os.fsencode(path.name))
        return found

    def _memory(self, pid: int) -> list[Found]:
        found: list[Found] = []
        try:
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                for begin, end, name in _regions(pid):
                    for data in _pieces(memory.fileno(), begin, end, self._longest):
                        found += self._data("memory", f"{pid} {name}", data)
            for number in os.listdir(f"/proc/{pid}/fd"):
                path = Path(f"/proc/{pid}/fd/{number}")
                if os.readlink(path).startswith("/memfd:"):
                    found += self._data("memfd", f"{pid} {number}", _read(path))
        except (FileNotFoundError, ProcessLookupError):
            return found  # it has ended
        return found

    def _data(self, what: str, where: str, data: bytes) -> list[Found]:
        self.bytes += len(data)
        return [Found(what, where, name) for name, needle in self._needles if needle in data]


def _regions(pid: int) -> Iterator[tuple[int, int, str]]:
    """Return (begin, end, name) of each region that a process may have written to."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        span, mode, _, _, inode, *name = line.split(maxsplit=5)
        if mode[0] == "r" and (mode[1] == "w" or inode == "0") and name[:1] != ["[vvar]"]:
            begin, end = (int(word, 16) for word in span.split("-"))
            yield begin, end, " ".join(name)


def _pieces(fd: int, begin: int, end: int, overlap: int) -> Iterator[bytes]:
    at = begin
    while at < end:
        try:
            data = os.pread(fd, min(PIECE, end - at), at)
        except OSError:  # a guard page, or unmapped since
            return
        if not data:
            return
        yield data
        at += max(1, len(data) - overlap) if at + len(data) < end else len(data)


def _spelled(secret: bytes) -> Iterator[bytes]:
    yield secret
    for lead in range(3):  # wherever it begins within three bytes
        text = base64.b64encode(b"\0" * lead + secret)
        yield text[(0, 2, 3)[lead] : len(text) - 4]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
