"""The judgement of a provider's errors, one for all dialects.

Laws
1. An error is classified before any retry: a full context, a key, a quota, a model never get better by asking again.
2. "overloaded" is not an overflow. The word "context" alone proves nothing: only a 400 (or an error inside a 200, which
   has no status of its own) is searched for the sentences that do.
3. A server's text is untrusted: people see one bounded line of it without control characters.
"""

from __future__ import annotations

import re

from quine.base.errors import USAGE
from quine.base.messages import GuestError, Overflow, Refused, Unavailable
from transport.lean import Any, NamedTuple
from transport.text import harmless

SHOWN = 500  # characters of a server's text in a message
TRY_AGAIN = (200, 408, 409, 425, 429)  # and all from 500; 200: an error inside an answer that began well
FULL_CODES = {"context_length_exceeded", "exceed_context_size_error"}
FULL = re.compile(
    r"prompt is too long|input is too long for requested model|exceed context limit|"
    r"input token count .* exceeds|maximum (context|model|prompt) length|context length is only|"
    r"context (window|size|length)|number of tokens to keep from the initial prompt",
    re.IGNORECASE | re.DOTALL,
)
NO_QUOTA_LEFT = "the account has no quota left"  # the hint of such a refusal
NO_QUOTA = {
    "insufficient_quota",
    "credit_balance_exhausted",
    "billing_error",
    "billing_not_active",
    "billing_hard_limit_reached",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "enforced_spend_limit_reached",
    "contract_spend_limit_reached",
}


class Adapted(GuestError):
    """The server refused an optional part of a request, and the dialect has learned to leave it out.

    If the next body differs, it is sent at once; if not, `fault` is the meaning of the refusal.
    """

    def __init__(self, fault: GuestError) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Told(NamedTuple):
    """The content of an error body: `code` and `kind` are names for machines, "" if absent."""

    code: str
    kind: str
    message: str


def told(data: Any) -> Told:
    """Read any shape seen: {"error": object or text}, a list of one, {"detail"}, bare text, a proxy's HTML page."""
    if isinstance(data, list) and data:
        data = data[0]
    error = data.get("error") or data if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return Told("", "", printable(_page(error) if isinstance(error, str) else str(error)))
    details = error.get("details")
    code = error.get("code")
    if isinstance(details, dict) and details.get("error_code"):
        code = details["error_code"]
    kind = error.get("status") if isinstance(error.get("status"), str) else error.get("type")
    message = error.get("message") or error.get("detail") or error
    return Told(_name(code), _name(kind), printable(str(message)))


def overflow(status: int, code: str, kind: str, message: str) -> bool:
    """Return True if the conversation exceeds the model's window. `status` is 200 for an error inside an answer."""
    if {code, kind} & FULL_CODES or status == 413:
        return True
    return status in (200, 400) and "overloaded" not in kind and FULL.search(message) is not None


def judge(status: int, said: Told) -> GuestError:
    """Return the error for an HTTP status and the content of its body."""
    if status == 200 and said.code.isdigit() and 400 <= int(said.code) < 600:
        status = int(said.code)  # as with OpenRouter, whose errors come inside a 200
    detail = f"{said.message or said.kind or said.code or 'no reason given'} (HTTP {status})"
    if overflow(status, said.code, said.kind, said.message):
        return Overflow(detail)
    if {said.code, said.kind} & NO_QUOTA or status == 402:
        return Refused(detail, NO_QUOTA_LEFT, USAGE)
    if status in (401, 403):
        return Refused(detail, "see QUINE_API_KEY, or the vendor's own variable", USAGE)
    if status == 404:
        return Refused(detail, "see --model and QUINE_API_BASE", USAGE)
    if status in TRY_AGAIN or status >= 500:
        return Unavailable(detail)
    return Refused(detail)


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
