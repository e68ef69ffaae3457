"""Dispatch: the function for each kind of request, the requests answered at once, and the undoing of unread answers.

Laws
1. A kind that is missing here is answered ENOSYS, which the kernel remembers: extended attributes, ioctl, seeking for
   holes.
2. A request is answered at once only if it waits for nothing: no store, and no lock that is held during a store call.
3. An answer that the kernel did not take is undone: a node that was counted, a handle that was opened.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

from quine.files.api import error
from quine.mount import reading, writing
from quine.mount.protocol import Op, Request
from quine.mount.reading import Parts
from quine.mount.state import State


def _refused(state: State, request: Request) -> Parts:
    raise error(errno.EPERM, "")


def _nothing(state: State, request: Request) -> Parts:
    return ()


OPERATIONS: dict[int, Callable[[State, Request], Parts]] = {
    Op.LOOKUP: reading.lookup,
    Op.GETATTR: reading.getattr_,
    Op.OPEN: reading.open_,
    Op.READ: reading.read,
    Op.OPENDIR: reading.opendir,
    Op.READDIR: reading.readdir,
    Op.READDIRPLUS: reading.readdir,
    Op.RELEASEDIR: writing.release,
    Op.STATFS: reading.statfs,
    Op.SETATTR: writing.setattr_,
    Op.MKNOD: writing.mknod,
    Op.MKDIR: writing.mkdir,
    Op.UNLINK: writing.unlink,
    Op.RMDIR: writing.rmdir,
    Op.RENAME: writing.rename,
    Op.RENAME2: writing.rename,
    Op.CREATE: writing.create,
    Op.WRITE: writing.write,
    Op.FALLOCATE: writing.fallocate,
    Op.FLUSH: writing.flush,
    Op.FSYNC: writing.fsync,
    Op.FSYNCDIR: _nothing,
    Op.RELEASE: writing.release,
    Op.SYMLINK: _refused,
    Op.LINK: _refused,
    Op.DESTROY: _nothing,
}


def perform(state: State, request: Request) -> Parts:
    """Return the answer. Raises OSError."""
    operation = OPERATIONS.get(request.op)
    if operation is None:
        raise error(errno.ENOSYS, "")
    return operation(state, request)


def is_quick(state: State, request: Request) -> bool:
    """Return whether the request can be answered without waiting."""
    op = request.op
    if op not in OPERATIONS or op in (Op.STATFS, Op.OPENDIR, Op.RELEASEDIR, Op.FSYNCDIR, Op.SYMLINK, Op.LINK):
        return True
    with state.lock:
        if op == Op.GETATTR:
            node = state.nodes.get(request.node)
            return node is None or reading.is_fresh(node)
        if op not in (Op.READ, Op.WRITE, Op.FLUSH, Op.RELEASE):
            return False
        handle = state.handles.get(request.args[0])
        if handle is None:
            return True
        if op == Op.READ and handle.content is not None:
            return handle.content.ready(*request.args[1:3])
        draft = handle.draft
        if op in (Op.FLUSH, Op.RELEASE):
            content = handle.content  # an incomplete one has a reader, whose close may wait
            return draft is None and (content is None or content.ready(0, content.size))
        if draft is None or not draft.lock.acquire(blocking=False):
            return draft is None
        try:  # it is free, and only this thread hands out work
            size = len(request.data)
            return op == Op.READ or state.reserved.covers(draft, request.args[1] + size, size)
        finally:
            draft.lock.release()


def undo(state: State, request: Request, parts: Parts) -> None:
    """Undo an answer that the kernel did not take."""
    if not parts:
        return
    answer = b"".join(parts)
    if request.op in (Op.LOOKUP, Op.MKNOD, Op.MKDIR, Op.CREATE):
        with state.lock:
            state.nodes.forget(int.from_bytes(answer[:8], sys.byteorder), 1)
    if request.op in (Op.OPEN, Op.OPENDIR, Op.CREATE):
        at = 128 if request.op == Op.CREATE else 0
        number = int.from_bytes(answer[at : at + 8], sys.byteorder)
        writing.release(state, request._replace(args=(number,)))
