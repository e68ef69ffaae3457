"""A local store whose root is a directory of this user alone, in a place where every user may make directories.

Laws
1. At each access the root and its parent are checked by their descriptors: both belong to this user, and no other one
   may enter. The parent's name alone says nothing: once it was removed, by `rm -r` or by logind, another user can make
   it.
2. No link leads to either.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from quine.files.stores.local.store import Local

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


def _check(fd: int, path: str) -> None:
    facts = os.fstat(fd)
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise OSError(errno.EPERM, "belongs to another user, or is open to others", path)
