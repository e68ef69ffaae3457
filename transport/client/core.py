"""A process that stands for one job, as a state machine: its connection, its own signals, its terminal, requests.

Laws
1. Sans-IO: no socket, descriptor, clock or thread. `now` is seconds of any steady clock; a Driver does the rest.
2. The job itself, its streams and its exit record, is that of `job_core.py`, whose laws hold here, too.
3. With a terminal (`spawn.terminal`) keys are bytes and only bytes. A signal sent to this process is meant for it:
   the client leaves, and the job is hung up, as with ssh.
4. No host keeps this process: its user's insistence ends it, and so does its time (`overtime.py`).
"""

from __future__ import annotations

from transport.client.job_core import JobCore, Silence
from transport.client.overtime import GIVE_UP, NEVER, Overtime
from transport.errors import ProtocolError
from transport.lean import signal
from transport.status import LOST, TIMED_OUT, Status, signal_name
from transport.wire.frames import CHUNK, Frame, Kind
from transport.wire.session import STDIN, STDOUT, Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from transport.client.output import Used
    from transport.rpc.services import Services
    from transport.spawn import Spawn

    class Driver(Protocol):
        """The operations that the core needs from its process. Only `stop` and `suspend` take long: until SIGCONT."""

        def write(self, stream: int, data: bytes) -> None:
            """Queue bytes for stdout or stderr; report to Core.took how many were taken."""

        def written(self, stream: int, count: int) -> None:
            """The node has written so many bytes of a lent stream, for this process."""

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
IMPATIENT = 1.0  # seconds within which a third ^C leaves without waiting
INSISTENT = 60.0  # seconds within which a third signal does, the first of them being TERM or HUP
ONE = 0.1  # seconds: two signals of one kind are one. timeout(1) sends it to its child, and to the group
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


