"""Text of others is made harmless for a terminal, by one function with a replacement or with escapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.probe import plain as of_a_probe
from quine.base.text import plain
from quine.staging.manifest import shown
from transport.status import LONGEST, clip
from transport.text import harmless

CHARACTERS = st.characters() | st.sampled_from("\ud800\udc80\udfff\x00\x1b\x7f\x9b\u202e\u2028\n\t\r\\ä€")


@given(text=st.text(CHARACTERS), instead=st.sampled_from(["", "?", " ", "�"]))
def test_nothing_is_left_that_moves_a_cursor_or_cannot_be_encoded(text: str, instead: str) -> None:
    made = harmless(text, instead=instead)
    assert made.isprintable()
    made.encode()
    kept = harmless(text, keep="\n", instead=instead)
    assert kept.count("\n") == text.count("\n") and kept.replace("\n", "").isprintable()
    assert [c for c in text if c.isprintable()] == [c for c in text if c in made and c.isprintable()]


@pytest.mark.parametrize(
    ("text", "escaped", "replaced"),
    [
        ("plain ä\\", "plain ä\\", "plain ä\\"),
        ("\x1b[2J\x7f", r"\x1b[2J\x7f", "?[2J?"),
        ("a\nb\tc\r", r"a\nb\tc\r", "a?b?c?"),
        ("\u202eevil", r"\u202eevil", "?evil"),
        ("no utf-8: \udcff", r"no utf-8: \xff", "no utf-8: ?"),
        ("half: \ud800", r"half: \ud800", "half: ?"),
    ],
)
def test_escapes_and_replacements(text: str, escaped: str, replaced: str) -> None:
    assert (harmless(text), harmless(text, instead="?")) == (escaped, replaced)


def test_each_user_keeps_or_cuts_as_it_needs() -> None:
    assert plain("a\n\tb\x1b") == "a\n\tb\\x1b" and plain("a\nb", newlines=False) == r"a\nb"
    assert of_a_probe(b"a\nb\x1b[0m\xff") == "a\nb [0m\ufffd"
    assert shown(b"x" * 300 + b"\xff\x1b") == "x" * 198 + r"\xff\x1b"
    assert clip("\x1b" * 3 * LONGEST) == (r"\x1b" * LONGEST)[: LONGEST - 1] + "…"
