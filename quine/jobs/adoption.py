"""Jobs whose client, or whose client's node, has died: found on their hosts, and attached to again.

Laws
1. A job whose start was heard of is on that host alone. For others every host that may have them is asked. The host
   that has a job is told to serve it here, from the first byte on that nobody has.
2. A job that no host has was never begun, if every host has answered and knows of all since before it was sent. So does
   one whose node is younger, if it has forgotten none, and the node here has known no other node of that host since
   then. If every host that may have it has answered, and nothing is known, the job is lost.
3. A host that fails is asked again for PATIENCE seconds. One that says nothing has as many for each answer. A job that
   it may have is not lost after that: it stays in the log, and the next run asks for it.
4. A job is attached to at once, since its lease runs; its item may be read much later. Until then it has its window.
   Once no more items are read it is left to its host: it might wait for its item, and hold its slot, for ever. If
   that item is read after all, the job is looked for again.
"""

from __future__ import annotations

import os
import time
from math import inf

from quine.jobs.foreign import Kept
from transport.client.answer import ask
from transport.client.batch import Batch, Descriptor
from transport.lean import deque, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from transport.client.batch_job import BatchJob
    from transport.spawn import Spawn
    from transport.status import Status

    class Sent(Protocol):
        """A job that was sent; `host` is "" if its start was not heard of."""

        @property
        def attempt(self) -> int: ...

        @property
        def when(self) -> float:
            """The time (`boot_clock`) before which it was not sent; -inf if that cannot be known."""

        @property
        def host(self) -> str: ...

    class Log(Protocol):
        """The record of a batch."""

        @property
        def sent(self) -> Mapping[str, Sent]: ...

        def halt(self, id: str) -> None:
            """Note that a job is about to be ended because the batch is."""

    class Starter(Protocol):
        """The part of a batch that makes its jobs."""

        adopts: bool

        def never_began(self, id: str) -> bool:
            """Where it does not adopt: whether a job of the run before certainly never began."""

        def gone(self, id: str, never: bool) -> None:
            """No host that answers has a job of the run before, whose item is still to be read."""

        def hosts(self) -> list[str]:
            """All hosts that may have jobs of the batch."""

        def asking(self, host: str) -> Spawn:
            """The job that prints the status of the node of a host."""

        def attach(self, id: str, host: str) -> Adopted:
            """Have a job served here."""

    class Owner(Protocol):
        """The run of a batch. Its tasks have `tries`, `begin`, `sent` and `entry`."""

        def at(self, when: float, call: Callable[[], None]) -> None:
            """Call a function at a time of time.monotonic."""

        def adopt(self, task: Any, adopted: Adopted) -> None: ...

        def missed(self, task: Any, never: bool, silent: list[str]) -> None:
            """No host has the job of a task; `never`: it was certainly never begun.

            `silent`: hosts that may have it, and have not answered.
            """


PATIENCE = 30.0  # seconds for a host to be reached, and to answer
FIRST = 5.0  # seconds in which those of the run before are to be found before other jobs are started
SEARCHES = 10  # for a job whose item was read: it may be found and lost again
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 4.0
SETTLES = 20.0  # seconds for a host to notice that a node here has ended
MOST = 16 << 20  # bytes of an answer


