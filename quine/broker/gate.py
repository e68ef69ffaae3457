"""The gate of one key, base and model: the requests that may be sent now. A pure machine; every call is given the time.

Laws
1. Never more requests are under way than `limit`. It starts at START, halves when the server is overloaded, at most
   once per round trip, and grows by one per window of successes.
2. Nobody starts before the time that the server has named (Retry-After).
3. Trees take turns; within a tree the first to ask is the first to start. A ticket waits for others, never for ever.
4. Of requests that share a prefix which is new to the provider's cache, one goes first. The others wait for its first
   byte or its end, at most STAGGER.

A number of requests that never went well before is tried by one more at a time. So a server that bears 5 refuses one
request, not 15. A refusal that names a pause, at a number that did go well, is one of the rate: the starts are then
spaced by the rate that the server has borne, which rises again as long as nothing is refused. A server that counts the
requests of a sliding window shows it by its pause, which ends when the oldest of them leaves the window. Then the
starts follow those of the window before, however unevenly they came.
"""

from __future__ import annotations

from collections import deque

from transport.lean import NamedTuple

START = 20.0  # requests at a time
MOST = 512.0
PROBE = 0.25  # seconds after which the next untried number is tried though the last one was not answered yet
STAGGER = 10.0  # seconds
LEAST_SHARED = 4096  # bytes of a prefix, about 1024 tokens: providers cache no shorter one
KEPT = 150.0  # seconds that a prefix is taken to be in the cache, at least; providers keep it for 300
MARKS = 50_000  # marks of prefixes that are remembered for that time
WINDOWS = 16  # windows of successes before a number that was refused is tried again; doubled each time
CAUTION = 120.0  # seconds after a refusal in which starts are spread
SLOWER = 1.03  # of the rate that was measured
RISE = 1e-4  # of the rate for each success, times the number of successes since the last refusal
FORGET = 300.0  # seconds of idleness after which a rate is not known any more
BURST = 30.0  # seconds of unused rate that may be used at once
LONG = 2.0  # seconds of a pause that is not a short one rounded up
MOST_TIMES = 2000
ROUNDED = 1.0  # seconds by which a server may round a pause up
WINDOW = 25  # requests that are taken at once, at least, by a server that then wants a long pause

Chain = tuple[
    tuple[int, int], ...
]  # (mark, size in bytes) of each prefix of a conversation, the shortest first


class Refusal(NamedTuple):
    """The server could not take a request. `after`: the seconds that it asks to wait.

    `rate`: its answer was 429, for the rate or the number at a time. `overload`: it has too much to do.
    """

    after: float = 0.0
    rate: bool = False
    overload: bool = False


class Ticket:
    """One request, from its asking for leave until its end."""

    def __init__(self, tree: int, chain: Chain = ()) -> None:
        self.tree = tree
        self.chain = chain
        self.begun = -1.0  # time of its start
        self.count = 0  # requests under way at its start, itself included
        self.trip = 0  # refusals acted upon before its start
        self.heard = False
        self.leader: Ticket | None = None  # the request whose first byte it waits for
        self.until = -1.0  # time when it waits no more


