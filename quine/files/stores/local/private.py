"""Local stores whose root must be a directory of this user: in shared memory, and in the data directory.

Laws
1. At each access the root and its parent are checked by their descriptors. In a place where every user may make
   directories both belong to this user, and no other one may enter: once the parent was removed, by `rm -r` or by
   logind, another user can make it. In the data directory they are what that room demands.
2. No link leads to the root. A repository that brought a `.quine/fs -> ../..` made the home directory the shared files
   of every job, on any host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from quine.base import data_directory
from quine.base.errors import Misconfigured
from quine.files.stores.local.store import Local
from transport.provenance import safe_path

_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Private(Local):
    """`root`: a name in a directory that is not made by any other program."""

    def open_root(self, make: bool) -> int:
        parent, name = os.path.split(self.root)
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, 0o700)
        above = os.open(parent, _WALK)
        try:
            _check(above, parent)
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=above)
            root = os.open(name, _WALK, dir_fd=above)
        finally:
            os.close(above)
        try:
            _check(root, self.root)
        except BaseException:
            os.close(root)
            raise
        return root


class OfUser(Local):
    """A store in the data directory."""

    def __init__(self, folder: str, name: str) -> None:
        super().__init__(f"{folder}/{name}", "origin:")
        self._folder, self._name = folder, name

    def open_root(self, make: bool) -> int:
        above = data_directory.opened(self._folder, make)
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self._name, 0o700, dir_fd=above)
            return safe_path.found(self._name, safe_path.FOLDER, above)
        except safe_path.Unsafe as unsafe:
            raise Misconfigured(f"the shared files {self.root}: {unsafe}", unsafe.hint) from None
        finally:
            os.close(above)


def _check(fd: int, path: str) -> None:
    facts = os.fstat(fd)
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise OSError(errno.EPERM, "belongs to another user, or is open to others", path)
