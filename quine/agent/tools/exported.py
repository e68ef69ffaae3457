"""The variables that commands of an agent have exported in its shell, as they differ from the agent's own.

The shell is asked only where they are needed, by `fork`: one short process writes its own environment to a channel of
the shell. An agent that has run no command since the last answer asks nothing.

Laws
1. A variable counts as unset only if a shell can export its name: shells drop other names by themselves.
2. No secret, no variable of quine, and none that a shell sets by itself (`PWD`, `_`) is taken over.
"""

from __future__ import annotations

import os

from quine.base.text import quote
from transport import inherit
from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from quine.agent.shell import Shell

PATIENCE = 60.0  # seconds for the answer
_FUNCTION = ("BASH_FUNC_", "%%")  # around the name of a function that bash exports
_OF_A_SHELL = {"_", "PWD", "OLDPWD", "SHLVL"}


class Exported(NamedTuple):
    """Variables that were set or changed in the shell, and the names of those that were unset."""

    changed: Mapping[str, str]
    removed: frozenset[str]


NOTHING = Exported({}, frozenset())


def of(shell: Shell, environ: Mapping[str, str] = os.environ) -> Exported:
    """Return how the environment of the next command in `shell` differs from `environ`. OSError if it does not say."""
    program = _program(environ)
    if not shell.group or not program:
        return NOTHING
    # Not a builtin: only a process shows what a process gets. It opens the file itself; a redirection would be the
    # shell's own, and show what that was started with.
    raw = shell.ask(f"command {quote(program)} /proc/self/environ", PATIENCE)
    return NOTHING if raw is None else compared(raw, environ)


def compared(raw: bytes, environ: Mapping[str, str]) -> Exported:
    """Return the difference of an environment, as the kernel shows it, to `environ`."""
    now = {}
    for entry in raw.split(b"\0"):
        name, given, value = entry.partition(b"=")
        if given:
            now[os.fsdecode(name)] = os.fsdecode(value)
    changed = {name: value for name, value in now.items() if _counts(name) and environ.get(name) != value}
    return Exported(changed, frozenset(name for name in environ if _counts(name) and name not in now))


def is_plain(name: str) -> bool:
    """Return whether every shell can export a variable of this name."""
    return name.isascii() and name.isidentifier()


def _counts(name: str) -> bool:
    start, end = _FUNCTION
    function = name.startswith(start) and name.endswith(end)
    ours = name in _OF_A_SHELL or name.startswith("QUINE_") or inherit.is_secret(name)
    return (function or is_plain(name)) and not ours


def _program(environ: Mapping[str, str]) -> str:
    places = ["/bin", "/usr/bin", *environ.get("PATH", "").split(os.pathsep)]
    paths = (os.path.join(place, "cat") for place in places if place.startswith("/"))
    return next((path for path in paths if os.access(path, os.X_OK)), "")
