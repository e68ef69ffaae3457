"""Finds the packets of ssh in the bytes of a socket, for a receiver that wants each of them whole.

Laws
1. Sans-IO. At most one packet that has begun is held back, and it is no longer than LONGEST.
2. Bytes that announce a longer packet are handed on as they come, and so are all after them: the receiver ends the
   connection.
3. Only where the cipher leaves the length readable, which is GCM (RFC 5647, 7.3).
"""

from __future__ import annotations

from collections.abc import Callable

LENGTH, TAG = 4, 16  # bytes before and behind those that a packet's length counts
LONGEST = 256 << 10  # of any that the library takes

Received = Callable[[memoryview], object]


def by_packet(received: Received) -> Callable[..., None]:
    """Return a function that calls `received` with each packet. Its first bytes must begin a packet."""
    held = bytearray()  # of the packet that has begun
    lost = False

    def complete(view: memoryview) -> int:
        """Hand on the held packet if `view` completes it; return how many bytes of `view` were used."""
        nonlocal held
        used = min(max(0, LENGTH - len(held)), len(view))
        held += view[:used]
        if len(held) < LENGTH:
            return used
        if _size(held, 0) > LONGEST:
            return used
        missing = _size(held, 0) - len(held)
        part = view[used : used + missing]
        held += part
        if len(part) == missing:
            whole, held = held, bytearray()
            received(memoryview(whole))
        return used + len(part)

    def pieces(data: bytes, datatype: int | None = None) -> None:
        nonlocal held, lost
        view, size = memoryview(data), len(data)
        start = complete(view) if held and not lost else 0
        while not lost and not held and size - start >= LENGTH:
            whole = _size(data, start)
            lost = whole > LONGEST
            if lost or start + whole > size:
                break
            received(view[start : start + whole])
            start += whole
        lost = lost or (len(held) >= LENGTH and _size(held, 0) > LONGEST)
        held += view[start:]
        if lost and held:
            whole_rest, held = held, bytearray()
            received(memoryview(whole_rest))

    return pieces


def _size(data: bytes | bytearray, at: int) -> int:
    """Return the size of the packet that begins at `at`, with its length and its tag."""
    return LENGTH + int.from_bytes(data[at : at + LENGTH], "big") + TAG
