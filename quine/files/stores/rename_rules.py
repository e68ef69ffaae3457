"""What is wrong with a rename before any store is asked, for the stores that have no kernel to say it."""

from __future__ import annotations

import errno

from quine.files.api import error


def moves(source: str, folder: bool, target: str, if_absent: bool) -> bool:
    """Is there something to do? `folder`: what the source is. EINVAL, ENOTDIR, EEXIST, EISDIR, ENOTEMPTY."""
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
    """Something stands at the target, a directory if `there`. EEXIST, EISDIR, ENOTDIR; a full one is another matter."""
    if if_absent:
        raise error(errno.EEXIST, target)
    if folder != there:
        raise error(errno.ENOTDIR if folder else errno.EISDIR, target)
