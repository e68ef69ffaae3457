"""Requests of the kernel that change something: drafts that become files, and changes of names.

Laws
1. The close of a file commits it, and reports the outcome. Only the last close of the process that opened it does so:
   a shell closes a descriptor that it has just duplicated, and a child those that it inherited.
2. O_EXCL is decided at creation: an empty file is created in the store in one step, and one of many callers wins.
3. Modes and times are changed in the store without the content; those of directories are not kept.
"""

from __future__ import annotations

import errno
import os
import time

from quine.files.api import BLOCK, Entry, error
from quine.files.layers.reserved import others
from quine.files.room import NO_ROOM
from quine.mount import protocol
from quine.mount.handles import holds_still, process_of
from quine.mount.inodes import Node
from quine.mount.protocol import Op, Request
from quine.mount.reading import Parts, attr_of, entry_of, hold_draft
from quine.mount.state import State
from quine.mount.writeback import Draft

# -- files


def create(state: State, request: Request) -> Parts:
    flags, mode = request.args[:2]
    path = others(state.below(request.node, request.names[0]))  # its close would raise too late
    mode &= 0o777
    base: Entry | None = None
    if flags & os.O_EXCL:
        base = _create_empty(state, path, mode)
    draft = Draft(path, base, mode)
    draft.begin()
    draft.dirty = base is None
    try:
        state.reserved.take(draft, 0)
    except OSError:
        draft.close()
        raise
    node = state.start_draft(draft, Entry(path, "file", mode=mode))
    number = hold_draft(state, node, draft, request.pid, True)
    return (entry_of(state, node), protocol.opened(number))


def mknod(state: State, request: Request) -> Parts:
    path = state.below(request.node, request.names[0])
    kind = request.args[0] & 0o170000
    if kind not in (0, 0o100000):
        raise error(errno.EPERM, path)  # a store holds no pipes, sockets or devices
    entry = _create_empty(state, path, request.args[0] & 0o777)
    with state.lock:
        return (entry_of(state, state.nodes.of(entry)),)


def _create_empty(state: State, path: str, mode: int) -> Entry:
    """Create an empty file. Raises EEXIST."""
    with state.tier.create(path, if_absent=True, mode=mode, size=0) as writer:
        entry = writer.commit()
    state.changed(path)
    return entry


def write(state: State, request: Request) -> Parts:
    number, offset = request.args[:2]
    draft = _draft(state, number)
    size = len(request.data)
    with draft.lock:
        try:
            state.reserved.take(draft, offset + size, size)
            return (protocol.written(draft.write(request.data, offset, state.tier.most)),)
        except OSError as refused:
            draft.refused = refused
            raise


def fallocate(state: State, request: Request) -> Parts:
    number, offset, length, mode = request.args[:4]
    if mode not in (0, 1):
        raise error(errno.EOPNOTSUPP, "")
    draft = _draft(state, number)
    with draft.lock:
        if mode == 0 and offset + length > draft.attributes().size:
            state.reserved.take(draft, offset + length, length)
            draft.resize(offset + length)
    return ()


def _draft(state: State, number: int) -> Draft:
    handle = state.handle(number)
    if handle.draft is None or not handle.writes:
        raise error(errno.EBADF, handle.node.path)
    return handle.draft


def flush(state: State, request: Request) -> Parts:
    handle = state.handle(request.args[0])
    draft = handle.draft
    if draft is not None and handle.writes and draft.pending:
        process = process_of(request.pid)
        if process in (0, handle.owner) and not holds_still(process, draft.inode, draft.path):
            _commit(state, handle.node, draft)
    return ()


def fsync(state: State, request: Request) -> Parts:
    """Commit: data must be kept once fsync has returned."""
    handle = state.handle(request.args[0])
    if handle.draft is not None:
        _commit(state, handle.node, handle.draft)
    return ()


def _commit(state: State, node: Node, draft: Draft) -> None:
    with draft.lock:
        try:
            entry = draft.commit(state.tier)
        except OSError as full:
            # the room that is held for it may be all that it lacks
            if full.errno not in NO_ROOM or full is draft.refused or not state.reserved.make_way(draft):
                raise
            entry = draft.commit(state.tier)
    if entry is not None:
        state.reserved.give(draft)
        state.changed(draft.path)
        with state.lock:
            node.entry, node.path = entry, draft.path


def release(state: State, request: Request) -> Parts:
    number = request.args[0]
    with state.lock:
        handle = state.handles.get(number)
    if handle is None:
        return ()
    node, draft = handle.node, handle.draft
    if draft is not None and handle.writes and draft.writers == 1 and draft.pending:
        try:
            # No close has committed: the file went to another process, or its opener was killed.
            _commit(state, node, draft)
        except OSError as wrong:
            state.note(f"{draft.path}: not kept: {wrong.strerror}{_saved(draft)}")
    state.release(number)
    return ()


