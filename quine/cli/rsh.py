"""The verb `rsh`: ssh's command line, for programs that start ssh; the work is that of `quine run --on`.

    rsync -e 'quine rsh', GIT_SSH_COMMAND='quine rsh', parallel --ssh 'quine rsh', borg --rsh 'quine rsh'

Laws
1. The words after HOST are joined by blanks and given to the account's shell, as sshd does. They start in its home.
2. HOST is a host as `--on` takes it. With a user, one without a table is USER@HOST:PORT; for one with a table a user or
   a port that neither the inventory nor ~/.ssh/config gives it is refused.
3. Standard library only.
"""

from __future__ import annotations

import os

from quine.base.allowed_hosts import known as known_to
from quine.base.cli_options import RunOptions, listing
from quine.base.errors import NOT_STARTED, Failure, Misconfigured, say
from quine.cli.run import by_node, version_text
from quine.cli.ssh_line import Line
from quine.jobs.client import choose_store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deploy.host import Host
    from quine.base.cli_options import Row

USAGE = """\
usage: quine rsh [OPTIONS] [USER@]HOST [CMD…]

Run a command line on a host, by its name for --on, as ssh does: the words are joined by blanks and given to
the login shell of the account, in its home directory; without CMD it is a login shell, with a terminal
if there is one. For programs that start ssh: rsync -e 'quine rsh', GIT_SSH_COMMAND='quine rsh',
parallel --ssh 'quine rsh', borg --rsh 'quine rsh'; `quine-rsh` is the same as one word, for sftp -S.
Streams, signals and exit status are those of `quine run`, and a cut of the connection is survived.

The options are those of ssh. Others than these are refused by name where it would be wrong to leave
them out (forwards, jumps, another host name), and passed over where they say how ssh makes its
connection (-4 -6 -A -C -F -i -x -X …): the node of this machine makes it, as the inventory says."""

# rows as those of the table of cli_options.py; an option of ssh has a letter alone
OPTIONS: tuple[Row, ...] = (
    ("inventory", "", "FILE", "rsh", "the hosts (QUINE_INVENTORY, ./inventory.toml)"),
    ("", "l", "USER", "rsh", "must be the user of a host of the inventory, by that or ~/.ssh/config"),
    ("", "p", "PORT", "rsh", "must be the port of a host of the inventory, by that or ~/.ssh/config"),
    ("", "n", "", "rsh", "an empty stdin"),
    ("", "t", "", "rsh", "a terminal for the command, if stdin is one"),
    ("", "T", "", "rsh", "no terminal"),
    ("", "s", "", "rsh", "CMD is a subsystem: sftp"),
    (
        "", "o", "NAME=VALUE", "rsh",
        "User, Port, RequestTTY, SetEnv, SendEnv, StdinNull, SessionType and LogLevel=QUIET are followed",
    ),
    ("", "q", "", "rsh", "no messages but errors"),
    ("", "v", "", "rsh", "operational detail on stderr"),
    ("", "G", "", "rsh", "print what the inventory says of the host"),
    ("", "V", "", "rsh", "version and build hash, on stderr"),
    ("help", "", "", "rsh", "this text"),
)  # fmt: skip

SHELL = 'exec "${SHELL:-sh}" -c "$0"'
LOGIN_SHELL = 'exec "${SHELL:-sh}" -l'
SFTP = """\
for d in /usr/lib/openssh /usr/libexec/openssh /usr/lib/ssh /usr/libexec /usr/local/libexec /usr/lib; do
    [ -x $d/sftp-server ] && exec $d/sftp-server
done
exec sftp-server"""


