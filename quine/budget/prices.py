"""Prices of inferences in US dollars: the vendors' public prices, and the user's own.

Laws
1. An unknown price is None, never 0: with a budget in dollars the model is refused, instead of a surprise later.
2. The cost that the provider itself reports (`Usage.cost`) overrides every table.
3. Prices are loaded on first use; a process that needs none does not load them.
4. Each file is read once. A process that pays for others reads it before it serves any of them (`settle`), and then
   neither it nor its forks look at a file again: a command could write one, and infer for nothing.
"""

from __future__ import annotations

import os
import sys

from quine.base.errors import Misconfigured
from quine.base.messages import Usage
from transport.address import user_directory
from transport.lean import Any, NamedTuple
from transport.provenance import safe_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


VARIABLE = "QUINE_PRICES"
# Defaults if a file gives none: prices of cache reads and writes, as multiples of the input price.
CACHED = (("claude-", 0.1, 1.25),)
LARGEST = 1 << 20  # bytes of a file
MOST = 1e6  # dollars for a million tokens: more than a dollar each is a typing error

_read: dict[str, dict[str, Price]] = {}  # by the path of the user's file, which may not exist
_settled: dict[str, Price] | Misconfigured | None = None  # by `settle`


class Price(NamedTuple):
    """US dollars per million tokens; `long_input` and `long_output` apply to a prompt of more than `long` tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float
    long: float = 0.0
    long_input: float = 0.0
    long_output: float = 0.0


NEEDED = ("input", "output")


def cost(model: str, usage: Usage, environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the dollars of one inference; None if the price is unknown. Raises Misconfigured for a bad file."""
    if usage.cost:
        return usage.cost
    price = _find(model, _prices(environ))
    if price is None:
        return None
    fresh = max(0, usage.input - usage.cache_read - usage.cache_write)
    dollars = (
        fresh * price.input + usage.cache_read * price.cache_read + usage.cache_write * price.cache_write
    )
    output = price.output
    if 0 < price.long < usage.input:
        dollars *= price.long_input / price.input if price.input else 1.0
        output = price.long_output
    return (dollars + usage.output * output) / 1e6


def path(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the user's file of prices, which may not exist."""
    return os.path.expanduser(environ.get(VARIABLE, "")) or default_path(environ)


def default_path(environ: Mapping[str, str]) -> str:
    return os.path.join(user_directory("config", environ), "quine", "prices.toml")


def known(model: str, environ: Mapping[str, str] = os.environ) -> bool:
    return _find(model, _prices(environ)) is not None


def _find(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Find a price by the name, by the name without a date, by the longest matching prefix."""
    for name in (model, _undated(model)):
        if name in prices:
            return prices[name]
    fit = [name for name in prices if name.endswith("*") and model.startswith(name[:-1])]
    return prices[max(fit, key=len)] if fit else None


def _undated(model: str) -> str:
    """Strip the date, as from claude-haiku-4-5-20251001, claude-haiku-4-5@20251001 and gpt-5.4-2026-03-05."""
    for size in (8, 10):
        name, mark, date = model[: -size - 1], model[-size - 1 : -size], model[-size:]
        whole = date.replace("-", "") if size == 10 and date[4::3] == "--" else date
        if name and mark in "-@" and len(whole) == 8 and whole.isdigit():
            return name
    return model


def settle(environ: Mapping[str, str]) -> None:
    """Read the prices of `environ` for good. Every later call returns them, or raises the error of their file."""
    global _settled
    try:
        _settled = _prices(environ)
    except Misconfigured as wrong:
        _settled = wrong


def _prices(environ: Mapping[str, str]) -> dict[str, Price]:
    """Return the built-in prices, overridden by the user's."""
    if isinstance(_settled, Misconfigured):
        raise Misconfigured(_settled.detail, _settled.hint)
    if _settled is not None:
        return _settled
    name = path(environ)
    if name not in _read:
        ours = _load(os.path.join(os.path.dirname(__file__), "prices.toml"))
        own = environ.get(VARIABLE) or os.path.exists(name)
        _read[name] = {**ours, **_load(name, own=True)} if own else ours
    return _read[name]


def parser() -> Any:
    """Load and return the module that parses files of prices. Raises ImportError."""
    from importlib import import_module

    return import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def _load(path: str, own: bool = False) -> dict[str, Price]:
    """Read a file of prices. `own`: that of the user, which must be his by owner and mode."""
    try:
        tomllib = parser()
    except ImportError:  # tomli comes to an older host that makes inferences itself
        raise Misconfigured(f"{path}: this Python cannot read TOML", "Python 3.11 or newer can") from None
    try:
        with os.fdopen(safe_path.named(path), "rb") if own else open(path, "rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise Misconfigured(f"{path}: more than {LARGEST} bytes", f"see {VARIABLE}")
        data = tomllib.loads(text.decode())
    except safe_path.Unsafe as unsafe:
        raise Misconfigured(str(unsafe), unsafe.hint) from None
    except OSError as error:
        raise Misconfigured(f"{path}: {(error.strerror or '').lower()}", f"see {VARIABLE}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: not TOML: {str(error).lower()}") from None
    if unknown := data.keys() - {"models"}:
        raise Misconfigured(f"{path}: {min(unknown)}: unknown table", "prices stand in [models]")
    models = data.get("models", {})
    if not isinstance(models, dict):
        raise Misconfigured(f"{path}: models: must be a table")
    return {name: _price(name, told, f'{path}: models."{name}"') for name, told in models.items()}


def _price(name: str, told: Any, where: str) -> Price:
    if not isinstance(told, dict):
        raise Misconfigured(f"{where}: must be a table", f'"{name}" = {{ input = 1.5, output = 7.5 }}')
    for key, value in told.items():
        if key not in Price._fields:
            raise Misconfigured(f"{where}: {key}: unknown key", f"known are {', '.join(Price._fields)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Misconfigured(f"{where}: {key}: must be a number, not {value!r}")
        if not (0 <= value <= MOST or (key == "long" and value >= 0)):  # nan fails both comparisons
            raise Misconfigured(f"{where}: {key}: {value} is no price in US dollars per million tokens")
    for key in (*NEEDED, *(("long_input", "long_output") if "long" in told else ())):
        if key not in told:
            raise Misconfigured(f"{where}: {key}: is missing")
    read, write = next((c[1:] for c in CACHED if name.startswith(c[0])), (1.0, 1.0))
    return Price(**{"cache_read": told["input"] * read, "cache_write": told["input"] * write, **told})
