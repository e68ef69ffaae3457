"""The parsers of the wire, fed with broken recordings: they return or raise a declared error.

QUINE_TEST_FUZZ=10000000 is the long form: so many bytes for each of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from deploy import probe
from tests.fuzz.mutate import VOLUME, Target, bombard, of_bytes, of_frames, of_json, pieces
from transport import quickjson
from transport.errors import ProtocolError
from transport.rpc.services import Services
from transport.spawn import Spawn
from transport.status import Status
from transport.wire.frames import GREETING, Decoder, Frame, Kind, encode, pack
from transport.wire.resume import Handshake, Line, hello
from transport.wire.session import STDERR, STDIN, STDOUT, Session

pytestmark = pytest.mark.timeout(150 + VOLUME // 10_000)

JSON_KINDS = (
    Kind.HELLO,
    Kind.SPAWN,
    Kind.TEMPLATE,
    Kind.ATTACH,
    Kind.SIGNAL,
    Kind.WINCH,
    Kind.EXIT,
    Kind.REQUEST,
    Kind.REPLY,
    Kind.NOTE,
)
LIVED = Status(
    "signaled", 143, "TERM", "h1", 77, "it was ended", "", {"utime": 0.1, "stime": 0.0, "maxrss": 1}
)
SPAWN = Spawn(
    ["sh", "-c", "echo ä \udcff"], own=True, where="@gpu!h1", env={"A": "1"}, cwd="/tmp", workdir="~/quine", lease=2.5,
    limits={"nofile": "99"}, context={"inventory": "/x/inventory.toml", "cwd": "/x", "ssh_agent": None},
)  # fmt: skip


def recorded() -> tuple[bytes, bytes]:
    """Return the bytes of the opener and of the server of a link, in a job with streams, a signal and a request."""
    opener, server = Session(True, {"build": "b", "pid": 1}), Session(False, {"build": "b", "pid": 2})
    said = (bytearray(), bytearray())

    def carry() -> None:
        while opener.has_output or server.has_output:
            for number, (source, sink) in enumerate(((opener, server), (server, opener))):
                data = b"".join(source.pull(1 << 16))
                said[number].extend(data)
                list(sink.receive(data))

    carry()
    job = opener.open(Kind.SPAWN, SPAWN.to_json())
    carry()
    server.tell(job, Kind.ATTACH, {"id": SPAWN.id, "pid": 77})
    opener.data(job, STDIN, b"material" * 9)
    opener.tell(job, Kind.SIGNAL, {"signal": "TERM"}, 1)
    opener.tell(job, Kind.WINCH, {"rows": 24, "columns": 80})
    server.data(job, STDOUT, b"deliverable")
    server.data(job, STDERR, b"words")
    asked = server.open(Kind.REQUEST, {"name": "echo", "job": job, "capability": "c"})
    carry()
    opener.tell(asked, Kind.ATTACH, {})
    server.data(asked, STDIN, b"question")
    server.eof(asked, STDIN)
    opener.data(asked, STDOUT, b"answer")
    opener.eof(asked, STDOUT)
    carry()
    opener.ack(asked, STDIN, 8)
    opener.tell(asked, Kind.REPLY, {"error": None})
    opener.ack(job, STDOUT, 11)
    opener.eof(job, STDIN)
    carry()
    server.last_word(asked)
    for stream in (STDOUT, STDERR):
        server.eof(job, stream)
    server.tell(job, Kind.EXIT, LIVED.to_json())
    carry()
    opener.last_word(job)
    carry()
    return bytes(said[0]), bytes(said[1])


def feed_frames(data: bytes) -> None:
    decoder = Decoder()
    for piece in pieces(data):
        for frame in decoder.feed(piece):
            assert repr(frame)
            if frame.kind in JSON_KINDS:
                frame.body()


def feed_server(data: bytes) -> None:
    """Feed the node's end of a link: the node reads each frame and answers it."""
    session = Session(False, {"build": "b"})
    for piece in pieces(data):
        for frame in session.receive(piece):
            if frame.kind == Kind.SPAWN:
                Spawn.from_json(frame.body())
                session.tell(frame.channel, Kind.ATTACH, {"id": "x", "pid": 1})
                session.data(frame.channel, STDOUT, b"deliverable")
                session.data(frame.channel, STDERR, b"words")
                asked = session.open(Kind.REQUEST, {"name": "echo", "job": frame.channel})
                session.data(asked, STDIN, b"question")
                session.eof(asked, STDIN)
            elif frame.kind in JSON_KINDS:
                frame.body()
                if frame.channel in session.channels and session.channels[frame.channel].finished:
                    session.last_word(frame.channel)
            elif frame.kind == Kind.EOF and frame.channel in session.channels and frame.channel % 2:
                for stream in (STDOUT, STDERR):
                    session.eof(frame.channel, stream)
                session.tell(frame.channel, Kind.EXIT, LIVED.to_json())
            elif frame.kind == Kind.DATA and frame.channel in session.channels:
                session.took(frame.channel, frame.stream, frame.offset)
        while session.pull(1 << 16):
            pass


class AtOnce:
    def submit(self, work: Callable[..., None], *args: Any) -> None:
        work(*args)

    def shutdown(self, **_: object) -> None:
        pass


