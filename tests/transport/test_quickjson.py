"""quickjson is json, quicker to import."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import quickjson

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
both = pytest.mark.parametrize("pair", [quickjson._from_c, quickjson._from_json], ids=["c", "json"])


@both
@given(value=values)
def test_the_same_as_json(pair: object, value: object) -> None:
    loads, dumps, readable = pair()  # type: ignore[operator]
    assert readable(value) == json.dumps(value, ensure_ascii=False)
    text = dumps(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert loads(text) == json.loads(text) == value
    assert loads(f" \n{text}\t".encode()) == value


@both
@given(text=st.text(alphabet='{}[]",:0123eE+-.tfnul \\u"', max_size=30))
def test_refuses_what_json_refuses(pair: object, text: str) -> None:
    loads, _, _ = pair()  # type: ignore[operator]
    try:
        want = json.loads(text)
        json.dumps(want, allow_nan=False)
    except ValueError:
        with pytest.raises(ValueError):
            loads(text)
    else:
        assert loads(text) == want


@both
@pytest.mark.parametrize(
    "bad", [b"", b"\xff", b"NaN", b"-Infinity", b"{}{}", b"nul", b'"\n"', b"1e999", b"[-1E400]"]
)
def test_what_is_no_json(pair: object, bad: bytes) -> None:
    with pytest.raises(ValueError):
        pair()[0](bad)  # type: ignore[operator]


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf, {1, 2}, b"x"])
def test_what_cannot_be_json(pair: object, bad: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        pair()[1](bad)  # type: ignore[operator]


@both
def test_deep_nesting_is_an_error_and_no_crash(pair: object) -> None:
    with pytest.raises(ValueError, match="it nests too deep"):
        pair()[0]("[" * 200_000)  # type: ignore[operator]


def test_refuses_also_where_json_was_never_imported() -> None:
    code = """
import sys
from transport import quickjson
for bad in ('{"a', '"', '{"a" 1}', '[1', '"\\\\x"'):
    try:
        quickjson.loads(bad)
    except ValueError:
        continue
    sys.exit(bad)
sys.exit("json" in sys.modules and sys.version_info < (3, 12) and "json was imported")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
