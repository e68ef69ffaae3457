"""The values of the options of `quine budget`: counts as 200k or 2M, dollars, times as 5m."""

from __future__ import annotations

from quine.base import sizes
from quine.base.cli_options import RunOptions
from quine.base.errors import Misconfigured

MOST = 10**9  # of any limit but tokens


def limits(options: RunOptions) -> tuple[int | None, float | None, float | None]:
    """Return (tokens, dollars, seconds) as they were given; 0 = no limit, None = not given. Raises Misconfigured."""
    tokens = whole(options, "max_tokens") if options.max_tokens else None
    cost = None
    if options.max_cost:
        try:
            cost = float(options.max_cost)
        except ValueError:
            raise Misconfigured(f"--max-cost must be a number, not {options.max_cost[:80]!r}") from None
        if not 0 <= cost <= MOST:
            raise Misconfigured(f"--max-cost must be 0 or more, and not more than {MOST}")
    deadline = sizes.seconds(options.deadline, "--deadline") if options.deadline else None
    if deadline is not None and deadline > MOST:
        raise Misconfigured(f"--deadline must not be more than {MOST} seconds")
    return tokens, cost, deadline


def whole(options: RunOptions, name: str) -> int:
    """Return a count, as 200, 50k or 2M; 0 if it was not given. Raises Misconfigured."""
    shown = f"--{name.replace('_', '-')}"
    value = sizes.count(str(getattr(options, name)) or "0", shown)
    most = MOST * (1000 if name == "max_tokens" else 1)
    if value > most:
        raise Misconfigured(f"{shown} must not be more than {most}")
    return value
