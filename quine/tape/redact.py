"""Secrets taken out of what is written: known texts, in JSON values and in JSON that is itself a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quine.tape.lines import seal
from transport import quickjson

MASK = "<secret>"
SHORTEST_SECRET = 8  # a shorter one would mask ordinary words
# The marks of quine/agent/capture.py around the part that it left out; a secret may be cut there.
CUT = ("\n...[Output Truncated", "]...\n")
# Words of the format, never masked: they give away no equal password, and without them a line is not an entry.
NAMES = frozenset(("id", "name", "arguments", "raw", "chat", "role", "content", "tool_calls", "tool_id"))
PLAIN = frozenset(
    ("role", "session_id", "parent_session_id", "root_session_id", "boot_id", "born", "termination_mode")
)  # fields of `data` whose values only quine writes


class Mask:
    """Removes known secrets from JSON values: verbatim, and as they stand in JSON that is itself a text."""

    def __init__(self, secrets: Sequence[str]) -> None:
        forms = set()
        for secret in secrets:
            if len(secret) >= SHORTEST_SECRET:
                forms |= {secret, quickjson.dumps(secret)[1:-1], _escaped(secret)}
        self._forms = sorted(forms, key=len, reverse=True)  # one may be the beginning of another
        # One look at the whole line rules out nearly all lines.
        self._signs = [CUT[0][4:], *(quickjson.dumps(form)[1:-1] for form in forms)] if forms else []

    def line(self, entry: dict[str, Any], sealed: bool) -> bytes:
        """Return an entry as it is written, with or without a seal."""
        text = quickjson.dumps(entry)
        if self.may_be_in(text):
            text = quickjson.dumps({**entry, "data": self.of_data(entry["data"])})
        line = text.encode("ascii")
        return seal(line) if sealed else line

    def may_be_in(self, line: str) -> bool:
        return any(sign in line for sign in self._signs)

    def of_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of an entry without secrets; its own fields keep their names."""
        return {key: value if key in PLAIN else self.of(value) for key, value in data.items()}

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {key if key in NAMES else self._text(key): self.of(item) for key, item in value.items()}
        return [self.of(item) for item in value] if isinstance(value, (list, tuple)) else value

    def _text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, MASK)
        if CUT[0] in text:
            for form in self._forms:
                for size in range(len(form) - 1, SHORTEST_SECRET - 1, -1):
                    text = text.replace(form[:size] + CUT[0], MASK + CUT[0])
                    text = text.replace(CUT[1] + form[-size:], CUT[1] + MASK)
        return text


def _escaped(text: str) -> str:
    """Return `text` as in JSON that leaves non-ASCII characters unescaped."""
    return "".join(c if ord(c) > 127 else quickjson.dumps(c)[1:-1] for c in text)
