"""The judgement of a provider's errors, one for all dialects.

Laws
1. An error is classified before any retry: a full context, a key, a quota, a model never get better by asking again.
2. The meaning of an error stands in the table of servers. Its status decides only where no rule of the table fits.
3. A server's text is untrusted: people see one bounded line of it without control characters.
"""

from __future__ import annotations

import re

from quine.base.errors import FAILED, USAGE
from quine.base.messages import GuestError, Malformed, Overflow, Refused, Unavailable
from quine.providers import servers
from transport import quickjson
from transport.lean import Any, NamedTuple
from transport.text import harmless
from transport.wire.numbers import digits

SHOWN = 500  # characters of a server's text in a message
READ = 4000  # of those that are judged
TRY_AGAIN = (200, 408, 409, 425, 429, 499)  # and all from 500; 200: an error inside an answer that began well
NO_QUOTA_LEFT = "the account has no quota left"  # the hint of such a refusal
KEY = "see QUINE_API_KEY, or the vendor's own variable"
MODEL = "see --model and QUINE_API_BASE; quine doctor --guest lists the models of the server"
# Troubles that are refusals: the hint, and the status of the agent.
REFUSALS = {
    "quota": (NO_QUOTA_LEFT, USAGE),
    "auth": (KEY, USAGE),
    "nomodel": (MODEL, USAGE),
    "refusal": ("its provider refuses the content of this conversation", FAILED),
    "notools": (
        "this model has no tools there, or its server was started without them (llama.cpp: --jinja; vLLM: "
        "--enable-auto-tool-choice --tool-call-parser)",
        FAILED,
    ),
    "environment": ("the machine of the server lacks what it names", FAILED),
    "field": ("", FAILED),
    "demand": ("", FAILED),
    "badargs": ("", FAILED),
}
ERRORS: dict[str, type[GuestError]] = {
    "overflow": Overflow,
    "too_big": Overflow,
    "malformed": Malformed,
    **dict.fromkeys(("rate", "overloaded", "loading", "unavailable"), Unavailable),
}
# "Please retry after 22 seconds", "Try again in 60s"
PAUSE = re.compile(
    r"(?:retry|again|wait)\D{0,20}?(\d{1,6}(?:\.\d{1,9})?) ?(ms|s\b|sec|m\b|min)", re.IGNORECASE
)
UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0}

# Words in the reasons of an end, in small letters: servers spell one meaning in a dozen ways.
ENDS = (
    ("context", ("context_window", "context_length", "contextwindow", "error_limit")),
    ("length", ("max_tokens", "max_output_tokens", "max_completion_tokens", "length", "token_limit")),
    ("refusal", (
        "content_filter", "sensitive", "safety", "refus", "recitation", "blocklist", "prohibited", "spii", "guardrail",
        "moderat", "toxic", "language",
    )),
    ("malformed", ("malformed", "unexpected_tool", "too_many_tool")),
    ("failed", ("error", "timeout", "cancel", "abort", "insufficient", "fail", "overload")),
)  # fmt: skip


def end_of(reason: str | None) -> str:
    """Return what the reason of an end says: context, length or refusal; "" for a normal or unknown end.

    Raise Malformed or Unavailable for one that leaves no reply, since that was not finished.
    """
    small = (reason or "").lower()
    end = next((end for end, words in ENDS if any(word in small for word in words)), "")
    if end == "malformed":
        raise Malformed(f"the server cannot read the call of its model: {printable(reason or '', 100)}")
    if end == "failed":
        raise Unavailable(f"the server's answer ends in an error: {printable(reason or '', 100)}")
    return end


class Adapted(GuestError):
    """The server refused optional `parts` of a request. If it was sent without them already, `fault` is the meaning."""

    def __init__(self, fault: GuestError, parts: frozenset[str]) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.parts = parts


