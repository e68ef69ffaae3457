"""Tapes as agents leave them, written without an agent: many sessions, some of them lives of one process."""

from __future__ import annotations

import json
from pathlib import Path

from quine.base.sessions import new_session
from transport.address import boot_id

NOBODY = 1 << 22  # a pid above all that Linux gives


def write_sessions(folder: Path, count: int, lives: int = 0, turns: int = 3) -> list[str]:
    """Write `count` ended sessions of so many turns; the first `lives` of them are one process. Returns their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = [new_session() for _ in range(count)]
    for number, session in enumerate(ids):
        chained = number < lives
        follows = chained and number > 0
        meta = {
            "session_id": session,
            "parent_session_id": ids[number - 1] if follows else "",
            "root_session_id": ids[0] if chained else session,
            "depth": 0,
            "mission": f"mission {number}",
            "born": "exec" if follows else "start",
            "node": "local",
            "pid": NOBODY,
            "boot_id": boot_id(),
            "started": 1,
        }
        goes_on = chained and number < lives - 1
        outcome = {
            "exit_code": 0,
            "termination_mode": "exec" if goes_on else "exit",
            **({"to": ids[number + 1]} if goes_on else {}),
        }
        said = [("message", {"role": "assistant", "content": "x" * 1000})] * turns
        entries = [("meta", meta), *said, ("outcome", outcome)]
        lines = [
            {"type": kind, "data": data, "seq": seq, "ts": 1e9 + number + seq / 100, "prev": "0" * 64}
            for seq, (kind, data) in enumerate(entries)
        ]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (folder / f"{session}.jsonl").write_text(text)
    return ids
