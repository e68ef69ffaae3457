"""The tapes of a data directory: its sessions, their parents, their cost in time and tokens, and how they ended.

Laws
1. Reading changes nothing. A tape may be still growing, torn, without an outcome, or of the reference implementation.
   It is read once, line by line, and its texts are not kept in memory.
2. Tape contents are untrusted: any value may have another type than quine writes.
3. A file that is not a tape is named on stderr, and the others are read. A list reads the two ends of a tape; `verify`
   checks whether it is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from quine.base.errors import Misconfigured, complain
from quine.base.messages import Usage
from quine.base.sessions import tape_path
from quine.base.text import plain as plain
from quine.tape import index
from quine.tape.lines import entries, first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Result = TypeVar("Result")

HUGE = 1e15  # no count, time or size of quine is larger
MILLISECONDS = 1e11  # the reference counts in them; as seconds that is the year 5138
_named_files: set[str] = set()  # complaints that this process has made
MISSION = "### Your Mission\n"  # under this, the reference's system prompt has the mission; quine has it in the meta


class Reply(NamedTuple):
    """One inference; a value that its tape does not have is None or 0."""

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
    chained: bool  # written by quine; the reference has no chain
    forks: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - never changed in place; children on this tape, by id

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
        """The exit code, "exec", or "-" if there is no outcome."""
        if self.outcome is None:
            return "-"
        if self.outcome.get("termination_mode") == "exec":
            return "exec"
        return str(self.outcome.get("exit_code", "?"))

    def tokens(self) -> tuple[int, int]:
        """Return the input and output tokens, from the outcome or, without one, from the replies."""
        if self.outcome is not None:
            told = (number(self.outcome.get(name)) for name in ("tokens_in", "tokens_out"))
            return int(next(told)), int(next(told))
        usage = [reply.usage for reply in self.replies if reply.usage is not None]
        return sum(one.input for one in usage), sum(one.output for one in usage)


class Head(NamedTuple):
    """The facts in the first line of a tape."""

    id: str
    path: Path
    parent: str
    root: str
    top: bool  # it has no parent: its depth is 0
    begun: float


def sessions(folder: Path) -> dict[str, Session]:
    """Return all sessions by id. Reads every tape from its first to its last line."""
    return _read(heads(folder).values())


def brief(folder: Path) -> dict[str, Session]:
    """Like `sessions`, but a tape that ends with an outcome is read only at its two ends: without replies and forks."""
    found: dict[str, Session] = {}
    rest: set[Path] = set()
    for path in files(folder):
        if session := _by_its_ends(path):
            found[session.id] = session
        else:
            rest.add(path)
    return found | (_read(head for head in heads(folder).values() if head.path in rest) if rest else {})


def _by_its_ends(path: Path) -> Session | None:
    """Return the session from the first and last line of its tape; None if a list needs more than these two."""
    first, last = both = index.ends(str(path))
    meta = both.meta
    if not meta or "prev" not in first or last.get("type") != "outcome" or not meta.get("root_session_id"):
        return None
    begun = moment(first.get("ts")) or moment(meta.get("created_at"))
    mission, root = str(meta.get("mission") or ""), str(meta["root_session_id"])
    until = max(begun, moment(last.get("ts")))
    return Session(path.stem, path, meta, last["data"], begun, until, (), mission, root, True)


def heads(folder: Path) -> dict[str, Head]:
    """Return the first line of each tape, by id; a file that is not a tape is named on stderr."""
    found: dict[str, Head] = {}
    for path in files(folder):
        if (head := _tried(_head, path)) is not None:
            found[head.id] = head
    return {id: one if one.root else one._replace(root=_root(found, id)) for id, one in found.items()}


def _head(path: Path) -> Head | None:
    """Return None if no whole line was written yet. Raise OSError, or ValueError for a file that is not a tape."""
    entry = first(str(path))
    if entry is None:
        return None
    data = entry["data"]
    parent, root = (str(data.get(name) or "") for name in ("parent_session_id", "root_session_id"))
    begun = moment(entry.get("ts")) or moment(data.get("created_at"))
    return Head(path.stem, path, parent, root, data.get("depth") == 0, begun)


def _read(wanted: Iterable[Head]) -> dict[str, Session]:
    """Return the sessions of some heads. Reads each tape from its first to its last line."""
    found: dict[str, Session] = {}
    for head in wanted:
        if (session := _tried(summary, head.path)) is not None:
            found[head.id] = session._replace(root=head.root)
    return found


def _tried(read: Callable[[Path], Result | None], path: Path) -> Result | None:
    """Return the result for a tape; None, with one complaint however often it is read, for another file."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        if (why := str(error)) not in _named_files:
            _named_files.add(why)
            complain(f"not a tape: {plain(why, newlines=False)}")
        return None


def none_in(folder: Path) -> Misconfigured:
    return Misconfigured(f"no tapes in {folder}", "see QUINE_DATA_DIR and --data-dir")


