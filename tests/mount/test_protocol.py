"""The kernel's protocol as bytes: short or strange requests are refused or answered, and never end the server."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.files.api import Entry
from quine.files.stores.local.store import Local
from quine.mount import mounts, protocol
from quine.mount.inodes import ROOT, Nodes
from quine.mount.protocol import Op
from quine.mount.server import Server
from quine.mount.state import State
from tests.files.tiers import scratch
from tests.mount.mounting import needs_fuse
from tests.support.agents import until
from transport.errors import Refused


def message(op: int, node: int = ROOT, body: bytes = b"", unique: int = 7, pid: int = 0) -> bytes:
    return protocol.HEADER.pack(protocol.HEADER.size + len(body), op, unique, node, 0, 0, pid, 0, 0) + body


def opening(name: bytes) -> bytes:
    return struct.pack("=IIII", os.O_CREAT | os.O_WRONLY, 0o644, 0, 0) + name + b"\0"


UNASKED = 99


class Kernel:
    """The other end of /dev/fuse: one message a read, as there."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours

    def ask(self, *request: bytes) -> tuple[int, int, bytes]:
        self._socket.send(b"".join(request))
        while True:
            answer = self._socket.recv(1 << 21)
            length, number, unique = struct.unpack_from("=IiQ", answer)
            assert length == len(answer)
            if unique != UNASKED:
                return -number, unique, answer[16:]

    def send(self, request: bytes) -> None:
        self._socket.send(request)


@contextmanager
def served() -> Iterator[tuple[Kernel, Server, State]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(60)
    with ours, theirs, scratch() as root:
        state = State(Local(root))
        server = Server(theirs.fileno(), state)
        thread = threading.Thread(target=server.serve, args=([], lambda fd: True))
        thread.start()
        try:
            yield Kernel(ours), server, state
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            server.stop()
            thread.join(60)
            state.reserved.close()
        assert not thread.is_alive()


@given(st.binary(max_size=200))
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        protocol.parse(b"\xff" + data)  # a length that it has not


@given(st.integers(0, 60), st.binary(max_size=150), st.integers(0, 20))
def test_a_request_is_whole_or_refused(op: int, body: bytes, cut: int) -> None:
    whole = message(op, body=body)
    try:
        request = protocol.parse(whole)
    except ValueError:
        return
    assert (request.op, request.unique, request.node) == (op, 7, ROOT)
    assert all(name and b"\0" not in name for name in request.names)
    if cut:
        with pytest.raises(ValueError):
            protocol.parse(whole[:-cut])


@given(
    st.integers(-(1 << 80), 1 << 80), st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 1 << 40)
)
def test_what_a_store_says_fits(size: int, mtime: float, mode: int) -> None:
    packed = protocol.attributes(protocol.Attributes(5, mode, size, mtime), 0, 0)
    assert len(packed) == 88
    assert struct.unpack_from("=Q", packed, 8)[0] < 1 << 63


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5), st.binary(max_size=120)), max_size=12))
@settings(max_examples=60)
def test_the_server_answers_whatever_it_is_sent(requests: list[tuple[int, int, bytes]]) -> None:
    silent = {Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT}
    with served() as (kernel, _, _):
        for op, node, body in requests:
            if op in silent:
                kernel.send(message(op, node, body, UNASKED))  # answered only where it is not understood
            else:
                number, unique, _ = kernel.ask(message(op, node, body))
                assert unique == 7
                assert 0 <= number < 512
        assert kernel.ask(message(Op.STATFS))[0] == 0


def test_the_dialect_is_agreed_or_refused() -> None:
    with served() as (kernel, _, _):
        number, _, body = kernel.ask(message(Op.INIT, body=struct.pack("=IIII", 7, 45, 1 << 17, 0xFFFFFFFF)))
        assert (number, struct.unpack_from("=II", body)) == (0, (7, 31))
        assert len(body) == 64
        number, _, body = kernel.ask(message(Op.INIT, body=struct.pack("=IIII", 8, 1, 0, 0)))
        assert (number, struct.unpack_from("=I", body)) == (0, (7,))  # it will ask again in ours
        assert kernel.ask(message(Op.INIT, body=struct.pack("=IIII", 7, 12, 0, 0)))[0] != 0


