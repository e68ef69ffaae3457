"""Frames: every split of the bytes, every hostile header."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import ProtocolError
from transport.wire.frames import (
    BULK_PAYLOAD,
    GREETING,
    HEADER,
    HEADER_SIZE,
    LIFE,
    MAX_NOISE,
    MAX_PAYLOAD,
    NAMES,
    Decoder,
    Frame,
    Kind,
    encode,
    header,
    pack,
)

frames = st.builds(
    Frame,
    st.sampled_from(sorted(NAMES)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=300),
)


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 2000), max_size=12), st.binary(max_size=60))
def test_any_split_of_the_bytes_gives_the_same_frames(
    sent: list[Frame], cuts: list[int], noise: bytes
) -> None:
    if GREETING in noise or b"\0" in noise:
        noise = b"Welcome to host!\r\n"
    stream = noise + GREETING + b"".join(map(encode, sent))
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    decoder = Decoder()
    got = [frame for a, b in itertools.pairwise(edges) for frame in decoder.feed(stream[a:b])]
    assert got == sent
    assert decoder.noise == noise[-512:]


@given(
    st.lists(frames, max_size=8),
    st.lists(st.tuples(st.integers(0, 2000), st.sampled_from(("feed", "hold", "break off"))), max_size=12),
)
def test_what_was_held_or_left_comes_first(sent: list[Frame], cuts: list[tuple[int, str]]) -> None:
    """A link begins with what came behind the greeting, and who takes frames may stop in the middle of them."""
    stream = GREETING + b"".join(map(encode, sent))
    decoder, got, before = Decoder(), [], 0
    for cut, how in sorted((cut % (len(stream) + 1), how) for cut, how in cuts):
        if how == "hold":
            decoder.hold(stream[before:cut])
        elif how == "feed":
            got += decoder.feed(stream[before:cut])
        else:
            feed = decoder.feed(stream[before:cut])
            got += itertools.islice(feed, 1)
            del feed
        before = cut
    got += decoder.feed(stream[before:])
    assert got == sent


def test_byte_by_byte() -> None:
    frame = Frame(Kind.DATA, 7, 1, 99, b"x" * 1000)
    decoder = Decoder()
    got = [f for byte in GREETING + encode(frame) * 2 for f in decoder.feed(bytes([byte]))]
    assert got == [frame, frame]


def test_the_announced_length_is_refused_before_anything_is_kept() -> None:
    decoder = Decoder()
    header = HEADER.pack(BULK_PAYLOAD + 1, Kind.DATA, 1, 1, 0)
    with pytest.raises(ProtocolError, match="frame of"):
        list(decoder.feed(GREETING + header))
    with pytest.raises(ProtocolError, match="after a protocol error"):
        list(decoder.feed(encode(Frame(Kind.PING))))


@pytest.mark.parametrize("kind", [0, 20, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match="unknown kind"):
        list(Decoder().feed(GREETING + HEADER.pack(0, kind, 0, 0, 0)))


def test_frames_before_a_bad_one_are_delivered() -> None:
    decoder = Decoder()
    feed = decoder.feed(GREETING + encode(Frame(Kind.PING)) + b"\xff" * HEADER_SIZE)
    assert next(feed).kind == Kind.PING
    with pytest.raises(ProtocolError):
        next(feed)


def test_a_banner_without_end_is_not_a_node() -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError, match="not a quine node"):
        for _ in range(MAX_NOISE // 1000 + 2):
            list(decoder.feed(b"n" * 1000))


@given(st.binary(max_size=4000))
def test_garbage_raises_nothing_but_protocol_errors(data: bytes) -> None:
    decoder = Decoder()
    try:
        list(decoder.feed(GREETING + data))
    except ProtocolError:
        pass
    assert len(decoder._buffer) <= MAX_PAYLOAD + HEADER_SIZE


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b"\xff", b"1", b"[" * 60_000])
def test_a_body_that_is_no_object(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="without a JSON object"):
        Frame(Kind.SPAWN, 1, 0, 0, payload).body()


def test_sizes_are_the_callers_fault() -> None:
    with pytest.raises(ValueError, match="65537"):
        encode(Frame(Kind.DATA, payload=b"x" * (MAX_PAYLOAD + 1)))
    with pytest.raises(ValueError, match="limit"):
        pack({"argv": ["x" * MAX_PAYLOAD]})


def test_arguments_that_are_not_text_survive() -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")
    body = Frame(Kind.SPAWN, payload=pack({"argv": [name]})).body()
    assert body["argv"][0].encode(errors="surrogateescape") == b"caf\xe9"


@pytest.mark.parametrize("stream", [0, 1, 2, LIFE])
@pytest.mark.parametrize("kind", [Kind.DATA, Kind.SPAWN, Kind.EXIT])
def test_output_alone_comes_in_large_frames(kind: int, stream: int) -> None:
    longest = BULK_PAYLOAD if kind == Kind.DATA and stream in (1, 2) else MAX_PAYLOAD
    decoder = Decoder()
    (frame,) = decoder.feed(GREETING + header(kind, 1, stream, 0, longest) + bytes(longest))
    assert len(frame.payload) == longest
    with pytest.raises(ProtocolError, match=f"frame of {longest + 1} bytes"):
        list(decoder.feed(header(kind, 1, stream, 0, longest + 1)))
