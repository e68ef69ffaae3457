"""The slots of a host: how many of its jobs run at one time, and the queue of the others.

Laws
1. A job takes a slot when it begins and gives it back when its relay ends, however it ends; jobs that wait for one are
   served in order.
2. A caller that keeps its jobs until there is room (`late`) is answered "full". With the exit record of each of its
   jobs here it is told of room, if there is more than the job leaves.
3. A host without `slots` has as many late jobs as it has processors, of callers that name no number of their own
   (`bounded`); all other jobs there do not count. Before it has told its processors it gets one such job.
4. A place that becomes free is not for a caller that has more jobs here than another one that was refused lately; nor
   for one that has as many, if the other has waited for a TURN. A caller that is refused asks again before long, and
   would find the host full for ever.
5. Beyond its slots a host is given as many late jobs as it begins in a round trip. They wait over there (`turns.py`),
   so that a long line does not bound their rate. Of so many nobody knows whether they were started if the host is
   lost, in whatever way they are sent; so it is given no more. Long jobs wait here, and so does a job that is not late:
   its caller is told that it waits.
6. A host whose link is not up after SILENCE holds one late job of each caller. The others are given back, and no more
   are taken, as far as they can go to a host that is not silent. Where they cannot, they wait for the dial together,
   and have its error together. A host whose last dial has failed is silent from its next one on.
7. Any other job goes to a host whose last dial failed less than FRESH ago only if all its hosts are such: to it an idle
   host that is down looks like the best one.
"""

from __future__ import annotations

import asyncio
from collections import deque

from transport.errors import Refused
from transport.node.host import refuse
from transport.node.relay import LONG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.node.host import Host
    from transport.node.link import Link
    from transport.node.relay import Relay
    from transport.spawn import Spawn


MOST_AHEAD = 1024  # jobs that wait on a host
FULL = 1 << 30  # jobs, more than any host has
WEIGHT = 8  # the mean of the durations is that of the last jobs, about so many
LATELY = 1.5  # seconds; a caller that was refused asks again after a third of it (client/feed.py)
TURN = 2.0  # seconds: each change leaves a place empty until the other one asks
SILENCE = (
    3.0  # seconds that many jobs wait for a link: a host that answers takes about one, one that does not 30
)
FRESH = 60.0  # seconds that a failed dial counts in a choice of hosts: after them the host is tried again
NEVER = (float("inf"), 0.0)  # was a caller refused


