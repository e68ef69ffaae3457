"""The first bytes of a client: those that its session would send, and none where the proxy has to look first."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from transport import node_socket, this_build
from transport.carrier.unix import Wire
from transport.client import opening
from transport.errors import ProtocolError
from transport.spawn import Spawn
from transport.wire.frames import MAX_PAYLOAD, Kind
from transport.wire.session import Session


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def session(spawn: Spawn) -> Session:
    made = Session(opener=True, hello={"build": this_build.build_hash(), "pid": os.getpid()})
    assert made.open(Kind.SPAWN, spawn.to_json()) == opening.FIRST
    return made


@pytest.mark.parametrize("argv", [["true"], ["printf", "\udcff\n", "ü"], ["x" * (MAX_PAYLOAD - 1000)]])
def test_they_are_the_bytes_of_the_session(
    ends: tuple[socket.socket, socket.socket], argv: list[str]
) -> None:
    ours, theirs = ends
    spawn = Spawn(argv, where="h1", env={"A": "b"})
    sent = opening.send(ours, spawn)
    assert sent == node_socket.CLIENT + b"".join(session(spawn).pull(1 << 20))
    assert theirs.recv(1 << 20, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == sent
    wire = Wire(ours, session(spawn), b"")
    wire.skip(sent[1:])
    wire.flush()
    with pytest.raises(BlockingIOError):
        theirs.recv(1, socket.MSG_DONTWAIT)  # nothing is sent twice


@pytest.mark.parametrize(
    "spawn",
    [
        Spawn(["x" * MAX_PAYLOAD]),
        Spawn(["nul\0"]),
        Spawn([]),
        Spawn(["sh"], terminal={"rows": 1, "columns": 1, "term": "dumb"}),
    ],
)
def test_there_are_none_where_the_proxy_has_to_look_first(
    ends: tuple[socket.socket, socket.socket], spawn: Spawn
) -> None:
    ours, theirs = ends
    assert opening.send(ours, spawn) == b""
    with pytest.raises(BlockingIOError):
        theirs.recv(1, socket.MSG_DONTWAIT)


def test_a_node_that_has_gone_is_found_out_later(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.close()
    assert opening.send(ours, Spawn(["true"]))


def test_a_session_that_begins_with_other_bytes_ends_the_job(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    sent = opening.send(ends[0], Spawn(["true"]))
    with pytest.raises(ProtocolError, match="other bytes"):
        Wire(ends[0], session(Spawn(["false"])), b"").skip(sent[1:])
