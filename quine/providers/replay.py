"""A guest that repeats recorded replies: the n-th inference of a session gets the n-th reply on its tape.

Laws
1. QUINE_API_BASE is the tape of the root of a tree; the tapes of its children and of its sessions after exec are beside
   it.
2. The recorded counterpart of a new session is found from the new tapes. The n-th fork of a parent is the n-th fork of
   its counterpart; a session after exec is the one after that exec. Nothing is guessed from the texts of a session.
3. Names in a recorded call (a session, a file of quine) are replaced by the new ones: `cat …/jobs/ID/stdout` reads the
   output of the child that was started now.
4. The request changes no reply. The guest notes where it first diverges from the recorded request. The new tape shows
   the same, and `quine tape replay` compares the two.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from quine.base import data_directory
from quine.base.errors import Misconfigured
from quine.base.messages import Message, Overflow, Refused, Reply, Request, unheard
from quine.tape.normalize import Same
from quine.tape.requests import Place, beside, children, context, meta, nested, steps, take
from transport import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


PATIENCE = 5.0  # seconds until a parent, which runs on meanwhile, must have recorded its fork on its tape
PAUSE = 0.01


class _Life:
    """One recorded tape, and how far the new session has come on it."""

    def __init__(self, path: Path, now: Path) -> None:
        self.path = path
        self.now = now
        self.steps = list(steps(path))
        self.replies = [step.reply for step in self.steps if step.message.role == "assistant"]
        self.children = children(path)
        self.names = [path.stem, *(child.stem for child in self.children.values())]
        self.compared = 0  # messages; -1 = it has diverged, and that was noted
        self._at = 0
        self._messages = context(path)
        self._same = Same(path.parent, meta(path).get("cwd"))
        self._today = Same(now.parent, meta(now).get("cwd") if now.is_file() else "")

    def overflows(self, messages: Sequence[Message]) -> bool:
        """Return True if a result was shortened before the next recorded reply, but not yet in `messages`."""
        sent = {message.result for message in messages if message.result is not None}
        for step in self.steps[self._at :]:
            if step.message.role == "assistant":
                return False
            if step.again and step.message.result not in sent:
                return True
        return False

    def departs(self, messages: Sequence[Message]) -> int:
        """Return the number, from 1, of the first message that differs from the recorded request; 0 if none does."""
        while self.steps[self._at].message.role != "assistant":
            take(self._messages, self.steps[self._at])
            self._at += 1
        then, since = self._messages, self.compared
        found = 0
        for at in range(since, max(len(then), len(messages))):
            before = [self._same.text(message) for message in then[at : at + 1]]
            if before != [self._today.text(message) for message in messages[at : at + 1]]:
                found = at + 1
                break
        self.compared = len(then)
        take(then, self.steps[self._at])
        self._at += 1
        return found


class ReplayGuest:
    def __init__(self, path: str, folder: str = "") -> None:
        """`folder` holds the tapes of the new sessions."""
        self._path = Path(os.path.realpath(path))  # the links on the way are the user's
        self._folder = Path(data_directory.checked(option=folder))
        self.note: Callable[[str], None] = unheard
        self._lives: dict[str, _Life] = {}  # by new session
        try:
            meta(self._path)
        except OSError as error:
            raise Misconfigured(f"the tape {path} cannot be read: {(error.strerror or '').lower()}") from None
        except ValueError as error:
            raise Misconfigured(f"not a tape: {error}") from None

    def infer(self, request: Request) -> Reply:
        try:
            life = self._lives.get(request.session)
            if life is None:
                now = self._folder / f"{request.session}.jsonl"
                life = self._lives[request.session] = _Life(self._then(now), now)
            if request.ordinal < len(life.replies):
                if life.compared >= 0 and life.overflows(request.messages):
                    raise Overflow("it did not fit then")
                if life.compared >= 0 and (place := life.departs(request.messages)):
                    life.compared = -1  # later differences are consequences
                    self.note(f"message {place} is not what was sent in {life.path.stem}")
                return self._now(life, request)
        except (OSError, ValueError) as error:
            raise Refused(f"the tape cannot be replayed: {error}") from None
        raise Refused("the tape has no reply left for this life")

    def _now(self, life: _Life, request: Request) -> Reply:
        """Return the recorded reply, with the names of the new tree."""
        reply = life.replies[request.ordinal]
        if not reply.message.tool_calls or not life.now.is_file():
            return reply
        text = quickjson.dumps(reply.message.to_json())
        if not any(name in text for name in life.names):
            return reply
        today = children(life.now)
        names = {old.stem: today[place].stem for place, old in life.children.items() if place in today}
        names |= {life.path.stem: request.session, str(life.path.parent.absolute()): str(self._folder)}
        for old, new in names.items():
            text = text.replace(quickjson.dumps(old)[1:-1], quickjson.dumps(new)[1:-1])
        return reply._replace(message=Message.from_json(quickjson.loads(text)))

    def _then(self, now: Path) -> Path:
        """Return the recorded tape that is the counterpart of a new tape."""
        if not now.is_file():
            return self._path
        data = meta(now)
        parent = beside(now, data.get("parent_session_id"))
        if parent is None:
            return self._path
        then = self._then(parent)
        if data.get("born") == "start":
            place = _place(nested(now.parent).get(parent.stem, {}), now)
            known = nested(then.parent).get(then.stem, {})
        else:
            place, known = self._forked(parent, now), children(then)
        if place not in known:
            raise ValueError(f"there is nothing on it for {now.name}, which came out of {parent.name}")
        return known[place]

    def _forked(self, parent: Path, now: Path) -> Place | None:
        """Return the place of a fork; wait up to PATIENCE, as a parent records its forks while they begin."""
        deadline = time.monotonic() + PATIENCE
        while True:
            place = _place(children(parent), now)
            if place is not None or time.monotonic() > deadline:
                return place
            time.sleep(PAUSE)


def _place(known: dict[Place, Path], path: Path) -> Place | None:
    return next((place for place, child in known.items() if child == path), None)
