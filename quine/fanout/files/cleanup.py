"""--cleanup: files that were brought to a host or fetched from it are removed there, by control jobs.

Laws
1. An item has its end when its files have been removed, so a place that is full of files starts no more items.
2. A file that another item under way needs stays, and so does a directory with one; both go at the end of the batch, as
   those that all items have, also where an item names one of these for itself. An item whose file is being removed
   waits until that is done.
3. A host that cannot be reached keeps the files, which is said: the items have their ends as they were. So does one
   with more files for the end than are remembered.
4. Nothing that --returns names is removed before it is here. Results that were left on a host stay, and the files that
   all items had. As long as the names of such results are not known, since their items are still to be read, all of the
   host is left for the end of the batch. A pattern is for that end, too: it may mean results of any item.
5. One item may have very many files. They are looked at and removed in pieces, between which the loop serves others.
6. Two hosts may have one directory (`Results`): results that were left on one of them were left on the other.
7. A brought directory loses the files that were brought, and is removed only if it is empty then: with --cwd it may
   be a directory of the user over there, with other files in it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from itertools import chain

from quine.fanout.files.results import Results
from quine.fanout.files.uses import Shared, Tree, Uses
from quine.staging import spec
from quine.staging.scan import PLACE
from transport.spawn import LEASE, Spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from quine.fanout.tasks import Task, Work
    from quine.jobs.staged import At
    from transport.client.batch import Batch, BatchJob
    from transport.status import Status

    Place = tuple[str, "str | None"]  # a host, and the directory of its jobs

DIRECTORIES = 4096  # names of directories that are kept for the end, at most,
LATER = 1 << 16  # and of files
LOOKED_AT = 2048  # names in one turn, at most,
COMPARED = 2048  # and comparisons of one with a pattern
BYTES = 1 << 16  # of the names that one job gets


class Cleanup:
    """The files of a batch over there. `say` prints a message."""

    def __init__(self, batch: Batch, work: Work, say: Callable[[str], None]) -> None:
        self._batch = batch
        self._work = work
        self._say = say
        self.at: At = lambda when, call: call()  # calls a function at a time
        self.brings = True  # items have results, from which names may have been left out over there
        # Whether a host may have results of items that are still to be read.
        self.has_unread: Callable[[str], bool] = lambda host: False
        self.results = Results()  # which tells the hosts that have one directory
        self._used = Uses()  # by items under way
        self._shared = Shared()  # by all items, as the first one had them
        self._going = Uses()  # being removed
        self._left: dict[str, Uses] = {}  # results that did not come, by their host; "": on any
        self._later: dict[Place, dict[str, None]] = {}  # at the end, since they were in use
        self._count = 0  # names in both of these
        self._forgotten: Counter[str] = Counter()  # files that were too many for that, by their host
        self._waiting: list[tuple[list[str], Callable[[], None]]] = []
        self._directories: set[str] = set()
        self._more_directories = False  # than these
        self._places: dict[Place, Spawn] = {}  # a job of each host, for the end
        self._told: set[str] = set()
        self._kept: Counter[str] = Counter()  # hosts on which results were left, and how many times,
        self._blind: set[str] = set()  # and those of them on which their names are not known

    def names(self, task: Task) -> list[str]:
        """Return the names over there of the item's own files. Raises Misconfigured."""
        self._shared = self._shared or Shared(self._work.placed(None, shared=True))
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

    def serve(self) -> None:
        """Items that wait for the end of a removal may begin."""
        waiting, self._waiting = self._waiting, []
        for needs, call in waiting:
            if self._goes(needs):
                self._waiting.append((needs, call))
            else:
                call()

    def give(self, names: list[str]) -> None:
        """An item does not need these any more."""
        self._used.drop(names)

    def remove(self, names: Iterable[str], job: Spawn, host: str, over: Callable[[], None]) -> Removal | None:
        """Remove what no item needs, where `job` has run, then call `over`. Return this removal, if it goes on."""
        self._places.setdefault((host, job.cwd), job)
        removal = Removal(self, names, job, host, over)
        removal.begin()
        return None if removal.over else removal

    def is_for_the_end(self, host: str, name: str) -> bool:
        """Whether a name or pattern of an item that has ended stays until the batch ends."""
        if any(map(self.has_unread, self._hosts(host))) or not self._blind.isdisjoint(self._hosts(host)):
            return True
        return spec.name_of(name) is None or self._is_needed(host, name)

    def _hosts(self, host: str) -> set[str]:
        """Return the names under which results may have been left in the directory of a host; "" is on any."""
        return {"", *self.results.alike(host)}

    def _is_needed(self, host: str, name: str) -> bool:
        return self._used.meet(name) or self._stays(host, name) or self._shared.meet(name)

    def _stays(self, host: str, name: str) -> bool:
        """Whether a name meets results that were left on a host."""
        return any(left.meet(name) for left in map(self._left.get, self._hosts(host)) if left)

    @property
    def compared(self) -> int:
        """How many comparisons there were."""
        return sum(uses.compared for uses in (self._used, *self._left.values()))

    def defer(self, names: Iterable[str], job: Spawn, host: str) -> None:
        """Remove these at the end of the batch, where `job` has run."""
        place = host, job.cwd
        self._places.setdefault(place, job)
        later = self._later.setdefault(place, {})
        for name in names:
            if self._shared.have(name):
                continue  # it goes with those
            if name not in later and self._count >= LATER:
                self._forgotten[host] += 1
            elif name not in later:
                later[name] = None
                self._count += 1

    def goes(self, names: Sequence[str], job: Spawn, host: str) -> None:
        """These are about to be removed, and so need not be at the end."""
        self._going.add(names)
        later = self._later.get((host, job.cwd), {})
        for name in names:
            if name in later:
                del later[name]
                self._count -= 1

    def has_gone(self, names: Sequence[str]) -> None:
        self._going.drop(names)

    def empties(self, name: str) -> None:
        """The directory of a name may be empty at the end."""
        directory = _directory(name)
        if directory and len(self._directories) < DIRECTORIES:
            self._directories.add(directory)
        elif directory and directory not in self._directories:
            self._more_directories = True

    def keep(self, host: str, names: list[str] | None = None) -> None:
        """Results that did not come stay on a host, or with "" on one that is not known.

        `names`: those of their item's files; None if they are not known.
        """
        self._kept[host] += 1
        if names is None or self._count + len(names) > LATER:
            self._blind.add(host)
        else:
            self._count += len(names)
            self._left.setdefault(host, Uses()).add(names)

    def release(self, host: str, names: list[str]) -> None:
        """Names that were kept: their results are not asked for any more."""
        if not self._blind & {host}:
            self._kept[host] -= 1
            self._count -= len(names)
            self._left[host].drop(names)

    def finish(self, over: Callable[[], None]) -> int:
        """Remove what all items had, and directories that are empty. Return the number of calls of `over` to come."""
        shared = self._work.placed(None, shared=True)
        directories = self._directories | set(filter(None, map(_directory, shared)))
        deepest_first = sorted(directories, key=lambda name: (-name.count("/"), name))
        places, self._places = self._places, {}
        for place, job in places.items():
            host, names = place[0], self._for_good(*place)
            left = len(self._later.get(place, ())) - len(names)
            if self._is_kept(host):
                left += len(shared)
            else:
                names = [*shared, *names, PLACE]
            if left:
                self._say(f"quine: {host}: --cleanup: {left} files are left there, as results are\n")
            self._remove_all(_pieces(names, deepest_first), job, host, over)
        for host, count in self._forgotten.items():
            why = f"no more than {LATER} names are remembered for the end"
            self._say(f"quine: {host}: --cleanup: {count} files are left there: {why}\n")
        if self._more_directories:
            self._say(f"quine: --cleanup: directories may be left empty: more than {DIRECTORIES} had files\n")
        return len(places)

    def _is_kept(self, host: str) -> bool:
        """Whether results were left on a host."""
        return any(self._kept[name] for name in self._hosts(host))

    def _for_good(self, host: str, cwd: str | None) -> list[str]:
        """Return the names for the end of the batch that meet no results which were left."""
        later = [*self._later.get((host, cwd), ())]
        if not self._is_kept(host):
            return later
        if not self._blind.isdisjoint(self._hosts(host)):
            return []
        return [word for word in later if not self._is_needed(host, word)]

    def _remove_all(
        self,
        pieces: Iterator[tuple[list[str], list[str]]],
        job: Spawn,
        host: str,
        over: Callable[[], None],
    ) -> None:
        piece = next(pieces, None)
        if piece is None:
            over()
            return

        def gone(reached: bool) -> None:
            self._remove_all(pieces if reached else iter(()), job, host, over)

        self.start(*piece, job, host, gone)

    def start(
        self,
        names: Sequence[str],
        directories: Sequence[str],
        job: Spawn,
        host: str,
        over: Callable[[bool], None],
    ) -> BatchJob:
        """Start a job that removes. `over` is called at its end, with whether it could do its work."""

        def on_exit(status: Status) -> None:
            if (status.state, status.code) != ("exited", 0) and host not in self._told:
                self._told.add(host)
                self._say(
                    f"quine: {host}: --cleanup: files are left there: {status.detail or status.state}\n"
                )
            over(status.state == "exited")

        spawn = Spawn(
            [
                "node",
                "--stage",
                "clean" if self.brings else "clean-sent",
                str(len(names)),
                "--",
                *names,
                *directories,
            ],
            own=True,
            where=host,
            env=job.env,
            cwd=job.cwd,
            tree=job.tree,
            folder=job.folder,
            context={**job.context, "control": True},
        )
        removal = self._batch.start(spawn, on_exit=on_exit)
        removal.limit(LEASE)
        return removal


