"""The names over there, and the results, that jobs of the run before have until their items are read.

Laws
1. No item that needs a name of such a job is sent until the item of that job is read, or no host has the job.
2. A job whose results did not come has ended. Once all items are read, and its own is not among them, it holds up no
   other: the item may have been changed, and has the same names. Its results are still left as they are on its host.
3. An item that needs a name of any other job whose item is not among those that were read is refused: it could wait
   without end. As long as more items may be read, so is one that needs a name of a job whose results did not come.
4. As long as the host of a job is not known, no item is sent whose files may be results of that job. On every host they
   would be left as they are, which may be as the run before had them; and most such jobs never began. Nor are results
   asked for that it may have written over.
"""

from __future__ import annotations

import os

from quine.fanout.files.names import Names
from quine.staging import spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from quine.fanout.files.names import Noted, Sources, Uses
    from quine.fanout.files.results import Results


class Before:
    """The names of jobs of the run before, by the ids of the jobs. `names` and `results` are those of all jobs."""

    def __init__(self, names: Names, results: Results) -> None:
        self._names, self._results = names, results
        self._notes: dict[str, Noted] = {}  # of those whose items may be read at any time
        self._staying: dict[str, Noted] = {}  # of those whose items are not among those that were read
        self._lasting = Names(lambda text: None)  # of `_staying`
        # The ids, in either of the two, of jobs whose results did not come.
        self._unfetched: dict[str, None] = {}
        self._unplaced: dict[str, list[str]] = {}  # the results of jobs whose hosts are not known yet
        self._waiting: list[Callable[[], None]] = []  # called once each host is known

    def __bool__(self) -> bool:
        """Whether names are held until items are read."""
        return bool(self._notes or self._unfetched)

    def hold(self, id: str, note: Noted, host: str | None, unfetched: bool) -> None:
        """A job has its names; `unfetched`: it has ended, and its results did not come. `host`: as `Results.hold`."""
        note = self._notes[id] = note._replace(own=[]) if unfetched else note
        if unfetched:
            self._unfetched[id] = None
        elif host is None and note.results:
            self._unplaced[id] = note.results
        self._names.hold(note.own, note.former)
        self._results.hold(id, note.results, host, begun=unfetched or host is not None)

    def place(self, id: str, host: str | None) -> None:
        """A job was found on a host."""
        if note := self._notes.get(id) or self._staying.get(id):
            self._results.hold(id, note.results, host)
        self._placed(id)

    def _placed(self, id: str) -> None:
        if self._unplaced.pop(id, None) and not self._unplaced:
            waiting, self._waiting = self._waiting, []
            for again in waiting:
                again()

    def waits(self, sources: Sources, again: Callable[[], None], returns: Collection[str] = ()) -> bool:
        """Whether an item has to wait by law 4; then `again` is called when it may try again.

        `sources` are files that it is to get, or `returns` results that are to be asked for.
        """
        words = [spec.literal(os.fsdecode(name) or ".") for _, name in sources if self._unplaced]
        patterns = {pattern for results in self._unplaced.values() for pattern in results}
        found = any(spec.overlap(pattern, word) for word in (*words, *returns) for pattern in patterns)
        if found:
            self._waiting.append(again)
        return found

    def release(self, id: str) -> None:
        """A job needs its names no longer, or its task has them."""
        self._results.drop(id)
        self._give(id)
        self._placed(id)

    def _give(self, id: str) -> None:
        self._unfetched.pop(id, None)
        if stays := self._staying.pop(id, None):
            self._lasting.give(stays.own, stays.former)
        if note := self._notes.pop(id, stays):
            self._names.give(note.own, note.former)

    def stay(self, ids: Iterable[str]) -> None:
        """No more items are read, at least for now, and those of these jobs were not among them."""
        found = [id for id in ids if id in self._notes]
        for id in found:
            note = self._staying[id] = self._notes.pop(id)
            self._lasting.hold(note.own, note.former)
        if found:
            self._names.retry()

    def no_more(self, exhausted: bool) -> None:
        """No more items are read, at least for now; `exhausted`: the input has ended."""
        if not exhausted:
            self.stay(self._unfetched)
        while exhausted and self._unfetched:
            self._give(next(iter(self._unfetched)))

    def clash(self, sources: Sources, uses: Uses) -> bytes | None:
        """Return a name that an item needs, and that is not given back in this run."""
        found = self._lasting.clash(sources, uses)
        return next((name for name in found if name is not None), None)
