"""The kernel's FUSE protocol: requests parsed from bytes, answers packed to bytes. Sans-IO.

Laws
1. One message of the kernel is one request. It is parsed as a whole or refused with ValueError, never read beyond its
   end.
2. Numbers are in the machine's byte order, as in linux/fuse.h. The oldest supported version is 7.31 (Linux 5.4).
3. Outgoing numbers fit their fields, whatever a store reports. Sizes are clamped, an impossible time becomes 0; nothing
   wraps.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from enum import IntEnum
from struct import Struct, error
from typing import NamedTuple

ROOT = 1  # inode number of the root

MAJOR, MINOR, OLDEST = 7, 31, 31
LARGEST = 1 << 20  # bytes of one READ or WRITE
PAGE = 4096
BUFFER = LARGEST + 2 * PAGE  # bytes that one read of /dev/fuse may give

# INIT flags, requested if the kernel has them
ASYNC_READ, ATOMIC_O_TRUNC, BIG_WRITES = 1 << 0, 1 << 3, 1 << 5
DO_READDIRPLUS, PARALLEL_DIROPS, MAX_PAGES = 1 << 13, 1 << 18, 1 << 22
FLOCK_LOCKS = 1 << 10
# Without READDIRPLUS_AUTO: by it the kernel got attributes of the first names only, and `ls -l` asked for the rest.
WANTED = FLOCK_LOCKS | ASYNC_READ | ATOMIC_O_TRUNC | BIG_WRITES | DO_READDIRPLUS | PARALLEL_DIROPS | MAX_PAGES

KEEP_CACHE = 1 << 1  # of OPEN: the kernel's cached pages are valid
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_MTIME, SET_MTIME_NOW, SET_BY_HANDLE = 1, 2, 4, 8, 32, 256, 64
NO_REPLACE = 1  # of RENAME2
IS_FLOCK = 1  # of SETLK and SETLKW


class Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    SYNCFS = 50


class Request(NamedTuple):
    """One message of the kernel. `args` are the numbers of its kind, in the order of linux/fuse.h."""

    op: int
    unique: int
    node: int
    pid: int  # of the requesting thread; 0 if it is in another pid namespace
    args: tuple[int, ...] = ()
    names: tuple[bytes, ...] = ()
    data: bytes | memoryview = b""


HEADER = Struct("=IIQQIIIHH")
_OUT = Struct("=IiQ")
_ATTR = Struct("=QQQQQQIIIIIIIIII")
_ENTRY = Struct("=QQQQII")
_VALID = Struct("=QII")
_OPENED = Struct("=QIi")
_INIT_OUT = Struct("=IIIIHHIIHHIIH22x")
_DIRENT = Struct("=QQII")
_STATFS = Struct("=QQQQQIIII24x")
_WRITTEN = Struct("=II")
_FORGOTTEN = Struct("=QQ")

# After the header: numbers, count of names, whether the rest is data.
_FORMS: dict[int, tuple[Struct, int, bool]] = {
    Op.LOOKUP: (Struct(""), 1, False),
    Op.FORGET: (Struct("=Q"), 0, False),
    Op.GETATTR: (Struct("=IIQ"), 0, False),
    Op.SETATTR: (Struct("=IIQQQQQQIIIIIIII"), 0, False),
    Op.MKNOD: (Struct("=IIII"), 1, False),
    Op.MKDIR: (Struct("=II"), 1, False),
    Op.UNLINK: (Struct(""), 1, False),
    Op.RMDIR: (Struct(""), 1, False),
    Op.RENAME: (Struct("=Q"), 2, False),
    Op.RENAME2: (Struct("=QII"), 2, False),
    Op.OPEN: (Struct("=II"), 0, False),
    Op.OPENDIR: (Struct("=II"), 0, False),
    Op.CREATE: (Struct("=IIII"), 1, False),
    Op.READ: (Struct("=QQIIQII"), 0, False),
    Op.READDIR: (Struct("=QQIIQII"), 0, False),
    Op.READDIRPLUS: (Struct("=QQIIQII"), 0, False),
    Op.WRITE: (Struct("=QQIIQII"), 0, True),
    Op.FLUSH: (Struct("=QIIQ"), 0, False),
    Op.RELEASE: (Struct("=QIIQ"), 0, False),
    Op.RELEASEDIR: (Struct("=QIIQ"), 0, False),
    Op.SETLK: (Struct("=QQQQIIII"), 0, False),
    Op.SETLKW: (Struct("=QQQQIIII"), 0, False),
    Op.FSYNC: (Struct("=QII"), 0, False),
    Op.FSYNCDIR: (Struct("=QII"), 0, False),
    Op.INIT: (Struct("=IIII"), 0, False),
    Op.INTERRUPT: (Struct("=Q"), 0, False),
    Op.BATCH_FORGET: (Struct("=II"), 0, True),
    Op.FALLOCATE: (Struct("=QQQII"), 0, False),
}


def parse(message: bytes | memoryview) -> Request:
    """Parse one message of /dev/fuse. Raises ValueError if it is malformed; an unknown kind has no args."""
    try:
        length, op, unique, node, _, _, pid, extensions, _ = HEADER.unpack_from(message)
        if length != len(message):
            raise ValueError(f"{len(message)} bytes that say {length}")
        form, names, rest = _FORMS.get(op, (Struct(""), 0, False))
        args = form.unpack_from(message, HEADER.size)
    except error as wrong:
        raise ValueError(f"a request cut short: {wrong}") from None
    end = length - 8 * extensions
    at = HEADER.size + form.size
    if end < at:
        raise ValueError("extensions longer than their request")
    texts: tuple[bytes, ...] = ()
    if names:
        parts = bytes(message[at:end]).split(b"\0")
        if len(parts) <= names or not all(parts[:names]):
            raise ValueError("a name without its end")
        texts = tuple(parts[:names])
    data = message[at:end] if rest else b""
    if op == Op.WRITE:
        if len(data) < args[2]:
            raise ValueError("less data than is to be written")
        data = data[: args[2]]
    return Request(op, unique, node, pid, args, texts, data)


def forgotten(request: Request) -> list[tuple[int, int]]:
    """Return the (node, count) pairs of FORGET or BATCH_FORGET. Raises ValueError if the list is cut short."""
    if request.op == Op.FORGET:
        return [(request.node, request.args[0])]
    count = request.args[0]
    if count * _FORGOTTEN.size > len(request.data):
        raise ValueError("a list cut short")
    return [_FORGOTTEN.unpack_from(request.data, index * _FORGOTTEN.size) for index in range(count)]


class Attributes(NamedTuple):
    """The attributes of a node, for the kernel."""

    inode: int
    mode: int  # with the bits of the file type
    size: int
    mtime: float


def answer(unique: int, *parts: bytes | memoryview) -> list[bytes | memoryview]:
    """Return an answer, to be written by one writev."""
    return [_OUT.pack(_OUT.size + sum(map(len, parts)), 0, unique), *parts]


def failure(unique: int, number: int) -> list[bytes | memoryview]:
    """Return an answer that is an errno."""
    return [_OUT.pack(_OUT.size, -number if 0 < number < 512 else -5, unique)]


def initial(request: Request) -> tuple[bytes, bool]:
    """Return the answer to INIT, and whether the version is agreed; if not, the kernel asks with ours, or never."""
    major, minor, readahead, flags = request.args
    if major != MAJOR or minor < OLDEST:
        return _INIT_OUT.pack(MAJOR, MINOR, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), False
    ours = flags & WANTED
    pages = LARGEST // PAGE if ours & MAX_PAGES else 0
    packed = _INIT_OUT.pack(
        MAJOR, MINOR, max(readahead, LARGEST), ours, 64, 48, LARGEST, 1, pages, 0, 0, 0, 0
    )
    return packed, True


def attributes(told: Attributes, uid: int, gid: int) -> bytes:
    size = min(max(int(told.size), 0), (1 << 63) - 1)
    seconds, nanos = _time(told.mtime)
    links = 2 if stat.S_ISDIR(told.mode & 0xFFFF) else 1
    return _ATTR.pack(
        told.inode, size, (size + 511) // 512, seconds, seconds, seconds, nanos, nanos, nanos,
        told.mode & 0xFFFF, links, uid, gid, 0, 1 << 17, 0,
    )  # fmt: skip


def entry(node: int, attr: bytes, entry_seconds: int, attr_seconds: int) -> bytes:
    """Pack the entry of LOOKUP and its like. The kernel would cache node 0 with seconds as an absent name."""
    return _ENTRY.pack(node, 0, entry_seconds, attr_seconds, 0, 0) + attr


def attr_out(attr: bytes, seconds: int) -> bytes:
    return _VALID.pack(seconds, 0, 0) + attr


def opened(handle: int, flags: int = 0) -> bytes:
    return _OPENED.pack(handle, flags, 0)


def written(size: int) -> bytes:
    return _WRITTEN.pack(size, 0)


def dirent(inode: int, offset: int, kind: int, name: bytes) -> bytes:
    """Pack one name of a listing; `offset` is where the next begins, `kind` is as in a mode."""
    return _DIRENT.pack(inode, offset, len(name), stat.S_IFMT(kind) >> 12) + name + bytes(-len(name) % 8)


def statfs(block: int, blocks: int, free: int, longest: int) -> bytes:
    return _STATFS.pack(blocks, free, free, blocks, free, block, longest, block, 0)


def time_of(seconds: int, nanos: int) -> float:
    """Return a time of SETATTR; one before 1970 is a negative number in an unsigned field."""
    return (seconds - (1 << 64) if seconds >> 63 else seconds) + nanos / 1e9


def _time(moment: float) -> tuple[int, int]:
    if not math.isfinite(moment) or not -(1 << 40) < moment < 1 << 40:
        return 0, 0
    seconds = math.floor(moment)
    return seconds % (1 << 64), min(int((moment - seconds) * 1e9), 999_999_999)


def inode_of(path: str) -> int:
    if not path:
        return ROOT
    digest = hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
    return int.from_bytes(digest, "big") | 2  # neither 0 nor the root's
