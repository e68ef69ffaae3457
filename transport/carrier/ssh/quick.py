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
import struct
import threading
import time

from transport.carrier.ssh import cipher
from transport.carrier.ssh.channel import SshDuplex
from transport.lean import Any

DATA = 94  # SSH_MSG_CHANNEL_DATA
HEAD = 10  # bytes before the data: those of the padding, of the message, the channel and the data's length
PLAIN = struct.Struct(">BBII")  # these
WORD = struct.Struct(">I")
BLOCK = 16
LEAST = 4  # bytes of padding
LENGTH, TAG = 4, 16  # bytes before and behind those that a packet's length counts
MORE = LENGTH + HEAD + LEAST + BLOCK + TAG  # bytes of a packet beside its data, at most
MOST = 256 << 10  # bytes of one packet
LONGEST = 256 << 10  # of any that the library takes
READ = 512 << 10  # bytes of one read of a socket


class Room(threading.local):
    """The buffer of all connections of one thread: it is filled and handled in one turn of the thread's loop.

    Loops of several threads run at the same time, and a read lets the others go on: each sftp store has its own.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ))


_room = Room()


class Arrivals(asyncio.BufferedProtocol):
    """Takes the bytes of a connection's socket in place of the library, which is given all packets but those of data.

    The data of one read are deciphered to one place, one packet behind the other, and delivered at once.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._room = memoryview(b"")  # that of the thread, between a read and the handling of its bytes
        self._library = connection.data_received
        self._held = b""  # of the packet that has begun
        self._lost = False  # the other end sends no packets, and the library will find out
        self._target: bytearray | None = None  # for data, and none are there yet

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
        self._room = _room.view
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
            elif count := self._data(view[start:]):
                start += count
            else:
                self._library(bytes(view[start : start + whole]))
                start += whole
        self._held = bytes(view[start:])
        self._target = None
        if self._lost and self._held:
            rest, self._held = self._held, b""
            self._library(rest)

    def _data(self, view: memoryview) -> int:
        """Deliver the data of the packets of data at the beginning of `view`, all of one channel.

        Return the bytes of these packets. The next one has not come whole or is for the library; for that one, nothing
        has changed.
        """
        connection = self._connection
        gcm = cipher.of(connection._recv_encryption)
        if connection._recv_handler != connection._recv_pkthdr or connection._inpbuf or not gcm:
            return 0  # an earlier packet is still being handled
        if not any(type(channel._session) is SshDuplex for channel in connection._channels.values()):
            return 0
        target = self._target
        if target is None or len(target) < len(view):
            target = self._target = bytearray(len(view))
        opened, start, at, packets = cipher.Series(gcm), 0, HEAD, 0
        decipher, end = opened.open, len(view)
        channel: Any = None
        with memoryview(target) as plain:
            mine, room = 0, 0
            while end - start >= LENGTH:
                size = WORD.unpack_from(view, start)[0]
                behind = start + LENGTH + size + TAG
                if behind > end or not HEAD < size <= LONGEST:
                    break
                before = target[at - HEAD : at]  # the packet's own head comes to lie on the last of the data
                good = decipher(
                    view[start : start + LENGTH],
                    view[start + LENGTH : behind],
                    plain[at - HEAD : at - HEAD + size],
                )
                padding, kind, number, length = PLAIN.unpack_from(target, at - HEAD)
                target[at - HEAD : at] = before
                if not good or kind != DATA or not length or HEAD + length + padding != size:
                    break
                if channel is None:
                    channel, mine = connection._channels.get(number), number
                    if (
                        type(getattr(channel, "_session", None)) is not SshDuplex
                        or channel._recv_state != "open"
                    ):
                        break
                    room = channel._recv_window
                if number != mine or at - HEAD + length > room:
                    break
                opened.next()
                start, at, packets = behind, at + length, packets + 1
        if packets:
            opened.keep()
            connection._recv_seq = (connection._recv_seq + packets) & 0xFFFFFFFF
            self._target = None
            channel._accept_data(memoryview(target)[HEAD:at])
            channel._session.deliver()
        return start


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
        series = cipher.Series(cipher.of(connection._send_encryption))
        number, plain = channel._send_chan, self._plain
        found = packets(chunks, size, self._size)
        padded = os.urandom(BLOCK + LEAST)
        sealed, end = memoryview(bytearray(size + len(found) * MORE)), 0
        with memoryview(plain) as view:
            for pieces, length in found:
                padding = -(HEAD + length) % BLOCK
                padding += BLOCK if padding < LEAST else 0
                PLAIN.pack_into(plain, 0, padding, DATA, number, length)
                at = HEAD
                for piece in pieces:
                    behind = at + len(piece)
                    view[at:behind] = piece
                    at = behind
                view[at : at + padding] = padded[:padding]
                at += padding
                begin, end = end + LENGTH, end + LENGTH + at + TAG
                WORD.pack_into(sealed, begin - LENGTH, at)
                series.seal(sealed[begin - LENGTH : begin], view[:at], sealed[begin:end])
                series.next()
                connection._rekey_bytes_sent += at
        if end:
            series.keep()
            connection._send_seq = (connection._send_seq + len(found)) & 0xFFFFFFFF
            channel._send_window -= size
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
