"""The blocking client: gives a job on a node the face of a local process.

Laws
1. Standard library only and no event loop: this is what people call in loops.
2. One poll waits for everything: node, stdin, stdout, stderr, signals. No descriptor of the caller is made
   non-blocking, because whoever shares its open file would see that.
3. Bytes are acknowledged after the caller's stdout took them: a reader that sleeps stops the producer over there.
4. Whatever ends the connection, the answer is what is known: never started, or lost.
5. With a terminal (`spawn.terminal`) keys are bytes and only bytes; a signal that comes to this process by itself is
   meant for it: it leaves, and what runs over there is hung up, as with ssh.
"""

from __future__ import annotations

import os
import select
import time

from transport import address, starter
from transport.caught import Caught
from transport.errors import ProtocolError
from transport.frames import CHUNK, Frame, Kind
from transport.lean import signal, socket
from transport.output import Output, Used
from transport.session import STDERR, STDIN, STDOUT, Session
from transport.status import LOST, NOT_STARTED, USAGE, Status, signal_name
from transport.wire import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from transport.services import Service, Services
    from transport.spawn import Spawn
    from transport.terminal import Terminal

BLOCKED = 5.0  # seconds that a reader who takes nothing holds us after a fatal signal
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
# These end us, too, and mean nothing over there: caught only where a terminal must be given back first.
OURS = (signal.SIGXCPU, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR)


def run(
    spawn: Spawn,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    services: Mapping[str, Service] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_note: Callable[[dict[str, Any]], None] | None = None,
    on_refused: Callable[[str], None] | None = None,
    used: Used | None = None,
    on_sent: Callable[[], None] | None = None,
) -> Status:
    """Start a job through this machine's node and be its face until it ends.

    services   name -> function from request body to reply body, or a Streaming; called in threads, may raise
    on_sent    called when the job is on its way: what it will ask for may be begun
    on_start   called with the job's pid over there, before a request of it is answered
    on_note    called with what the node says of the link that the job is behind
    on_refused called with what is said of a request that was refused
    used       is told what was done with the streams, and keeps stdin untouched until the job runs

    Raises Refused where no node can be had here; everything else is in the Status. Must be called in the main thread.
    """
    spawn.capability = os.urandom(16).hex()
    for _ in range(starter.TRIES):
        face = Face(starter.connect(), spawn, (stdin, stdout, stderr), services or {})
        face.on_start, face.on_note, face.on_refused, face.used = on_start, on_note, on_refused, used
        face.on_sent = on_sent
        try:
            if (status := face.run()) is not None:
                return status
        finally:
            face.close()
        # The node went idle while we connected: it had not read a byte. The next one is started.
    raise starter.short_lived()


