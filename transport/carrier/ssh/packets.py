"""Finds where ssh packets begin in the bytes of a socket, for a receiver that wants them one at a time.

Laws
1. Sans-IO, and nothing is held back: bytes are handed on in the call that brings them, in pieces.
2. A hint, not a parser: should a length ever be misread, the same bytes only come in other pieces.
3. Only where the cipher leaves the length readable, which is GCM (RFC 5647, 7.3).
"""

from __future__ import annotations

from collections.abc import Callable

LENGTH, TAG = 4, 16  # bytes before and behind those that a packet's length counts

Received = Callable[[bytes, "int | None"], None]


def by_packet(received: Received) -> Callable[..., None]:
    """Return a function that calls `received` for each packet or piece of one. Its first bytes must begin a packet."""
    lacking, head = 0, b""  # bytes until the next packet begins; the part of its length already seen

    def pieces(data: bytes, datatype: int | None = None) -> None:
        nonlocal lacking, head
        start, border, size = 0, lacking, len(data)
        while border < size:
            if border > start:
                received(data[start:border], datatype)
                start = border
            begun = border + LENGTH - len(head)
            head += data[border:begun]
            if len(head) < LENGTH:
                border = size
            else:
                border, head = begun + int.from_bytes(head, "big") + TAG, b""
        lacking = border - size
        received(data[start:], datatype)

    return pieces
