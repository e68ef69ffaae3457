"""One host of the inventory: the keys of its table, and the forms that their values may have.

Law: a name that reaches ssh, a path or a terminal has passed the patterns below: no leading dash, no control character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from transport import rlimits

LONGEST_ABOUT = 500  # characters: it is shown to a model, for each host

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ADDRESS = re.compile(r"[A-Za-z0-9_:\[][A-Za-z0-9_.:%\]-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$@+\\-]{0,63}")
_PATH = re.compile(r"(?:~/|/)[A-Za-z0-9_.,:+@%=/-]{1,254}")
_PROGRAM = re.compile(r"(?:~/|/)?[A-Za-z0-9_][A-Za-z0-9_.,:+@%=/-]{0,254}")
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,127}")
JUMP = re.compile(r"(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:@]+)(?::(?P<port>\d{1,5}))?")


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return AfterValidator(check)


def _printable(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError("empty, or with a control character in it")
    return value


def _about(value: str) -> str:
    if not value.isprintable() or len(value) > LONGEST_ABOUT:
        raise ValueError(f"longer than {LONGEST_ABOUT} characters, or with a control character in it")
    return value


def _limits(value: dict[str, int | str]) -> dict[str, int | str]:
    rlimits.check(value)
    return value


def _environment(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise ValueError(f"{name!r} cannot be an environment variable")
    return value


Name = Annotated[str, _matching(NAME, "a name (letters, digits, . _ - and no leading dash)")]
Text = Annotated[str, AfterValidator(_printable)]
Directory = Annotated[str, _matching(_PATH, "an absolute path, or one below ~/, of plain characters")]
About = Annotated[str, AfterValidator(_about)]


class Host(BaseModel):
    """One host; every key of the manual. `name` is its table's name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Name
    address: Annotated[str, _matching(_ADDRESS, "an address")] = ""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: Annotated[str, _matching(_USER, "a user name")] | None = None
    tags: tuple[Name, ...] = ()
    identity: Text | None = None
    jump: Annotated[str, _matching(JUMP, "a host or user@host:port")] | None = None
    slots: Annotated[int, Field(ge=0)] = 0
    workdir: Text = "~/quine"
    cache: Directory | None = None
    binary: Directory | None = None
    python: Annotated[str, _matching(_PROGRAM, "a program or its path, of plain characters")] | None = None
    modules: tuple[Annotated[str, _matching(_MODULE, "the name of an environment module")], ...] = ()
    same_paths: bool = False
    env: Annotated[dict[str, str], AfterValidator(_environment)] = {}
    limits: Annotated[dict[str, int | str], AfterValidator(_limits)] = {}
    inference: Literal["relay", "direct"] = "relay"
    fs: Literal["relay", "direct"] = "relay"
    wheels: Directory | None = None
    mount: bool = False
    may_fork: tuple[Text, ...] = ()
    about: About = ""
    lease: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600
    transport: Literal["ssh", "openssh", "command", "slurm"] = "ssh"
    command: tuple[Text, ...] = ()
    partition: Text | None = None
    nodes: Annotated[int, Field(ge=1)] | None = None
    time: Text | None = None
    constraint: Text | None = None
    account: Text | None = None

    @property
    def destination(self) -> str:
        """The destination for ssh: the address, or the table's name through ~/.ssh/config."""
        return self.address or self.name

    def unbuilt(self, agent: bool = False) -> str:
        """Return the reason why no job, or no agent, can be started there with this build yet; "" if one can."""
        if self.transport == "slurm":
            return f'transport = "{self.transport}" is not built yet'
        if agent and self.inference != "relay":
            return f'inference = "{self.inference}" is not built yet'
        return rlimits.unenforced(self.limits)


OF_SSH = ("address", "port", "user", "identity", "jump")


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
