"""The tapes of a data directory: which sessions there are, who started whom, what each took and how it ended.

Laws
1. Tapes are read and nothing else is, also those that are being written, torn, without an end, or of the reference
   implementation. A tape is read once, line by line: memory does not grow with it.
2. What a tape holds is foreign: no value has to be of the type that we write.
3. A file that is no tape is named on stderr, and the others are read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from quine.exits import Misconfigured, complain
from quine.guests.base import Usage
from quine.tape import entries
from quine.text import plain as plain

HUGE = 1e15  # no count, no time and no size of ours is larger
MILLISECONDS = 1e11  # the reference counts in them; as seconds that is the year 5138
MISSION = "### Your Mission\n"  # under this, in its system prompt, the reference has what we have in meta


class Reply(NamedTuple):
    """One inference; what its tape does not tell is None or 0."""

    model: str
    usage: Usage | None


class Session(NamedTuple):
    id: str
    path: Path
    meta: dict[str, Any]
    outcome: dict[str, Any] | None
    begun: float
    last: float
    replies: tuple[Reply, ...]
    mission: str
    root: str
    chained: bool  # ours; the reference has no chain

    @property
    def parent(self) -> str:
        return str(self.meta.get("parent_session_id") or "")

    @property
    def model(self) -> str:
        return str(self.meta.get("model_id") or "")

    @property
    def seconds(self) -> float:
        if self.outcome is not None:
            return number(self.outcome.get("duration_ms")) / 1000
        return max(0.0, self.last - self.begun)

    @property
    def verdict(self) -> str:
        """The exit code, or exec, or - where it has no end."""
        if self.outcome is None:
            return "-"
        if self.outcome.get("termination_mode") == "exec":
            return "exec"
        return str(self.outcome.get("exit_code", "?"))

    def tokens(self) -> tuple[int, int]:
        """In and out, as the outcome tells or, without one, the replies do."""
        if self.outcome is not None:
            told = (number(self.outcome.get(name)) for name in ("tokens_in", "tokens_out"))
            return int(next(told)), int(next(told))
        usage = [reply.usage for reply in self.replies if reply.usage is not None]
        return sum(one.input for one in usage), sum(one.output for one in usage)


def sessions(folder: Path) -> dict[str, Session]:
    """All of them, by id."""
    found: dict[str, Session] = {}
    for path in files(folder):
        try:
            session = summary(path)
        except (OSError, ValueError) as error:
            complain(f"not a tape: {plain(str(error), newlines=False)}")
            continue
        if session is not None:
            found[session.id] = session
    return {id: one if one.root else one._replace(root=_root(found, id)) for id, one in found.items()}


def files(folder: Path) -> list[Path]:
    """What may be tapes. Raises Misconfigured where that cannot be seen; a directory that is missing has none."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        why = (error.strerror or "").lower()
        raise Misconfigured(f"{folder} cannot be read: {why}", "see QUINE_DATA_DIR and --data-dir") from None
    return sorted(folder / name for name in names if name.endswith(".jsonl"))


def summary(path: Path) -> Session | None:
    """What a tape tells at a glance; None for one of which no whole line was written yet."""
    meta: dict[str, Any] | None = None
    outcome: dict[str, Any] | None = None
    begun = last = 0.0
    chained = False
    replies: list[Reply] = []
    mission = ""
    for _, entry in entries(str(path)):
        kind, data = entry["type"], entry["data"]
        chained = chained or "prev" in entry
        when = moment(entry.get("ts")) or moment(data.get("timestamp"))
        last = max(last, when)
        if kind == "meta" and meta is None:  # the reference may have written a second one
            meta = data
            begun = when or moment(data.get("created_at"))
            last = max(last, begun)
            mission = str(data.get("mission") or "")
        elif kind == "outcome":
            outcome = data
        elif kind == "message" and data.get("role") == "assistant":
            replies.append(Reply(str(data.get("model") or ""), usage_of(data.get("usage"))))
        elif kind == "message" and data.get("role") == "system" and not mission:
            mission = str(data.get("content") or "").partition(MISSION)[2].partition("\n### ")[0].strip()
    if meta is None:
        if last or replies or outcome:
            raise ValueError(f"{path}: it has no meta")
        return None
    named = str(meta.get("model_id") or "")
    replies = [reply if reply.model else Reply(named, reply.usage) for reply in replies]
    root = str(meta.get("root_session_id") or "")
    return Session(path.stem, path, meta, outcome, begun, last, tuple(replies), mission, root, chained)


def find(known: dict[str, Session], session: str, folder: Path) -> Session:
    """The one whose id begins so; "" is the root of the latest tree."""
    if not known:
        raise Misconfigured(f"no tapes in {folder}", "see QUINE_DATA_DIR and --data-dir")
    if not session:
        return max(known.values(), key=lambda one: (one.meta.get("depth") == 0, one.begun))
    fit = [one for one in known.values() if one.id.startswith(session)]
    if len(fit) != 1:
        many = "no session" if not fit else f"{len(fit)} sessions"
        raise Misconfigured(f"{many} in {folder} begin{'s' if not fit else ''} with {session}")
    return fit[0]


def tree_of(known: dict[str, Session], root: str) -> list[Session]:
    """All sessions of a tree, as they began."""
    return sorted((one for one in known.values() if one.root == root), key=lambda one: (one.begun, one.id))


def _root(found: dict[str, Session], session: str) -> str:
    """Up the parents, which is what the reference leaves us; they may go round in a circle."""
    seen = {session}
    while (parent := found[session].parent) in found and parent not in seen:
        session = parent
        seen.add(session)
    return session


def usage_of(told: object) -> Usage | None:
    """None where nothing was told, which is not the same as nothing used."""
    if not isinstance(told, dict):
        return None
    values = [number(told.get(field)) for field in Usage._fields]
    return Usage(*map(int, values[:-1]))._replace(cost=values[-1])


def number(value: object, otherwise: float = 0.0) -> float:
    """A number of a sensible size, or `otherwise`."""
    if isinstance(value, int | float) and abs(value) < HUGE:
        return float(value)
    return otherwise


def moment(value: object) -> float:
    """Seconds since the epoch out of seconds, milliseconds or RFC 3339; 0 where it is none of them."""
    if isinstance(value, str):
        from datetime import datetime

        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return 0.0
    seconds = number(value)
    return seconds / 1000 if seconds > MILLISECONDS else seconds
