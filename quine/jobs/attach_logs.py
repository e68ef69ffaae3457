"""The verbs `attach` and `logs`: read the output of a job, or act as its proxy.

The bytes come from the job's files; its supervisor announces them.

Laws
1. Each stream is copied byte for byte to ours, from any offset. Output can be read again, by any number of readers.
2. The supervisor is told how much was passed on: a job that is blocked because nothing reads its output then continues.
3. A signal that ends this process does not reach the job; the end of its stdin reaches the job only with --stdin.
4. This process leaves as the job left, after its last byte. If the supervisor was killed, it reports the known facts.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

from quine.base import procs
from quine.base.cli_options import RunOptions
from quine.base.errors import FAILED, LOST, OK, Failure, Misconfigured, complain, say
from quine.jobs import batch_view
from quine.tape import registry
from quine.tape.registry import Agent
from transport import inherit
from transport.client.output import Output
from transport.detached import control
from transport.errors import ProtocolError
from transport.status import Status, die_of, signal_name
from transport.wire.frames import CHUNK, LIFE, Kind, pack
from transport.wire.session import STDERR, STDIN, STDOUT
from transport.writes import is_no_input, write_all

INTERVAL = 0.2  # seconds between two reads of a growing file
STEP = 1 << 18  # bytes read from a file at once
AHEAD = 1 << 18  # bytes of stdin sent before the job has taken them
ANSWER = 10.0  # seconds for a supervisor to send a signal
HIGHEST = 1 << 62


def send_signal(agent: Agent, number: int) -> bool:
    """Signal a job's process group through its supervisor, which alone knows that the group is still the job's.

    Return False if the job or its supervisor has ended. Raises Failure if the supervisor does not answer.
    """
    try:
        line = control.connect(agent.directory)
    except OSError:
        return False
    with line.socket:
        line.tell(Kind.SIGNAL, LIFE, 1, pack({"signal": signal_name(number)}))
        line.send()
        deadline = time.monotonic() + ANSWER
        poll = select.poll()
        poll.register(line.socket, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0 and poll.poll(left * 1000):
            line.send()
            try:
                for frame in line.receive():
                    if frame.kind == Kind.ACK and frame.stream == LIFE:
                        return True
                    if frame.kind == Kind.EXIT:
                        return False
            except (EOFError, ProtocolError):
                return False
    raise Failure(FAILED, f"{agent.id}: its supervisor (pid {agent.supervisor}) does not answer")


def attach(agent: Agent, options: RunOptions) -> Status:
    """Act as the job's proxy until it ends, and return its status."""
    starts = _starts(options)
    inherit.hold_standard_streams()
    if not agent.directory or not agent.supervisor:
        _check_started(agent)
        hint = f"quine logs --follow {agent.id}" if agent.directory else f"quine tape show {agent.id}"
        raise Failure(FAILED, f"{agent.id} is not detached", hint)
    if options.stdin and not registry.record(agent.directory).get("stdin"):
        raise Misconfigured(f"the stdin of {agent.id} is not open", "it is for a job detached with --stdin")
    with contextlib.ExitStack() as stack:
        try:
            files = [registry.opened(agent.directory, name) for name in ("stdout", "stderr")]
        except OSError as error:
            raise Failure(FAILED, f"the output of {agent.id}: {(error.strerror or '').lower()}") from None
        for fd in files:
            stack.callback(os.close, fd)
        try:
            line: control.Wire | None = control.connect(agent.directory)
        except OSError:
            line = None  # the job has ended, or its supervisor was killed
        if line:
            stack.callback(line.socket.close)
        proxy = _Proxy(files, line, starts, 0 if options.stdin else -1)
        for output in proxy.outputs:
            stack.callback(output.close)
        if line and batch_view.wanted(agent):
            proxy.view = stack.enter_context(batch_view.shown(agent.pid, proxy.outputs))
        status = proxy.run() or _outcome(agent)
        if there := os.environ.get("QUINE_NODE_NAME"):
            status.host = there  # whatever the record says, which any job of this user could write
        if proxy.error:
            status.stream_failed("write stderr", proxy.error)
        for name, fd, start in zip(("stdout", "stderr"), files, starts):
            if (size := os.fstat(fd).st_size) < start < HIGHEST:
                say(f"quine: note: {name} of {agent.id} has {size} bytes, and --from left out {start}\n")
        return status


