"""Sessions as text for people: one in full, a tree of them, a list of them.

Laws
1. Tape contents are untrusted: control characters are shown, never passed to the terminal.
2. A list for scripts is JSON lines, and has every field of the list for people.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from quine.base.errors import FAILED, Failure
from quine.base.text import plain, table
from quine.tape import registry
from quine.tape.lines import entries
from quine.tape.reader import Session, brief, find, moment
from quine.tape.reader import tree as sessions_of
from quine.tape.registry import Agent
from transport import quickjson

MOMENTS = ("created_at", "timestamp")  # fields that hold a time
DEEPEST = 40  # levels that are indented
SHORT = 60  # characters of a mission in a tree
SHOWN = 2000  # characters of one text in a session
BRIEF = 18  # characters of an id that are shown


class _Node(NamedTuple):
    """One line of a tree."""

    id: str
    parent: str
    goes_on: bool  # started by exec: the same process, not a child of it
    cells: tuple[str, ...]  # host, pid, exit, seconds
    mission: str


def tree(folder: Path, session: str = "") -> str:
    """Return the tree of `session` (an id or its beginning; "" is the latest tree), one line per session."""
    nodes = _nodes(folder, session)
    known = {one.id for one in nodes}
    below: dict[str, list[_Node]] = {}
    for one in nodes:
        below.setdefault(one.parent if one.parent in known else "", []).append(one)
    rows = [("NODE", "PID", "EXIT", "SECONDS", "SESSION", "MISSION")]
    drawn: set[str] = set()
    # The second part reaches sessions that name each other as their parents.
    for first in (*below.get("", ()), *nodes):
        waiting = [(first, 0)]
        while waiting:
            one, depth = waiting.pop()
            if one.id in drawn:
                continue
            drawn.add(one.id)
            node, pid, code, seconds = one.cells
            node = "  " * min(depth, DEEPEST) + node
            brief = plain(one.id[:BRIEF], newlines=False)
            rows.append((node, pid, code, seconds, brief, _short(one.mission)))
            for child in reversed(below.get(one.id, ())):
                waiting.append((child, depth if child.goes_on else depth + 1))
    return table(rows, right=(1, 2, 3))


def _nodes(folder: Path, session: str) -> list[_Node]:
    """Return the sessions of a tree, and its children without a tape that the registry or a parent's tape knows."""
    mine = sessions_of(folder, session)
    root = mine[0].root if mine else ""
    ids = {one.id for one in mine}.union(*(one.forks for one in mine))
    agents = {
        agent.session: agent
        for agent in registry.having(ids, str(folder), registry.state_directory())
        if agent.root == root
    }
    heard = {child: facts["heard"] for one in mine for child, facts in one.forks.items() if "ended" in facts}
    nodes = [_node(one, agents.get(one.id), heard.get(one.id, 0.0)) for one in mine]
    known = {one.id for one in mine}
    for one in mine:
        for child, facts in one.forks.items():
            if child not in known and (child in agents or "ended" in facts):
                nodes.append(_without_tape(child, one.id, facts, agents.get(child)))
                known.add(child)
    return nodes


def _node(one: Session, agent: Agent | None, heard: float) -> _Node:
    """Return the node of a session. `heard`: when its parent heard of its end, which its own tape may not have."""
    host, pid = (_cell(one.meta.get(key, "?"), 60) for key in ("node", "pid"))
    code, seconds = one.verdict, one.seconds
    if one.outcome is None:
        seconds = max(seconds, heard - one.begun)
    if agent:
        end = agent.verdict()
        if end.state in ("running", "stopped"):
            code, seconds = "-", max(0.0, time.time() - one.begun)
        elif end.state != "unknown":
            code = str(end.code)
    goes_on = one.meta.get("born") == "exec"
    return _Node(one.id, one.parent, goes_on, (host, pid, _cell(code, 12), f"{seconds:.2f}"), one.mission)


def _without_tape(child: str, parent: str, facts: dict[str, Any], agent: Agent | None) -> _Node:
    """Return the node of a child without a tape, from its parent's record of it."""
    ended = facts.get("ended")
    code = ended.get("code", "?") if isinstance(ended, dict) else "?"
    if agent and (end := agent.verdict()).state != "unknown":
        code = "-" if end.state in ("running", "stopped") else end.code
    cells = (_cell(facts.get("host", "?"), 60), "-", _cell(code, 12), "-")
    return _Node(child, parent, False, cells, str(facts.get("intent", "")))


