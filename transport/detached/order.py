"""A detached job as its supervisor gets it: the program, its directory, the bounds of its output."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

QUOTA = 1 << 30  # bytes of output that nobody has read


class Order:
    """A job to start. `facts` go into the record; `stdin` is what the job reads, None for what peers send it.

    `at` holds the directory `cwd` (`launcher/workdir.py`), which is left after the job; -1 if nobody leaves it.
    """

    __slots__ = ("argv", "at", "cwd", "deadline", "env", "facts", "keep", "limits", "quota", "stdin")

    def __init__(
        self,
        argv: list[str],
        env: Mapping[str, str],
        cwd: str,
        limits: list[tuple[int, int]],
        facts: dict[str, Any],
        stdin: int | None = None,
        quota: int = QUOTA,
        keep: tuple[int, ...] = (),
        deadline: float = 0.0,
        at: int = -1,
    ) -> None:
        self.at = at
        self.deadline = deadline
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.limits = limits
        self.facts = facts
        self.stdin = stdin
        self.quota = quota
        self.keep = keep
