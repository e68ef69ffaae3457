"""Descriptors and memory: scattered reads and writes, links, memfds, the sizes of terminals, the collector."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import struct
import termios

from transport.backports.libc import INT, LONG, POINTER, call, ctypes, function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_AT_FDCWD, _AT_SYMLINK_FOLLOW = -100, 0x400
_WINSIZE = struct.Struct("HHHH")  # rows, columns, and two of pixels


def writev(fd: int, buffers: Sequence[bytes | memoryview]) -> int:
    """One write(2) of all bytes, which the kernel treats as it treats their writev(2); the price is a copy."""
    return os.write(fd, b"".join(buffers))


def readv(fd: int, buffers: Sequence[bytearray | memoryview]) -> int:
    views = _views(buffers)
    return _spread(os.read(fd, sum(map(len, views))), views)


def preadv(fd: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0) -> int:
    if flags:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    views = _views(buffers)
    return _spread(os.pread(fd, sum(map(len, views)), offset), views)


def _views(buffers: Sequence[bytearray | memoryview]) -> list[memoryview]:
    return [memoryview(buffer).cast("B") for buffer in buffers]


def _spread(data: bytes, views: list[memoryview]) -> int:
    at = 0
    for view in views:
        part = data[at : at + len(view)]
        view[: len(part)] = part
        at += len(part)
    return at


def copy_file_range(
    src: int, dst: int, count: int, offset_src: int | None = None, offset_dst: int | None = None
) -> int:
    if count < 0:
        raise ValueError("negative value for 'count' not allowed")
    ask = function(
        "copy_file_range", ctypes.c_ssize_t, INT, POINTER, INT, POINTER, ctypes.c_size_t, ctypes.c_uint
    )
    one, other = (None if at is None else ctypes.c_int64(at) for at in (offset_src, offset_dst))
    places = [None if at is None else ctypes.byref(at) for at in (one, other)]
    return call(ask, src, places[0], dst, places[1], count, 0)


def link(
    src: Any,
    dst: Any,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    follow_symlinks: bool = True,
) -> None:
    """As os.link of CPython, which follows a symbolic link at `src` only if a directory is given by descriptor."""
    folders = [_AT_FDCWD if fd is None else fd for fd in (src_dir_fd, dst_dir_fd)]
    flags = _AT_SYMLINK_FOLLOW if follow_symlinks and folders != [_AT_FDCWD] * 2 else 0
    names = [os.fsencode(src), os.fsencode(dst)]
    if any(b"\0" in name for name in names):
        raise ValueError("embedded null byte")
    ask = function("linkat", INT, INT, ctypes.c_char_p, INT, ctypes.c_char_p, INT)
    try:
        call(ask, folders[0], names[0], folders[1], names[1], flags)
    except OSError as error:
        raise OSError(error.errno, error.strerror, src, None, dst) from None


def memfd_create(name: str, flags: int = 1) -> int:
    ask = function("syscall", LONG, LONG, ctypes.c_char_p, ctypes.c_uint)
    return call(ask, MEMFD_CREATE[platform.machine()], os.fsencode(name), flags)


def freeze() -> None:
    """Do nothing. gc.freeze spares a fork the copies of pages; here the collector has no such list."""


def tcgetwinsize(fd: int) -> tuple[int, int]:
    return _WINSIZE.unpack(_winsize(fd, termios.TIOCGWINSZ, bytes(_WINSIZE.size)))[:2]


def tcsetwinsize(fd: int, winsize: tuple[int, int]) -> None:
    pixels = _WINSIZE.unpack(_winsize(fd, termios.TIOCGWINSZ, bytes(_WINSIZE.size)))[2:]
    _winsize(fd, termios.TIOCSWINSZ, _WINSIZE.pack(*winsize, *pixels))


def _winsize(fd: int, request: int, raw: bytes) -> bytes:
    try:
        return fcntl.ioctl(fd, request, raw)
    except OSError as error:
        raise termios.error(*error.args) from None
