"""The keeper of a tree: a process beside its root that copies tapes and results of its agents into the files tier.

Laws
1. It takes a small part of the time: tapes are sent whole, again and again as they grow.
2. A store that is away is tried again, ever more rarely; after the end of the tree for a bounded time. What was not
   copied is said in the log of the root, with how it can be copied later.
3. It ends by itself: no tree, no keeper.
4. While it lives a file in the tier changes, so that nobody elsewhere waits for a machine that was switched off.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time

from quine.archive import policy
from quine.archive.upload import Copies
from quine.base.log import Log
from quine.files.api import Tier
from quine.tape import registry

INTERVAL = 2.0  # seconds between two looks
SHARE = 20  # a round takes at most this part of the time
RARELY = 60.0  # seconds between two tries at a store that is away
SOON = 0.5  # the same when somebody waits, or all is over
HOPE = 3.0  # seconds that who waits is not told that it fails
LATEST = 60.0  # seconds after the end of the tree
BEAT = 20.0  # seconds between two signs of life


def store() -> Tier:
    """The tier as its own store, with the credentials that we were given. Failure, OSError."""
    from quine.files.credentials import completed
    from quine.files.stores.registry import open_store

    environ = completed(os.environ)
    return open_store(environ.get("QUINE_FS") or "origin:", environ, data_directory())


def data_directory() -> str:
    return os.path.abspath(os.path.expanduser(os.environ.get("QUINE_DATA_DIR") or ".quine"))


def main(words: list[str]) -> int:
    """`quine tape --keep SESSION PID STARTED LISTENER`: the process; for nobody to call by hand."""
    session, pid, started = words[0], int(words[1]), int(words[2])
    listener = socket.socket(fileno=int(words[3]))
    folder = data_directory()
    Keeper(session, registry.held(pid, started), listener, folder, Log(f"{folder}/{session}.log")).run()
    return 0


class Keeper:
    def __init__(self, session: str, root: int, listener: socket.socket, folder: str, log: Log) -> None:
        """`root` is a pidfd, -1 where it has ended."""
        self._session = session
        self._root = root
        self._listener = listener
        self._folder = folder
        self._log = log
        self._tier: Tier | None = None
        self._copies: Copies | None = None
        self._over = threading.Event()
        self._sign = f"{policy.PLACE}/{session}{policy.BEAT}"  # of life
        self._asked: list[tuple[socket.socket, float]] = []  # who waits, and since when
        self._said = ""

    def run(self) -> None:
        beating = threading.Thread(target=self._beat, daemon=True)  # a round may take longer than it can wait
        beating.start()
        try:
            self._keep()
        finally:
            self._over.set()
            beating.join(HOPE)
        with contextlib.suppress(Exception):  # what is left of it is silent
            if self._tier is not None:
                self._tier.remove(self._sign)

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with contextlib.suppress(Exception):  # away: the rounds tell of it
                if self._tier is not None:
                    with self._tier.create(self._sign, mode=0o600) as writer:
                        writer.write(repr(time.time()).encode())
                        writer.commit()

    def _keep(self) -> None:
        pause, over = SOON, 0.0  # when it was over
        while True:
            self._wait(pause)
            # Looked at before the round: what the last agent has left is there then.
            if not over and self._root < 0 and not self._lives():
                over = time.monotonic()
            begun = time.monotonic()
            failed = self._round()
            now = time.monotonic()
            if not failed:
                self._answer(policy.DONE, now)
                if over:
                    return
                pause = max(INTERVAL, SHARE * (now - begun))
                continue
            self._answer(policy.FAILED, now - HOPE)
            if over and now > over + LATEST:
                self._log.note(
                    f"not kept in the files tier: {failed}; later: quine tape save {self._session}"
                )
                return
            pause = SOON if over or self._asked else min(RARELY, 2 * pause)

    def _round(self) -> str:
        """What was wrong, "" where nothing was."""
        try:
            if self._copies is None:
                self._tier = store()
                self._copies = Copies(self._tier, self._folder, registry.state_directory(), self._session)
            self._copies.round()
        except Exception as error:  # a driver raises what it likes, and nobody else would say it
            said = str(getattr(error, "detail", "") or error) or type(error).__name__
            if said != self._said:
                self._log.note(f"the files tier takes no tapes: {said}")
            self._said = said
            return said
        if self._said:
            self._log.note("the files tier takes tapes again")
        self._said = ""
        return ""

    def _wait(self, seconds: float) -> None:
        """Until then, or until the root has ended or somebody asks."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if self._root >= 0:
            poll.register(self._root, select.POLLIN)
        ready = dict(poll.poll((SOON if self._asked else seconds) * 1000))
        if self._root in ready:
            os.close(self._root)
            self._root = -1
        if self._listener.fileno() in ready and (line := policy.accept(self._listener)):
            self._asked.append((line, time.monotonic()))

    def _answer(self, word: bytes, before: float) -> None:
        """To those who have asked before that moment."""
        for line, since in self._asked:
            if since <= before:
                with contextlib.suppress(OSError), line:
                    line.send(word)
        self._asked = [(line, since) for line, since in self._asked if since > before]

    def _lives(self) -> bool:
        """Does an agent of the tree, or who supervises its root?"""
        everyone = registry.find("", self._folder, registry.state_directory())
        return any(agent.alive or agent.supervised for agent in everyone if agent.root == self._session)
