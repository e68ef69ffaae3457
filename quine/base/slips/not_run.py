"""Additions to messages: the command that they are about, and the command that was probably meant.

Loaded after an error: the modules that it needs are imported where they are used.
"""

from __future__ import annotations

import os

from quine.base.slips.words import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import RunOptions
    from transport.status import Status

SHOWN = 200  # characters of a command in a message
FOR_A_SHELL = frozenset(" |&;<>()$`*?\n")


def complete(status: Status, command: list[str], options: RunOptions) -> None:
    """Name the command of a job that was not run or is lost, for it may be one of many; add the cure.

    The command is empty for one of quine itself, which is told by its mission.
    """
    if status.state == "unreachable" and (other := another(status, options)):
        status.hint = f"{status.hint}; {other}" if status.hint else other
    if not command:
        return
    if status.code == 127 and not status.hint:
        status.hint = not_found(command, options)
    if status.detail and status.host and status.state in ("unreachable", "lost"):
        from quine.base.text import plain

        shown = plain(join(command), newlines=False)  # one line, whatever the command holds
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        status.detail += f"; {'not run' if status.state == 'unreachable' else 'lost'}: {shown}"


def another(status: Status, options: RunOptions) -> str:
    """Return the cure for a host that was chosen and cannot be reached; "" if WHERE means no other one."""
    if not options.on or not status.host or options.retry:
        return ""
    from quine.base.allowed_hosts import known
    from transport.errors import Refused

    try:
        others = [host for host in known(options).matching(options.on) if host.name != status.host]
    except (Refused, ModuleNotFoundError):  # the latter on a host whose Python reads no TOML
        return ""
    return f"--retry 1 tries another of {options.on}" if others else ""


def not_found(command: list[str], options: RunOptions) -> str:
    """Return the cure for a command that was not found; "" if quine knows no cure."""
    if FOR_A_SHELL & set(command[0]):
        from shlex import quote

        return f"no shell reads the command; to use one: sh -c {quote(' '.join(command))}"
    if not options.on and command[0] in _hosts(options, command[0]):
        words = command[1:]
        # Options of quine may follow the host, as in: quine run h1 --cwd /tmp -- ls
        if "--" not in words or not words[0].startswith("-"):
            words = ["--", *words]
        shown = join(["quine", "run", "--on", command[0], *words])
        return f"to run it on that host: {shown}{' CMD' if words[-1] == '--' else ''}"
    return ""


def _hosts(options: RunOptions, named: str) -> set[str]:
    """Return the names of hosts, and `named` if it is one without a table: law 2 of quine/base/allowed_hosts.py."""
    from deploy.inventory import ConfigError
    from quine.base.allowed_hosts import known
    from transport.errors import Refused

    try:
        return set(known(options, os.environ, named).everyone)
    except (ConfigError, Refused, ModuleNotFoundError):  # the latter on a host whose Python reads no TOML
        return set()
