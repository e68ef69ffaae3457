"""Local file systems: those whose calls wait for a disk of this machine at most, not for another machine or a program.

Law: `is_local` may hang itself, as each call on a path may. It is called in a process that nothing waits for.
"""

from __future__ import annotations

import os
import select

# Where a file system has another one below it (overlay), that one is local on any host that starts from it.
TYPES = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs"),
    *("overlay", "tmpfs", "devtmpfs", "ramfs", "rootfs", "squashfs", "erofs", "iso9660", "vfat"),
}
MOUNTS = "/proc/self/mountinfo"
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def is_local(paths: list[str]) -> bool:
    """True if each path, as it is written and as links resolve it, is below mounts of local file systems only."""
    found = [*paths, *map(os.path.realpath, paths)]
    if not all(map(os.path.isabs, found)):
        return False
    remote = [place for place, kind in mounts().items() if kind not in TYPES]
    return not any(_is_below(os.path.normpath(path), place) for path in found for place in remote)


def is_local_device(device: int) -> bool:
    """True if every mount of a device (`st_dev`) is a local file system; False if the kernel does not tell."""
    kinds = kinds_of(device)
    return bool(kinds) and kinds <= TYPES


def kinds_of(device: int) -> set[str]:
    """Return the types of the file systems of a device (`st_dev`); none if the kernel does not tell."""
    number = f"{os.major(device)}:{os.minor(device)}"
    return {kind for name, _, kind in _table() if name == number}


class Mounts:
    """The mount points as they are now; read again when the kernel says on `fd` that they have changed."""

    def __init__(self) -> None:
        self._poll = select.poll()
        try:
            self.fd = os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
            self._poll.register(self.fd, select.POLLPRI)
        except OSError:
            self.fd = -1  # nothing is local then
        self._points = mounts()

    def leads_elsewhere(self, path: str) -> bool:
        """True if a path in a local directory is a mount point or a link. Waits for nothing that is mounted there."""
        if self._poll.poll(0):
            self._points = mounts()
        return os.path.normpath(path) in self._points or os.path.islink(path)


def mounts() -> dict[str, str]:
    """Return the mount points and the types of their file systems; of several at one point the last, which is seen.

    {"/": "unknown"} if the kernel does not tell.
    """
    return {place: kind for _, place, kind in _table()} or {"/": "unknown"}


def _table() -> list[tuple[str, str, str]]:
    """Return the device number, the mount point and the type of every mount, in the kernel's order.

    [] if the kernel does not tell, or tells what cannot be read.
    """
    found = []
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields = line.split(" ")
                place = fields[4]
                for escape, character in _ESCAPES.items():
                    place = place.replace(escape, character)
                found.append((fields[2], place, fields[fields.index("-", 6) + 1]))
    except (OSError, ValueError, IndexError):
        return []
    return found


def _is_below(path: str, place: str) -> bool:
    return path == place or place == "/" or path.startswith(place + "/")
