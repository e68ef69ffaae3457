"""Progress of a running session, from its tape: turns, cost, and its current activity."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

LARGEST = 32 << 20  # bytes; a larger tape is not read
SHOWN = 30  # characters of a command


class Progress(NamedTuple):
    turns: int | None = None
    cost: float | None = None  # US dollars; None if a price is unknown
    doing: str = ""  # the tool call in progress, "inference" or "ending"


def progress(path: str) -> Progress:
    """Return the progress of one tape; all fields are empty if it is larger than LARGEST or not a tape."""
    from quine.tape import cost, reader

    turns, doing = 0, "inference"
    waiting: list[str] = []  # calls without a result

    def each(entry: dict[str, Any]) -> None:
        nonlocal turns, doing, waiting
        kind, data = entry["type"], entry["data"]
        if kind == "message" and data.get("role") == "assistant":
            calls = data.get("tool_calls")
            waiting = [_call(call) for call in calls] if isinstance(calls, list) else []
            turns += sum(call.startswith("sh") for call in waiting)
        elif kind == "tool_result" and waiting:
            waiting.pop(0)
        elif kind == "outcome":
            doing = "ending"

    try:
        if os.stat(path).st_size > LARGEST:
            return Progress()
        session = reader.summary(Path(path), each)
    except (OSError, ValueError):
        return Progress()
    return Progress(turns, cost.known(session) if session else None, waiting[0] if waiting else doing)


def _call(call: object) -> str:
    if not isinstance(call, dict):
        return "?"
    arguments = call.get("arguments")
    command = arguments.get("command") if isinstance(arguments, dict) else None
    name = str(call.get("name"))
    return f"{name} {' '.join(command.split())}"[:SHOWN] if isinstance(command, str) else name
