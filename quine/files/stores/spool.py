"""Buffers for data on its way to a store: a memory budget, and spool files on disk for the rest.

Laws
1. One budget limits all transfers of a process: a job may have hundreds, and each announces its own size.
2. A wait for memory is a wait for a store, never for a sender: an incomplete part lies on the disk.
3. A large spool leaves some of its filesystem to others, and raises ENOSPC before it takes that.
4. A spool has no name, so a killed process leaves none. It lies on a disk: a temporary directory is often memory.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading

MOST = 128 << 20  # bytes in memory of all transfers together; one larger part is sent alone

UNASKED = 16 << 20  # bytes that a spool may hold without a check of free space
# Bytes of a disk left to others, or a tenth of it if that is less. Of a filesystem in memory half is left.
SPARE = 1 << 30


class Budget:
    """A limit on bytes in memory, shared by threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._change = threading.Condition()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._held, self._change = 0, threading.Condition()

    def take(self, size: int) -> None:
        """Reserve `size` bytes; wait until they fit or nothing else is reserved."""
        with self._change:
            self._change.wait_for(lambda: self._held + size <= self._most or not self._held)
            self._held += size

    def add(self, size: int) -> None:
        """Reserve `size` bytes without waiting."""
        with self._change:
            self._held += size

    def give(self, size: int) -> None:
        with self._change:
            self._held -= size
            self._change.notify_all()

    @property
    def is_full(self) -> bool:
        return self._held >= self._most


MEMORY = Budget(MOST)


def spool() -> int:
    """Return a descriptor, for reading and writing, of a new file without a name. Raises OSError."""
    told = os.environ.get("TMPDIR", ""), os.environ.get("QUINE_DATA_DIR", "")
    last: OSError | None = None
    for folder in _folders(*told):
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as refused:
            last = refused
    import tempfile

    with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:  # a filesystem without O_TMPFILE
        return os.dup(file.fileno())
    raise last or OSError("no directory for temporary files")


def expect_room(fd: int, at: int, size: int, path: str) -> None:
    """Raise ENOSPC, about `path`, if writing `size` bytes to a spool at `at` would leave too little free space."""
    if at + size <= UNASKED:
        return
    facts = os.fstatvfs(fd)
    whole, left = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    spare = whole // 2 if _is_in_memory(os.fstat(fd).st_dev) else min(SPARE, whole // 10)
    if left - size < spare:
        text = f"a buffer for the store would leave less than {spare >> 20} MiB free"
        raise OSError(errno.ENOSPC, f"{text}; set TMPDIR to a directory on a larger disk", path)


@functools.cache
def _is_in_memory(device: int) -> bool:
    return f"{os.major(device)}:{os.minor(device)}" in _in_memory()


@functools.cache
def _folders(temporary: str, data_dir: str) -> tuple[str, ...]:
    """Return the directories for spools, those on a disk first."""
    known = [folder for folder in (temporary, data_dir) if os.path.isabs(folder) and os.path.isdir(folder)]
    found = [*known, "/var/tmp", "/tmp"]
    memory = _in_memory()
    return tuple(sorted(dict.fromkeys(found), key=lambda folder: _device(folder) in memory))


def _device(folder: str) -> str:
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return ""
    return f"{os.major(device)}:{os.minor(device)}"


def _in_memory() -> set[str]:
    """Return the devices (`major:minor`) of filesystems in memory."""
    try:
        with open("/proc/self/mountinfo") as file:
            rows = [line.partition(" - ") for line in file]
    except OSError:
        return set()
    return {before.split()[2] for before, _, after in rows if after.split()[0] in ("tmpfs", "ramfs")}


def keep(fd: int, name: str) -> str:
    """Give a spool a name in its directory, as its content exists nowhere else. Return the path. Raises OSError."""
    folder = os.path.dirname(os.readlink(f"/proc/self/fd/{fd}"))
    path = os.path.join(folder, f"quine-unsaved-{os.urandom(4).hex()}-{name[-100:]}")
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:  # with a directory descriptor: otherwise the link in /proc is not followed
        os.link(f"/proc/self/fd/{fd}", os.path.basename(path), dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
    return path
