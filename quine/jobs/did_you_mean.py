"""Additions to messages: the command that they are about, and the command that was probably meant.

Loaded only after an error.
"""

from __future__ import annotations

from shlex import join, quote

from quine.base.cli_options import UNBUILT, VERBS
from quine.base.errors import Misconfigured
from quine.base.text import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import RunOptions
    from transport.status import Status

SHOWN = 200  # characters of a command in a message
FOR_A_SHELL = frozenset(" |&;<>()$`*?\n")


def complete(status: Status, command: list[str], options: RunOptions) -> None:
    """Name the command of a job that was not run or is lost, for it may be one of many; add the cure of a 127."""
    if status.code == 127 and not status.hint:
        status.hint = not_found(command, options)
    if status.detail and status.host and status.state in ("unreachable", "lost"):
        shown = plain(join(command), newlines=False)  # one line, whatever the command holds
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        status.detail += f"; {'not run' if status.state == 'unreachable' else 'lost'}: {shown}"


def not_found(command: list[str], options: RunOptions) -> str:
    """Return the cure for a command that was not found; "" if there is none to suggest."""
    if FOR_A_SHELL & set(command[0]):
        return f"no shell reads the command; to use one: sh -c {quote(' '.join(command))}"
    if not options.on and command[0] in _hosts(options):
        return f"to run it on that host: quine run --on {command[0]} -- {join(command[1:]) or 'CMD'}"
    return ""


def near_verb(mission: list[str]) -> str:
    """Return a hint, to stand before another, if the mission is one word and one edit away from a verb; else ""."""
    near = [verb for verb in VERBS if is_one_edit(mission[0], verb)] if len(mission) == 1 else []
    return f"did you mean quine {near[0]}? for a mission: " if near else ""


def misplaced(words: list[str], rest: list[str]) -> Misconfigured | None:
    """Return the error if options are before a verb, else None; `rest` is the part of `words` after the options."""
    before = words[: len(words) - len(rest)]
    if not rest or rest[0] not in (*VERBS, *UNBUILT) or before[-1:] == ["--"]:
        return None
    verb, mission = join(["quine", rest[0], *before, *rest[1:]]), join(["quine", *before, "--", *rest])
    return Misconfigured(
        f"options before {rest[0]}, which is a verb", f"the verb: {verb}; the mission: {mission}"
    )


def slip(words: list[str], mission: list[str]) -> Misconfigured | None:
    """Return the error if words read like a command of a verb, `rnu --on h1 -- true`; `mission` ends them."""
    before = words[: len(words) - len(mission)]
    hint = near_verb(mission[:1])
    if not hint or before[-1:] == ["--"]:
        return None
    return Misconfigured(f"no such verb: {mission[0]}", hint + join(["quine", *before, "--", *mission]))


def is_one_edit(one: str, other: str) -> bool:
    """Return True if one character is added, missing or replaced, or two neighbours are swapped."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) == 1 or (len(one) == 2 and one == other[::-1])


def _hosts(options: RunOptions) -> set[str]:
    from deploy.inventory import ConfigError
    from quine.base.allowed_hosts import known

    try:
        return set(known(options).hosts)
    except (ConfigError, ModuleNotFoundError):  # the latter on a host whose Python reads no TOML
        return set()
