"""Outputs of jobs line by line, while they run.

Laws
1. No line of a job has anything of another job in it. One that is longer than can be kept is passed on in pieces, and
   all others wait for its end: more of it may come than fits anywhere.
2. A carriage return can end a piece as well: a command that shows progress would let the others wait until it is over.
3. With a log: bytes are acknowledged once they are written, and at once. Those that were not come again.
"""

from __future__ import annotations

from quine.base.errors import Failure
from quine.fanout.output.sinks import Output
from quine.fanout.output.tags import Tags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quine.fanout.output.sinks import Sink
    from quine.fanout.output.spool import Spool

LONGEST = 1 << 20  # a line that is longer is passed on in pieces;
LONGEST_DURABLE = 32 << 10  # with a log: bytes before the end of a line are not acknowledged


class Lines(Output):
    """The output of one try, passed on line by line while the job runs."""

    def __init__(self, sink: Sink, number: int, tag: bytes | None) -> None:
        super().__init__(sink, number, tag)
        self._tags = {1: Tags(tag), 2: Tags(tag)}
        self._begun = {1: bytearray(), 2: bytearray()}  # of lines whose end has not come
        self._left: list[tuple[int, memoryview]] = []  # that the job is not told of as taken
        self._passed = [0, 0, 0]  # bytes of each stream,
        self._written = [0, 0, 0]  # and of them those that were written
        self._asked = False  # to be told when they are written
        self._longest = LONGEST
        self._within: dict[int, None] = {}  # streams of which a piece was passed on, and its line goes on

    def take(self, stream: int, data: memoryview) -> int | None:
        if self._left or self._sink.stops(self):
            self._left.append((stream, data))
            self._sink.stopped[self] = None
            return 0
        self._pass_on(stream, data)
        return None

    def take_over(self, stream: int, data: bytes) -> None:
        self._pass_on(stream, memoryview(data))

    def go_over(self) -> list[int]:
        self._forget_left()  # it comes again
        return super().go_over()

    @property
    def awaits_reader(self) -> bool:
        return bool(self._left) or self._asked

    def _forget_left(self) -> None:
        """Have done with what was not taken. Behind the end of the item it would begin a line that never ends."""
        self._left.clear()
        self._sink.stopped.pop(self, None)

    def persist(self, path: str) -> None:
        super().persist(path)
        self._longest = LONGEST_DURABLE

    def _ask(self) -> None:
        """Have the bytes acknowledged that were passed on, once they are written."""
        if self._asked or not self._spool.path:
            return
        self._asked = True
        passed = list(self._passed)

        def written() -> None:
            self._asked, self._written = False, passed
            self.acknowledge(1)
            self.acknowledge(2)
            if passed != self._passed:
                self._ask()

        self._sink.when_written(written)

    def acknowledge(self, stream: int) -> None:
        if self._spool.path and self.job and self._origin:
            # At once: they would be passed on again by the next process.
            self.job.persisted(stream, self._origin[stream] + self._written[stream], at_once=True)

    def go_on(self) -> None:
        while self._left and not self._sink.stops(self):
            stream, data = self._left.pop(0)
            try:
                self._pass_on(stream, data)
            except Failure as failure:
                self._left.clear()
                self._refuse(failure)
                return
            if self.job:
                self.job.consumed(stream, len(data))
        if self._left:
            self._sink.stopped[self] = None

    def _pass_on(self, stream: int, view: memoryview) -> None:
        self.copy(stream, view)
        data, begun = bytes(view), self._begun[stream]
        at = data.rfind(b"\n") + 1
        if not at and len(begun) + len(data) < self._longest:
            begun += data
            return
        at = at or data.rfind(b"\r") + 1 or len(data)
        self._passed[stream] += len(begun) + at
        self._ask()
        self._put(stream, bytes(begun) + data[:at])
        self._begun[stream] = bytearray(data[at:])

    def _put(self, stream: int, data: bytes) -> None:
        self._sink.put(stream, self._tags[stream].put_before(data))
        if data.endswith((b"\n", b"\r")):
            self._within.pop(stream, None)
        else:
            self._within[stream] = None
        if self._within:
            self._sink.begin_line(self)
        else:
            self._sink.end_line(self)

    def close(
        self,
        done: Callable[[], None],
        instead: Callable[[Spool], Iterable[bytes]] | None = None,
        whole: bool = True,
    ) -> None:
        self.drop()
        self._sink.between_lines(self, lambda: self._sink.close(self._number, iter(()), self._spool, done))

    def drop(self) -> None:
        self._forget_left()
        self._sink.between_lines(self, self._pass_rest)
        super().drop()

    def _pass_rest(self) -> None:
        """Pass on what has no end of a line."""
        for stream, begun in self._begun.items():
            self._sink.put(stream, self._tags[stream].put_before(bytes(begun)))
            begun.clear()
        self._sink.end_line(self)

    def leave(self) -> None:
        super().leave()
        self._forget_left()
        self._sink.end_line(self)
