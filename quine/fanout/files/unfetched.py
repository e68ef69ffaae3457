"""The results that did not come, and the jobs that write over them on their hosts.

Laws
1. Results that did not come are not asked for once another job has begun that writes over them, on a host that has
   their directory or may have it: they would be those of an item with other contents. Their item is lost.
2. The host of a job with files tells its directory while these are laid out. So the job is compared then, in a thread,
   and its command begins once that is on record. Any other job is compared when its start is heard of.
3. A job of the run before that has begun may write at any time. It is compared before any results are asked for; where
   its host is not known, those that it may write over are asked for later (`Before.waits`).
"""

from __future__ import annotations

import errno

from quine.base.errors import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.fanout.files.names import Noted
    from quine.fanout.files.results import Results
    from quine.fanout.journal import Journal
    from quine.fanout.tasks import Task

WRITTEN_OVER = "another job has written over its results"


class Unfetched:
    """The jobs whose results did not come, by the keys of these (`Noted.keys`)."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._ids: dict[object, list[str]] = {}
        self._journal: Journal | None = None
        self._fail: Callable[[Failure], None]

    def record(self, journal: Journal, fail: Callable[[Failure], None]) -> None:
        """A journal gets the notes; `fail` is called where that cannot be written."""
        self._journal, self._fail = journal, fail
        self._results.know(journal.places)
        self._results.located, self._results.begins = self._locate, self._begins

    def add(self, id: str, note: Noted) -> None:
        for key in note.keys:
            self._ids.setdefault(key, []).append(id)

    def expect(self, id: str) -> None:
        """A job may have its end unheard of, and its results are asked for in the next run."""
        if self._journal and (note := self._journal.names.get(id)):
            self.add(id, note)

    def read(self) -> None:
        """All of the run before are added: those go that another job of that run may have written over."""
        for id, sent in list(self._journal.sent.items() if self._journal else ()):
            if sent.host:
                self.write_over(id, host_of(sent.host))

    def write_over(self, id: str, host: str | None) -> list[str]:
        """A job has begun on a host, or may have; None: on any. Return the ids of jobs whose results it writes over."""
        try:
            return self._write_over(id, host)
        except Failure as failure:
            self._fail(failure)
            return []

    def _write_over(self, id: str, host: str | None) -> list[str]:
        """Raises Failure."""
        found = []
        note = self._journal.names.get(id) if self._journal else None
        for each in [each for key in (note.keys if note else ()) for each in self._ids.get(key, ())]:
            assert self._journal
            left = self._journal.unreturned.get(each) or self._journal.sent.get(each)
            there = host_of(left.host) if left else None
            if left and each != id and (host is None or there is None or there in self._results.alike(host)):
                self._journal.overwrite(each)
                found.append(each)
        return found

    def is_written_over(self, id: str) -> bool:
        """Whether the results of a job are not asked for any more."""
        return self._journal is not None and id in self._journal.overwritten

    # -- called by threads -------------------------------------------------------------------------

    def _locate(self, host: str, place: str) -> None:
        self._noted(lambda journal: journal.locate(host, place))

    def _begins(self, task: Task, host: str) -> None:
        self._noted(lambda _: self._write_over(task.sent, host))

    def _noted(self, note: Callable[[Journal], object]) -> None:
        """Raises OSError: a job whose note cannot be written does not begin."""
        try:
            if self._journal:
                note(self._journal)
        except Failure as failure:
            self._fail(failure)
            raise OSError(errno.EIO, failure.detail) from None


def host_of(noted: str) -> str | None:
    """Return the name of a host as a job has it; None if it is not known. `noted`: as the journal has it."""
    return "" if noted == "local" else noted or None
