"""Any command of the user that carries bytes to a shell over there, as `docker exec -i box` does.

Laws
1. One rule for all of them: /bin/sh is added behind a command that does not end with the name of a shell, and the
   bootstrap is one line on its stdin.
2. Nothing follows that line before the other side has answered, so a shell that reads ahead loses nothing.
3. Its end is a broken connection if it is killed, or says so with the status and in the words of ssh, which it may be.
   No other end can be told from one of the shell over there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from transport.carrier.child import ChildDuplex, environment, start
from transport.carrier.dialer import Note
from transport.carrier.openssh import hung_up
from transport.errors import Unreachable

__all__ = ["connect", "environment"]

SHELLS = ("sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh")
SHELL = "/bin/sh"


def with_shell(argv: Sequence[str]) -> list[str]:
    """Return the command with the shell that it leads to: law 1."""
    return [*argv, *(() if os.path.basename(argv[-1]) in SHELLS else (SHELL,))]


async def connect(
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    command: str,
    note: Note,
    news: Callable[[str], None],
) -> ChildDuplex:
    """Start `argv` and give its shell the line `command`. Raises Unreachable if there is no such program."""
    note(f"start {argv[0]}")
    try:
        duplex = await start(with_shell(argv), env, hung_up)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        hint = "correct command in its table of the inventory, or install that program here"
        raise Unreachable(name, f"cannot start {argv[0]}: {why}", hint) from None
    duplex.write(command.encode() + b"\n")
    return duplex
