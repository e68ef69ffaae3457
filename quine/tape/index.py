"""The index of a data directory: its sessions, the first and last entry of each tape, and the sessions of one process.

All code that looks for sessions on the disk does so through this module.

Laws
1. It is derived from the files at each use and stored nowhere, so no entry of it can be stale or half written.
2. An index opens a tape at most once, and reads no more than its first and its last line need.
3. The contents of a data directory are untrusted: any value may have another type than quine writes, and none becomes a
   path.
4. A tape that a host has told is of the process of another tape only if both say so. Otherwise a host could give its
   agent the process of any session that it can name, and `quine kill` of the one would end the other.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from quine.base.sessions import TAPE, is_session, job_directory, tape_path
from quine.tape.lines import READ, TOLD_BY, TooLong, lines_of, opened, parse
from transport.address import state_directory
from transport.lean import contextlib
from transport.provenance import regular_file, safe_path
from transport.status import Status

BLOCK = 1 << 13  # bytes; most first and last lines of a tape are shorter
FARTHEST = 2 * READ  # from the end of a tape: its last whole line, and a torn one
FORK = b'{"type":"fork",'  # how the line of a fork begins


class Ends(NamedTuple):
    """The first and the last whole entry of a tape; {} for a line that is missing or not an entry."""

    first: dict[str, Any]
    last: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        """The data of the first entry and its time as `ts`; {} if that entry is not a meta."""
        if self.first.get("type") != "meta":
            return {}
        return {**self.first["data"], "ts": self.first.get("ts")}

    @property
    def follows(self) -> str:
        """The session that continues the same process after an exec; "" if there is none."""
        after = self.last["data"].get("to") if self.last.get("type") == "outcome" else None
        return str(after) if is_session(after) else ""


class Index:
    """One data directory, as it is when it is asked. A missing directory holds nothing."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._known: dict[str, Ends] = {}
        self._lives: dict[str, list[str]] = {}
        self._children_ended: dict[str, dict[str, Status]] = {}
        self.tapes: set[str] = set()
        self.jobs: set[str] = set()
        with contextlib.suppress(OSError):
            self.tapes = sessions(folder)
        with contextlib.suppress(OSError):
            self.jobs = jobs(folder)

    def path(self, session: str) -> str:
        return tape_path(self.folder, session)

    def has(self, text: str) -> bool:
        """Return whether the id of a session or a job begins so."""
        return any(name.startswith(text) for names in (self.tapes, self.jobs) for name in names)

    def ends(self, session: str) -> Ends:
        """Return the first and last entry of a tape of this directory; both {} if it has no such tape."""
        known = self._known.get(session)
        if known is None:
            known = self._known[session] = ends(self.path(session)) if session in self.tapes else Ends({}, {})
        return known

    def lives(self, session: str) -> list[str]:
        """Return the sessions of the process that `session` is or was part of, from the first to the last.

        The first one was not started by exec, or its predecessor is not here. A cycle of tapes ends where it closes.
        """
        if known := self._lives.get(session):
            return known
        walked: list[str] = []
        seen: set[str] = set()
        while session not in seen and session not in self._lives:
            walked.append(session)
            seen.add(session)
            meta = self.ends(session).meta
            before = meta.get("parent_session_id")
            if (
                meta.get("born") != "exec"
                or not is_session(before)
                or not self._continues(str(before), session)
            ):
                break
            session = str(before)
        found = self._lives.get(session)
        lives = found or self._onward(walked[-1])
        for one in walked if found else (*walked, *lives):
            self._lives.setdefault(one, lives)
        return lives

    def _onward(self, first: str) -> list[str]:
        lives = [first]
        seen = {first}
        while (
            (after := self.ends(lives[-1]).follows)
            and after not in seen
            and self._continues(lives[-1], after)
        ):
            lives.append(after)
            seen.add(after)
        return lives

    def _continues(self, before: str, after: str) -> bool:
        """Return whether one session continues the process of the other, by one of their tapes or, if told, by both."""
        left, right = self.ends(before), self.ends(after)
        meta = right.meta
        if not left.meta or not meta:
            return False
        both = left.follows == after and (meta.get("born"), meta.get("parent_session_id")) == ("exec", before)
        return both or not (TOLD_BY in left.meta or TOLD_BY in meta)

    def children_ended(self, parent: str) -> dict[str, Status]:
        """Return the status of each ended child, by id, from the agent's tapes; these are read once, whole."""
        lives = self.lives(parent)
        found = self._children_ended.get(lives[0])
        if found is None:
            found = self._children_ended[lives[0]] = {}
            for life in lives:
                found |= ends_of_children(self.path(life)) if life in self.tapes else {}
        return found


