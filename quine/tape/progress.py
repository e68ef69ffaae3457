"""How far a running session is, from its tape: turns, cost, and what it does at this moment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

LARGEST = 32 << 20  # bytes of a tape that is read for it
SHOWN = 30  # characters of a command


class Progress(NamedTuple):
    turns: int | None = None
    cost: float | None = None  # US dollars; None where a price is not known
    doing: str = ""  # the tool that is called, or inference


def progress(path: str) -> Progress:
    """Of one tape. All fields are empty where it is too large to be read for that, or is no tape."""
    from quine.tape import cost as bill
    from quine.tape import reader
    from quine.tape.writer import entries

    turns, doing = 0, "inference"
    waiting: list[str] = []  # calls without a result
    try:
        if os.stat(path).st_size > LARGEST:
            return Progress()
        for _, entry in entries(path):
            kind, data = entry["type"], entry["data"]
            if kind == "message" and data.get("role") == "assistant":
                calls = data.get("tool_calls")
                waiting = [_call(call) for call in calls] if isinstance(calls, list) else []
                turns += sum(call.startswith("sh") for call in waiting)
            elif kind == "tool_result" and waiting:
                waiting.pop(0)
            elif kind == "outcome":
                doing = "ending"
        session = reader.summary(Path(path))
    except (OSError, ValueError):
        return Progress()
    return Progress(turns, bill.known(session) if session else None, waiting[0] if waiting else doing)


def _call(call: object) -> str:
    if not isinstance(call, dict):
        return "?"
    arguments = call.get("arguments")
    command = arguments.get("command") if isinstance(arguments, dict) else None
    name = str(call.get("name"))
    return f"{name} {' '.join(command.split())}"[:SHOWN] if isinstance(command, str) else name
