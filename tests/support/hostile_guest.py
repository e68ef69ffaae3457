"""Calls of a hostile guest, which no tool can carry out, and a check that each was answered."""

from __future__ import annotations

import json
import random
from typing import Any

from quine.agent import tools
from quine.base.messages import ToolCall
from tests.support.agents import OK, call, says, sh

MEGABYTE = 1 << 20

# One thing of every kind that JSON has, and of every kind that a length, a range or an encoder may stumble over.
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 10**400, [], {}, [None], [[[]]], {"": {}}, "", " ", "\0", "a\0b",
    "\ud800", "\udfff\ud800", "\ufeff", "\u2028", "\x1b[2J\x07", "'\"`$(exit 9)", "%s%n{}", "-", "../../etc", "é" * 999,
    "null", "0", {"type": "string"}, [0] * 999, {str(n): n for n in range(99)},
)  # fmt: skip
NO_TEXT = tuple(value for value in ODD if not isinstance(value, str))

NAMES = (
    "",
    " ",
    "sh ",
    "SH",
    "Sh",
    "sh\0",
    "shell",
    "fork\n",
    "functions.sh",
    "__class__",
    "\ud800",
    "é",
    "exit()",
    "{}",
)

RAW = (
    "{", "}", "[]", "null", "nul", "NaN", '{"command": NaN}', '{"command": Infinity}', '"sh"', "0", "-", '{"command"}',
    "{'command': 'true'}", '{"command": "true"', '{"command": "true"} x', '{"command": "\\ud800"}', "\0", "\ufeff{}",
    '{"command": "\\u0000"}', "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, "1" * 10_000,
    '{"timeout": ' + "9" * 5000 + "}",
    '{"command": "a\tb\nc"}', "\ud800", '{"command":"true","command":5}', '<invoke name="sh">', "true\n",
    '{"command": "' + "\\" * 9999, "{}" * 9,
)  # fmt: skip


def mutated(drawn: random.Random, value: Any) -> Any:
    """`value` with one thing in it, somewhere, that is something else, missing, or twice there."""
    if isinstance(value, dict | list) and value and drawn.random() < 0.8:
        at = drawn.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy = value.copy()
        if drawn.random() < 0.15:
            del copy[at]
        elif isinstance(copy, list) and drawn.random() < 0.15:
            copy.append(copy[at])
        else:
            copy[at] = mutated(drawn, copy[at])
        return copy
    return drawn.choice(ODD)


def bad_call(drawn: random.Random) -> dict[str, Any]:
    """A call that no tool can carry out, also as it may be meant."""
    while True:
        found = _odd_call(drawn)
        given = found["arguments"]
        one = ToolCall.parse("c", found["name"], given if isinstance(given, str) else json.dumps(given))
        meant = tools.fitted(one)
        same = meant is one and not one.repair
        if same or meant.fault or tools.fault(meant.name, meant.args):
            return found


def _odd_call(drawn: random.Random) -> dict[str, Any]:
    one = drawn.choice
    kind = drawn.randrange(8)
    if kind == 0:
        return call(one(NAMES), **{one(("command", "x", "")): one(ODD)})
    if kind == 1:
        return {"name": one(("sh", "fork", "exec", "exit")), "arguments": one(RAW)}
    if kind == 2:
        return call("sh", command=one((*NO_TEXT, "a\0b", "\ud800")))
    if kind == 3:
        return call("sh", command="echo never >&4", **one([
            {"timeout": one((None, True, 0, -1, "5", [], {}, 10**400))}, {"": 1}, {"cmd": "x"},
            {"\ud800": 1}, {"stdin": "\0"},
        ]))  # fmt: skip
    if kind == 4:
        return call("fork", **one([
            {}, {"intent": one((*NO_TEXT, "", " \n", "\0", "\ud800"))},
            {"children": one((*NO_TEXT, [{}], [{"intent": ""}]))},
            {"intent": "x", "children": [{"intent": "x"}]}, {"intent": "x", "wait": one((None, 1, "true", []))},
            {"intent": "x", "mode": one(ODD)}, {"intent": "x", "context": one(ODD)},
            {"intent": "x", "host": one((*NO_TEXT, "", "\0"))},
            {"intent": "x", "stdin": one((*NO_TEXT, "", "\0", "/no/such/file"))}, {"intent": "x", "?": 1},
            {"children": [{"intent": f"never {n}"} for n in range(2000)]},
        ]))  # fmt: skip
    if kind == 5:
        return call("exec", **one([
            {"wisdom": one(("", "x", [], [{}], 5, True, None))},
            {"wisdom": {one(("", "1a", "a-b", "a=b", "\0", "é", "a\n", "x" * 101)): "v"}},
            {"wisdom": {"k": one((*NO_TEXT, "\0", "\ud800", "w" * 200_000))}},
            {"argv": one(("", "true", [], [""], [5], ["\0"], ["/no/such/program"], ["/etc/passwd"], ["/"],
                ["\ud800"]))},
            {"reason": one(NO_TEXT)}, {"persona": 5}, {"?": one(ODD)},
        ]))  # fmt: skip
    if kind == 6:
        return call("exit", **one([
            {}, {"status": one((None, True, -1, 256, 1.5, 10**400, "", "ok", "0", [], {}))},
            {"status": 0, "stderr": "but"},            {"status": 3},
            {"status": 3, "stderr": one((" \n\t", *NO_TEXT))}, {"status": "failure"}, {"status": 0, "?": 1},
            {"code": 0},
        ]))  # fmt: skip
    return call(
        one(("sh", "fork", "exec", "exit")), **{f"k{n}": one(ODD) for n in range(1, drawn.randrange(2, 20))}
    )


def batches(calls: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """As replies, each with one call that is right at its end: a life of nothing but refusals would be ended."""
    return [says(*calls[at : at + size], sh("true")) for at in range(0, len(calls), size)]


# The deliverable of these agents: the most memory they have had (kB), and how often they wrote.
MEASURE = "grep -h -e VmHWM -e syscw /proc/$PPID/status /proc/$PPID/io | tr -dc '0-9\\n' >&4"


def measured(out: bytes) -> tuple[int, int]:
    """Bytes and writes."""
    kilobytes, writes = out.split()
    return int(kilobytes) * 1024, int(writes)


def answered(tape: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each call with its one answer; the answers of a reply stand behind it in the order of its calls."""
    pairs = []
    entries = iter(tape)
    for entry in entries:
        for asked in entry["data"].get("tool_calls", ()) if entry["type"] == "message" else ():
            if (asked["name"], asked["arguments"]) == (OK["name"], OK["arguments"]):
                continue
            answer = next(entries)
            assert answer["type"] == "tool_result", answer
            assert answer["data"]["tool_id"] == asked["id"]
            pairs.append((asked, answer["data"]))
    for entry in tape:
        ids = [asked["id"] for asked in entry["data"].get("tool_calls", ())]
        assert len(set(ids)) == len(ids)
    return pairs
