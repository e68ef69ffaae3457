"""Messages as text without the parts that differ between two runs of the same mission: ids, pids, times, paths."""

from __future__ import annotations

import re
from pathlib import Path

from quine.base.messages import Message
from transport import quickjson

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
VOLATILE = (
    (re.compile(rf"\S*/(outputs|jobs)/{UUID}"), r"<data>/\1/<session>"),
    (re.compile(rf"\S*/stdin-{UUID}\.bin"), "<data>/stdin-<session>.bin"),
    (
        re.compile(r"^\[HOSTS\] .*\n?", re.MULTILINE),
        "",
    ),  # from the inventory, which may have changed since
    (re.compile(UUID), "<session>"),
    (re.compile(r"\bpid[ =:]+\d+"), "pid <pid>"),
    (re.compile(r"^\[(TIME LEFT|CONTEXT USED|TOKENS LEFT|COST LEFT)\] .*$", re.MULTILINE), r"[\1] <left>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "<time>"),
    (re.compile(r"\b1\d{9}(\.\d+)?\b"), "<time>"),
)


class Same:
    """Messages as text, without the parts that differ between two runs of the same mission."""

    def __init__(self, folder: Path, cwd: object) -> None:
        self._places = []
        for word, place in (("<data>", folder.absolute()), ("<cwd>", cwd)):
            if place and len(str(place)) > 1:
                pattern = re.compile(rf"(?<![\w.-]){re.escape(str(place))}(?![\w.-])")
                self._places.append((pattern, word))

    def text(self, message: Message) -> str:
        if message.result is not None:
            error = " error" if message.result.is_error else ""
            return f"[result of {message.result.name}{error}]\n{self._plain(message.result.text)}"
        calls = "".join(f"\n-> {c.name} {c.raw or quickjson.dumps(c.args)}" for c in message.tool_calls)
        return self._plain(f"[{message.role}]\n{message.text}{calls}")

    def _plain(self, text: str) -> str:
        for pattern, word in (*VOLATILE, *self._places):
            text = pattern.sub(word, text)
        return text