def test_what_nobody_has_is_forgotten() -> None:
    with served() as (kernel, _, state):
        _, _, body = kernel.ask(message(Op.CREATE, body=opening(b"f")))
        node, handle = struct.unpack_from("=Q", body)[0], struct.unpack_from("=Q", body, 128)[0]
        write = struct.pack("=QQIIQII", handle, 0, 3, 0, 0, 0, 0) + b"abc"
        assert kernel.ask(message(Op.WRITE, node, write))[0] == 0
        assert kernel.ask(message(Op.FLUSH, node, struct.pack("=QIIQ", handle, 0, 0, 0)))[0] == 0
        assert state.tier.stat("f").size == 3
        assert kernel.ask(message(Op.RELEASE, node, struct.pack("=QIIQ", handle, 0, 0, 0)))[0] == 0
        assert kernel.ask(message(Op.WRITE, node, write))[0] == 9  # EBADF
        for _ in range(3):
            assert struct.unpack_from("=Q", kernel.ask(message(Op.LOOKUP, body=b"f\0"))[2])[0] == node
        kernel.send(message(Op.FORGET, node, struct.pack("=Q", 4)))
        until(lambda: len(state.nodes) == 1 and len(state.handles) == 0)
        assert kernel.ask(message(Op.GETATTR, node, bytes(16)))[0] == 116  # ESTALE
        assert kernel.ask(message(Op.LOOKUP, body=b"..\0"))[0] == 22
        assert kernel.ask(message(Op.LOOKUP, body=b"a/b\0"))[0] == 22


def test_a_version_is_a_node() -> None:
    nodes = Nodes()
    first = nodes.of(Entry("a/f", "file", 1, version="1"))
    second = nodes.of(Entry("a/f", "file", 1, version="2"))
    directory = nodes.of(Entry("a", "directory"))
    assert first is not second
    assert nodes.of(Entry("a/f", "file", 1, version="1")) is first
    nodes.moved("a", "b")
    assert (first.path, directory.path) == ("b/f", "b")
    assert nodes.of(Entry("b/f", "file", 1, version="2")) is second
    for node in (first, second, directory):
        node.lookups = 2
        nodes.forget(node.id, 1)
        assert nodes.get(node.id) is node
        nodes.forget(node.id, 5)
        assert nodes.get(node.id) is None
    assert len(nodes) == 1
    nodes.forget(ROOT, 100)
    assert nodes.get(ROOT)


def test_paths_of_the_kernels_table_are_read_back() -> None:
    assert mounts._plain(rb"/a\040b\011\134c") == b"/a b\t\\c"


@needs_fuse
@pytest.mark.skipif(mounts._helper() is None, reason="no fusermount3 here")
def test_the_helper_mounts_for_who_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_may_mount", lambda: False)
    place = tmp_path / "a b,c"
    place.mkdir()
    fd = mounts.mount(str(place), "quine")
    try:
        assert mounts.is_mounted(str(place))
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
        mounts.unmount(str(place))
    assert not mounts.is_mounted(str(place))
    with pytest.raises(OSError):
        mounts.unmount(str(place))
    monkeypatch.setattr(mounts, "_helper", lambda: None)
    with pytest.raises(Refused, match="fusermount3"):
        mounts.mount(str(place), "quine")


@pytest.mark.parametrize(
    "said", ["user has no write access to mountpoint /x", "failed to chdir to mountpoint: permission denied"]
)
def test_a_directory_of_somebody_else_is_no_matter_of_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    helper = tmp_path / "fusermount3"
    helper.write_text(f'#!/bin/sh\necho "$0: {said}" >&2\nexit 1\n')
    helper.chmod(0o755)
    monkeypatch.setattr(mounts, "DEVICE", os.devnull)
    monkeypatch.setattr(mounts, "_may_mount", lambda: False)
    monkeypatch.setattr(mounts, "_helper", lambda: str(helper))
    with pytest.raises(Refused) as caught:
        mounts.mount("/x", "quine")
    assert str(caught.value).endswith(f"at /x: {said}")
    assert "that you own" in caught.value.hint
