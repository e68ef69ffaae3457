"""One job of a batch: the functions of its caller, its stdin, and the ways in which it is ended early.

Laws
1. The functions are called from `Batch.turn` alone, never from a call of their caller. They may call everything here.
2. Stdin is the job's own. It is read as far as the job has room and, unless it is bytes, not before the job runs.
3. Bytes of output that the caller has not taken are its own to keep: they are acknowledged once it says `consumed`.
"""

from __future__ import annotations

from transport.client.job_core import JobCore
from transport.client.time_limits import ANSWER
from transport.lean import signal
from transport.status import LOST, NOT_STARTED, Status, signal_name
from transport.wire.numbers import SECONDS, number, whole
from transport.wire.session import GOES_ON, STDIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from transport.client.time_limits import TimeLimits
    from transport.rpc.services import Service
    from transport.spawn import Spawn

    class Owner(Protocol):
        """`transport.client.batch_core.BatchCore`."""

        log: str
        now: float
        limits: TimeLimits

        def started(self, job: BatchJob) -> None: ...
        def look_at(self, job: BatchJob) -> None: ...
        def feed_later(self, job: BatchJob) -> None: ...
        def room(self, job: BatchJob, count: int, seen: int) -> None: ...

    # Called with the number of bytes that there is room for. b"": the end; None: nothing now, until `BatchJob.more`;
    # OSError: no more of it can be read.
    Input = Callable[[int], bytes | None]

MOST_BYTES = (1 << 62) - 1  # of a stream
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)


