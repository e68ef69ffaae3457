"""--cleanup: files that were brought to a host or fetched from it are removed there, by control jobs.

Laws
1. An item has its end when its files have been removed, so a place that is full of files starts no more items.
2. A file that another item under way needs stays, and so does a directory with one; both go at the end of the batch, as
   those that all items have. An item whose file is being removed waits until that is done.
3. A host that cannot be reached keeps the files, which is said: the items have their ends as they were.
4. Nothing that --returns names is removed before it is here. A host on which results were left, by this run or by one
   before, keeps the files that all items had.
"""

from __future__ import annotations

import os
from collections import Counter

from quine.files.paths import ancestors
from quine.staging import spec
from transport.spawn import Spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quine.fanout.tasks import Task, Work
    from transport.client.batch import Batch, BatchJob
    from transport.status import Status

DIRECTORIES = 4096  # names of directories that are kept for the end, at most


class Uses:
    """Names and patterns over there, each as often as it was added."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._above: Counter[str] = Counter()  # directories of names
        self._patterns: Counter[str] = Counter()

    def add(self, words: Iterable[str], count: int = 1) -> None:
        for word in words:
            name = spec.name_of(word)
            if name is None:
                self._count(self._patterns, word, count)
                continue
            self._count(self._names, name, count)
            for above in ancestors(name):
                self._count(self._above, above, count)

    def drop(self, words: Iterable[str]) -> None:
        self.add(words, -1)

    @staticmethod
    def _count(counter: Counter[str], key: str, count: int) -> None:
        counter[key] += count
        if not counter[key]:
            del counter[key]

    def has(self, word: str) -> bool:
        """Whether this very name or pattern is among them."""
        return bool((self._names.get(spec.name_of(word) or "")) or self._patterns.get(word))

    def meet(self, word: str) -> bool:
        """Whether one of them may be what a name or pattern means, or in it, or above it."""
        name = spec.name_of(word)
        if name is None:
            return any(spec.overlap(word, each) for each in (*self._names, *self._patterns))
        if (
            name in self._names
            or name in self._above
            or any(above in self._names for above in ancestors(name))
        ):
            return True
        return any(spec.overlap(pattern, name) for pattern in self._patterns)


class Cleanup:
    """The files of a batch over there. `say` prints a message."""

    def __init__(self, batch: Batch, work: Work, say: Callable[[str], None]) -> None:
        self._batch = batch
        self._work = work
        self._say = say
        self._used = Uses()  # by items under way
        self._going = Uses()  # being removed
        self._later: dict[tuple[str, str | None], dict[str, None]] = {}  # at the end, since they were in use
        self._waiting: list[tuple[list[str], Callable[[], None]]] = []
        self._directories: set[str] = set()
        self._places: dict[tuple[str, str | None], Spawn] = {}  # a job of each host, for the end
        self._told: set[str] = set()
        self._kept: set[str] = set()  # hosts on which results were left

    def names(self, task: Task) -> list[str]:
        """Return the names over there of the item's own files. Raises Misconfigured."""
        return self._work.placed(task.item, shared=False)

    def begin(self, names: list[str]) -> None:
        """An item is about to be started."""
        self._used.add(names)

    def wait(self, names: list[str], call: Callable[[], None]) -> bool:
        """If one of these is being removed, return True and have `call` called later."""
        if not self._goes(names):
            return False
        self._waiting.append((names, call))
        return True

    def _goes(self, names: list[str]) -> bool:
        """Whether one of these is being removed."""
        return any(map(self._going.meet, names))

    def give(self, names: list[str]) -> None:
        """An item does not need these any more."""
        self._used.drop(names)

    def remove(self, names: list[str], job: Spawn, host: str, over: Callable[[], None]) -> BatchJob | None:
        """Remove what no item needs, where `job` has run, then call `over`. Return the job that removes it, if any."""
        alone = [name for name in names if not self._used.meet(name)]
        self._places.setdefault((host, job.cwd), job)
        later = self._later.setdefault((host, job.cwd), {})
        if len(later) < DIRECTORIES and len(alone) < len(names):
            later.update((name, None) for name in names if name not in alone and not self._used.has(name))
        if len(self._directories) < DIRECTORIES:
            self._directories.update(filter(None, map(_directory, names)))
        if not alone:
            over()
            return None
        self._going.add(alone)

        def gone() -> None:
            self._going.drop(alone)
            over()
            waiting, self._waiting = self._waiting, []
            for needs, call in waiting:
                if self._goes(needs):
                    self._waiting.append((needs, call))
                else:
                    call()

        return self._start(alone, [], job, host, gone)

    def keep(self, host: str) -> None:
        """Results that did not come stay on a host, or with "" on one that is not known."""
        self._kept.add(host)

    def finish(self, over: Callable[[], None]) -> int:
        """Remove what all items had, and directories that are empty. Return the number of calls of `over` to come."""
        shared = self._work.placed(None, shared=True)
        directories = self._directories | set(filter(None, map(_directory, shared)))
        places, self._places = self._places, {}
        for (host, cwd), job in places.items():
            names = [*shared, *self._later.get((host, cwd), ())]
            stays = bool(self._kept & {host, ""})
            self._start([] if stays else names, sorted(directories), job, host, over)
        return len(places)

    def _start(
        self, names: list[str], directories: list[str], job: Spawn, host: str, over: Callable[[], None]
    ) -> BatchJob:
        def on_exit(status: Status) -> None:
            if (status.state, status.code) != ("exited", 0) and host not in self._told:
                self._told.add(host)
                self._say(
                    f"quine: {host}: --cleanup: files are left there: {status.detail or status.state}\n"
                )
            over()

        spawn = Spawn(
            ["node", "--stage", "clean", str(len(names)), "--", *names, *directories],
            own=True,
            where=host,
            env=job.env,
            cwd=job.cwd,
            tree=job.tree,
            context={**job.context, "control": True},
        )
        return self._batch.start(spawn, on_exit=on_exit)


def _directory(word: str) -> str:
    return os.path.dirname(spec.name_of(word) or word)
