"""Quota of a tree in the files tier: the bytes that it has put there, less those that it replaced or removed.

Each file counts as at least LEAST bytes: even an empty file takes a name and an inode, or is an object that is billed.

The count is in the shared counters of the tree (quine.budget.shared_counters), so all processes of the tree at the
origin share it: proxies of jobs elsewhere, and commands of agents here.

Laws
1. Bytes under way are reserved in a slot that dies with its holder. The store never keeps more than the limit, and a
   writer that is killed leaves nothing reserved.
2. Growth is counted before it is kept, shrinkage after it has happened. So a process that is killed in between may
   leave more counted than there is, never less.
3. While one process of the tree changes a path, no other process of the tree does, so nothing is counted twice.
   Changes from outside the tree are not counted.
4. A reservation that does not fit is refused at once. It does not wait: the requester itself may hold the rest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from quine.budget.limits import HALF_OF_FREE, stored
from quine.budget.shared_counters import Numbers, SharedCounters
from quine.files.api import Entry, Reader, Tier, Writer, error
from quine.files.layers.account import Account, Slot
from quine.files.room import AHEAD, Room, cost
from transport.inherit import link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.room import Held

NAME = "quine-quota"


_of_process: dict[int, SharedCounters] = {}  # of the jobs of this process that are of no tree, by their limit
_making = threading.Lock()


def bounded(tier: Tier, environ: Mapping[str, str], for_job: bool = False) -> Tier:
    """Wrap `tier` in the tree's quota: QUINE_FS_QUOTA as its root has set it. Raises Misconfigured if that is no size.

    Where it is not set, a command that a user gives outside of any tree has none, and jobs (`for_job`) have.
    """
    book = of_our_tree()
    if book is None:
        limit = stored(environ)
        if not limit or (limit == HALF_OF_FREE and not for_job):
            return tier
        book = _for_process(limit)
    _settle(book, tier)
    return Quota(tier, book) if book.numbers().limit_stored else tier


def _for_process(limit: int) -> SharedCounters:
    """Return the counters of the jobs of this process: those of a batch of commands have one quota."""
    with _making:
        book = _of_process.get(limit)
        if book is None or not _is_open(book.fd):
            numbers = Numbers(0, 0, 0, 0, 0.0, 0.0, limit_stored=limit)
            book = _of_process[limit] = SharedCounters.create(numbers, NAME)
        return book


def _is_open(fd: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}") == link(NAME)
    return False


def _settle(book: SharedCounters, tier: Tier) -> None:
    """Put a number of bytes in the place of HALF_OF_FREE; 0 if the store does not tell how much is free."""
    if book.numbers().limit_stored != HALF_OF_FREE:
        return
    free = tier.free()
    limit = 0 if free is None else max(1, free // 2)
    with book.changing() as facts:
        if facts.limit_stored == HALF_OF_FREE:
            book.put(facts._replace(limit_stored=limit))


def of_our_tree() -> SharedCounters | None:
    """Return the shared counters that this process inherited, or None; a detached process inherits them too."""
    from quine.budget.ledger import Ledger
    from quine.budget.limits import Limits

    ledger = Ledger.join(None, Limits())
    return ledger.book if ledger else None


class Quota(Tier):
    def __init__(self, tier: Tier, book: SharedCounters) -> None:
        self.url = tier.url
        self.copies = tier.copies
        self.most = book.numbers().limit_stored
        self._tier = tier
        self._account = Account(book)

    def stat(self, path: str) -> Entry:
        return self._tier.stat(path)

    def list(self, path: str) -> Iterator[Entry]:
        return self._tier.list(path)

    def walk(self, path: str) -> Iterator[Entry]:
        return self._tier.walk(path)

    def hidden(self, path: str) -> Iterator[str]:
        return self._tier.hidden(path)

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        return self._tier.open(path, offset, length)

    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        return self._tier.setattr(path, mode=mode, mtime=mtime)

    def url_of(self, path: str) -> str:
        return self._tier.url_of(path)

    def directory_here(self) -> str:
        return self._tier.directory_here()

    def close(self) -> None:
        self._tier.close()

    def reserve(self) -> Room:
        return _Room(self._tier.reserve(), self._account)

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        self._tier.mkdir(path, exist_ok)

    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        inner = self._tier.create(path, if_absent=if_absent, mode=mode, mtime=mtime, size=size)
        writer = _Writer(inner, self._tier, self._account, path, if_absent, size)
        try:
            writer.reserve(size or 0)
        except BaseException:
            writer.abort()
            raise
        return writer

    def remove(self, path: str, recursive: bool = False) -> None:
        with self._account.changing(path, alone=recursive):
            if not recursive:
                with self._going(path, _file(self._tier, path)):
                    self._tier.remove(path)
                return
            before = self._held(path)
            try:
                self._tier.remove(path, recursive)
            except OSError:  # some of it may be gone
                self._account.add(self._held(path) - before)
                raise
            self._account.add(-before)

    @contextlib.contextmanager
    def _going(self, path: str, before: Entry | None) -> Iterator[None]:
        """Uncount the file `before` once it is gone, also after an error: the reply to a change may have been lost."""
        try:
            yield
        except OSError:
            if before and _changed(self._tier, path, before):
                self._account.add(-cost(before.size))
            raise
        if before:
            self._account.add(-cost(before.size))

    def _held(self, path: str) -> int:
        """Bytes that the file at `path`, or all files below the directory, count as."""
        try:
            return sum(cost(entry.size) for entry in self._tier.walk(path) if entry.is_file)
        except FileNotFoundError:
            return 0
        except NotADirectoryError:
            return _held(self._tier, path)

    def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
        """Let the store copy, if it can. Otherwise copy through this process, without a lock while bytes move."""
        if not self._tier.copies:
            return super().copy(source, target, if_absent)
        slot = Slot(self._account, target)
        with contextlib.closing(slot), self._account.changing(source, target):
            size = self._tier.stat(source).size
            entry = _counted(
                self._tier, slot, size, if_absent, lambda: self._tier.copy(source, target, if_absent)
            )
            # Another tree may have replaced the source meanwhile: the size of the copy counts.
            self._account.add(cost(entry.size) - cost(size))
            return entry

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        with self._account.changing(target, alone=True):
            replaced = None if if_absent or source == target else _file(self._tier, target)
            with self._going(target, replaced):
                self._tier.rename(source, target, if_absent)


def _counted(tier: Tier, slot: Slot, size: int, if_absent: bool, keep: Callable[[], Entry]) -> Entry:
    """Call `keep`, which puts `size` bytes at the slot's path, and count them. The caller holds the path's lock."""
    before = _file(tier, slot.path)
    if before and if_absent:
        raise error(errno.EEXIST, slot.path)
    more = cost(size) - (cost(before.size) if before else 0)
    # The replaced file may have become smaller since the first reservation.
    slot.reserve(more)
    if more > 0:
        more = slot.count(more)
    try:
        entry = keep()
    except FileExistsError:  # another writer was first
        slot.account.add(-max(0, more))
        raise
    except BaseException:
        kept = _is_there(tier, slot.path, before, size)
        if more > 0 and kept is False:
            slot.account.add(-more)
        elif more < 0 and kept:
            slot.account.add(more)
        raise
    if more <= 0:
        slot.count(more)
    return entry


def _is_there(tier: Tier, path: str, before: Entry | None, size: int) -> bool | None:
    """Return whether the store has kept the new file in spite of an error; None if that cannot be known."""
    try:
        now = _file(tier, path)
    except OSError:
        return None
    changed = now is not None and (before is None or now.version != before.version)
    return changed and now is not None and now.size == size


class _Writer(Writer):
    def __init__(
        self, inner: Writer, tier: Tier, account: Account, path: str, if_absent: bool, size: int | None
    ) -> None:
        self._inner = inner
        self._tier = tier
        self._account = account
        self._path = path
        self._if_absent = if_absent
        self._declared = size is not None
        self._written = 0
        self._room = 0  # bytes that the file may count as with this reservation
        self._replaced = 0  # bytes that the replaced file counts as; 0 until it is looked up
        self._slot = Slot(account, path)

    def reserve(self, total: int) -> None:
        """Reserve room for `total` bytes of content. Raises OSError: EDQUOT."""
        if cost(total) <= self._room:
            return
        ahead = 0 if self._declared else AHEAD
        try:
            reserved = self._slot.reserve(cost(total) - self._replaced, ahead)
        except OSError:
            if self._replaced or self._if_absent or not (replaced := _held(self._tier, self._path)):
                raise
            self._replaced = replaced
            reserved = self._slot.reserve(cost(total) - replaced)
        self._room = reserved + self._replaced

    def _so_far(self) -> int:
        """Bytes written so far, including those written through the descriptor."""
        if (fd := self.fileno()) >= 0:
            self._written = max(self._written, os.lseek(fd, 0, os.SEEK_CUR))
        return self._written

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.reserve(self._so_far() + len(data))
        self._inner.write(data)
        self._written += len(data)

    def take(self, fd: int, length: int) -> int:
        left = length
        while left:
            step = min(left, AHEAD)
            try:
                self.reserve(self._so_far() + step)
            except OSError:  # the input may end before the step does
                return length - left + super().take(fd, left)
            taken = self._inner.take(fd, step)
            self._written += taken
            left -= taken
            if taken < step:
                break
        return length - left

    def hole(self, length: int) -> None:
        self.reserve(self._so_far() + length)
        self._inner.hole(length)
        self._written += length

    def fileno(self) -> int:
        """A descriptor only if the size was declared: bytes written through it are counted at the end."""
        return self._inner.fileno() if self._declared else -1

    def commit(self) -> Entry:
        try:
            size = self._so_far()
            with self._account.changing(self._path):
                return _counted(self._tier, self._slot, size, self._if_absent, self._inner.commit)
        finally:
            self.abort()

    def abort(self) -> None:
        try:
            self._inner.abort()
        finally:
            self._slot.close()


class _Room(Room):
    def __init__(self, inner: Room, account: Account) -> None:
        self._inner = inner
        self._slot = Slot(account, "")

    def need(self, space: int, growth: int, ahead: int, path: str) -> Held:
        space, most = self._inner.need(space, growth, ahead, path)
        if growth <= 0:
            self._slot.close()
            return space, 0
        self._slot.path = path
        return space, min(most, self._slot.reserve(growth, ahead))

    def close(self) -> None:
        self._slot.close()
        self._inner.close()


def _file(tier: Tier, path: str) -> Entry | None:
    """The entry at `path` if it is a file, else None."""
    try:
        entry = tier.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return entry if entry.is_file else None


def _changed(tier: Tier, path: str, before: Entry) -> bool:
    """Return whether that version is gone; False if that cannot be known."""
    try:
        now = _file(tier, path)
    except OSError:
        return False
    return now is None or now.version != before.version


def _held(tier: Tier, path: str) -> int:
    """Bytes that the file at `path` counts as; 0 if there is none."""
    entry = _file(tier, path)
    return cost(entry.size) if entry else 0
