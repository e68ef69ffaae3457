"""The packets of ssh in a stream: however they come, whole and in order, and at most one of them held back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.carrier.ssh.packets import LENGTH, LONGEST, TAG, by_packet


@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(0, 700), max_size=12))
def test_each_packet_comes_whole_with_its_last_byte(contents: list[bytes], cuts: list[int]) -> None:
    packets = [len(content).to_bytes(LENGTH, "big") + content + b"t" * TAG for content in contents]
    stream = b"".join(packets)
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    borders = list(itertools.accumulate(map(len, packets), initial=0))
    got: list[bytes] = []
    pieces = by_packet(lambda packet: got.append(bytes(packet)))
    for first, last in itertools.pairwise(edges):
        if first < last:
            pieces(stream[first:last])
        assert got == packets[: sum(border <= last for border in borders) - 1]
    assert got == packets


@pytest.mark.parametrize("cut", range(12))
def test_what_is_too_long_for_a_packet_passes_as_it_comes(cut: int) -> None:
    whole = (3).to_bytes(LENGTH, "big") + b"abc" + b"t" * TAG
    stream = whole + LONGEST.to_bytes(LENGTH, "big") + b"more"
    got: list[bytes] = []
    pieces = by_packet(lambda packet: got.append(bytes(packet)))
    for part in (stream[: len(whole) + cut - 4], stream[len(whole) + cut - 4 :], b"and", whole):
        pieces(part)
    assert got[0] == whole and b"".join(got) == stream + b"and" + whole
    assert got[-2:] == [b"and", whole]  # at once, and nothing is held back
