"""A session channel as a duplex: buffered bytes come first, the end comes once and last."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from asyncssh.channel import SSHChannel
from asyncssh.constants import MSG_CHANNEL_WINDOW_ADJUST
from asyncssh.logging import SSHLogger

from transport.carrier.ssh.channel import AT_ONCE, SshDuplex


class Wire:
    """The library's channel and connection in one."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = 0
        self.keepalive = 15.0
        self.broken = False  # the other end has closed it; connection_lost comes in the next turn of the loop

        self._recv_buf: list[bytes] = []

    def _deliver_data(self, data: bytes, datatype: int | None) -> None: ...

    def write(self, data: bytes) -> None:
        if self.broken:
            raise BrokenPipeError("Channel not open for sending")
        self.written += data

    def close(self) -> None:
        self.closed += 1

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert high > low

    async def wait_closed(self) -> None:
        pass

    def set_keepalive(self, interval: float) -> None:
        self.keepalive = interval


class Log:
    """A protocol that notes its events."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")

    def connection_lost(self, why: str) -> None:
        self.heard.append(("lost", why))


def made() -> tuple[SshDuplex, Wire]:
    duplex, wire = SshDuplex(), Wire()
    duplex.connections = [wire]
    duplex.connection_made(wire)
    duplex.session_started()
    return duplex, wire


def test_first_in_lines_then_by_callbacks() -> None:
    async def scene() -> None:
        duplex, wire = made()
        duplex.data_received(b"one", None)
        assert await duplex.read() == b"one"
        duplex.unread(b"ne")
        duplex.unread(b"")
        duplex.data_received(b"two", None)
        duplex.data_received(b"trouble\n", 1)
        duplex.pause_writing()
        log = Log()
        assert wire.keepalive
        duplex.attach(log)
        assert not wire.keepalive
        duplex.resume_writing()
        duplex.data_received(b"three", None)
        duplex.writelines([b"a", b"b"])
        assert wire.written == b"ab"
        assert duplex.eof_received()
        duplex.exit_status_received(7)
        duplex.connection_lost(None)
        duplex.data_received(b"late", None)
        duplex.pause_writing()
        duplex.write(b"late")
        duplex.close()
        assert log.heard == [b"netwo", "pause", "resume", b"three", ("lost", "")]
        assert (duplex.stderr, duplex.exit, wire.written) == (b"trouble\n", 7, b"ab")
        assert wire.closed
        await duplex.closed()

    asyncio.run(scene())


def test_an_end_before_attach_is_told_at_attach() -> None:
    async def scene() -> None:
        duplex, _ = made()
        reader = asyncio.create_task(duplex.read())
        await asyncio.sleep(0)
        duplex.data_received(b"x", None)
        assert await reader == b"x"
        duplex.data_received(b"y", None)
        duplex.connection_lost(OSError("the cable"))
        log = Log()
        duplex.attach(log)
        assert log.heard == [b"y", ("lost", "the cable")]
        assert await duplex.read() == b""

    asyncio.run(scene())


def test_drain_waits_for_room_and_ends_with_the_channel() -> None:
    async def scene() -> None:
        duplex, _ = made()
        await duplex.drain()
        duplex.pause_writing()
        drained = asyncio.create_task(duplex.drain())
        await asyncio.sleep(0)
        assert not drained.done()
        duplex.resume_writing()
        await drained
        duplex.pause_writing()
        drained = asyncio.create_task(duplex.drain())
        await asyncio.sleep(0)
        duplex.exit_signal_received("KILL", False, "", "")
        duplex.connection_lost(None)
        with pytest.raises(ConnectionResetError):
            await drained
        assert duplex.stderr == b"killed by KILL\n"

    asyncio.run(scene())


def test_a_write_just_after_the_other_end_closed_is_no_defect() -> None:
    async def scene() -> None:
        duplex, wire = made()
        log = Log()
        duplex.attach(log)
        wire.broken = True
        duplex.write(b"x")
        assert log.heard == []
        duplex.connection_lost(None)
        assert log.heard == [("lost", "")]

    asyncio.run(scene())


def test_what_comes_in_one_turn_comes_at_once_to_who_listened_then() -> None:
    """A new listener first sends again the bytes that the peer lacks; earlier data would make it answer too soon."""

    async def scene() -> None:
        duplex, _ = made()
        first, second = Log(), Log()
        duplex.attach(first)
        duplex.data_received(b"a", None)
        duplex.data_received(b"b", None)
        assert first.heard == []
        await asyncio.sleep(0)
        assert first.heard == [b"ab"]
        duplex.data_received(b"c", None)
        duplex.attach(second)
        duplex.data_received(b"d", None)
        await asyncio.sleep(0)
        duplex.data_received(b"e", None)
        duplex.connection_lost(None)
        assert (first.heard, second.heard) == ([b"ab", b"c"], [b"d", b"e", ("lost", "")])

    asyncio.run(scene())


def test_who_falls_behind_is_handed_no_more_than_one_read() -> None:
    """asyncssh releases all its buffered data when reading goes on, until it is paused again."""

    async def scene() -> None:
        duplex, _ = made()
        log = Log()
        duplex.attach(log)
        piece = b"x" * (AT_ONCE // 8)
        for _ in range(20):
            duplex.data_received(piece, None)
        assert log.heard == [piece * 8, piece * 8]
        await asyncio.sleep(0)
        assert log.heard == [piece * 8, piece * 8, piece * 4]

    asyncio.run(scene())


def test_close_tells_the_end_at_once() -> None:
    async def scene() -> None:
        duplex, wire = made()
        log = Log()
        duplex.attach(log)
        duplex.close()
        duplex.connection_lost(None)
        assert log.heard == [("lost", "")]
        assert wire.closed >= 2, "the channel and its connection"

    asyncio.run(scene())


def test_what_is_kept_while_reading_is_paused_is_bounded_by_the_window() -> None:
    """Also after many short pauses: the peer sends as much as it is allowed to, of which little is taken each time."""
    window, packet = 8 * AT_ONCE, 32 << 10
    opened = 0

    class Connection:
        """The interface of a connection, as asyncssh's channel uses it. Each packet of the channel opens the window."""

        logger = SSHLogger(logging.getLogger())

        def add_channel(self, _: Any) -> int:
            return 0

        def send_packet(self, kind: int, payload: bytes, **_: Any) -> None:
            nonlocal opened
            assert kind == MSG_CHANNEL_WINDOW_ADJUST
            opened += int.from_bytes(payload[4:], "big")

    class Slow(Log):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            duplex.pause_reading()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        channel: Any = SSHChannel(Connection(), loop, None, "strict", window, packet)  # type: ignore[arg-type]
        channel._recv_state, channel._send_state, channel._send_chan = "open", "open", 0
        channel._session, channel._recv_paused = duplex, False
        duplex.connection_made(channel)
        duplex.attach(slow)
        sent = 0
        for _ in range(200):
            while sent + packet <= window + opened:
                channel._accept_data(bytes(packet))
                sent += packet
            assert sent - sum(map(len, slow.heard)) <= window
            await asyncio.sleep(0)
            duplex.resume_reading()
        assert sum(map(len, slow.heard)) > 4 * window

    duplex, slow = SshDuplex(), Slow()
    asyncio.run(main())
