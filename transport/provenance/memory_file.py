"""Memory files, told from all others: a file system may show another file by the same words.

Laws
1. The text of a link in /proc is no proof: a named pipe, or a file of FUSE, has the name that its maker has given it.
   An open of the one, and any question to the other, may never return, and a kill does not end it. So a file is held
   by O_PATH first, and the kernel alone says whether it is a memfd.
2. That needs no right to the file: a command may have taken away its mode.
"""

from __future__ import annotations

import os

FIRST_FD = 20  # above the single digits that shells redirect, below a small RLIMIT_NOFILE

_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC = 0x1000, 0x4000
_SIZE, _DEVICE = 256, slice(136, 144)  # of struct statx, and of stx_dev_major and stx_dev_minor in it

_memory: dict[bool, str] = {}  # the mount of all memfds, and their device, see `_place`


def link(name: str) -> str:
    """Return the text of the link in /proc to a memfd with this name."""
    return f"/memfd:{name} (deleted)"


def reopened(path: str, flags: int, inode: int = 0, target: str = "") -> int:
    """Open `path` at a descriptor above those that shells redirect. Raises OSError.

    With an `inode` or a `target` (of the link in /proc): only if it is still that memfd. Another file is not opened at
    all: the end of a pipe would wait for the other, or keep it from seeing an end.
    """
    import errno
    import fcntl

    seen, low = os.open(path, os.O_PATH | os.O_CLOEXEC) if inode or target else -1, -1
    try:
        if seen >= 0:
            path, before = f"/proc/self/fd/{seen}", path
            same = is_memory_file(seen) and inode in (0, os.fstat(seen).st_ino)
            if not same or target not in ("", os.readlink(path)):
                raise FileNotFoundError(errno.ENOENT, "closed since", before)
        low = os.open(path, flags | os.O_CLOEXEC)
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)
    finally:
        for fd in (seen, low):
            if fd >= 0:
                os.close(fd)


def inode_at(path: str, target: str) -> int:
    """Return the inode of a memfd with this `target`, see `reopened`. Raises OSError."""
    fd = reopened(path, os.O_PATH, target=target)
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def is_memory_file(fd: int) -> bool:
    """Return whether a descriptor is of a memfd. The kernel alone is asked, not the file's server. Raises OSError."""
    hidden, place = _place(fd)
    if hidden not in _memory:
        own = os.memfd_create("quine-place", os.MFD_CLOEXEC)
        try:
            _memory[hidden] = _place(own)[1]
        finally:
            os.close(own)
    return place == _memory[hidden]


def mount_of(fd: int) -> object:
    """Return the mount of an open file, to be compared with another one. The kernel alone is asked. Raises OSError."""
    return _place(fd)


def _place(fd: int) -> tuple[bool, str]:
    """Return the mount of an open file; (True, its device) if this process is closed to others, before Linux 5.14."""
    try:
        info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return True, _device(fd)
    try:
        return False, os.read(info, 4096).decode().partition("mnt_id:")[2].partition("\n")[0]
    finally:
        os.close(info)


def _device(fd: int) -> str:
    """Return the device of an open file, of which the kernel says what it knows: fstat(2) would ask its server."""
    try:
        import ctypes  # here: for few processes

        libc = ctypes.CDLL(None, use_errno=True)
        facts, get = ctypes.create_string_buffer(_SIZE), libc.statx
    except (ImportError, AttributeError):  # an interpreter without libffi, or a libc from before 2018
        return str(os.fstat(fd).st_dev)
    if get(fd, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, 0, facts):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return facts.raw[_DEVICE].hex()