class Orphans:
    """The jobs of a batch that were sent and have no end: of a run before, and of a node here that has ended."""

    def __init__(self, owner: Owner, batch: Batch, starter: Starter, log: Log) -> None:
        self._owner, self._batch, self._starter, self._log = owner, batch, starter, log
        self.waiting: dict[str, Any] = {}  # tasks whose jobs are looked for, by their ids
        self.unread: dict[str, Adopted] = {}  # found, and their items are still to be read
        self._left: set[str] = set()  # to their hosts, so
        # not found, and their items are still to be read: the words of `missed`
        self._missed: dict[str, tuple[bool, list[str]]] = {}
        self._due: dict[str, Sent] = {}  # to be looked for in the next turn
        self._searches: dict[str, int] = {}  # of each job
        self.first = False  # those of the run before are looked for: they have their slots before others
        self._over = False  # no more items are read

    def begin(self) -> None:
        """Look for all of the run before."""
        if not self._starter.adopts:
            for id in self._log.sent:
                self._lacks(id, self._starter.never_began(id), [])
        elif self._log.sent:
            self.first = True
            self._owner.at(time.monotonic() + FIRST, self._others_may_start)
            self._look_for(list(self._log.sent))

    def _others_may_start(self) -> None:
        self.first = False

    def bind(self, task: Any, id: str) -> None:
        """The item of a job of the run before was read."""
        sent = self._log.sent[id]
        task.tries = sent.attempt - 1
        task.begin()
        task.sent = task.entry.id = id
        task.entry.host = "" if sent.host == "local" else sent.host
        if adopted := self.unread.pop(id, None):
            self._owner.adopt(task, adopted)
        elif id in self._missed:
            self._owner.missed(task, *self._missed.pop(id))
        else:
            self.waiting[id] = task
            if id in self._left:
                self._look_for([id])

    @property
    def elsewhere(self) -> list[str]:
        """The ids of jobs that were sent, and may run, and whose tasks are not under way."""
        return [*self.unread, *self.waiting, *self._left]

    def sever(self, task: Any) -> bool:
        """The channel of a job was lost: look for it. Return False if that has been tried too often."""
        id = task.sent
        if self._searches.get(id, 0) >= SEARCHES:
            return False
        self.waiting[id] = task
        self._look_for([id])
        return True

    def _look_for(self, ids: list[str]) -> None:
        if not self._due:
            self._owner.at(0.0, self._search)
        for id in ids:
            self._due[id] = self._log.sent[id]
            self._searches[id] = self._searches.get(id, 0) + 1

    def _search(self) -> None:
        due, self._due = self._due, {}
        noted, asking = [sent.host for sent in due.values()], self._starter.asking
        hosts = list(dict.fromkeys(noted)) if all(noted) else self._starter.hosts()
        at, concluded = self._owner.at, self._others_may_start
        Search(self._batch, hosts, asking, at, due, self._found, self._lacks, concluded)

    def _found(self, id: str, host: str) -> None:
        if self._over and id not in self.waiting:
            return  # it goes on as it is
        adopted = self._starter.attach(id, host)
        if task := self.waiting.pop(id, None):
            self._owner.adopt(task, adopted)
            return
        adopted.when_loose = lambda: self._loose(id)
        self.unread[id] = adopted

    def leave(self, ended: bool) -> None:
        """The batch ends: jobs that were found, and whose items are not read any more, have their ends in the next.

        `ended`: they get TERM.
        """
        self._over = True
        while self.unread:
            id, adopted = self.unread.popitem()
            if ended:
                self._log.halt(id)
                adopted.job.signal(signal.SIGTERM)
            adopted.job.go_on()

    def leave_unread(self) -> list[str]:
        """No more items are read, at least for now: leave jobs without one to their hosts. Return their ids."""
        ids = list(self.unread)
        while self.unread:
            self.unread.popitem()[1].job.go_on()
        self._left.update(ids)
        return ids

    def _loose(self, id: str) -> None:
        """A job whose item was not read yet is lost again."""
        if self.unread.pop(id, None):
            self._look_for([id])

    def _lacks(self, id: str, never: bool, silent: list[str]) -> None:
        if task := self.waiting.pop(id, None):
            self._owner.missed(task, never, silent)
        else:
            self._missed[id] = never, silent
            self._starter.gone(id, never)


class Search:
    """The jobs with some ids are looked for on some hosts, once.

    `found` is called with the id and the host; `missed` with the id, whether the job was certainly never begun, and the
    hosts that may have it and have not answered. `at` is that of Owner, `asking` of Starter.
    """

    def __init__(
        self,
        batch: Batch,
        hosts: list[str],
        asking: Callable[[str], Spawn],
        at: Callable[[float, Callable[[], None]], None],
        ids: Mapping[str, Sent],
        found: Callable[[str, str], None],
        missed: Callable[[str, bool, list[str]], None],
        concluded: Callable[[], None],
    ) -> None:
        self._batch, self._asking, self._at, self._ids = batch, asking, at, dict(ids)
        self._found, self._missed, self._concluded = found, missed, concluded
        self._until = time.monotonic() + PATIENCE
        self._open = len(hosts)
        self._knows = -inf  # since then every host that has answered knows of all its jobs
        self._silent: list[str] = []  # hosts that have not answered, or may tell of more
        for host in hosts:
            self._ask(host, 0)
        if not hosts:
            self._conclude()

    def _ask(self, host: str, tries: int) -> None:
        sole: list[float] = []

        def note(body: dict[str, Any]) -> None:
            if isinstance(since := body.get("sole"), float):
                sole[:] = [since]

        def answered(status: Status, answer: bytes | None) -> None:
            kept = None if status.code else Kept.parsed(answer or b"")
            self._answered(host, tries, kept, sole[0] if sole else inf)

        ask(self._batch, self._asking(host), MOST, answered, PATIENCE, note)

    def _answered(self, host: str, tries: int, kept: Kept | None, sole: float) -> None:
        """`sole`: since then the node here knows of no other node of the host; inf if it has not said so."""
        now = time.monotonic()
        for id in kept.ids if kept else ():
            if (sent := self._ids.get(id)) and sent.host in ("", host):
                del self._ids[id]
                self._found(id, host)
        until = self._until if kept is None else self._until - PATIENCE + SETTLES
        if self._ids and (kept is None or kept.settling) and now < until:
            pause = min(FIRST_PAUSE * 2**tries, LONGEST_PAUSE)
            self._at(now + pause, lambda: self._ask(host, tries + 1))
            return
        if kept is None or kept.settling:
            self._silent.append(host)
        else:
            self._knows = max(self._knows, kept.since(sole))
        self._open -= 1
        if not self._open:
            self._conclude()

    def _conclude(self) -> None:
        ids, self._ids = self._ids, {}
        for id, sent in ids.items():
            silent = [host for host in self._silent if sent.host in ("", host)]
            self._missed(id, not (sent.host or silent) and self._knows < sent.when, silent)
        self._concluded()


