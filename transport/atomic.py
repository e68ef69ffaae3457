"""Atomic file replacement: data is written beside the target and renamed over it. A reader sees old or new, whole.

Laws
1. A path means the same as after the `>` of a shell: links are followed, dangling ones too, as far as the kernel
   permits this process.
2. Only a regular file is replaced. A device or a pipe is opened and written in place. A file that has other names, is
   a mount point, is in a directory that this process cannot write, or has an owner or a group that this process cannot
   give a new file, keeps them: the whole content is copied into it, once room for it is reserved. If the copying fails,
   the error names the file with the whole content. A file that this process may not write is refused.
3. A descriptor of this process (/dev/stderr, /dev/fd/3) is written at its current offset; its file is not truncated.
4. The content is on the disk before it has its name: after a crash of the machine the file is not an empty one.
5. Without `commit` nothing changes and nothing is left behind, except in devices, pipes and descriptors.
"""

from __future__ import annotations

import errno
import os
import stat

from transport import quickjson
from transport.writes import write_all

MOST_LINKS = 40  # as the kernel
IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)  # no new file in that directory
COPIED = 1 << 20
KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE


def write(path: str, data: bytes, mode: int = 0o666, own: bool = False) -> None:
    """Replace the content of `path` with `data`; arguments and errors as for `Aside`."""
    with Aside(path, mode, own) as file:
        file.write(data)
        file.commit()


def write_aside(path: str, value: object) -> None:
    """Write `value` as JSON to `path`, atomically. Raises OSError."""
    write(path, quickjson.dumps(value).encode(), 0o600, own=True)


def reserve(place: int, size: int) -> None:
    """Reserve disk space for new content of a file, without a change to it. Raises OSError if the disk is full."""
    if not size:
        return
    from transport.backports.libc import INT, LONG, call, function, in_libc  # here: ctypes, for few processes

    there = os.fstat(place)
    try:
        if in_libc("fallocate"):
            call(function("fallocate", INT, INT, INT, LONG, LONG), place, KEEP_SIZE, 0, size)
            return
    except OSError as refused:
        if refused.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            os.ftruncate(place, there.st_size)  # it may have taken all that there was
            raise
    facts = os.fstatvfs(place)
    if size > there.st_blocks * 512 + facts.f_bavail * facts.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def overwrite(place: int, source: int) -> None:
    """Copy a whole file over the content of another. Its blocks are kept until then: `reserve` has counted them."""
    for fd in (place, source):
        os.lseek(fd, 0, os.SEEK_SET)
    while data := os.read(source, COPIED):
        write_all(place, data)
    os.ftruncate(place, os.lseek(place, 0, os.SEEK_CUR))


class Aside:
    """A context manager. `fd` may be written directly; `commit` gives the file its name. Raises OSError with `path`.

    mode   permissions of a new file, less the umask; a replaced file keeps its own, and its owner and group
    own    for a file that only quine writes, in its own directory: a link is replaced, and `mode` is set exactly
    """

    def __init__(self, path: str, mode: int = 0o666, own: bool = False) -> None:
        self.path = path
        self._own = own
        self.fd = -1
        self._place = -1  # the file that is there, for writing; -1 if there is none, and for `own`
        self._shared = False  # the file that is there must stay, with its other names or its owner
        self._aside = ""
        self._target = ""
        try:
            end = path if own else follow(path)
            if isinstance(end, int):
                self.fd = os.dup(end)
            else:
                self._target = end
                self._open(mode)
        except OSError as error:
            self.__exit__()
            raise self._about(error) from None

    def _open(self, mode: int) -> None:
        try:
            there = os.stat(self._target, follow_symlinks=not self._own)
        except FileNotFoundError:
            there = None
        if there and not stat.S_ISREG(there.st_mode) and not self._own:
            self.fd = os.open(self._target, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
            return
        if there and not self._own:
            self._place = os.open(self._target, os.O_WRONLY | os.O_CLOEXEC)
        name = os.path.join(os.path.dirname(self._target), f".quine-{os.urandom(8).hex()}.part")
        try:
            self.fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except OSError as error:
            if self._place < 0 or error.errno not in IN_PLACE:
                raise
            self.fd, self._shared = os.memfd_create("quine-aside", os.MFD_CLOEXEC), True
            return
        self._aside = name
        if there and not self._own:
            self._shared = there.st_nlink > 1 or not self._give(there.st_uid, there.st_gid)
            mode = there.st_mode & 0o777
        if there or self._own:
            os.fchmod(self.fd, mode)

    def _give(self, owner: int, group: int) -> bool:
        """Give the new file that owner and group; return False if this process may not."""
        made = os.fstat(self.fd)
        if (made.st_uid, made.st_gid) != (owner, group):
            try:
                os.fchown(self.fd, owner, group)
            except OSError:
                return False
        return True

    def write(self, data: bytes) -> None:
        try:
            write_all(self.fd, data)
        except OSError as error:
            raise self._about(error) from None

    def commit(self) -> None:
        if not (self._aside or self._shared):
            return
        try:
            os.fsync(self.fd)
            if self._shared:
                self._copy()
                return
            try:
                os.rename(self._aside, self._target)
                self._aside = ""
            except OSError as error:
                if error.errno != errno.EBUSY or self._place < 0:
                    raise
                self._copy()
        except OSError as error:
            raise self._about(error) from None

    def _copy(self) -> None:
        """Copy into the file that is there. A rename over a mount point fails with EBUSY."""
        reserve(self._place, os.lseek(self.fd, 0, os.SEEK_END))
        aside, self._aside = self._aside, ""  # it stays if this process is ended meanwhile
        try:
            overwrite(self._place, self.fd)
            os.fsync(self._place)
        except OSError as error:
            whole = f"; the whole content is in {aside}" if aside else "; its content is incomplete"
            raise OSError(error.errno, f"{error.strerror}{whole}") from None
        self._aside = aside

    def _about(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, self.path)

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self.fd, self._place):
            if fd >= 0:
                os.close(fd)
        self.fd = self._place = -1
        if self._aside:
            try:
                os.unlink(self._aside)
            except FileNotFoundError:
                pass


def follow(path: str) -> str | int:
    """Return the path at the end of the links of `path`, or the number of a descriptor of this process.

    Raises OSError: ELOOP, or EACCES if this process may not write through a link.
    """
    asked, foreign = path, False
    for _ in range(MOST_LINKS):
        folder, name = os.path.split(path)
        above = os.path.realpath(folder)
        if name.isdecimal() and above == os.path.realpath("/proc/self/fd"):
            return int(name)
        try:
            link = os.readlink(path)
            foreign = foreign or os.lstat(path).st_uid != os.geteuid()
        except OSError:
            break  # not a link, or missing
        if above.startswith("/proc/"):
            break  # the target text of a link in /proc is not a path
        path = os.path.join(folder, link)
    else:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), asked)
    if foreign:
        _probe(asked)  # another user's link, perhaps in a sticky directory: only open(2) tells
    return path


def _probe(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENXIO):
            raise
