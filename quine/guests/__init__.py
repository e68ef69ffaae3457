"""guests: what can sit in the loop; each dialect is imported only where it is used."""

from __future__ import annotations

from typing import NamedTuple

from quine.guests.base import Guest

KNOWN = ("anthropic", "gemini", "openai", "program", "replay", "responses", "script")
FILES = ("script", "program", "replay")  # QUINE_API_BASE is a path, and no model has to be named


class Config(NamedTuple):
    """How to reach a guest. The key is a secret: it stays in this process."""

    kind: str
    base: str
    model: str
    key: str = ""


def build(config: Config) -> Guest:
    """The guest that `config` names; Misconfigured where what it names cannot be one."""
    match config.kind:
        case "script":
            from quine.guests.script import ScriptGuest

            return ScriptGuest(config.base)
        case "program":
            from quine.guests.program import ProgramGuest

            return ProgramGuest(config.base, config.model, config.key)
        case "replay":
            from quine.guests.replay import ReplayGuest

            return ReplayGuest(config.base)
        case "anthropic":
            from quine.guests.anthropic import AnthropicDialect as Dialect
        case "responses":
            from quine.guests.responses import ResponsesDialect as Dialect  # type: ignore[assignment]
        case "gemini":
            from quine.guests.gemini import GeminiDialect as Dialect  # type: ignore[assignment]
        case _:
            from quine.guests.chat import ChatDialect as Dialect  # type: ignore[assignment]
    from quine.guests.http import HttpGuest

    return HttpGuest(Dialect(config.model), config.base, config.key)
