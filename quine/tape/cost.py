"""`quine tape cost`: tokens and dollars of a session, a tree or a data directory, by model.

Laws
1. Each inference is priced on its own, because the price of a model depends on the length of the prompt.
2. A cost without a known price is reported as unknown, in its row and in the total; it never counts as zero.
3. If a tape has only the token totals of the session (the reference, a reply without usage), the cost is an estimate
   and marked so.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from quine.base.messages import Usage
from quine.base.text import plain, table
from quine.budget import prices
from quine.tape.reader import Session, batch, find, none_in, sessions, tree
from transport import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Row(NamedTuple):
    """One model. `usd` is None if no part of it has a price; `complete` is True if all of it has."""

    model: str
    inferences: int
    usage: Usage
    usd: float | None
    complete: bool = True
    estimated: bool = False

    def plus(self, other: Row) -> Row:
        known = [one.usd for one in (self, other) if one.usd is not None]
        return self._replace(
            inferences=self.inferences + other.inferences,
            usage=self.usage + other.usage,
            usd=sum(known) if known else None,
            complete=self.complete and other.complete,
            estimated=self.estimated or other.estimated,
        )

    def cells(self) -> tuple[str, ...]:
        usage = self.usage
        counts = (usage.input, usage.cache_read, usage.cache_write, usage.output)
        model = plain(self.model, newlines=False) or "-"
        return model, str(self.inferences), *map(str, counts), self.money()

    def money(self) -> str:
        if self.usd is None:
            return "unknown price"
        text = f"{'~' if self.estimated else ''}{self.usd:.4f}"
        return text if self.complete else f"{text} and unknown prices"

    def json(self) -> str:
        facts = {
            "model": self.model,
            "inferences": self.inferences,
            "tokens_in": self.usage.input,
            "cache_read": self.usage.cache_read,
            "cache_write": self.usage.cache_write,
            "tokens_out": self.usage.output,
            "usd": self.usd,
            "complete": self.complete,
            "estimated": self.estimated,
        }
        return quickjson.dumps(facts) + "\n"


def cost(folder: Path, session: str = "", whole_tree: bool = False, as_json: bool = False) -> str:
    """Return the cost of all sessions, of one or of its whole tree: a table or JSON lines, one row per model.

    `session` may be a batch, which is all of its agents.
    """
    chosen: Iterable[Session] = batch(folder, session)
    if chosen:
        pass
    elif whole_tree:
        chosen = tree(folder, session)
    elif session:
        chosen = [find(folder, session)]
    elif not (chosen := sessions(folder).values()):
        raise none_in(folder)
    by_model: dict[str, Row] = {}
    for row in (row for one in chosen for row in _rows(one)):
        by_model[row.model] = by_model[row.model].plus(row) if row.model in by_model else row
    rows = sorted(by_model.values())
    if as_json:
        return "".join(row.json() for row in rows)
    total = Row("total", 0, Usage(), None if rows else 0.0)
    for row in rows:
        total = total.plus(row)
    head = ("MODEL", "INFERENCES", "IN", "CACHED", "WRITTEN", "OUT", "USD")
    return table([head, *(row.cells() for row in (*rows, total))], right=(1, 2, 3, 4, 5))


def known(one: Session) -> float | None:
    """The cost of one session in US dollars; None where the price of any of it is unknown."""
    rows = list(_rows(one))
    if any(row.usd is None or not row.complete for row in rows):
        return None
    if not rows and prices.cost(one.model, Usage()) is None:
        return None  # as it will be after the first reply
    return sum(row.usd or 0.0 for row in rows)


def _rows(one: Session) -> Iterator[Row]:
    """Yield a row per inference; if a reply lacks its usage, one estimated row for the session."""
    if one.replies and any(reply.usage is None for reply in one.replies):
        number, told = len(one.replies), one.tokens()
        usd = prices.cost(one.model, Usage(told[0] // number, told[1] // number))
        usage = Usage(*told)
        yield Row(one.model, number, usage, None if usd is None else usd * number, usd is not None, True)
        return
    for reply in one.replies:
        usage = reply.usage or Usage()
        usd = prices.cost(reply.model, usage)
        yield Row(reply.model, 1, usage, usd, usd is not None)
