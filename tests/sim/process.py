"""Scripted processes behind real pipes, and the launcher that starts them: transport.job.interface.Launcher.

A script is a list of steps. The pipes are the kernel's, so that `pump` runs as it is; everything else is the world's.

    ("write", stream, size)  write so many bytes of the pattern; waits while the pipe is full, dies of SIGPIPE
    ("sleep", seconds)
    ("read", size)           read stdin until so many bytes came, or its end; -1: to its end
    ("close", stream)        close a stream; 0 is stdin
    ("fork", steps)          a child of the same session, with copies of all streams
    ("ask", size)            a request to the origin with a body of so many bytes; waits for its answer
    ("spawn", name)          ask for another job of the scenario, as its client; waits for its end
    ("status",)              write what `quine node --status` does
    ("late",)                write a file into its folder
    ("result", how)          write the result of an item of a batch: a "part" of it, or the "whole"
    ("call", function)       call a function with this process
    ("exit", code)           at the end of a script: exit 0
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.sim.folders import Disk, check_late
from transport import this_build
from transport.errors import RequestError
from transport.launcher import termination
from transport.rpc.call import _Call
from transport.status import NOT_STARTED, Status
from transport.wire.session import Session

if TYPE_CHECKING:
    from tests.sim.machine import Machine

Step = tuple[Any, ...]

PIPE = 16 * 1024  # bytes that a pipe takes: a job may have ended long before its output has
F_SETPIPE_SZ = 1031
_PATTERN = bytes((n * n // 7 + n) & 0xFF for n in range(8191))
PATTERN = _PATTERN * 10  # the content of every stream: the byte at offset n is _PATTERN[n % 8191]
PERIOD = len(_PATTERN)


def pattern(offset: int, size: int) -> bytes:
    """The bytes of any stream from `offset` on; at most 64 KiB."""
    at = offset % PERIOD
    return PATTERN[at : at + size]


class Pipe:
    """A pipe of a process: the node's end of it, and the count of bytes that went through from any writer."""

    def __init__(self, reads: bool) -> None:
        heard, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(told, F_SETPIPE_SZ, PIPE)
        self.fd, self.node_fd = (heard, told) if reads else (told, heard)
        self.count = 0
        self.users = 0

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            os.close(self.fd)
            self.fd = -1


