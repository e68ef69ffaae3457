"""The table of nodes that the kernel knows. A node is a directory, one version of a file, or a draft of one.

Laws
1. A replaced file becomes another node, so that readers of the old one keep its pages, its size and its end.
2. A node lives as long as the kernel counts a lookup of it, or a handle has it open.
3. Every method is called with `State.lock` held.
"""

from __future__ import annotations

import stat

from quine.files import paths
from quine.files.api import Entry
from quine.mount import protocol
from quine.mount.protocol import ROOT, inode_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.mount.cache import Content
    from quine.mount.writeback import Draft

Key = tuple[str, str]


class Node:
    __slots__ = ("checked", "content", "draft", "entry", "id", "key", "lookups", "opened", "path")

    def __init__(self, number: int, entry: Entry, key: Key | None) -> None:
        self.id = number
        self.path = entry.path
        self.entry = entry
        self.key = key  # its key in the table; None for a draft and for a replaced version
        self.lookups = 0
        self.opened = 0
        self.checked = 0.0  # when the store was last asked about a directory
        self.draft: Draft | None = None  # while it is written
        self.content: Content | None = None  # while it is read

    def attributes(self) -> protocol.Attributes:
        if self.draft is not None:
            return self.draft.attributes()
        return attributes(self.entry)


def attributes(entry: Entry) -> protocol.Attributes:
    """Return the attributes of an entry. The inode number is that of the path, as if files were written in place."""
    kind = stat.S_IFREG if entry.is_file else stat.S_IFDIR
    size = entry.size if entry.is_file else 4096
    return protocol.Attributes(inode_of(entry.path), kind | entry.mode & 0o777, size, entry.mtime)


class Nodes:
    def __init__(self) -> None:
        root = Node(ROOT, Entry("", "directory", mode=0o755), ("", ""))
        root.lookups = 1
        self._by_id: dict[int, Node] = {ROOT: root}
        self._by_key: dict[Key, Node] = {("", ""): root}
        self._last = ROOT

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, number: int) -> Node | None:
        return self._by_id.get(number)

    def of(self, entry: Entry) -> Node:
        """Return the node of this version, and create it if there is none."""
        key = (entry.path, _version(entry))
        node = self._by_key.get(key)
        if node is None:
            node = self._by_key[key] = self.make(entry, key)
        else:
            node.entry = entry
        return node

    def make(self, entry: Entry, key: Key | None = None) -> Node:
        """Create a node, which is found by its path only if a key is given."""
        self._last += 1
        node = self._by_id[self._last] = Node(self._last, entry, key)
        return node

    def directory(self, path: str) -> Node | None:
        """Return the node of a directory, if the kernel knows it."""
        return self._by_key.get((path, ""))

    def settle(self, node: Node, entry: Entry) -> None:
        """Make a draft's node that of the committed version, whose pages the kernel has. Lookups find it now."""
        node.entry, node.path = entry, entry.path
        key = (entry.path, _version(entry))
        if node.key is None and key not in self._by_key and node.id in self._by_id:
            node.key = key
            self._by_key[key] = node

    def forget(self, number: int, count: int) -> None:
        node = self._by_id.get(number)
        if node is not None and number != ROOT:
            node.lookups = max(0, node.lookups - count)
            self.drop(node)

    def drop(self, node: Node) -> None:
        """Remove a node that nothing needs any more."""
        if node.lookups or node.opened or node.draft is not None or node.id == ROOT:
            return
        self._by_id.pop(node.id, None)
        self.hide(node)

    def hide(self, node: Node) -> None:
        """Take a node out of the table by path, which names something else now."""
        if node.key is not None and self._by_key.get(node.key) is node:
            del self._by_key[node.key]
        node.key = None

    def moved(self, source: str, target: str) -> None:
        """Apply a rename: nodes at or below `source` move to `target`, and those that were there are hidden."""
        for node in list(self._by_id.values()):
            if node.key is not None and paths.within(node.path, target):
                self.hide(node)
        for node in list(self._by_id.values()):
            if not paths.within(node.path, source):
                continue
            path = paths.moved(node.path, source, target)
            key = node.key
            self.hide(node)
            node.path, node.entry = path, node.entry._replace(path=path)
            if key is not None and (path, key[1]) not in self._by_key:
                node.key = (path, key[1])
                self._by_key[node.key] = node


def _version(entry: Entry) -> str:
    """Return the version part of a key: the content's version and the stat of a file, "" for a directory."""
    return f"{entry.version} {entry.mode} {entry.mtime} {entry.size}" if entry.is_file else ""
