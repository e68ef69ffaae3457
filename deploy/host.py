"""One host of the inventory: the keys of its table, and the forms that their values may have.

Law: a name that reaches ssh, a path or a terminal has passed the patterns below: no leading dash, no control character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from transport import rlimits

LONGEST_ABOUT = 500  # characters: it is shown to a model, for each host

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ADDRESS = re.compile(r"[A-Za-z0-9_:\[][A-Za-z0-9_.:%\]-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$@+\\-]{0,63}")
_PATH = re.compile(r"(?:~/|/)[A-Za-z0-9_.,:+@%=/-]{1,254}")
_PROGRAM = re.compile(r"(?:~/|/)?[A-Za-z0-9_][A-Za-z0-9_.,:+@%=/-]{0,254}")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,127}")
JUMP = re.compile(r"(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:@]+)(?::(?P<port>\d{1,5}))?")
_DESTINATION = re.compile(f"{_USER.pattern}@{_ADDRESS.pattern}")


Check = Callable[[Any], None]  # raises ValueError: [.PLACE in the value]: MESSAGE


def _text(value: Any) -> None:
    if type(value) is not str:
        raise ValueError(": not a text")


def _printable(value: Any) -> None:
    _text(value)
    if not value or not value.isprintable():
        raise ValueError(": empty, or with a control character in it")


def _about(value: Any) -> None:
    _text(value)
    if not value.isprintable() or len(value) > LONGEST_ABOUT:
        raise ValueError(f": longer than {LONGEST_ABOUT} characters, or with a control character in it")


def _flag(value: Any) -> None:
    if type(value) is not bool:
        raise ValueError(": neither true nor false")


def _seconds(value: Any) -> None:
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise ValueError(": not a number of seconds")


def _matching(pattern: re.Pattern[str], what: str) -> Check:
    def check(value: Any) -> None:
        _text(value)
        if not pattern.fullmatch(value):
            raise ValueError(f": {value!r} is not {what}")

    return check


def _number(least: int, most: float = float("inf")) -> Check:
    def check(value: Any) -> None:
        if type(value) is not int:  # nor a bool
            raise ValueError(": not a whole number")
        if not least <= value <= most:
            raise ValueError(f": less than {least}" if value < least else f": more than {most}")

    return check


def _one_of(*words: str) -> Check:
    def check(value: Any) -> None:
        if value not in words:
            raise ValueError(f": not one of {', '.join(words)}")

    return check


def _list(each: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not tuple:
            raise ValueError(": not a list")
        for place, item in enumerate(value):
            _inside(place, each, item)

    return check


def _inside(place: object, check: Check, value: Any) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f".{place}{error}") from None


def _table(value: Any) -> None:
    if type(value) is not dict:
        raise ValueError(": not a table")


def _limits(value: Any) -> None:
    _table(value)
    for name, limit in value.items():
        if type(limit) not in (int, str):
            raise ValueError(f".{name}: neither a number nor a size")
    try:
        rlimits.check(value)
    except ValueError as error:
        raise ValueError(f": {error}") from None


def _environment(value: Any) -> None:
    _table(value)
    for name, text in value.items():
        _inside(name, _text, text)
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise ValueError(f": {name!r} cannot be an environment variable")


A_NAME = "a name (letters, digits, . _ - and no leading dash)"
_name = _matching(NAME, A_NAME)
_directory = _matching(_PATH, "an absolute path, or one below ~/, of plain characters")
_CHECKS: dict[str, Check] = {  # of values that are not None
    "name": lambda value: None if type(value) is str and _DESTINATION.fullmatch(value) else _name(value),
    "address": lambda value: value == "" or _matching(_ADDRESS, "an address")(value),
    "port": _number(1, 65535),
    "user": _matching(_USER, "a user name"),
    "tags": _list(_name),
    "identity": _printable,
    "jump": _matching(JUMP, "a host or user@host:port"),
    "slots": _number(0),
    "workdir": _printable,
    "cache": _directory,
    "binary": _directory,
    "python": _matching(_PROGRAM, "a program or its path, of plain characters"),
    "modules": _list(_matching(_MODULE, "the name of an environment module")),
    "same_paths": _flag,
    "env": _environment,
    "limits": _limits,
    "inference": _one_of("relay", "direct"),
    "fs": _one_of("relay", "direct"),
    "wheels": _directory,
    "mount": _flag,
    "may_fork": _list(_printable),
    "about": _about,
    "lease": _seconds,
    "transport": _one_of("ssh", "openssh", "command", "slurm"),
    "command": _list(_printable),
    "partition": _printable,
    "nodes": _number(1),
    "time": _printable,
    "constraint": _printable,
    "account": _printable,
}


@dataclass(frozen=True)
class Host:
    """One host; every key of the manual. `name` is its table's name. Raises ValueError: KEY[.PLACE]: MESSAGE.

    Checked by hand: a library for it takes longer to load than a cold login, and a node waits for that.
    """

    name: str
    address: str = ""
    port: int | None = None
    user: str | None = None
    tags: tuple[str, ...] = ()
    identity: str | None = None
    jump: str | None = None
    slots: int = 0
    workdir: str = "~/quine"
    cache: str | None = None
    binary: str | None = None
    python: str | None = None
    modules: tuple[str, ...] = ()
    same_paths: bool = False
    env: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int | str] = field(default_factory=dict)
    inference: Literal["relay", "direct"] = "relay"
    fs: Literal["relay", "direct"] = "relay"
    wheels: str | None = None
    mount: bool = False
    may_fork: tuple[str, ...] = ()
    about: str = ""
    lease: float = 600
    transport: Literal["ssh", "openssh", "command", "slurm"] = "ssh"
    command: tuple[str, ...] = ()
    partition: str | None = None
    nodes: int | None = None
    time: str | None = None
    constraint: str | None = None
    account: str | None = None
    # Keys of its own table: the others are defaults.
    own: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        for key in KEYS:
            value = getattr(self, key)
            if value is not None:
                try:
                    _CHECKS[key](value)
                except ValueError as error:
                    raise ValueError(f"{key}{error}") from None

    @property
    def destination(self) -> str:
        """The destination for ssh: the address, or the table's name through ~/.ssh/config."""
        return self.address or self.name

    def unbuilt(self) -> str:
        """Return the reason why no job can be started there with this build yet; "" if one can."""
        if self.transport == "slurm":
            return f'transport = "{self.transport}" is not built yet'
        return rlimits.unenforced(self.limits)


