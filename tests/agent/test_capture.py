"""Captured output: however it is cut into pieces, the same is shown and the whole is kept."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.agent.capture import HEADERS, Capture, quoted
from quine.agent.outcome import sections
from quine.base.log import Log


@settings(max_examples=50)
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


# zero-width space, byte order mark, variation selector, soft hyphen; colours, a title, an 8-bit sequence
HIDDEN = (
    "\u200b",
    "\ufeff",
    "\ufe0f",
    "\xad",
    "\x1b[0m",
    "\x1b[38;5;1m\x1b[K",
    "\x1b]0;t\x07",
    "\x9b1m",
    "\b",
)
LINES = st.lists(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["", " ", "\\", "\\\\", *HIDDEN, "\\\u200b\\"]),
        st.sampled_from([*HEADERS, "[INFO]", "[", "", "[TIME\u2060 LIMIT]", "[\x1b[1mSTDOUT\x1b[0m]"]),
        st.sampled_from(["", " 0", "x"]),
    ),
    max_size=4,
)


@given(lines=LINES, newline=st.sampled_from(["\n", "\r", "\r\n", "\u2028"]))
def test_no_output_can_be_taken_for_a_header(lines: list[str], newline: str) -> None:
    text = newline.join(lines)
    shown = quoted(text)
    result = sections(0, shown, "")
    hidden = re.compile("|".join(map(re.escape, (*HIDDEN, "\u2060", "\x1b[1m"))))
    assert [line for line in result.splitlines() if hidden.sub("", line).startswith(HEADERS)] == [
        "[EXIT CODE] 0",
        "[STDOUT]",
        "[STDERR]",
    ]
    # and it can be told what it was: one backslash less where only backslashes are seen before a header
    lines = shown.splitlines(keepends=True)
    headed = [hidden.sub("", line).lstrip("\\").startswith(HEADERS) for line in lines]
    assert "".join(line[is_headed:] for line, is_headed in zip(lines, headed, strict=True)) == text
    assert quoted("a [STDOUT]\n[INFO] b\n") == "a [STDOUT]\n[INFO] b\n"


def test_both_ends_of_a_long_output_are_quoted(tmp_path: Path) -> None:
    one = Capture(40, str(tmp_path / "whole"))
    one.feed(b"[STDERR]\n" * 100)
    shown = one.text()
    assert len([line for line in shown.splitlines() if line.startswith(HEADERS)]) == 1
    assert (tmp_path / "whole").read_bytes() == b"[STDERR]\n" * 100


def _too_late(*_: object) -> None:
    raise TimeoutError


@pytest.mark.parametrize("read", [False, True])
def test_a_pipe_in_the_place_of_a_file_of_ours_holds_nothing_up(tmp_path: Path, read: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if read else -1
    before = signal.signal(signal.SIGALRM, _too_late)  # the open would never return
    signal.alarm(30)
    try:
        capture = Capture(10, str(pipe))
        capture.feed(b"x" * 100)
        assert "100 bytes total, the whole could not be kept: no regular file" in capture.text()
        with pytest.raises(OSError, match="no regular file"):
            Log(str(pipe)).write("x")
        Log(str(pipe)).note("x")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        if read:
            assert os.read(reader, 1) == b""
            os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]


def test_every_header_is_known() -> None:
    """A new one in the host loop, its tools and its notes has to be one that output cannot forge."""
    root = Path(__file__).resolve().parents[2] / "quine"
    texts = [path.read_text() for path in root.rglob("*.py")]
    found = {match for text in texts for match in re.findall(r"""["'\n](\[[A-Z][A-Z ]+\])""", text)}
    elsewhere = {"[DONE]", "[OPTIONS]"}  # the end of a provider's stream; the command line's help
    assert found - elsewhere <= set(HEADERS) and len(found) > 10
