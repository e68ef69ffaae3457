"""`quine tape replay`: run a session again with its recorded replies as the guest, and report where it diverges.

Laws
1. The replay is a real agent in a data directory of its own. Its guest repeats the recorded replies; the commands
   really run again, here and now.
2. The messages of each session are compared in order, the old tape with the new one; then how the session ended.
3. Parts that cannot repeat (normalize.py) are taken for equal; everything else must be equal.
4. Each session is reported once, where it first diverges: later differences are consequences.
5. A tape that another machine sent is not run without --force: its word would be a command here. So it is with a tape
   that is older than the mark of its data directory: it came with a repository or an archive. Without SESSION it is
   the latest one that has the seal of this user (`OWN` of writer.py): a brought tape itself says when it began.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from quine.base import data_directory, dirs
from quine.base.errors import FAILED, OK, Misconfigured
from quine.base.sessions import new_session
from quine.base.text import plain
from quine.tape import requests
from quine.tape.lines import TOLD_BY, entries, first
from quine.tape.normalize import Same
from quine.tape.reader import Session, find, heads, sessions, tree
from quine.tape.writer import is_own
from transport import quickjson
from transport.provenance import git_index
from transport.provenance.safe_path import Unsafe
from transport.this_build import own_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


LIMITS = {
    "turns": "QUINE_MAX_TURNS",
    "depth": "QUINE_MAX_DEPTH",
    "agents": "QUINE_MAX_AGENTS",
    "concurrent": "QUINE_MAX_CONCURRENT",
    "sh_timeout": "QUINE_SH_TIMEOUT",
    "truncate": "QUINE_OUTPUT_TRUNCATE",
    "window": "QUINE_CONTEXT_WINDOW",
    "tokens": "QUINE_MAX_TOKENS",
    "cost": "QUINE_MAX_COST",
    "deadline": "QUINE_DEADLINE",
}
NOT_OURS = (*LIMITS.values(), "QUINE_WISDOM_", "QUINE_API_")  # environment that the tape replaces
ENDED_ITSELF = ("exit", "exec", "turn_exhaustion", "context_exhaustion", "budget")
SAVED = "Material was saved to the file"  # first message of a session that was started with -b
NONE = "There is no material: descriptor 3 is empty"
LINES = 20  # lines of a difference that are shown


Started = dict[str, dict[requests.Place, Path]]


class Departure(NamedTuple):
    session: str
    line: int  # of the old tape; 0 = the session as a whole
    then: str
    now: str

    def text(self) -> str:
        import difflib

        then, now = self.then.splitlines(), self.now.splitlines()
        lines = list(difflib.unified_diff(then, now, "then", "now", n=1, lineterm=""))[2:]
        shown = [f"  {plain(line, newlines=False)}"[:200] for line in lines[:LINES]]
        if len(lines) > LINES:
            shown.append(f"  … {len(lines) - LINES} lines more")
        where = f"line {self.line}" if self.line else "as a whole"
        return "\n".join([f"{self.session} {where} departs:", *shown]) + "\n"


def dry(folder: Path, session: str) -> Iterator[str]:
    """Yield the requests of one session as JSON lines; nothing is run."""
    one = find(folder, session)
    try:
        for sent in requests.requests(one.path):
            facts = {"session": one.id, "ordinal": sent.ordinal, "line": sent.line}
            messages = [message.to_json() for message in sent.messages]
            yield quickjson.dumps({**facts, "messages": messages}) + "\n"
    except ValueError as error:
        raise Misconfigured(f"the requests cannot be rebuilt: {error}") from None


def replay(folder: Path, session: str, force: bool = False) -> tuple[int, str]:
    """Run the session again; return the exit status and the report. With `force` also what others have written."""
    one = find(folder, session or _latest(folder))
    if not session and one.root != one.id:
        one = find(folder, one.root)
    if not one.chained:
        raise Misconfigured("a tape of the reference implementation cannot be run again", "see --dry")
    if requests.beside(one.path, one.parent) is not None:
        raise Misconfigured(
            f"{one.id} is not the root of its tree, and cannot be lived alone",
            f"quine tape replay {one.root}",
        )
    if not force:
        _refuse_others(folder, one.id)
    place = folder.absolute() / "replays" / new_session()
    dirs.make_inside(str(place.parent), 1)
    os.close(data_directory.opened(str(place), make=True))  # marked: git is not asked again
    _run(one, place)
    try:
        (root,) = (s.path for s in sessions(place).values() if requests.beside(s.path, s.parent) is None)
    except ValueError:
        said = (place / "stderr").read_text(errors="replace")
        raise Misconfigured(f"the session could not be started again: {plain(said)[:500].strip()}") from None
    lives, departures = compare(one.path, root)
    if departures:
        kept = f"{len(departures)} of {lives} lives departed; the new tapes are in {place}\n"
        return FAILED, "".join(departure.text() for departure in departures) + kept
    shutil.rmtree(place)
    return OK, f"{lives} {'life' if lives == 1 else 'lives'} replayed, none departed\n"


def _latest(folder: Path) -> str:
    """Return the latest session that begins a tree here, or came from another machine; "" if none has a seal."""
    tops = [head for head in heads(folder).values() if head.top]
    for head in sorted(tops, key=lambda head: head.begun, reverse=True):
        meta = (first(str(head.path)) or {"data": {}})["data"]
        if TOLD_BY in meta or (meta.get("session_id") == head.id and is_own(meta)):
            return head.id
    return ""


def _refuse_others(folder: Path, session: str) -> None:
    """Raise Misconfigured if a session of the tree of this one ran on another machine, or may be another user's.

    A mark tells that of a directory. `git pull` puts tapes into one that is marked: it tracks them.
    """
    lives = tree(folder, session)
    hosts = [str(by) for life in lives if (by := life.meta.get(TOLD_BY))]
    since = data_directory.marked_at(str(folder))
    tracked = _tracked(lives, session)
    before = [life for life in lives if since is None or os.stat(life.path).st_ctime_ns < since]
    if hosts:
        names = plain(", ".join(sorted(set(hosts))), newlines=False)
        number, why = len(hosts), f"came from other machines ({names}), whose commands would run here"
    elif tracked:
        number, why = (
            len(tracked),
            "are tracked by git, which may have brought them; their commands would run here",
        )
    elif before:
        when = "before it was marked as yours" if since else "without a mark of yours there"
        number, why = len(before), f"were in {folder} {when}; their commands would run here"
    else:
        return
    raise Misconfigured(
        f"{number} of {len(lives)} sessions {why}",
        f"read them with quine tape show, then quine tape replay --force {session}",
    )


def _tracked(lives: list[Session], session: str) -> list[Session]:
    """Return the sessions whose tapes git tracks. Raises Misconfigured if that cannot be seen."""
    try:
        names = {folder: git_index.Tracked(str(folder)) for folder in {life.path.parent for life in lives}}
    except Unsafe as unsafe:
        cure = f"{unsafe.hint}; or read them with quine tape show, then quine tape replay --force {session}"
        raise Misconfigured(f"it is not known whose these sessions are: {unsafe}", cure) from None
    return [life for life in lives if life.path.name in names[life.path.parent]]


def _run(one: Session, place: Path) -> None:
    """Run the agent. Its stdout and stderr go to files, because stdout here is for the report."""
    (place / "mission").write_text(one.mission)
    words = ["-f", str(place / "mission")]
    first = next((s.message.text for s in requests.steps(one.path) if s.message.role == "user"), "")
    if first.startswith(SAVED):
        words.append("--binary")
    with open(place / "stdout", "wb") as out, open(place / "stderr", "wb") as err:
        # Descriptors are inherited too: an agent that replays is the parent, and its limits hold.
        process = subprocess.Popen(
            [*own_command(), *words],
            env=_environment(one, place),
            stdin=subprocess.DEVNULL if first.startswith(NONE) else None,
            stdout=out,
            stderr=err,
            close_fds=False,
        )
        before = signal.signal(signal.SIGTERM, _leave)
        try:
            process.wait()
        finally:
            if process.poll() is None:
                process.terminate()  # it ends the processes that it started, which are known only to it
                process.wait()
            signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _environment(one: Session, place: Path) -> dict[str, str]:
    """Return the caller's environment, with the settings of quine replaced by those on the tape."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)}
    limits = one.meta.get("limits")
    for name, value in limits.items() if isinstance(limits, dict) else ():
        if name in LIMITS and value:
            env[LIMITS[name]] = f"{value:g}" if isinstance(value, float) else str(value)
        elif name in LIMITS and name not in ("cost", "deadline", "tokens"):
            env[LIMITS[name]] = "0"
    wisdom = one.meta.get("wisdom")
    env |= {f"QUINE_WISDOM_{k}": str(v) for k, v in (wisdom if isinstance(wisdom, dict) else {}).items()}
    return env | {
        "QUINE_API_TYPE": "replay",
        "QUINE_API_BASE": str(one.path.absolute()),
        "QUINE_MODEL_ID": one.model,
        "QUINE_DATA_DIR": str(place),
    }


