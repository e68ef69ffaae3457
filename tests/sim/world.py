"""Virtual time: one queue of events, the clocks of several machines, and event loops that read them.

Nothing here blocks and nothing reads a real clock. The world runs one turn of one loop at a time; when no loop has
anything to do, it moves time to the next event or timer.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

TICK = 2e-6  # seconds that a look at the clock takes: work for a slice of time must come to its end


class Violation(AssertionError):
    """An invariant does not hold. `rule` is its short name, the same for every seed that breaks it."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail


class Clock:
    """The monotonic clock of one machine. It stands still while the machine sleeps, and so does all that it times."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asleep = False
        self.lag = 0.0  # seconds behind the world's time: how long the machine has slept
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._since = 0.0

    def time(self) -> float:
        return self.world.now - self.lag

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Call once the machine has been awake for so long."""
        heapq.heappush(self.queue, (self.time() + seconds, next(self.world.serial), call, args))

    def sleep(self) -> None:
        if not self.asleep:
            self.asleep, self._since = True, self.world.now

    def wake(self) -> None:
        if self.asleep:
            self.asleep = False
            self.lag += self.world.now - self._since


class Selector(selectors.PollSelector):
    """Looks at pipes without waiting: time is the world's."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0) if self.get_map() else []


class Loop(asyncio.SelectorEventLoop):
    """The event loop of one node. The world calls `turn`; nothing else runs it."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world, self.clock = world, clock
        self.after_turn: Callable[[], None] = lambda: None
        self.held = False  # its process is stopped
        self.looked = False  # no pipe has anything to tell since the last look
        self.selector = Selector()
        super().__init__(self.selector)
        self.set_exception_handler(self._defect)

    def _make_self_pipe(self) -> None:
        """No thread ever wakes this loop."""

    def _close_self_pipe(self) -> None: ...

    def _write_to_self(self) -> None: ...

    def time(self) -> float:
        self.world.now += TICK
        return self.clock.time()

    def _defect(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self.world.violation = self.world.violation or error
            return
        self.world.violated("defect", f"{context.get('message')}: {error!r}")

    @property
    def stopped(self) -> bool:
        return self.held or self.clock.asleep

    def runnable(self) -> bool:
        if self._ready:
            return True
        if not self.looked:
            self.looked = not self.selector.select()
            return not self.looked
        return False

    def next_timer(self) -> float | None:
        """World time of the first timer that was not cancelled."""
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        return timers[0]._when + self.clock.lag if timers else None

    def turn(self) -> None:
        self.looked = False
        asyncio._set_running_loop(self)
        try:
            self._run_once()
        finally:
            asyncio._set_running_loop(None)
        self.after_turn()

    def do(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call as from inside of this loop, now."""
        self.looked = False
        asyncio._set_running_loop(self)
        try:
            return call(*args)
        finally:
            asyncio._set_running_loop(None)


class World:
    """The state of one scenario. `seed` determines every random choice."""

    def __init__(self, seed: object) -> None:
        self.seed = seed
        self.now = 1000.0
        self.serial = count()
        self.clock = Clock(self)  # of the network, and of the faults
        self.clocks = [self.clock]
        self.loops: list[Loop] = []
        self.violation: Violation | None = None
        self.watchers: list[Callable[[], None]] = []  # called after each step
        self.steps = 0
        self.trace: list[str] | None = None

    def random(self, *what: object) -> Random:
        """Return a generator that depends on the seed and on its purpose, and on nothing else."""
        return Random(repr((self.seed, *what)))

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now - 1000:10.4f}  {text}")

    def violated(self, rule: str, detail: str) -> None:
        self.say(f"VIOLATION {rule}: {detail}")
        self.violation = self.violation or Violation(rule, detail)

    def make_clock(self) -> Clock:
        clock = Clock(self)
        self.clocks.append(clock)
        return clock

    def make_loop(self, clock: Clock) -> Loop:
        loop = Loop(self, clock)
        self.loops.append(loop)
        return loop

    def run(self, until: float, done: Callable[[], bool]) -> bool:
        """Until `done`, or the world's time is `until`. True when done. Raises Violation."""
        while not done():
            if self.violation:
                raise self.violation
            if not self._step(until):
                return done()
            for watch in self.watchers:
                watch()
        if self.violation:
            raise self.violation
        return True

    def _step(self, until: float) -> bool:
        self.steps += 1
        first, what = until, None
        for loop in self.loops:
            if loop.held or loop.clock.asleep:
                continue
            if loop.runnable():
                loop.turn()
                return True
            timer = loop.next_timer()
            if timer is not None and timer < first:
                first, what = timer, loop
        for clock in self.clocks:
            if clock.queue and not clock.asleep and clock.queue[0][0] + clock.lag < first:
                first, what = clock.queue[0][0] + clock.lag, clock
        self.now = max(self.now, first)
        if isinstance(what, Loop):
            what.turn()
        elif isinstance(what, Clock):
            _, _, call, args = heapq.heappop(what.queue)
            call(*args)
        return what is not None

    def close(self) -> None:
        for loop in self.loops:
            asyncio._set_running_loop(loop)
            try:
                for task in asyncio.all_tasks(loop):
                    task.cancel()
                for _ in range(50):
                    if not asyncio.all_tasks(loop):
                        break
                    loop._run_once()
            finally:
                asyncio._set_running_loop(None)
            loop.close()


def weighted(random: Random, choices: Sequence[tuple[Any, float]]) -> Any:
    """Return one of the values; the second of each pair is its weight."""
    return random.choices([value for value, _ in choices], [weight for _, weight in choices])[0]
