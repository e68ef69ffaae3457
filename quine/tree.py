"""What the tapes of a data directory tell: one session in full, or a whole tree, who started whom and how it ended.

Laws
1. It reads tapes and nothing else, also those that are being written, torn or without an end.
2. What a tape holds is foreign: control characters are shown, never obeyed, and no value has to be of the type that
   we write. A file that is no tape is named on stderr, and the others are shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from quine.exits import Failure, Misconfigured, complain
from quine.tape import read

DEEPEST = 40  # levels that are indented
SHORT = 60  # characters of a mission in a tree
SHOWN = 2000  # characters of one text in a session


class Session(NamedTuple):
    id: str
    parent: str
    root: str
    begun: float
    meta: dict[str, Any]
    outcome: dict[str, Any] | None
    last: float


def tree(folder: Path, session: str = "") -> str:
    """The tree that `session` belongs to (an id or its beginning; "" is the latest), one line a session."""
    sessions = _sessions(folder)
    root = _find(sessions, session, folder).root
    below: dict[str, list[Session]] = {}
    mine = sorted((one for one in sessions.values() if one.root == root), key=lambda one: one.begun)
    for one in mine:
        below.setdefault(one.parent if one.parent in sessions else "", []).append(one)
    rows: list[tuple[str, ...]] = [("NODE", "PID", "EXIT", "SECONDS", "SESSION", "MISSION")]
    drawn: set[str] = set()
    # The second part is for those that name each other as their parents.
    for first in (*below.get("", ()), *mine):
        waiting = [(first, 0)]
        while waiting:
            one, depth = waiting.pop()
            if one.id in drawn:
                continue
            drawn.add(one.id)
            rows.append(_row(one, depth))
            for child in reversed(below.get(one.id, ())):
                # A life after exec is the same process, not a child of it.
                waiting.append((child, depth if child.meta.get("born") == "exec" else depth + 1))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(w) if 0 < n < 4 else cell.ljust(w)
            for n, (cell, w) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join([*cells, row[5]]).rstrip())
    return "\n".join(lines) + "\n"


def show(folder: Path, session: str = "") -> str:
    """One session as text: what it was told, what it did, what came of it."""
    one = _find(_sessions(folder), session, folder)
    lines: list[str] = []
    for entry in _entries(folder / f"{one.id}.jsonl"):
        try:
            lines += _shown(entry)
        except (RecursionError, ValueError) as error:
            lines.append(f"[{len(lines)}] cannot be shown: {type(error).__name__}")
    return "\n".join(lines) + "\n"


def _row(one: Session, depth: int) -> tuple[str, ...]:
    mission = plain(str(one.meta.get("mission", "")), newlines=False)
    if len(mission) > SHORT:
        mission = mission[: SHORT - 1] + "…"
    if one.outcome is None:
        verdict, seconds = "-", one.last - one.begun
    else:
        verdict = plain(str(one.outcome.get("exit_code", "?"))[:12], newlines=False)
        if one.outcome.get("termination_mode") == "exec":
            verdict = "exec"
        seconds = _number(one.outcome.get("duration_ms")) / 1000
    node, pid = (plain(str(one.meta.get(key, "?"))[:60], newlines=False) for key in ("node", "pid"))
    session = plain(one.id[:18], newlines=False)
    return "  " * min(depth, DEEPEST) + node, pid, verdict, f"{seconds:.2f}", session, mission


def _number(value: object, otherwise: float = 0.0) -> float:
    """A number of a sensible size, or `otherwise`."""
    if isinstance(value, int | float) and abs(value) < 1e15:
        return float(value)
    return otherwise


def _shown(entry: dict[str, Any]) -> list[str]:
    data, kind = entry["data"], entry["type"]
    head = plain(f"[{entry.get('seq', '?')}] {kind}", newlines=False)
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


def plain(text: str, newlines: bool = True, indent: str = "") -> str:
    """Foreign text for a terminal: control characters as their escapes."""
    keep = "\n\t" if newlines else ""
    shown = "".join(c if c in keep or (c.isprintable()) else repr(c)[1:-1] for c in text)
    return shown.replace("\n", f"\n{indent}") if indent else shown


def _find(sessions: dict[str, Session], session: str, folder: Path) -> Session:
    if not sessions:
        raise Misconfigured(f"no tapes in {folder}", "see QUINE_DATA_DIR and --data-dir")
    if not session:
        return max(sessions.values(), key=lambda one: (one.meta.get("depth") == 0, one.begun))
    fit = [one for one in sessions.values() if one.id.startswith(session)]
    if len(fit) != 1:
        many = "no session" if not fit else f"{len(fit)} sessions"
        raise Misconfigured(f"{many} in {folder} begin{'s' if not fit else ''} with {session}")
    return fit[0]


def _sessions(folder: Path) -> dict[str, Session]:
    found: dict[str, Session] = {}
    for path in sorted(folder.glob("*.jsonl")):
        try:
            entries = read(str(path))
        except (OSError, ValueError) as error:
            complain(f"not a tape: {plain(str(error), newlines=False)}")
            continue
        meta = next((entry for entry in entries if entry["type"] == "meta"), None)
        if meta is None:
            if entries:
                complain(f"not a tape: {plain(str(path), newlines=False)}: it has no meta")
            continue
        data = meta["data"]
        outcome = next((e["data"] for e in reversed(entries) if e["type"] == "outcome"), None)
        begun = _number(meta.get("ts"))
        last = _number(entries[-1].get("ts"), begun)
        parent = str(data.get("parent_session_id") or "")
        root = str(data.get("root_session_id") or path.stem)
        found[path.stem] = Session(path.stem, parent, root, begun, data, outcome, last)
    return found


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        return read(str(path))
    except (OSError, ValueError) as error:
        raise Failure(1, f"the tape cannot be read: {error}") from None
