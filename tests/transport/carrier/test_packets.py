"""The borders of packets: however they come, in order, none of two packets, nothing held back."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from transport.carrier.ssh.packets import LENGTH, TAG, by_packet


@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(0, 700), max_size=12))
def test_a_piece_is_of_one_packet(contents: list[bytes], cuts: list[int]) -> None:
    packets = [len(content).to_bytes(LENGTH, "big") + content + b"t" * TAG for content in contents]
    stream = b"".join(packets)
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    got: list[bytes] = []
    pieces = by_packet(lambda data, _: got.append(data))
    for first, last in itertools.pairwise(edges):
        if first < last:
            pieces(stream[first:last])
        assert b"".join(got) == stream[:last]
    borders = set(itertools.accumulate(map(len, packets), initial=0))
    places = list(itertools.accumulate(map(len, got), initial=0))
    for place, piece in zip(places, got, strict=False):
        assert piece
        assert not any(place < border < place + len(piece) for border in borders)
    assert set(places) <= borders | set(edges)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=12))
def test_what_is_no_packet_passes(parts: list[bytes]) -> None:
    got: list[tuple[bytes, int | None]] = []
    pieces = by_packet(lambda data, datatype: got.append((data, datatype)))
    passed = b""
    for part in parts:
        pieces(part, None)
        passed += part
        assert b"".join(data for data, _ in got) == passed
