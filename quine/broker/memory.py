"""The memory of this process towards others of its user: closed to them, and wiped of a key.

A process of the same user may read the memory, the environment and the descriptors of another one, unless that one is
not dumpable (prctl(2)). An exec makes a process dumpable again, a fork does not.

Law: nothing here fails. Where the kernel or the interpreter lacks a means, the process goes on without it, and the
result says so.
"""

from __future__ import annotations

import os
import sys

from quine.base import exposure
from transport import inherit
from transport.lean import contextlib, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_SET_DUMPABLE = 4  # of prctl(2)
SHORTEST = 8  # bytes; a shorter secret is a word that stands elsewhere with another meaning
BUFFER = 1 << 17  # bytes of memory that are looked at at one time: as many as stay in a processor's cache
_PAGE = os.sysconf("SC_PAGESIZE")
_ENTRY = 8  # bytes of /proc/self/pagemap for each page
_FLAGS = 7 if sys.byteorder == "little" else 0  # the byte of an entry that has these
_PRESENT, _SWAPPED, _OF_FILE = 0x80, 0x40, 0x20
_IS_WRITTEN = bytes(
    bool(flags & _SWAPPED or (flags & _PRESENT and not flags & _OF_FILE)) for flags in range(256)
)
_OF_NO_FILE = (b"/memfd:", b"/dev/zero", b"/anon_hugepage", b"/SYSV")  # memory that has an inode
PIECE = 16  # bytes of the pieces of a key that are looked for; each piece is one look at the whole memory


def close_to_others(closed: bool = True) -> bool:
    """Close the memory of this process to others of its user, or open it again. Return whether the kernel did it."""
    return prctl(_SET_DUMPABLE, not closed)


def show(words: Sequence[str]) -> None:
    """Show another argv in `ps`. A process that is closed to others cannot open its own /proc/self/mem for it."""
    with contextlib.suppress(Exception):
        import _ctypes

        class Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
            _type_ = "c"

        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if 0 < start < end:
            text = b"\0".join(map(os.fsencode, words))[: end - start - 1].ljust(end - start, b"\0")
            (Byte * (end - start)).from_address(start)[:] = text  # type: ignore[call-overload]


def is_traced() -> bool:
    """Return whether a debugger holds this process."""
    try:
        with open("/proc/self/status", "rb") as file:
            return file.read().partition(b"TracerPid:")[2].split()[0] != b"0"
    except (OSError, IndexError):
        return False