def feed_opener(data: bytes) -> None:
    """Feed the client's end of a link: a proxy with a job and services."""
    session = Session(True, {"build": "b"})
    job = session.open(Kind.SPAWN, SPAWN.to_json())
    session.data(job, STDIN, b"material" * 9)
    read, wake = os.pipe()
    services = Services(
        session, {"echo": bytes}, wake, "c", pool=AtOnce()
    )  # threads have a test of their own
    try:
        for piece in pieces(data):
            for frame in session.receive(piece):
                if frame.channel != job:
                    services.on_frame(frame)
                elif frame.kind == Kind.ATTACH:
                    frame.number("pid")
                elif frame.kind == Kind.EXIT:
                    feed_status(frame.payload)
                elif frame.kind == Kind.DATA:
                    session.took(job, frame.stream, frame.offset)
                services.send()
            while session.pull(1 << 16):
                pass
    finally:
        services.close()
        os.close(read)
        os.close(wake)


NAME = "ab" * 16


def dialled() -> Line:
    """A line with a job whose connection has just broken."""
    line = Line(True, NAME)
    line.data(line.open(Kind.SPAWN, SPAWN.to_json()), STDIN, b"material" * 9)
    while line.pull(1 << 16):
        pass
    return line


def answered() -> bytes:
    """Return the node's bytes on the next connection: hello, frames about the connection, the rest of the job."""
    line = dialled()
    kept = line.join(heard(GREETING + hello({"build": "b"}, NAME, 0, resume=True)))
    frames = [frame for frame in Decoder().feed(recorded()[1]) if frame.channel == 1]
    words = [Frame(Kind.PING, 0, 0, 5), Frame(Kind.PING, 0, 1, 6), Frame(Kind.SEEN, offset=len(kept[0]))]
    words.append(Frame(Kind.SEEN, offset=line.sent))
    for at, word in enumerate(words):
        frames.insert(3 * at, word)
    said = GREETING + hello({"build": "b"}, NAME, 0, resume=True)
    return said + b"".join(map(encode, [*frames, Frame(Kind.BYE)]))


def heard(data: bytes) -> Handshake:
    handshake = Handshake()
    assert handshake.feed(data)
    return handshake


def feed_line(data: bytes) -> None:
    """The origin's end of a link over its second connection: as the link drives it."""
    line, handshake, come = dialled(), Handshake(), False
    for piece in pieces(data):
        if come:
            list(line.receive(piece))
            line.beside()
            while line.pull(1 << 16):
                pass
        elif handshake.feed(piece):
            come = True
            line.join(handshake)
            list(line.receive(b""))
    assert line.kept >= 0
    if not come:
        raise ProtocolError("no greeting")


def feed_spawn(data: bytes) -> None:
    spawn = Spawn.from_json(Frame(Kind.SPAWN, payload=data).body())
    spawn.context = {}  # stays here
    pack(spawn.to_json(), 1 << 30)  # as the node sends it on


def feed_status(data: bytes) -> None:
    try:
        status = Status.from_json(Frame(Kind.EXIT, payload=data).body())
    except ValueError:
        raise ProtocolError("exit frame without a status") from None
    quickjson.dumps(status.to_json())  # as the node sends it on
    assert all(text.isprintable() for text in (status.detail, status.hint, status.host)), status
    assert repr(status)


def feed_quickjson(data: bytes) -> None:
    value = quickjson.loads(data)
    assert value == json.loads(data)


def feed_probe(data: bytes) -> None:
    answers = probe.Answers("m" * 32)
    for piece in pieces(data):
        answers.feed(piece)
        while (answer := answers.next()) is not None:
            assert answer.isprintable()
            if answer.startswith("need"):
                probe.facts(answer)
    probe.plain(answers.banner + answers.rest())


WIRE: dict[str, Callable[[], Target]] = {
    "frames": lambda: Target(recorded(), feed_frames, (ProtocolError,), of_frames),
    "session of a server": lambda: Target(recorded()[:1], feed_server, (ProtocolError,), of_frames),
    "session of an opener": lambda: Target(recorded()[1:], feed_opener, (ProtocolError,), of_frames),
    "line": lambda: Target([answered()], feed_line, (ProtocolError,), of_frames),
    "spawn": lambda: Target([pack(SPAWN.to_json())], feed_spawn, (ProtocolError,), of_json),
    "status": lambda: Target(
        [pack(LIVED.to_json()), pack(Status("exited", 0).to_json())], feed_status, (ProtocolError,), of_json
    ),
    "quickjson": lambda: Target(
        [pack(SPAWN.to_json()), b'[1.5, -0.0, 1e5, true, null, "\\ud83d\\ude00", {"": {}}]'],
        feed_quickjson,
        (ValueError, RecursionError),
        of_json,
    ),
    "probe": lambda: Target(
        [
            b"Welcome\r\n" + b"m" * 32 + b" need Linux x86_64 311 12345678 0 /usr/bin/python3.11\nrest",
            b"m" * 32 + b" fail full no space\n" + b"m" * 32 + b" have\n\0quine\x01\n",
        ],
        feed_probe,
        (ValueError,),
        of_bytes,
    ),
}


@pytest.mark.parametrize("name", WIRE)
def test_wire(name: str) -> None:
    bombard(name, WIRE[name]()).both()