class Told(NamedTuple):
    """The content of an error body: `code` and `kind` are names for machines, "" if absent; `text` is judged."""

    code: str
    kind: str
    message: str
    text: str = ""
    more: tuple[str, ...] = ()  # other names for machines


def told(data: Any) -> Told:
    """Read any shape seen: {"error": object or text}, a list of one, {"detail"}, bare text, a proxy's HTML page."""
    if isinstance(data, list) and data:
        data = data[0]
    error = data.get("error") or data if isinstance(data, dict) else data
    if not isinstance(error, dict):
        said = _page(error) if isinstance(error, str) else str(error)
        kind = data.get("error_type") if isinstance(data, dict) else None
        return Told("", _name(kind), printable(said), said[:READ].lower())
    details = error.get("details")
    code = error.get("code")
    if isinstance(details, dict) and details.get("error_code"):
        code = details["error_code"]
    kind = error.get("status") if isinstance(error.get("status"), str) else error.get("type")
    message = str(error.get("message") or error.get("detail") or error)
    inner = error.get("innererror")
    more = (error.get("code"), error.get("type"), inner.get("code") if isinstance(inner, dict) else None)
    behind = [value for name in ("details", "metadata") if (value := error.get(name)) is not None]
    text = f"{message[:READ]} {_json(behind)[:READ] if behind else ''}".rstrip().lower()
    return Told(_name(code), _name(kind), printable(message), text, tuple(map(_name, more)))


def inner(code: str, status: int) -> int:
    """Return the status that a code inside an answer stands for; `status` if it stands for none."""
    try:
        return digits(code, 599, 400)
    except ValueError:
        return status


def judge(status: int, said: Told, host: str = "", kind: str = "openai") -> GuestError:
    """Return the error for an HTTP status and the content of its body, from a host that is asked in a dialect."""
    if status == 200:
        status = inner(said.code, status)  # as with OpenRouter, whose errors come inside a 200
    detail = f"{said.message or said.kind or said.code or 'no reason given'} (HTTP {status})"
    codes = {name.lower() for name in (said.code, said.kind, *said.more) if name}
    trouble = servers.trouble(host, kind, 0 if status == 200 else status, codes, said.text) or _by_status(
        status
    )
    if trouble in REFUSALS:
        return Refused(detail, *REFUSALS[trouble])
    fault = ERRORS[trouble](detail)
    if isinstance(fault, Unavailable) and trouble == "rate" and (pause := PAUSE.search(said.text)):
        fault.after = float(pause[1]) * UNITS[pause[2].lower()]
    return fault


def _by_status(status: int) -> str:
    """Return the trouble that a status alone tells."""
    if status in (401, 403):
        return "auth"
    if status == 404:
        return "nomodel"
    return "unavailable" if status in TRY_AGAIN or status >= 500 else "field"


def no_reply(text: str) -> GuestError:
    """Return the error for an answer of status 200 that is no JSON."""
    page = _page(text)
    if page is not text:
        return Refused(f"the server answered with {printable(page, 200)}", "see QUINE_API_BASE", USAGE)
    return Unavailable(f"the server's answer is no reply: it begins with {printable(text, 100)!r}")


def printable(text: str, limit: int = SHOWN) -> str:
    """Return one line that can be encoded and shown: no control characters or lone surrogates, cut at `limit`."""
    line = harmless(" ".join(text[: 4 * limit].split()), instead="�")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _name(value: Any) -> str:
    return printable(str(value), 100) if isinstance(value, (str, int)) else ""


def _page(text: str) -> str:
    """Return the title of an HTML page that a proxy sent instead of an answer, or the text itself."""
    if re.match(r"\s*(<!doctype html|<html)", text, re.IGNORECASE):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        return f"an HTML page: {title[1].strip() if title else 'without a title'}"
    return text


def _json(value: Any) -> str:
    try:
        return quickjson.dumps(value)
    except (ValueError, TypeError, RecursionError):
        return ""