def ends_of_children(path: str) -> dict[str, Status]:
    """Return the ends of children that one tape records. Only lines that can hold one are parsed."""
    found: dict[str, Status] = {}
    with contextlib.suppress(OSError, TooLong), opened(path) as file:
        for line in lines_of(file):
            if line.startswith(FORK) and b'"ended":' in line:
                data = _entry(line).get("data", {})
                # The line may come from a host, and have these bytes anywhere.
                with contextlib.suppress(ValueError):
                    if is_session(child := data.get("session")):
                        found[child] = Status.from_json(data.get("ended"))
    return found


def sessions(folder: str) -> set[str]:
    """Return the sessions that have a tape in a data directory. OSError if it cannot be read."""
    names = (name for name in _names(folder) if name.endswith(TAPE))
    return {session for name in names if is_session(session := name.removesuffix(TAPE))}


def jobs(folder: str) -> set[str]:
    """Return the sessions that have a job directory in a data directory, or in that of state. OSError as `sessions`."""
    place = job_directory(folder, "")
    if is_at_home(place):
        return {name for name in _names(place) if is_session(name)}
    try:
        fd = safe_path.inside(os.path.dirname(place), 1, safe_path.FOLDER)
    except FileNotFoundError:
        return set()
    try:
        return {name for name in _names(fd) if is_session(name)}
    finally:
        os.close(fd)


def is_at_home(directory: str) -> bool:
    """Return whether the directory of a job is in the user's home, where links are the user's own."""
    return os.path.dirname(directory) == os.path.join(state_directory(), "jobs")


def _names(folder: str | int) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def ends(path: str) -> Ends:
    """Return the first and the last entry of one file; both {} if it cannot be read."""
    try:
        fd = regular_file.opened(path, 1)
    except OSError:
        return Ends({}, {})
    try:
        head = os.pread(fd, BLOCK, 0)
        size = len(head) if len(head) < BLOCK else os.fstat(fd).st_size
        while b"\n" not in head and len(head) < min(size, READ):
            more = os.pread(fd, min(8 * len(head), READ), len(head))
            if not more:
                break
            head += more
        line, newline, rest = head.partition(b"\n")
        if not newline:
            return Ends({}, {})
        first = _entry(line)
        if len(head) < size:
            return Ends(first, _last(fd, size) or first)
        # The text after the last newline is torn, or is being written now.
        after = rest.rpartition(b"\n")[0].rpartition(b"\n")[2]
        return Ends(first, _entry(after) if b"\n" in rest else first)
    except OSError:
        return Ends({}, {})
    finally:
        os.close(fd)


def _last(fd: int, size: int) -> dict[str, Any]:
    """Return the last whole entry of a long file; {} if it is longer than a line of a tape."""
    block = BLOCK
    while True:
        begin = max(0, size - block)
        whole, newline, _ = os.pread(fd, size - begin, begin).rpartition(b"\n")
        _, before, line = whole.rpartition(b"\n")
        if before or begin == 0:
            return _entry(line) if newline else {}
        if block == FARTHEST:
            return {}
        block = min(8 * block, FARTHEST)


def _entry(line: bytes) -> dict[str, Any]:
    try:
        return parse(line)
    except ValueError:
        return {}