class Core(JobCore):
    """One job. `session` holds the bytes to send; after each call look at `over`.

    status   is None if the node ended before it had read anything: the job may be sent again
    due      time when `tick` has something to do, None if only events count
    """

    def __init__(
        self,
        spawn: Spawn,
        hello: dict[str, Any],
        driver: Driver,
        used: Used | None = None,
        log: str = "",
        left: Callable[[], float | None] | None = None,
    ) -> None:
        """`used` records the use of the streams, and keeps stdin untouched until the job runs.

        `log` is the path of this machine's node log. `left` is that of `Overtime`: the job is an agent.
        """
        super().__init__(spawn, eager=used is None and not spawn.terminal, log=log)
        self.session = Session(opener=True, hello=hello)
        self.session.share(CHUNK + 1)  # of output alone
        self.size = (0, 0)  # rows and columns, as the job over there knows them
        self._driver = driver
        self._used = used
        self._escapes = None
        if spawn.terminal:
            from transport.terminal import Escapes

            self._escapes = Escapes()
            self.size = (spawn.terminal["rows"], spawn.terminal["columns"])
        self._services: Services | None = None
        self._interrupts: list[float] = []
        # Signals by which the user has it end, from the first TERM or HUP on.
        self._told: list[tuple[int, float]] = []
        self._overtime = Overtime(spawn.lease, left)
        self._asked = left is None  # how long the agent has
        self._down = False  # the link to the host is
        self._patience: tuple[int, float] | None = None  # a forwarded fatal signal, and our deadline
        self._passed: set[str] = set()  # the signals that this process got
        self._alone = False  # the node cannot write our stdout
        # It does no work there, so its end is not waited for.
        self._only_asks = bool(spawn.context.get("asks"))
        self._silence = Silence()

    # -- the node ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the node. After a violation of the protocol the job is lost."""
        try:
            for frame in self.session.receive(data):
                self.on_frame(frame, now)
        except ProtocolError as error:
            self.fail(str(error))

    def closed(self) -> None:
        """The node has ended. If it never greeted, it has read nothing, and the job may be sent again."""
        if self.session.peer:
            self.node_ended()
        else:
            self.end(None)

    def on_frame(self, frame: Frame, now: float) -> None:
        if frame.channel != self.number:
            if self._services is None:
                self._services = self._driver.services(self.session)
            self._services.on_frame(frame)
            return
        before = self._exit
        super().on_frame(frame, now)
        if frame.kind == Kind.ATTACH and self.spawn.deadline:
            self._overtime.limit(self.spawn.deadline, now)
        if self._exit and not before and self._overtime.begun and self._exit.state == "unreachable":
            detail = "the time of the tree is over, and the agent has not begun"
            self._exit = Status("unreachable", TIMED_OUT, detail=detail, hint="see --deadline")

    def on_output(self, stream: int, data: bytes) -> None:
        self._overtime.came(len(data))
        self._driver.write(stream, data)

    def on_written(self, stream: int, count: int, errno: int) -> None:
        self._overtime.came(count)
        self._alone = self._alone or errno != 0
        self._driver.written(stream, count)

    def on_started(self) -> None:
        self._driver.started(self.pid, self.host)
        if self._escapes:
            self._driver.take_terminal()

    def on_note(self, body: dict[str, Any]) -> None:
        if "up" in body:
            self._down = body["up"] is False
        self._driver.noted(body)

    def on_stdin_unread(self) -> None:
        if self.stdin_open and not self._escapes:
            self._driver.close_stdin()
            self.stdin_open = False
            if self._used:
                self._used.stdin = True

    def tick(self, now: float) -> None:
        """End if the job is over, or not waited for any longer. Report a silent node."""
        if self.over:
            return
        if self._silence.broke(bool(self.session.peer), now):
            self._driver.noted({"silent": self.log})
        self.settle()
        if not self.over and self._patience and self._lingers and now > self._patience[1]:
            self._leave(self._patience[0])
        if not self._asked:
            self._asked = True
            self._overtime.ask(now)
        if not self.over and (step := self._overtime.tick(now, self.pending, self._down)):
            self._late(step)

    @property
    def due(self) -> float | None:
        """Time when `tick` has something to do, None if only events count.

        Before the greeting: when the user is told of a silent node. After a fatal signal: until when we wait for a
        reader that takes nothing. The job may be over, with its exit record behind output that nobody reads. And when
        the host should have ended the job.
        """
        if not self.session.peer:
            due = self._silence.due
        else:
            due = self._patience[1] if self._patience and self._lingers else None
        late = self._overtime.due
        return due if late == NEVER else late if due is None else min(due, late)

    @property
    def _lingers(self) -> bool:
        """Whether it would last for too long after a fatal signal: for its reader, or for a link that is cut."""
        return self.pending or self._only_asks

    def _late(self, step: int) -> None:
        """The host should have ended the job: send it a signal, or give it up."""
        if step != GIVE_UP and self.pid:
            self.signal(step)
        elif step != GIVE_UP:
            self.take_back()
        else:
            known = f"it may still run there (pid {self.pid})" if self.pid else "whether it runs is not known"
            detail = f"it was to end, and did not; not waited for any longer; {known}"
            self.abandon()
            self.end(Status("lost", LOST, host=self.host, pid=self.pid, detail=detail))

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
        """As JobCore.room. Of a terminal everything is read: if the job does not read it, ~. must still lead out."""
        channel = self.session.channels.get(self.number)
        if self._escapes and channel and self.stdin_open and channel.flows[STDIN].stopped:
            return CHUNK
        return super().room

    def lends(self, stream: int) -> bool:
        """True if the node may move the bytes of stdin or stdout in place of this process: the job is elsewhere."""
        if not self.host or self._escapes:
            return False
        if stream == STDIN:
            return self.room > 0
        if self._alone or self._patience or self.spawn.keep or self.number not in self.session.channels:
            return False  # after a fatal signal a reader that takes nothing has to be noticed here
        flow = self.session.flow(self.number, stream)
        return not (flow.lent or flow.ended or flow.stopped)

    def writes_alone(self) -> None:
        """Our stdout must not be lent."""
        self._alone = True

    def lend(self, stream: int, count: int) -> None:
        """The node reads or writes this stream, of which it has descriptor number `count`, until it returns it."""
        flow = self.session.flow(self.number, stream)
        self.session.lend(self.number, stream, flow.offset, {"fd": count, "at": 0, "length": 0})
        if stream == STDOUT:
            self.acknowledge()

    def typed(self, data: bytes, now: float) -> None:
        """Take bytes of stdin, at most `room`; b"" is its end."""
        if data and self._used:
            self._used.stdin = True
        if not data or not self._escapes:
            super().typed(data, now)
            return
        keys, commands = self._escapes.feed(data)
        if keys:
            super().typed(keys, now)
        for command in commands:
            self._command(command)

    def took(self, stream: int, taken: int, now: float, *, alive: bool = True, error: str = "") -> None:
        moved = self.moved(stream, taken)
        if moved and self._patience:
            self._patience = (self._patience[0], now + BLOCKED)
        if self._used and stream == STDOUT and (moved or (error and not alive)):
            self._used.stdout = True
        super().took(stream, taken, now, alive=alive, error=error)

    # -- signals -----------------------------------------------------------------------------------

    def end(self, status: Status | None) -> None:
        if status and status.signal in self._passed:
            status.here = True
        super().end(status)

    def signalled(self, number: int, now: float) -> None:
        """Handle a signal that this process got."""
        self._passed.add(signal_name(number))
        ours = self._escapes or not self.runs or (self._only_asks and self._down)
        if number in OURS or (number in FATAL and ours):
            self._leave(number)  # not started yet, or over and only our reader is slow
            return
        if self._escapes and number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            self._signal_terminal(number)
            return
        if (number == signal.SIGINT and self._impatient(now)) or (
            number in FATAL and self._insists(number, now)
        ):
            self._leave(number, f"not waited for any longer; it may still run there (pid {self.pid})")
            return
        if number in FATAL:
            self._patience = (number, now + BLOCKED)
            if number != signal.SIGINT and self._overtime.of_agent:
                self._overtime.told(now)
        elif number == signal.SIGCONT:
            self._overtime.resumed(now)
        self.signal(number)
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
            self.abandon()
            detail = f"disconnected by ~.; sent SIGHUP to pid {self.pid}; its outcome is not known"
            self.end(Status("lost", LOST, pid=self.pid, detail=detail))

    def _leave(self, number: int, detail: str = "") -> None:
        """End by a signal without waiting for the job; its node then ends the job."""
        self.abandon()
        name = signal_name(number)
        self.end(Status("signaled", 128 + number, name, host=self.host, pid=self.pid, detail=detail))

    def _insists(self, number: int, now: float) -> bool:
        """Whether this is the third signal by which the user has the job end, the first being TERM or HUP."""
        self._told = [(each, then) for each, then in self._told if now - then < INSISTENT]
        if number == signal.SIGQUIT or not (self._told or number in (signal.SIGTERM, signal.SIGHUP)):
            return False  # they are for the command over there, also again and again
        if not any(each == number and now - then < ONE for each, then in self._told):
            self._told.append((number, now))
        return len(self._told) >= 3

    def _impatient(self, now: float) -> bool:
        self._interrupts = [then for then in self._interrupts if now - then < IMPATIENT] + [now]
        return len(self._interrupts) >= 3
