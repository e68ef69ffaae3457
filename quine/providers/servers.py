"""The table of model servers, `servers.toml`: the meaning of their errors and ends, as data. Its head describes it.

Laws
1. A server is a row. No code names one, but for what a request to it has to have.
2. The table is read when the first error has to be judged: an agent that meets none does not pay for it.
3. A row belongs to the hosts that it names. A server that runs on anybody's host is judged by the common rules, which
   come last for all.
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
    found = [
        rule
        for server in table()["servers"].values()
        if kind in server["speaks"]
        and any(host == name or host.endswith(f".{name}") for name in server["hosts"])
        for rule in server["judge"]
    ]
    return tuple(map(_rule, [*found, *table()["common"]["judge"]]))


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
