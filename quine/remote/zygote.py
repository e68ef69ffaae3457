"""The zygote of agents: it has loaded all that an agent of one turn needs, and the agents of its node are its forks.

Law: nothing is done here but imports, and what these leave to the first use. An agent reads its environment and its
directory itself.
"""

from __future__ import annotations

import os
import sys
import threading

import deploy.paths
import quine.agent.loop
import quine.agent.main
import quine.budget.leases
import quine.remote.compose
import transport.rpc.call
from quine.base import exposure
from transport.launcher import zygote
from transport.lean import prctl
from transport.this_build import build_hash, own_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_GET_DUMPABLE = 3  # of prctl(2); it changes nothing

LOADED = (
    threading,
    deploy.paths,
    quine.agent.loop,
    quine.agent.main,
    quine.budget.leases,
    quine.remote.compose,
    transport.rpc.call,
)


def serve(words: list[str], main: Callable[[], None]) -> int:
    """Run `quine node --zygote CHANNEL FILES ROOM`; see `transport.launcher.zygote.main`.

    ROOM is blank: the command lines of agents are written over that of this process. `main` is that of quine.
    """
    channel, files = map(int, words[:2])
    own = _own_words()
    exposure.argv([*own, "node", "--zygote", *words[:2]])
    build_hash()  # known from now on: it looks at every source
    prctl(_GET_DUMPABLE, 0)  # so is the way to it: a library that takes a millisecond to load

    def become(argv: list[str]) -> None:
        exposure.argv([*own, *argv])
        sys.argv[1:] = argv
        main()

    return zygote.main(channel, files, become)


def _own_words() -> list[str]:
    """Return the words that show this program in `ps`: where its launcher has started it, not those of the launcher."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")]
        return words[: words.index("--zygote") - 1]
    except (OSError, ValueError):
        return own_command()
