"""What a mounted tier holds: its nodes, its open files, its drafts, and the small files that were read last.

Laws
1. One lock for all tables, held for no operation of the tier and for no wait.
2. A draft is found by the thread that it was made for (reopen.py), and by the processes that have it open; by nobody
   else.
3. What is kept of files that nobody has open is bounded, and used only after the store has said that it is current.
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
from quine.mount.writeback import Draft

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = 64 << 20  # bytes of files that nobody has open


class State:
    def __init__(self, tier: Tier, note: Callable[[str], None] = lambda text: None) -> None:
        self.tier = tier
        self.note = note
        self.lock = threading.RLock()
        self.nodes = Nodes()
        self.handles = Handles()
        self.again = Again(self)
        self.locks = Locks()
        self.given: Callable[[int], None] = lambda unique: None  # who waited for a lock has it
        self.uid, self.gid = os.getuid(), os.getgid()
        self._drafts: dict[str, list[Node]] = {}
        self._kept: OrderedDict[tuple[str, str], Content] = OrderedDict()
        self._kept_bytes = 0

    # -- names

    def node(self, number: int) -> Node:
        """ESTALE where the kernel speaks of one that it has forgotten."""
        with self.lock:
            node = self.nodes.get(number)
        if node is None:
            raise error(errno.ESTALE, "")
        return node

    def below(self, parent: int, name: bytes) -> str:
        """The path of a name in a directory."""
        node = self.node(parent)
        text = os.fsdecode(name)
        if "/" in text or text in (".", ".."):
            raise error(errno.EINVAL, text)
        return paths.clean(paths.join(node.path, text))

    def stat(self, path: str) -> Entry:
        """The root is there also where the store has nothing yet."""
        try:
            return self.tier.stat(path)
        except FileNotFoundError:
            if path:
                raise
            return Entry("", "directory", mode=0o755)

    def told(self, entry: Entry) -> Node:
        """The node of what the store has told at this moment."""
        with self.lock:
            node = self.nodes.of(entry)
            node.checked = time.monotonic()
            return node

    def changed(self, path: str) -> None:
        """We have changed something in the directory of this path."""
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
        """A handle and what it holds are let go of; once."""
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
        """Something was let go of."""
        with self.lock:
            for unique in self.locks.turns():
                self.given(unique)

    def open_content(self, node: Node) -> Content:
        """What is read of a version, one more user of it. ESTALE where another version is there now."""
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
            other = node.content  # somebody was quicker
            if other is None:
                node.content = fresh
            used = other or fresh
            used.users += 1
        if used is not fresh:
            fresh.close()
        return used

    def hold_content(self, node: Node) -> Content | None:
        """What somebody reads of a version, one more user of it; None where nobody does."""
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
        """Those of a path."""
        with self.lock:
            return [node for node in self._drafts.get(path, ()) if node.draft is not None]

    def expect_no_drafts_below(self, path: str) -> None:
        """A directory with a file in it that is to come at its close is not empty. ENOTEMPTY."""
        with self.lock:
            below = [known for known in self._drafts if known.startswith(path + "/")]
            if any(
                node.draft is not None and node.draft.users for known in below for node in self._drafts[known]
            ):
                raise error(errno.ENOTEMPTY, path)

    def draft_for(self, path: str, thread: int) -> Node | None:
        """The one that this thread sees in place of the file."""
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
        """Nobody has it open any more: it is the version that it has become, or nothing."""
        with self.lock:
            draft = node.draft
            assert draft is not None
            self._unlist(node, draft.path)
            node.draft = None
            if draft.base is not None and not draft.orphan and not draft.dirty and draft.loaded:
                self.nodes.settle(node, draft.base)
            draft.close()
            self.nodes.drop(node)

    def _unlist(self, node: Node, path: str) -> None:
        listed = self._drafts.get(path, [])
        if node in listed:
            listed.remove(node)
        if not listed:
            self._drafts.pop(path, None)

    def removed(self, path: str) -> None:
        """Drafts of that name, or below it, end with their descriptors."""
        with self.lock:
            for known in [known for known in self._drafts if paths.within(known, path)]:
                for node in self._drafts.pop(known):
                    if node.draft is not None:
                        node.draft.orphan = True

    def moved(self, source: str, target: str) -> None:
        """After a rename: drafts will be what they are called now."""
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
