"""A guest that says again what a guest has said: the n-th inference of a life gets the n-th reply on its tape.

Laws
1. QUINE_API_BASE is the tape of the root of a tree; the tapes of its children and of its further lives lie beside it.
2. Who a life of the new tree is in the old one is read from the new tapes: the n-th fork of a parent is the n-th fork
   of that parent then, a life after exec the one after that exec. Nothing is guessed from what a life says.
3. It does not look at what it is sent. That is on the new tape, and `quine tape replay` compares the two.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from quine.exits import Misconfigured
from quine.guests.base import Refused, Reply, Request
from quine.rebuild import Place, beside, children, meta, steps

PATIENCE = 5.0  # seconds until a parent, which goes on meanwhile, must have noted on its tape that it forked
PAUSE = 0.01


class ReplayGuest:
    def __init__(self, path: str, folder: str = "") -> None:
        """`folder` is where the tapes of those who ask are written."""
        self._path = Path(path)
        self._folder = Path(folder or os.environ.get("QUINE_DATA_DIR", ".quine"))
        self._replies: dict[str, list[Reply]] = {}  # by the session that asks
        try:
            meta(self._path)
        except OSError as error:
            raise Misconfigured(f"the tape {path} cannot be read: {(error.strerror or '').lower()}") from None
        except ValueError as error:
            raise Misconfigured(f"not a tape: {error}") from None

    def infer(self, request: Request) -> Reply:
        if request.session not in self._replies:
            try:
                then = self._then(request.session)
                self._replies[request.session] = [
                    step.reply for step in steps(then) if step.message.role == "assistant"
                ]
            except (OSError, ValueError) as error:
                raise Refused(f"the tape cannot be replayed: {error}") from None
        replies = self._replies[request.session]
        if request.ordinal >= len(replies):
            raise Refused(
                f"the tape has {len(replies)} repl{'y' if len(replies) == 1 else 'ies'} for this life and is asked for "
                "one more"
            )
        return replies[request.ordinal]

    def _then(self, session: str) -> Path:
        """The tape of that time for a session of now."""
        now = self._folder / f"{session}.jsonl"
        if not now.is_file():
            return self._path
        data = meta(now)
        parent = beside(now, data.get("parent_session_id"))
        if parent is None:
            return self._path
        place = self._place(parent, now, data.get("born") == "fork")
        known = children(self._then(parent.stem))
        if place not in known:
            raise ValueError(f"there was no {place[0]} number {place[2] + 1} {place[1]}".rstrip())
        return known[place]

    def _place(self, parent: Path, now: Path, forked: bool) -> Place:
        deadline = time.monotonic() + PATIENCE
        while True:
            place = next((place for place, path in children(parent).items() if path == now), None)
            if place is not None:
                return place
            if not forked or time.monotonic() > deadline:
                raise ValueError(f"{parent.name} does not tell of {now.name}")
            time.sleep(PAUSE)
