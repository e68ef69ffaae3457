"""What the tapes of a data directory tell: one session in full, or a whole tree, who started whom and how it ended.

Laws
1. It reads tapes and nothing else, also those that are being written, torn or without an end.
2. What a tape holds is foreign text: control characters are shown, never obeyed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from quine.exits import Failure, Misconfigured
from quine.tape import read

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
    mine = [one for one in sessions.values() if one.root == root]
    for one in sorted(mine, key=lambda one: one.begun):
        below.setdefault(one.parent if one.parent in sessions else "", []).append(one)
    rows: list[tuple[str, ...]] = [("NODE", "PID", "EXIT", "SECONDS", "SESSION", "MISSION")]

    def add(one: Session, depth: int) -> None:
        rows.append(_row(one, depth))
        for child in below.get(one.id, ()):
            # A life after exec is the same process, not a child of it.
            add(child, depth if child.meta.get("born") == "exec" else depth + 1)

    for one in below.get("", ()):
        add(one, 0)
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
        lines += _shown(entry)
    return "\n".join(lines) + "\n"


def _row(one: Session, depth: int) -> tuple[str, ...]:
    mission = plain(str(one.meta.get("mission", "")), newlines=False)
    if len(mission) > SHORT:
        mission = mission[: SHORT - 1] + "…"
    if one.outcome is None:
        verdict, seconds = "-", one.last - one.begun
    else:
        verdict = str(one.outcome.get("exit_code", "?"))
        if one.outcome.get("termination_mode") == "exec":
            verdict = "exec"
        seconds = float(one.outcome.get("duration_ms", 0)) / 1000
    node, pid = plain(str(one.meta.get("node", "?")), newlines=False), str(one.meta.get("pid", "?"))
    return "  " * depth + node, pid, verdict, f"{seconds:.2f}", one.id[:18], mission


def _shown(entry: dict[str, Any]) -> list[str]:
    data, kind = entry["data"], entry["type"]
    head = f"[{entry.get('seq', '?')}] {kind}"
    if kind == "message":
        lines = [f"{head} {data.get('role', '')}", *_indented(str(data.get("content") or ""))]
        for call in data.get("tool_calls") or ():
            lines += [f"  -> {plain(str(call.get('name')))}"]
            for key, value in (call.get("arguments") or {}).items():
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
        except (OSError, ValueError):
            continue
        meta = next((entry for entry in entries if entry["type"] == "meta"), None)
        if meta is None:
            continue
        data = meta["data"]
        outcome = next((e["data"] for e in reversed(entries) if e["type"] == "outcome"), None)
        begun = float(meta.get("ts") or 0)
        last = float(entries[-1].get("ts") or begun)
        parent = str(data.get("parent_session_id") or "")
        root = str(data.get("root_session_id") or path.stem)
        found[path.stem] = Session(path.stem, parent, root, begun, data, outcome, last)
    return found


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        return read(str(path))
    except (OSError, ValueError) as error:
        raise Failure(1, f"the tape cannot be read: {error}") from None
