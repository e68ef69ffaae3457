"""The gate as a machine: any order of requests, answers, refusals and cancellations, with the time given."""

from __future__ import annotations

import random
from typing import Any

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


@settings(max_examples=500, deadline=None)
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


@settings(max_examples=200, deadline=None)
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

    def __init__(self, way: str, most: int, rate: int, window: float, tells: bool = True) -> None:
        self.way, self.most, self.rate, self.window, self.tells = way, most, rate, window, tells
        self.busy = 0
        self.times: list[float] = []
        self.level, self.at = float(rate), 0.0

    def takes(self, now: float) -> Refusal | None:
        if self.busy >= self.most:
            return Refusal(rate=True)
        after = self.after(now)
        if after > 0:
            return Refusal(after if self.tells else 0.0, rate=True)
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
        recent = [time for time in self.times if time > begin or (self.way == "fixed" and time == begin)]
        if len(recent) >= self.rate:
            return (
                recent[0] + self.window - now if self.way == "sliding" else begin + self.window - now
            ) + 1e-6
        self.times.append(now)
        return 0.0


def lives(server: Server, agents: int, turns: int, took: float, seed: int = 1) -> tuple[float, int, int]:
    """Return (seconds, requests, refusals) of agents that infer so often, a command apart; as Turns drives the gate."""
    drawn = random.Random(seed)
    gate, now = Gate(), 1000.0
    events: list[tuple[float, int, str, Any]] = []
    number = 0

    def at(time: float, what: str, about: Any) -> None:
        nonlocal number
        number += 1
        events.append((time, number, what, about))

    for agent in range(agents):
        at(now + agent * 0.01, "ask", (agent, turns))
    owner: dict[Ticket, tuple[int, int]] = {}
    begun, left = now, agents
    while left:
        wake = gate.wake(now)
        if wake is not None and (not events or wake <= min(events)[0]):
            now = max(now, wake)
        else:
            event = min(events)
            events.remove(event)
            now, _, what, about = event
            if what == "ask":
                ticket = Ticket(1)
                owner[ticket] = about
                gate.ask(ticket, now)
            elif what == "heard":
                gate.heard(about, now)
            elif what == "refused":
                gate.leave(about[0], now, about[1])
                after = about[1].after
                pause = after * (1 + 0.1 * drawn.random()) if after else 0.5 + drawn.random() / 4
                at(now + pause, "ask", owner[about[0]])
            else:
                server.busy -= 1
                gate.leave(about, now, well=True)
                agent, turn = owner[about]
                if turn > 1:
                    at(now + 0.05 * drawn.random(), "ask", (agent, turn - 1))
                else:
                    left -= 1
        for ticket in gate.start(now):
            refusal = server.takes(now)
            if refusal:
                at(now + 0.02, "refused", (ticket, refusal))
            else:
                at(now + 0.02, "heard", ticket)
                at(now + took * (0.7 + 0.6 * drawn.random()), "done", ticket)
    return now - begun, gate.started, gate.refused
