"""The engine of the examples' scripted guests: a guest is a generator that is played.

Quine runs a guest of type `program` once for each inference, with the whole conversation on its stdin, and takes its
reply from stdout. So a guest keeps nothing, like a model. These here are written as generators all the same: they yield
calls and are sent results. For each inference the generator is played from the beginning against the
conversation; the first call that has no result yet is the reply.

    def guest(mission, wisdom):
        listing = yield sh("ls")
        if not listing.ok:
            return failure("nothing to see")
        yield sh("echo done >&4")

A guest knows its mission, its wisdom and the text of the results, as a model does.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

CHARACTERS = 4  # of a token, about


class Call(NamedTuple):
    """One call of a tool, and the guest's reason for it."""

    name: str
    arguments: dict[str, Any]
    why: str = ""


class Result:
    """A result, read from its text as a model reads it."""

    def __init__(self, text: str, seen: int = 0) -> None:
        self.text = text
        self._seen = seen  # tokens of the conversation up to its end

    @property
    def ok(self) -> bool:
        return self.text.startswith("[EXIT CODE] 0\n")

    @property
    def stdout(self) -> str:
        return self.text.partition("[STDOUT]\n")[2].rpartition("\n[STDERR]\n")[0]

    @property
    def stderr(self) -> str:
        return re.split(r"\n\[[A-Z ]+\]", self.text.rpartition("\n[STDERR]\n")[2])[0]

    @property
    def children(self) -> list[Result]:
        """One result for each child of a fork that was waited for."""
        several = re.split(r"^--- CHILD .*\n", self.text, flags=re.MULTILINE)[1:]
        return [Result(text) for text in several or [self.text]]

    @property
    def turns_left(self) -> int:
        told = re.findall(r"^\[TURNS LEFT\] (\d+)", self.text, re.MULTILINE)
        return int(told[-1]) if told else sys.maxsize

    @property
    def room(self) -> int:
        """Tokens that still fit into the context, by the result's figures and by the length of the conversation."""
        used, window = re.findall(r"^\[CONTEXT USED\] (\d+)K of (\d+)K", self.text, re.MULTILINE)[-1]
        return 1000 * int(window) - max(1000 * int(used), self._seen)

    @property
    def last(self) -> bool:
        """Whether only exec and exit are possible now."""
        return "\n[LAST REPLY]" in self.text


Play = Generator[Call, Result, "Call | None"]


def sh(command: str, why: str = "") -> Call:
    return Call("sh", {"command": command}, why)


def fork(intents: list[str], why: str = "") -> Call:
    """Start children that know only their intents, all at once, and wait for their results."""
    children = [{"intent": intent} for intent in intents]
    return Call("fork", {"children": children, "wait": True, "context": "none"}, why)


def renew(why: str = "", **wisdom: object) -> Call:
    return Call("exec", {"wisdom": {key: str(value) for key, value in wisdom.items()}}, why)


def success(why: str = "") -> Call:
    return Call("exit", {"status": "success"}, why)


def failure(reason: str) -> Call:
    return Call("exit", {"status": "failure", "stderr": f"{reason}\n"})


def play(guest: Callable[[str, dict[str, str]], Play]) -> None:
    """Answer one inference: the request from stdin, the reply to stdout."""
    request = json.load(sys.stdin)
    messages, window = request["messages"], int(os.environ.get("QUINE_CONTEXT_WINDOW", 128000))
    if (read := tokens(messages)) > window:  # as a server would
        json.dump({"error": "overflow", "detail": f"{read} tokens, and {window} are possible"}, sys.stdout)
        return
    call = next_call(guest(request["mission"], request["wisdom"]), messages)
    reply = {"text": call.why, "tool_calls": [{"name": call.name, "arguments": call.arguments}]}
    usage = {"input": read, "output": len(json.dumps(reply)) // CHARACTERS}
    json.dump({**reply, "usage": usage}, sys.stdout)


def next_call(guest: Play, messages: list[dict[str, Any]]) -> Call:
    """Play the guest against the conversation, up to the call that has no result yet."""
    made = [call for message in messages for call in message.get("tool_calls", ())]
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]
    try:
        call = next(guest)
        for before, at in zip(made, results, strict=True):
            if (before["name"], before["arguments"]) != call[:2]:
                raise SystemExit(f"not my conversation: I would not have called {before['name']} there")
            call = guest.send(Result(messages[at]["result"][2], tokens(messages[: at + 1])))
    except StopIteration as end:
        return end.value or success()
    return call


def tokens(messages: list[dict[str, Any]]) -> int:
    """Return about as many as a tokenizer would find."""
    characters = 0
    for message in messages:
        characters += len(message["result"][2] if message["role"] == "tool" else message["content"])
        characters += len(json.dumps(message.get("tool_calls", "")))
    return characters // CHARACTERS