class Removal:
    """The removal of the files of one item, piece by piece; then `finished` is called.

    To its task it is a job: it can be given up, or left as it is.
    """

    def __init__(
        self, cleanup: Cleanup, names: Iterable[str], job: Spawn, host: str, finished: Callable[[], None]
    ) -> None:
        self._cleanup, self._names = cleanup, self._each(names)
        self._place, self._finished = (job, host), finished
        self._job: BatchJob | None = None  # that removes a piece
        self._is_given_up = self.over = False

    def begin(self) -> None:
        """Remove the next piece."""
        self._job = None
        if self.over:
            return
        piece = None if self._is_given_up else self._piece()
        if piece is None:
            self.over = True
            self._finished()
        elif not piece:
            self._cleanup.at(time.monotonic(), self.begin)
        else:
            words = [word.rstrip("/") for word in piece]
            self._cleanup.goes(words, *self._place)
            both = next(_pieces(piece, []))
            self._job = self._cleanup.start(*both, *self._place, lambda reached: self._gone(words, reached))

    def _each(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the names, and in place of a directory that may go what was brought in it."""
        for name in names:
            self._cleanup.empties(name)
            if isinstance(name, Tree) and not self._cleanup.is_for_the_end(self._place[1], name):
                yield from name.below()
            else:
                yield name

    def _piece(self) -> list[str] | None:
        """Return the next names that nobody needs; [] if there may be more behind those that were looked at."""
        cleanup, (job, host), size = self._cleanup, self._place, 0
        piece: list[str] = []
        last = cleanup.compared + COMPARED
        for looked_at, name in enumerate(self._names, 1):
            if cleanup.is_for_the_end(host, name.rstrip("/")):
                cleanup.empties(name)
                if not name.endswith("/"):
                    cleanup.defer([name], job, host)
            else:
                piece.append(name)
                size += len(os.fsencode(name))
            if looked_at == LOOKED_AT or size >= BYTES or cleanup.compared >= last:
                return piece
        return piece or None

    def _gone(self, piece: list[str], reached: bool) -> None:
        self._is_given_up = self._is_given_up or not reached
        self._cleanup.has_gone(piece)
        self.begin()
        self._cleanup.serve()

    def abandon(self) -> None:
        """Wait for it no longer. Between two pieces the next turn ends it."""
        self._is_given_up = True
        if self._job:
            self._job.abandon()

    def go_on(self) -> None:
        """Leave it as it is: nothing is called any more."""
        self.over = True
        if self._job:
            self._job.go_on()


def _pieces(names: Iterable[str], directories: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield what each job is to remove, of these in their order; a name with a slash at its end is a directory."""
    piece: tuple[list[str], list[str]] = ([], [])
    size = 0
    for word in chain(names, (f"{spec.literal(name)}/" for name in directories)):
        for each in word.below() if isinstance(word, Tree) else (word,):
            if size >= BYTES:
                yield piece
                piece, size = ([], []), 0
            if each.endswith("/"):
                piece[1].append(_directory(each))
            else:
                piece[0].append(each)
            size += len(os.fsencode(each))
    yield piece


def _directory(word: str) -> str:
    return os.path.dirname(spec.name_of(word) or word)
