"""guests: what can sit in the loop; each dialect is imported only where it is used."""

from __future__ import annotations

from typing import NamedTuple

from quine.exits import NotBuilt
from quine.guests.base import Guest

BUILT = ("openai", "script")
KNOWN = (*BUILT, "anthropic", "gemini", "program", "replay", "responses")


class Config(NamedTuple):
    """How to reach a guest. The key is a secret: it stays in this process."""

    kind: str
    base: str
    model: str
    key: str = ""


def build(config: Config) -> Guest:
    """The guest that `config` names; NotBuilt for a dialect that is still to come."""
    if config.kind == "script":
        from quine.guests.script import ScriptGuest

        return ScriptGuest(config.base)
    if config.kind == "openai":
        from quine.guests.chat import ChatDialect
        from quine.guests.http import HttpGuest

        return HttpGuest(ChatDialect(config.model), config.base, config.key)
    raise NotBuilt(f"the {config.kind} dialect", f"QUINE_API_TYPE can be {' or '.join(BUILT)}")
