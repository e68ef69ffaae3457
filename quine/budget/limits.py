"""The limits of one session, as its tree was started with them."""

from __future__ import annotations

from typing import NamedTuple


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