def ls(folder: Path, as_json: bool = False, kept: Path | None = None) -> str:
    """Return all sessions, one line each, the latest last; with `kept`, also those only in the shared files."""
    here = brief(folder)
    known = sorted(({**brief(kept), **here} if kept else here).values(), key=lambda one: (one.begun, one.id))
    if as_json:
        return "".join(
            quickjson.dumps(_facts(one) | ({"kept": one.id not in here} if kept else {})) + "\n"
            for one in known
        )
    rows: list[tuple[str, ...]] = [
        ("SESSION", "BEGUN", "SECONDS", "MODEL", "TURNS", "IN", "OUT", "EXIT", "MODE", "MISSION")
    ]
    mark = ("WHERE",) if kept else ()
    rows[0] = (*rows[0][:-1], *mark, rows[0][-1])
    for one in known:
        facts = _facts(one)
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.begun)) if one.begun else "?"
        rows.append(
            (
                one.id[:BRIEF],
                begun,
                f"{one.seconds:.1f}",
                _cell(one.model or "-", 30),
                _cell(facts["turns"], 8),
                str(facts["tokens_in"]),
                str(facts["tokens_out"]),
                _cell(facts["exit"], 8),
                _cell(facts["mode"], 18),
                *(("here" if one.id in here else "fs",) if kept else ()),
                _short(one.mission),
            )
        )
    return table(rows, right=(2, 4, 5, 6, 7))


def _facts(one: Session) -> dict[str, Any]:
    outcome = one.outcome or {}
    tokens_in, tokens_out = one.tokens()
    return {
        "session": one.id,
        "parent": one.parent,
        "root": one.root,
        "begun": one.begun,
        "seconds": round(one.seconds, 3),
        "model": one.model,
        "turns": outcome.get("turn_count", "-" if one.outcome is None else "?"),
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "exit": outcome.get("exit_code", "-" if one.outcome is None else "?"),
        "mode": outcome.get("termination_mode", "-" if one.outcome is None else "?"),
        "mission": one.mission,
    }


def _cell(value: object, most: int) -> str:
    return plain(str(value)[:most], newlines=False)


def _short(mission: str) -> str:
    text = plain(mission, newlines=False)
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


# -- one session -------------------------------------------------------------------------------------


def show(folder: Path, session: str = "") -> str:
    """Return one session as text: all entries of its tape."""
    one = find(folder, session)
    try:
        return "".join(text_of(entry, number) for number, entry in entries(str(one.path)))
    except (OSError, ValueError) as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> Failure:
    return Failure(FAILED, f"the tape cannot be read: {error}")


def text_of(entry: dict[str, Any], number: int) -> str:
    """Return the text of `entry`, which is line `number` of its tape."""
    try:
        lines = _shown(entry, number)
    except (RecursionError, ValueError) as error:
        lines = [f"[{number - 1}] cannot be shown: {type(error).__name__}"]
    return "\n".join(lines) + "\n"


def _shown(entry: dict[str, Any], number: int) -> list[str]:
    data, kind = entry["data"], entry["type"]
    head = plain(f"[{entry.get('seq', number - 1)}] {kind}", newlines=False)
    if kind == "message":
        lines = [
            f"{head} {plain(str(data.get('role', '')), newlines=False)}",
            *_indented(str(data.get("content") or "")),
        ]
        calls = data.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            given = call if isinstance(call, dict) else {"name": call}
            lines += [f"  -> {plain(str(given.get('name')))}"]
            arguments = given.get("arguments")
            for key, value in arguments.items() if isinstance(arguments, dict) else ():
                lines += [f"     {plain(str(key))}: {plain(_value('', value), indent=' ' * 7)}"]
        return lines
    if kind == "tool_result":
        return [f"{head}{' error' if data.get('is_error') else ''}", *_indented(str(data.get("content", "")))]
    facts = [
        f"     {plain(str(key))}: {plain(_value(key, value), indent=' ' * 7)}" for key, value in data.items()
    ]
    return [head, *facts]


def _value(key: str, value: Any) -> str:
    """Return a field for people: a time as local time, a value that is not text as JSON."""
    if key in MOMENTS and (when := moment(value)):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    return value if isinstance(value, str) else quickjson.dumps(value)


def _indented(text: str) -> list[str]:
    if len(text) > SHOWN:
        text = f"{text[:SHOWN]}… ({len(text)} characters)"
    return [f"     {line}" for line in plain(text).split("\n")] if text else []
