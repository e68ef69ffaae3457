"""The gate as a machine: any order of requests, answers, refusals and cancellations, with the time given."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.broker.gate import LEAST_SHARED, PROBE, STAGGER, START, Gate, Refusal, Ticket

RATE, OVERLOAD = Refusal(rate=True), Refusal(overload=True)

steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "well", "well", "heard", "rate", "overload", "pause", "cancel", "time"]),
        st.integers(0, 9),
    ),
    max_size=120,
)  # fmt: skip


class World:
    """A gate and all that was asked of it. Tickets of a pair of trees share prefixes."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.now = 100.0
        self.waiting: list[Ticket] = []
        self.under_way: list[Ticket] = []
        self.asked = self.started = self.gone = 0
        self.pause = 0.0

    def ask(self, n: int) -> None:
        chain = ((n // 5, LEAST_SHARED), (100 + n, 2 * LEAST_SHARED)) if n < 8 else ()
        ticket = Ticket(n % 3, chain)
        self.asked += 1
        self.waiting.append(ticket)
        self.gate.ask(ticket, self.now)

    def turn(self) -> list[Ticket]:
        before = len(self.under_way)
        started = self.gate.start(self.now)
        for ticket in started:
            self.waiting.remove(ticket)
            self.under_way.append(ticket)
        self.started += len(started)
        assert not started or self.now >= self.pause, "somebody started before the time that the server named"
        assert not started or len(self.under_way) <= max(before, int(self.gate.limit))
        return started

    def step(self, what: str, n: int) -> None:
        one = self.under_way[n % len(self.under_way)] if self.under_way else None
        if what == "ask":
            self.ask(n)
        elif what == "time":
            self.now += n / 7
        elif what == "cancel":
            everyone = self.waiting + self.under_way
            if everyone:
                ticket = everyone[n % len(everyone)]
                self.gate.withdraw(ticket, self.now)
                (self.waiting if ticket in self.waiting else self.under_way).remove(ticket)
                self.gone += 1
        elif one is not None and what == "heard":
            self.gate.heard(one, self.now)
        elif one is not None:
            refusal = {
                "rate": RATE,
                "overload": OVERLOAD,
                "pause": Refusal(n / 3, rate=bool(n % 2)),
            }.get(what)
            if what == "pause":
                self.pause = max(self.pause, self.now + n / 3)
            self.gate.leave(one, self.now, refusal, well=what == "well")
            self.under_way.remove(one)
            self.gone += 1
        self.turn()

    def finish(self) -> None:
        """All that wait get their turn, if all that started end well."""
        for _ in range(50 * (len(self.waiting) + len(self.under_way) + 1)):
            if not self.waiting and not self.under_way:
                return
            if self.under_way:
                self.step("well", 0)
                continue
            wake = self.gate.wake(self.now)
            assert wake is not None and wake > self.now, "all wait, and nothing wakes them"
            self.now = wake
            self.turn()
        raise AssertionError("somebody starves")


@settings(max_examples=100, deadline=None)
@given(steps)
def test_the_limit_the_pauses_and_no_hole(plan: list[tuple[str, int]]) -> None:
    """Never more than the limit; nobody before the named time; whatever is cancelled, all others get their turn."""
    world = World()
    for what, n in plan:
        world.step(what, n)
    world.finish()
    status = world.gate.status(world.now)
    assert (status["waiting"], status["under_way"]) == (0, 0)
    assert world.started <= world.asked


@settings(max_examples=60, deadline=None)
@given(steps)
def test_a_wake_is_never_missed(plan: list[tuple[str, int]]) -> None:
    """Between now and the time of `wake` nothing can start; so a timer for that time is enough."""
    world = World()
    for what, n in plan:
        world.step(what, n)
        wake = world.gate.wake(world.now)
        if world.waiting and not world.under_way:
            assert wake is not None
        if wake is not None:
            assert wake > world.now
            assert not world.gate.start((world.now + wake) / 2)


def windows(gate: Gate, now: float, count: int) -> float:
    """So many windows of successes, each with as many requests as the gate allows; return the time after them."""
    for _ in range(count):
        for ticket in saturated(gate, now, int(gate.limit)):
            gate.leave(ticket, now + 1, well=True)
        now += 2
    return now


def saturated(gate: Gate, now: float, count: int) -> list[Ticket]:
    """`count` tickets under way, of which all were heard."""
    started: list[Ticket] = []
    for _ in range(count):
        gate.ask(Ticket(1), now)
        for ticket in gate.start(now):
            gate.heard(ticket, now)
            started.append(ticket)
    assert len(started) == count
    return started


def test_overload_halves_the_limit_once_per_round_trip_and_it_recovers() -> None:
    gate = Gate()
    trip = saturated(gate, 0.0, int(START))
    for ticket in trip:
        gate.leave(ticket, 1.0, OVERLOAD)
    assert gate.limit == START / 2
    now = windows(gate, 10.0, 3)
    assert START / 2 < gate.limit <= START / 2 + 3
    now = windows(gate, now, 12)
    assert START < gate.limit < START + 6
    for _ in range(10):
        for ticket in saturated(gate, now, int(gate.limit)):
            gate.leave(ticket, now + 1, OVERLOAD)
        now += 10
    assert gate.limit == 1


def test_an_untried_number_is_tried_one_at_a_time() -> None:
    gate = Gate()
    for _ in range(30):
        gate.ask(Ticket(1), 0.0)
    assert len(gate.start(0.0)) == 1
    assert gate.start(0.0) == []
    assert gate.wake(0.0) == PROBE
    assert len(gate.start(PROBE)) == 1


def test_trees_take_turns() -> None:
    gate = Gate()
    for _ in range(50):
        gate.ask(Ticket(1), 0.0)
    small = Ticket(2)
    gate.ask(small, 0.0)
    order: list[Ticket] = []
    now = 0.0
    while small not in order:
        started = gate.start(now)
        order += started
        for ticket in started:
            gate.leave(ticket, now, well=True)
    assert order.index(small) <= 1


def test_siblings_wait_for_the_first_byte_of_the_first() -> None:
    gate = Gate()
    chain = ((1, LEAST_SHARED),)
    tickets = [Ticket(1, chain) for _ in range(5)]
    stranger = Ticket(1, ((2, LEAST_SHARED),))
    for ticket in [*tickets, stranger]:
        gate.ask(ticket, 0.0)
    assert gate.start(0.0) == [tickets[0]]
    assert gate.start(PROBE) == [stranger]  # it shares nothing, and overtakes
    gate.heard(tickets[0], PROBE)
    gate.heard(stranger, PROBE)
    started = gate.start(PROBE)
    assert started[0] is tickets[1]
    gate.heard(started[-1], PROBE)
    # The prefix is in the cache now: a later sibling waits for nobody.
    late = Ticket(1, (*chain, (3, LEAST_SHARED + 10)))
    for ticket in tickets[1:]:
        gate.withdraw(ticket, PROBE)
    gate.ask(late, PROBE)
    assert gate.start(PROBE) == [late]


def test_a_short_common_prefix_is_no_reason_to_wait() -> None:
    gate = Gate()
    one, two = (Ticket(1, ((1, LEAST_SHARED - 1), (n, 9 * LEAST_SHARED))) for n in (2, 3))
    gate.ask(one, 0.0)
    gate.ask(two, 0.0)
    assert gate.start(0.0) == [one]
    assert gate.start(PROBE) == [two]


def test_a_first_sibling_that_says_nothing_is_not_waited_for_for_ever() -> None:
    gate = Gate()
    one, two = Ticket(1, ((1, LEAST_SHARED),)), Ticket(1, ((1, LEAST_SHARED),))
    gate.ask(one, 0.0)
    gate.ask(two, 0.0)
    assert gate.start(0.0) == [one]
    assert gate.start(PROBE) == []
    assert gate.wake(PROBE) == PROBE + STAGGER
    assert gate.start(PROBE + STAGGER) == [two]


def test_a_first_sibling_that_fails_is_followed_by_the_next_one_alone() -> None:
    gate = Gate()
    one, two, three = (Ticket(1, ((1, LEAST_SHARED),)) for _ in range(3))
    for ticket in (one, two, three):
        gate.ask(ticket, 0.0)
    gate.start(0.0)
    gate.leave(one, 0.1)
    assert gate.start(0.1) == [two]
    assert gate.start(0.2 + PROBE) == []


# ------------------------------------------------------------------------------ a server with limits


class Server:
    """A provider over virtual time: so many at a time, so many in a window, by one of three ways of counting."""

    def __init__(self, way: str, window: float, whole: bool, took: float) -> None:
        self.way, self.window, self.whole, self.took = way, window, whole, took
        self.most, self.rate = 5, 60
        self.busy = 0
        self.times: list[float] = []
        self.level, self.at = float(self.rate), 0.0

    def takes(self, now: float) -> Refusal | None:
        if self.busy >= self.most:
            return Refusal(rate=True)
        after = self.after(now)
        if after > 0:
            return Refusal(float(math.ceil(after)) if self.whole else after, rate=True)
        self.busy += 1
        return None

    def after(self, now: float) -> float:
        """Count a request if it is within the rate; else return the seconds to wait."""
        if self.way == "bucket":
            self.level = min(float(self.rate), self.level + (now - self.at) * self.rate / self.window)
            self.at = now
            if self.level < 1:
                return (1 - self.level) * self.window / self.rate + 1e-6
            self.level -= 1
            return 0.0
        begin = now - self.window if self.way == "sliding" else now - now % self.window
        self.times = [time for time in self.times if time > begin or (self.way == "fixed" and time == begin)]
        if len(self.times) >= self.rate:
            oldest = self.times[0] if self.way == "sliding" else begin
            return oldest + self.window - now + 1e-6
        self.times.append(now)
        return 0.0

    def least(self, count: int) -> float:
        """Return the time that so many requests take at least."""
        alone = count * self.took / self.most
        if self.way == "bucket":
            return max(alone, (count - self.rate) * self.window / self.rate)
        last = count % self.rate or self.rate
        return max(alone, (count - 1) // self.rate * self.window + last * self.took / self.most)


class Life:
    """Agents that infer so often, a command apart, against a server; driven as `Turns` drives the gate."""

    def __init__(self, server: Server, agents: int, turns: int) -> None:
        self.server, self.left = server, agents
        self.drawn = random.Random(1)
        self.gate, self.now = Gate(), 1000.0
        self.events: list[tuple[float, int, str, Ticket, Refusal | None]] = []
        self.number = itertools.count()
        self.turns: dict[Ticket, int] = {}
        for agent in range(agents):
            self.ask(agent * 0.01, turns)

    def at(self, pause: float, what: str, ticket: Ticket, refusal: Refusal | None = None) -> None:
        heapq.heappush(self.events, (self.now + pause, next(self.number), what, ticket, refusal))

    def ask(self, pause: float, turns: int) -> None:
        ticket = Ticket(1)
        self.turns[ticket] = turns
        self.at(pause, "ask", ticket)

    def run(self) -> float:
        begun = self.now
        while self.left:
            wake = self.gate.wake(self.now)
            if wake is not None and (not self.events or wake <= self.events[0][0]):
                self.now = wake
            else:
                self.now, _, what, ticket, refusal = heapq.heappop(self.events)
                self.happens(what, ticket, refusal)
            for ticket in self.gate.start(self.now):
                refusal = self.server.takes(self.now)
                back = min(0.02, self.server.took / 6)
                self.at(back, "refused" if refusal else "heard", ticket, refusal)
                if not refusal:
                    self.at(self.server.took * self.drawn.uniform(0.7, 1.3), "done", ticket)
        return self.now - begun

    def happens(self, what: str, ticket: Ticket, refusal: Refusal | None) -> None:
        if what == "ask":
            self.gate.ask(ticket, self.now)
        elif what == "heard":
            self.gate.heard(ticket, self.now)
        elif refusal:
            self.gate.leave(ticket, self.now, refusal)
            pause = refusal.after * self.drawn.uniform(1, 1.1) or self.drawn.uniform(0.5, 0.75)
            self.ask(pause, self.turns[ticket])
        else:
            self.server.busy -= 1
            self.gate.leave(ticket, self.now, well=True)
            if self.turns[ticket] > 1:
                self.ask(self.drawn.uniform(0, 0.05), self.turns[ticket] - 1)
            else:
                self.left -= 1


@pytest.mark.parametrize("took", [0.03, 0.3, 2.0])
@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("whole", [False, True], ids=["exact", "whole seconds"])
@pytest.mark.parametrize("way", ["bucket", "sliding", "fixed"])
def test_five_at_a_time_and_sixty_a_minute(way: str, whole: bool, turns: int, took: float) -> None:
    """100 agents: within 1.2 of the time that the limits allow, and about one request in 20 is refused at most."""
    life = Life(Server(way, 60.0, whole, took), 100, turns)
    seconds = life.run()
    assert life.gate.refused < 0.06 * life.gate.started, f"{life.gate.refused} of {life.gate.started}"
    assert seconds < 1.2 * life.server.least(100 * turns)
