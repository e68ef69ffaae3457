"""The side that has the files, while the job that needs them is being started: what it is given, and when no more.

Laws
1. What was named is what the job can have until it has started, and nothing else. From there on it is the command.
2. One conversation after the other: the next is not heard before it is known how the last one ended, or a job that is
   quick to ask again is given what is no longer its own.
3. The look at the files runs while the job is on its way, not before: two threads of Python take turns.
"""

from __future__ import annotations

import threading

from quine.staging.content import AGAIN, KNOWN, ROUNDS, Broken, Changed, Feed, said, tell, told
from quine.staging.source import LeadsOut, Tree
from transport.errors import Abandoned, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.staging.scan import Sources
    from transport.rpc.incoming import Incoming


class Giving:
    """What is given to one job. `failure` is why it could not have it, `cure` the hint with that."""

    def __init__(self, sources: Sources, key: str) -> None:
        self._sources, self._key = sources, key
        self._looking = threading.Lock()
        self._tree: Tree | None = None
        self._turn = threading.Lock()
        self._rounds = 0
        self._started = False  # the job has its files
        self.failure = self.cure = ""

    def look_ahead(self) -> None:
        """Begin to look at the files."""

        def work() -> None:
            try:
                self._have()
            except OSError:
                pass  # what is wrong is said when it asks

        threading.Thread(target=work, name="staging", daemon=True).start()

    def _have(self) -> Tree:
        with self._looking:
            if self._tree is None:
                self._tree = Tree(self._sources, self._key)
            return self._tree

    def given(self, incoming: Incoming) -> None:
        """The service `stage` of a job that is being started."""
        with self._turn:
            self._give(incoming)

    def _give(self, incoming: Incoming) -> None:
        feed = Feed(incoming)
        try:
            asked, _ = feed.hear()
            if self._started:
                raise Broken("this job has its files")
            if asked.get("say") == "failed":
                self.failure = f"the files cannot be laid out there: {told(asked, 'why')}"
                self.cure = told(asked, "cure")
                return
            if asked.get("say") != "in":
                raise Broken("this job has nothing to give yet")
            tree = self._have()
            tell(incoming, {"tree": tree.digest}, b"" if asked.get("has") == tree.digest else tree.packed)
            self._started = tree.serve(incoming, feed).get("say") == "done"
            self._tree = None  # it may hold a good deal
        except (Abandoned, Broken):
            raise
        except OSError as error:
            self._rounds += 1
            self._tree = None
            if isinstance(error, (Changed, FileNotFoundError)) and self._rounds < ROUNDS:
                raise RequestError(AGAIN + said(error)) from None
            self.failure = f"the files cannot be staged: {said(error)}"
            if isinstance(error, LeadsOut):
                self.cure = (
                    "a link that is named is followed: name what is in its directory, as in --files 'DIR/*'"
                )
            raise RequestError(KNOWN + said(error)) from None
