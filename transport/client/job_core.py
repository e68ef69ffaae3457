"""The caller's side of one job as a state machine: output, input, signals and the exit record, on a session.

Laws
1. Sans-IO: no socket, descriptor, clock or thread. `now` is seconds of any steady clock.
2. Bytes are acknowledged after the caller took them: a reader that sleeps stops the producer over there.
3. Whatever ends the connection, the status says what is known: never started, or lost.
4. The job ends once its exit record is there, both streams are at their end, and the caller took all of them.
"""

from __future__ import annotations

from transport.errors import ProtocolError
from transport.lean import signal
from transport.status import BROKEN_PIPE, LOST, USAGE, Status, signal_name
from transport.wire.frames import CHUNK, Frame, Kind
from transport.wire.session import STDERR, STDIN, STDOUT, Session

SILENT = 10.0  # seconds without a greeting until the user is told; a busy machine needs some

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from transport.spawn import Spawn, Template


class JobCore:
    """One job. The methods `on_output` to `on_stdin_unread` say what the caller does about its events.

    session  has to be set before `begin`; it holds the bytes to send
    over     nothing is left to do but to send the bytes in `session`
    status   how the job ended
    """

    __slots__ = (
        "_eager",
        "_errors",
        "_exit",
        "_given",
        "_held",
        "_signals",
        "_source",
        "_taken",
        "host",
        "log",
        "number",
        "over",
        "pid",
        "session",
        "spawn",
        "status",
        "stdin_open",
    )

    session: Session

    def __init__(self, spawn: Spawn, eager: bool, log: str = "") -> None:
        """`eager`: the first bytes of stdin go with the spawn. `log` is the path of this machine's node log."""
        self.spawn = spawn
        self.over = False
        self.status: Status | None = None
        self.number = 0
        self.pid = 0  # over there, once it runs
        self.host = ""  # the name of its host, once it runs elsewhere
        self.stdin_open = True
        self.log = log
        self._eager = eager
        self._exit: Status | None = None
        self._given = [0, 0, 0]  # bytes of each stream given to the caller,
        self._taken = [0, 0, 0]  # bytes that it took,
        self._errors = ["", "", ""]  # and why it takes, or of stdin gives, no more; "" if its reader has gone
        self._source = "stdin"  # the name of what cannot be read
        self._signals = 0
        self._held = False  # bytes are acknowledged by `persisted` alone

    # -- for the caller ----------------------------------------------------------------------------

    def on_output(self, stream: int, data: bytes) -> None:
        """Take bytes of stdout or stderr; report to `took` how many were taken."""

    def on_written(self, stream: int, count: int, errno: int) -> None:
        """Hear that the node has written so many bytes of a stream that was lent to it; 0, or the error that it met."""

    def on_started(self) -> None:
        """The job runs: `pid` and `host` are known."""

    def on_kept(self, facts: object) -> None:
        """The job was adopted: facts about its streams."""

    def on_note(self, body: dict[str, Any]) -> None:
        """Hear a note of the node about the link to the job's host."""

    def on_stdin_unread(self) -> None:
        """The job reads no more."""

    # -- the node ----------------------------------------------------------------------------------

    def begin(self, template: Template | None = None) -> None:
        """Send the spawn of the job, by a template that fits it and was checked."""
        body = self.spawn.own_fields() if template else self.spawn.to_json()
        try:
            type(self.spawn).from_json(body, template)
            self.number = self.session.open(Kind.SPAWN, body, template=template)
        except ProtocolError as error:
            self.end(Status("unreachable", USAGE, detail=str(error)))
        except ValueError as error:
            self.end(Status("exited", 126, detail=f"argument list too long: {error}"))

    def end(self, status: Status | None) -> None:
        self.over, self.status = True, status

    def node_ended(self) -> None:
        """The connection has ended after the spawn was sent."""
        cure = (
            f"the next command that reaches {self.host} ends it, or else its lease does" if self.host else ""
        )
        self.fail("the node of this machine ended", cure)

    def fail(self, why: str, cure: str = "") -> None:
        """End with a lost job: nothing more will be heard of it."""
        if self.pid:
            known = f"the command was started (pid {self.pid}), its outcome is not known"
        else:
            known = "the command was sent, whether it was started is not known"
        log = f"look at {self.log}" if self.log else ""
        hint = "; ".join(filter(None, (cure, log)))
        self.end(Status("lost", LOST, pid=self.pid, detail=f"{why}; {known}", hint=hint))

    def on_frame(self, frame: Frame, now: float) -> None:
        """Take a frame of the job's channel."""
        kind = frame.kind
        if kind == Kind.DATA:
            self._given[frame.stream] += len(frame.payload)
            self.on_output(frame.stream, frame.payload)
        elif kind == Kind.RETURN and frame.stream != STDIN:
            self._given[frame.stream] += frame.offset
            self._taken[frame.stream] += frame.offset
            self.on_written(frame.stream, frame.offset, frame.number("errno"))
        elif kind == Kind.ACK:
            flow = self.session.flow(self.number, STDIN)
            self.session.spare -= flow.measure_acked(now, self.session.spare)
        elif kind == Kind.STOP:
            self.on_stdin_unread()
        elif kind == Kind.ATTACH:
            self.pid = frame.number("pid")
            body = frame.body()
            host = body.get("host")
            self.host = host if isinstance(host, str) else ""
            if self.spawn.adopt:
                self.on_kept(body.get("kept"))
            if not self.over:
                self.on_started()
        elif kind == Kind.NOTE:
            self.on_note(frame.body())
        elif kind == Kind.EXIT:
            try:
                self._exit = Status.of_exit(frame.body(), started=self.pid != 0)
            except ValueError as error:
                raise ProtocolError(f"exit frame without a status: {error}") from None

    def settle(self) -> None:
        """End if the exit record is there, both streams are at their end, and all of them was taken."""
        if self.over or not self._exit or self.pending:
            return
        channel = self.session.channels.get(self.number)
        if channel and channel.finished:
            if self._exit.code == BROKEN_PIPE and any(flow.stopped for flow in channel.flows[STDOUT:]):
                self._exit.here = True
            if not self.spawn.keep:
                self.session.last_word(self.number)
            self.end(self._written(self._exit))

    @property
    def runs(self) -> bool:
        """True from its start until its exit record has come."""
        return self.pid != 0 and self._exit is None

    @property
    def pending(self) -> bool:
        """True if bytes were given to the caller that it has not taken."""
        return self._given != self._taken

    def _written(self, status: Status) -> Status:
        """Return the exit record, with the streams that have failed here.

        A part of stdin looks like the whole of it over there.
        """
        failed = ((STDOUT, "write stdout"), (STDERR, "write stderr"), (STDIN, f"read {self._source}"))
        for stream, what in failed:
            if error := self._errors[stream]:
                status.stream_failed(what, error)
        return status

    # -- streams -----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes of stdin to read now.

        Before the node has greeted 0: it may be ending, and bytes already read would be lost. Before the job runs at
        most one chunk, as it may wait for a slot for hours. 0 then if it is not eager: it may be tried again, or has a
        terminal, which until then belongs to the shell.
        """
        channel = self.session.channels.get(self.number)
        if channel is None or not self.stdin_open or self._exit is not None or not self.session.peer:
            return 0
        flow = channel.flows[STDIN]
        if flow.lent:
            return 0  # the node reads it
        if self.pid:
            return flow.piece
        return max(0, min(flow.credit, CHUNK - flow.offset)) if self._eager else 0

    def typed(self, data: bytes, now: float) -> None:
        """Take bytes of stdin, at most `room`; b"" is its end."""
        flow = self.session.flow(self.number, STDIN)
        if not data:
            self.stdin_open = False
            if not flow.stopped:
                self.session.eof(self.number, STDIN)
        elif not flow.stopped:
            self.session.data(self.number, STDIN, data)
            flow.measure_sent(now)

    def unread(self, error: str, now: float, source: str = "stdin") -> None:
        """End stdin, because no more of it, or of the file `source`, can be read here."""
        self._errors[STDIN], self._source = error, source
        self.typed(b"", now)

    def moved(self, stream: int, taken: int) -> bool:
        """Return whether `taken` bytes in all are more than were taken before."""
        return taken > self._taken[stream]

    def took(self, stream: int, taken: int, now: float, *, alive: bool = True, error: str = "") -> None:
        """The caller has taken `taken` bytes in all. Not `alive`: it takes no more; `error` is the reason."""
        if self.moved(stream, taken):
            self._taken[stream] = taken
        if not alive:
            self._taken[stream] = self._given[stream]  # the rest was dropped
            self._errors[stream] = error
        if channel := self.session.channels.get(self.number):
            flow = channel.flows[stream]
            if flow.lent:
                self.acknowledge()
            elif not self._held:
                self.session.took(self.number, stream, taken)
            if not alive and not flow.stopped:
                self.session.stop(self.number, stream)

    def acknowledge(self) -> None:
        """Tell the node of all that was taken of a lent stdout: it writes nothing before that."""
        taken = self._taken[STDOUT]
        if taken > self.session.flow(self.number, STDOUT).acked:
            self.session.ack(self.number, STDOUT, taken)

    # -- signals -----------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """Send a signal to the job, if its end is not known yet."""
        if self.number in self.session.channels:
            # A terminal's stop signal has no effect in an orphaned process group; STOP has.
            name = "STOP" if number == signal.SIGTSTP else signal_name(number)
            self._signals += 1
            self.session.tell(self.number, Kind.SIGNAL, {"signal": name}, self._signals)

    def take_back(self) -> None:
        """Have it not begin, if it has not: its node then reports it as never started."""
        if self.number in self.session.channels:
            self.session.tell(self.number, Kind.NOTE, {"withdraw": True})

    def abandon(self) -> None:
        """Nobody waits for the job any more: its node ends it."""
        if self.number and self.number in self.session.channels:
            self.session.abandon(self.number)


class Silence:
    """The time that a node takes to greet. `due` is when the user is told of it, None if there is no such time."""

    __slots__ = ("_told", "due")

    def __init__(self) -> None:
        self.due: float | None = None
        self._told = False

    def broke(self, greeted: bool, now: float) -> bool:
        """Return True once, if the node has not greeted in time."""
        if greeted or self._told:
            return False
        self.due = self.due or now + SILENT
        if now <= self.due:
            return False
        self.due, self._told = None, True
        return True
