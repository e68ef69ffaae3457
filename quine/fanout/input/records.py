"""Input read lazily: the records of a descriptor, and the blocks of --pipe. Input may be endless.

Laws
1. A reader is a generator that yields None where it would have to wait: the caller polls the descriptor and goes on.
   It never reads ahead of its consumer by more than one read.
2. Records are bytes as they stand in the input; nothing is decoded, quoted or trimmed.
"""

from __future__ import annotations

import os
import select
import stat

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Chunks = Iterator[bytes | None]

CHUNK = 1 << 16
COUNTED = 1 << 30  # bytes of a file whose records are counted at most


def chunks(fd: int, wait: bool = False) -> Chunks:
    """Yield what can be read of `fd`. As long as there is nothing to read yet: None, or with `wait` nothing."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        if not poll.poll(None if wait else 0):
            yield None
            continue
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:  # another process made it non-blocking, and read first
            yield None
            continue
        except OSError as error:
            raise Misconfigured(f"the items cannot be read: {(error.strerror or '').lower()}") from None
        if not data:
            return
        yield data


def records(data: Iterable[bytes | None], separator: bytes) -> Iterator[bytes | None]:
    """Yield the parts between separators; the last one needs none behind it."""
    rest: list[bytes] = []  # pieces of a record whose end has not come, so that a long one is joined once
    carry = len(separator) - 1
    for chunk in data:
        if chunk is None:
            yield None
            continue
        if carry and rest:  # a separator may be cut in two
            chunk = rest.pop() + chunk
        *whole, last = chunk.split(separator)
        if whole:
            yield b"".join([*rest, whole[0]])
            yield from whole[1:]
            rest = []
        if carry and len(last) > carry:
            rest.append(last[:-carry])
            last = last[-carry:]
        if last:
            rest.append(last)
    if rest:
        yield b"".join(rest)


def counter(fd: int, separator: bytes, headed: bool) -> Callable[[], int | None]:
    """Return a function that counts the records from the offset where `fd` is now, without moving it.

    It returns None for what is no regular file, and for one that is too large to be read for a number alone.
    """
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > COUNTED:
        return lambda: None
    start = os.lseek(fd, 0, os.SEEK_CUR)

    def count() -> int | None:
        at, found, tail = start, 0, b""
        while data := os.pread(fd, 1 << 20, at):
            at += len(data)
            data = tail + data
            found += data.count(separator)
            tail = data[-(len(separator) - 1) :] if len(separator) > 1 else b""
            last = data.endswith(separator)
        return max(0, found + (at > start and not last) - headed)

    return count


def blocks(data: Iterable[bytes | None], size: int, end: bytes) -> Iterator[bytes | None]:
    """Yield blocks of whole records, each of at most `size` bytes unless its only record is longer.

    `end` ends a record, and belongs to it.
    """
    held = bytearray()
    seen = 0  # no record ends before this offset
    for chunk in data:
        if chunk is None:
            yield None
            continue
        held += chunk
        while len(held) >= size:
            at = held.rfind(end, 0, size)
            if at < 0:  # the first record is longer than a block
                at = held.find(end, max(seen, size - len(end)))
            if at < 0:
                seen = max(0, len(held) - len(end) + 1)
                break
            cut = at + len(end)
            yield bytes(held[:cut])
            del held[:cut]
            seen = 0
    while held:
        at = held.rfind(end, 0, size) if len(held) > size else -1
        cut = at + len(end) if at >= 0 else len(held)
        yield bytes(held[:cut])
        del held[:cut]


def counted(data: Iterable[bytes | None], count: int, end: bytes) -> Iterator[bytes | None]:
    """Yield blocks of `count` records each."""
    held = bytearray()
    seen = number = 0  # no record ends between this offset and the end of `held`; records before it
    for chunk in data:
        if chunk is None:
            yield None
            continue
        held += chunk
        while (at := held.find(end, seen)) >= 0:
            seen = at + len(end)
            number += 1
            if number == count:
                yield bytes(held[:seen])
                del held[:seen]
                seen = number = 0
    if held:
        yield bytes(held)


def headed(
    data: Iterator[bytes | None], end: bytes, cut: Callable[[Iterator[bytes | None]], Iterator[bytes | None]]
) -> Iterator[bytes | None]:
    """Yield the blocks that `cut` makes of the input behind its first record, each with that record before it."""
    held = b""
    for chunk in data:
        if chunk is None:
            yield None
            continue
        held += chunk
        if end in held:
            break
    head, mark, rest = held.partition(end)

    def others() -> Iterator[bytes | None]:
        yield rest
        yield from data

    for block in cut(others()):
        yield None if block is None else head + mark + block