class Face:
    """One job, this process's streams and signals, one connection to the node."""

    def __init__(
        self,
        connection: socket.socket,
        spawn: Spawn,
        streams: tuple[int, int, int],
        services: Mapping[str, Service],
    ) -> None:
        self.session = Session(opener=True, hello={"build": address.build_hash(), "pid": os.getpid()})
        self._wire = Wire(connection, self.session, starter.CLIENT)
        self._spawn = spawn
        self._stdin = streams[STDIN]
        self._outputs = {STDOUT: Output(streams[STDOUT]), STDERR: Output(streams[STDERR])}
        self.on_sent: Callable[[], None] | None = None
        self.on_start: Callable[[int], None] | None = None
        self.on_note: Callable[[dict[str, Any]], None] | None = None
        self.on_refused: Callable[[str], None] | None = None
        self.used: Used | None = None
        self._terminal: Terminal | None = None
        self._told = (0, 0)  # its size, as the job over there knows it
        self._handlers = services
        self._services: Services | None = None
        self._exit: Status | None = None
        self._pid = 0
        self._caught = Caught()
        self._signals = 0
        self._interrupts: list[float] = []
        self._patience: tuple[int, float] | None = None  # a fatal signal that was forwarded, and until when
        self.number = 0
        if spawn.terminal:
            from transport.terminal import Terminal

            self._terminal = Terminal(self._stdin)
            self._told = (spawn.terminal["rows"], spawn.terminal["columns"])

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> Status | None:
        """The status of the job; None when the node ended before it had read anything."""
        body = self._spawn.to_json()
        try:
            type(self._spawn).from_json(body)
            self.number = self.session.open(Kind.SPAWN, body)
        except ProtocolError as error:
            return Status("unreachable", USAGE, detail=str(error))
        except ValueError as error:
            return Status("unreachable", NOT_STARTED, detail=f"argument list too long: {error}")
        # A ^C that is ignored in this process (nohup, a background job) stays ignored over there.
        self._caught.install(FORWARDED + OURS if self._terminal else FORWARDED)
        try:
            return self._loop()
        except (OSError, ProtocolError) as error:
            return self._lost(str(error))
        finally:
            if self._terminal:
                self._terminal.restore()
            self._caught.uninstall()

    def _loop(self) -> Status | None:
        if self.on_sent:
            self._wire.flush()
            self.on_sent()
        while True:
            self._wire.flush()
            if self._finished():
                return self._ended()
            pause = None if self._patience is None else 200
            events_by_fd = self._poll().poll(self._services.relieve(pause) if self._services else pause)
            # Signals first: one that came before an end of file must not arrive over there after it.
            while number := self._caught.take():
                if left := self._signal(number):
                    return left
            if left := self._blocked():
                return left
            for fd, events in events_by_fd:
                if fd == self._wire.socket.fileno():
                    if events & ~select.POLLOUT and not self._receive():
                        return self._lost("the node of this machine ended") if self.session.peer else None
                elif fd == self._caught.fd:
                    self._woken()
                elif fd == self._stdin and self._reads_stdin() and (left := self._read_stdin()):
                    return left
                for stream, output in self._outputs.items():
                    if fd == output.poll_fd and (output.pending or events & ~select.POLLOUT):
                        self._write(stream)

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._wire.socket, select.POLLIN | (select.POLLOUT if self._wire.unsent else 0))
        poll.register(self._caught.fd, select.POLLIN)
        if self._reads_stdin():
            poll.register(self._stdin, select.POLLIN)
        for output in self._outputs.values():
            if output.poll_fd >= 0:
                poll.register(output.poll_fd, select.POLLOUT if output.pending else 0)
        return poll

    def _finished(self) -> bool:
        """Exit record there, both streams at their end, all of them written: say the last word."""
        channel = self.session.channels.get(self.number)
        if self._exit is None or channel is None or not channel.finished:
            return False
        if any(output.pending for output in self._outputs.values()):
            return False
        self.session.last_word(self.number)
        self._wire.flush()
        return True

    def _ended(self) -> Status | None:
        """The exit record; but success is none when its output could not be written."""
        status = self._exit
        for stream, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            if status and (error := self._outputs[stream].error):
                status.detail = status.detail or f"cannot write {name}: {error.lower()}"
                status.code = status.code or 1
        return status

    # -- the node ----------------------------------------------------------------------------------

    def _receive(self) -> bool:
        """False when the node has ended."""
        data = self._wire.receive()
        if data is None:
            return False
        for frame in self.session.receive(data):
            self._frame(frame)
        return True

    def _frame(self, frame: Frame) -> None:
        kind = frame.kind
        if frame.channel != self.number:
            if self._services is None:
                from transport.services import Services

                asked, key = (self._handlers, self._caught.fd_in), self._spawn.capability
                self._services = Services(self.session, *asked, key, self.on_refused, self._wire.attach)
            self._services.on_frame(frame)
        elif kind == Kind.DATA:
            self._outputs[frame.stream].put(frame.payload)
            self._write(frame.stream)
        elif kind == Kind.ACK:
            flow = self.session.flow(self.number, STDIN)
            self.session.spare -= flow.measure_acked(time.monotonic(), self.session.spare)
        elif kind == Kind.STOP:
            self._close_stdin()
        elif kind == Kind.ATTACH:
            self._pid = frame.number("pid")
            if self.on_start:
                self.on_start(self._pid)
            self._take_terminal()
        elif kind == Kind.NOTE:
            if self.on_note:
                self.on_note(frame.body())
        elif kind == Kind.EXIT:
            try:
                self._exit = Status.from_json(frame.body())
            except ValueError:
                raise ProtocolError("exit frame without a status") from None
            if self._pid and self._exit.state in ("unreachable", "denied"):
                raise ProtocolError("what was started is said never to have been started")

    def _lost(self, why: str) -> Status:
        if self._pid:
            known = f"the command was started (pid {self._pid}), its outcome is not known"
        else:
            known = "the command was sent, whether it was started is not known"
        return Status(
            "lost", LOST, pid=self._pid, detail=f"{why}; {known}", hint=f"look at {starter.log_path()}"
        )

    # -- streams -----------------------------------------------------------------------------------

    def _reads_stdin(self) -> bool:
        return self._stdin >= 0 and (self._stdin_credit() > 0 or self._only_escapes())

    def _only_escapes(self) -> bool:
        """Nobody over there reads our terminal any more; here ~. must still lead out."""
        channel = self.session.channels.get(self.number)
        return self._terminal is not None and channel is not None and channel.flows[STDIN].stopped

    def _stdin_credit(self) -> int:
        """Bytes of stdin to read now. None before the node has said a word: it may be ending, and what we had
        read would be lost; little before the job runs: it may wait for a slot for hours. None then where the job
        may be tried again, or has a terminal: what is typed before is typed on this one.
        """
        channel = self.session.channels.get(self.number)
        if channel is None or self._exit is not None or not self.session.peer:
            return 0
        flow = channel.flows[STDIN]
        if self._pid:
            return flow.credit
        return 0 if self.used or self._terminal else max(0, min(flow.credit, CHUNK - flow.offset))

    def _read_stdin(self) -> Status | None:
        flow = self.session.flow(self.number, STDIN)
        try:
            data = os.read(self._stdin, min(CHUNK, self._stdin_credit() or CHUNK))
        except BlockingIOError:
            return None  # somebody else made it non-blocking, and read first
        except OSError:
            data = b""  # a closed descriptor, a directory, a terminal that hung up: there is no more
        if not data:
            if not flow.stopped:
                self.session.eof(self.number, STDIN)
            self._stdin = -1
            return None
        if self.used:
            self.used.stdin = True
        commands: list[str] = []
        if self._terminal:
            data, commands = self._terminal.escapes.feed(data)
        if data and not flow.stopped:
            self.session.data(self.number, STDIN, data)
            flow.measure_sent(time.monotonic())
        for command in commands:
            if left := self._command(command):
                return left
        return None

    def _close_stdin(self) -> None:
        """Nobody over there reads it: close it here, so that who writes to us gets a SIGPIPE."""
        if self._stdin >= 0 and not self._terminal:
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, self._stdin)  # the number stays taken: nothing else may land on it
            os.close(null)
            self._stdin = -1
            if self.used:
                self.used.stdin = True

    def _write(self, stream: int) -> None:
        output = self._outputs[stream]
        before = output.taken
        alive = output.write()
        if self.used and stream == STDOUT and output.taken:
            self.used.stdout = True
        if self._patience and output.taken > before:
            self._patience = (self._patience[0], time.monotonic() + BLOCKED)
        channel = self.session.channels.get(self.number)
        if channel is None:
            return
        self.session.took(self.number, stream, output.taken)
        if not alive and not channel.flows[stream].stopped:
            self.session.stop(self.number, stream)

    # -- signals -----------------------------------------------------------------------------------

    def _woken(self) -> None:
        """The poll was interrupted, by a signal or because replies are ready."""
        if self._caught.drain() and self._services:
            self._services.send()

    def _signal(self, number: int) -> Status | None:
        if number in OURS or (
            number in FATAL and (self._terminal or not self._pid or self._exit is not None)
        ):
            return self._leave(number)  # not started yet, or over and only our reader is slow
        if self._terminal and number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            self._signal_terminal(number)
            return None
        if number == signal.SIGINT and self._impatient():
            return self._leave(
                number, f"not waited for any longer; pid {self._pid} over there is being ended"
            )
        if number in FATAL:
            self._patience = (number, time.monotonic() + BLOCKED)
        if self.number in self.session.channels:
            # A stop signal of the terminal is void for a process group without a shell; STOP is not.
            name = "STOP" if number == signal.SIGTSTP else signal_name(number)
            self._signals += 1
            self.session.tell(self.number, Kind.SIGNAL, {"signal": name}, self._signals)
            self._wire.flush()
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
        return None

    def _take_terminal(self) -> None:
        """Ours is raw from now on, and its size is told where it has changed."""
        if self._terminal and self._pid:
            try:
                self._terminal.raw()
            except InterruptedError:
                return  # stopped in the background; the CONT that woke us is in the queue, and what else has come
            if self._terminal.size != self._told:
                self._tell_size()

    def _tell_size(self) -> None:
        if self._terminal and self._pid and self.number in self.session.channels:
            rows, columns = self._told = self._terminal.size
            self.session.tell(self.number, Kind.WINCH, {"rows": rows, "columns": columns})

    def _signal_terminal(self, number: int) -> None:
        """One that is about our own terminal, not for what runs over there."""
        if number == signal.SIGTSTP and self._terminal:
            self._terminal.restore()
            self._caught.suspend()
        if number != signal.SIGWINCH:
            self._take_terminal()
        self._tell_size()  # after a pause the same one again: what was on the screen is not

    def _command(self, command: str) -> Status | None:
        """What was typed after a ~ was meant for us."""
        from transport import terminal

        if command == terminal.SUSPEND:
            self._signal_terminal(signal.SIGTSTP)
        elif command == terminal.HELP and self._terminal:
            self._terminal.say(terminal.ESCAPES)
        elif command == terminal.LEAVE:
            detail = f"left by ~.; pid {self._pid} over there is being hung up, its outcome is not known"
            self._abandon()
            return Status("lost", LOST, pid=self._pid, detail=detail)
        return None

    def _leave(self, number: int, detail: str = "") -> Status:
        """Die of a signal without waiting for the job, which its node then ends."""
        self._abandon()
        return Status("signaled", 128 + number, signal_name(number), pid=self._pid, detail=detail)

    def _abandon(self) -> None:
        if self.number in self.session.channels:
            self.session.abandon(self.number)
        self._wire.flush()

    def _blocked(self) -> Status | None:
        """After a fatal signal a reader that takes nothing keeps us no longer than this: the job may be over, and
        its exit record stands behind output that nobody reads.
        """
        if self._patience is None or not any(output.pending for output in self._outputs.values()):
            return None
        number, until = self._patience
        return self._leave(number) if time.monotonic() > until else None

    def _impatient(self) -> bool:
        now = time.monotonic()
        self._interrupts = [then for then in self._interrupts if now - then < IMPATIENT] + [now]
        return len(self._interrupts) >= 3

    def close(self) -> None:
        if self._services:
            self._services.close()
        self._wire.drop()
        self._wire.socket.close()
        self._caught.close()
        if self._terminal:
            self._terminal.close()
        for output in self._outputs.values():
            output.close()