class Adopted:
    """A job that is attached to. Its events wait until it is bound to its item."""

    def __init__(self, batch: Batch, spawn: Spawn, services: Mapping[str, Any]) -> None:
        self._batch = batch
        self._events: deque[Callable[[], None]] = deque()
        self._bound = False
        self._stdin: bytes | int | None = None
        self._source: Descriptor | None = None
        self._sent = -1  # bytes of stdin, once it is known how many it has
        self._skip = [0, 0, 0]  # bytes of its streams that come again
        self._have: list[int] = []
        self.when_loose: Callable[[], None] = lambda: None
        self.began = self.ended = 0.0  # monotonic; by the age that its host has told
        self.torn = False  # output that was taken before is not to be had any more
        self._output: Callable[[int, memoryview], int | None] = lambda stream, data: None
        self._on_again: Callable[[int], None] = lambda stream: None
        self._on_started: Callable[[int, str], None] = lambda pid, host: None
        self._on_exit: Callable[[Status], None] = lambda status: None
        self.job: BatchJob = batch.start(
            spawn, self._read, self._write, self._begins, self._ends, services=services
        )
        self.job.hold()

    def bind(
        self,
        stdin: bytes | int | None,
        have: list[int],
        output: Callable[[int, memoryview], int | None],
        again: Callable[[int], None],
        started: Callable[[int, str], None],
        ended: Callable[[Status], None],
    ) -> None:
        """Give the job its functions. `have`: bytes of each stream that are here already, [] if that is not known.

        `again` is called with a stream of which bytes have come that are here: it has those acknowledged that a death
        of this process does not lose.
        """
        self._bound, self._stdin, self._have = True, stdin, list(have)
        self._output, self._on_again = output, again
        self._on_started, self._on_exit = started, ended
        while self._events:
            self._events.popleft()()
        self.job.more()

    def _begins(self, pid: int, host: str) -> None:
        def begins() -> None:
            base = self.job.base
            for stream in (1, 2) if self._have else ():
                self._skip[stream] = self._have[stream] - base[stream]
                self.torn = self.torn or self._skip[stream] < 0
            self._on_started(pid, host)

        self.began = time.monotonic() - self.job.seconds
        self._later(begins)

    def _write(self, stream: int, data: memoryview) -> int | None:
        if self._bound:
            return self._pass_on(stream, data)

        def write() -> None:
            taken = self._pass_on(stream, data)
            self.job.consumed(stream, len(data) if taken is None else taken)

        self._events.append(write)
        return 0  # so its end waits, too

    def _pass_on(self, stream: int, data: memoryview) -> int | None:
        """Pass on what does not come again; return how much was taken."""
        again = max(0, min(self._skip[stream], len(data)))
        if again:
            self._skip[stream] -= again
            self._on_again(stream)
        if again == len(data):
            return None
        taken = self._output(stream, data[again:])
        return None if taken is None else again + taken

    def _ends(self, status: Status) -> None:
        self.ended = time.monotonic()
        if not self._bound and (self.job.severed or status.state == "unreachable"):
            self.when_loose()
            return
        self._later(lambda: self._on_exit(status))

    def _later(self, call: Callable[[], None]) -> None:
        if self._bound:
            call()
        else:
            self._events.append(call)

    def _read(self, room: int) -> bytes | None:
        """Give stdin from where the job has it on."""
        if not self._bound:
            return None
        if isinstance(self._stdin, int):
            if self._source is None:
                try:
                    os.lseek(self._stdin, self.job.base[0], os.SEEK_SET)
                except OSError:
                    self.job.abandon()  # bytes that only the process before had
                    return b""
                self._source = Descriptor(self._batch, self._stdin)
                self._source.ready = self.job.more
            return self._source(room)
        if self._sent < 0:
            self._sent = self.job.base[0]
        data = (self._stdin or b"")[self._sent : self._sent + room]
        self._sent += len(data)
        return data
