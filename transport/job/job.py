"""A job: one child process behind a channel of a link.

Laws
1. The streams end when their pipes do. The exit record follows the status of the process and the end of both
   streams. So a record that says `exited` stands behind all of the output. A job whose lease is over is lost, and so
   is one whose output was cut.
2. A job whose link is down lives for its lease; a job that nobody waits for is ended at once: TERM, a
   pause, KILL, to everything it started.
3. The exit record says whether the job's folder is kept because of files in it; it waits LEAVING seconds to know that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping

from transport.errors import ProtocolError
from transport.job.order import order_of
from transport.job.pump import Sink, Source
from transport.launcher.termination import WOKEN_BY
from transport.spawn import Spawn
from transport.status import DENIED, LOST, NOT_STARTED, Status, signal_number
from transport.wire.frames import LIFE, Frame, Kind
from transport.wire.session import STDERR, STDIN, STDOUT
from transport.wire.states import Asker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.job.interface import Asked, Launcher, Link, Order, Running

log = logging.getLogger("quine.job")

LEAVING = 1.0  # seconds that an exit record waits to know whether the folder of its job is kept
HELD_GRACE = 1.0  # seconds that a grandchild may hold a stream open after the job's own end


class Job:
    """Handler of a channel that a peer opened with spawn."""

    def __init__(
        self,
        link: Link,
        number: int,
        spawn: Spawn,
        environ: Mapping[str, str],
        socket_path: str,
        on_end: Callable[[Job], None],
        launcher: Launcher,
    ) -> None:
        self.link: Link | None = link
        self.remote = link.remote  # it came from another machine
        self.number = number
        self.spawn = spawn
        self.token = os.urandom(16).hex()
        self._level = logging.DEBUG if spawn.template else logging.INFO  # a million lines tell nothing
        self.ended = False
        self._environ = environ
        self._on_end = on_end
        self._socket_path = socket_path
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._lease: asyncio.TimerHandle | None = None  # runs while the link is down
        self._expired = False  # its lease is over
        self._failed = False  # it was started, and its streams could not be carried
        self.orphan = False  # it is being ended: its requests cannot be answered any more
        self.asking: dict[Asked, None] = {}  # its requests and spawns to the origin that are under way
        self.asker = Asker()
        self._launcher = launcher
        self._order: Order | None = None  # from `start` on
        self._status: Status | None = None  # how the process ended, until that is said
        self._running: Running | None = None  # while it is to start, or runs
        self._folder = ""  # made for it; as the inventory spells it
        self._leaving: asyncio.TimerHandle | None = None  # runs until it is known whether the folder is kept
        self._early: list[Frame] = []  # frames that wait for its start, or for its last signal to be sent
        self._sources: list[Source] = []
        self._sink: Sink | None = None
        self._held: list[int] = []  # near ends of its streams that have no source or sink
        self._signals = 0
        self._unsent = False  # signals that the launcher has still to send

    @property
    def pid(self) -> int:
        return self._running.pid if self._running else 0

    def status(self) -> dict[str, object]:
        """Facts about the job, for display."""
        link = self.link
        return {
            **self.spawn.facts(),
            "pid": self.pid,
            "ended": self.ended,
            "remote": self.remote,
            "seconds": round(self._loop.time() - self._since, 3),
            "down": round(self._loop.time() - link.down_since, 3) if link and link.down else 0,
        }

    # -- start -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; an error becomes the exit record."""
        try:
            memo = {"socket": self._socket_path, "token": self.token, "capability": self.spawn.capability}
            self._order, self._folder = order_of(self.spawn, self._environ if self.remote else None, memo)
        except ProtocolError as error:
            self.refuse(str(error))
            self._finish()
            return
        except Exception:
            # A defect with one job must not end the link that carries all the others.
            log.exception("defect while starting a job")
            detail = "a defect in quine while starting it; see the node's log"
            self.on_not_started(Status("unreachable", NOT_STARTED, detail=detail))
            return
        self._running = self._launcher.start(self._order, self)

    def refuse(self, detail: str) -> None:
        """Instead of `start`: a rule forbids the job."""
        self._tell_exit(Status("denied", DENIED, detail=detail))

    # -- from the launcher -------------------------------------------------------------------------

    def on_not_started(self, status: Status) -> None:
        self._running = None
        self._tell_exit(status)
        self._finish()

    def on_started(self) -> None:
        running = self._running
        assert running
        # Held open until its end: a closed stdin would look like complete, empty input.
        self._held = fds = [running.stdin, running.stdout, running.stderr]
        if self.link is None:
            if self.spawn.terminal:
                self._hang_up()
            return  # it is being ended
        try:
            log.log(self._level, "job %s: started as pid %d for %s", self.spawn.id, self.pid, self.link.name)
            self.link.session.tell(self.number, Kind.ATTACH, {"id": self.spawn.id, "pid": running.pid})
            at_end = self._at_end
            if at_end:
                os.close(fds[0])
                self._early.pop(0)
            else:
                self._sink = Sink(self.link, self.number, fds[0])
            fds.pop(0)
            for stream in (STDOUT, STDERR):
                self._sources.append(Source(self.link, self.number, stream, fds[0], self._stream_ended))
                fds.pop(0)
            for source in self._sources:
                source.begin(tries=2 if at_end else 0)  # it may have ended by now
        except Exception:
            # It runs, but cannot be followed: it is ended, and reported as lost.
            log.exception("job %s: defect after its start", self.spawn.id)
            self._failed = True
            for source in self._sources:
                source.discard()
            self.end("its streams cannot be carried")
            return
        if self.orphan and self.spawn.terminal:
            self._hang_up()
        self._take_early()
        self.link.wake()

    @property
    def _at_end(self) -> bool:
        """Whether its stdin was at its end, without a byte, as it started."""
        early = self._early[:1] if not self.spawn.terminal else []
        return any(frame.kind == Kind.EOF and frame.stream == STDIN for frame in early)

    def _take_early(self) -> None:
        early, self._early = self._early, []
        for frame in early:
            self.on_frame(frame)

    def answered(self, relay: Asked) -> None:
        """A request of this job is over."""
        self.asking.pop(relay, None)

    # -- from the link -----------------------------------------------------------------------------

    def on_frame(self, frame: Frame) -> None:
        if frame.stream == LIFE and frame.kind == Kind.STOP:
            self._detach()
            self.end("nobody waits for it any more")
        elif self._running and not self._running.pid:
            self._early.append(frame)
            if self._order and self._at_end:
                self._order.hurry = False  # its opener waits for its end alone
        elif self._unsent and self._running and frame.kind in (Kind.DATA, Kind.EOF, Kind.STOP):
            # A `cat` that is interrupted at the end of its input must not see the end first, and exit 0.
            self._early.append(frame)
        elif frame.kind in (Kind.DATA, Kind.EOF):
            if self._sink:
                self._sink.on_frame(frame)
        elif frame.kind == Kind.ACK and frame.stream in (STDOUT, STDERR):
            if self._sources:
                self._sources[frame.stream - 1].acked()
        elif frame.kind == Kind.STOP:
            if self._sources:
                self._sources[frame.stream - 1].close()
        elif frame.kind == Kind.SIGNAL:
            self._signal(frame)
        elif frame.kind == Kind.WINCH and self._sink:
            self._sink.resize(frame)

    def _signal(self, frame: Frame) -> None:
        """Signals are numbered: one that was seen is not delivered again."""
        if frame.offset <= self._signals:
            return
        self._signals = frame.offset
        try:
            number = signal_number(str(frame.body().get("signal")))
        except ValueError as error:
            log.info("job %s: %s", self.spawn.id, error)  # a signal that this machine does not have
            return
        if self._running:
            self._unsent = True
            self._running.signal(number)
            if number in WOKEN_BY:
                self._running.signal(signal.SIGCONT)

    def on_signalled(self) -> None:
        self._unsent = False
        if self.link:
            self._take_early()

    def on_down(self, why: str) -> None:
        """The link lost its connection: the job may go on for its lease, held back by its full pipes."""
        if self._lease is None:
            self._lease = self._loop.call_later(self.spawn.lease, self._lease_over)

    def on_up(self) -> None:
        if self._lease:
            self._lease.cancel()
            self._lease = None

    def _lease_over(self) -> None:
        """The link did not come back in time: end the job. Its record waits for as long as the link is kept.

        The origin counts the lease by its own clock and may still wait. So the record has to say the same as it: lost.
        """
        self._expired = True
        if not self.ended:
            self.end("its link was down for longer than the lease")
        else:
            self._cut_streams()

    def on_lost(self, why: str) -> None:
        """The link is gone for good: its client has ended, or the link cannot be resumed."""
        self._detach()
        if self._running:
            self.end(f"its origin has gone: {why}")
        else:
            self._finish()

    def _detach(self) -> None:
        self.link = None
        for source in self._sources:
            source.drop()
        if self._sink:
            self._sink.detach()

    # -- the end -----------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """TERM, a pause, KILL: to the group first, then to everything of the session."""
        if self._running is None:
            self._finish()  # never started, or over already
            return
        if self.ended:
            return  # the rest of its session has its pause already
        log.info("job %s: is ended: %s", self.spawn.id, why)
        self.orphan = True
        for relay in list(self.asking):
            relay.revoke(why)  # a job that waits for an impossible answer could not end in good order
        if self.spawn.terminal:
            self._hang_up()
        self._running.end(hung_up=self.spawn.terminal is not None)

    def _hang_up(self) -> None:
        """Close our end of the terminal: the kernel sends HUP and CONT to the leader and to the foreground group."""
        # An interactive shell then hangs up its jobs; it would ignore a TERM.
        for source in self._sources:
            source.close()
        self._close_stdin()

    def _close_stdin(self) -> None:
        """Close stdin, and the other near ends without a source."""
        if self._sink:
            self._sink.close()
        while self._held:
            os.close(self._held.pop())

    def _arm(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, action)

    def on_exited(self, status: Status) -> None:
        if self._failed:
            self._sources = []
            detail = "it was started and ended again by a defect in quine; see the node's log"
            status = Status("lost", LOST, pid=status.pid, detail=detail, rusage=status.rusage)
        self._status = status
        self.ended = True
        if self._folder and not self.orphan:
            self._leaving = self._loop.call_later(LEAVING, self.on_left, False)
        self._close_stdin()
        if self._expired:
            self._lose("it was ended then")
            self._cut_streams()
        else:
            self._tell_exit_if_done()
        if self.orphan:
            return  # `on_gone` follows, once the rest of its session has had its pause
        self._running = None
        if any(not source.closed for source in self._sources):
            self._arm(HELD_GRACE, self._drain)
        self._finish_if_done()

    def on_left(self, kept: bool) -> None:
        if self._leaving:
            self._leaving.cancel()
            self._leaving = None
            if self._status and kept:
                self._status.left = self._folder
            self._tell_exit_if_done()
            self._finish_if_done()

    def on_gone(self) -> None:
        self._finish()

    def _tell_exit(self, status: Status) -> None:
        self.ended = True
        log.log(self._level, "job %s: %s %s", self.spawn.id, status.state, status.signal or status.code)
        if self.link is None:
            return
        session = self.link.session
        session.tell(self.number, Kind.EXIT, status.to_json())
        if not self._sources:  # never started: nothing else will end the streams
            session.eof(self.number, STDOUT)
            session.eof(self.number, STDERR)
        self.link.wake()

    def _cut_streams(self) -> None:
        """Bytes in the pipes are not taken any more: end the streams here. A job whose output is cut is lost."""
        if any(not source.closed for source in self._sources):
            self._lose("its output is incomplete")
        for source in self._sources:
            source.close()
        self._tell_exit_if_done()

    def _lose(self, how: str) -> None:
        """Replace the job's status by `lost`: its link was down for too long; `how` says the consequence."""
        if self._status and self._status.state != "lost":
            detail = f"the link was down for longer than the lease of {self.spawn.lease:g} s; {how}"
            self._status = Status(
                "lost", LOST, pid=self._status.pid, detail=detail, rusage=self._status.rusage
            )

    def _tell_exit_if_done(self) -> None:
        """Send the exit record once the process and both streams have ended, and its folder was left."""
        if self._leaving:
            return
        if self._status and (self.link is None or all(source.closed for source in self._sources)):
            status, self._status = self._status, None
            self._tell_exit(status)

    def _drain(self) -> None:
        for source in self._sources:
            source.drain()

    def _stream_ended(self) -> None:
        self._tell_exit_if_done()
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if (
            self.ended
            and self._running is None
            and not self._leaving
            and all(source.closed for source in self._sources)
        ):
            self._finish()

    def _finish(self) -> None:
        for timer in (self._timer, self._lease, self._leaving):
            if timer:
                timer.cancel()
        self._timer = self._lease = self._leaving = None
        for source in self._sources:
            source.discard()
        self._close_stdin()
        self._running = None
        self._early.clear()
        self._on_end(self)
