"""Data of a session channel past asyncssh's own way, which copies each packet eight times; to go once it does not.

Laws
1. A packet that is anything but data of an open session channel goes the library's way, and so does all data while
   keys are exchanged, while a window is used up, and where a cipher is not GCM.
2. Counters, windows and keys are the library's own: a packet of this way and one of its own may follow each other.

Measured: half of the processor that a node at the origin takes for a gigabyte.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from transport.carrier.ssh import cipher
from transport.carrier.ssh.channel import SshDuplex

DATA = 94  # SSH_MSG_CHANNEL_DATA
HEAD = 10  # bytes before the data: those of the padding, of the message, the channel and the data's length
BLOCK = 16
LEAST = 4  # bytes of padding
MOST = 256 << 10  # bytes of one packet


def receiver(connection: Any, library: Callable[[bytes], object]) -> Callable[[memoryview], None]:
    """Return a function that takes a packet; `library` is asyncssh's own way."""

    def received(packet: memoryview) -> None:
        if connection._recv_handler != connection._recv_pkthdr or connection._inpbuf:
            library(bytes(packet))  # an earlier packet is still being handled
            return
        gcm = cipher.of(connection._recv_encryption)
        plain = cipher.opened(gcm, packet[:4], packet[4:]) if gcm else None
        if plain is None or plain[1] != DATA:
            library(bytes(packet))
            return
        channel = connection._channels.get(int.from_bytes(plain[2:6], "big"))
        size = int.from_bytes(plain[6:HEAD], "big")
        if (
            channel is None
            or type(channel._session) is not SshDuplex
            or channel._recv_state != "open"
            or not 0 < size <= channel._recv_window
            or HEAD + size + plain[0] != len(plain)
        ):
            library(bytes(packet))
            return
        gcm._update_iv()
        connection._recv_seq = (connection._recv_seq + 1) & 0xFFFFFFFF
        channel._accept_data(memoryview(plain)[HEAD : HEAD + size])

    return received


class Sender:
    """Sends data on a channel. It flushes what the library has kept while the window was used up, too."""

    def __init__(self, connection: Any, channel: Any) -> None:
        self._connection, self._channel = connection, channel
        self._size = min(
            channel._send_pktsize, MOST
        )  # the host says how large, and it must not choose our memory
        self._plain = bytearray(HEAD + self._size + LEAST + BLOCK)
        self._library = channel._flush_send_buf
        channel._flush_send_buf = self.flush

    def send(self, chunks: list[bytes]) -> bool:
        """Send all of `chunks` and return True, or return False where the library's own way has to."""
        channel, size = self._channel, sum(map(len, chunks))
        if channel._send_state != "open" or channel._send_buf or size > channel._send_window:
            return False
        if not self._ready(size):
            return False
        self._emit(chunks, size)
        return True

    def flush(self) -> None:
        """As the library's own flush of a channel, which does the rest: end of file, close, pause."""
        channel = self._channel
        while channel._send_buf and channel._send_window:
            data, kind = channel._send_buf[0]
            size = min(len(data), channel._send_window)
            if kind is not None or not self._ready(size):
                break
            self._emit([bytes(data[:size])], size)
            if size < len(data):
                del data[:size]
            else:
                del channel._send_buf[0]
            channel._send_buf_len -= size
        self._library()

    def _ready(self, size: int) -> bool:
        """Return whether the keys are of GCM and good for so many bytes more."""
        one = self._connection
        return bool(
            cipher.of(one._send_encryption)
            and one._transport
            and one._kex_complete
            and not one._compressor
            and one._rekey_bytes_sent + size < one._rekey_bytes
            and not (one._rekey_seconds and time.monotonic() >= one._rekey_time)
            and self._channel._send_state != "closed"
        )

    def _emit(self, chunks: list[bytes], size: int) -> None:
        connection, channel = self._connection, self._channel
        gcm = cipher.of(connection._send_encryption)
        head = bytes([DATA]) + channel._send_chan.to_bytes(4, "big")
        for pieces, length in packets(chunks, size, self._size):
            padding = -(HEAD + length) % BLOCK
            padding += BLOCK if padding < LEAST else 0
            with memoryview(self._plain) as view:
                view[0] = padding
                view[1:6] = head
                view[6:HEAD] = length.to_bytes(4, "big")
                at = HEAD
                for piece in pieces:
                    view[at : at + len(piece)] = piece
                    at += len(piece)
                view[at : at + padding] = os.urandom(padding)
                at += padding
                connection._send(cipher.sealed(gcm, at.to_bytes(4, "big"), view[:at]))
            connection._send_seq = (connection._send_seq + 1) & 0xFFFFFFFF
            connection._rekey_bytes_sent += at
            channel._send_window -= length


def packets(chunks: list[bytes], size: int, most: int) -> list[tuple[list[bytes | memoryview], int]]:
    """Return the pieces of `chunks`, of `size` bytes in all, for packets of at most `most` bytes, and their lengths."""
    found: list[tuple[list[bytes | memoryview], int]] = []
    pieces: list[bytes | memoryview] = []
    room = most
    for chunk in chunks:
        at, end = 0, len(chunk)
        while end - at > room:
            pieces.append(memoryview(chunk)[at : at + room])
            found.append((pieces, most))
            at += room
            pieces, room = [], most
        pieces.append(memoryview(chunk)[at:] if at else chunk)
        room -= end - at
    if room < most:
        found.append((pieces, most - room))
    return found
