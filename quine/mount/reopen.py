"""Second lookups: state of threads whose open() was answered ESTALE, because the file was replaced.

Laws
1. The kernel looks the name up once more; a second ESTALE would reach the program. So that lookup opens the file and
   holds it for the thread. The thread's open takes this very file, even if it is replaced in between.
2. The file found was opened after the thread had begun its open, so it is not older than the thread may see.
3. A name that is gone by then is ENOENT to the lookup and not to the open, so that O_CREAT creates it.
4. State that no thread comes for is dropped, later.
"""

from __future__ import annotations

import errno
import time

from quine.files.api import Entry, stale
from quine.mount.cache import Content
from quine.mount.inodes import Node
from quine.mount.writeback import Draft

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Protocol

    from quine.files.api import Entry, Tier
    from quine.mount.inodes import Nodes

    class State(Protocol):
        """`quine.mount.state.State`, as second lookups use it."""

        tier: Tier
        nodes: Nodes
        lock: threading.RLock

        def stat(self, path: str) -> Entry: ...
        def told(self, entry: Entry) -> Node: ...
        def start_draft(self, draft: Draft, entry: Entry) -> Node: ...
        def end_draft(self, node: Node) -> None: ...
        def close_content(self, node: Node, content: Content) -> None: ...


LOOKS = 3600.0  # seconds until the lookup: directories above are looked up first, and a link may be down
OPENS = 60.0  # seconds from then until the open: the kernel sends nothing in between
TRIES = 8  # attempts for a small file that a program modifies in place, in the store's directory


class Told:
    """State of one thread and path. `node` is held for it, with `content` if it reads."""

    __slots__ = ("base", "content", "empty", "node", "until", "writes")

    def __init__(self, base: Entry, writes: bool, empty: bool) -> None:
        self.base = base
        self.writes = writes
        self.empty = empty  # opened with O_TRUNC: it needs no content
        self.until = time.monotonic() + LOOKS
        self.node: Node | None = None
        self.content: Content | None = None


class Again:
    """The table, by thread and path. Files of the store are opened without `State.lock`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: dict[tuple[int, str], Told] = {}

    def __len__(self) -> int:
        return len(self._told)

    def tell(self, node: Node, thread: int, writes: bool = False, empty: bool = False) -> OSError:
        """Register the thread, and return the ESTALE that makes it look again."""
        with self._state.lock:
            now = time.monotonic()
            for key in [key for key, told in self._told.items() if told.until < now]:
                self._end(key)
            key = (thread, node.path)
            known = self._told.get(key)
            by_descriptor = known is not None and known.node is None  # it did not look, and will not
            self._end(key)
            if not by_descriptor:
                self._told[key] = Told(node.entry, writes, empty)
        return stale(node.path)

    def was_told(self, node: Node, thread: int) -> bool:
        """Return whether the thread was told and opens without a lookup, that is, by a descriptor."""
        with self._state.lock:
            told = self._told.get((thread, node.path))
            return told is not None and told.node is None

    def find(self, path: str, thread: int) -> Node | None:
        """Open the file there now, held for this thread; None if it was not told. OSError also ends its state."""
        key = (thread, path)
        with self._state.lock:
            told = self._told.get(key)
            if told is None or told.until < time.monotonic():
                self._end(key)
                return None
            if told.writes and told.node is not None:
                return told.node
        try:
            node, content = self._opened(path, told)
        except OSError:
            with self._state.lock:
                self._end(key)
            raise
        with self._state.lock:
            self._let_go(told)
            told.node, told.content, told.until = node, content, time.monotonic() + OPENS
            if self._told.get(key) is not told:  # another, not distinguishable (pid 0), was faster
                self._let_go(told)
            return node

    def take(self, node: Node, thread: int, writes: bool) -> Content | None:
        """Return the content held for a thread that opens its node; it belongs to the caller from now on."""
        with self._state.lock:
            for key, told in self._told.items():  # not by path: a rename may have changed it
                if key[0] == thread and told.node is node and told.writes == writes:
                    del self._told[key]
                    if told.content is not None:
                        node.opened -= 1
                    return told.content
        return None

    def _opened(self, path: str, told: Told) -> tuple[Node, Content | None]:
        for left in reversed(range(TRIES)):
            try:
                return (self._draft(path, told), None) if told.writes else self._version(path)
            except OSError as wrong:
                if wrong.errno not in (errno.ESTALE, errno.EISDIR) or not left:
                    raise
                if wrong.errno == errno.EISDIR and not (entry := self._state.stat(path)).is_file:
                    return self._state.told(entry), None  # a directory: nothing to hold
        raise stale(path)

    def _draft(self, path: str, told: Told) -> Node:
        draft = Draft(path, told.base)
        if not told.empty:
            draft.load(self._state.tier)
        return self._state.start_draft(draft, draft.base or told.base)

    def _version(self, path: str) -> tuple[Node, Content]:
        fresh = Content(self._state.tier, path)
        with self._state.lock:
            node = self._state.nodes.of(fresh.entry)
            node.opened += 1
            if node.content is None:
                node.content = fresh
            used = node.content
            used.users += 1
        if used is not fresh:
            fresh.close()
        return node, used

    def _end(self, key: tuple[int, str]) -> None:
        told = self._told.pop(key, None)
        if told is not None:
            self._let_go(told)

    def _let_go(self, told: Told) -> None:
        node, content = told.node, told.content
        told.node = told.content = None
        if node is None:
            return
        if content is not None:
            node.opened -= 1
            self._state.close_content(node, content)
            self._state.nodes.drop(node)
        elif node.draft is not None and not node.draft.users:
            self._state.end_draft(node)
