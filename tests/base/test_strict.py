"""Bodies of requests: models take or refuse them, and name the field."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.strict import HEX, Strict, flag, integer, items, mapping, number, parse, text
from transport.errors import RequestError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class _Model(Strict):
    name: str = text(3, 1, letters="abcdefghijklmnopqrstuvwxyz")
    link: str = text(letters=HEX, sizes=(0, 4), default="")
    count: int = integer(9, default=0)
    share: float = number(1.0, default=0.5)
    done: bool = flag(False)
    lines: list[str] = items(text(2), 2)
    more: dict[str, int] = mapping(integer(1))


GOOD: dict[str, Any] = {"name": "ab", "lines": ["x"], "more": {"k": 1}}


def test_a_body_and_its_defaults() -> None:
    found = parse(_Model, json.dumps(GOOD).encode())
    assert (found.name, found.count, found.share, found.done) == ("ab", 0, 0.5, False)
    assert (found.lines, found.more) == (["x"], {"k": 1})
    assert all(
        parse(_Model, json.dumps({**GOOD, "link": link}).encode()).link == link for link in ("", "0af9")
    )
    found = parse(_Model, json.dumps({**GOOD, "share": 1, "done": True, "count": 9}).encode())
    assert (found.share, found.done, found.count) == (1, True, 9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"other": 1}, "other: extra inputs are not permitted"),
        ({"name": None}, "name: not of type string"),
        ({"name": ""}, "name: not between 1 and 3"),
        ({"name": "abcd"}, "name: not between 1 and 3"),
        ({"name": "AB"}, "name: not of the form"),
        ({"name": "ab\n"}, "name: not of the form"),
        ({"name": "aBc"}, "name: not of the form"),
        ({"link": "abc"}, "link: not of the form"),
        ({"link": "abcg"}, "link: not of the form"),
        ({"count": True}, "count: not of type integer"),
        ({"count": 1.0}, "count: not of type integer"),
        ({"count": -1}, "count: not between 0 and 9"),
        ({"share": 1.01}, "share: not between 0 and 1"),
        ({"share": False}, "share: not of type number"),
        ({"done": 1}, "done: not of type boolean"),
        ({"lines": ["a", "b", "c"]}, "lines: not between 0 and 2"),
        ({"lines": ["abc"]}, "lines: not between 0 and 2"),
        ({"lines": {"a": 1}}, "lines: not of type list"),
        ({"more": {"k": "v"}}, "more: not of type integer"),
    ],
)
def test_what_is_refused_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=f"^model: {said}"):
        parse(_Model, json.dumps({**GOOD, **change}).encode())


def test_a_missing_field_and_a_body_that_is_none() -> None:
    with pytest.raises(RequestError, match="model: name: missing"):
        parse(_Model, b'{"lines": [], "more": {}}')
    with pytest.raises(ValueError, match="share: not between"):  # no JSON has one, a caller may
        _Model({**GOOD, "share": math.nan})
    for body in (b"[]", b"null", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(RequestError, match=r"^model: "):
            parse(_Model, body)


def test_half_a_surrogate_pair_is_text() -> None:
    """Bytes of an agent's own that are not UTF-8 become such."""

    class Any_(Strict):
        mission: str = text(9)

    assert parse(Any_, b'{"mission": "\\ud800"}').mission == "\ud800"


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from([*GOOD, "count", "share", "done", "other"]), JSON))
def test_any_body_is_taken_or_refused(body: dict[str, Any]) -> None:
    try:
        found = parse(_Model, json.dumps(body).encode())
    except RequestError:
        return
    assert isinstance(found.name, str) and 0 <= found.count <= 9 and 0 <= found.share <= 1
    assert all(isinstance(line, str) and len(line) <= 2 for line in found.lines)
