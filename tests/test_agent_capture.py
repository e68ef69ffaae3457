"""Captured output: however it is cut into pieces, the same is shown and the whole is kept."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from quine.capture import Capture


@given(
    text=st.text(alphabet="aä€😀\n", max_size=120), cuts=st.lists(st.integers(1, 7)), limit=st.integers(0, 40)
)
def test_any_pieces(text: str, cuts: list[int], limit: int) -> None:
    data = text.encode()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "sub", "whole")
        whole, pieces = Capture(limit, str(path)), Capture(limit, f"{path}.2")
        whole.feed(data)
        left = data
        while left:
            size = cuts[len(left) % len(cuts)] if cuts else 1
            pieces.feed(left[:size])
            left = left[size:]
        shown = pieces.text()
        assert shown.replace(f"{path}.2", str(path)) == whole.text()
        assert pieces.total == len(data)
        if len(data) <= limit:
            assert shown == text
            assert not path.parent.exists()
        else:
            assert path.read_bytes() == Path(f"{path}.2").read_bytes() == data
            head, _, tail = shown.partition("\n...[Output Truncated")
            tail = tail.split("]...\n", 1)[1]
            assert text.startswith(head) and text.endswith(tail)  # whole characters at both cuts
            assert len((head + tail).encode()) <= limit
