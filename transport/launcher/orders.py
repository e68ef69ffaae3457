"""The orders of starts, as the node sends them to its launcher, and the launcher to a spare; and their jobs."""

from __future__ import annotations

import fcntl
import os

from transport import inherit, quickjson, this_build
from transport.launcher import child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # Given the arguments of an `own` job: does its work in a forked child; None if a new program is needed.
    Inside = Callable[[list[str]], Callable[[], None] | None]


class Made:
    """A job that was started. `slot`: its place in the table if it had a quick start."""

    __slots__ = ("folder", "number", "slot")

    def __init__(self, number: int, folder: str, slot: int = 0) -> None:
        self.number = number
        self.folder = folder
        self.slot = slot


def start_of(data: bytes, fds: list[int], inside: Inside, files: int) -> child.Start:
    """Return the start of a message, with its descriptors less the report. The caller owns `keep`."""
    order = read(data, fds)[2]
    argv, work = order["argv"], None
    if order["own"]:
        work = inside(argv)
        argv = [*this_build.own_command(), *argv]
    memo = fcntl.fcntl(fds[3], fcntl.F_DUPFD_CLOEXEC, inherit.FIRST_FD)
    return child.Start(
        argv,
        {**order["env"], inherit.VARIABLE: str(memo)},
        order["cwd"],
        fds[:3],
        limits=[(number, value) for number, value in order["limits"]],
        keep=(memo,),
        folder=order["folder"],
        files=files,
        terminal=order["terminal"],
        umask=order["umask"],
        inside=work,
    )


def read(data: bytes, fds: list[int]) -> list[Any]:
    """Parse a message; a large one is in the last of its descriptors."""
    words: list[Any] = quickjson.loads(data)
    if words == ["large"]:
        words = quickjson.loads(os.pread(fds[-1], os.fstat(fds[-1]).st_size, 0))
    return words
