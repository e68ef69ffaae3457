"""The client's side of one job as a state machine: frames, output, input, signals and the exit record.

Laws
1. Sans-IO: no socket, descriptor, clock or thread. `now` is seconds of any steady clock; a Driver does the rest.
2. Bytes are acknowledged after the caller's stdout took them: a reader that sleeps stops the producer over there.
3. Whatever ends the connection, the status says what is known: never started, or lost.
4. With a terminal (`spawn.terminal`) keys are bytes and only bytes. A signal sent to this process is meant for it:
   the client leaves, and the job is hung up, as with ssh.
"""

from __future__ import annotations

from transport.errors import ProtocolError
from transport.lean import signal
from transport.status import LOST, NOT_STARTED, USAGE, Status, signal_name
from transport.wire.frames import CHUNK, Frame, Kind
from transport.wire.session import STDERR, STDIN, STDOUT, Session

BROKEN_PIPE = 128 + signal.SIGPIPE  # of a process that SIGPIPE killed, and of its shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from transport.client.output import Used
    from transport.rpc.services import Services
    from transport.spawn import Spawn

    class Driver(Protocol):
        """The operations that the core needs from its process. Only `stop` and `suspend` take long: until SIGCONT."""

        def write(self, stream: int, data: bytes) -> None:
            """Queue bytes for stdout or stderr; report to Core.took how many were taken."""

        def close_stdin(self) -> None:
            """The job reads no more: a writer to this process shall get SIGPIPE."""

        def started(self, pid: int, host: str) -> None: ...

        def noted(self, body: dict[str, Any]) -> None:
            """A note of the node about the link to the job's host; or the node has not greeted (`silent`: its log)."""

        def services(self, session: Session) -> Services:
            """Make the services; called once, at the first request of the job."""

        def stop(self) -> None:
            """Send what is queued, then stop this process as SIGTSTP does."""

        def suspend(self) -> None:
            """Give the terminal back, and stop."""

        def take_terminal(self) -> None:
            """Set raw mode; call Core.resized if the size is not Core.size."""

        def tell_size(self) -> None:
            """Call Core.resized with the size of the terminal."""

        def say_escapes(self) -> None: ...


BLOCKED = 5.0  # seconds that a reader that takes nothing may delay our exit after a fatal signal
SILENT = 10.0  # seconds without a greeting until the user is told; a busy machine needs some
IMPATIENT = 1.0  # seconds within which a third ^C leaves without waiting
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
    signal.SIGCONT,
    signal.SIGTSTP,
)
FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# These end us, too, and mean nothing to the job: caught only where a terminal must be restored first.
OURS = (signal.SIGXCPU, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR)