class Gate:
    def __init__(self) -> None:
        self.limit = START
        self.started = self.refused = 0
        self.paused_until = 0.0
        self._waiting: dict[int, deque[Ticket]] = {}  # by tree; the first tree is the next
        self._under_way: set[Ticket] = set()
        self._proven = 0  # the most requests at a time that ever went well
        self._ceiling = MOST  # the most that is not known to be refused
        self._credit, self._windows = 0.0, WINDOWS
        self._tried = 0.0  # the number that was refused before and is tried again; 0 = none
        self._hurry = False  # grows by one per success, up to START
        self._trip = 0
        self._full = -1.0  # last time at which as many were under way as the limit allows
        self._careful_until = 0.0
        self._hears = 0.0  # seconds until a first byte, smoothed
        self._took = 0.0  # seconds of an inference, smoothed
        self._last: Ticket | None = None  # the last one started
        self._freed: deque[float] = deque()  # times until which an ended request counts
        self._interval, self._due = 0.0, 0.0  # seconds between starts; time of the next one
        self._burst = BURST
        self._unsure = False
        self._few = (0, 0.0)  # successes of the last measurement, and its seconds, where they were few
        self._window = 0.0  # seconds in which the server counts requests, if it does
        self._fit, self._fitted = (
            0,
            0,
        )  # requests that fit into it, where it slides; successes since that was known
        self._times: deque[float] = deque(maxlen=MOST_TIMES)  # of successes
        self._since, self._well = -1.0, 0  # successes since this time, by which the rate is measured
        self._active = 0.0
        self._new: dict[int, Ticket] = {}  # mark of a prefix -> the request that brings it into the cache
        self._warm: tuple[set[int], set[int]] = (set(), set())
        self._turned = 0.0

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._under_way

    # -- a request ---------------------------------------------------------------------------------

    def ask(self, ticket: Ticket, now: float) -> None:
        """Add a ticket to those that wait."""
        if not self._waiting and not self._under_way and now - self._active > FORGET:
            self._interval, self._since, self._fit = 0.0, -1.0, 0
        self._active = now
        self._waiting.setdefault(ticket.tree, deque()).append(ticket)

    def start(self, now: float) -> list[Ticket]:
        """Return the tickets that start now."""
        started = []
        while self._waiting and self._opens(now) <= now:
            ticket = self._next(now)
            if ticket is None:
                break
            self._begin(ticket, now)
            started.append(ticket)
        return started

    def heard(self, ticket: Ticket, now: float) -> None:
        """The first byte of an answer has come."""
        if ticket.heard or ticket not in self._under_way:
            return
        ticket.heard = True
        self._hears += (now - ticket.begun - self._hears) / 8
        self._proven = max(self._proven, ticket.count)
        if 0 < self._tried <= ticket.count:
            self._ceiling, self._windows, self._tried, self._hurry = MOST, WINDOWS, 0.0, True
        self._bring(ticket, now)
        self._well += 1
        self._times.append(now)
        if self._fit:
            self._fitted += 1
            if self._fitted > self._fit:  # a whole window without a refusal: one more is tried
                self._fit, self._fitted = self._fit + 1, 0
        self._interval *= 1 - min(0.5, RISE * self._well * max(1.0, self._interval))

    def leave(self, ticket: Ticket, now: float, refusal: Refusal | None = None, well: bool = False) -> None:
        """The request has ended: `well`, by a refusal, or in a way that says nothing about the server."""
        if ticket not in self._under_way:
            return
        if well:
            self.heard(ticket, now)
            took = now - ticket.begun
            self._took = took if not self._took else self._took + (took - self._took) / 8
            self._grow(ticket)
        elif refusal:
            self.refused += 1
            self._refuse(ticket, refusal, now)
        self._drop(ticket)
        self._active = now
        if now < self._careful_until:
            # The server counts an answer for a moment longer than its reader.
            self._freed.append(now + min(0.02, self._took / 20))

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """The ticket is cancelled, wherever it is."""
        self.leave(ticket, now)
        queue = self._waiting.get(ticket.tree)
        if queue and ticket in queue:
            queue.remove(ticket)
            if not queue:
                del self._waiting[ticket.tree]

    def wake(self, now: float) -> float | None:
        """Return the time at which `start` may have more to return without any other call; None: at none."""
        if not self._waiting:
            return None
        opens = self._opens(now)
        if opens > now:
            return None if opens == float("inf") else opens
        ends = [t.until for queue in self._waiting.values() for t in queue if t.until > now]
        return min(ends, default=None)

    def status(self, now: float) -> dict[str, object]:
        """Return the state for people."""
        return {
            "limit": int(self.limit),
            "under_way": len(self._under_way),
            "waiting": sum(map(len, self._waiting.values())),
            "trees": len(self._waiting),
            "paused": max(0.0, round(self.paused_until - now, 1)),
            "interval": round(self._window / self._fit if self._fit else self._interval, 3),
            "started": self.started,
            "refused": self.refused,
        }

    # -- the next ----------------------------------------------------------------------------------

    def _opens(self, now: float) -> float:
        """Return the time from which one more may start; infinity: not before something ends."""
        while self._freed and self._freed[0] <= now:
            self._freed.popleft()
        busy = len(self._under_way) + len(self._freed)
        if busy >= int(self.limit):
            free = len(self._under_way) < int(self.limit)
            return max(self._freed[0], self.paused_until) if free else float("inf")
        opens = max(self.paused_until, self._due if self._interval else 0.0, self._leaves(now))
        last = self._last
        if last is not None and not last.heard and last in self._under_way:
            if busy >= self._proven:
                opens = max(opens, last.begun + PROBE)
            elif now < self._careful_until:
                opens = max(opens, last.begun + self._spacing())
        return opens

    def _leaves(self, now: float) -> float:
        """Return the time at which a place in the sliding window of the server is free; 0 if it is known of none."""
        if not self._fit:
            return 0.0
        places = self._fit - self._unheard()
        if places <= 0:
            return float("inf")
        return self._times[-places] + self._window if len(self._times) >= places else 0.0

    def _unheard(self) -> int:
        return sum(not ticket.heard for ticket in self._under_way)

    def _spacing(self) -> float:
        if not self._took:
            return PROBE
        each = self._took / self.limit
        return min(PROBE, max(each / 2, min(2 * self._hears, 0.9 * each)))

    def _next(self, now: float) -> Ticket | None:
        """Take the next ticket; None if all wait for another one's first byte."""
        for tree, queue in self._waiting.items():
            for ticket in queue:
                if self._waits(ticket, now):
                    continue
                queue.remove(ticket)
                del self._waiting[tree]
                if queue:
                    self._waiting[tree] = queue  # as the last one
                return ticket
        return None

    def _begin(self, ticket: Ticket, now: float) -> None:
        self._under_way.add(ticket)
        self.started += 1
        ticket.begun, ticket.trip = now, self._trip
        ticket.count = len(self._under_way)
        if ticket.count >= int(self.limit):
            self._full = now
        ticket.heard, ticket.leader, ticket.until = False, None, -1.0
        self._last = ticket
        if self._since < 0:
            self._since = now
        if self._interval:
            self._due = max(self._due, now - self._burst) + self._interval
        warm, before = self._warm
        for mark, _ in ticket.chain:
            if mark not in warm and mark not in before:
                self._new.setdefault(mark, ticket)

    def _drop(self, ticket: Ticket) -> None:
        self._under_way.discard(ticket)
        if self._new:
            for mark, _ in ticket.chain:
                if self._new.get(mark) is ticket:
                    del self._new[mark]

    # -- the limit ---------------------------------------------------------------------------------

    def _grow(self, ticket: Ticket) -> None:
        if self._full < ticket.begun:
            return  # the limit was not reached while it was under way
        if self.limit < self._ceiling:
            step = 1.0 if self._hurry and self.limit < START else 1 / self.limit
            self.limit = min(self._ceiling, self.limit + step)
            return
        self._credit += 1 / self.limit
        if self._credit >= self._windows and self.limit < MOST:
            self._credit = 0.0
            self.limit = self._ceiling = self._tried = self._ceiling + 1

    def _refuse(self, ticket: Ticket, refusal: Refusal, now: float) -> None:
        if refusal.after > 0:
            self.paused_until = max(self.paused_until, now + refusal.after)
        if ticket.trip < self._trip or not (refusal.rate or refusal.overload):
            return
        self._trip += 1
        self._careful_until = now + CAUTION
        self._hurry = False
        if ticket.count > max(1, self._proven):
            if 0 < self._tried <= ticket.count:
                self._windows *= 2
            self.limit = self._ceiling = float(ticket.count - 1)
            self._credit = self._tried = 0.0
        elif refusal.rate and refusal.after > 0:
            self._measure(now, now + refusal.after)
        else:
            self.limit = max(1.0, min(self.limit, max(ticket.count, len(self._under_way))) / 2)

    def _measure(self, now: float, until: float) -> None:
        """Space the starts by the successes since the last refusal of the rate: that many fit between two of them."""
        before, self._fit = self._fit, self._slides(now, until)
        if self._fit:
            if before:  # known before, and still refused: some that had left the window were counted
                self._fit = max(1, min(self._fit, before - 1))
            self._fitted, self._interval, self._due = 0, 0.0, until
            self._since, self._well = until, 0
            return
        well, span = self._well, until - self._since
        if until - now > LONG and self._window:
            recent = sum(time > until - self._window for time in self._times)
            if recent >= WINDOW:
                well, span = recent, self._window
        interval = SLOWER * span / well if well and span > 0 else 0.0
        # Many would fit into the pause, or it is most of the time: the server counts in windows.
        windows = until - now > min(2 * interval, span / 2)
        self._burst = BURST
        if well < WINDOW and windows and not self._unsure:
            # Few went well in a part of a window, which says little: the next measurement includes them.
            self._unsure = True
            self._due = until
            return
        if not windows and well < WINDOW:
            # Of two or three successes the rounding of the pause is a large part: those before them count, too.
            few, self._few = self._few, (well, span)
            interval = SLOWER * (span + few[1]) / (well + few[0]) if well else interval
        self._unsure = False
        self._interval = interval
        self._since, self._well, self._due = until, 0, until
        if well >= WINDOW and windows and until - now > LONG:
            self._window = max(self._window, span)
        if well >= WINDOW and windows:
            # As many as in the last window go well in the next one, as soon as that begins.
            self.paused_until += 0.01 * span
            self._burst = well * interval
            self._due = until - self._burst

    def _slides(self, now: float, until: float) -> int:
        """Return how many requests fit into the window of the server, if the pause ends as that of a sliding one does.

        Then the first of the last requests leaves the window. The server saw each some moments before its first byte.
        """
        recent = [time for time in self._times if time > now - self._window + self._hears]
        if not self._window or not recent:
            return 0
        late = until - (recent[0] - self._hears + self._window)
        near = 0.02 * self._window + 0.1
        # The refused one is under way, too.
        return max(1, len(recent) + self._unheard() - 1) if -near <= late <= near + ROUNDED else 0

    # -- prefixes ----------------------------------------------------------------------------------

    def _waits(self, ticket: Ticket, now: float) -> bool:
        """Return whether the ticket waits for a request that brings its prefix into the cache."""
        if 0 <= ticket.until <= now:
            return False
        leader = ticket.leader
        if leader is None or leader.heard or leader not in self._under_way:
            ticket.leader = leader = self._leader(ticket)
        if leader is None:
            return False
        if ticket.until < 0:
            ticket.until = now + STAGGER
        return True

    def _leader(self, ticket: Ticket) -> Ticket | None:
        leader, shared, cached = None, 0, 0
        for mark, size in reversed(ticket.chain):
            if mark in self._warm[0] or mark in self._warm[1]:
                cached = size
                break
            if leader is None and mark in self._new:
                leader, shared = self._new[mark], size
        return leader if shared - cached >= LEAST_SHARED else None

    def _bring(self, ticket: Ticket, now: float) -> None:
        """The prefixes of the ticket are in the cache from now on."""
        if now - self._turned > KEPT or len(self._warm[0]) > MARKS:
            self._warm, self._turned = (set(), self._warm[0]), now
        self._warm[0].update(mark for mark, _ in ticket.chain)
        if self._new:
            for mark, _ in ticket.chain:
                if self._new.get(mark) is ticket:
                    del self._new[mark]
