"""`quine tape verify`: check that a tape is as it was written, whole and in order.

Laws
1. A fault is named by file, line and kind: changed, lost, inserted, out of place, torn.
2. Three states are not faults, and none of them is called ok: a session that is still running, one whose writer died
   (no outcome, or half a last line), and a tape of the reference implementation, which has no chain to check. Without
   an outcome, the amount that is missing at the end is unknown.
3. A chain shows accidents and careless edits. It does not expose a wholly rewritten tape, hashes and all.
4. The origin compares the replies on the tape of another machine with those that it gave. Those that it could not
   compare are said to be as that host told them; this is no fault.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from quine.base.errors import Misconfigured
from quine.base.sessions import TAPE, is_session, tape_path
from quine.base.text import plain
from quine.tape import registry
from quine.tape.index import Index
from quine.tape.lines import TOLD, TOLD_BY, TooLong, digest, lines_of, opened, parse, seal_holds
from quine.tape.reader import files, matching, none_in
from transport import quickjson

OK, BROKEN, RUNNING, ENDLESS, TORN, UNCHAINED = "ok", "broken", "running", "no outcome", "torn", "no chain"
SAID = {
    OK: "ok: whole",
    RUNNING: "running; intact so far",
    ENDLESS: "no outcome: its process died without recording an outcome, or lines were cut off at the end",
    TORN: "torn: its process died while it wrote the last line",
    UNCHAINED: "no chain: written by the reference implementation",
}
MOST = 20  # faults of one tape that are shown


class Fault(NamedTuple):
    line: int
    what: str


class Verdict(NamedTuple):
    path: Path
    state: str
    lines: int
    faults: list[Fault]
    told_by: str = ""  # the host whose word is taken for replies,
    replies: int = 0  # and their number

    def text(self) -> str:
        name = plain(str(self.path), newlines=False)
        if self.state != BROKEN:
            replies = "1 reply" if self.replies == 1 else f"{self.replies} replies"
            told = f", {replies} as told by {plain(self.told_by, newlines=False)}" if self.replies else ""
            return f"{name}: {SAID[self.state]}, {self.lines} lines{told}\n"
        told = "".join(f"{name}: line {fault.line}: {fault.what}\n" for fault in self.faults[:MOST])
        more = len(self.faults) - MOST
        return told + (f"{name}: and {more} faults more\n" if more > 0 else "")

    def json(self) -> str:
        faults = [fault._asdict() for fault in self.faults]
        facts = {"file": str(self.path), "state": self.state, "lines": self.lines, "faults": faults}
        facts |= {"told_by": self.told_by or None, "replies_as_told": self.replies}
        return quickjson.dumps(facts) + "\n"


class _Line(NamedTuple):
    """The fields of a line that are needed to judge the chain."""

    hash: str
    seq: object
    prev: object
    fault: str
    kind: str


def paths(folder: Path, wanted: list[str]) -> list[Path]:
    """Return files by path and sessions by the beginning of their id; all tapes of `folder` if `wanted` is empty."""
    if not wanted:
        found = files(folder)
        if not found:
            raise none_in(folder)
        return found
    chosen: list[Path] = []
    for word in wanted:
        fit = [Path(word)] if os.sep in word or word.endswith(TAPE) else matching(folder, word)
        if not fit:
            raise Misconfigured(f"no session in {folder} begins with {word}")
        chosen += fit
    return chosen


def verify(path: Path, index: Index | None = None, named: bool = False) -> Verdict:
    """Judge one tape. An OSError is a fault like any other: a tape that cannot be read is not ok.

    `index` is the index of its directory, for a caller that judges many tapes. `named`: the user has named the file.
    """
    lines: list[_Line] = []
    meta: dict[str, Any] | None = None
    torn = sealed = False
    told = 0
    beyond: list[Fault] = []
    try:
        with opened(str(path), 0 if named else 1) as file:
            for raw in lines_of(file):
                torn = not raw.endswith(b"\n")
                if torn:
                    break
                line, entry = _line(raw[:-1])
                lines.append(line)
                sealed = line.kind == "outcome"
                if meta is None and line.kind == "meta" and entry is not None:
                    meta = entry["data"]
                told += line.kind == "message" and entry is not None and entry["data"].get(TOLD) is True
    except TooLong as error:
        beyond = [Fault(len(lines) + 1, f"inserted: {error}")]
    except OSError as error:
        return Verdict(
            path, BROKEN, len(lines), [Fault(0, f"cannot be read: {(error.strerror or '').lower()}")]
        )
    chained = any(line.prev is not None or line.seq is not None for line in lines)
    faults = (_chain(lines) if chained else _shape(lines)) + beyond
    if not lines and not beyond:
        faults.append(Fault(1, "torn: not one whole line" if torn else "the file is empty"))
    elif meta is None and not faults:
        faults.append(Fault(1, "lost: it has no meta"))
    if meta is not None:
        faults += _links(path, meta)
    if faults:
        return Verdict(path, BROKEN, len(lines), faults)
    if sealed and not torn:
        state = OK if chained else UNCHAINED
    elif _runs(path, index):
        state = RUNNING  # and the read may have met a write
    elif torn:
        state = TORN
    else:
        state = ENDLESS if chained else UNCHAINED
    told_by = str((meta or {}).get(TOLD_BY) or "another machine") if told else ""
    return Verdict(path, state, len(lines), [], told_by, told)


def _line(raw: bytes) -> tuple[_Line, dict[str, Any] | None]:
    hash = digest(raw)
    try:
        entry = parse(raw)
    except ValueError as error:
        return _Line(hash, None, None, f"changed: {error}", ""), None
    holds = seal_holds(raw)
    # Both directions: a changed type must not turn an outcome into another kind of line, nor a changed seal into none.
    wrong = holds is False or (holds is None and entry["type"] == "outcome" and "prev" in entry)
    fault = "changed: this outcome is not what its seal was made for" if wrong else ""
    return _Line(hash, entry.get("seq"), entry.get("prev"), fault, entry["type"]), entry


def _shape(lines: list[_Line]) -> list[Fault]:
    return [Fault(number, line.fault) for number, line in enumerate(lines, 1) if line.fault]


def _chain(lines: list[_Line]) -> list[Fault]:
    """Return every place where the chain does not hold, from the sequence numbers and the hashes."""
    faults: list[Fault] = []
    count = Counter(line.seq for line in lines if isinstance(line.seq, int))
    expected, before = 0, ""  # the sequence number that must come, the hash that it must name
    known = True
    for number, line in enumerate(lines, 1):
        if line.fault:
            faults.append(Fault(number, line.fault))
        if not isinstance(line.seq, int) or not isinstance(line.prev, str):
            if not line.fault:
                faults.append(Fault(number, "changed: it has no place in the chain"))
            expected, known = expected + 1, False
            continue
        if line.seq != expected:
            what = _misplaced(line.seq, expected, count)
            faults.append(Fault(number, what))
            if line.seq < expected:
                continue  # the chain goes on after it
        elif known and line.prev != before:
            what = "changed: the line after it was written behind another one"
            faults.append(Fault(number - 1, what) if number > 1 else Fault(1, "changed: it is not the first"))
        expected, before, known = line.seq + 1, line.hash, True
    return faults


def _misplaced(seq: int, expected: int, count: Counter[Any]) -> str:
    if seq < expected:
        return (
            f"inserted: there is a line {seq} already"
            if count[seq] > 1
            else f"out of place: it is number {seq}"
        )
    missing = [number for number in range(expected, min(seq, expected + 1000)) if not count[number]]
    if not missing:
        return f"out of place: it is number {seq}, and {expected} comes later"
    return f"lost: {seq - expected} line{'s' * (seq - expected != 1)} before it"


def _links(path: Path, meta: dict[str, Any]) -> list[Fault]:
    """Check the tape that this one was cloned from: it must have the lines that the meta counts."""
    cloned = meta.get("cloned")
    if cloned is None:
        return []
    session, wanted = (
        (cloned.get("session"), cloned.get("lines")) if isinstance(cloned, dict) else (None, None)
    )
    if not isinstance(session, str) or not is_session(session) or not isinstance(wanted, int):
        return [Fault(1, "changed: `cloned` does not hold a session and a line")]
    try:
        with opened(tape_path(str(path.parent), session)) as file:
            there = sum(line.endswith(b"\n") for line in lines_of(file))
    except (OSError, TooLong):
        return [Fault(1, f"lost: the tape of {session}, from which it was cloned")]
    if there < wanted:
        what = f"lost: it was cloned from {wanted} lines of {session}, which has {there}"
        return [Fault(1, what)]
    return []


def _runs(path: Path, index: Index | None) -> bool:
    """Return True if the process that writes this tape still runs. The registry decides, as for every other verb."""
    session = path.name.removesuffix(TAPE)
    if not is_session(session):
        return False
    agent = registry.of(index or Index(str(path.parent)), session)
    return agent is not None and agent.session == session and agent.alive
