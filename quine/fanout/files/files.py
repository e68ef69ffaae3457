"""The files of the items under way: their names over there, their returns, and with --cleanup their removal.

Laws
1. A try is sent once no other item under way has its names for other files, or one of its own files for a result, and
   none of its files is being removed. It has no job until then, and can be ended at any time.
2. An item has its end when its returns are here and its files have been removed. A job that may go on without this
   process keeps them, and its names, until it is adopted and ends, or is not looked for any longer. So does a job of
   the run before, from the beginning on: see `before`.
3. A job that was told to end, by this process or by the one before, brings nothing: a part of a result would replace a
   finished one. Where results stay on a host, nothing of their item is removed there until they are asked for no more:
   those that a try has withheld, once the next one runs.
4. If returns replace the files of their item, a try that is to be repeated brings none, also if that is because some
   were not there: the next one has the files that the item had. If the batch ends before that one, --resume asks for
   them, as for those that did not come.
5. Results that did not come are not asked for once another job has written over them (`unfetched`), and are not put in
   place if that is heard of while they are on their way.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

from quine.base.errors import FAILED, Failure, Misconfigured
from quine.fanout.files.before import Before
from quine.fanout.files.cleanup import Cleanup
from quine.fanout.files.held import Held, Left
from quine.fanout.files.names import Names, Noted
from quine.fanout.files.results import Results
from quine.fanout.files.unfetched import WRITTEN_OVER, Unfetched, host_of
from quine.fanout.files.uses import removable
from quine.jobs.staged import Bringing
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.fanout.journal import Journal, Sent
    from quine.fanout.tasks import Task, Work
    from quine.jobs.staged import At
    from quine.staging.caller_side import Staging
    from transport.client.batch import Batch
    from transport.spawn import Spawn


class Files:
    """The files of a batch. `say` prints a message."""

    def __init__(
        self, batch: Batch, work: Work, say: Callable[[str], None], cleanup: bool, quiet: bool
    ) -> None:
        self._batch = batch
        self._names = Names(lambda text: None if quiet else say(f"quine: {text}\n"))
        self._say = say
        self._said: set[str] = set()  # lines about what was left out, each said once
        self._results = Results()
        self.before = Before(self._names, self._results)  # of jobs of the run before
        self._cleanup = Cleanup(batch, work, say) if cleanup else None
        if self._cleanup:
            self._cleanup.results = self._results
        self._held: dict[Task, Held] = {}
        self._work = work
        self.journal: Journal | None = None  # of a batch with a log
        self.fail: Callable[[Failure], None]  # called where that cannot be written
        self._left: dict[Task, list[Left]] = {}  # by items that have no end yet
        self._unfetched = Unfetched(self._results)
        # Jobs of the runs before that have, or may get, results on a host ("": on any), and whose items are still to be
        # read: their ids, with the host; and how many each host has.
        self._unread: dict[str, str] = {}
        self._unread_on: Counter[str] = Counter()
        # Whether an item is tried again after a try with this end.
        self.repeats: Callable[[Task, Status], bool] = lambda task, status: False

    def record(self, journal: Journal, fail: Callable[[Failure], None], tell: bool = True) -> None:
        """Jobs may be of the runs before, and outlive this one. `tell`: they lay out files, see `Results`."""
        self.journal, self.fail, self._results.tell = journal, fail, tell
        self._unfetched.record(journal, fail)
        for id, note in journal.names.items():
            job = journal.sent.get(id) or journal.unreturned.get(id)
            if job and id not in journal.brought:
                self.before.hold(id, note, host_of(job.host), id not in journal.sent)
                if id in journal.unreturned:
                    self._unfetched.add(id, note)
        self._unfetched.read()
        if self._cleanup:
            hosts = {
                id: note.host for notes in (journal.sent, journal.unreturned) for id, note in notes.items()
            }
            self._unread = {id: host for id, host in hosts.items() if id not in journal.brought}
            self._unread_on = Counter(self._unread.values())
            self._cleanup.has_unread = lambda host: bool(self._unread_on[host] or self._unread_on[""])

    def placed(self, id: str, host: str | None) -> None:
        """A job of the run before was found on a host, or may have begun; None: on any."""
        self._is_read(*self._unfetched.write_over(id, host))
        if host is not None:
            self.before.place(id, host)

    def gone(self, id: str, never: bool) -> None:
        """No host has a job of the run before, whose item is still to be read; `never`: it certainly never began."""
        if not never:
            self._may_run(id)
        self.before.release(id)

    def _may_run(self, id: str) -> Sent | None:
        """A job that no host tells of may write over results, and others over its own. Return the note of it."""
        sent = self.journal.sent.get(id) if self.journal else None
        self.placed(id, host_of(sent.host) if sent else None)
        self._unfetched.expect(id)
        return sent

    def _is_read(self, *ids: str) -> None:
        """The names of the items of these jobs are known, or are not needed any more."""
        for id in ids:
            if (host := self._unread.pop(id, None)) is not None:
                self._unread_on[host] -= 1
            self.before.release(id)

    @property
    def at(self) -> At:
        """Calls a function at a time."""
        return self._at

    @at.setter
    def at(self, at: At) -> None:
        self._at = at
        if self._cleanup:
            self._cleanup.at = at

    def begin(
        self,
        task: Task,
        stage: Staging,
        send: Callable[[], None],
        refuse: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Have `send` called once the try may be sent, or `refuse`, if `give` is not called before."""
        held = self._held[task] = Held(task, stage, self._say_once, send, refuse)
        if stage.patterns:
            stage.around = self._results.add(task, stage.patterns, [name for _, name in stage.alone])
        self._take(task, held)

    def _take(self, task: Task, held: Held) -> None:
        names = held.stage.sources, Noted.uses_of(held.stage)
        again = partial(self._take, task, held)
        if not self._waits(task, held) or self.before.waits(held.stage.sources, again):
            return
        if (clash := self.before.clash(*names)) is not None:
            name = os.fsdecode(clash or b".").lstrip("/")
            why = "is there for a job of the run before, whose item is not among those read"
            held.refuse(f"{name}, or a directory that it is in, {why}")
        elif self._names.take(*names, again):
            held.names = names
            self._use(task, held)
            self._send(task, held)

    def _send(self, task: Task, held: Held) -> None:
        if not self._waits(task, held):
            return
        if not (self._cleanup and self._cleanup.wait(held.own, lambda: self._send(task, held))):
            held.send()

    def _waits(self, task: Task, held: Held) -> bool:
        """Whether the try has no end yet."""
        return self._held.get(task) is held

    def _use(self, task: Task, held: Held) -> None:
        if self._cleanup:
            held.own = self._cleanup.names(task)
            self._cleanup.begin(held.own)
            self._cleanup.brings = bool(held.stage and held.stage.patterns)

    def hold(self, task: Task, stage: Staging, host: str = "") -> None:
        """Take the names of a job that runs already, whoever has them; `host`: where, "" if that is not known."""
        self._results.hold(task, stage.patterns, host_of(host))
        if task in self._held:
            return  # it was cut off in this run
        held = self._held[task] = Held(task, stage, self._say_once)
        held.names = stage.sources, Noted.of(stage).former
        self._names.hold(*held.names)
        self._use(task, held)
        self._is_read(task.sent, task.entry.fetched)

    def give(self, task: Task) -> None:
        """The try has its end, if it has any files: those that wait for its names may have them."""
        self._is_read(task.sent)
        if task.unreturned is None:
            self._results.drop(task)
        if held := self._held.pop(task, None):
            if self._cleanup:
                self._cleanup.give(held.own)
            self._names.give(*held.names)

    def ended(
        self,
        task: Task,
        spawn: Spawn,
        status: Status,
        over: Callable[[], None],
        again: bool = False,
    ) -> None:
        """The job of a try has ended: bring its returns, remove its files, and then call `over`.

        `again`: the item will be tried again.
        """
        held, id = self._held.get(task), task.entry.id
        if held is None or task.is_cut(status):
            over()
            return
        later = partial(self.ended, task, spawn, status, over, again)
        if id and id == task.entry.fetched and self.before.waits([], later, held.stage.patterns):
            return
        task.over = True
        remove = partial(self._remove, task, held, spawn, status, over)
        if not held.stage.brings(status):
            remove()
        elif again and held.stage.is_in_place:
            held.lost(status.left)  # as long as no other try has begun, which may not come
            self._leave(task, Left(status.host, held.own, spawn))
            self._over(task, over)
        elif self.journal and id in self.journal.brought:
            held.stage.brought_before(status, self.journal.brought[id])
            remove()  # the process before was killed behind this point
        elif self._unfetched.is_written_over(id):
            held.stage.lose(status, WRITTEN_OVER)
            remove()
        elif task.ending or task.cut_short:
            task.left = True
            held.stage.leave(status, spawn)
            remove()
        else:
            self._bring(task, held, spawn, status, over)

    def _remove(
        self,
        task: Task,
        held: Held,
        spawn: Spawn,
        status: Status,
        over: Callable[[], None],
        stays: bool = False,
    ) -> None:
        """Remove the files of a try that has ended, unless its results stay on the host, and call `over`."""
        began = task.running or status.state in ("exited", "signaled")
        if self._cleanup and (stays or task.left or (held.stage.returns and status.state == "lost")):
            self._leave(task, Left(status.host, held.own))
            self._over(task, over)
        elif not (self._cleanup and began and status.host):
            self._over(task, over)
        else:
            own, held.own = held.own, []
            self._cleanup.give(own)
            self._forget_left(task, status.host)
            gone = removable(own, held.stage.came)
            task.after = self._cleanup.remove(gone, spawn, status.host, lambda: self._over(task, over))

    def _bring(self, task: Task, held: Held, spawn: Spawn, status: Status, over: Callable[[], None]) -> None:
        """Bring the returns of a try, remove its files, and call `over`."""

        def withholds() -> bool:
            spoilt = Status("exited", status.code or FAILED, host=status.host)
            return held.stage.is_in_place and self.repeats(task, spoilt)

        def brought() -> None:
            if self._unfetched.is_written_over(task.entry.id):
                task.unreturned, status.hint = None, ""
            if status.state != "lost" and task.unreturned is not None:
                self._leave(task, Left(status.host, held.own, spawn))
                self._over(task, over)  # they are withheld, and stay for the next try
                return
            stays = status.state != "lost" and not self._note_arrival(task, held.stage, status.code)
            self._remove(task, held, spawn, status, over, stays)

        held.stage.on_put, held.stage.withholds = partial(self._note_replaced, task, held.stage), withholds
        held.stage.lasting = bool(self.journal or self._cleanup)  # else they can be had again
        Bringing(self._batch, held.stage, spawn, status, held, self.at, brought).begin()

    def _note_arrival(self, task: Task, stage: Staging, code: int) -> bool:
        """Note that the returns of a job are here, and its exit status with them.

        False if that cannot be written: then they stay there, too.
        """
        if self.journal and (self._cleanup or stage.is_in_place):
            try:
                self.journal.bring(task.entry.id, code, lasting=bool(self._cleanup))
            except Failure as failure:
                self.fail(failure)
                return False
        return True

    def _note_replaced(self, task: Task, stage: Staging, arrivals: Iterator[tuple[bytes, bytes]]) -> str:
        """Note that results are about to be put in place. Return an error, or ""."""
        if self._unfetched.is_written_over(task.entry.id):
            return WRITTEN_OVER
        try:
            self._work.contents.replace(arrivals, stage.inputs)
        except Failure as failure:
            self.fail(failure)
            return failure.detail
        return ""

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _over(self, task: Task, over: Callable[[], None]) -> None:
        self.give(task)
        over()

    # -- with --cleanup: where results stay --------------------------------------------------------

    def _leave(self, task: Task, left: Left) -> None:
        if self._cleanup:
            self._cleanup.keep(left.host, left.names)
            self._left.setdefault(task, []).append(left)

    def missed(self, task: Task) -> None:
        """No host tells of its job, which may go on: it has its files, and its results stay."""
        sent = self._may_run(task.sent)
        if not self._cleanup:
            return
        host, held = sent.host if sent else task.entry.host, self._held.get(task)
        try:
            self._leave(task, Left(host, held.own if held else self._cleanup.names(task)))
        except Misconfigured:
            self._cleanup.keep(host)

    def started(self, task: Task, host: str) -> None:
        """A try runs on a host: results that the ones before have withheld are not asked for any more."""
        self._is_read(*self._unfetched.write_over(task.sent, host))
        for left in self._left.get(task, ()):
            if self._cleanup and left.spawn and left.host not in ("", host):
                self._cleanup.defer(left.names, left.spawn, left.host)
        self._forget_left(task)

    def _forget_left(self, task: Task, host: str | None = None) -> None:
        """Do without results that an item has withheld; or without those on a `host` where it has its end now."""
        kept = []
        for left in self._left.pop(task, ()):
            if self._cleanup and (left.spawn if host is None else left.host in (host, "")):
                self._cleanup.release(left.host, left.names)
            else:
                kept.append(left)
        if kept:
            self._left[task] = kept

    def final(self, task: Task) -> None:
        """An item has its end, and may have left its results on a host."""
        if not task.entry.unreturned:
            self._results.drop(task)
        elif self.journal and (names := self.journal.names.get(task.entry.id)):
            self._unfetched.add(task.entry.id, names)
        left = self._left.pop(task, None)
        if self._cleanup and (note := task.entry.unreturned):
            self._cleanup.keep(note.host, [] if left else None)

    def finish(self, over: Callable[[], None]) -> int:
        """All items have their ends. Return how many calls of `over` are still to come, for jobs that clean up."""
        if not self._cleanup:
            return 0
        for task in self._held:
            self._cleanup.keep(task.entry.host)
        if journal := self.journal:
            for id, host in self._unread.items():
                if id not in journal.brought and (id in journal.sent or id in journal.unreturned):
                    self._cleanup.keep(host)
        return self._cleanup.finish(over)