class Process:
    """One process. Its steps are run by its machine, and stop while that sleeps."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        steps: Sequence[Step],
        pipes: Sequence[Pipe],
        parent: Process | None,
    ):
        world = machine.world
        self.machine = machine
        self.name = name
        self.pid = machine.next_pid()
        self.session = parent.session if parent else self.pid
        self.on_term: tuple[Any, ...] = parent.on_term if parent else ("die",)
        self.pipes = list(pipes)
        self.open = list(parent.open) if parent else [True, True, True]
        self.alive = True
        self.wait_status = 0
        self.ended_by_node = False  # by a signal that nobody sent but its node or its guard
        self.signals = 0  # that it got from its client
        self.at_exit = [0, 0, 0]  # bytes of each pipe when it ended
        self.got = bytearray()  # of stdin
        self.on_exit: Callable[[], None] | None = None
        self.started = world.now
        self.ended = 0.0
        self._steps = list(steps)
        self._left = -1  # of the step under way
        self._turn = 0  # steps that were waited for and are not due any more count less
        self._blocked = False
        self._asking: Asking | None = None
        self._client: Any = None
        self._text: bytes | None = None  # of the status, as far as it was not written yet
        self.answers: list[str] = []
        self.memo: dict[str, Any] = parent.memo if parent else {}
        self.cwd = parent.cwd if parent else ""
        self.read = ""  # the text of its input, once a result was made of it
        for pipe, is_open in zip(self.pipes, self.open, strict=True):
            pipe.users += is_open
        machine.processes[self.pid] = self
        machine.sessions.setdefault(self.session, []).append(self)
        machine.clock.after(0.0, self._go, self._turn)

    def _go(self, turn: int) -> None:
        if not self.alive or turn != self._turn:
            return
        self._blocked = False
        while self.alive and self._step():
            pass

    def poke(self) -> None:
        """A pipe may have become ready."""
        if self._blocked:
            self._go(self._turn)

    def _step(self) -> bool:
        """One step, or a part of it; False when it has to wait."""
        if not self._steps:
            self.end(0)
            return False
        kind, *args = self._steps[0]
        done = getattr(self, "_" + kind)(*args)
        if done and self._steps:
            self._steps.pop(0)
            self._left = -1
        self._blocked = not done and kind != "sleep"
        return bool(done) and self.alive

    def _write(self, stream: int, size: int) -> bool:
        pipe = self.pipes[stream]
        if self._left < 0:
            self._left = size
        while self._left and self.open[stream]:
            try:
                sent = os.write(pipe.fd, pattern(pipe.count, min(self._left, PERIOD)))
            except BlockingIOError:
                return False
            except BrokenPipeError:
                self.die(signal.SIGPIPE)
                return False
            pipe.count += sent
            self._left -= sent
            self.machine.look()
        return True

    def _status(self) -> bool:
        node, pipe = self.machine.node, self.pipes[1]
        assert node
        if self._text is None:
            self._text = json.dumps(self.machine.loop.do(node.status)).encode()
        while self._text:
            try:
                self._text = self._text[os.write(pipe.fd, self._text) :]
            except BlockingIOError:
                return False
            except BrokenPipeError:
                self.die(signal.SIGPIPE)
                return False
            self.machine.look()
        return True

    def _result(self, how: str) -> bool:
        self.machine.texts.write(self, how)
        return True

    def _late(self) -> bool:
        check_late(self)
        return True

    def _call(self, function: Callable[[Process], None]) -> bool:
        function(self)
        return True

    def _sleep(self, seconds: float) -> bool:
        self._steps[0] = ("awake",)
        self.machine.clock.after(seconds, self._go, self._turn)
        return False

    def _awake(self) -> bool:
        return True

    def _read(self, size: int) -> bool:
        if self._left < 0:
            self._left = size if size >= 0 else 1 << 60
        while self._left and self.open[0]:
            try:
                data = os.read(self.pipes[0].fd, min(self._left, 65536))
            except BlockingIOError:
                return False
            self.machine.look()
            if not data:
                break
            self.got += data
            self._left -= len(data)
        return True

    def _close(self, stream: int) -> bool:
        if self.open[stream]:
            self.open[stream] = False
            self.pipes[stream].release()
            self.machine.look()
        return True

    def _fork(self, steps: Sequence[Step]) -> bool:
        Process(self.machine, f"{self.name}'", steps, self.pipes, self)
        return True

    def _ask(self, size: int) -> bool:
        if self._asking is None:
            self._asking = Asking(self, size)
        if self._asking.answer is None:
            return False
        self.answers.append(self._asking.answer)
        self._asking = None
        return True

    def _spawn(self, name: str) -> bool:
        if self._client is None:
            self._client = self.machine.spawn(name, self)
        return bool(self._client.over)

    def _exit(self, code: int) -> bool:
        self.end(code << 8)
        return False

    def kill(self, number: int, by_node: bool = False) -> None:
        """A signal for this one process."""
        if not self.alive:
            return
        self.ended_by_node = self.ended_by_node or by_node
        self.signals += not by_node
        if number == signal.SIGTERM and self.on_term[0] != "die":
            if self.on_term[0] == "exit":
                self._turn += 1  # the step that was under way is not finished
                self._steps = list(self.on_term[1])
                self._left = -1
                self.machine.clock.after(0.0, self._go, self._turn)
            return
        if number not in (signal.SIGCONT, signal.SIGWINCH, signal.SIGCHLD):
            self.die(number)

    def die(self, number: int) -> None:
        self.end(int(number))

    def end(self, wait_status: int) -> None:
        if not self.alive:
            return
        self.alive = False
        self.ended = self.machine.world.now
        self.wait_status = wait_status
        self.at_exit = [pipe.count for pipe in self.pipes]
        self.machine.world.say(
            f"{self.machine.name}: {self.name} pid {self.pid} ends with {wait_status:#06x}"
        )
        for stream in (0, 1, 2):
            self._close(stream)
        if self._asking:
            self._asking.end.close()
        if self._client:
            self._client.kill()  # it is a process of this session
        if self.on_exit:
            self.on_exit()


class Asking:
    """A request to the origin that a process waits for. `answer` is "" or an error, once it is there."""

    def __init__(self, process: Process, size: int) -> None:
        self.process = process
        self.answer: str | None = None
        memo = process.memo
        asked = {"name": "echo", "token": memo["token"], "capability": memo["capability"]}
        self._body = bytes(size)
        self._session = Session(opener=True, hello={"build": this_build.build_hash(), "pid": process.pid})
        self._call = _Call(self._session, asked, self._body)
        self.end = process.machine.client(lambda call: process.machine.clock.after(0.0, call))
        self.end.attach(self)
        self.end.write(self._call.output())

    def data_received(self, data: bytes) -> None:
        if not self.process.alive:
            return
        try:
            self._call.feed(data)
            if output := self._call.output():
                self.end.write(output)
            if self._call.finished:
                if output := self._call.output():
                    self.end.write(output)
                whole = self._call.reply() == self._body
                self._answered("" if whole else "another body than was sent")
        except RequestError as error:
            self._answered(str(error))

    def _answered(self, answer: str) -> None:
        self.answer = answer
        self.end.close()
        self.process.poke()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, why: str) -> None:
        if self.answer is None and self.process.alive:
            self._answered(f"the node ended: {why}")


STATUS = SimpleNamespace(steps=(("status",),), on_term=("die",), refused=False, unsure=False)


class Running:
    """transport.job.interface.Running."""

    def __init__(self, launcher: Launcher, order: Any, owner: Any) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = 0, -1, -1, -1
        self.process: Process | None = None
        self._launcher = launcher
        self._machine = launcher.machine
        self._loop = launcher.machine.loop
        self._order, self._owner = order, owner
        self._exited = False
        self._ending = False
        self._folder = order.folder
        launcher.disk.join(self._folder)
        self._loop.call_soon(self._start)

    def _start(self) -> None:
        machine, argv = self._machine, self._order.argv
        script = machine.script(argv) if self._order.own else machine.scripts[argv[0]]
        if script.refused:
            self._leave()
            self._owner.on_not_started(Status("unreachable", NOT_STARTED, detail="cannot start"))
            return
        pipes = [Pipe(True), Pipe(False), Pipe(False)]
        if argv[1:] and not self._order.own:
            machine.texts.staged(machine, self._order.cwd.rstrip("/"), argv[1:])
        process = Process(machine, argv[0], script.steps, pipes, None)
        process.cwd = self._order.cwd.rstrip("/")
        self._launcher.disk.enter(self._folder)
        process.on_term = script.on_term
        process.memo = dict(self._order.memo)
        machine.launches.append((argv[0], process))
        machine.world.say(f"{machine.name}: {argv[0]} starts as pid {process.pid}")
        if script.unsure:  # it runs, and the launcher cannot take hold of it
            process.die(signal.SIGKILL)
            for pipe in pipes:
                os.close(pipe.node_fd)
            self._leave()
            self._owner.on_not_started(self._launcher.unsure())
            return
        self.process = process
        process.on_exit = self._tell_ended
        self.pid = process.pid
        self.stdin, self.stdout, self.stderr = (pipe.node_fd for pipe in pipes)
        self._owner.on_started()
        if self._ending:
            self._term()

    def _leave(self) -> None:
        """It was not started."""
        if self._folder:
            self._launcher.disk.ended(self._folder, 0)

    def _members(self) -> list[Process]:
        return [other for other in self._machine.sessions.get(self.pid, ()) if other.alive]

    def signal(self, number: int) -> None:
        if self.process and not self._exited:
            self._loop.call_soon(self._signal, number)

    def _signal(self, number: int) -> None:
        for process in self._members():
            process.kill(number)
        if not self._exited:
            self._owner.on_signalled()

    def end(self, hung_up: bool = False) -> None:
        if self._exited or self._ending:
            return
        self._ending = True
        if self.process:
            self._term()

    def _term(self) -> None:
        for process in self._members():
            process.kill(signal.SIGTERM, by_node=True)
        self._loop.call_later(termination.PAUSE, self._kill)

    def _kill(self) -> None:
        for process in self._members():
            process.kill(signal.SIGKILL, by_node=True)
        if self._exited:
            self._gone()

    def _tell_ended(self) -> None:
        if (
            self._machine.node and self._machine.loop is self._loop
        ):  # not to the node after the one that was killed
            self._loop.call_soon(self._ended)

    def _ended(self) -> None:
        """In the node: the process has ended, and is reaped."""
        assert self.process
        self._exited = True
        kept = bool(self._folder) and self._launcher.disk.ended(self._folder, self.pid, self._ending)
        self._owner.on_exited(Status.from_wait(self.process.wait_status, pid=self.pid))
        if self._ending and not self._members():
            self._gone()
        elif not self._ending and self._folder:
            self._owner.on_left(kept)  # told in one message

    def _gone(self) -> None:
        if self._owner:
            owner, self._owner = self._owner, None
            owner.on_gone()


class Launcher:
    """transport.job.interface.Launcher: starts the scripts of one machine."""

    pid = 1

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.disk = Disk(machine)

    def watch(self) -> None: ...

    def start(self, order: Any, owner: Any) -> Running:
        return Running(self, order, owner)

    async def close(self) -> None: ...

    def unsure(self) -> Status:
        """How it is said that a process was started, and is lost."""
        return Status("lost", 74, detail="it was started, and its outcome is not known")
