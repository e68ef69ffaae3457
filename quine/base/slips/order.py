"""Options behind a mission: they would be words of it, and the agent would run here, without its limits."""

from __future__ import annotations

from quine.base.cli_options import ALIASES
from quine.base.errors import Misconfigured
from quine.base.slips.words import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quine.base.cli_options import Row

SHOWN = 200  # characters of a mission in a hint
INSTEAD = ("help", "version")  # options that need no mission


class _Options:
    """The options of one table, as they are spelled on a command line."""

    def __init__(self, table: Iterable[Row]) -> None:
        rows = list(table)
        self._rows = {f"--{row[0]}": row for row in rows} | {f"-{row[1]}": row for row in rows if row[1]}
        for other, name in ALIASES.items():
            if f"--{name}" in self._rows:
                self._rows[f"--{other}"] = self._rows[f"--{name}"]

    def spelled(self, word: str) -> Row | None:
        """Return the option that a word is: -s, --name or --name=value; None if it is another word."""
        name, given, _ = word.partition("=")
        return self._rows.get(name if given and word.startswith("--") else word)

    def sorted_out(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Return the options among some words, with their values, and the other words. `--` ends the options."""
        options: list[str] = []
        others: list[str] = []
        todo = words[::-1]
        while todo and todo[-1] != "--":
            word = todo.pop()
            row = self.spelled(word)
            (others if row is None else options).append(word)
            if row and row[2] and "=" not in word and todo:
                options.append(todo.pop())
        return options, others + todo[::-1]


def behind(
    table: Iterable[Row], words: list[str], mission: list[str], verb: str = "", items: Sequence[str] = ()
) -> Misconfigured | None:
    """Return the error if an option of the table is behind the first word of a mission; else None.

    `words` are the command line behind `verb`: options, then `mission`, then for xargs the `items`. The first word of
    the mission may stand in an option instead.
    """
    own, rest = _Options(table), mission[1:]
    before = words[: max(len(words) - len(rest) - len(items) - 1, 0)]
    looked = rest[: rest.index("--")] if "--" in rest else rest
    wrong = next((word for word in looked if own.spelled(word)), "")
    if not wrong or before[-1:] == ["--"]:
        return None
    options, others = own.sorted_out(rest)
    instead = [word for word in options if (row := own.spelled(word)) and row[0] in INSTEAD]
    quine = ["quine", verb] if verb else ["quine"]
    short = len(" ".join([*mission, *items])) <= SHOWN
    if verb:
        literal = "--mission " + join([" ".join(mission) if short else "MISSION"])
    else:
        literal = join([*quine, *before, "--", *(mission if short else ["MISSION"])])
    shown = [mission[0], *others, *items] if short else ["MISSION"]
    right = join([*quine, instead[0]] if instead else [*quine, *options, *before, *shown])
    name = wrong.partition("=")[0]
    return Misconfigured(
        f"{name} is behind the mission, where it is no option",
        f"options come before the mission: {right}; for a mission with {name} in it: {literal}",
    )
