"""The results that jobs under way may be writing on a host, which the staging of other items leaves as they are.

Items share a directory on a host. With `--files data --returns data/{}.out` a result of the run before is among the
files of every item. The staging of a later item would put it back over the new one, before that has been fetched.

Laws
1. A job has its results from the time when it is told of its files until they are here, or are not asked for any more.
   Those that a try has left on its host stay as well, until the next try of that item is told of its files.
2. A result of a job that may still be laying out its files is made if it is not there. One of a job that has begun is
   neither replaced nor made: the job may have removed it.
3. The loop adds and drops; threads that answer stagings ask.
4. Two hosts have one directory if their jobs have told one identity of it: a home that login nodes share, or one host
   under two names. The journal has what was told in the runs before. A host with a job of the run before that has told
   nothing may have the directory of any host that has.
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


class Results:
    """The results of the jobs under way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._jobs: dict[object, Around] = {}
        self._places: dict[str, str] = {}  # by host, the identity of the directory there, as told last
        self.tell = True  # the jobs have files to be laid out, and tell it
        self._unknown: set[str] = set()  # hosts with jobs of the run before that have not told it
        # Called by threads: a host has told its identity, and a job there is about to begin. Raise OSError.
        self.located: Callable[[str, str], None] = lambda host, place: None
        self.begins: Callable[[Any, str], None] = lambda job, host: None

    def add(self, job: object, patterns: list[str], own: Iterable[bytes]) -> Around:
        """A job is about to be sent. `own`: names of files that its item alone has."""
        with self.lock:
            around = self._jobs[job] = Around(self, job, patterns, own, self._jobs.get(job))
        return around

    def hold(self, job: object, patterns: list[str], host: str | None, begun: bool = True) -> None:
        """A job has `begun` on a host, None: which one is not known. One that may have, or never will, has not."""
        around = self.add(job, patterns, ())
        around.where = lambda: host
        around.settle(begun)
        with self.lock:
            if self.tell and patterns and host is not None and host not in self._places:
                self._unknown.add(host)

    def drop(self, job: object) -> None:
        """They are here, or are not asked for. Those of the try before stay, if this one was not told of its files."""
        with self.lock:
            around = self._jobs.pop(job, None)
            if around and around.former and not around.is_told:
                self._jobs[job] = around.former

    def of_others(self, job: object, host: str | None) -> tuple[list[str], list[str]]:
        """Return the patterns of other jobs on a host: of those that have begun, and of those that may soon."""
        found: tuple[list[str], list[str]] = ([], [])
        hosts = {host} if host is None else self.alike(host)
        with self.lock:
            for other, latest in self._jobs.items():
                around = latest if latest.is_told else latest.former
                if around and other is not job and (None in (host, around.host) or around.host in hosts):
                    found[not around.begun].extend(around.patterns)
        return found

    def locate(self, host: str | None, place: str) -> None:
        """A job on a host has told the identity of its directory, "" for none."""
        if host is not None:
            self.located(host, place)
            self.know({host: place})

    def know(self, places: Mapping[str, str]) -> None:
        """Hosts have these identities of the directory there."""
        with self.lock:
            self._places.update(places)
            self._unknown.difference_update(places)

    def alike(self, host: str) -> set[str]:
        """Return the hosts that have the directory of this one, or may have it; itself among them."""
        with self.lock:
            place, blind = self._places.get(host), host in self._unknown
            same = (each for each, there in self._places.items() if blind or (place and there == place))
            return {host, *same, *(self._unknown if blind or place is not None else ())}


class Around:
    """The results of one job, and for its staging those of the others."""

    def __init__(
        self, results: Results, job: object, patterns: list[str], own: Iterable[bytes], former: Around | None
    ) -> None:
        self._results, self._job = results, job
        self.patterns, self.own = patterns, frozenset(own)
        self.former = former  # of the try before, until this one is told of its files
        self.is_told = self.begun = False
        self.host: str | None = None
        self.where: Callable[[], str | None] = lambda: None  # returns the host, once there are requests

    def locate(self, place: str) -> None:
        self._results.locate(self.where(), place)

    def begin(self, begun: bool) -> None:
        """The job is told of its files, or has `begun` with them. Raises OSError."""
        if begun and (host := self.where()) is not None:
            self._results.begins(self._job, host)
        self.settle(begun)

    def settle(self, begun: bool) -> None:
        with self._results.lock:
            self.host, self.is_told, self.begun, self.former = self.where(), True, begun, None

    def of_others(self) -> tuple[list[str], list[str]]:
        return self._results.of_others(self._job, self.where())
