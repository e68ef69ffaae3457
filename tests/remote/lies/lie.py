"""A lie of a host, how the origin meets it, and the steps that all lies are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Plan = list[list[Any]]
MEGABYTE = 1 << 20
ITEMS = 12
# An item of the honest host is done once the lie has begun.
WAITING = 'until grep -qsx begun "$0"; do sleep 0.05; done; '
COMMAND = ["sh", "-c", WAITING + 'mkdir -p out; echo "$1" | tee "out/$1"', "BEGUN", "{}"]
HAVE: list[Any] = ["shell", "MARKER have\n", 1]
MARK: list[Any] = ["mark"]
GREET: list[Any] = ["greet", {}]
LINK: Plan = [HAVE, GREET, ["await", "SPAWN"], ["attach"], MARK]
EXIT: list[Any] = ["exit", {}]


class Lie(NamedTuple):
    """`plan` is given the bytes that it shall have. The others are of the origin: its command, its exit status, a text
    in its stderr, or in its answers to the host; the bytes that it may write to files, and files that it has.
    """

    plan: Callable[[int], Plan]
    words: list[str]
    status: int
    told: str = ""
    answered: str = ""
    disk: int = 4 * MEGABYTE
    large: bool = False  # it has to be, whatever was asked for
    slots: int | None = 1
    env: dict[str, str] = {}  # noqa: RUF012 - never changed
    files: dict[str, str] = {}  # noqa: RUF012 - of the origin, in FOLDER


def batch(*options: str, command: list[str] = COMMAND) -> list[str]:
    """A batch on the liar and on the honest host."""
    items = map(str, range(ITEMS))
    return ["xargs", "--on", "LIAR,good", "-P", "3", "--json", *options, "--", *command, ":::", *items]


BATCH = batch()
AGENTS = [word for word in batch() if word not in ("--", *COMMAND)]
AGENTS[AGENTS.index(":::") : AGENTS.index(":::")] = ["errand {}"]
GUEST = [
    {"name": "sh", "arguments": {"command": WAITING.replace("$0", "BEGUN")}},
    {"name": "exit", "arguments": {"status": 0}},
]


def pour(size: int, text: str = "login text ", fd: int = 1) -> list[Any]:
    return ["pour", fd, text, size // len(text)]


def flood(size: int, each: int, *frames: dict[str, Any]) -> list[Any]:
    return ["flood", *frames, max(1, size // each)]


def frame(kind: str, channel: Any = "job", stream: Any = "life", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "channel": channel, "stream": stream, **more}


def before(*steps: list[Any]) -> Plan:
    return [MARK, *steps]


def jobs(*steps: list[Any]) -> Plan:
    return [HAVE, GREET, MARK, ["jobs", ["attach"], *steps, EXIT]]
