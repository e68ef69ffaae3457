"""Data of a session past asyncssh: the same packets, counters and windows, and the library wherever it decides."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from asyncssh.crypto.cipher import GCMCipher
from asyncssh.packet import SSHPacket
from hypothesis import given
from hypothesis import strategies as st

from transport.carrier.ssh import connect, quick
from transport.carrier.ssh.channel import SshDuplex

assert connect  # it installs the cipher
KEY, IV = b"k" * 16, b"i" * 4 + b"\xff" * 7 + b"\xf0"


class Channel(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(
            _send_state="open",
            _recv_state="open",
            _send_buf=[],
            _send_chan=7,
            _send_window=1 << 20,
            _recv_window=1 << 20,
            _send_pktsize=1000,
            _send_buf_len=0,
            _session=SshDuplex.__new__(SshDuplex),
        )
        self.got: list[bytes] = []
        self.flushed: list[int] = []  # buffers that were left to the library

    def _flush_send_buf(self) -> None:
        self.flushed.append(len(self._send_buf))

    def _accept_data(self, data: memoryview) -> None:
        self._recv_window -= len(data)
        self.got.append(bytes(data))


class Connection(SimpleNamespace):
    """The parts of asyncssh's connection that are used, of both ends in one."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.channel = Channel()
        super().__init__(
            _send_encryption=SimpleNamespace(_cipher=GCMCipher("aes128-gcm", KEY, IV)),
            _recv_encryption=SimpleNamespace(_cipher=GCMCipher("aes128-gcm", KEY, IV)),
            _transport=True,
            _kex_complete=True,
            _compressor=None,
            _rekey_bytes=1 << 30,
            _rekey_bytes_sent=0,
            _rekey_seconds=0,
            _rekey_time=0.0,
            _send_seq=0xFFFFFFFF,
            _recv_seq=0xFFFFFFFF,
            _inpbuf=b"",
            _channels={7: self.channel},
            _send=self.sent.append,
        )
        self._recv_handler: Any = self._recv_pkthdr

    def _recv_pkthdr(self) -> None: ...

    @property
    def packets(self) -> list[bytes]:
        """Each packet that was sent, whatever went by one write."""
        stream, found = b"".join(map(bytes, self.sent)), []
        while stream:
            size = 4 + int.from_bytes(stream[:4], "big") + 16
            found.append(stream[:size])
            stream = stream[size:]
        return found

    def taken(self, packets: list[bytes], cuts: Iterable[int] = ()) -> list[bytes]:
        """Take packets, in pieces that end at `cuts`; return those that the library was given."""
        library: list[bytes] = []
        self.data_received = library.append
        arrivals, stream = quick.Arrivals(self), b"".join(packets)
        edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
        for first, last in itertools.pairwise(edges):
            room = arrivals.get_buffer(-1)
            room[: last - first] = stream[first:last]
            arrivals.buffer_updated(last - first)
        return library


