"""The checks of a rename, with the errors of a kernel. They send no request."""

from __future__ import annotations

import errno

from quine.files.api import error


def moves(source: str, folder: bool, target: str, if_absent: bool) -> bool:
    """Return False if `source` is `target` and nothing is to do. `folder`: the source is a directory.

    Raises OSError: EINVAL, ENOTDIR, EEXIST, EISDIR, ENOTEMPTY.
    """
    if not source:
        raise error(errno.EINVAL, source)
    if target.startswith(source + "/"):
        raise error(errno.EINVAL if folder else errno.ENOTDIR, source if folder else target)
    if if_absent and target in ("", source):
        raise error(errno.EEXIST, target)
    if not target:
        raise error(errno.ENOTEMPTY if folder else errno.EISDIR, target)
    return target != source


def replaces(folder: bool, there: bool, target: str, if_absent: bool) -> None:
    """Raise EEXIST, EISDIR or ENOTDIR if the source may not replace the existing target.

    `folder`: the source is a directory; `there`: the target is one. Whether it is empty is not checked here.
    """
    if if_absent:
        raise error(errno.EEXIST, target)
    if folder != there:
        raise error(errno.ENOTDIR if folder else errno.EISDIR, target)