def files(folder: Path) -> list[Path]:
    """Return the tapes: files that have the name of a session. None without a directory.

    Raise Misconfigured if it cannot be read.
    """
    try:
        return sorted(Path(tape_path(str(folder), session)) for session in index.sessions(str(folder)))
    except OSError as error:
        why = (error.strerror or "").lower()
        raise Misconfigured(f"{folder} cannot be read: {why}", "see QUINE_DATA_DIR and --data-dir") from None


def matching(folder: Path, session: str) -> list[Path]:
    """Return the tapes of sessions that begin with `session`."""
    return [path for path in files(folder) if path.name.startswith(session)]


def summary(path: Path, each: Callable[[dict[str, Any]], None] | None = None) -> Session | None:
    """Return the summary of a tape; None if no whole line was written yet. Raise OSError, or ValueError for no tape.

    `each` is called with every entry, for a caller that needs more than the summary has.
    """
    meta: dict[str, Any] | None = None
    outcome: dict[str, Any] | None = None
    begun = last = 0.0
    chained = False
    replies: list[Reply] = []
    mission = ""
    forks: dict[str, dict[str, Any]] = {}
    for _, entry in entries(str(path)):
        if each:
            each(entry)
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
        elif kind == "fork":
            child = str(data.get("session"))
            forks[child] = {**forks.get(child, {}), **data, "heard": when}
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
    return Session(path.stem, path, meta, outcome, begun, last, tuple(replies), mission, root, chained, forks)


def find(folder: Path, session: str) -> Session:
    """Return the session whose id begins with `session`; "" is the root of the latest tree.

    Reads that tape whole. Of other tapes it reads at most the first line, and only if `session` is "" or the tape does
    not name its root. Raise Misconfigured if not exactly one session fits.
    """
    if not session:
        known = heads(folder)
        if not known:
            raise none_in(folder)
        return _one(max(known.values(), key=lambda head: (head.top, head.begun)), folder)
    return _one(_named(folder, session), folder)


def _named(folder: Path, session: str) -> Head:
    """Return the head of the one tape whose name begins with `session`."""
    fit = matching(folder, session)
    if len(fit) != 1:
        if not (fit or files(folder)):
            raise none_in(folder)
        many = "no session" if not fit else f"{len(fit)} sessions"
        raise Misconfigured(f"{many} in {folder} begin{'s' if not fit else ''} with {session}")
    try:
        head = _head(fit[0])
    except (OSError, ValueError) as error:
        raise Misconfigured(f"not a tape: {plain(str(error), newlines=False)}") from None
    if head is None:
        raise Misconfigured(f"{fit[0]} holds no whole line yet")
    return head


def _one(head: Head, folder: Path) -> Session:
    """Return the session of a head; its tape is read whole. Raise Misconfigured if it is not a tape."""
    try:
        session = summary(head.path)
    except (OSError, ValueError) as error:
        raise Misconfigured(f"not a tape: {plain(str(error), newlines=False)}") from None
    if session is None:
        raise Misconfigured(f"{head.path} holds no whole line yet")
    root = session.root or heads(folder)[head.id].root  # the reference does not write it down
    return session._replace(root=root)


def tree(folder: Path, session: str) -> list[Session]:
    """Return all sessions of the tree of `session`, by start time. Only the tapes of that tree are read whole."""
    root = find(folder, session).root
    mine = _read(head for head in heads(folder).values() if head.root == root)
    return sorted(mine.values(), key=lambda one: (one.begun, one.id))


def batch(folder: Path, root: str) -> list[Session]:
    """Return all sessions of the batch whose id begins with `root`, by start time; none if there is no such batch.

    A batch has no tape of its own: its id is the root of its agents. Raise Misconfigured if several begin so.
    """
    if not root or matching(folder, root):
        return []
    heads_of = [head for head in heads(folder).values() if head.root.startswith(root)]
    if len(roots := {head.root for head in heads_of}) > 1:
        raise Misconfigured(f"{len(roots)} batches in {folder} begin with {root}")
    return sorted(_read(heads_of).values(), key=lambda one: (one.begun, one.id))


def _root(found: dict[str, Head], session: str) -> str:
    """Return the root by walking up the parents: the reference records no root. A cycle ends where it closes."""
    seen = {session}
    while (parent := found[session].parent) in found and parent not in seen:
        session = parent
        seen.add(session)
    return session


def usage_of(told: object) -> Usage | None:
    """Return None if no usage was recorded, which is not the same as zero usage."""
    if not isinstance(told, dict):
        return None
    values = [number(told.get(field)) for field in Usage._fields]
    return Usage(*map(int, values[:-1]))._replace(cost=values[-1])


def number(value: object, otherwise: float = 0.0) -> float:
    """Return `value` if it is a number below HUGE, else `otherwise`."""
    if isinstance(value, (int, float)) and abs(value) < HUGE:
        return float(value)
    return otherwise


def moment(value: object) -> float:
    """Return seconds since the epoch from seconds, milliseconds or RFC 3339 text; 0 for anything else."""
    if isinstance(value, str):
        from datetime import datetime

        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return 0.0
    seconds = number(value)
    return seconds / 1000 if seconds > MILLISECONDS else seconds