def _saved(draft: Draft) -> str:
    try:
        with draft.lock:
            path = draft.save()
    except OSError as wrong:
        return f"; nor here: {wrong.strerror}"
    return f"; the written data is in {path}" if path else ""


def setattr_(state: State, request: Request) -> Parts:
    valid, _, number, size = request.args[:4]
    mode, uid, gid = request.args[11], request.args[13], request.args[14]
    node = state.node(request.node)
    strange = (valid & protocol.SET_UID and uid != state.uid) or (
        valid & protocol.SET_GID and gid != state.gid
    )
    if strange:
        raise error(errno.EPERM, node.path)  # a store knows no owners
    if not node.entry.is_file:
        return (attr_of(state, node),)
    mtime: float | None = None
    if valid & protocol.SET_MTIME:
        now = valid & protocol.SET_MTIME_NOW
        mtime = time.time() if now else protocol.time_of(request.args[6], request.args[9])
    draft = node.draft
    if valid & protocol.SET_BY_HANDLE:
        draft = state.handle(number).draft or draft
    wanted = valid & (protocol.SET_SIZE | protocol.SET_MODE | protocol.SET_MTIME)
    new_size = size if valid & protocol.SET_SIZE else None
    new_mode = mode & 0o777 if valid & protocol.SET_MODE else None
    if wanted and draft is not None and draft.users:
        with draft.lock:
            if new_size is not None:
                state.reserved.take(draft, new_size)
                draft.resize(new_size)
            if new_mode is not None or mtime is not None:
                draft.alter(new_mode, mtime)
        if not draft.writers:  # no close will commit it
            _commit(state, node, draft)
    elif new_size is not None and new_size != node.entry.size:
        _resize(state, node, new_size, new_mode, mtime)
    elif mtime is not None or (new_mode is not None and new_mode != node.entry.mode):
        _renew(state, node, state.tier.setattr(node.path, mode=new_mode, mtime=mtime))
    return (attr_of(state, node),)


def _resize(state: State, node: Node, size: int, mode: int | None, mtime: float | None) -> None:
    """Replace a file by itself with another length, in one step."""
    with state.tier.open(node.path) as reader:
        old = reader.entry
        mode = old.mode if mode is None else mode
        with state.tier.create(node.path, mode=mode, mtime=mtime, size=size) as writer:
            left = min(size, old.size)
            while left:
                block = reader.read(min(BLOCK, left))
                if not block:
                    raise error(errno.EIO, node.path)
                writer.write(block)
                left -= len(block)
            if size > old.size:
                writer.hole(size - old.size)
            entry = writer.commit()
    _renew(state, node, entry)


def _renew(state: State, node: Node, entry: Entry) -> None:
    """Take over new attributes, and hide the node: its pages may be out of date, so the next lookup gets another."""
    state.changed(node.path)
    with state.lock:
        state.nodes.hide(node)
        size = node.entry.size if node.opened else entry.size  # readers of the old version read it to its end
        node.entry = node.entry._replace(mode=entry.mode, mtime=entry.mtime, size=size)


# -- names


def mkdir(state: State, request: Request) -> Parts:
    path = state.below(request.node, request.names[0])
    state.tier.mkdir(path)
    state.changed(path)
    entry = Entry(path, "directory", mode=0o755)
    try:
        entry = state.stat(path)
    except FileNotFoundError:
        pass  # removed again already
    with state.lock:
        return (entry_of(state, state.nodes.of(entry)),)


def unlink(state: State, request: Request) -> Parts:
    path = state.below(request.node, request.names[0])
    drafts = state.drafts(path)
    try:
        if not drafts and not state.stat(path).is_file:
            raise error(errno.EISDIR, path)
        state.tier.remove(path)
    except FileNotFoundError:
        if not drafts:
            raise
    state.removed(path)
    state.changed(path)
    return ()


def rmdir(state: State, request: Request) -> Parts:
    path = state.below(request.node, request.names[0])
    if state.stat(path).is_file:
        raise error(errno.ENOTDIR, path)
    state.expect_no_drafts_below(path)
    state.tier.remove(path)
    state.removed(path)
    state.changed(path)
    return ()


def rename(state: State, request: Request) -> Parts:
    flags = request.args[1] if request.op == Op.RENAME2 else 0
    source = state.below(request.node, request.names[0])
    target = state.below(request.args[0], request.names[1])
    if flags & ~protocol.NO_REPLACE:
        raise error(errno.EINVAL, source)
    if source == target:
        return ()
    state.expect_no_drafts_below(target)
    drafts = state.drafts(source)
    try:
        state.tier.rename(source, target, if_absent=bool(flags & protocol.NO_REPLACE))
    except FileNotFoundError:
        if not drafts:
            raise  # a draft not yet committed only changes its name
    state.moved(source, target)
    state.changed(source)
    state.changed(target)
    return ()
