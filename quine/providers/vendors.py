"""The vendors: their dialects, the variables of their keys and addresses; and the guest that a Config names.

A dialect is imported only where it is used.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured
from quine.base.messages import Guest
from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from quine.providers.connecting import Connections
    from quine.providers.http import HttpGuest


class Vendor(NamedTuple):
    """A vendor: its dialects, the variables of its keys and of its base, and its own base.

    `dialects` has the module and the class of each kind, the default first; `compatible` is the kind of another base
    in the vendor's variable.
    """

    dialects: Mapping[str, str]
    keys: tuple[str, ...]
    bases: tuple[str, ...]
    base: str
    compatible: str

    @property
    def kind(self) -> str:
        return next(iter(self.dialects))


CHAT = {"openai": "chat.ChatDialect"}
VENDORS = (
    Vendor(
        # The vendor refuses tools with reasoning on chat completions; compatible servers speak nothing else.
        {"responses": "responses.ResponsesDialect"} | CHAT,
        ("OPENAI_API_KEY",),
        ("OPENAI_BASE_URL",),
        "https://api.openai.com/v1",
        "openai",
    ),
    Vendor(
        {"anthropic": "anthropic.AnthropicDialect"},
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        ("ANTHROPIC_BASE_URL",),
        "https://api.anthropic.com",
        "anthropic",
    ),
    Vendor(
        {"gemini": "gemini.GeminiDialect"},
        ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        ("GOOGLE_GEMINI_BASE_URL",),
        "https://generativelanguage.googleapis.com",
        "gemini",
    ),
    Vendor(CHAT, ("OPENROUTER_API_KEY",), (), "https://openrouter.ai/api/v1", "openai"),
    Vendor(CHAT, (), ("OLLAMA_HOST",), "", "openai"),
)
DIALECTS = {kind: place for vendor in VENDORS for kind, place in vendor.dialects.items()}
FILES = ("script", "program", "replay")  # QUINE_API_BASE is a path, and a model need not be named
KNOWN = tuple(sorted({*DIALECTS, *FILES}))


class Config(NamedTuple):
    """How to reach a guest. The key is a secret: it stays in this process."""

    kind: str
    base: str
    model: str
    key: str = ""


def load() -> None:
    """Load the client of HTTP and all dialects: nothing is read from a file later, which others may have changed."""
    from importlib import import_module

    import_module("quine.providers.http")
    for place in sorted(set(DIALECTS.values())):
        import_module(f"quine.providers.dialects.{place.partition('.')[0]}")


def build(config: Config) -> Guest:
    """Return the guest of FILES that `config` names. Raise Misconfigured if its base cannot be a guest."""
    if config.kind == "script":
        from quine.providers.script import ScriptGuest

        return ScriptGuest(config.base)
    if config.kind == "program":
        from quine.providers.program import ProgramGuest

        return ProgramGuest(config.base, config.model, config.key)
    if config.kind == "replay":
        from quine.providers.replay import ReplayGuest

        return ReplayGuest(config.base)
    raise ValueError(f"{config.kind}: a broker asks it")


def check(config: Config) -> None:
    """Raise Misconfigured if the base cannot be a guest. No server is asked, and its client is not imported."""
    if config.kind in FILES:
        build(config)
        return
    from urllib.parse import urlsplit

    try:
        # The port is read to be checked.
        scheme, _ = urlsplit(config.base).scheme, urlsplit(config.base).port
    except ValueError as error:
        raise Misconfigured(f"QUINE_API_BASE is no URL: {error}") from None
    if scheme not in ("http", "https"):
        raise Misconfigured("QUINE_API_BASE must begin with http:// or https://")


def served(config: Config, connections: Connections | None = None) -> HttpGuest:
    """Return the guest of an HTTP server that `config` names. Raise Misconfigured if its base is no URL."""
    from importlib import import_module

    from quine.providers.http import HttpGuest

    module, _, name = DIALECTS[config.kind].partition(".")
    dialect = getattr(import_module(f"quine.providers.dialects.{module}"), name)
    return HttpGuest(dialect(config.model), config.base, config.key, connections=connections)
