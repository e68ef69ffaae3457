"""providers: the guests of the host loop; each dialect is imported only where it is used.

May import: base, budget, tape, transport.
"""

from __future__ import annotations

from typing import NamedTuple

from quine.base.messages import Guest

KNOWN = ("anthropic", "gemini", "openai", "program", "replay", "responses", "script")
FILES = ("script", "program", "replay")  # QUINE_API_BASE is a path, and a model need not be named


class Config(NamedTuple):
    """How to reach a guest. The key is a secret: it stays in this process."""

    kind: str
    base: str
    model: str
    key: str = ""


def build(config: Config) -> Guest:
    """Return the guest that `config` names. Raise Misconfigured if its base cannot be a guest."""
    match config.kind:
        case "script":
            from quine.providers.script import ScriptGuest

            return ScriptGuest(config.base)
        case "program":
            from quine.providers.program import ProgramGuest

            return ProgramGuest(config.base, config.model, config.key)
        case "replay":
            from quine.providers.replay import ReplayGuest

            return ReplayGuest(config.base)
        case "anthropic":
            from quine.providers.anthropic import AnthropicDialect as Dialect
        case "responses":
            from quine.providers.responses import ResponsesDialect as Dialect  # type: ignore[assignment]
        case "gemini":
            from quine.providers.gemini import GeminiDialect as Dialect  # type: ignore[assignment]
        case _:
            from quine.providers.chat import ChatDialect as Dialect  # type: ignore[assignment]
    from quine.providers.http import HttpGuest

    return HttpGuest(Dialect(config.model), config.base, config.key)