# -- comparing ---------------------------------------------------------------------------------------


def compare(then: Path, now: Path) -> tuple[int, list[Departure]]:
    """Return the number of sessions that were compared, and their divergences."""
    departures: list[Departure] = []
    waiting = [(then, now)]
    lives = 0
    started = requests.nested(then.parent), requests.nested(now.parent)
    while waiting:
        old, new = waiting.pop(0)
        lives += 1
        departure = _life(old, new)
        if departure is not None:
            departures.append(departure)
        before, after = _lived(old, started[0]), _lived(new, started[1])
        for place, path in before.items():
            if place in after:
                waiting.append((path, after[place]))
            elif departure is None:
                departures.append(Departure(path.stem, 0, _named(place), "it was not lived again"))
        if departure is None:
            missing = (place for place in after if place not in before)
            departures += [Departure(old.stem, 0, "no such child", _named(place)) for place in missing]
    return lives, departures


def _lived(path: Path, started: Started) -> dict[requests.Place, Path]:
    """Return the children of a session that have tapes, whether by fork, by exec or by a command."""
    forked = {place: child for place, child in requests.children(path).items() if child.is_file()}
    return {**forked, **started.get(path.stem, {})}


def _named(place: requests.Place) -> str:
    return f"{place[0]} number {place[2] + 1} {place[1]}".rstrip()


