"""Outputs of jobs on their way to stdout and stderr: grouped, in the order of the items, by lines, tagged, as JSON.

Laws
1. Grouped (the default): an output is passed on as a whole, after the end of its job. By lines: each line at once.
2. The output of a try that is followed by another one is not shown, unless it was passed on by lines already.
3. A consumer that does not read slows the jobs down: no more are started, and by lines those that run are stopped.
"""

from __future__ import annotations

import os

from quine.base.errors import LOST, Failure
from quine.fanout.output.spool import Spool
from quine.fanout.output.streams import MOST
from quine.fanout.output.tags import tagged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quine.fanout.output.streams import Chunks, Streams
    from transport.client.batch import BatchJob

QUEUED = 64  # outputs that wait to be written before no more jobs are started
# Where so many wait for their turn (-k) no more items are read; those that run, or were read already, may be added.
HELD = 50_000  # outputs, and items that --resume leaves out,
HELD_BYTES = 64 << 20  # bytes of them in memory,
HELD_FILES = 256  # and outputs in files
STREAMS = ("stdout", "stderr")  # file names of errors that end the batch at once


def unkept(error: OSError) -> Failure:
    why = (error.strerror or str(error)).lower()
    return Failure(LOST, f"an output cannot be kept in a temporary file: {why}")


class Sink:
    """The way to the streams."""

    def __init__(self, streams: Streams, ordered: bool) -> None:
        self._streams = streams
        self._ordered = ordered
        self._next = 1  # number of the item whose turn it is
        self._held: dict[int, Callable[[], None]] = {}
        self._held_bytes = self._held_files = 0
        # of jobs that wait until there is room, or until the line of another one has its end
        self.stopped: dict[Output, None] = {}
        self._writer: Output | None = None  # in the middle of a line that is passed on in pieces
        self._behind: list[Callable[[], None]] = []  # calls that pass on more, once that line has its end
        self._error: Exception | None = None
        self.kept = 0  # outputs of items that have their ends, and were not passed on as a whole
        streams.on_room = self.pump
        streams.on_error = self.fail

    @property
    def clogged(self) -> bool:
        """Whether no more jobs should be started for now: the consumer is slow."""
        return self._streams.queued >= QUEUED or self._streams.pending >= MOST

    @property
    def holding(self) -> bool:
        """Whether no more items should be read for now: too much waits for an item before it (-k)."""
        return len(self._held) >= HELD or self._held_bytes >= HELD_BYTES or self._held_files >= HELD_FILES

    @property
    def idle(self) -> bool:
        return not (self._streams.queued or self._streams.pending or self._held or self._behind)

    def put(self, stream: int, data: bytes) -> None:
        try:
            self._streams.put(stream, data)
        except OSError as error:
            self.fail(error)

    def say(self, text: str) -> None:
        """Pass on a message of this process; that it cannot be read is no fault of the batch."""
        self._streams.tell(text.encode("utf-8", "replace"))

    def stop(self) -> None:
        """Pass on no more outputs: those of items whose ends cannot be recorded would come again."""
        self._streams.stop()

    def counted(self, done: Callable[[], None], outputs: int = 1) -> Callable[[], None]:
        """Return a function for `done`; until it is called, so many outputs of items are `kept`."""
        self.kept += outputs

        def passed_on() -> None:
            self.kept -= outputs
            done()

        return passed_on

    def put_last(self, chunks: Chunks, outputs: int) -> None:
        """Pass on a text that stands for so many outputs, behind all others."""
        self._streams.queue(chunks, self.counted(lambda: None, outputs))
        self.pump()

    def when_written(self, call: Callable[[], None]) -> None:
        """Call a function once all that was put is written."""
        self._streams.queue(iter(()), call)

    @property
    def full(self) -> bool:
        return self._streams.pending >= MOST

    # -- lines that are passed on in pieces --------------------------------------------------------

    def stops(self, output: Output) -> bool:
        """Whether no line of this one can be passed on now."""
        return self.full or self._writer not in (None, output)

    @property
    def in_line(self) -> bool:
        """Whether the lines of all jobs but one wait for the end of a line."""
        return self._writer is not None

    def begin_line(self, output: Output) -> None:
        """A piece was passed on that does not end its line: nothing of others comes before the rest."""
        self._writer = output

    def end_line(self, output: Output) -> None:
        """The line has its end."""
        if self._writer is output:
            self._writer = None
            behind, self._behind = self._behind, []
            for call in behind:
                call()

    def between_lines(self, output: Output, call: Callable[[], None]) -> None:
        """Call a function now, or once the line of another job has its end."""
        if self._writer in (None, output):
            call()
        else:
            self._behind.append(call)

    # ----------------------------------------------------------------------------------------------

    def close(self, number: int, chunks: Chunks, spool: Spool, done: Callable[[], None]) -> None:
        """Pass on the output of an item that has its end, when it is its turn; then call `done`."""
        if not self._ordered:
            self._streams.queue(chunks, done)
        else:
            size, files = spool.in_memory, int(spool.has_file)
            self._held_bytes += size
            self._held_files += files

            def turn() -> None:
                self._held_bytes -= size
                self._held_files -= files
                self._streams.queue(chunks, done)

            self._held[number] = turn
            self._advance()
        self.pump()

    def skip(self, number: int) -> None:
        """An item has no output."""
        if self._ordered:
            self._held[number] = lambda: None
            self._advance()

    def _advance(self) -> None:
        while turn := self._held.pop(self._next, None):
            self._next += 1
            turn()

    def give_up_order(self) -> None:
        """Nothing more will come: those whose turn has not come, because an item before has no end, come now."""
        for number in sorted(self._held):
            self._held.pop(number)()
        self.pump()

    def fail(self, error: Exception) -> None:
        """Output cannot be kept or passed on.

        Nothing is raised to a batch in its turn: it would drop what else has come with the same bytes.
        """
        self._error = self._error or error

    def check(self) -> None:
        """Raise the error of an output that could not be kept or passed on, once."""
        if self._error:
            error, self._error = self._error, None
            raise error

    def pump(self) -> None:
        """Pass on what can be passed on now."""
        try:
            self._streams.pump()
        except Failure as failure:
            self.fail(failure)
        except OSError as error:
            self.fail(error if error.filename in STREAMS else unkept(error))
        # One that goes on may end the line for which those before it wait. A full sink looks through none of them.
        while not self.full and (ready := [output for output in self.stopped if not self.stops(output)]):
            for output in ready:
                if not self.stops(output):
                    del self.stopped[output]
                    output.go_on()