class Core:
    """One job. `session` holds the bytes to send; after each call look at `over`.

    over     nothing is left to do but to send the bytes in `session`
    status   how the job ended; None if the node ended before it had read anything: the job may be sent again
    due      time when `tick` has something to do, None if only events count
    """

    def __init__(
        self, spawn: Spawn, hello: dict[str, Any], driver: Driver, used: Used | None = None, log: str = ""
    ) -> None:
        """`used` records the use of the streams, and keeps stdin untouched until the job runs.

        `log` is the path of this machine's node log.
        """
        self.session = Session(opener=True, hello=hello)
        self.over = False
        self.status: Status | None = None
        self.number = 0
        self.pid = 0  # over there, once it runs
        self._host = ""  # the name of its host, once it runs elsewhere
        self.stdin_open = True
        self.size = (0, 0)  # rows and columns, as the job over there knows them
        self._spawn = spawn
        self._driver = driver
        self._used = used
        self._log = log
        self._escapes = None
        if spawn.terminal:
            from transport.terminal import Escapes

            self._escapes = Escapes()
            self.size = (spawn.terminal["rows"], spawn.terminal["columns"])
        self._services: Services | None = None
        self._exit: Status | None = None
        self._given = [0, 0, 0]  # bytes of each stream given to the driver,
        self._taken = [0, 0, 0]  # bytes that the descriptor took,
        self._errors = ["", "", ""]  # and why it takes no more; "" if its reader has gone
        self._signals = 0
        self._interrupts: list[float] = []
        self._patience: tuple[int, float] | None = None  # a forwarded fatal signal, and our deadline
        self._greeted_by: float | None = None  # when the user is told of a silent node
        self._reported = False  # the user has been told of it

    def begin(self) -> None:
        """Send the spawn of the job."""
        body = self._spawn.to_json()
        try:
            type(self._spawn).from_json(body)
            self.number = self.session.open(Kind.SPAWN, body)
        except ProtocolError as error:
            self._end(Status("unreachable", USAGE, detail=str(error)))
        except ValueError as error:
            self._end(Status("unreachable", NOT_STARTED, detail=f"argument list too long: {error}"))

    def _end(self, status: Status | None) -> None:
        self.over, self.status = True, status

    # -- the node ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the node. After a violation of the protocol the job is lost."""
        try:
            for frame in self.session.receive(data):
                self._frame(frame, now)
        except ProtocolError as error:
            self.fail(str(error))

    def closed(self) -> None:
        """The node has ended. If it never greeted, it has read nothing, and the job may be sent again."""
        if self.session.peer:
            cure = (
                f"the next command that reaches {self._host} ends it, or else its lease does"
                if self._host
                else ""
            )
            self.fail("the node of this machine ended", cure)
        else:
            self._end(None)

    def fail(self, why: str, cure: str = "") -> None:
        """End with a lost job: nothing more will be heard of it."""
        if self.pid:
            known = f"the command was started (pid {self.pid}), its outcome is not known"
        else:
            known = "the command was sent, whether it was started is not known"
        log = f"look at {self._log}" if self._log else ""
        hint = "; ".join(filter(None, (cure, log)))
        self._end(Status("lost", LOST, pid=self.pid, detail=f"{why}; {known}", hint=hint))

    def _frame(self, frame: Frame, now: float) -> None:
        kind = frame.kind
        if frame.channel != self.number:
            if self._services is None:
                self._services = self._driver.services(self.session)
            self._services.on_frame(frame)
        elif kind == Kind.DATA:
            self._given[frame.stream] += len(frame.payload)
            self._driver.write(frame.stream, frame.payload)
        elif kind == Kind.ACK:
            flow = self.session.flow(self.number, STDIN)
            self.session.spare -= flow.measure_acked(now, self.session.spare)
        elif kind == Kind.STOP:
            self._close_stdin()
        elif kind == Kind.ATTACH:
            self.pid = frame.number("pid")
            host = frame.body().get("host")
            self._host = host if isinstance(host, str) else ""
            self._driver.started(self.pid, self._host)
            if self._escapes:
                self._driver.take_terminal()
        elif kind == Kind.NOTE:
            self._driver.noted(frame.body())
        elif kind == Kind.EXIT:
            try:
                self._exit = Status.from_json(frame.body())
            except ValueError:
                raise ProtocolError("exit frame without a status") from None
            if self.pid and self._exit.state in ("unreachable", "denied"):
                raise ProtocolError("a job that was started is reported as never started")

    def tick(self, now: float) -> None:
        """End if the job is over, or if nobody takes its output after a fatal signal. Report a silent node."""
        if self.over:
            return
        if not self.session.peer and not self._reported:
            self._greeted_by = self._greeted_by or now + SILENT
            if now > self._greeted_by:
                self._reported = True
                self._driver.noted({"silent": self._log})
        channel = self.session.channels.get(self.number)
        if self._exit and channel and channel.finished and not self._pending:
            # Exit record there, both streams at their end, all of them written: acknowledge the record.
            self.session.last_word(self.number)
            self._end(self._written(self._exit))
        elif self._patience and self._pending and now > self._patience[1]:
            self._leave(self._patience[0])

    @property
    def due(self) -> float | None:
        """Time when `tick` has something to do, None if only events count.

        Before the greeting: when the user is told of a silent node. After a fatal signal: until when we wait for a
        reader that takes nothing. The job may be over, with its exit record behind output that nobody reads.
        """
        if not self.session.peer:
            return None if self._reported else self._greeted_by
        return self._patience[1] if self._patience and self._pending else None

    @property
    def _pending(self) -> bool:
        return self._given != self._taken

    def _written(self, status: Status) -> Status:
        """Return the exit record; if output could not be written, a success or a death by SIGPIPE becomes lost.

        This process stopped the stream and so caused the SIGPIPE. Its status would say that a reader has left.
        """
        for stream, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            if error := self._errors[stream]:
                status.detail = status.detail or f"cannot write {name}: {error.lower()}"
                if status.code in (0, BROKEN_PIPE):
                    status.state, status.code, status.signal = "lost", LOST, None
        return status

    # -- requests ----------------------------------------------------------------------------------

    def answered(self) -> None:
        """Send the replies that handlers have ready."""
        if self._services:
            self._services.send()

    def relieve(self, pause: int | None) -> int | None:
        """As Services.relieve: milliseconds until the next look at a crowd of requests."""
        return self._services.relieve(pause) if self._services else pause

    def close(self) -> None:
        if self._services:
            self._services.close()

    # -- streams -----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes of stdin to read now.

        Before the node has greeted 0: it may be ending, and bytes already read would be lost. Before the job runs at
        most one chunk, as it may wait for a slot for hours. 0 then if the job may be tried again, or has a terminal,
        which until then belongs to the shell.
        """
        channel = self.session.channels.get(self.number)
        if channel is None or not self.stdin_open:
            return 0
        flow = channel.flows[STDIN]
        if flow.stopped:
            return CHUNK if self._escapes else 0  # the job does not read our terminal; ~. must still lead out
        if self._exit is not None or not self.session.peer:
            return 0
        if self.pid:
            return min(CHUNK, flow.credit)
        return 0 if self._used or self._escapes else max(0, min(flow.credit, CHUNK - flow.offset))

    def typed(self, data: bytes, now: float) -> None:
        """Take bytes of stdin, at most `room`; b"" is its end."""
        flow = self.session.flow(self.number, STDIN)
        if not data:
            if not flow.stopped:
                self.session.eof(self.number, STDIN)
            self.stdin_open = False
            return
        if self._used:
            self._used.stdin = True
        commands: list[str] = []
        if self._escapes:
            data, commands = self._escapes.feed(data)
        if data and not flow.stopped:
            self.session.data(self.number, STDIN, data)
            flow.measure_sent(now)
        for command in commands:
            self._command(command)

    def _close_stdin(self) -> None:
        if self.stdin_open and not self._escapes:
            self._driver.close_stdin()
            self.stdin_open = False
            if self._used:
                self._used.stdin = True

    def took(self, stream: int, taken: int, now: float, *, alive: bool = True, error: str = "") -> None:
        """The descriptor has taken `taken` bytes in all. Not `alive`: it takes no more; `error` is the reason."""
        if taken > self._taken[stream]:
            self._taken[stream] = taken
            if self._used and stream == STDOUT:
                self._used.stdout = True
            if self._patience:
                self._patience = (self._patience[0], now + BLOCKED)
        if not alive:
            self._taken[stream] = self._given[stream]  # the rest was dropped
            self._errors[stream] = error
            if self._used and stream == STDOUT and error:
                self._used.stdout = True
        if channel := self.session.channels.get(self.number):
            self.session.took(self.number, stream, taken)
            if not alive and not channel.flows[stream].stopped:
                self.session.stop(self.number, stream)

    # -- signals -----------------------------------------------------------------------------------

    def signalled(self, number: int, now: float) -> None:
        """Handle a signal that this process got."""
        if number in OURS or (number in FATAL and (self._escapes or not self.pid or self._exit is not None)):
            self._leave(number)  # not started yet, or over and only our reader is slow
            return
        if self._escapes and number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            self._signal_terminal(number)
            return
        if number == signal.SIGINT and self._impatient(now):
            self._leave(number, f"not waited for any longer; pid {self.pid} over there is being ended")
            return
        if number in FATAL:
            self._patience = (number, now + BLOCKED)
        if self.number in self.session.channels:
            # A terminal's stop signal has no effect in an orphaned process group; STOP has.
            name = "STOP" if number == signal.SIGTSTP else signal_name(number)
            self._signals += 1
            self.session.tell(self.number, Kind.SIGNAL, {"signal": name}, self._signals)
        if number == signal.SIGTSTP:
            self._driver.stop()

    def resized(self, rows: int, columns: int) -> None:
        """Send the size of our terminal to the job; the same size again makes it redraw its screen."""
        if self._escapes and self.pid and self.number in self.session.channels:
            self.size = (rows, columns)
            self.session.tell(self.number, Kind.WINCH, {"rows": rows, "columns": columns})

    def _signal_terminal(self, number: int) -> None:
        """Handle a signal about our own terminal, which is not for the job."""
        if number == signal.SIGTSTP:
            self._driver.suspend()
        if number != signal.SIGWINCH and self.pid:
            self._driver.take_terminal()
        self._driver.tell_size()  # after a stop even the same size: the screen has to be redrawn

    def _command(self, command: str) -> None:
        """Carry out a command that was typed after a ~."""
        from transport import terminal

        if command == terminal.SUSPEND:
            self._signal_terminal(signal.SIGTSTP)
        elif command == terminal.HELP:
            self._driver.say_escapes()
        elif command == terminal.LEAVE:
            self._abandon()
            detail = f"disconnected by ~.; sent SIGHUP to pid {self.pid}; its outcome is not known"
            self._end(Status("lost", LOST, pid=self.pid, detail=detail))

    def _leave(self, number: int, detail: str = "") -> None:
        """End by a signal without waiting for the job; its node then ends the job."""
        self._abandon()
        self._end(Status("signaled", 128 + number, signal_name(number), pid=self.pid, detail=detail))

    def _abandon(self) -> None:
        if self.number in self.session.channels:
            self.session.abandon(self.number)

    def _impatient(self, now: float) -> bool:
        self._interrupts = [then for then in self._interrupts if now - then < IMPATIENT] + [now]
        return len(self._interrupts) >= 3