class Slots:
    """The jobs of one host: at most `limit` at a time (0: no limit), the others queued in order."""

    def __init__(self, name: str, elsewhere: Callable[[Sequence[str]], bool] = lambda groups: False) -> None:
        """`elsewhere` tells whether one of the hosts that a job could go to is not silent."""
        self.name = name
        self.limit = 0
        self.processors = 0  # of the host, once it has told
        self.running = 0
        self.waiting = 0  # in the queue, and not ended: counted, because each new job asks for it
        self._bounded: set[Relay] = set()  # jobs that count where there is no limit
        self._untold: Host | None = None  # it was not reached yet when a bounded job was sent to it
        self._queue: deque[tuple[Relay, Host, Spawn]] = deque()
        self._began: dict[Relay, float] = {}  # when the job was sent and, once it runs, when it was started
        self._way = float("inf")  # shortest time from sending a job to hearing of its start, seconds
        self._seconds = 0.0  # mean time from there to its exit record
        self._shares: dict[Link, int] = {}  # late jobs of each caller that has any
        # Callers whose late jobs were refused: since when they have had none, and the last time.
        self._refused: dict[Link, tuple[float, float]] = {}
        self.silent = False  # late jobs wait for the link, and have for too long
        self._elsewhere = elsewhere
        self._unlinked: dict[
            Relay, Sequence[str]
        ] = {}  # these jobs, and the groups of the hosts they could go to
        self._timer: asyncio.TimerHandle | None = None  # until it is silent
        self._failed: float | None = None  # when its last dial failed; None: it did not
        self._left_behind = 0  # jobs that were ever taken out of the queue: the place of its first one

    @property
    def used(self) -> int:
        """Jobs that run or wait."""
        return self.running + self.waiting

    @property
    def begun(self) -> int:
        """See `Watcher`: jobs that wait over there for their turn have not started."""
        return sum(relay.started for relay in self._began)

    def load(self, link: Link, late: bool, bounded: bool) -> int:
        """Jobs that run or wait, for a comparison of hosts. For a late job a host that would refuse it comes after
        all others, and one that is silent after these: only the others tell of room before long. For any other job
        a host whose dial has just failed comes last.

        Asked for each of a thousand hosts, for each job: the usual cases are answered here.
        """
        used = self.running + self.waiting
        if late and self.silent:
            return used + 2 * FULL
        if not late:
            return used + FULL if self._has_just_failed() else used
        if not (self.limit or bounded):
            return used
        if not self._refused and (used < self.limit if self.limit else len(self._bounded) < self.processors):
            return used
        return used if self._takes(link, bounded) else used + FULL

    def _has_just_failed(self) -> bool:
        return self._failed is not None and asyncio.get_running_loop().time() < self._failed + FRESH

    def most(self, bounded: bool) -> int:
        """Late jobs at one time, 0 = no limit."""
        return self.limit or (self.processors or 1 if bounded else 0)

    def _room(self, bounded: bool) -> int:
        """Late jobs that may be sent now."""
        most = self.most(bounded)
        used = self.used if self.limit else len(self._bounded)
        return most + self._ahead(most) - used if most else FULL

    def _takes(self, link: Link, bounded: bool) -> bool:
        """Whether one more late job of a caller may be sent."""
        room = self._room(bounded)
        if room <= 0 or room == FULL or not self._refused:
            return room > 0
        now = asyncio.get_running_loop().time()
        mine, share = self._refused.get(link, NEVER)[0], self._shares.get(link, 0)
        return room > sum(
            other is not link
            and last > now - LATELY
            and self._shares.get(other, 0) < share + (first < min(now - TURN, mine))
            for other, (first, last) in self._refused.items()
        )

    def submit_late(
        self, relay: Relay, host: Host, spawn: Spawn, bounded: bool, groups: Sequence[str] = ()
    ) -> None:
        """Begin a job, or give it back to its caller: bound to this host it could not go to the next that has room.

        `groups` are those of the hosts that it could go to.
        """
        link = relay.near.link
        if (self.silent and self._elsewhere(groups)) or not self._takes(link, bounded):
            self._refused = {each: at for each, at in self._refused.items() if not each.dead}
            now = asyncio.get_running_loop().time()
            self._refused[link] = min(now, self._refused.get(link, NEVER)[0]), now
            self._give_back(relay)
            return
        if bounded and not self.limit and not self.processors:
            self._untold = host
        if link in self._refused:
            self._refused[link] = NEVER[0], self._refused[link][1]
        relay.late = True
        self._shares[link] = self._shares.get(link, 0) + 1
        if bounded:
            self._bounded.add(relay)
        self.submit(relay, host, spawn)
        if not (relay.queued or relay.far or relay.ended):
            self._wait_for_link(relay, groups)

    def _give_back(self, relay: Relay) -> None:
        relay.near.note({"full": True, "host": self.name})
        refuse(relay, Refused("no free slot", host=self.name))

    def _wait_for_link(self, relay: Relay, groups: Sequence[str]) -> None:
        if not self._unlinked:
            self.silent = self._failed is not None
            self._timer = asyncio.get_running_loop().call_later(SILENCE, self._fall_silent)
        self._unlinked[relay] = groups

    def _fall_silent(self) -> None:
        """Give late jobs back that can go elsewhere, but for one of each caller, which tells it of room for them."""
        waiting = {relay: groups for relay, groups in self._unlinked.items() if not relay.far}
        self.silent = bool(waiting)
        first: dict[Link, Relay] = {}
        count: dict[Link, int] = {}
        for relay, groups in waiting.items():
            link = relay.near.link
            if first.setdefault(link, relay) is not relay and self._elsewhere(groups):
                self._give_back(relay)
                count[link] = count.get(link, 0) + 1
        for link in count:
            self._note_room(first[link], count[link] + 1)

    def _linked(self) -> None:
        """No late job waits for the link any more."""
        self._unlinked.clear()
        self.silent = False
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def adopt(self, relay: Relay, host: Host, spawn: Spawn, bounded: bool) -> None:
        """Begin a job that is to be adopted: it runs there already, whatever runs beside it."""
        if bounded:
            self._bounded.add(relay)
        self._start(relay, host, spawn)

    def started(self, relay: Relay) -> None:
        """See `Watcher`: how long did it take to start the job?"""
        now = asyncio.get_running_loop().time()
        if relay in self._began:
            self._way = min(self._way, now - self._began[relay])
            self._began[relay] = now
        if self._untold and self._untold.processors:
            self.processors, self._untold = self._untold.processors, None
        self._failed = None
        if self.silent and relay in self._unlinked:
            for each in {each.near.link: each for each in self._unlinked}.values():
                self._note_room(each, self._room(each in self._bounded) + 1)
        elif self._refused.get(relay.near.link, NEVER)[1] > now - LATELY:
            self._tell_room(relay)  # there may be more than for this job
        if relay in self._unlinked:
            self._linked()

    def exiting(self, relay: Relay) -> None:
        """See `Watcher`: how long did the job run? A caller with more jobs is told of room."""
        if relay.started and (began := self._began.pop(relay, None)) is not None:
            seconds = asyncio.get_running_loop().time() - began
            self._seconds += (seconds - self._seconds) / (WEIGHT if self._seconds else 1)
            self._begin()
        self._tell_room(relay)

    def _tell_room(self, relay: Relay) -> None:
        """Tell a caller whose late jobs were refused of room: one for this job of it, which it leaves, and more."""
        room = self._room(relay in self._bounded) + 1
        if relay.late and 1 < room < FULL and relay.near.link in self._refused:
            self._note_room(relay, room)

    @staticmethod
    def _note_room(relay: Relay, room: int) -> None:
        relay.near.note({"room": room, "seen": relay.near.link.session.highest})

    def _ahead(self, most: int) -> int:
        """Jobs that a host of so many slots begins in a round trip."""
        if not self._seconds:
            return 0
        return min(MOST_AHEAD, int(most * self._way / self._seconds))

    def submit(self, relay: Relay, host: Host, spawn: Spawn) -> None:
        place = self._left_behind + len(self._queue)
        self._queue.append((relay, host, spawn))
        self.waiting += 1
        relay.queued = True
        relay.on_end = self._left
        self._begin()
        if relay.queued:
            self._note(relay, place)
            asyncio.get_running_loop().call_later(LONG, self._note, relay, place)

    def _note(self, relay: Relay, place: int) -> None:
        """Tell the client of a job that it waits for a slot."""
        if relay.queued:
            # Jobs that have ended in the queue are not looked for: ten thousand would be, for each of as many notes.
            ahead = min(place - self._left_behind, self.waiting - 1)
            seconds = asyncio.get_running_loop().time() - relay.since
            relay.near.note(
                {"waiting": True, "host": self.name, "seconds": round(seconds, 3), "ahead": ahead}
            )

    def _begin(self) -> None:
        while self._queue:
            ahead = self._ahead(self.limit) if self._queue[0][0].late else 0
            if self.limit and self.running >= self.limit + ahead:
                return
            relay, host, spawn = self._queue.popleft()
            self._left_behind += 1
            if relay.queued:
                relay.queued = False
                self.waiting -= 1
                relay.watcher = self
                self._began[relay] = asyncio.get_running_loop().time()
                self._start(relay, host, spawn)

    def _start(self, relay: Relay, host: Host, spawn: Spawn) -> None:
        self.running += 1
        relay.on_end = self._ended
        host.begin(relay, spawn, self.refuse_waiting)

    def _left(self, relay: Relay) -> None:
        """A job has ended while it waited."""
        relay.queued = False
        self.waiting -= 1
        self._over(relay)

    def _ended(self, relay: Relay) -> None:
        self._began.pop(relay, None)
        if self._unlinked.pop(relay, None) is not None and not self._unlinked:
            self._linked()
        self.running -= 1
        self._over(relay)
        self._begin()

    def _over(self, relay: Relay) -> None:
        self._bounded.discard(relay)
        if relay.late:
            link = relay.near.link
            self._shares[link] -= 1
            if not self._shares[link]:
                del self._shares[link]

    def refuse_waiting(self, refused: Refused) -> None:
        """The host cannot be reached: refuse the queued jobs, which would only dial it again, one after the other."""
        self._failed = asyncio.get_running_loop().time()
        waiting, self._queue = self._queue, deque()
        self._left_behind += len(waiting)
        for relay, _, _ in waiting:
            if not relay.ended:
                refuse(relay, refused)
