"""The blocking client: gives a job on a node the face of a local process.

Laws
1. Standard library only and no event loop: this is what people call in loops.
2. One poll waits for everything: node, stdin, stdout, stderr, signals. No descriptor of the caller is made
   non-blocking, because whoever shares its open file would see that.
3. Bytes are acknowledged after the caller's stdout took them: a reader that sleeps stops the producer over there.
4. Whatever ends the connection, the answer is what is known: never started, or lost.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections import deque

from transport import address, starter
from transport.errors import ProtocolError
from transport.frames import CHUNK, Frame, Kind
from transport.output import Output
from transport.session import STDERR, STDIN, STDOUT, Session
from transport.status import LOST, NOT_STARTED, USAGE, Status, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from transport.services import Services
    from transport.spawn import Spawn

    Service = Callable[[bytes], bytes]

RECEIVE = 512 * 1024  # bytes taken from the socket at once; with the frames made of it, the client's memory
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


def run(
    spawn: Spawn,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    services: Mapping[str, Service] | None = None,
    on_start: Callable[[int], None] | None = None,
) -> Status:
    """Start a job through this machine's node and be its face until it ends.

    services   name -> function from request body to reply body; called in threads, may raise
    on_start   called with the job's pid over there

    Raises Refused where no node can be had here; everything else is in the Status. Must be called in the main thread.
    """
    while True:
        face = Face(starter.connect(), spawn, stdin, stdout, stderr, services or {}, on_start)
        try:
            if (status := face.run()) is not None:
                return status
        finally:
            face.close()
        # The node went idle while we connected: it had not read a byte. The next one is started.


class Face:
    """One job, this process's streams and signals, one connection to the node."""

    def __init__(
        self,
        connection: socket.socket,
        spawn: Spawn,
        stdin: int,
        stdout: int,
        stderr: int,
        services: Mapping[str, Service],
        on_start: Callable[[int], None] | None,
    ) -> None:
        self.session = Session(opener=True, hello={"build": address.build_hash(), "pid": os.getpid()})
        self._socket = connection
        self._spawn = spawn
        self._stdin = stdin
        self._outputs = {STDOUT: Output(stdout), STDERR: Output(stderr)}
        self._on_start = on_start
        self._handlers = services
        self._services: Services | None = None
        self._exit: Status | None = None
        self._pid = 0
        self._unsent: list[bytes] = [starter.CLIENT]
        self._caught: deque[int] = deque()
        self._signals = 0
        self._interrupts: list[float] = []
        self._patience: tuple[int, float] | None = None  # a fatal signal that was forwarded, and until when
        self._wake, self._wake_in = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wake_in, False)
        connection.setblocking(False)
        self.number = 0

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
        previous = {number: signal.signal(number, self._catch) for number in FORWARDED}
        # A ^C that is ignored in this process (nohup, a background job) stays ignored over there.
        for number, action in previous.items():
            if action is signal.SIG_IGN:
                signal.signal(number, signal.SIG_IGN)
        wakeup = signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        try:
            return self._loop()
        except (OSError, ProtocolError) as error:
            return self._lost(str(error))
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, action in previous.items():
                signal.signal(number, action if action is not None else signal.SIG_DFL)

    def _loop(self) -> Status | None:
        while True:
            self._flush()
            if self._finished():
                return self._ended()
            events_by_fd = self._poll().poll(None if self._patience is None else 200)
            # Signals first: one that came before an end of file must not arrive over there after it.
            while self._caught:
                if left := self._signal(self._caught.popleft()):
                    return left
            if left := self._blocked():
                return left
            for fd, events in events_by_fd:
                if fd == self._socket.fileno():
                    if events & ~select.POLLOUT and not self._receive():
                        return self._lost("the node of this machine ended") if self.session.peer else None
                elif fd == self._wake:
                    self._woken()
                elif fd == self._stdin and self._reads_stdin():
                    self._read_stdin()
                for stream, output in self._outputs.items():
                    if fd == output.poll_fd and (output.pending or events & ~select.POLLOUT):
                        self._write(stream)

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.register(self._wake, select.POLLIN)
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
        self._flush()
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
        try:
            data = self._socket.recv(RECEIVE)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        if not data:
            return False
        for frame in self.session.receive(data):
            self._frame(frame)
        return True

    def _frame(self, frame: Frame) -> None:
        kind = frame.kind
        if frame.channel != self.number:
            if self._services is None:
                from transport.services import Services

                self._services = Services(self.session, self._handlers, self._wake_in)
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
            if self._on_start:
                self._on_start(self._pid)
        elif kind == Kind.EXIT:
            try:
                self._exit = Status.from_json(frame.body())
            except ValueError:
                raise ProtocolError("exit frame without a status") from None

    def _flush(self) -> None:
        """Give the socket what it takes now; the rest waits for POLLOUT."""
        while True:
            if not self._unsent:
                self._unsent = self.session.pull(256 * 1024)
                if not self._unsent:
                    return
            try:
                sent = self._socket.sendmsg(self._unsent[:512])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()  # reading tells why, and what came before
                return
            while sent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if sent:
                self._unsent[0] = self._unsent[0][sent:]

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
        return self._stdin >= 0 and self._stdin_credit() > 0

    def _stdin_credit(self) -> int:
        """Bytes of stdin to read now. None before the node has said a word: it may be ending, and what we had
        read would be lost; little before the job runs: it may wait for a slot for hours.
        """
        channel = self.session.channels.get(self.number)
        if channel is None or self._exit is not None or not self.session.peer:
            return 0
        flow = channel.flows[STDIN]
        return flow.credit if self._pid else max(0, min(flow.credit, CHUNK - flow.offset))

    def _read_stdin(self) -> None:
        flow = self.session.flow(self.number, STDIN)
        try:
            data = os.read(self._stdin, min(CHUNK, self._stdin_credit()))
        except BlockingIOError:
            return  # somebody else made it non-blocking, and read first
        except OSError:
            data = b""  # a closed descriptor, a directory, a terminal that hung up: there is no more
        if data:
            self.session.data(self.number, STDIN, data)
            flow.measure_sent(time.monotonic())
        else:
            self.session.eof(self.number, STDIN)
            self._stdin = -1

    def _close_stdin(self) -> None:
        """Nobody over there reads it: close it here, so that who writes to us gets a SIGPIPE."""
        if self._stdin >= 0:
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, self._stdin)  # the number stays taken: nothing else may land on it
            os.close(null)
            self._stdin = -1

    def _write(self, stream: int) -> None:
        output = self._outputs[stream]
        before = output.taken
        alive = output.write()
        if self._patience and output.taken > before:
            self._patience = (self._patience[0], time.monotonic() + BLOCKED)
        channel = self.session.channels.get(self.number)
        if channel is None:
            return
        self.session.took(self.number, stream, output.taken)
        if not alive and not channel.flows[stream].stopped:
            self.session.stop(self.number, stream)

    # -- signals -----------------------------------------------------------------------------------

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        self._caught.append(number)

    def _woken(self) -> None:
        """The poll was interrupted, by a signal or because replies are ready."""
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            return
        if self._services:
            self._services.send()

    def _signal(self, number: int) -> Status | None:
        if number in FATAL and (not self._pid or self._exit is not None):
            return self._leave(number)  # not started yet, or over and only our reader is slow
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
            self._flush()
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
        return None

    def _leave(self, number: int, detail: str = "") -> Status:
        """Die of a signal without waiting for the job, which its node then ends."""
        if self.number in self.session.channels:
            self.session.abandon(self.number)
        self._flush()
        return Status("signaled", 128 + number, signal_name(number), pid=self._pid, detail=detail)

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
        self._socket.close()
        os.close(self._wake)
        os.close(self._wake_in)
        for output in self._outputs.values():
            output.close()
