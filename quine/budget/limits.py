"""The limits of one session, as its tree was started with them."""

from __future__ import annotations

from quine.base import sizes
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
    stored: int = 0  # bytes of the tree in the files tier, or HALF_OF_FREE; the root's holds


# of `stored`: half of what is free there when the tree first uses it; until then nothing asks a file system for it
HALF_OF_FREE = (1 << 64) - 1
# limits that count for all agents of a ledger
SHARED = {"agents": "QUINE_MAX_AGENTS", "concurrent": "QUINE_MAX_CONCURRENT"}


def stored(environ: Mapping[str, str]) -> int:
    """Return the bytes that a tree may have in the files tier, as QUINE_FS_QUOTA says; 0 = no limit.

    Raises Misconfigured.
    """
    return sizes.of(environ, "QUINE_FS_QUOTA") if environ.get("QUINE_FS_QUOTA") else HALF_OF_FREE


def unset(environ: Mapping[str, str]) -> dict[str, int]:
    """Return 0 for each limit of SHARED that an environment does not name.

    Below a purse, and nested in a tree, that limit is the one from above, and not the default of a tree.
    """
    return {name: 0 for name, variable in SHARED.items() if not environ.get(variable)}
