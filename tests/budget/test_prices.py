"""The price of an inference: built-in prices, the user's prices, and errors in a file of prices."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.base.messages import Usage
from quine.budget import prices

ROOT = Path(prices.__file__).parent
NOBODY = {"XDG_CONFIG_HOME": "/nonexistent"}
MILLION = 1_000_000


def user(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "my.toml"
    path.write_text(text)
    return {"QUINE_PRICES": str(path)}


def of(model: str, *usage: float, environ: dict[str, str] = NOBODY) -> float | None:
    return prices.cost(model, Usage(*usage), environ)  # type: ignore[arg-type]


def test_tokens_have_their_prices() -> None:
    assert of("claude-opus-5", 100_000, 0) == pytest.approx(0.5)
    assert of("claude-opus-5", 0, 1000) == pytest.approx(0.025)
    # input counts all of the prompt: 10,000 new, 80,000 read from the cache, 10,000 written to it
    assert of("claude-opus-5", 100_000, 0, 80_000, 10_000) == pytest.approx(0.05 + 0.04 + 0.0625)
    assert of("gpt-5", 1000, 1000, 500, 0, 900) == pytest.approx((500 * 1.25 + 500 * 0.125 + 10_000) / 1e6)


def test_what_the_provider_tells_wins() -> None:
    assert of("claude-opus-5", 100, 100, 0, 0, 0, 0.125) == 0.125
    assert of("nobody-knows", 100, 100, 0, 0, 0, 0.125) == 0.125


def test_unknown_is_not_free() -> None:
    assert of("llama3", 100, 100) is None
    assert not prices.known("llama3", NOBODY)
    assert not prices.known("", NOBODY)
    assert prices.known("gpt-5", NOBODY)


@pytest.mark.parametrize(
    ("model", "like"),
    [
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"), ("claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        ("gpt-5.4-2026-03-05", "gpt-5.4"), ("gpt-5.4-mini", "gpt-5.4-mini"), ("gpt-5.4-nano", None),
        ("gpt-5-2026-3-5", None), ("gpt-5-2026x03x05", None), ("-20251001", None), ("gpt-5-20251001-x", None),
    ],
)  # fmt: skip
def test_dated_names(model: str, like: str | None) -> None:
    assert of(model, 999, 77) == (of(like, 999, 77) if like else None)


def test_a_long_prompt_has_other_prices() -> None:
    assert of("gpt-6.1-sol", 272_000, 1000) == pytest.approx((272_000 * 2 + 10_000) / 1e6)
    assert of("gpt-6.1-sol", 272_001, 1000) == pytest.approx((272_001 * 4 + 15_000) / 1e6)
    assert of("gpt-6.1-sol", 300_000, 0, 300_000) == pytest.approx(300_000 * 0.2 / 1e6)


def test_the_users_file(tmp_path: Path) -> None:
    environ = user(
        tmp_path,
        '[models]\n"llama*" = { input = 0, output = 0 }\n"llama3-big*" = { input = 1, output = 2 }\n'
        '"gpt-5" = { input = 3, output = 4 }\n"claude-mine" = { input = 2, output = 4 }\n',
    )
    assert of("llama3", 100, 100, environ=environ) == 0.0
    assert prices.known("llama3", environ)
    assert of("llama3-big-instruct", MILLION, MILLION, environ=environ) == 3.0
    assert of("gpt-5", MILLION, MILLION, MILLION, environ=environ) == 7.0, "replaced whole: no cheaper reads"
    assert of("claude-mine", MILLION, 0, MILLION, environ=environ) == pytest.approx(0.2)
    assert of("claude-mine", MILLION, 0, 0, MILLION, environ=environ) == pytest.approx(2.5)
    assert of("claude-opus-5", MILLION, 0, environ=environ) == 5.0


def test_a_file_without_a_bound_is_not_read(tmp_path: Path) -> None:
    """A command can make one of any size, at no cost: the broker reads it when it begins."""
    environ = user(tmp_path, "[models]\n")
    os.truncate(environ["QUINE_PRICES"], 1 << 40)
    with pytest.raises(Misconfigured, match="more than 1048576 bytes"):
        prices.known("m", environ)


def test_the_file_of_the_users_configuration(tmp_path: Path) -> None:
    (tmp_path / "quine").mkdir()
    (tmp_path / "quine" / "prices.toml").write_text('[models]\n"*" = { input = 1, output = 1 }\n')
    assert of("anything", MILLION, 0, environ={"XDG_CONFIG_HOME": str(tmp_path)}) == 1.0


def test_prices_that_are_settled_are_those_of_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that comes later counts for nobody, nor does the cure of a bad one."""
    monkeypatch.setattr(prices, "_settled", None)
    own = {"XDG_CONFIG_HOME": str(tmp_path)}
    free = '[models]\n"gpt-5" = { input = 0, output = 0 }\nanything = { input = 0, output = 0 }\n'
    prices.settle(own)
    (tmp_path / "quine").mkdir()
    (tmp_path / "quine" / "prices.toml").write_text(free)
    assert of("gpt-5", MILLION, 0, environ=own) == 1.25
    assert of("anything", MILLION, 0, environ=user(tmp_path, free)) is None
    monkeypatch.setattr(prices, "_settled", None)
    prices.settle(user(tmp_path / "quine", "[models"))
    user(tmp_path / "quine", free)
    for _ in range(2):
        with pytest.raises(Misconfigured, match="not TOML"):
            prices.known("gpt-5", own)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models", "not TOML"), ("[prices]\n", "prices: unknown table"), ("models = 3\n", "models: must be a table"),
        ("[models]\nx = 3\n", 'models."x": must be a table'),
        ("[models]\nx = { input = 1 }\n", 'models."x": output: is missing'),
        ("[models]\nx = { input = 1, output = 1, long = 5 }\n", "long_input: is missing"),
        ("[models]\nx = { input = 1, output = 1, cached = 1 }\n", 'models."x": cached: unknown key'),
        ("[models]\nx = { input = '1', output = 1 }\n", "input: must be a number, not '1'"),
        ("[models]\nx = { input = true, output = 1 }\n", "input: must be a number"),
        ("[models]\nx = { input = -1, output = 1 }\n", "input: -1 is no price"),
        ("[models]\nx = { input = nan, output = 1 }\n", "input: nan is no price"),
        ("[models]\nx = { input = inf, output = 1 }\n", "input: inf is no price"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    environ = user(tmp_path, text)
    with pytest.raises(Misconfigured) as caught:
        prices.cost("gpt-5", Usage(1), environ)
    assert caught.value.status == 2
    assert caught.value.detail.startswith(environ["QUINE_PRICES"])
    assert said in caught.value.detail


def test_a_file_that_others_can_write_is_not_read(tmp_path: Path) -> None:
    """Prices there decide how much an agent may spend."""
    environ = user(tmp_path, "[models]\nx = { input = 0, output = 0 }\n")
    path = environ["QUINE_PRICES"]
    os.chmod(path, 0o666)
    with pytest.raises(Misconfigured, match="others can write it") as caught:
        prices.cost("x", Usage(1), environ)
    assert caught.value.hint.endswith(f"chmod go-w {path}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no such file"):
        prices.known("gpt-5", {"QUINE_PRICES": str(tmp_path / "none.toml")})


def test_our_own_file_is_sound() -> None:
    """Cheaper to read than to send, dearer to write, dearer when long; and nothing stands in it twice."""
    with open(ROOT / "prices.toml", "rb") as file:
        told = tomllib.load(file)["models"]
    for name in told:
        few = 1000  # tokens: no prompt is long with that
        dollars = [
            of(name.replace("*", ""), *usage)
            for usage in ((few, 0, few), (few,), (few, 0, 0, few), (0, few), (few * 1000,), (few * 1000, few))
        ]
        assert None not in dollars, name
        read, fresh, write, reply, long, both = (one or 0.0 for one in dollars)
        assert 0 < read < fresh <= write <= 1.25 * fresh * (1 + 1e-9) < reply, name
        if "long" in told[name]:
            assert long > 1.1 * 1000 * fresh and both - long > 1.1 * reply, name


@settings(max_examples=30)
@given(st.text(max_size=30))
def test_any_name_may_be_asked_for(name: str) -> None:
    assert prices.known(name, NOBODY) == (of(name, 1) is not None)


def test_who_asks_for_no_price_reads_no_toml() -> None:
    code = "import sys, quine.budget.prices; print('tomllib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout == "False\n"
