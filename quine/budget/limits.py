"""The limits of one session, as its tree was started with them."""

from __future__ import annotations

from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Limits(NamedTuple):
    """Limits of one session; 0 = no limit, except for depth."""

    turns: int = 20
    depth: int = 5
    agents: int = 10
    concurrent: int = 20
    sh_timeout: float = 600.0
    truncate: int = 20480
    window: int = 128000
    tokens: int = 0
    cost: float = 0.0  # US dollars
    deadline: float = 0.0  # seconds
    stored: int = 0  # bytes of the tree in the files tier; the root's holds


# limits that count for all agents of a ledger
SHARED = {"agents": "QUINE_MAX_AGENTS", "concurrent": "QUINE_MAX_CONCURRENT"}


def unset(environ: Mapping[str, str]) -> dict[str, int]:
    """Return 0 for each limit of SHARED that an environment does not name.

    Below a purse, and nested in a tree, that limit is the one from above, and not the default of a tree.
    """
    return {name: 0 for name, variable in SHARED.items() if not environ.get(variable)}
