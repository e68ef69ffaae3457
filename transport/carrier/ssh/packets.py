"""Where the packets of ssh begin in what a socket brings, for whoever wants them one at a time.

Laws
1. Sans-IO, and nothing is held back: what came is handed on in the same call, in pieces.
2. A hint, not a parser: should a length ever be misread, the same bytes only come in other pieces.
3. Only where the cipher leaves the length readable, which is GCM (RFC 5647, 7.3).
"""

from __future__ import annotations

from collections.abc import Callable

LENGTH, TAG = 4, 16  # bytes before and behind what a packet's length counts

Received = Callable[[bytes, "int | None"], None]


def by_packet(received: Received) -> Callable[..., None]:
    """`received`, called once for each packet or piece of one. To be begun where a packet begins."""
    lacking, head = 0, b""  # bytes until the next packet begins; what has been handed on of its length

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
