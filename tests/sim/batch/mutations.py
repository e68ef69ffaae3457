"""Mutations of the fan-out that the simulator has to notice: fixes that are taken back, and plain faults.

A row says what is wrong for as long as it is entered, which rules that breaks, and within how many seeds it is caught.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from quine.base.errors import FAILED
from quine.fanout.files.files import Files
from quine.fanout.files.names import Noted
from quine.fanout.files.replaced import Replaced
from quine.fanout.files.results import Results
from quine.fanout.journal import Journal
from quine.fanout.retries import Retries
from quine.fanout.run import Run
from quine.fanout.starter import Starter
from quine.fanout.under_way import UnderWay
from quine.jobs import adoption
from quine.staging.caller_side import Staging
from tests.sim.taken_back import TakenBack, replaced
from transport.client.batch_core import BatchCore
from transport.client.batch_job import ENDING, BatchJob
from transport.client.feed import Feed
from transport.client.job_core import JobCore
from transport.launcher.folders import Folders
from transport.node.kept import Keeper
from transport.node.slots import Slots
from transport.node.turns import Turns
from transport.status import Status, signal_name


def held_forgotten() -> contextlib.AbstractContextManager[None]:
    """A job that its node gives back is forgotten."""
    given_back = Feed.given_back

    def mutant(self: Feed, job: BatchJob, now: float) -> None:
        before, self.waiting = self.waiting, deque()
        given_back(self, job, now)
        self.waiting = before

    return replaced(Feed, "given_back", mutant)


def started_given_back() -> contextlib.AbstractContextManager[None]:
    """A job whose node has ended is sent again, as one that was given back."""
    lost = BatchCore.lost

    def mutant(self: BatchCore, why: str) -> None:
        for job in list(self._sent.values()):
            if job.pid and not job.over and not job.spawn.adopt:
                del self._sent[job.number]
                job.forget()
                job.again()
                self._feeds[job.queue].waiting.append(job)
                self._waiting += 1
        lost(self, why)

    return replaced(BatchCore, "lost", mutant)


def lost_again() -> contextlib.AbstractContextManager[None]:
    """An item that is lost is tried again, without --idempotent."""

    def mutant(self: Retries, task: Any, status: Any, kind: str) -> bool:
        return kind in ("lost", "never started") and bool(status.host) and task.tries < 4

    return replaced(Retries, "may", mutant)


def reported_twice() -> contextlib.AbstractContextManager[None]:
    """An item whose end comes late has two lines in the log."""
    written = Run._written

    def mutant(self: Run, task: Any) -> None:
        written(self, task)
        if task.adopted and self._log:
            self._log.end(task.entry, 0.0)

    return replaced(Run, "_written", mutant)


def output_not_held() -> contextlib.AbstractContextManager[None]:
    """Output is acknowledged when it was read, although a death of the client loses it."""
    return replaced(BatchJob, "hold", lambda self: None)


def guessed_never() -> contextlib.AbstractContextManager[None]:
    """A job that no host has was never begun, whether all of them have answered and remember or not."""

    def mutant(self: adoption.Search) -> None:
        ids, self._ids = self._ids, {}
        for id in ids:
            self._missed(id, True, [])
        self._concluded()

    return replaced(adoption.Search, "_conclude", mutant)


@contextlib.contextmanager
def slots_ignored() -> Iterator[None]:
    """A host begins jobs that should wait there for their turn."""

    def mutant(self: Turns, job: Any, limit: int) -> Any:
        self._running.add(job)
        job.start()
        return job

    with replaced(Turns, "submit", mutant), replaced(Slots, "_ahead", lambda self, most: 4):
        yield


def done_unseen() -> contextlib.AbstractContextManager[None]:
    """A job that its client lost sight of is taken for done."""
    judge = Run._judge

    def mutant(self: Run, task: Any, status: Any) -> None:
        if status.state == "lost":
            status.state, status.code = "exited", 0
        judge(self, task, status)

    return replaced(Run, "_judge", mutant)


def refused_kept() -> contextlib.AbstractContextManager[None]:
    """A job that could not be started is kept for the next client as one that has begun."""
    return replaced(Keeper, "refused", property(lambda self: False))


def hosts_unnoted() -> contextlib.AbstractContextManager[None]:
    """A host is in the journal once a job has started there, and not when one may be sent to it."""
    return replaced(Starter, "_note_hosts", lambda self: None)


def memory_acknowledged() -> contextlib.AbstractContextManager[None]:
    """Output that comes again is acknowledged, although it is in memory alone."""
    pass_on = adoption.Adopted._pass_on

    def restored(self: adoption.Adopted, stream: int, data: memoryview) -> int | None:
        self._on_again = lambda stream: self.job.persisted(stream, self._have[stream])
        return pass_on(self, stream, data)

    return replaced(adoption.Adopted, "_pass_on", restored)


def unheard_ended() -> contextlib.AbstractContextManager[None]:
    """A job that was sent and not heard of counts as ended by the signal that it was to get."""
    signal = BatchJob.signal

    def restored(self: BatchJob, number: int) -> None:
        if self.over or self.pid:
            signal(self, number)
        elif number in ENDING:
            JobCore.abandon(self)
            self._leave(Status("signaled", 128 + number, signal_name(number)))

    return replaced(BatchJob, "signal", restored)


def unanswered_lost() -> contextlib.AbstractContextManager[None]:
    """A job that is not heard of after KILL is given up, in place of being left to the next client."""

    def restored(self: UnderWay, task: Any) -> None:
        task.job.abandon()

    return replaced(UnderWay, "leave", restored)


def results_removed() -> contextlib.AbstractContextManager[None]:
    """F1. With --cleanup results that did not come are removed on their host."""
    ended = Files.ended

    def restored(self: Files, task: Any, spawn: Any, status: Any, over: Any, again: bool = False) -> None:
        held = self._held.get(task)

        def removing() -> None:
            if self._cleanup and held and held.own and task.unreturned is not None:
                self._forget_left(task, status.host)  # which keep their names from every removal
                task.after = self._cleanup.remove(held.own, spawn, status.host, over)
            else:
                over()

        ended(self, task, spawn, status, removing, again)

    return replaced(Files, "ended", restored)


def returns_failed() -> contextlib.AbstractContextManager[None]:
    """F2. An item whose returns did not come has failed, and they are not asked for by the next client."""
    brought = Staging.brought

    def restored(self: Staging, taking: Any, status: Any) -> None:
        code = status.code
        brought(self, taking, status)
        if status.state == "lost":
            status.state, status.code = "exited", code or FAILED

    return replaced(Staging, "brought", restored)


def ended_returns() -> contextlib.AbstractContextManager[None]:
    """F3. A job that was told to end brings what it has made of its result."""
    ended = Files.ended

    def restored(self: Files, task: Any, spawn: Any, status: Any, over: Any, again: bool = False) -> None:
        told = task.ending, task.cut_short

        def as_it_was() -> None:
            task.ending, task.cut_short = told
            over()

        task.ending = task.cut_short = False
        ended(self, task, spawn, status, as_it_was, again)
        task.ending, task.cut_short = told

    return replaced(Files, "ended", restored)


def results_unknown() -> contextlib.AbstractContextManager[None]:
    """F5. An item is told apart by the results that have replaced its files."""
    return replaced(Replaced, "before", lambda self, name, state: state)


def retried_on_result() -> contextlib.AbstractContextManager[None]:
    """F5. A try that is to be repeated brings what replaces the files of its item."""
    ended = Files.ended

    def restored(self: Files, task: Any, spawn: Any, status: Any, over: Any, again: bool = False) -> None:
        ended(self, task, spawn, status, over)

    return replaced(Files, "ended", restored)


def arrival_unnoted() -> contextlib.AbstractContextManager[None]:
    """F5. Results in place of files are known by the line of their item alone, which comes later."""

    def restored(self: Journal, id: str, code: int, lasting: bool = False) -> None:
        self.brought[id] = code

    return replaced(Journal, "bring", restored)


def folder_left() -> contextlib.AbstractContextManager[None]:
    """F6. A folder is left by a job that has ended, whatever processes of it live."""

    def restored(self: Folders, path: str, group: int, removes: bool, told: bool) -> int:
        return self.left(path, removes)

    return replaced(Folders, "ended", restored)


def replacement_unnoted() -> contextlib.AbstractContextManager[None]:
    """F5. A client that is killed takes what it knows of replaced files with it."""

    def restored(self: Replaced, rows: Iterable[tuple[bytes, str, str]]) -> None:
        for name, state, comes in rows:
            self._add(name, self.before(name, state), comes)

    return replaced(Replaced, "add", restored)


def directory_forgotten() -> contextlib.AbstractContextManager[None]:
    """Jobs of the client before are looked for in the directories of this one."""

    def folder(self: Journal) -> str:
        return os.environ.get("QUINE_ROOT_SESSION", "") or self.batch

    return replaced(Journal, "folder", property(folder, lambda self, folder: None))


def arrival_forgotten() -> contextlib.AbstractContextManager[None]:
    """The note that returns came at last counts no more once their item has any line."""
    ended = Journal.ended

    def restored(self: Journal, id: str, returned: bool = True) -> None:
        ended(self, id)

    return replaced(Journal, "ended", restored)


def left_forgotten() -> contextlib.AbstractContextManager[None]:
    """F5. Results that were left for the next try are not asked for if that does not come."""

    ended = Files.ended

    def restored(self: Files, task: Any, spawn: Any, status: Any, over: Any, again: bool = False) -> None:
        held = self._held.get(task)

        def forgetting() -> None:
            if again and held and held.stage.is_in_place:
                task.unreturned = None
            over()

        ended(self, task, spawn, status, forgetting, again)

    return replaced(Files, "ended", restored)


def results_replaced() -> contextlib.AbstractContextManager[None]:
    """The files of an item are laid out over the results of others."""
    return replaced(Results, "of_others", lambda self, job, host: ([], []))


def names_unnoted() -> contextlib.AbstractContextManager[None]:
    """A job of the client before has its names once its item is read and it is found."""
    return replaced(Noted, "line", lambda self, id: "")


MUTATIONS = {
    "held-forgotten": TakenBack(held_forgotten, frozenset({"drains"}), 20),
    "started-given-back": TakenBack(started_given_back, frozenset({"twice", "truth"}), 50),
    "lost-again": TakenBack(lost_again, frozenset({"twice"}), 20),
    "reported-twice": TakenBack(reported_twice, frozenset({"line"}), 20),
    "output-not-held": TakenBack(output_not_held, frozenset({"bytes", "whole", "lost"}), 150),
    "guessed-never": TakenBack(guessed_never, frozenset({"twice"}), 20),
    "slots-ignored": TakenBack(slots_ignored, frozenset({"slots"}), 20),
    "done-unseen": TakenBack(done_unseen, frozenset({"done", "truth"}), 20),
    "results-removed": TakenBack(results_removed, frozenset({"removed"}), 100),
    "returns-failed": TakenBack(returns_failed, frozenset({"truth", "returns", "removed"}), 20),
    "ended-returns": TakenBack(ended_returns, frozenset({"part"}), 100),
    "results-unknown": TakenBack(results_unknown, frozenset({"line", "twice", "input"}), 20),
    "retried-on-result": TakenBack(retried_on_result, frozenset({"input"}), 20),
    "arrival-unnoted": TakenBack(arrival_unnoted, frozenset({"twice", "input", "truth", "returns"}), 50),
    "folder-left": TakenBack(folder_left, frozenset({"folder"}), 20),
    "replacement-unnoted": TakenBack(
        replacement_unnoted, frozenset({"line", "twice", "input", "truth"}), 100
    ),
    "directory-forgotten": TakenBack(directory_forgotten, frozenset({"truth", "returns", "twice"}), 100),
}

# Few seeds show them; each has courses of its own in `test_batch`.
RARE = {
    "hosts-unnoted": TakenBack(hosts_unnoted, frozenset({"twice"}), 200),
    "refused-kept": TakenBack(refused_kept, frozenset({"lost"}), 10_000),
    "memory-acknowledged": TakenBack(memory_acknowledged, frozenset({"lost"}), 10_000),
    "arrival-forgotten": TakenBack(arrival_forgotten, frozenset({"truth", "returns", "drains"}), 10_000),
    "results-replaced": TakenBack(results_replaced, frozenset({"returns"}), 10_000),
    "names-unnoted": TakenBack(names_unnoted, frozenset({"input"}), 10_000),
    "left-forgotten": TakenBack(left_forgotten, frozenset({"returns"}), 2000),
    "unanswered-lost": TakenBack(unanswered_lost, frozenset({"lost"}), 10_000),
    "unheard-ended": TakenBack(unheard_ended, frozenset({"twice"}), 500),
}
