"""The choice of a guest: from the variables of quine and of the vendors to a Config.

Laws
1. Pure: a mapping in, a Config or Misconfigured out. The caller has already taken the keys out of the environment.
2. A vendor's key goes only to the vendor's own host, or to the base in the vendor's own variable.
3. Explicit settings win: QUINE_API_TYPE, then QUINE_API_BASE, then the first vendor whose variables are set.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured, NoGuest
from quine.providers.vendors import FILES, KNOWN, VENDORS, Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


KEYS = ("QUINE_API_KEY", *(key for vendor in VENDORS for key in vendor.keys))
BASES = ("QUINE_API_BASE", *(base for vendor in VENDORS for base in vendor.bases))
HINT = (
    "export ANTHROPIC_API_KEY=… QUINE_MODEL_ID=… (or OPENAI_API_KEY, GEMINI_API_KEY), or QUINE_MODEL_ID=… and "
    "OLLAMA_HOST=127.0.0.1, or for another server of your own QUINE_API_BASE=http://127.0.0.1:8080/v1, or "
    "QUINE_API_TYPE=script QUINE_API_BASE=replies.jsonl"
)


def choose(known: Mapping[str, str]) -> Config:
    """Return the Config of the guest. Raise Misconfigured with the cure if there is none."""
    for name in KEYS:
        if not (known.get(name, "").isascii() and known.get(name, "").isprintable()):
            raise Misconfigured(f"{name} is no key: it holds characters that no header can carry")
    kind, base, key, model = (
        known.get(f"QUINE_{name}", "") for name in ("API_TYPE", "API_BASE", "API_KEY", "MODEL_ID")
    )
    if kind not in FILES:
        base = base.strip()
    if kind and kind not in KNOWN:
        hint = "of Ollama, vLLM, llama.cpp, LM Studio and most others it is openai"
        raise Misconfigured(f"QUINE_API_TYPE must be one of {', '.join(KNOWN)}, not {kind!r}", hint)
    if kind in FILES:
        if not base:
            raise Misconfigured(f"QUINE_API_BASE must be the path of the {kind}")
        return Config(kind, base, model or kind, key)
    if base and not kind:
        kind = _kind_of(base)
    if not base:
        kind, base, key = _vendor(known, kind, key)
    elif not key:
        # A vendor's key goes to the vendor's own host, whichever variable named it, and nowhere else.
        own = next((vendor for vendor in VENDORS if vendor.base and _host(vendor.base) == _host(base)), None)
        key = _first(known, own.keys) if own else ""
    if not base:
        raise NoGuest("no guest: neither QUINE_API_BASE nor a vendor's key is set", HINT)
    if not model:
        raise Misconfigured(
            "QUINE_MODEL_ID is not set",
            "name the model with --model or QUINE_MODEL_ID; quine doctor --guest lists those of the server",
        )
    return Config(kind, base.rstrip("/"), model, key)


def _vendor(known: Mapping[str, str], kind: str, key: str) -> tuple[str, str, str]:
    """Return (kind, base, key) from the vendors' own variables; ("", "", "") if none is set."""
    for vendor in VENDORS:
        found_key, found_base = _first(known, vendor.keys), _first(known, vendor.bases)
        if (kind and kind not in vendor.dialects) or not (found_key or found_base):
            continue
        if vendor.bases == ("OLLAMA_HOST",):
            return kind or "openai", _ollama(found_base), key
        foreign = bool(found_base) and _host(found_base) != _host(vendor.base)
        return (
            kind or (vendor.compatible if foreign else vendor.kind),
            found_base or vendor.base,
            key or found_key,
        )
    if key and kind:
        return kind, next(vendor.base for vendor in VENDORS if kind in vendor.dialects), key
    return "", "", ""


def _kind_of(base: str) -> str:
    """Return the dialect of an address without a configured one: most servers speak chat completions."""
    if base.rstrip("/").endswith("/openai"):  # as Gemini's service does, too, at this address
        return "openai"
    return next(
        (vendor.kind for vendor in VENDORS if vendor.base and _host(vendor.base) == _host(base)), "openai"
    )


def _host(base: str) -> str:
    return base.partition("://")[2].partition("/")[0].lower()


def _first(known: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((known[name] for name in names if known.get(name)), "")


def _ollama(host: str) -> str:
    """Return the base for OLLAMA_HOST, which may lack a scheme or a port, or be a listening address."""
    if "://" not in host:
        host = f"http://{host}"
    scheme, _, rest = host.partition("://")
    server, _, path = rest.rstrip("/").partition("/")
    server = server.replace("0.0.0.0", "127.0.0.1")
    server = f"127.0.0.1{server}" if server.startswith(":") else server
    if scheme == "http" and ":" not in server.rpartition("]")[2]:
        server += ":11434"
    path = path.removesuffix("v1").rstrip("/")
    return f"{scheme}://{server}{'/' if path else ''}{path}/v1"
