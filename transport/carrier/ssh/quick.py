"""Data of a session channel past asyncssh's own way, which copies each packet eight times; to go once it does not.

Laws
1. A packet that is anything but data of an open session channel goes the library's way, and so does all data while
   keys are exchanged, while a window is used up, and where a cipher is not GCM.
2. Counters, windows and keys are the library's own: a packet of this way and one of its own may follow each other.
3. At most one packet that has begun is held back, and it is no longer than LONGEST. Bytes that announce a longer one
   are handed on as they come, and so are all after them: the library ends the connection.
4. Only where the cipher leaves the length readable, which is GCM (RFC 5647, 7.3).

Measured: half of the processor that a node at the origin takes for a gigabyte.
"""

from __future__ import annotations

import asyncio
import os
import time

from transport.carrier.ssh import cipher
from transport.carrier.ssh.channel import SshDuplex
from transport.lean import Any

DATA = 94  # SSH_MSG_CHANNEL_DATA
HEAD = 10  # bytes before the data: those of the padding, of the message, the channel and the data's length
BLOCK = 16
LEAST = 4  # bytes of padding
LENGTH, TAG = 4, 16  # bytes before and behind those that a packet's length counts
MORE = LENGTH + HEAD + LEAST + BLOCK + TAG  # bytes of a packet beside its data, at most
MOST = 256 << 10  # bytes of one packet
LONGEST = 256 << 10  # of any that the library takes
READ = 512 << 10  # bytes of one read of a socket


class Arrivals(asyncio.BufferedProtocol):
    """Takes the bytes of a connection's socket in place of the library, which is given all packets but those of data.

    The data of one read are deciphered to one place, one packet behind the other, and delivered at once.
    """

    _room = memoryview(bytearray(READ))  # of all connections: filled and handled in one turn of the loop

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._library = connection.data_received
        self._held = b""  # of the packet that has begun
        self._lost = False  # the other end sends no packets, and the library will find out
        self._data = memoryview(b"")  # deciphered, from HEAD to `_at`
        self._at = HEAD
        self._channel: Any = None  # whose data these are
        self._head = b""  # with which its packets begin

    @classmethod
    def begin(cls, connection: Any) -> None:
        """Take over between two packets; otherwise everything stays as it is."""
        if connection._recv_handler != connection._recv_pkthdr:
            return
        arrivals = cls(connection)
        arrivals._held, connection._inpbuf = bytes(connection._inpbuf), b""
        transport = connection._transport
        if isinstance(transport, asyncio.Transport) and transport.get_protocol() is connection:
            transport.set_protocol(arrivals)
        else:  # a channel of the connection to a jump host
            connection.data_received = arrivals.data_received

    # Called by the transport

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        self._take(memoryview(self._held + data))

    def get_buffer(self, sizehint: int) -> memoryview:
        self._room[: len(self._held)] = self._held
        return self._room[len(self._held) :]

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._room[: len(self._held) + nbytes])

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()  # type: ignore[no-any-return]

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # Packets

    def _take(self, view: memoryview) -> None:
        start, end = 0, len(view)
        while not self._lost and end - start >= LENGTH:
            whole = LENGTH + int.from_bytes(view[start : start + LENGTH], "big") + TAG
            if whole > LONGEST:
                self._lost = True
            elif start + whole > end:
                break
            else:
                packet = view[start : start + whole]
                if not self._deciphered(packet, end - start):
                    self._deliver()
                    self._library(bytes(packet))
                start += whole
        self._deliver()
        self._held = bytes(view[start:])
        if self._lost and self._held:
            rest, self._held = self._held, b""
            self._library(rest)

    def _deciphered(self, packet: memoryview, most: int) -> bool:
        """Put the packet's data behind those before it. False: it is for the library, and nothing has changed.

        `most` bytes at most come in this turn.
        """
        connection, size = self._connection, len(packet) - LENGTH - TAG
        gcm = cipher.of(connection._recv_encryption)
        if (
            connection._recv_handler != connection._recv_pkthdr
            or connection._inpbuf
            or not gcm
            or size < HEAD
        ):
            return False  # an earlier packet is still being handled
        if not self._channel:
            self._data, self._at = memoryview(bytearray(most)), HEAD
        start = self._at - HEAD  # the packet's own head lies on the last of the data before it
        head = self._data[start : self._at]
        before, target = bytes(head), self._data[start : start + size]
        good = cipher.open_into(gcm, packet[:LENGTH], packet[LENGTH:], target) and self._is_data(target)
        if good:
            gcm._update_iv()
            connection._recv_seq = (connection._recv_seq + 1) & 0xFFFFFFFF
            self._at += int.from_bytes(target[6:HEAD], "big")
        head[:] = before
        return good

    def _is_data(self, plain: memoryview) -> bool:
        """Return whether a packet is data of the channel that has data here, or of one that may have some."""
        size = int.from_bytes(plain[6:HEAD], "big")
        if plain[1] != DATA or size <= 0 or HEAD + size + plain[0] != len(plain):
            return False
        if not self._channel:
            channel = self._connection._channels.get(int.from_bytes(plain[2:6], "big"))
            if channel is None or type(channel._session) is not SshDuplex or channel._recv_state != "open":
                return False
            if size > channel._recv_window:
                return False
            self._channel, self._head = channel, bytes(plain[1:6])
            return True
        return plain[1:6] == self._head and self._at - HEAD + size <= self._channel._recv_window

    def _deliver(self) -> None:
        """Give the data of this turn to their channel."""
        channel, self._channel = self._channel, None
        if channel:
            data, self._data = self._data[HEAD : self._at], memoryview(b"")
            channel._accept_data(data)
            channel._session.deliver()


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
        """Send all packets of `chunks` by one write."""
        connection, channel = self._connection, self._channel
        gcm = cipher.of(connection._send_encryption)
        head = bytes([DATA]) + channel._send_chan.to_bytes(4, "big")
        found = packets(chunks, size, self._size)
        padded = os.urandom(BLOCK + LEAST)
        sealed, end = memoryview(bytearray(size + len(found) * MORE)), 0
        with memoryview(self._plain) as view:
            for pieces, length in found:
                padding = -(HEAD + length) % BLOCK
                padding += BLOCK if padding < LEAST else 0
                view[0] = padding
                view[1:6] = head
                view[6:HEAD] = length.to_bytes(4, "big")
                at = HEAD
                for piece in pieces:
                    view[at : at + len(piece)] = piece
                    at += len(piece)
                view[at : at + padding] = padded[:padding]
                at += padding
                begin, end = end + LENGTH, end + LENGTH + at + TAG
                sealed[begin - LENGTH : begin] = at.to_bytes(LENGTH, "big")
                cipher.seal_into(gcm, sealed[begin - LENGTH : begin], view[:at], sealed[begin:end])
                connection._send_seq = (connection._send_seq + 1) & 0xFFFFFFFF
                connection._rekey_bytes_sent += at
                channel._send_window -= length
        if end:
            connection._send(sealed[:end])


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
