"""Requests of the kernel that change nothing: names, attributes, listings, and the content of open files.

Laws
1. A name is looked up in the store each time, so that the next open sees what was committed elsewhere. Only directories
   and freshly listed entries are believed for a second.
2. Opening asks the store again. If it has another version now, the kernel is told to look once more (ESTALE), and opens
   the version found then (reopen.py). No program sees an error because a file was replaced.
3. The attributes of a version never change; a draft shows its own to the processes that have it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from quine.files import paths
from quine.files.api import Entry, error
from quine.mount import protocol
from quine.mount.cache import Content
from quine.mount.handles import Handle, process_of
from quine.mount.inodes import Node, attributes
from quine.mount.protocol import Op, Request, inode_of
from quine.mount.state import State
from quine.mount.writeback import Draft

Parts = tuple["bytes | memoryview", ...]

BELIEVED = 1  # seconds
_REPLACED = (errno.ESTALE, errno.ENOENT, errno.EISDIR, errno.ENOTDIR)  # the name means something else now


def lookup(state: State, request: Request) -> Parts:
    path = state.below(request.node, request.names[0])
    node = state.again.find(path, request.pid) or state.draft_for(path, request.pid)
    if node is not None:
        with state.lock:
            # A draft of another thread may have ended and been forgotten meanwhile; its number would be ESTALE
            if state.nodes.get(node.id) is node:
                return (entry_of(state, node),)
    entry = state.stat(path)
    with state.lock:
        return (entry_of(state, state.told(entry)),)


def is_fresh(node: Node) -> bool:
    """Return whether its attributes can be answered without asking the store."""
    return node.entry.is_file or time.monotonic() - node.checked < BELIEVED


def entry_of(state: State, node: Node, seconds: int | None = None) -> bytes:
    """Return a node as the answer to a lookup, and count that lookup, as the kernel does."""
    with state.lock:
        node.lookups += 1
        if seconds is None:
            seconds = 0 if node.entry.is_file else BELIEVED
        attr = protocol.attributes(node.attributes(), state.uid, state.gid)
        return protocol.entry(node.id, attr, seconds, _attr_seconds(node))


def getattr_(state: State, request: Request) -> Parts:
    node = state.node(request.node)
    if not is_fresh(node):
        node.checked = time.monotonic()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            entry = state.stat(node.path)
            if not entry.is_file:
                node.entry = entry
        # else it was removed, and stays as it was for processes that have it open; the next lookup of its name tells
    return (attr_of(state, node),)


def attr_of(state: State, node: Node) -> bytes:
    with state.lock:
        attr = protocol.attributes(node.attributes(), state.uid, state.gid)
        return protocol.attr_out(attr, _attr_seconds(node))


def _attr_seconds(node: Node) -> int:
    """Return how long the kernel may keep attributes: 0 for drafts, and for directories, which a close may change."""
    return BELIEVED if node.entry.is_file and node.draft is None else 0


def statfs(state: State, request: Request) -> Parts:
    """Answer fixed numbers. A store does not report its space: there is room until it refuses a write."""
    return (protocol.statfs(protocol.PAGE, 1 << 40, 1 << 39, paths.LONGEST_NAME),)


# -- files


def open_(state: State, request: Request) -> Parts:
    node, flags = state.node(request.node), request.args[0]
    if not node.entry.is_file:
        raise error(errno.EISDIR, node.path)
    empty = bool(flags & os.O_TRUNC)
    writes = flags & os.O_ACCMODE != os.O_RDONLY or empty
    content = state.again.take(node, request.pid, writes)
    if node.draft is not None:
        return (protocol.opened(open_draft(state, node, request.pid, writes, empty)),)
    if writes:  # a version may have readers; it writes to a draft, found by its next lookup
        raise state.again.tell(node, request.pid, writes, empty)
    content = content or _content(state, node, request.pid)
    with state.lock:
        node.opened += 1
        number = state.handles.add(Handle(node, content=content))
    return (protocol.opened(number, protocol.KEEP_CACHE),)


def _content(state: State, node: Node, thread: int) -> Content:
    try:
        return state.open_content(node)
    except OSError as wrong:
        if wrong.errno not in _REPLACED:
            raise
        if state.again.was_told(node, thread) and (held := state.hold_content(node)):
            return held  # opened by a descriptor of this very version
        raise state.again.tell(node, thread) from None


def open_draft(state: State, node: Node, thread: int, writes: bool, empty: bool) -> int:
    """Open one more handle of a draft."""
    with state.lock:
        draft = node.draft
        if draft is None:
            raise state.again.tell(node, thread, writes, empty)  # it was committed and ended meanwhile
        number = hold_draft(state, node, draft, thread, writes)
    try:
        with draft.lock:
            if empty:
                draft.begin()
                draft.resize(0)
            else:
                draft.load(state.tier)
    except OSError:
        state.release(number)
        raise
    return number


def hold_draft(state: State, node: Node, draft: Draft, thread: int, writes: bool) -> int:
    """Add a handle of a draft, which lives as long as any of its handles."""
    process = process_of(thread)
    with state.lock:
        draft.users += 1
        draft.writers += writes
        draft.owners.add(process)
        node.opened += 1
        return state.handles.add(Handle(node, draft=draft, writes=writes, owner=process))


def read(state: State, request: Request) -> Parts:
    number, offset, size = request.args[:3]
    handle = state.handle(number)
    if handle.draft is not None:
        with handle.draft.lock:
            return (handle.draft.read(offset, min(size, protocol.LARGEST)),)
    if handle.content is None:
        raise error(errno.EBADF, handle.node.path)
    return (handle.content.read(offset, min(size, protocol.LARGEST)),)


# -- directories


def opendir(state: State, request: Request) -> Parts:
    node = state.node(request.node)
    if node.entry.is_file:
        raise error(errno.ENOTDIR, node.path)
    with state.lock:
        node.opened += 1
        return (protocol.opened(state.handles.add(Handle(node))),)


def readdir(state: State, request: Request) -> Parts:
    """Answer from the listing taken when it was read from the beginning, as far as there is room."""
    number, offset, room = request.args[:3]
    handle = state.handle(number)
    if handle.listing is None or offset == 0:
        handle.listing = _listing(state, handle.node.path)
    plus = request.op == Op.READDIRPLUS
    packed: list[bytes] = []
    for index in range(offset, len(handle.listing)):
        name, entry = handle.listing[index]
        kind = stat.S_IFREG if entry.is_file else stat.S_IFDIR
        dirent = protocol.dirent(inode_of(entry.path), index + 1, kind, name)
        room -= len(dirent) + (128 if plus else 0)
        if room < 0:
            break
        if plus:
            dirent = _told(state, name, entry) + dirent
        packed.append(dirent)
    return (b"".join(packed),)


def _listing(state: State, path: str) -> list[tuple[bytes, Entry]]:
    listing = [(b".", Entry(path, "directory")), (b"..", Entry(paths.parent(path), "directory"))]
    prefix = path + "/" if path else ""
    for entry in state.tier.list(path):
        name = entry.path.removeprefix(prefix)
        # a store may return any name
        if paths.join(path, name) == entry.path and "/" not in name and "\0" not in name and name:
            encoded = os.fsencode(name)
            if len(encoded) <= paths.LONGEST_NAME and name not in (".", ".."):
                listing.append((encoded, entry))
    return listing


def _told(state: State, name: bytes, entry: Entry) -> bytes:
    """Return the entry that precedes a name in READDIRPLUS; `.` and `..` are not counted as lookups."""
    if name in (b".", b".."):
        return protocol.entry(0, protocol.attributes(attributes(entry), state.uid, state.gid), 0, 0)
    with state.lock:
        return entry_of(state, state.nodes.of(entry), 0 if state.drafts(entry.path) else BELIEVED)
