"""Conversations and answers of every kind, as the host loop and the vendors make them, for tests of dialects."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any, NamedTuple

from hypothesis import strategies as st

from quine.agent.tools import TOOLS
from quine.base.messages import Message, Request, ToolCall, ToolResult
from tests.support.agents import OK, call, sh
from tests.vendors import common
from tests.vendors.server import Said, Seen, Turn

ASKED = Request([Message("system", "Be short."), Message("user", "Begin.")], TOOLS)
CALLS = (sh("ls -l 'ä'"), call("fork", intent="b", wait=True), call("exit", status=0))


class Step(NamedTuple):
    """A reply and its results. The reply is `made` by the dialect itself, by another one, or by none."""

    made: str
    said: Said
    results: list[tuple[str, bool]]
    after: list[str]


anything = st.text(st.characters(), max_size=9)  # with controls, lone surrogates and all
values = st.recursive(st.none() | st.booleans() | st.integers() | anything, st.lists, max_leaves=4)
args = st.dictionaries(anything, values, max_size=3)
names = st.sampled_from(("sh", "fork", "exec", "exit"))
calls = st.lists(st.fixed_dictionaries({"name": names, "arguments": args}), max_size=4).map(tuple)
saids = st.builds(Said, text=anything, calls=calls, reasoning=anything)
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(("own", "other", "none", "faulty")),
        saids,
        st.lists(st.tuples(anything, st.booleans()), min_size=4, max_size=4),
        st.lists(anything | st.just("[REMINDER] go on"), max_size=2),
    ),
    max_size=4,
)


def sent(body: Any) -> Any:
    """A body as it arrives."""
    return json.loads(json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"))


def through_a_tape(message: Message) -> Message:
    return Message.from_json(json.loads(json.dumps(message.to_json())))


def answered(message: Message, text: str = "done") -> list[Message]:
    """The reply, and a result for each of its calls."""
    results = [ToolResult(call.id, call.name, text) for call in message.tool_calls]
    return [message, *(Message("tool", result=result) for result in results)]


def conversation(dialect: Any, vendor: ModuleType, lived: list[Step]) -> list[Message]:
    """As the host loop makes it: every call answered, a reminder where there was none."""
    messages = list(ASKED.messages)
    for number, (made, said, results, after) in enumerate(lived):
        if made == "own":
            reply = dialect.reply(sent(vendor.reply_json(said))).message
        else:
            again = f"call_{number // 2}"  # other guests give the same ids again, and odd ones
            wanted = [
                ToolCall.parse(f"{again}.{i}", c["name"], common.arguments(c))
                for i, c in enumerate(said.calls)
            ]
            if made == "none":  # as guests whose arguments are objects
                wanted = [one._replace(raw="") for one in wanted]
            if made == "faulty":
                wanted = [ToolCall.parse(again + "ä" * i, f"no such {i}", "{") for i in range(len(wanted))]
            raw = {"chat": {"content": "x"}} if made == "other" else None
            reply = Message("assistant", said.text, tuple(wanted), raw=raw)
        messages.append(through_a_tape(reply))
        for one, (text, is_error) in zip(reply.tool_calls, results, strict=False):
            messages.append(Message("tool", result=ToolResult(one.id, one.name, text, is_error)))
        messages += [
            Message("user", text) for text in (after if reply.tool_calls else ["[REMINDER]", *after])
        ]
    return messages


def replaced(value: Any, draw: Any, odd: st.SearchStrategy[Any], levels: int = 0) -> Any:
    """`value` with one thing somewhere in it replaced; the first `levels` stay lists and pairs."""
    if levels == 0 and draw(st.integers(0, 4)) == 0:
        return draw(odd)
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: replaced(value[key], draw, odd)}
    if isinstance(value, list | tuple) and value:
        at = 1 if levels == 1 else draw(st.integers(0, len(value) - 1))
        return type(value)(
            [*value[:at], replaced(value[at], draw, odd, max(levels - 1, 0)), *value[at + 1 :]]
        )
    return draw(odd)


def tree(seen: Seen) -> Turn:
    """Return the model's next turn, for the parent or for one of the two children."""
    (said,) = (seen.body[name] for name in ("messages", "input", "contents") if name in seen.body)
    text = json.dumps(said)
    mine = next((name for name in ("left", "right") if f"you exit:\\n\\n{name}" in text), "")
    if mine:
        return (
            Said("", (sh(f"echo {mine} > {mine}"),), "a child thinks")
            if text.count("EXIT CODE") < 2
            else Said("", (OK,))
        )
    if "EXIT CODE" not in text:
        return Said("I look.", (sh("echo parent >&4; echo parent"),), "first a look")
    if "left" not in text:
        return Said(
            "", (call("fork", intent="left", wait=True), call("fork", intent="right", wait=True)), "then two"
        )
    return Said("done", (OK,))