def _life(old: Path, new: Path) -> Departure | None:
    end = _outcome(old)
    cut = end is None or end.get("termination_mode") not in ENDED_ITSELF
    then, now = list(requests.steps(old)), list(requests.steps(new))
    same = _same(old), _same(new)
    for before, after in zip(then, now):
        texts = same[0].text(before.message), same[1].text(after.message)
        if texts[0] != texts[1]:
            return Departure(old.stem, before.line, *texts)
    if len(now) < len(then):
        missing = then[len(now)]
        return Departure(old.stem, missing.line, same[0].text(missing.message), _end(_outcome(new)))
    if cut:
        return None  # the old session was cut off there; the new one went on
    if len(now) > len(then):
        return Departure(
            old.stem, then[-1].line if then else 0, _end(end), same[1].text(now[len(then)].message)
        )
    if _end(end) != _end(_outcome(new)):
        return Departure(old.stem, 0, _end(end), _end(_outcome(new)))
    return None


def _same(path: Path) -> Same:
    return Same(path.parent, requests.meta(path).get("cwd"))


def _outcome(path: Path) -> dict[str, Any] | None:
    found = None
    for _, entry in entries(str(path)):
        found = entry["data"] if entry["type"] == "outcome" else found
    return found


def _end(outcome: dict[str, Any] | None) -> str:
    if outcome is None:
        return "no outcome"
    return f"outcome {outcome.get('exit_code')} {outcome.get('termination_mode')}"