class Wipe:
    """Overwrites secrets in the memory of this process. Made before the memory is closed to others: it opens a file."""

    def __init__(self) -> None:
        self._fd = self._pages = -1
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
            self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        for fd in (self._fd, self._pages):
            if fd >= 0:
                os.close(fd)
        self._fd = self._pages = -1

    def __call__(self, keys: Iterable[bytes]) -> None:
        """Overwrite the keys by their pieces: a freed text is overwritten in part by the next object.

        The caller holds no other copy that it still needs. The texts that it gives are overwritten, too.
        """
        needles: list[bytes] = []
        for key in keys:
            if is_unlike_a_word(key):
                # The pieces cover the key, so they find it whole, too. The last one ends with it: an object that was
                # put over a freed text leaves its end.
                starts = {*range(0, len(key) - PIECE + 1, PIECE), max(0, len(key) - PIECE)}
                needles += [key[at : at + PIECE] for at in sorted(starts)]
        if self._fd < 0 or not needles:
            return
        # All places first, and the texts that are looked for last: they stand in this memory, too.
        longest = max(map(len, needles))
        buffer = bytearray(max(BUFFER, 2 * longest))
        regions = [part for region in _writable() for part in self._written(*region)]
        places = [place for begin, end in regions for place in self._found(begin, end, needles, buffer)]
        buffer[:] = bytes(len(buffer))
        self._overwrite(places, needles)

    def _overwrite(self, places: Sequence[tuple[int, bytes]], needles: Sequence[bytes]) -> None:
        """Overwrite each place that still holds what was found there.

        A copy that was found in freed memory may be an object by now: a list of places was, and its process crashed.
        So each is looked at again, and nothing is allocated between that look and the write: the pair that `zip` fills
        was, and had no length any more.
        """
        own = _places_of(needles)
        zeros = memoryview(bytes(max(map(len, needles))))
        looks = {len(needle): memoryview(bytearray(len(needle))) for needle in needles}
        for at, needle in places:
            if any(start <= at < start + size for start, size in own.items()):
                continue  # one of the texts that are looked for, or its end, which is one of them, too
            look, zero, into = looks[len(needle)], zeros[: len(needle)], [looks[len(needle)]]
            pairs = zip(look, needle)  # its bytes are read below
            try:
                os.preadv(self._fd, into, at)
                for byte, wanted in pairs:
                    if byte not in (wanted, 0):  # 0: a piece that overlaps this one is overwritten
                        break
                else:
                    os.pwrite(self._fd, zero, at)
            except OSError:  # unmapped since
                pass
        for look in looks.values():
            look[:] = zeros[: len(look)]
        for at, size in own.items():
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, zeros[:size], at)

    def _written(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a region that this process has written: two thirds of it all were never touched."""
        try:
            entries = os.pread(self._pages, (end - begin) // _PAGE * _ENTRY, begin // _PAGE * _ENTRY)
        except OSError:
            entries = b""
        if len(entries) * _PAGE != (end - begin) * _ENTRY:  # the kernel does not tell
            yield begin, end
            return
        pages = entries[_FLAGS::_ENTRY].translate(_IS_WRITTEN)
        at = pages.find(1)
        while at >= 0:
            after = pages.find(0, at)
            after = len(pages) if after < 0 else after
            yield begin + at * _PAGE, begin + after * _PAGE
            at = pages.find(1, after)

    def _found(
        self, begin: int, end: int, needles: Sequence[bytes], buffer: bytearray
    ) -> Iterator[tuple[int, bytes]]:
        """Yield (address, needle) of each one in a region, which is read by one buffer: no copy is left behind."""
        overlap, at = max(map(len, needles)) - 1, begin
        while at < end:
            try:
                size = os.preadv(self._fd, [memoryview(buffer)[: min(len(buffer), end - at)]], at)
            except OSError:  # a guard page, or unmapped since
                return
            for needle in needles:
                found = buffer.find(needle, 0, size)
                while found >= 0:
                    yield at + found, needle
                    found = buffer.find(needle, found + 1, size)
            if at + size >= end or size <= overlap:
                return
            at += size - overlap


def _places_of(needles: Sequence[bytes]) -> dict[int, int]:
    """Return the sizes of these texts by their addresses, where an object has one (CPython)."""
    import sys

    if sys.implementation.name != "cpython":
        return {}
    return {id(needle) + bytes.__basicsize__ - 1: len(needle) for needle in needles}


def is_unlike_a_word(secret: bytes) -> bool:
    """Return whether `secret` may be overwritten wherever it stands: no word of a program or of its libraries.

    A key of a provider has digits in it. `password` or `anthropic` stands in the texts of this program itself.
    """
    if len(secret) < SHORTEST:
        return False
    letters = secret.translate(None, b"-_./:@")
    return len(secret) > 24 or not letters.isalpha()


def _writable() -> Iterator[tuple[int, int]]:
    """Yield the writable regions of private memory: (begin, end).

    Without those of files, a quarter of it all: they are the variables of programs and libraries, and with glibc a text
    that a process gets while it runs is in none of them. musl gives the last pages of its libraries to malloc.
    """
    with_files = not _is_glibc()
    try:
        with open("/proc/self/maps", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        span, mode, _, _, inode, *name = line.split(None, 5)
        if not (mode.startswith(b"rw") and mode.endswith(b"p")):
            continue
        if inode == b"0" or with_files or (name and name[0].startswith(_OF_NO_FILE)):
            begin, _, end = span.partition(b"-")
            yield int(begin, 16), int(end, 16)


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False


_wipe: list[Wipe] = []


def hide(names: Collection[str]) -> None:
    """Take secret variables, and those that hold copies, out of the environment that /proc shows of this process.

    Its memory still has them, so it is closed to other processes until they are gone from there, too.
    """
    secrets = [os.environ[name].strip() for name in names if name != inherit.VARIABLE]
    copies: set[str] = set()
    if secrets:
        copies.update(
            name
            for name, value in os.environ.items()
            if any(len(secret) >= SHORTEST and secret in value for secret in secrets)
        )
    exposure.forget(copies.union(names))
    if secrets:
        if not _wipe:
            _wipe.append(Wipe())
        close_to_others()


def forget(keys: Sequence[bytes]) -> None:
    """Wipe the keys from the memory of this process, and open that again."""
    if not _wipe and not keys:
        return
    wipe = _wipe.pop() if _wipe else Wipe()
    if keys:
        wipe(keys)
    wipe.close()
    close_to_others(False)
