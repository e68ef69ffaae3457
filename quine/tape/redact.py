"""Secrets taken out of what is written: known texts, in JSON values and in JSON that is itself a text."""

from __future__ import annotations

from quine.tape.lines import digest, seal
from transport import quickjson
from transport.lean import Any, NamedTuple

MASK = "<secret>"
SHORTEST_SECRET = 8  # a shorter one would mask ordinary words
# The marks of quine/agent/capture.py around the part that it left out; a secret may be cut there.
CUT = ("\n...[Output Truncated", "]...\n")
# Words of the format, never masked: they give away no equal password, and without them a line is not an entry.
NAMES = frozenset(("id", "name", "arguments", "raw", "chat", "role", "content", "tool_calls", "tool_id"))
PLAIN = frozenset(
    (
        "role",
        "session_id",
        "parent_session_id",
        "root_session_id",
        "boot_id",
        "pid_space",
        "born",
        "termination_mode",
    )
)  # fields of `data` whose values only quine writes


class Forgotten(NamedTuple):
    """The mark of a secret that this process no longer has: its length, its first characters, and its digest.

    Digests of its parts would give it away part by part.
    """

    length: int
    head: str
    digest: str


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Secret = str | Forgotten
HEAD = 3  # characters of a forgotten secret that are kept


def from_json(value: object) -> Secret:
    """Return a secret or a mark from its JSON."""
    return Forgotten(*value) if isinstance(value, list) else str(value)


def forgotten(secret: str) -> list[Forgotten]:
    """Return the marks of a secret: of each form in which it may be written."""
    forms = _forms_of(secret) if len(secret) >= SHORTEST_SECRET else ()
    return [
        Forgotten(len(form), form[:HEAD], digest(form.encode("utf-8", "replace"))) for form in sorted(forms)
    ]


def _forms_of(secret: str) -> set[str]:
    return {secret, quickjson.dumps(secret)[1:-1], _escaped(secret)}


class Mask:
    """Removes known secrets from JSON values: verbatim, and as they stand in JSON that is itself a text."""

    def __init__(self, secrets: Sequence[Secret]) -> None:
        forms = set()
        self._marks: list[Forgotten] = []
        for secret in secrets:
            if isinstance(secret, Forgotten):
                self._marks.append(secret)
            elif len(secret) >= SHORTEST_SECRET:
                forms |= _forms_of(secret)
        self._marks.sort(reverse=True)
        self._forms = sorted(forms, key=len, reverse=True)  # one may be the beginning of another
        # One look at the whole line rules out nearly all lines.
        signs = [*forms, *(mark.head for mark in self._marks)]
        self._signs = [CUT[0][4:], *(quickjson.dumps(sign)[1:-1] for sign in signs)] if signs else []

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
        for mark in self._marks:
            text = _without(text, mark)
        if CUT[0] in text:
            for form in self._forms:
                for size in range(len(form) - 1, SHORTEST_SECRET - 1, -1):
                    text = text.replace(form[:size] + CUT[0], MASK + CUT[0])
                    text = text.replace(CUT[1] + form[-size:], CUT[1] + MASK)
            for mark in self._marks:
                text = _without_parts(text, mark)
        return text


def _without(text: str, mark: Forgotten) -> str:
    """Return `text` without a forgotten secret, which is looked for where its first characters stand."""
    at = text.find(mark.head)
    while at >= 0:
        end = at + mark.length
        if end <= len(text) and digest(text[at:end].encode("utf-8", "replace")) == mark.digest:
            text = text[:at] + MASK + text[end:]
            at += len(MASK) - 1
        at = text.find(mark.head, at + 1)
    return text


def _without_parts(text: str, mark: Forgotten) -> str:
    """Return `text` without what may be a part of a forgotten secret, cut where the output was cut.

    Nothing is known of its parts but the first characters. So a word that begins with them and ends at the cut is
    masked, and so is one behind the cut that is long enough and no longer than a rest of the secret.
    """
    at = text.find(CUT[0])
    while at >= 0:
        begin = text.find(mark.head, max(0, at - mark.length + 1), at)
        if begin >= 0 and at - begin >= SHORTEST_SECRET and not _has_space(text[begin:at]):
            text = text[:begin] + MASK + text[at:]
            at = begin + len(MASK)
        behind = text.find(CUT[1], at)
        if behind >= 0:
            start = end = behind + len(CUT[1])
            while end < len(text) and not _has_space(text[end]):
                end += 1
            if SHORTEST_SECRET <= end - start < mark.length:
                text = text[:start] + MASK + text[end:]
        at = text.find(CUT[0], at + 1)
    return text


def _has_space(text: str) -> bool:
    return any(letter.isspace() for letter in text)


def _escaped(text: str) -> str:
    """Return `text` as in JSON that leaves non-ASCII characters unescaped."""
    return "".join(c if ord(c) > 127 else quickjson.dumps(c)[1:-1] for c in text)