def _check_started(agent: Agent) -> None:
    """Raise Failure if the job never started, and so has no output."""
    end = agent.verdict()
    if end.state in ("unreachable", "denied"):
        raise Failure(FAILED, f"{agent.id}: it never started: {end.detail or end.state}", end.hint)


def _starts(options: RunOptions) -> tuple[int, int]:
    """Parse --from: the bytes of each stream to skip."""
    text = options.from_ or "0"
    if text == "end":
        return HIGHEST, HIGHEST
    first, _, second = text.partition(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (first, second or "0")):
        raise Misconfigured(
            f"--from must be bytes of stdout and of stderr, as 4096 or 4096,0, or end; not {text[:80]}"
        )
    return int(first), int(second or "0")


def _outcome(agent: Agent) -> Status:
    """Wait for the job without its supervisor's report; return its recorded end, or as much as is known."""
    held = agent.holds()
    procs.wait(held, float("inf"))
    for fd in held:
        os.close(fd)
    end = agent.end()
    if end.state not in ("exited", "signaled"):
        end.detail = f"{agent.id}: {end.detail}"
    return end


class _Proxy:
    def __init__(
        self, files: list[int], line: control.Wire | None, starts: tuple[int, int], stdin: int
    ) -> None:
        self.outputs = [Output(1), Output(2)]
        self.error = ""  # why no more of stderr is written; "" also if its reader has gone
        self.view: batch_view.Painter | None = None
        self._files = files
        self._line = line
        ends = [os.fstat(fd).st_size for fd in files]
        self._at = [end if start == HIGHEST else start for start, end in zip(starts, ends)]
        self._acknowledged = [-1, -1]
        self._known = [0, 0] if line else [HIGHEST, HIGHEST]
        self._stdin = stdin if line else -1
        self._sent = self._took = 0
        self._exit: Status | None = None

    def run(self) -> Status | None:
        """Return the exit record; None if the supervisor ended without one, and all output is passed on."""
        self._acknowledge()
        while True:
            idle = self._pass_on()
            if idle and self._line is None:
                return self._exit
            if self.view and self._line:
                self.view.tick()
                self._pass_on()
            poll = select.poll()
            if self._line:
                self._line.send()  # reading shows whether the supervisor has gone
                poll.register(self._line.socket, self._line.events)
            if self._stdin >= 0 and self._line and self._sent - self._took < AHEAD:
                poll.register(self._stdin, select.POLLIN)
            for output in self.outputs:
                if output.poll_fd >= 0:
                    poll.register(output.poll_fd, select.POLLOUT if output.pending else 0)
            if self.view:
                poll.register(self.view.caught.fd, select.POLLIN)
            pause = int(self.view.pause * 1000) + 1 if self.view else None
            ready = dict(poll.poll(0 if self._more() else pause))
            if self._line and ready.get(self._line.socket.fileno()):
                self._hear(self._line)
            if self._stdin >= 0 and self._stdin in ready:
                self._read_stdin()
            if self.view and self.view.caught.fd in ready:
                self.view.signalled()

    def _more(self) -> bool:
        """Return whether there is more to pass on, and its reader is ready."""
        return any(
            not output.pending and at < known
            for output, at, known in zip(self.outputs, self._at, self._known)
        )

    def _pass_on(self) -> bool:
        """Pass on some more of each file. Return True if both are passed on as far as is known."""
        idle = True
        for n, (fd, output) in enumerate(zip(self._files, self.outputs)):
            if not output.pending and self._at[n] < self._known[n]:
                data = os.pread(fd, min(STEP, self._known[n] - self._at[n]), self._at[n])
                if data:
                    if self.view:
                        self.view.before(n, data)
                    output.put(data)
                    self._at[n] += len(data)
                else:
                    self._known[n] = self._at[n]  # the end of the file, and no supervisor announces more
            if not output.write():
                self._broken(n, output)
            idle = idle and not output.pending and self._at[n] >= self._known[n]
        self._acknowledge()
        return idle

    def _broken(self, n: int, output: Output) -> None:
        """Handle a failed write: a closed stdout ends this process, as it ends cat(1); later stderr is discarded."""
        if n == 0 and not output.error:
            die_of("PIPE")
        if n == 0:
            raise Failure(LOST, f"cannot write stdout: {output.error.lower()}")
        self.error = output.error

    def _acknowledge(self) -> None:
        if self._line is None:
            return
        for n, stream in enumerate((STDOUT, STDERR)):
            taken = max(0, self._acknowledged[n], self._at[n] - self.outputs[n].pending)
            if taken != self._acknowledged[n]:
                self._acknowledged[n] = taken
                self._line.tell(Kind.ACK, stream, taken)

    def _hear(self, line: control.Wire) -> None:
        line.send()
        try:
            frames = line.receive()
        except (EOFError, ProtocolError):
            self._line, self._stdin = None, -1
            self._known = [HIGHEST, HIGHEST]
            return
        for frame in frames:
            if frame.kind == Kind.ACK and frame.stream in (STDOUT, STDERR):
                self._known[frame.stream - 1] = max(self._known[frame.stream - 1], frame.offset)
            elif frame.kind == Kind.ACK and frame.stream == STDIN:
                self._took = frame.offset
            elif frame.kind == Kind.STOP:
                self._stdin = -1
            elif frame.kind == Kind.EXIT:
                with contextlib.suppress(ValueError):
                    self._exit = Status.from_json(frame.body())

    def _read_stdin(self) -> None:
        assert self._line
        try:
            data = os.read(self._stdin, CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if not is_no_input(self._stdin, error):
                complain(f"cannot read stdin: {(error.strerror or '').lower()}", "the job's stdin stays open")
                self._stdin = -1
                return
            data = b""
        if data:
            self._line.tell(Kind.DATA, STDIN, self._sent, data)
            self._sent += len(data)
        else:
            self._line.tell(Kind.EOF, STDIN, self._sent)
            self._stdin = -1


# -- logs ------------------------------------------------------------------------------------------


def logs(agent: Agent, options: RunOptions) -> int:
    """Print the output of a job from an offset on; with --follow until the job has ended.

    Raises Failure if it is lost: more may have been written than is kept.
    """
    if not agent.directory:
        hint = (
            f"its output went to the process that started it; for its actions see: quine tape show {agent.id}"
        )
        raise Failure(FAILED, f"the output of {agent.id} is not kept", hint)
    _check_started(agent)
    offset, tail = _number(options.offset, "offset", "bytes"), _number(options.tail, "tail", "lines")
    both, err = options.both, options.stderr
    if both and (err or offset):
        raise Misconfigured("--both goes with neither --stderr nor --offset")
    if options.tail and options.offset:
        raise Misconfigured("--tail goes without --offset")
    wanted = [("stdout", 1), ("stderr", 2)] if both else [("stderr" if err else "stdout", 1)]
    with contextlib.ExitStack() as stack:
        opened = []
        for name, target in wanted:
            try:
                file = stack.enter_context(open(registry.opened(agent.directory, name), "rb", 0))
            except OSError as error:
                if agent.kept and isinstance(error, FileNotFoundError):
                    what = f"the output of {agent.id} is not in the files tier yet"
                    raise Failure(
                        FAILED, what, f"it is kept there once it has ended: quine wait {agent.id}"
                    ) from None
                raise Failure(FAILED, f"{name} of {agent.id}: {(error.strerror or '').lower()}") from None
            file.seek(_last_lines(file.fileno(), tail) if options.tail else offset)
            opened.append((file.fileno(), target))
        held = agent.holds() if options.follow else []
        for pidfd in held:
            stack.callback(os.close, pidfd)
        going = bool(held)
        while going:
            for source, target in opened:
                _copy(source, target)
            going = not procs.wait(held, INTERVAL)
        for source, target in opened:
            _copy(source, target)
    if options.follow and (end := agent.end()).state == "lost":
        raise Failure(LOST, f"{agent.id}: {end.detail}", end.hint)
    return OK


def _number(text: str, name: str, of: str) -> int:
    text = text or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Misconfigured(f"--{name} must be a number of {of}, not {text}")
    return int(text)


def _last_lines(fd: int, count: int) -> int:
    """Return the position from which on a file has so many lines; the last one may have no newline yet."""
    at = end = os.fstat(fd).st_size
    stop = end - 1  # a newline at the very end is that of the last line
    while at and count:
        size = min(STEP, at)
        at -= size
        data = os.pread(fd, size, at)
        found = stop - at
        while (found := data.rfind(b"\n", 0, found)) >= 0:
            count -= 1
            if not count:
                return at + found + 1
        stop = at
    return 0 if count else end


def _copy(source: int, target: int) -> None:
    while data := os.read(source, STEP):
        try:
            write_all(target, data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "stdout" if target == 1 else "stderr") from None