class BatchJob(JobCore):
    """One job. `spawn`, `pid`, `host`, `over` and `status` are for its caller to read.

    on_started  called with its pid and the name of its host
    on_output   called with the stream (1 or 2) and its next bytes. Returns how many of them it has taken, None for all
    on_note     called with each note of the node about the job's host or slot
    on_exit     called with the Status, after the last byte of output was taken; nothing is called after it
    on_send     called with True before it is sent: if that returns False it ends as never started; and with False after
                its node gave it back, so that it waits here again
    """

    __slots__ = (
        *("_at", "_batch", "base", "full", "hungry", "on", "seconds", "services", "severed", "stdin", "told"),
        *("by_credit", "overdue", "place", "queue", "slotless", "withdrawn"),
    )

    def __init__(
        self,
        batch: Owner,
        spawn: Spawn,
        stdin: bytes | Input,
        on: Functions,
        services: Mapping[str, Service],
    ) -> None:
        self._batch = batch
        self.slotless = spawn.adopt or spawn.context.get("control") is True  # its node never gives it back
        # the name of the one that it waits in, whatever its caller does with the spawn
        self.queue = f"{spawn.where}\0" if self.slotless else spawn.where
        self.stdin = stdin
        self.on = on
        self.services = services
        self.hungry = False  # it waits for its turn to send stdin
        self.full = False  # its node has answered that no slot is free
        self.told = False  # its end is known to the batch
        self.withdrawn = False  # it was ended before its start was heard of
        self.overdue = False  # its host did not end it in time
        self.severed = False  # its node has ended, and it may go on at its host
        self.place = 0  # among the jobs of its batch
        self.by_credit = False  # it was sent though its queue was full
        self._at = 0  # bytes of stdin that were sent
        # Of one that was adopted: bytes of its streams that were acknowledged, or sent, before; its age at that time.
        self.base = [0, 0, 0]
        self.seconds = 0.0
        super().__init__(spawn, eager=isinstance(stdin, bytes) and not spawn.adopt, log=batch.log)

    def again(self) -> None:
        """It was not started: back to the state before it was sent."""
        self.full = False
        self._at = 0
        held = self._held
        super().__init__(
            self.spawn, eager=isinstance(self.stdin, bytes) and not self.spawn.adopt, log=self.log
        )
        self._held = held

    # -- for its caller ----------------------------------------------------------------------------

    def consumed(self, stream: int, count: int) -> None:
        """The caller has taken `count` more bytes of those that `on_output` left to it."""
        if not self.over:
            self._take(stream, count)
            self._batch.look_at(self)

    def refuse(self, stream: int, error: str = "") -> None:
        """The caller takes no more of a stream: the job gets SIGPIPE. With an `error` a success becomes lost."""
        if not self.over and self.number:
            self.took(stream, self._taken[stream], self._batch.now, alive=False, error=error)
            self._batch.look_at(self)

    def hold(self) -> None:
        """From now on bytes that were taken are not acknowledged, so that they come again if this process dies."""
        self._held = True

    def persisted(self, stream: int, size: int, at_once: bool = False) -> None:
        """So many bytes of a stream will be found again after a death of this process.

        `at_once`: its node hears of it now, not only when so many came that it is worth a frame.
        """
        if self.number and self.number in self.session.channels:  # one that was not sent has no session
            taken = min(size - self.base[stream], self._given[stream])
            if not at_once:
                self.session.took(self.number, stream, taken)
            elif taken > self.session.flow(self.number, stream).acked:
                self.session.ack(self.number, stream, taken)

    def forget(self) -> None:
        """The end of a job that is kept (`Spawn.keep`) is on record here: its node needs to keep it no longer."""
        if not (self.spawn.keep and self.over and self.number) or self.severed:
            return  # one without a number was never sent, and has no session
        if self.number in self.session.channels:
            self.session.last_word(self.number)

    def more(self) -> None:
        """The function that gives stdin has bytes again."""
        self._batch.feed_later(self)

    def signal(self, number: int) -> None:
        """Send a signal. A job that has not started is ended by one that would end it, and ignores the others.

        One that was not even sent was never started.

        One that is kept and was sent may have started, and ended: its host withdraws it or passes on the signal, and
        its end is awaited.
        """
        if self.over:
            return
        if self.pid:
            super().signal(number)
        elif number in ENDING and self.number and self.spawn.keep:
            self._take_back()
            super().signal(number)
        elif number in ENDING and not self.number:
            self.abandon()
        elif number in ENDING:
            super().abandon()
            self._leave(Status("signaled", 128 + number, signal_name(number)))

    def withdraw(self) -> None:
        """Have it not begin, if it has not. It ends as never started then."""
        if self.over or self.pid:
            return
        if self.number:
            self._take_back()
        else:
            self.withdrawn = True
            self._leave(Status("unreachable", NOT_STARTED))  # as its caller wants

    def _take_back(self) -> None:
        """Ask for it, sent as it is: a host at which it has not begun gives it back."""
        if not (self.withdrawn or self.spawn.adopt):
            self.take_back()
        self.withdrawn = True

    def abandon(self) -> None:
        """Wait no longer: its node ends it. Its status is lost if it was sent, else it was never started."""
        if self.over:
            return
        super().abandon()
        if self.pid:
            detail = f"not waited for any longer; pid {self.pid} over there is being ended"
            self._leave(Status("lost", LOST, host=self.host, pid=self.pid, detail=detail))
        elif self.number:
            detail = "not waited for any longer; whether it was started is not known"
            self._leave(Status("lost", LOST, detail=detail))
        else:
            self._leave(Status("unreachable", NOT_STARTED, detail="withdrawn before it was sent"))

    def limit(self, seconds: float = ANSWER, heard: Callable[[], object] | None = None) -> None:
        """Have it abandoned if its host takes longer than this, as `time_limits.py` says."""
        self._batch.limits.add(self, seconds, heard, self._batch.now)

    def expire(self, seconds: float) -> None:
        """Its time is over."""
        self.overdue = True
        self.abandon()
        if self.status:
            self.status.detail = f"its host was silent for {seconds:g} s; {self.status.detail}"

    def go_on(self) -> None:
        """Leave it to the next process that adopts it (`Spawn.keep`): none of its functions is called any more."""
        if self.over:
            return
        if self.number and self.number in self.session.channels:
            self.session.abandon(self.number, GOES_ON)
        self._leave(None)

    def _leave(self, status: Status | None) -> None:
        self.end(status)
        self._batch.look_at(self)

    # -- from the node -----------------------------------------------------------------------------

    def on_output(self, stream: int, data: bytes) -> None:
        taken = self.on.output(stream, memoryview(data)) if self.on.output else None
        if taken != 0 and not self.over:
            self._take(stream, len(data) if taken is None else taken)

    def _take(self, stream: int, count: int) -> None:
        taken = self._taken[stream] + count
        if not 0 <= count <= self._given[stream] - self._taken[stream]:
            raise ValueError(f"{count} bytes taken of {self._given[stream] - self._taken[stream]}")
        self.took(stream, taken, self._batch.now)

    def on_kept(self, facts: object) -> None:
        """It was adopted; `facts` say from where on its streams come.

        They are words of its host: where they are malformed this job is lost, and the connection to the node goes on.
        """
        try:
            told: dict[str, Any] = facts if isinstance(facts, dict) else {}
            stdin, stdout, stderr = told["base"]
            base = [whole(at, MOST_BYTES) for at in (stdin, stdout, stderr)]
            seconds = number(told.get("seconds"), SECONDS)
        except (ValueError, TypeError, KeyError):
            super().abandon()
            detail = f"its host has told no facts about it that can be used; pid {self.pid} over there is being ended"
            self._leave(Status("lost", LOST, host=self.host, pid=self.pid, detail=detail))
            return
        self.base, self.seconds = base, seconds
        self._at = base[STDIN]
        if told.get("input") is not True:
            self.stdin_open = False

    def on_started(self) -> None:
        self._batch.started(self)
        if self.on.started:
            self.on.started(self.pid, self.host)

    def on_note(self, body: dict[str, Any]) -> None:
        room = body.get("room")
        if type(room) is int and room > 0:
            seen = body.get("seen")
            self._batch.room(self, room, seen if type(seen) is int else self.number)
        elif body.get("full") is True:
            self.full = True
        elif self.on.note:
            self.on.note(body)

    def on_stdin_unread(self) -> None:
        self.stdin_open = False
        self.release()

    # -- stdin -------------------------------------------------------------------------------------

    def send_stdin(self, now: float) -> bool:
        """Send one chunk, as far as there is room. Return whether there may be more at once."""
        room = self.room
        if not room:
            return False  # its start or an acknowledgement makes room
        source = self.stdin
        if isinstance(source, bytes):
            data: bytes | None = source[self._at : self._at + room]
            self._at += room
            last = self._at >= len(source)
        else:
            try:
                data = source(room)
            except OSError as error:
                self.unread(error.strerror or "failed", now, error.filename or "stdin")
                return False
            last = data == b""
        if data:
            self.typed(data, now)
        if last:
            self.typed(b"", now)
        return bool(data) and not last

    def release(self) -> None:
        """Stdin is not read any more."""
        close = getattr(self.stdin, "close", None)
        self.stdin = b""
        if close:
            close()


class Functions:
    """The functions of a caller that are called about one job."""

    __slots__ = ("exit", "note", "output", "send", "started")

    def __init__(
        self,
        started: Callable[[int, str], None] | None,
        output: Callable[[int, memoryview], int | None] | None,
        note: Callable[[dict[str, Any]], None] | None,
        exit: Callable[[Status], None] | None,
        send: Callable[[bool], bool] | None = None,
    ) -> None:
        self.started = started
        self.output = output
        self.note = note
        self.exit = exit
        self.send = send
