"""The hosts that ssh's configuration names: the words after `Host` that are no patterns.

Law: a name counts if `ssh NAME` takes that block. A `Host` in a file that another block includes may never be taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from transport.carrier.config_files import Stamp
from transport.carrier.ssh.config import SYSTEM_CONFIG, Asked, Config, read
from transport.errors import Unreachable

NOWHERE = Path("/dev/null")
DECIDING = ("ProxyJump", "ProxyCommand", "HostKeyAlias")  # one address is another machine behind another jump


def literal(wanted: Iterable[str]) -> tuple[list[str], dict[str, Stamp]]:
    """Return those of the names that the configuration has, and its files. Raises Unreachable if it cannot be used."""
    found: list[str] = []
    stamps: dict[str, Stamp] = {}
    for name in wanted:
        try:
            config = _read(name, SYSTEM_CONFIG)
        except (ValueError, OSError) as error:
            why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
            hint = getattr(error, "hint", "see ~/.ssh/config")
            raise Unreachable(name, f"cannot use its configuration: {why}", hint) from None
        found += [name] if config.literal else []
        stamps.update(config.files)
    return found, stamps


class Machine(NamedTuple):
    """Where a name leads: two names of one machine have equal ones."""

    hostname: str
    port: int
    user: str
    way: tuple[str, ...]  # other options that decide to which machine these lead


def of_user() -> dict[str, Machine]:
    """Return the names in the user's own file and those that it includes, in order. Raises ValueError, OSError."""
    names = dict.fromkeys(_read("", NOWHERE).names)
    return {name: _machine(name) for name in names if _read(name, NOWHERE).literal}


def like(wanted: str, most: int) -> tuple[str, list[str]]:
    """Return the name of the user's file that is most like `wanted`, or "", and at most some names of it."""
    from difflib import get_close_matches

    try:
        names = list(dict.fromkeys(_read("", NOWHERE).names))
        near = get_close_matches(wanted, names, 1)
        found = [name for name in [*near, *names[:most]] if _read(name, NOWHERE).literal]
    except (ValueError, OSError):
        return "", []
    return (near[0] if near and near[0] in found else ""), list(dict.fromkeys(found))


def _machine(name: str) -> Machine:
    """Return where `ssh NAME` leads. Where a command or a look-up decides that, it is equal to no other."""
    config = _read(name, SYSTEM_CONFIG)
    way = [value if (value := config.get(option)).lower() != "none" else "" for option in DECIDING]
    own = [name] if config.open or any("%n" in value or "%k" in value for value in way) else []
    return Machine(config.hostname.lower(), config.port, config.user, (*way, *own))


def _read(name: str, system: Path) -> Config:
    """Run no command and look no name up: neither can make a name of a pattern."""
    return read(Asked(name), Path("~/.ssh/config").expanduser(), system, Config(Asked(name), runs=False))