@pytest.fixture(autouse=True)
def delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session has no reader here: the data are seen as the channel gets them."""
    monkeypatch.setattr(SshDuplex, "deliver", lambda self: None)


@given(st.lists(st.binary(max_size=2500), max_size=6), st.lists(st.integers(0, 20_000), max_size=8))
def test_the_data_arrive_in_packets_that_the_library_understands(
    chunks: list[bytes], cuts: list[int]
) -> None:
    connection = Connection()
    channel = connection.channel
    assert quick.Sender(connection, channel).send(chunks)
    whole = b"".join(chunks)
    count = -(-len(whole) // 1000)
    assert len(connection.packets) == count and len(connection.sent) <= 1
    assert channel._send_window == (1 << 20) - len(whole)
    assert connection._send_seq == (0xFFFFFFFF + count) & 0xFFFFFFFF
    assert connection._rekey_bytes_sent == sum(len(packet) - 20 for packet in connection.packets)
    theirs = GCMCipher("aes128-gcm", KEY, IV)
    for number, packet in enumerate(connection.packets):
        plain = theirs.verify_and_decrypt(packet[:4], packet[4:-16], packet[-16:])
        assert plain is not None and len(plain) % 16 == 0 and plain[0] >= 4
        message = SSHPacket(plain[1 : -plain[0]])
        assert (message.get_byte(), message.get_uint32()) == (94, 7)
        assert message.get_string() == whole[1000 * number : 1000 * (number + 1)]
        message.check_end()
    assert connection.taken(connection.packets, cuts) == []
    assert b"".join(channel.got) == whole and channel._recv_window == channel._send_window
    assert connection._recv_seq == connection._send_seq


@pytest.mark.parametrize(
    "change",
    [
        lambda c: vars(c).update(_transport=None),
        lambda c: vars(c).update(_kex_complete=False),
        lambda c: vars(c).update(_compressor=object()),
        lambda c: vars(c).update(_rekey_bytes=3),
        lambda c: vars(c).update(_rekey_seconds=1, _rekey_time=time.monotonic()),
        lambda c: vars(c).update(_send_encryption=SimpleNamespace(_cipher=object())),
        lambda c: vars(c).update(_send_encryption=None),
        lambda c: vars(c.channel).update(_send_state="eof"),
        lambda c: vars(c.channel).update(_send_buf=[b"x"]),
        lambda c: vars(c.channel).update(_send_window=2),
    ],
)
def test_nothing_is_sent_where_the_library_has_to_decide(change: Any) -> None:
    connection = Connection()
    change(connection)
    assert not quick.Sender(connection, connection.channel).send([b"da", b"ta"])
    assert not connection.sent and connection._send_seq == 0xFFFFFFFF


def test_data_that_waited_for_the_window_go_when_it_opens() -> None:
    connection = Connection()
    channel = connection.channel
    kept = [os.urandom(2500), os.urandom(700), b"stderr", b"x"]
    kinds = [None, None, 1, None]
    channel._send_buf = [(bytearray(data), kind) for data, kind in zip(kept, kinds, strict=True)]
    channel._send_buf_len, channel._send_window = sum(map(len, kept)), 1800
    sender = quick.Sender(connection, channel)
    sender.flush()
    assert (channel._send_window, channel._send_buf_len) == (0, sum(map(len, kept)) - 1800)
    channel._send_window = 5000
    vars(connection)["_kex_complete"] = False
    sender.flush()
    assert channel._send_window == 5000
    vars(connection)["_kex_complete"] = True
    channel._flush_send_buf()  # as the library calls it
    assert connection.taken(connection.packets) == []
    assert b"".join(channel.got) == kept[0] + kept[1]
    assert channel._send_buf == [(b"stderr", 1), (b"x", None)] and channel._send_buf_len == 7
    assert channel.flushed == [4, 4, 2]  # it does the rest each time
    assert not sender.send([b"y"])  # kept data go first


@pytest.mark.parametrize(
    "change",
    [
        lambda c: vars(c).update(_recv_handler=None),  # it waits for an answer to an earlier packet
        lambda c: vars(c).update(_inpbuf=b"x"),
        lambda c: vars(c).update(_recv_encryption=SimpleNamespace(_cipher=object())),
        lambda c: vars(c).update(_channels={}),
        lambda c: vars(c.channel).update(_session=object()),
        lambda c: vars(c.channel).update(_recv_state="eof"),
        lambda c: vars(c.channel).update(_recv_window=3),
    ],
)
def test_the_library_takes_what_it_has_to_decide(change: Any) -> None:
    connection = Connection()
    assert quick.Sender(connection, connection.channel).send([b"data"])
    change(connection)
    assert connection.taken(connection.packets) == connection.packets
    assert not connection.channel.got and connection._recv_seq == 0xFFFFFFFF
    gcm = connection._recv_encryption._cipher
    assert getattr(gcm, "_iv", IV) == IV  # the library opens it, too


@pytest.mark.parametrize("plain", [b"\x05\x5d" + b"\0" * 14, b"\x06^\0\0\0\7\0\0\0\1" + b"d" + b"\0" * 5])
def test_another_message_and_a_false_length_are_the_library_s(plain: bytes) -> None:
    connection = Connection()
    header = len(plain).to_bytes(4, "big")
    packet = b"".join(GCMCipher("aes128-gcm", KEY, IV).encrypt_and_sign(header, plain))
    assert connection.taken([packet]) == [packet]


def test_a_packet_that_was_changed_is_the_library_s() -> None:
    connection = Connection()
    assert quick.Sender(connection, connection.channel).send([os.urandom(100)])
    changed = bytearray(connection.packets[0])
    changed[30] ^= 1
    assert connection.taken([bytes(changed)]) == [bytes(changed)]
    assert not connection.channel.got


@given(
    st.lists(st.one_of(st.binary(min_size=1, max_size=60), st.just(b"")), max_size=8),
    st.lists(st.integers(0, 900), max_size=12),
)
def test_packets_and_data_keep_their_order_however_they_come(contents: list[bytes], cuts: list[int]) -> None:
    """Data, and between them packets that are for the library, which counts on with the cipher as it finds it."""
    connection = Connection()
    sender, theirs = quick.Sender(connection, connection.channel), []
    for content in contents:
        if content:
            assert sender.send([content])
        else:
            plain = b"\x0d" + b"\x50" + b"\0" * 14
            gcm = connection._send_encryption._cipher
            packet = b"".join(gcm.encrypt_and_sign(len(plain).to_bytes(4, "big"), plain))
            connection.sent.append(packet)
            theirs.append(packet)
    gcm = connection._recv_encryption._cipher

    def library(packet: bytes) -> None:
        assert gcm.verify_and_decrypt(packet[:4], packet[4:-16], packet[-16:]) is not None
        got.append(packet)

    got: list[bytes] = []
    connection.data_received = library
    arrivals, stream = quick.Arrivals(connection), b"".join(map(bytes, connection.sent))
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    for first, last in itertools.pairwise(edges):
        arrivals.data_received(stream[first:last])
    assert got == theirs and b"".join(connection.channel.got) == b"".join(contents)


@pytest.mark.parametrize("cut", range(12))
def test_what_is_too_long_for_a_packet_passes_as_it_comes(cut: int) -> None:
    whole = (3).to_bytes(4, "big") + b"abc" + b"t" * 16
    stream = whole + quick.LONGEST.to_bytes(4, "big") + b"more"
    connection, got = Connection(), []
    connection.data_received = lambda data: got.append(bytes(data))
    arrivals = quick.Arrivals(connection)
    for part in (stream[: len(whole) + cut - 4], stream[len(whole) + cut - 4 :], b"and", whole):
        arrivals.data_received(part)
    assert got[0] == whole and b"".join(got) == stream + b"and" + whole
    assert got[-2:] == [b"and", whole]  # at once, and nothing is held back


def test_each_thread_reads_into_a_buffer_of_its_own() -> None:
    """A read lets other threads go on: two loops once read into one buffer, and each deciphered bytes of the other."""
    buffers, both = [], threading.Barrier(2)

    def read() -> None:
        arrivals = quick.Arrivals(connection)
        buffers.append(arrivals.get_buffer(-1).obj)
        both.wait(60)

    connection = Connection()
    connection.data_received = connection.sent.append
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert buffers[0] is not buffers[1]


def test_an_sftp_channel_and_the_names_that_are_used_are_as_they_were() -> None:
    """If this fails, look at asyncssh's new way, and at quick.py."""
    import inspect

    from asyncssh.channel import SSHChannel
    from asyncssh.connection import SSHConnection

    text = inspect.getsource(SSHConnection) + inspect.getsource(SSHChannel)
    for name in (*vars(Connection()), *vars(Channel())):
        assert not name.startswith("_") or f"self.{name}" in text, name
    assert "def _accept_data" in text
