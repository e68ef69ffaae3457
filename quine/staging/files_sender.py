"""The sender of --files, which serves a remote job while it is being started.

Laws
1. Until it has started, a job can have the named files and nothing else. Afterwards it is the command and gets none.
2. Conversations take turns: the next one begins when the outcome of the last is known. Otherwise a job that asks again
   quickly would be given files that are no longer its own.
3. The scan runs while the job is in transit, not before: two Python threads would slow each other down.
"""

from __future__ import annotations

import threading

from quine.staging.content import AGAIN, KNOWN, ROUNDS, Broken, Changed, Feed, error_text, tell, text_field
from quine.staging.source import LeadsOut, Tree
from transport.errors import Abandoned, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.staging.scan import Sources
    from transport.rpc.incoming import Incoming


class Giving:
    """The files for one job. `failure` is the reason why it could not have them, `cure` the hint for that."""

    def __init__(self, sources: Sources, key: str) -> None:
        self._sources, self._key = sources, key
        self._looking = threading.Lock()
        self._tree: Tree | None = None
        self._turn = threading.Lock()
        self._rounds = 0
        self._started = False  # the job has its files
        self.failure = self.cure = ""
        self.is_ours = False  # the failure is one of this machine

    def look_ahead(self) -> None:
        """Start the scan in a thread."""

        def work() -> None:
            try:
                self._have()
            except OSError:
                pass  # reported when the job asks

        threading.Thread(target=work, name="staging", daemon=True).start()

    def _have(self) -> Tree:
        with self._looking:
            if self._tree is None:
                self._tree = Tree(self._sources, self._key)
            return self._tree

    def given(self, incoming: Incoming) -> None:
        """Answer one request `stage` of a job that is being started."""
        with self._turn:
            self._give(incoming)

    def _give(self, incoming: Incoming) -> None:
        feed = Feed(incoming)
        try:
            asked, _ = feed.hear()
            if self._started:
                raise Broken("this job has its files")
            if asked.get("say") == "failed":
                self.failure = f"the files cannot be laid out there: {text_field(asked, 'why')}"
                self.cure = text_field(asked, "cure")
                return
            if asked.get("say") != "in":
                raise Broken("this job has nothing to give yet")
            tree = self._have()
            tell(incoming, {"tree": tree.digest}, b"" if asked.get("has") == tree.digest else tree.packed)
            self._started = tree.serve(incoming, feed).get("say") == "done"
            self._tree = None  # it may hold up to KEEP bytes of contents
        except (Abandoned, Broken):
            raise
        except OSError as error:
            self._rounds += 1
            self._tree = None
            if isinstance(error, (Changed, FileNotFoundError)) and self._rounds < ROUNDS:
                raise RequestError(AGAIN + error_text(error)) from None
            self.failure, self.is_ours = f"the files cannot be staged: {error_text(error)}", True
            if isinstance(error, LeadsOut):
                self.cure = (
                    "a link that is named is followed: name what is in its directory, as in --files 'DIR/*'"
                )
            raise RequestError(KNOWN + error_text(error)) from None
