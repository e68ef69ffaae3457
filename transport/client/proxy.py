"""The proxy that makes a job on a node look like a local process.

The state machine of `core.py` decides; this module has its descriptors, signals and clock.

Laws
1. Standard library only and no event loop: scripts start many clients in a loop.
2. One poll waits for everything: node, stdin, stdout, stderr, signals. No descriptor of the caller is made
   non-blocking, because processes that share its open file would see that.
"""

from __future__ import annotations

import os
import select
import time

from transport import node_socket, this_build
from transport.carrier.unix import Wire
from transport.client.core import FATAL, FORWARDED, OURS, Core
from transport.client.output import Output, Used, enlarged
from transport.client.signals import Caught
from transport.errors import ProtocolError
from transport.lean import signal
from transport.stop import stop_process
from transport.wire.frames import CHUNK
from transport.wire.session import STDERR, STDIN, STDOUT
from transport.writes import is_no_input

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from transport.lean import socket
    from transport.rpc.services import Service, Services
    from transport.spawn import Spawn
    from transport.status import Status
    from transport.terminal import Terminal
    from transport.wire.session import Session


class Proxy:
    """The proxy of one job: this process's streams and signals, one connection to the node. The Driver of a Core."""

    def __init__(
        self,
        connection: socket.socket,
        spawn: Spawn,
        streams: tuple[int, int, int],
        services: Mapping[str, Service],
        used: Used | None = None,
        sent: bytes = b"",
        left: Callable[[], float | None] | None = None,
    ) -> None:
        """`sent` are the bytes that have been sent already, which `opening.py` made; b"" if there are none.

        `left`: see `Core`.
        """
        hello = {"build": this_build.build_hash(), "pid": os.getpid()}
        log = connection.getpeername().removesuffix("sock") + "log"
        self._core = Core(spawn, hello, self, used, log, left)
        self._wire = Wire(connection, self._core.session, b"" if sent else node_socket.CLIENT)
        self._sent = sent
        self._spawn = spawn
        self._stdin = streams[STDIN]
        self._most = CHUNK  # bytes of one read of it
        self._offered = False  # it was lent to the node
        self._core.stdin_open = self._stdin >= 0
        self._outputs = {STDOUT: Output(streams[STDOUT]), STDERR: Output(streams[STDERR])}
        self.on_sent: Callable[[], None] | None = None
        self.on_start: Callable[[int, str], None] | None = None
        self.on_note: Callable[[dict[str, Any]], None] | None = None
        self.on_refused: Callable[[str], None] | None = None
        self.on_fatal: Callable[[int], None] | None = None
        self._terminal: Terminal | None = None
        self._handlers = services
        self._caught = Caught()
        if spawn.terminal:
            from transport.terminal import Terminal

            self._terminal = Terminal(self._stdin)

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> Status | None:
        """Return the status of the job; None if the node ended before it had read anything."""
        core = self._core
        core.begin()
        if core.over:
            return core.status
        if self._sent:
            self._wire.skip(self._sent[len(node_socket.CLIENT) :])
        # A ^C that is ignored in this process (nohup, a background job) stays ignored over there.
        self._caught.install(FORWARDED + OURS if self._terminal else FORWARDED)
        if self._terminal:
            # Python repeats a read that a signal interrupts. So a stop in a read would come again, with a TERM only
            # noted. With SIGTTIN ignored, the read fails instead.
            self._caught.ignore(signal.SIGTTIN)
        try:
            self._loop()
        except (OSError, ProtocolError) as error:
            if not core.over:
                core.fail(str(error))
        finally:
            if self._terminal:
                self._terminal.restore()
            self._caught.uninstall()
        return core.status

    def _loop(self) -> None:
        core = self._core
        if self.on_sent:
            self._wire.flush()
            self.on_sent()
        while True:
            self._wire.flush()
            core.tick(time.monotonic())
            if core.over:
                self._wire.flush()
                return
            events_by_fd = self._poll().poll(core.relieve(self._pause()))
            # Signals first: one that came before an end of file must not arrive over there after it.
            while not core.over and (number := self._caught.take()):
                if self.on_fatal and number in FATAL:
                    self.on_fatal(number)
                core.signalled(number, time.monotonic())
            for fd, events in events_by_fd:
                if core.over:
                    break
                if fd == self._wire.socket.fileno():
                    if events & ~select.POLLOUT:
                        self._receive()
                elif fd == self._caught.fd:
                    if self._caught.drain():  # readable by a signal, or because replies are ready
                        core.answered()
                elif fd == self._stdin and core.room:
                    self._read_stdin()
                for stream, output in self._outputs.items():
                    if fd == output.poll_fd and (output.pending or events & ~select.POLLOUT):
                        self._write(stream)

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._wire.socket, select.POLLIN | (select.POLLOUT if self._wire.unsent else 0))
        poll.register(self._caught.fd, select.POLLIN)
        if self._core.room and (not self._terminal or self._terminal.taken):
            poll.register(self._stdin, select.POLLIN)
        for output in self._outputs.values():
            if output.poll_fd >= 0:
                poll.register(output.poll_fd, select.POLLOUT if output.pending else 0)
        return poll

    def _pause(self) -> int | None:
        """Return the milliseconds until the core has something to do."""
        if (due := self._core.due) is None:
            return None
        return max(0, int(1000 * (due - time.monotonic())) + 1)

    def _receive(self) -> None:
        data = self._wire.receive()
        if data is None:
            self._core.closed()
        else:
            self._core.receive(data, time.monotonic())

    def _read_stdin(self) -> None:
        try:
            data = os.read(self._stdin, min(self._core.room, self._most))
        except BlockingIOError:
            return  # another process made it non-blocking, and read first
        except OSError as error:
            if self._terminal and self._terminal.behind:
                self.take_terminal()  # stops us as the read would have done, but returns for a TERM
                return
            if not is_no_input(self._stdin, error):
                self._core.unread(error.strerror or str(error), time.monotonic())
                return
            data = b""
        if len(data) == CHUNK == self._most:
            self._most = enlarged(self._stdin)
        self._core.typed(data, time.monotonic())
        if len(data) > CHUNK and not self._offered and self._core.lends(STDIN):
            self._offered = True
            self._lend_stdin()

    def _lend_stdin(self) -> None:
        """Have the node read stdin, a pipe that carries bulk: its bytes take one process less."""
        try:
            # Opened anew, because O_NONBLOCK belongs to the open file, which other processes share
            fd = os.open(f"/proc/self/fd/{self._stdin}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # a pipe of another user
        self._lend(STDIN, fd)
        os.close(fd)

    def _lend(self, stream: int, fd: int) -> None:
        try:
            self._core.lend(stream, self._wire.attach(fd))
        except OSError:
            pass  # too many descriptors wait to be sent

    def _write(self, stream: int) -> None:
        output = self._outputs[stream]
        alive = output.write()
        self._core.took(stream, output.taken, time.monotonic(), alive=alive, error=output.error)

    # -- what the core asks for --------------------------------------------------------------------

    def write(self, stream: int, data: bytes) -> None:
        self._outputs[stream].put(data)
        self._write(stream)
        if len(data) > CHUNK and stream == STDOUT and self._core.lends(STDOUT):
            fd = self._outputs[STDOUT].lendable()
            if fd >= 0:
                self._lend(STDOUT, fd)
            else:
                self._core.writes_alone()

    def written(self, stream: int, count: int) -> None:
        self._outputs[stream].taken += count

    def close_stdin(self) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, self._stdin)  # the number stays taken: nothing else may land on it
        os.close(null)

    def started(self, pid: int, host: str) -> None:
        if self.on_start:
            self.on_start(pid, host)

    def noted(self, body: dict[str, Any]) -> None:
        if self.on_note:
            self.on_note(body)

    def services(self, session: Session) -> Services:
        from transport.rpc.services import Services

        capability = self._spawn.capability
        return Services(
            session, self._handlers, self._caught.fd_in, capability, self.on_refused, self._wire.attach
        )

    def stop(self) -> None:
        self._wire.flush()
        stop_process(lambda: signal.SIGCONT in self._caught)

    def suspend(self) -> None:
        if self._terminal:
            self._terminal.restore()
            self._caught.stop(signal.SIGTSTP, FATAL + OURS)

    def take_terminal(self) -> None:
        if not self._terminal:
            return
        if self._terminal.behind and signal.getsignal(signal.SIGTTOU) is not signal.SIG_IGN:
            # The core calls this again for the noted CONT, after any other signal
            if self._caught.stop(signal.SIGTTOU, FATAL + OURS) and signal.SIGCONT not in self._caught:
                raise OSError("in the background of its terminal, where no shell can continue it")
            return
        try:
            self._terminal.raw()
        except InterruptedError:
            return  # put into the background at this moment, and stopped there by the kernel
        if self._terminal.size != self._core.size:
            self.tell_size()

    def tell_size(self) -> None:
        if self._terminal:
            self._core.resized(*self._terminal.size)

    def say_escapes(self) -> None:
        from transport.terminal import ESCAPES

        if self._terminal:
            self._terminal.say(ESCAPES)

    def close(self) -> None:
        self._core.close()
        self._wire.drop()
        self._wire.socket.close()
        self._caught.close()
        if self._terminal:
            self._terminal.close()
        for output in self._outputs.values():
            output.close()
