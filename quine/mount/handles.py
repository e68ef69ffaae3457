"""Handles of open files and directories, and facts about the processes that hold them.

Laws
1. A handle has one kind for its life: a version that is read, a draft, or the listing of a directory.
2. Everything that a handle holds is released once, by `release`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.api import Entry
    from quine.mount.cache import Content
    from quine.mount.inodes import Node
    from quine.mount.writeback import Draft


class Handle:
    __slots__ = ("content", "draft", "listing", "node", "owner", "writes")

    def __init__(
        self,
        node: Node,
        *,
        content: Content | None = None,
        draft: Draft | None = None,
        writes: bool = False,
        owner: int = 0,
    ) -> None:
        self.node = node
        self.content = content
        self.draft = draft
        self.writes = writes
        self.owner = owner  # the process that opened it
        self.listing: list[tuple[bytes, Entry]] | None = None


class Handles:
    """Handles by number. Every method is called with `State.lock` held."""

    def __init__(self) -> None:
        self._open: dict[int, Handle] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, handle: Handle) -> int:
        self._last += 1
        self._open[self._last] = handle
        return self._last

    def get(self, number: int) -> Handle | None:
        return self._open.get(number)

    def pop(self, number: int) -> Handle | None:
        return self._open.pop(number, None)


def process_of(thread: int) -> int:
    """Return the process of a thread; 0 if it is not visible to us."""
    return _status(thread).get("Tgid", 0)


def holds_still(process: int, inode: int, path: str) -> bool:
    """Return whether a process has another descriptor that may write this file; one being closed has left its table.

    Before Linux 5.14, fdinfo reports no inode: then any file whose path ends like this one counts.
    """
    ending = "/" + path
    try:
        for number in os.listdir(f"/proc/{process}/fd"):
            try:
                writes, told = _descriptor(process, number)
                if writes and told == inode:
                    return True
                if writes and told is None:
                    name = os.readlink(f"/proc/{process}/fd/{number}").removesuffix(" (deleted)")
                    if name.endswith(ending):
                        return True
            except OSError:
                continue  # closed meanwhile
    except OSError:
        return False  # gone, or not visible to us
    return False


def _descriptor(process: int, number: str) -> tuple[bool, int | None]:
    """Return whether a descriptor may write, and its inode if the kernel reports it."""
    with open(f"/proc/{process}/fdinfo/{number}", "rb") as file:
        told = dict(line.split()[:2] for line in file if line.startswith((b"flags:", b"ino:")))
    inode = told.get(b"ino:")
    writes = int(told.get(b"flags:", b"0"), 8) & os.O_ACCMODE != os.O_RDONLY
    return writes, None if inode is None else int(inode)


# Signals that do not end a process by default.
_HARMLESS = sum(1 << number - 1 for number in (17, 18, 19, 20, 21, 22, 23, 28))
_KILL = 1 << 8


def is_dying(thread: int) -> bool:
    """Return whether a thread has a pending signal that will end it; also True if it has gone or is not visible."""
    told = _status(thread)
    if "SigPnd" not in told:
        return True
    pending = told["SigPnd"] | told.get("ShdPnd", 0)
    heeded = told.get("SigIgn", 0) | told.get("SigCgt", 0) | told.get("SigBlk", 0) | _HARMLESS
    return bool(pending & _KILL or pending & ~heeded)


def _status(thread: int) -> dict[str, int]:
    """Return numbers of /proc/…/status, where masks of signals are hexadecimal."""
    try:
        with open(os.path.join("/proc", str(thread), "status"), "rb") as file:
            text = file.read()
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.decode("ascii", "replace").partition(":")
        try:
            if name == "Tgid":
                found[name] = int(value)
            elif name in ("SigPnd", "ShdPnd", "SigIgn", "SigCgt", "SigBlk"):
                found[name] = int(value, 16)
        except ValueError:
            continue
    return found
