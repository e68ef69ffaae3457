"""stdout and stderr of the verb: a queue in front of each, written without blocking, in the poll of the batch."""

from __future__ import annotations

import select

from transport.client.output import Output
from transport.lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transport.client.batch import Batch

    Chunks = Iterator[tuple[int, bytes]]

MOST = 256 << 10  # bytes that wait in front of a descriptor before more is read from a spool


class Streams:
    """Whole outputs of jobs one behind the other (`queue`), or pieces at once (`put`)."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._outputs = {1: Output(1), 2: Output(2)}
        self._queue: deque[tuple[Chunks, Callable[[], None]]] = deque()
        self._put = {1: 0, 2: 0}  # bytes in all
        self._unwritten: deque[tuple[dict[int, int], Callable[[], None]]] = (
            deque()
        )  # done when so much is written
        self._events: dict[int, tuple[int, int]] = {}  # stream -> descriptor and events that are polled for
        self._ready: dict[int, Callable[[int], None]] = {
            1: lambda _: self._has_room(1),
            2: lambda _: self._has_room(2),
        }
        self.on_room: Callable[[], None] = lambda: None
        self._watch()

    @property
    def pending(self) -> int:
        """Bytes that wait in front of the descriptors."""
        return sum(output.pending for output in self._outputs.values())

    @property
    def queued(self) -> int:
        """Outputs of jobs that wait, too."""
        return len(self._queue) + len(self._unwritten)

    def put(self, stream: int, data: bytes) -> None:
        if data:
            self._put[stream] += len(data)
            self._outputs[stream].put(data)
            self._write(stream)

    def queue(self, chunks: Chunks, done: Callable[[], None]) -> None:
        """Have an output written behind those that were queued before; `done` is called when the kernel has it."""
        self._queue.append((chunks, done))

    def pump(self) -> None:
        """Write what can be written now."""
        while self._queue and self.pending < MOST:
            chunks, done = self._queue[0]
            for stream, data in chunks:
                self.put(stream, data)
                if self.pending >= MOST:
                    break
            else:
                self._queue.popleft()
                self._unwritten.append((dict(self._put), done))
        while self._unwritten and self._written(self._unwritten[0][0]):
            self._unwritten.popleft()[1]()
        self._watch()

    def _written(self, put: dict[int, int]) -> bool:
        """Whether the kernel has taken the first so many bytes; a stream that takes no more is not waited for."""
        return all(
            output.taken >= put[stream] or not output.pending for stream, output in self._outputs.items()
        )

    def _write(self, stream: int) -> None:
        """Raises BrokenPipeError if the reader has gone, and OSError if it cannot be written."""
        output = self._outputs[stream]
        if output.write():
            return
        self._unwatch(stream)
        name = "stdout" if stream == 1 else "stderr"
        if output.error:
            raise OSError(0, output.error, name)
        if stream == 1:
            raise BrokenPipeError(32, "Broken pipe", name)

    def _watch(self) -> None:
        for stream, output in self._outputs.items():
            events = select.POLLOUT if output.pending else 0
            wanted = (output.poll_fd, events)
            if self._events.get(stream) == wanted:
                continue
            self._unwatch(stream)
            if output.poll_fd >= 0:
                self._batch.watch(output.poll_fd, events, self._ready[stream])
                self._events[stream] = wanted

    def _unwatch(self, stream: int) -> None:
        if found := self._events.pop(stream, None):
            self._batch.unwatch(found[0])

    def _has_room(self, stream: int) -> None:
        self._write(stream)
        self.on_room()

    def close(self) -> None:
        for stream, output in self._outputs.items():
            self._unwatch(stream)
            output.close()
