"""The archive daemon of a tree: a process beside its root that copies its tapes and results into the shared files.

Laws
1. It is busy for a small part of the time only, because tapes are sent whole, again and again as they grow.
2. An unreachable store is tried again, ever more rarely, and after the end of the tree for a bounded time. Then the log
   of the root gets the error and the command that copies later.
3. It ends by itself after its tree.
4. While it runs it changes a file in the store, so that no other machine waits for one that was switched off.
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
from quine.base import data_directory
from quine.base.log import Log
from quine.files.api import Tier
from quine.tape import registry

INTERVAL = 2.0  # seconds between two rounds, at least
SHARE = 20  # rounds take at most one part in so many of the time
RARELY = 60.0  # seconds between two tries at an unreachable store, at most
SOON = 0.5  # the same while a client waits, or after the end of the tree
HOPE = 3.0  # seconds before a waiting client is told of a failure
LATEST = 60.0  # seconds of tries after the end of the tree
BEAT = 20.0  # seconds between two heartbeats


def store() -> Tier:
    """Open the store of the shared files with the credentials of this process. Raises Failure, OSError."""
    from quine.files.credentials import completed
    from quine.files.stores.registry import open_store

    environ = completed(os.environ)
    return open_store(environ.get("QUINE_FS") or "origin:", environ, data_directory.path())


def main(words: list[str]) -> int:
    """`quine tape --keep SESSION PID STARTED LISTENER`: run the daemon; not for use by hand."""
    session, pid, started = words[0], int(words[1]), int(words[2])
    listener = socket.socket(fileno=int(words[3]))
    folder = data_directory.path()
    Keeper(session, registry.held(pid, started), listener, folder, Log(f"{folder}/{session}.log")).run()
    return 0


class Keeper:
    def __init__(self, session: str, root: int, listener: socket.socket, folder: str, log: Log) -> None:
        """`root` is a pidfd of the tree's root, -1 if it has ended."""
        self._session = session
        self._root = root
        self._listener = listener
        self._folder = folder
        self._log = log
        self._tier: Tier | None = None
        self._copies: Copies | None = None
        self._over = threading.Event()
        self._sign = f"{policy.PLACE}/{session}{policy.BEAT}"  # the heartbeat file
        self._asked: list[tuple[socket.socket, float]] = []  # waiting clients, and since when
        self._said = ""

    def run(self) -> None:
        beating = threading.Thread(target=self._beat, daemon=True)  # a round may take longer than BEAT
        beating.start()
        try:
            self._keep()
        finally:
            self._over.set()
            beating.join(HOPE)
        with contextlib.suppress(Exception):  # a file that stays does no harm
            if self._tier is not None:
                self._tier.remove(self._sign)

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with contextlib.suppress(Exception):  # unreachable: the rounds report it
                if self._tier is not None:
                    with self._tier.create(self._sign, mode=0o600) as writer:
                        writer.write(repr(time.time()).encode())
                        writer.commit()

    def _keep(self) -> None:
        pause, over = SOON, 0.0  # `over`: when the tree ended
        while True:
            self._wait(pause)
            # Checked before the round, so that the round finds all files of the last agent.
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
                    f"not kept in the files tier: {failed}; later: quine tape archive {self._session}"
                )
                return
            pause = SOON if over or self._asked else min(RARELY, 2 * pause)

    def _round(self) -> str:
        """Copy new data. Return the error, "" if there was none."""
        try:
            if self._copies is None:
                self._tier = store()
                self._copies = Copies(self._tier, self._folder, registry.state_directory(), self._session)
            self._copies.round()
        except Exception as error:  # a driver raises anything, and nothing else would report it
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
        """Wait, at most until the root has ended or a client connects."""
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
        """Send `word` to the clients that have waited since `before` or longer."""
        for line, since in self._asked:
            if since <= before:
                with contextlib.suppress(OSError), line:
                    line.send(word)
        self._asked = [(line, since) for line, since in self._asked if since > before]

    def _lives(self) -> bool:
        """Return whether an agent of the tree, or a supervisor of one, lives."""
        everyone = registry.find("", self._folder, registry.state_directory())
        return any(agent.alive or agent.supervised for agent in everyone if agent.root == self._session)