class Output:
    """The output of one try, passed on after its end. `size` counts the bytes of both streams."""

    def __init__(self, sink: Sink, number: int, tag: bytes | None) -> None:
        self._sink = sink
        self._number = number
        self._tag = tag
        self._spool = Spool()
        self.size = 0
        self.got = [0, 0, 0]  # of each stream
        # Bytes that the process before has passed on; None: not known yet.
        self._origin: list[int] | None = [0, 0, 0]
        self.job: BatchJob | None = None
        self.copies: dict[int, int] = {}  # descriptors of --results
        self.place = ""  # and where they are
        self.broken = False  # it is not whole, which the end of the batch tells of

    def write(self, stream: int, data: memoryview) -> int | None:
        """Take bytes of the job; return how many, None for all."""
        if self.broken:
            return None  # behind a gap they would be read as if they followed
        try:
            return self.take(stream, data)
        except Failure as failure:
            self._refuse(failure)
        except OSError as error:
            self._refuse(unkept(error))
        return 0

    def _refuse(self, failure: Failure) -> None:
        """The output is not whole: the job does not count as done, and the batch ends."""
        self.broken = True
        self._sink.fail(failure)
        if self.job:
            for stream in (1, 2):
                self.job.refuse(stream, "its output could not be kept")

    def take(self, stream: int, data: memoryview) -> int | None:
        self.copy(stream, data)
        self._spool.write(stream, data)
        self.acknowledge(1)
        self.acknowledge(2)
        return None

    def acknowledge(self, stream: int) -> None:
        """Have the bytes acknowledged that the next process finds; those in memory stay owed to it."""
        if self._spool.path and self._spool.has_file and self.job and self._origin:
            self.job.persisted(stream, self._origin[stream] + self._spool.sizes[stream])

    def shorten(self, most: int) -> None:
        """It is shown as a value: keep so many bytes of each stream, 0 = all."""
        self._spool.most = most

    def persist(self, path: str) -> None:
        """Keep what does not fit into memory in a file that the next process finds."""
        self._spool.path = path

    def restore(self, by_lines: bool) -> list[int]:
        """Take over what the process before has kept; return the bytes of each stream, [] if they are not known.

        `by_lines`: it has passed on all that does not come again, unless there is a file.
        """
        if by_lines and not os.path.exists(self._spool.path):
            self._origin = None
            return []
        for stream, data in self._spool.restore():
            self.take_over(stream, data)
        return self.got

    def take_over(self, stream: int, data: bytes) -> None:
        """Take a piece that the process before has kept, and which is kept further on."""
        self.copy(stream, memoryview(data))

    @property
    def awaits_reader(self) -> bool:
        """Whether the end of its job comes behind bytes that nobody reads here."""
        return False

    def go_on_at(self, base: list[int]) -> bool:
        """The job comes from these bytes of each stream on: cut off the copies behind what does not come again.

        Return False if bytes before are not there any more.
        """
        if self._origin is not None:
            return True
        self._origin, whole = list(base), True
        try:
            for stream, fd in self.copies.items():
                size = os.fstat(fd).st_size
                whole = whole and size >= base[stream]
                at = min(size, base[stream])  # an offset of a host makes no file longer
                os.ftruncate(fd, at)
                os.lseek(fd, at, os.SEEK_SET)
        except OSError as error:
            self._refuse(Failure(LOST, f"{self.place}: {(error.strerror or str(error)).lower()}"))
        return whole

    def go_on(self) -> None:
        """There is room again, for one whose job was stopped."""

    def go_over(self) -> list[int]:
        """The job comes over another channel; return the bytes of each stream that are here."""
        return [before + got for before, got in zip(self._origin or (), self.got)]

    def forget(self) -> None:
        """It was passed on, and that is on record."""
        self._spool.forget()

    def copy(self, stream: int, data: memoryview) -> None:
        self.size += len(data)
        self.got[stream] += len(data)
        if self.copies:
            from transport.writes import write_all

            try:
                write_all(self.copies[stream], data)
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                raise Failure(LOST, f"{self.place}: {why}") from None

    def begin_copies(self) -> None:
        """The copies are of this try from now on: nothing of the one before stays in them."""
        try:
            for fd in self.copies.values():
                os.ftruncate(fd, 0)
        except OSError as error:
            self._refuse(Failure(LOST, f"{self.place}: {(error.strerror or str(error)).lower()}"))

    def drop(self) -> None:
        """The item is tried again, so this is not shown."""
        self._spool.drop()
        self.end_copies()

    def leave(self) -> None:
        """The item has its end in the next run of the batch, which finds the bytes that are on the disk."""
        self._spool.leave()
        self.end_copies()

    def end_copies(self) -> None:
        for fd in self.copies.values():
            os.close(fd)
        self.copies = {}

    def close(
        self,
        done: Callable[[], None],
        instead: Callable[[Spool], Iterable[bytes]] | None = None,
        whole: bool = True,
    ) -> None:
        """The item has its end. `instead` makes the text that stands for the output. Not `whole`: stderr alone."""
        self.end_copies()
        chunks = self._other(instead) if instead else self._spool.chunks()
        if not whole and not instead:
            chunks = ((stream, data) for stream, data in chunks if stream == 2)
        if self._tag is not None and not instead:
            chunks = tagged(chunks, self._tag)
        self._sink.close(self._number, chunks, self._spool, done)

    def _other(self, make: Callable[[Spool], Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        """The text that stands for the output, made when it is its turn."""
        try:
            for piece in make(self._spool):
                yield 1, piece
        finally:
            self._spool.leave()
