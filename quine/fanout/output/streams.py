"""stdout and stderr of the verb: a queue in front of each, written without blocking, in the poll of the batch."""

from __future__ import annotations

import os
import select

from transport.client.output import Output
from transport.lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transport.client.batch import Batch

    Chunks = Iterator[tuple[int, bytes]]

NEXT = "\n"
STDERR = "stderr"  # the file name of an error of it
MOST = 256 << 10  # bytes that wait in front of a descriptor before more is read from a spool


class Streams:
    """Whole outputs of jobs one behind the other (`queue`), or pieces at once (`put`)."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.terminal = os.isatty(2) and os.environ.get("TERM", "dumb") not in (
            "",
            "dumb",
        )  # a view can be painted on it
        stderr = Output(2)
        # On one terminal both are one queue, since a view must be erased before either of them goes on.
        self._alike = self.terminal and os.isatty(1) and os.fstat(1).st_rdev == os.fstat(2).st_rdev
        self._outputs = {1: stderr if self._alike else Output(1), 2: stderr}
        self._error: OSError | None = None  # of stderr, in the first output that is queued
        self._gone = False  # the reader of stdout, after it got all so far
        self.painted = False
        self._view = b""
        self._at_line = True  # the terminal's last line is empty
        self._queue: deque[tuple[Chunks, Callable[[], None]]] = deque()
        self._begun = False  # a part of the first one was put
        self._stopped = False
        self._put = {1: 0, 2: 0}  # bytes in all
        self._owed = {1: 0, 2: 0}  # and those up to the end of the last output of a job
        self._unwritten: deque[tuple[dict[int, int], Callable[[], None]]] = (
            deque()
        )  # done when so much is written
        self._events: dict[int, tuple[int, int]] = {}  # stream -> descriptor and events that are polled for
        self._ready: dict[int, Callable[[int], None]] = {
            1: lambda _: self._has_room(1),
            2: lambda _: self._has_room(2),
        }
        self.on_room: Callable[[], None] = lambda: None
        self.on_error: Callable[[Exception], None] = lambda error: None  # found in a turn of the batch
        self._watch()

    @property
    def pending(self) -> int:
        """Bytes that wait in front of the descriptors."""
        return sum(output.pending for output in set(self._outputs.values()))

    @property
    def queued(self) -> int:
        """Outputs of jobs that wait, too."""
        return len(self._queue) + len(self._unwritten)

    def tell(self, text: bytes) -> None:
        """Print what is no output of a job: on a stderr that cannot be written nobody misses it."""
        try:
            self.put(2, text, owed=False)
        except OSError as error:
            self.on_error(error)  # of an output before it

    def put(self, stream: int, data: bytes, owed: bool = True) -> None:
        if not data:
            return
        if self.terminal and (stream == 2 or self._alike):
            if self.painted:
                self._erase()
            self._at_line = data.endswith(b"\n")
        self._pass_on(stream, data, owed)

    def _pass_on(self, stream: int, data: bytes, owed: bool = False) -> None:
        for each in (1, 2) if self._alike else (stream,):
            self._put[each] += len(data)
            if owed:
                self._owed[each] = self._put[each]
        self._outputs[stream].put(data)
        self._write(stream)

    # -- a view on the terminal --------------------------------------------------------------------

    def paint(self, lines: list[str]) -> None:
        """Show lines below all output; `repaint` shows them again after more of it has erased them.

        The cursor stays at the first of them, so that any text of another process overwrites them, and not the reverse.
        """
        back = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        self._view = f"\x1b[J{NEXT.join(lines)}\r{back}".encode()
        self.repaint()

    def repaint(self) -> None:
        """Nothing is shown in front of output for the terminal that waits, nor by a process in the background."""
        waits = self._outputs[2].pending or (self._alike and self._queue)
        if not self._view or waits or not self._in_foreground():
            return
        begin = b"\r" if self._at_line or self.painted else b"\n"
        self._at_line = self.painted = True
        self._pass_on(2, begin + self._view)

    def hide(self) -> None:
        """Erase the view, since this process is about to be stopped."""
        if self.painted:
            self._erase()

    def resume(self) -> None:
        """The terminal was the shell's meanwhile, which leaves its cursor at the beginning of a line."""
        self.painted, self._at_line = False, True

    def _erase(self) -> None:
        self.painted = False
        self._pass_on(2, b"\r\x1b[J")

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(2) == os.getpgrp()
        except OSError:
            return False

    # ----------------------------------------------------------------------------------------------

    def queue(self, chunks: Chunks, done: Callable[[], None]) -> None:
        """Have an output written behind those that were queued before; `done` is called when the kernel has it."""
        if not self._stopped:
            self._queue.append((chunks, done))

    def stop(self) -> None:
        """Pass on no output more than the one that was begun."""
        self._stopped = True
        while len(self._queue) > self._begun:
            self._queue.pop()

    def pump(self) -> None:
        """Write what can be written now. Those before one that cannot be written are done all the same."""
        try:
            self._put_queued()
        finally:
            self._end_unwritten()
        self._watch()

    def _end_unwritten(self) -> None:
        """Nothing waits for bytes that a stream has lost, and their output was not passed on."""
        while self._unwritten:
            owed, done = self._unwritten[0]
            short = [output for stream, output in self._outputs.items() if output.taken < owed[stream]]
            if any(output.pending for output in short):
                return
            self._unwritten.popleft()
            # That nobody reads stderr is no loss.
            if all(output is self._outputs[2] and not output.error for output in short):
                done()

    def _put_queued(self) -> None:
        while self._queue and self.pending < MOST:
            chunks, done = self._queue[0]
            try:
                for stream, data in chunks:
                    self._begun = True
                    self._put_of_head(stream, data)
                    if self.pending >= MOST:
                        break
                else:
                    self._raise_of_head()
                    self._queue.popleft()
                    self._begun = False
                    self._unwritten.append((dict(self._owed), done))
            except BaseException:
                self._queue.popleft()  # it was not passed on: its item gets no line in the log
                self._begun = False
                self._error = None
                raise

    def _put_of_head(self, stream: int, data: bytes) -> None:
        """Put a piece of the first output. A stderr that cannot be written keeps nothing back of stdout."""
        try:
            self.put(stream, data)
        except OSError as error:
            if error.filename != STDERR:
                raise
            self._error = error

    def _raise_of_head(self) -> None:
        if self._error:
            raise self._error

    def _write(self, stream: int) -> None:
        """Raises BrokenPipeError if the reader of stdout has gone, and OSError if a job's output cannot be written.

        If the reader went after it got all, the next turn of the batch finds that out. A batch that is over ends well.
        """
        output = self._outputs[stream]
        if output.write():
            return
        self._unwatch(2 if self._alike else stream)
        name = "stdout" if stream == 1 else STDERR
        if output.error and (stream == 1 or output.taken < self._owed[stream]):
            raise OSError(0, output.error, name)
        if stream == 1:
            if self._gone or output.taken < self._owed[1]:
                raise BrokenPipeError(32, "Broken pipe", name)
            self._gone = True

    def _watch(self) -> None:
        for stream, output in self._each():
            events = select.POLLOUT if output.pending else 0
            wanted = (stream if stream == 1 and self._gone else output.poll_fd, events)
            if self._events.get(stream) == wanted:
                continue
            self._unwatch(stream)
            if wanted[0] >= 0:
                self._batch.watch(*wanted, self._ready[stream])
                self._events[stream] = wanted

    def _unwatch(self, stream: int) -> None:
        if found := self._events.pop(stream, None):
            self._batch.unwatch(found[0])

    def _has_room(self, stream: int) -> None:
        try:
            self._write(stream)
        except OSError as error:
            self.on_error(error)
            return
        self.on_room()

    def _each(self) -> list[tuple[int, Output]]:
        """The queues, each once."""
        return [
            (stream, output) for stream, output in self._outputs.items() if stream == 2 or not self._alike
        ]

    def close(self) -> None:
        if self.painted:
            try:
                self._erase()
            except OSError:
                pass  # the terminal has gone
        for stream, output in self._each():
            self._unwatch(stream)
            output.close()
