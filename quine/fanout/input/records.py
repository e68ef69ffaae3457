"""Input read lazily: the records of a descriptor, and the blocks of --pipe. Input may be endless.

Laws
1. A reader is a generator that yields None where it would have to wait: the caller polls the descriptor and goes on.
   It never reads ahead of its consumer by more than one read.
2. Records are bytes as they stand in the input; nothing is decoded, quoted or trimmed.
"""

from __future__ import annotations

import os
import select

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Chunks = Iterator[bytes | None]

CHUNK = 1 << 16


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
