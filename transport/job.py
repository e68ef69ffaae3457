"""A job: one child process behind a channel of a link.

Laws
1. The exit record follows the status of the process; the streams end when their pipes do. Neither waits for the
   other, and whoever waits for the job waits for both.
2. A job whose link is down lives for its lease; without anybody who waits for it, it ends at once: TERM, a
   pause, KILL, to everything it started.
3. A job is started from what the spawn says and, when it comes from another machine, this node's login environment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transport import address, ending, folder, inherit, process
from transport.errors import ProtocolError, Refused
from transport.frames import LIFE, Frame, Kind
from transport.pump import Sink, Source
from transport.session import STDERR, STDOUT
from transport.spawn import Spawn
from transport.status import DENIED, NOT_STARTED, Status, clip, signal_number

if TYPE_CHECKING:
    from transport.guard import Table
    from transport.link import Link
    from transport.router import Relay

log = logging.getLogger("quine.job")

# What a copy of the node can do for these words of ours.
Inside = Callable[[list[str]], Callable[[], None] | None]

SHOWN = 200  # characters of a command in a status
HELD_GRACE = 1.0  # seconds a stream may be held open by a grandchild after the job's own end


_held: dict[str, list[int]] = {}  # folders made for jobs of this node: descriptor, jobs started there


def _enter(path: str) -> None:
    if path not in _held:
        _held[path] = [folder.enter(path), 0]
    _held[path][1] += 1


def _leave(path: str) -> None:
    _held[path][1] -= 1
    if not _held[path][1]:
        folder.leave(path, _held.pop(path)[0])


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
        table: Table,
        inside: Inside,
    ) -> None:
        self.link: Link | None = link
        self.remote = link.remote  # it came from another machine
        self.number = number
        self.spawn = spawn
        self.token = os.urandom(16).hex()
        self.ended = False
        self._environ = environ
        self._on_end = on_end
        self._socket_path = socket_path
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._lease: asyncio.TimerHandle | None = None  # runs while the link is down
        self._expired = False
        self.orphan = False  # it is being ended, because nobody is left who could answer what it asks
        self.asking: set[Relay] = set()  # what it has asked of its origin that is under way
        self._child: process.Child | None = None
        self._sources: list[Source] = []
        self._sink: Sink | None = None
        self._signals = 0
        self._made = ""
        self._table = table
        self._inside = inside
        self._slot = 0  # in the table, while there is something to end

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    def status(self) -> dict[str, object]:
        """For people."""
        spawn = self.spawn
        command = clip(" ".join(spawn.argv[:SHOWN])[:SHOWN])
        return {"id": spawn.id, "pid": self.pid, "tree": spawn.tree, "command": command, "ended": self.ended}

    # -- start -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; what prevents it becomes the exit record."""
        try:
            started = self._launch()
        except (Refused, ProtocolError) as error:
            hint = getattr(error, "hint", "")
            state, code = (
                ("denied", DENIED) if isinstance(error, ProtocolError) else ("unreachable", NOT_STARTED)
            )
            started = Status(state, code, detail=str(error), hint=hint)
        except OSError as error:
            hint = "too much runs there at one time; see slots in the inventory"
            started = Status("unreachable", NOT_STARTED, detail=f"cannot start: {error.strerror}", hint=hint)
        except Exception:
            # One job's oddity must not end the link that carries all the others.
            log.exception("defect while starting a job")
            detail = "a defect in quine while starting it; see the node's log"
            started = Status("unreachable", NOT_STARTED, detail=detail)
        if isinstance(started, Status):
            self._tell_exit(started)
            self._finish()
            return
        self._child = started
        assert self.link
        log.info("job %s: started as pid %d for %s", self.spawn.id, started.pid, self.link.name)
        self.link.session.tell(self.number, Kind.ATTACH, {"id": self.spawn.id, "pid": started.pid})
        self._sink = Sink(self.link, self.number, started.stdin)
        self._sources = [
            Source(self.link, self.number, stream, fd, self._stream_ended)
            for stream, fd in ((STDOUT, started.stdout), (STDERR, started.stderr))
        ]
        self._loop.add_reader(started.pidfd, self._exited)

    def refuse(self, detail: str) -> None:
        """Instead of `start`: never started, by rule."""
        self._tell_exit(Status("denied", DENIED, detail=detail))

    def _launch(self) -> process.Child | Status:
        spawn = self.spawn
        limits = process.parse_limits(spawn.limits)
        # A client of this machine sends its whole environment; from elsewhere comes what is added to the login's.
        base = self._environ if self.link and self.link.remote else {}
        term = {"TERM": spawn.terminal["term"]} if spawn.terminal and spawn.terminal["term"] else {}
        env = {**base, **term, **spawn.env}
        env["PATH"] = address.path_with_own(env.get("PATH", os.defpath))
        size = (spawn.terminal["rows"], spawn.terminal["columns"]) if spawn.terminal else None
        argv = [*address.own_command(), *spawn.argv] if spawn.own else spawn.argv
        memo = inherit.write(
            {"socket": self._socket_path, "token": self.token, "capability": spawn.capability}
        )
        try:
            env[inherit.VARIABLE] = str(memo)
            directory = self._directory()
            self._slot = self._table.expect(memo, self._made)
            inside = self._inside(spawn.argv) if spawn.own else None
            started = process.launch(argv, env, directory, limits, (memo,), size, inside=inside)
            if isinstance(started, process.Child):
                self._table.started(self._slot, started.pid)
            return started
        finally:
            os.close(memo)

    def _directory(self) -> str:
        """Where the job starts: workdir/tree, made, and removed if left empty; or `cwd`, which must be there.

        A relative cwd is below workdir/tree, as it would be below a login's home.
        """
        cwd = os.path.expanduser(self.spawn.cwd) if self.spawn.cwd is not None else ""
        if os.path.isabs(cwd):
            return cwd
        if self.spawn.workdir is None:
            return os.path.join(Path.home(), cwd)
        path = os.path.join(os.path.expanduser(self.spawn.workdir), self.spawn.tree)
        try:
            _enter(path)
        except OSError as error:
            raise Refused(f"cannot make {path}: {error.strerror}", "set workdir in the inventory") from None
        self._made = path
        return os.path.join(path, cwd)

    # -- from the link -----------------------------------------------------------------------------

    def on_frame(self, frame: Frame) -> None:
        if frame.stream == LIFE and frame.kind == Kind.STOP:
            self._detach()
            for source in self._sources:
                source.discard()
            self.end("nobody waits for it any more")
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
        if self._child:
            ending.signal_group(self._child.pid, number)

    def on_down(self, why: str) -> None:
        """The link lost its connection: the job may go on for its lease, held back by its full pipes."""
        if self._lease is None:
            self._lease = self._loop.call_later(self.spawn.lease, self._lease_over)

    def on_up(self) -> None:
        if self._lease:
            self._lease.cancel()
            self._lease = None

    def _lease_over(self) -> None:
        """Nobody came back: end it. Its record waits for as long as the link is kept."""
        self._expired = True
        if not self.ended:
            self.end("its link was down for longer than the lease")
        else:
            self._let_streams_go()

    def on_lost(self, why: str) -> None:
        """The link is gone for good: its client has ended, or nobody can come back to it."""
        self._detach()
        if self._child:
            self.end(f"its origin has gone: {why}")
        else:
            self._finish()

    def _detach(self) -> None:
        self.link = None
        for source in self._sources:
            source.detach()
        if self._sink:
            self._sink.detach()

    # -- the end -----------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """TERM, a pause, KILL: to the group first, then to everything of the session."""
        if self._child is None:
            self._finish()  # never started, or over already
            return
        if self.ended:
            return  # what it left behind has its pause already
        log.info("job %s: is ended: %s", self.spawn.id, why)
        if self.spawn.terminal:
            self._hang_up()
        else:
            ending.signal_group(self._child.pid, signal.SIGTERM)
            ending.signal_group(self._child.pid, signal.SIGCONT)
        self.orphan = True
        for relay in list(self.asking):
            relay.revoke(why)  # who waits for an answer that cannot come could not end in peace
        self._arm(ending.PAUSE, self._kill)

    def _hang_up(self) -> None:
        """Our end closed: the kernel sends HUP and CONT to the leader and to the foreground group. An interactive
        shell hangs up its jobs then, and would not listen to a TERM.
        """
        for source in self._sources:
            source.close()
        if self._sink:
            self._sink.close()

    def _kill(self) -> None:
        if self._child and not (self.ended and address.start_time(self._child.pid)):
            ending.kill_session(self._child.pid)  # not once a reaped leader's number is somebody else's
        if self.ended:
            self._finish()

    def _arm(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, action)

    def _exited(self) -> None:
        """The process ended; the pidfd is readable."""
        child = self._child
        assert child
        self._loop.remove_reader(child.pidfd)
        os.close(child.pidfd)
        status = child.reap()
        if self._expired:
            status.detail = f"the link was down for longer than the lease of {self.spawn.lease:g} s"
        self._tell_exit(status)
        if self._sink:
            self._sink.close()
        if self._expired:
            self._let_streams_go()
        if self.link is None or self._expired:
            if ending.members(child.pid):
                # What it left behind has nobody either, but gets its pause.
                self._arm(ending.PAUSE, self._kill)
            else:
                self._finish()
            return
        self._child = None
        if any(not source.closed for source in self._sources):
            self._arm(HELD_GRACE, self._drain)
        self._finish_if_done()

    def _tell_exit(self, status: Status) -> None:
        self.ended = True
        log.info("job %s: %s %s", self.spawn.id, status.state, status.signal or status.code)
        if self.link is None:
            return
        session = self.link.session
        session.tell(self.number, Kind.EXIT, status.to_json())
        if not self._sources:  # never started: nothing else will end the streams
            session.eof(self.number, STDOUT)
            session.eof(self.number, STDERR)
        self.link.wake()

    def _let_streams_go(self) -> None:
        """Nobody takes what is still in the pipes: end the streams here."""
        for source in self._sources:
            source.close()

    def _drain(self) -> None:
        for source in self._sources:
            source.drain()

    def _stream_ended(self) -> None:
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self.ended and self._child is None and all(source.closed for source in self._sources):
            self._finish()

    def _finish(self) -> None:
        for timer in (self._timer, self._lease):
            if timer:
                timer.cancel()
        self._timer = self._lease = None
        for source in self._sources:
            source.discard()
        if self._sink:
            self._sink.close()
        self._child = None
        if self._made:
            _leave(self._made)
            self._made = ""
        if self._slot:
            self._table.forget(self._slot)
            self._slot = 0
        self._on_end(self)