KEYS = tuple(each.name for each in fields(Host) if each.name != "own")
OF_SSH = ("address", "port", "user", "identity", "jump")


def destination(text: str) -> dict[str, Any] | None:
    """Return the keys of a table for [USER@]HOST[:PORT], as ssh takes it; None if it is something else."""
    user, _, address = text.rpartition("@")
    parts = JUMP.fullmatch(address)
    if parts is None:
        return None
    keys: dict[str, Any] = {"address": parts["host"].strip("[]")}
    keys.update({"user": user} if user else {})
    return {**keys, "port": int(parts["port"])} if parts["port"] else keys


def by_destination(where: str) -> Host | None:
    """Return the host that USER@HOST[:PORT] names, if `where` is that."""
    if not _DESTINATION.fullmatch(where) or (keys := destination(where)) is None:
        return None
    try:
        return Host(where, **keys)
    except ValueError:
        return None  # a port of 0 or 70000


def misplaced(table: Mapping[str, object], defaults: Mapping[str, object]) -> str:
    """Return the key of a host's table that does not go with its transport, and the reason; "" if there is none.

    Keys of ssh may stand in the defaults: hosts with another transport do not use them.
    """
    both = {**defaults, **table}
    if both.get("transport", "ssh") != "command":
        return 'command: only transport = "command" has one' if "command" in table else ""
    if not both.get("command"):
        return 'command: transport = "command" needs one, as ["docker", "exec", "-i", "box"]'
    return next((f'{key}: transport = "command" does not use it' for key in OF_SSH if key in table), "")
