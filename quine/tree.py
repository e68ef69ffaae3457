"""What sessions did, as text for people: one in full, a tree of them, a list of them.

Laws
1. What a tape holds is foreign: control characters are shown, never obeyed.
2. A list for scripts is JSON lines, and has every field of the list for people.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from quine.exits import Failure
from quine.tape import entries
from quine.tapes import Session, find, sessions, tree_of
from quine.text import plain, table
from transport import quickjson

DEEPEST = 40  # levels that are indented
SHORT = 60  # characters of a mission in a tree
SHOWN = 2000  # characters of one text in a session
BRIEF = 18  # characters of an id that are shown


def tree(folder: Path, session: str = "") -> str:
    """The tree that `session` belongs to (an id or its beginning; "" is the latest), one line a session."""
    known = sessions(folder)
    mine = tree_of(known, find(known, session, folder).root)
    below: dict[str, list[Session]] = {}
    for one in mine:
        below.setdefault(one.parent if one.parent in known else "", []).append(one)
    rows = [("NODE", "PID", "EXIT", "SECONDS", "SESSION", "MISSION")]
    drawn: set[str] = set()
    # The second part is for those that name each other as their parents.
    for first in (*below.get("", ()), *mine):
        waiting = [(first, 0)]
        while waiting:
            one, depth = waiting.pop()
            if one.id in drawn:
                continue
            drawn.add(one.id)
            node, pid = (_cell(one.meta.get(key, "?"), 60) for key in ("node", "pid"))
            node = "  " * min(depth, DEEPEST) + node
            rows.append((node, pid, _cell(one.verdict, 12), f"{one.seconds:.2f}", _id(one), _mission(one)))
            for child in reversed(below.get(one.id, ())):
                # A life after exec is the same process, not a child of it.
                waiting.append((child, depth if child.meta.get("born") == "exec" else depth + 1))
    return table(rows, right=(1, 2, 3))


def ls(folder: Path, as_json: bool = False, kept: Path | None = None) -> str:
    """All sessions, the latest last, one line each; with `kept`, those too that are in the files tier alone."""
    here = sessions(folder)
    known = sorted(
        ({**sessions(kept), **here} if kept else here).values(), key=lambda one: (one.begun, one.id)
    )
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
                _mission(one),
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


def _id(one: Session) -> str:
    return plain(one.id[:BRIEF], newlines=False)


def _mission(one: Session) -> str:
    text = plain(one.mission, newlines=False)
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"


# -- one session -------------------------------------------------------------------------------------


def show(folder: Path, session: str = "") -> str:
    """One session as text: what it was told, what it did, what came of it."""
    one = find(sessions(folder), session, folder)
    lines: list[str] = []
    try:
        for number, entry in entries(str(one.path)):
            try:
                lines += _shown(entry, number)
            except (RecursionError, ValueError) as error:
                lines.append(f"[{number - 1}] cannot be shown: {type(error).__name__}")
    except (OSError, ValueError) as error:
        raise Failure(1, f"the tape cannot be read: {error}") from None
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
                lines += [f"     {plain(str(key))}: {plain(str(value), indent=' ' * 7)}"]
        return lines
    if kind == "tool_result":
        return [f"{head}{' error' if data.get('is_error') else ''}", *_indented(str(data.get("content", "")))]
    facts = [f"     {plain(str(key))}: {plain(str(value), indent=' ' * 7)}" for key, value in data.items()]
    return [head, *facts]


def _indented(text: str) -> list[str]:
    if len(text) > SHOWN:
        text = f"{text[:SHOWN]}… ({len(text)} characters)"
    return [f"     {line}" for line in plain(text).split("\n")] if text else []
