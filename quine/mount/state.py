"""The state of a mount: its nodes, its open files, its drafts, and the small files that were read last.

Laws
1. One lock protects all tables; it is held during no call of the store and during no wait.
2. A draft is visible to the thread that it was made for (reopen.py), and to the processes that have it open; to no
   others.
3. Contents kept of files that are not open are bounded, and used only after the store has said that they are current.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict

from quine.files import paths
from quine.files.api import Entry, Tier, error, stale
from quine.mount.cache import Content
from quine.mount.handles import Handle, Handles, process_of
from quine.mount.inodes import Node, Nodes
from quine.mount.locks import Locks
from quine.mount.reopen import Again
from quine.mount.writeback import Draft, Reserved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = 64 << 20  # bytes of contents kept of files that are not open


class State:
    def __init__(self, tier: Tier, note: Callable[[str], None] = lambda text: None) -> None:
        self.tier = tier
        self.note = note
        self.lock = threading.RLock()
        self.nodes = Nodes()
        self.handles = Handles()
        self.again = Again(self)
        self.locks = Locks()
        self.reserved = Reserved(tier)
        self.given: Callable[[int], None] = lambda unique: None  # a waiting request got its lock
        self.uid, self.gid = os.getuid(), os.getgid()
        self._drafts: dict[str, list[Node]] = {}
        self._kept: OrderedDict[tuple[str, str], Content] = OrderedDict()
        self._kept_bytes = 0

    # -- names

    def node(self, number: int) -> Node:
        """Return a node. Raises ESTALE if it has been forgotten."""
        with self.lock:
            node = self.nodes.get(number)
        if node is None:
            raise error(errno.ESTALE, "")
        return node

    def below(self, parent: int, name: bytes) -> str:
        """Return the path of a name in a directory."""
        node = self.node(parent)
        text = os.fsdecode(name)
        if "/" in text or text in (".", ".."):
            raise error(errno.EINVAL, text)
        return paths.clean(paths.join(node.path, text))

    def stat(self, path: str) -> Entry:
        """Return the entry of a path. The root exists even if the store is empty."""
        try:
            return self.tier.stat(path)
        except FileNotFoundError:
            if path:
                raise
            return Entry("", "directory", mode=0o755)

    def told(self, entry: Entry) -> Node:
        """Return the node of an entry that the store has returned at this moment."""
        with self.lock:
            node = self.nodes.of(entry)
            node.checked = time.monotonic()
            return node

    def changed(self, path: str) -> None:
        """Note that we have changed the directory of this path: its attributes are to be asked again."""
        with self.lock:
            directory = self.nodes.directory(paths.parent(path))
            if directory is not None:
                directory.checked = 0.0

    # -- handles

    def handle(self, number: int) -> Handle:
        with self.lock:
            handle = self.handles.get(number)
        if handle is None:
            raise error(errno.EBADF, "")
        return handle

    def release(self, number: int) -> None:
        """Release a handle and everything that it holds; once."""
        with self.lock:
            handle = self.handles.pop(number)
            if handle is None:
                return
            node, draft = handle.node, handle.draft
            self.locks.release(number)
        self.next_locks()
        if handle.content is not None:
            self.close_content(node, handle.content)
        with self.lock:
            node.opened -= 1
            if draft is not None:
                draft.users -= 1
                draft.writers -= handle.writes
                if not draft.users and node.draft is draft:
                    self.end_draft(node)
            self.nodes.drop(node)

    def next_locks(self) -> None:
        """Give locks to waiting requests, after something was released."""
        with self.lock:
            for unique in self.locks.turns():
                self.given(unique)

    def open_content(self, node: Node) -> Content:
        """Return the content of a version, with one more user. Raises ESTALE if another version is there now."""
        with self.lock:
            known = node.content or self._kept.get((node.path, node.entry.version))
        if known is not None and self.tier.stat(node.path).version != known.entry.version:
            raise stale(node.path)
        with self.lock:
            known = node.content or self._unkeep((node.path, node.entry.version))
            if known is not None:
                node.content = known
                known.users += 1
                return known
        fresh = Content(self.tier, node.path, node.entry)
        with self.lock:
            other = node.content  # another thread was faster
            if other is None:
                node.content = fresh
            used = other or fresh
            used.users += 1
        if used is not fresh:
            fresh.close()
        return used

    def hold_content(self, node: Node) -> Content | None:
        """Return the open content of a version, with one more user; None if nothing reads it."""
        with self.lock:
            if node.content is not None:
                node.content.users += 1
            return node.content

    def close_content(self, node: Node, content: Content) -> None:
        with self.lock:
            content.users -= 1
            if content.users:
                return
            if node.content is content:
                node.content = None
            key = (node.path, content.entry.version)
            if content.whole and key not in self._kept:
                self._kept[key] = content
                self._kept_bytes += content.size
                spare = []
                while self._kept_bytes > KEPT or len(self._kept) > 256:
                    _, oldest = self._kept.popitem(last=False)
                    self._kept_bytes -= oldest.size
                    spare.append(oldest)
            else:
                spare = [content]
        for each in spare:
            each.close()

    def _unkeep(self, key: tuple[str, str]) -> Content | None:
        content = self._kept.pop(key, None)
        if content is not None:
            self._kept_bytes -= content.size
        return content

    # -- drafts

    def drafts(self, path: str) -> list[Node]:
        """Return the nodes of a path that have a draft."""
        with self.lock:
            return [node for node in self._drafts.get(path, ()) if node.draft is not None]

    def expect_no_drafts_below(self, path: str) -> None:
        """Raise ENOTEMPTY if a directory will get a file at its close: it is not empty."""
        with self.lock:
            below = [known for known in self._drafts if known.startswith(path + "/")]
            if any(
                node.draft is not None and node.draft.users for known in below for node in self._drafts[known]
            ):
                raise error(errno.ENOTEMPTY, path)

    def draft_for(self, path: str, thread: int) -> Node | None:
        """Return the draft that this thread sees in place of the file."""
        nodes = self.drafts(path)
        if not nodes:
            return None
        process = process_of(thread)
        for node in nodes:
            if node.draft is not None and node.draft.users and process in node.draft.owners:
                return node
        return None

    def start_draft(self, draft: Draft, entry: Entry) -> Node:
        with self.lock:
            node = self.nodes.make(entry)
            node.draft = draft
            self._drafts.setdefault(draft.path, []).append(node)
            return node

    def end_draft(self, node: Node) -> None:
        """End a draft that is open nowhere: its node becomes the committed version, or goes."""
        with self.lock:
            draft = node.draft
            assert draft is not None
            self._unlist(node, draft.path)
            node.draft = None
            if draft.base is not None and not draft.orphan and not draft.dirty and draft.loaded:
                self.nodes.settle(node, draft.base)
            draft.close()
            self.reserved.give(draft)
            self.nodes.drop(node)

    def _unlist(self, node: Node, path: str) -> None:
        listed = self._drafts.get(path, [])
        if node in listed:
            listed.remove(node)
        if not listed:
            self._drafts.pop(path, None)

    def removed(self, path: str) -> None:
        """Orphan the drafts of that name or below it: they end with their descriptors."""
        with self.lock:
            for known in [known for known in self._drafts if paths.within(known, path)]:
                for node in self._drafts.pop(known):
                    if node.draft is not None:
                        node.draft.orphan = True
                        self.reserved.give(node.draft)

    def moved(self, source: str, target: str) -> None:
        """Apply a rename to drafts, nodes and locks: a draft is committed under its new name."""
        with self.lock:
            self.removed(target)
            for known in [known for known in self._drafts if paths.within(known, source)]:
                path = paths.moved(known, source, target)
                listed = self._drafts.pop(known)
                self._drafts.setdefault(path, []).extend(listed)
                for node in listed:
                    if node.draft is not None:
                        node.draft.path = path
            self.nodes.moved(source, target)
            self.locks.moved(source, target)
