"""stdout and stderr of a simulated client, and what its reader has got: `quine.fanout.output.streams.Streams`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from quine.fanout.output.results import Report
from quine.fanout.output.sinks import Output
from tests.sim.batch.batch import SimulatedBatch
from tests.sim.process import PERIOD, pattern
from tests.sim.world import World

READ = 8192  # bytes that a slow reader takes at once
MOST = 16 * 1024  # bytes that wait in front of it before no more is passed on


class SimulatedStreams:
    """`rate`: bytes a second that its reader takes; 0: all at once."""

    terminal = painted = False

    def __init__(self, batch: SimulatedBatch, rate: float) -> None:
        self._batch, self._rate = batch, rate
        self.pending = 0
        self._queue: deque[tuple[Iterator[tuple[int, bytes]], Callable[[], None]]] = deque()
        self._unwritten: deque[tuple[int, Callable[[], None]]] = deque()
        self._put = self._taken = 0
        self.on_room: Callable[[], None] = lambda: None
        self.on_error: Callable[[Exception], None] = lambda error: None

    @property
    def queued(self) -> int:
        return len(self._queue) + len(self._unwritten)

    def put(self, stream: int, data: bytes) -> None:
        self._put += len(data)
        if not self._rate:
            self._taken += len(data)
        elif data:
            if not self.pending:
                self._batch.soon(self._read, min(len(data), READ) / self._rate)
            self.pending += len(data)

    def tell(self, data: bytes) -> None: ...

    def _read(self) -> None:
        taken = min(self.pending, READ)
        self.pending -= taken
        self._taken += taken
        if self.pending:
            self._batch.soon(self._read, min(self.pending, READ) / self._rate)
        self.on_room()

    def queue(self, chunks: Iterator[tuple[int, bytes]], done: Callable[[], None]) -> None:
        self._queue.append((chunks, done))

    def stop(self) -> None:
        self._queue.clear()

    def pump(self) -> None:
        while self._queue and self.pending < MOST:
            chunks, done = self._queue[0]
            for stream, data in chunks:
                self.put(stream, data)
                if self.pending >= MOST:
                    break
            else:
                self._queue.popleft()
                self._unwritten.append((self._put, done))
        while self._unwritten and self._taken >= self._unwritten[0][0]:
            self._unwritten.popleft()[1]()


class SimulatedReport(Report):
    """Checks each output on its way. `shown` has the bytes of both streams that were passed on, by item."""

    def __init__(self, options: Any, work: Any, world: World, shown: dict[str, list[int]]) -> None:
        super().__init__(options, work)
        self._world, self._shown = world, shown

    def open(self, task: Any, sink: Any, by_lines: bool = False) -> Output:
        output = super().open(task, sink, by_lines)
        take, name = output.take, task.item.args[0]

        def checked(stream: int, data: memoryview) -> int | None:
            at = output.got[stream]
            for start in range(0, len(data), PERIOD):
                piece = data[start : start + PERIOD]
                if bytes(piece) != pattern(at + start, len(piece)):
                    self._world.violated("bytes", f"{name}: stream {stream} differs after byte {at + start}")
            return take(stream, data)

        output.take = checked  # type: ignore[method-assign]
        return output

    def pass_on(self, task: Any, sink: Any, done: Callable[[], None]) -> None:
        name = task.item.args[0]
        before = task.output is None and name in self._shown  # only its returns were asked for

        def passed() -> None:
            if not before:
                self._shown[name] = task.output.got[1:] if task.output else [0, 0]
            done()

        super().pass_on(task, sink, passed)