def main(words: list[str]) -> int:
    """Return the exit status, unless the process dies of the command's signal."""
    line = Line(words, os.environ)
    if line.help:
        print("\n".join([USAGE, "", "options:", *listing(OPTIONS)]))
        return 0
    if line.version:
        say(version_text() + "\n")
        return 0
    if not line.host:
        raise Misconfigured("no host", "quine rsh [OPTIONS] [USER@]HOST [CMD…]")
    options = RunOptions(inventory=line.inventory)
    if line.config:
        print(_config(line.host, options), end="")
        return 0
    where = _where(line, options)
    command = _command(line)
    choose_store(options)
    if line.no_stdin:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    options = options.replace(
        on=where,
        cwd="~",
        env=tuple(f"{name}={value}" for name, value in line.env.items()),
        terminal=_terminal(line),
        quiet=line.quiet,
        verbose=line.verbose,
    )
    return by_node(options, command)


def _command(line: Line) -> list[str]:
    text = " ".join(line.command)
    if line.subsystem:
        if text != "sftp":
            raise Misconfigured(f"-s: no such subsystem: {text[:40]!r}", "there is sftp")
        return ["sh", "-c", SFTP]
    return ["sh", "-c", SHELL, text] if text else ["sh", "-c", LOGIN_SHELL]


def _terminal(line: Line) -> bool:
    """Whether the command gets a terminal: as with ssh only if stdin is one."""
    if line.terminal == "no" or line.subsystem or (line.terminal == "auto" and line.command):
        return False
    if os.isatty(0):
        return True
    if line.terminal == "yes" and not line.quiet:
        say("quine: no terminal for the command: stdin is none\n")
    return False


def _where(line: Line, options: RunOptions) -> str:
    """Return the WHERE of the line. Raise Failure if HOST is no name, or has a table with another USER or PORT."""
    plain = line.host.replace("-", "").replace(".", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum()) or line.host in ("any", "local"):
        raise Failure(
            NOT_STARTED, f"no such host: {line.host[:200]!r}", "HOST is one of those that quine hosts lists"
        )
    if not line.user and not line.port:
        return line.host  # the node reads the inventory, and this process need not
    place = f"{line.user}@{line.host}" + (f":{line.port}" if line.port else "")
    inventory = known_to(options, os.environ, line.host, place)
    if line.host not in inventory.hosts and place in inventory.unlisted:
        return place
    host = inventory.host(line.host)
    where = f"the table [hosts.{line.host}] of {inventory.path or 'an inventory'}"
    for name, given, known in (("user", line.user, host.user), ("port", line.port, host.port)):
        if not given or given == str(known or ""):
            continue
        source = "the inventory"
        if not known and host.transport in ("ssh", "openssh"):
            known, source = _by_ssh(host, name), "~/.ssh/config"
            if given == known:
                continue
        value = f'"{given}"' if name == "user" else given
        raise Failure(
            NOT_STARTED,
            f"{name} {given[:80]}: {source} gives {known or 'none'}",
            f"put {name} = {value} into {where}",
            host.name,
        )
    return line.host


def _by_ssh(host: Host, name: str) -> str:
    """Return the user or port of a host by ssh's configuration, which is its default. Raises Failure."""
    from pathlib import Path

    from transport.carrier.ssh.config import SYSTEM_CONFIG, Asked, read

    asked = Asked(host.destination.strip("[]"), host.user or "", host.port)
    try:
        config = read(asked, Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG)
    except (ValueError, OSError) as error:
        detail = f"cannot use its configuration: {error}"
        hint = getattr(error, "hint", "see ~/.ssh/config")
        raise Failure(NOT_STARTED, detail, hint, host.name) from None
    return config.user if name == "user" else str(config.port)


def _config(name: str, options: RunOptions) -> str:
    """Return what `ssh -G` prints first. git asks so whether a program takes the options of ssh."""
    from transport.errors import TransportError

    lines = [f"host {name}"]
    try:
        host = known_to(options, os.environ, name).host(name)
        facts = {"user": host.user, "hostname": host.address or name, "port": host.port}
        lines += [f"{key} {value}" for key, value in facts.items() if value]
    except (Failure, TransportError, ModuleNotFoundError):
        pass  # the command itself will say so
    return "\n".join(lines) + "\n"
