"""The text of `quine top`: a line on all, the batches with their hosts, then the agents and jobs as trees.

Laws
1. No clock, no descriptor: the batches, the rows and the size are given; None is no limit.
2. All that comes from items, missions, hosts and tapes is made harmless, and no line is wider than the terminal.
"""

from __future__ import annotations

import unicodedata

from quine.base.sessions import SHORT
from quine.base.text import plain
from quine.jobs import batch_state
from quine.jobs.batch_state import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from quine.cli.top.look import Found, Tree

    Facts = dict[str, Any]

WIDE = 100  # columns from which on there are those of PID and TURN
BRIEF = 13  # characters of an id: its time
MOST = 400  # characters of a mission or command
HOSTS = 100  # columns of the hosts of a batch where there is no limit
BATCH = 6  # lines of a batch, at most, where lines are limited
RIGHT = ("PID", "TIME", "TURN", "COST")


def draw(
    found: Found, time: str, width: int | None, height: int | None, notes: tuple[str, ...] = ()
) -> list[str]:
    """Return the lines; `time` is that of the day, and `notes` are shown below all."""
    ids = [row["id"] for row in found.rows] + [state["id"] for state in found.batches]
    brief = BRIEF if len({id[:BRIEF] for id in ids}) == len(set(ids)) else SHORT
    lines = [f"quine top, {time}: {summary(found)}"]
    low = [plain(note, newlines=False) for note in notes]
    for one in found.silent:
        low.append(
            f"quine: {plain(one.host or 'this machine', newlines=False)}: {plain(one.detail, newlines=False)}"
        )
    room = None if height is None else max(1, height - 1 - len(low))
    upper = _batches(found, brief, width, None if room is None else (room if not found.rows else room // 2))
    lines += upper
    table = _table(found, brief, width)
    if table:
        lines.append("")
        left = None if room is None else room - len(upper) - 1
        lines += _limited(table, left, "jobs")
    return [cut(line, width) for line in [*lines, *low]][:height]


def summary(found: Found) -> str:
    """Return how much there is of each kind."""
    kinds = [row["kind"] for row in found.rows]
    agents = [row for row in found.rows if row["turns"] is not None or row["kind"] == "agent"]
    batches = {state["id"] for state in found.batches}
    counts = (
        (len(found.batches), "batch", "batches"),
        (len({row["root"] or row["id"] for row in agents} - batches), "tree", "trees"),
        (len(agents), "agent", "agents"),
        (len(kinds) - len(agents), "job", "jobs"),
    )
    parts = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
    return ", ".join(parts) or "nothing runs"


def _limited(lines: list[str], room: int | None, what: str) -> list[str]:
    """Return as many lines as there is room for; the last one then tells of the others."""
    if room is None or len(lines) <= room:
        return lines
    return [*lines[: max(0, room - 1)], f"and {len(lines) - max(0, room - 1)} more {what}"][: max(0, room)]


# -- batches ---------------------------------------------------------------------------------------


def _batches(found: Found, brief: int, width: int | None, room: int | None) -> list[str]:
    lines: list[str] = []
    for number, state in enumerate(found.batches):
        height = 1 << 20 if room is None else BATCH
        inner = batch_state.lines(state, (width or HOSTS) - 2, height)
        block = ["", _head(state, brief), *(f"  {line}" for line in inner)]
        left = len(found.batches) - number
        if room is not None and len(lines) + len(block) + 2 * (left > 1) > room:
            return [*lines, "", f"and {left} more batches"][: max(0, room)]
        lines += block
    return lines


def _head(state: Facts, brief: int) -> str:
    how = (", detached" if state["detached"] else "") + (", stopped" if state["stopped"] else "")
    where = plain(state["host"], newlines=False)
    command = plain(state["command"][:MOST], newlines=False)
    return (
        f"{plain(state['id'][:brief], newlines=False)}  {where}  {duration(state['seconds'])}{how}  {command}"
    )


# -- agents and jobs -------------------------------------------------------------------------------


def _table(found: Found, brief: int, width: int | None) -> list[str]:
    """Return the lines of the table: a head, and each agent or job, children below their parents."""
    if not found.rows:
        return []
    wide = width is None or width >= WIDE
    names = ["ID", "HOST", "PID", "STATE", "TIME", "TURN", "COST", "DOING", "COMMAND"]
    names = names if wide else [name for name in names if name not in ("PID", "TURN")]
    lines: list[list[str] | str] = [names]
    for row, depth in _ordered(found.rows):
        cells = _cells(row, brief, depth, 30 if wide else 12)
        lines.append([cells[name] for name in names])
        if depth == 0 and (tree := found.trees.get(row["root"] or row["id"])):
            lines.append(_totals(tree))
    rows = [line for line in lines if isinstance(line, list)]
    widths = [max(map(columns, column)) for column in zip(*rows)]
    return [line if isinstance(line, str) else _line(line, names, widths) for line in lines]


def _totals(tree: Tree) -> str:
    agents = f"{tree.agents} agents" if tree.agents != 1 else "1 agent"
    cost = f", ${tree.cost:.2f}" if tree.cost else ""  # 0 where no price is known
    return f"  {agents} so far, {tree.tokens} tokens{cost}"


def _line(cells: list[str], names: list[str], widths: list[int]) -> str:
    found = []
    for cell, name, width in zip(cells, names, widths):
        space = " " * (width - columns(cell))
        found.append(space + cell if name in RIGHT else cell + space)
    return "  ".join(found).rstrip()


def _ordered(rows: list[Facts]) -> list[tuple[Facts, int]]:
    """Return the rows with their depths, each below its parent if that is there."""
    ids = {row["id"]: row for row in rows} | {row["session"]: row for row in rows if row["session"]}
    below: dict[str, list[Facts]] = {}
    for row in rows:
        above = ids.get(row["parent"])
        below.setdefault(above["id"] if above and above is not row else "", []).append(row)
    found: list[tuple[Facts, int]] = []
    todo = [(row, 0) for row in reversed(below.pop("", []))]
    while todo:
        row, depth = todo.pop()
        found.append((row, depth))
        todo += [(child, depth + 1) for child in reversed(below.pop(row["id"], []))]
    known = {id(row) for row, _ in found}
    return found + [
        (row, 0) for row in rows if id(row) not in known
    ]  # parents in a circle, of a host that lies


def _cells(row: Facts, brief: int, depth: int, doing: int) -> dict[str, str]:
    def text(name: str, most: int) -> str:
        return cut(plain(str(row[name] or "")[:MOST], newlines=False), most)

    at_work = f"link down {row['down']:.0f} s" if row["down"] else text("doing", doing) or "-"
    return {
        "ID": text("id", brief),
        "HOST": text("host", 16),
        "PID": str(row["pid"] or "-"),
        "STATE": text("state", 12),
        "TIME": duration(max(0.0, row["seconds"])),
        "TURN": "-" if row["turns"] is None else str(row["turns"]),
        "COST": "-" if row["cost"] is None else f"{row['cost']:.4f}",
        "DOING": cut(at_work, doing),
        "COMMAND": "  " * depth + text("mission", MOST),
    }


# -- widths ----------------------------------------------------------------------------------------


def columns(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_wide, text))


def _wide(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int | None) -> str:
    """Return as much of a text as takes `width` columns."""
    if width is None or columns(text) <= width:
        return text
    if text.isascii():
        return text[:width]
    at = taken = 0
    for character in text:
        taken += _wide(character)
        if taken > width:
            break
        at += 1
    return text[:at]
