"""The requests that a guest was sent, rebuilt from tapes alone; and the children of a tape.

Laws
1. The result equals the messages that the loop had in memory: in their order, the replies in the provider's own form,
   and each result that was sent again, shortened, in the place of the earlier one.
2. A cloned session begins with its parent's conversation up to the line that its meta names.
3. A text that was masked before it was written stays masked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from quine.base.messages import Message, Reply, Usage
from quine.base.sessions import is_session, tape_path
from quine.tape.lines import entries, first, message_of
from quine.tape.reader import files, moment, usage_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


DEEPEST = 100  # clones of clones; a tape of quine has at most as many as the tree has levels


class Step(NamedTuple):
    """One message of a tape.

    If `again` is set, it replaces an earlier result: at that index of the conversation, or the last of its call.
    """

    line: int
    message: Message
    again: object
    entry: dict[str, Any]

    @property
    def reply(self) -> Reply:
        data = self.entry["data"]
        stop = str(data.get("stop") or ("tool" if self.message.tool_calls else "end"))
        return Reply(self.message, usage_of(data.get("usage")) or Usage(), stop)


class Sent(NamedTuple):
    """One request, and the line of the reply to it; line 0 for the request that was due when the session ended."""

    ordinal: int
    line: int
    messages: tuple[Message, ...]


def steps(path: Path, lines: int = 0) -> Iterator[Step]:
    """Yield the messages of one tape, or of its first `lines` lines."""
    for number, entry in entries(str(path)):
        if lines and number > lines:
            return
        message = message_of(entry)
        if message is not None:
            yield Step(number, message, entry["data"].get("again"), entry)


def requests(path: Path) -> Iterator[Sent]:
    """Yield every request of one session.

    The last one holds the messages after the last reply; it may have failed, or never have been sent.
    """
    messages = context(path)
    ordinal = answered = 0
    for step in steps(path):
        if step.message.role == "assistant":
            yield Sent(ordinal, step.line, tuple(messages))
            ordinal, answered = ordinal + 1, len(messages) + 1
        take(messages, step)
    if len(messages) > answered:
        yield Sent(ordinal, 0, tuple(messages))


def context(path: Path, depth: int = 0) -> list[Message]:
    """Return the conversation that a session began with. Raise ValueError if the tape it was cloned from is missing."""
    cloned = meta(path).get("cloned")
    if not isinstance(cloned, dict):
        return []
    above, lines = beside(path, cloned.get("session")), cloned.get("lines")
    if above is None or not isinstance(lines, int) or depth > DEEPEST:
        raise ValueError(f"{path}: the tape that it was cloned from is not there: {cloned.get('session')}")
    messages = context(above, depth + 1)
    for step in steps(above, lines):
        take(messages, step)
    return messages


def take(messages: list[Message], step: Step) -> None:
    """Apply one step: append its message, or replace an earlier result."""
    result, place = step.message.result, step.again
    if result is None or not place:
        messages.append(step.message)
        return
    if isinstance(place, int) and place is not True and place < len(messages):
        messages[place] = step.message
    else:
        for at in range(len(messages) - 1, -1, -1):
            earlier = messages[at].result
            if earlier is not None and earlier.call_id == result.call_id and earlier.text != result.text:
                messages[at] = step.message
                return


# -- lineage -----------------------------------------------------------------------------------------

# How a session came out of its parent: (fork|exec|start, mission of a start, index among its equals)
Place = tuple[str, str, int]


def children(path: Path) -> dict[Place, Path]:
    """Return the tapes that a session forked, or became by exec. A tape may not exist: started, and not yet written."""
    found: dict[Place, Path] = {}
    forks = lives = 0
    for _, entry in entries(str(path)):
        if entry["type"] == "fork" and "ended" not in entry["data"]:
            _put(found, ("fork", "", forks), named(path, entry["data"].get("session")))
            forks += 1
        elif entry["type"] == "outcome" and "to" in entry["data"]:
            _put(found, ("exec", "", lives), named(path, entry["data"]["to"]))
            lives += 1
    return found


def nested(folder: Path) -> dict[str, dict[Place, Path]]:
    """Return the sessions that commands of a session started, by that session. Only their own tapes name the parent."""
    started = []
    for path in files(folder):
        try:
            data = meta(path)
        except (OSError, ValueError):
            continue
        parent = data.get("parent_session_id")
        if isinstance(parent, str) and parent and data.get("born") == "start":
            started.append((moment(data.get("created_at")), path, parent, str(data.get("mission"))))
    found: dict[str, dict[Place, Path]] = {}
    for _, path, parent, mission in sorted(started):
        mine = found.setdefault(parent, {})
        mine["start", mission, sum(place[1] == mission for place in mine)] = path
    return found


def _put(found: dict[Place, Path], place: Place, path: Path | None) -> None:
    if path is not None:
        found[place] = path


def meta(path: Path) -> dict[str, Any]:
    """Return the data of the meta of a tape. Raise ValueError if it has none."""
    entry = first(str(path))
    if entry is None:
        raise ValueError(f"{path}: it has no meta")
    data: dict[str, Any] = entry["data"]
    return data


def named(path: Path, session: object) -> Path | None:
    """Return the path of a session's tape beside this one; None if `session` is not the name of a session."""
    if not isinstance(session, str) or not is_session(session):
        return None
    return Path(tape_path(str(path.parent), session))


def beside(path: Path, session: object) -> Path | None:
    """Return the tape of a session in the same directory; None if there is none."""
    other = named(path, session)
    return other if other is not None and other.is_file() else None
