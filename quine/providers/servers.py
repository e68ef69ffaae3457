"""The table of model servers, `servers.toml`: the meaning of their errors and ends, as data. Its head describes it.

Laws
1. A server is a row. No code names one, but for what a request to it has to have.
2. The table is read when the first error has to be judged: an agent that meets none does not pay for it.
3. A row belongs to the hosts that it names. A host without a row of its own is judged by what is said at all servers
   that run on anybody's host. The common rules come last for all.
"""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from importlib import import_module

from transport.lean import Any, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

TABLE = os.path.join(os.path.dirname(__file__), "servers.toml")


class Rule(NamedTuple):
    """A rule for errors. It fits if one of its statuses does, and one of its codes or words; none of a kind fit all."""

    trouble: str
    act: str
    statuses: frozenset[int]
    codes: frozenset[str]
    words: re.Pattern[str] | None

    def fits(self, status: int, codes: Collection[str], text: str) -> bool:
        if self.statuses and status not in self.statuses:
            return False
        if not (self.codes or self.words):
            return True
        return not self.codes.isdisjoint(codes) or bool(self.words and self.words.search(text))


@lru_cache(maxsize=1)
def table() -> dict[str, Any]:
    """The table as it is in its file."""
    # tomli comes to an older host that makes inferences itself
    tomllib: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    with open(TABLE, "rb") as file:
        found: dict[str, Any] = tomllib.load(file)
    return found


@lru_cache(maxsize=256)
def rules(host: str, kind: str) -> tuple[Rule, ...]:
    """The rules for a host that is asked in a dialect, the first one first."""
    named = _of(host, kind)
    found = [rule for server in named or _anywhere(kind) for rule in server["judge"]]
    if not named:  # any of them: their codes are those of many troubles, and their words of one
        found = [{**rule, "c": []} for rule in found if rule["w"]]
    return tuple(map(_rule, [*found, *table()["common"]["judge"]]))


def windows(host: str, kind: str) -> list[dict[str, str]]:
    """The ways to ask a host for the context that it serves: its own, or those of all servers that name no host."""
    return [dict(row) for server in _of(host, kind) or _anywhere(kind) for row in server["window"]]


def models(kind: str) -> dict[str, str]:
    """The way to ask for the names of models in a dialect."""
    return dict(table()["models"][kind])


def _anywhere(kind: str) -> list[Mapping[str, Any]]:
    """The servers that run on anybody's host."""
    return [each for each in table()["servers"].values() if not each["hosts"] and kind in each["speaks"]]


def _of(host: str, kind: str) -> list[Mapping[str, Any]]:
    """The servers that have this host and speak the dialect."""
    return [
        server
        for server in table()["servers"].values()
        if kind in server["speaks"]
        and any(host == name or host.endswith(f".{name}") for name in server["hosts"])
    ]


def _rule(row: Mapping[str, Any]) -> Rule:
    words = re.compile("|".join(f"(?:{word})" for word in row["w"]), re.DOTALL) if row["w"] else None
    return Rule(row["t"], row["act"], frozenset(row["s"]), frozenset(row["c"]), words)


@lru_cache(maxsize=1)
def _no_overflow() -> re.Pattern[str]:
    return re.compile("|".join(table()["common"]["not_overflow"]))


def trouble(host: str, kind: str, status: int, codes: Collection[str], text: str) -> str:
    """Return the trouble that an error is; "" if no rule fits.

    `status` is 0 inside a 200. `codes` and `text` are in small letters.
    """
    for rule in rules(host, kind):
        if rule.fits(status, codes, text) and not (
            rule.trouble == "overflow" and _no_overflow().search(text)
        ):
            return rule.trouble
    return ""
