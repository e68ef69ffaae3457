"""Many jobs from one process: one connection to the node of this machine, one poll, no thread and no process a job.

    batch = Batch()
    for item in items:
        batch.start(Spawn(["wc", "-c"], where="any"), stdin=item, on_output=show, on_exit=count)
    while len(batch):
        batch.turn()

The state machine of `batch_core.py` decides; this module has its descriptors and its clock.

Laws
1. Standard library only and no event loop. The caller may watch descriptors of its own in the same poll.
2. No policy: how many jobs are started at one time, tried again, or given up, is decided by the caller. But a job that
   cannot be begun now waits here, bound to no host.
3. If the node ends, the jobs that were sent are lost. Those that wait are sent to the next node, which is started.
"""

from __future__ import annotations

import os
import select
import stat
import time

from transport import node_socket, this_build
from transport.carrier.unix import Wire
from transport.client.batch_core import BatchCore
from transport.client.batch_job import BatchJob, Functions
from transport.client.connect import connect
from transport.client.job_core import Silence
from transport.errors import ProtocolError, Refused
from transport.wire.session import Session
from transport.writes import is_no_input

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from transport.client.batch_job import Input
    from transport.rpc.services import Service, Services
    from transport.spawn import Spawn
    from transport.status import Status
    from transport.wire.frames import Frame

REQUESTS = 4096  # requests of all jobs at one time
LAST = 2.0  # seconds for the last frames of a batch to be taken
THREADS = 256  # handlers of one service at one time; they exist while they are needed

__all__ = ["Batch", "BatchJob"]


class Batch:
    """The jobs of this process; `len(batch)` are those whose end was not told yet. To be used in one thread.

    `waker` is a descriptor: a byte written to it, by a thread or by `signal.set_wakeup_fd`, ends a `turn`.
    """

    def __init__(
        self,
        services: Mapping[str, Service] | None = None,
        on_note: Callable[[dict[str, Any]], None] | None = None,
        on_refused: Callable[[str], None] | None = None,
        bounded: bool = False,
    ) -> None:
        """services   name -> handler, for the requests of all jobs that have none of their own; called in threads
        on_note    called with {"silent": path of its log} if the node does not answer
        on_refused called with the reason when a request was refused
        bounded    a host without `slots` has as many of the jobs at one time as it has processors
        """
        self._handlers = services or {}
        self._on_note = on_note
        self._on_refused = on_refused
        self._core = BatchCore(node_socket.log_path(), bounded)
        self._core.on_request = self._request
        self._wire: Wire | None = None
        self._services: Services | None = None
        self._silence = Silence()
        self._tries = 0  # nodes in a row that have ended before they had done anything
        self._poll = select.poll()
        self._watched: dict[int, Callable[[int], None]] = {}
        self._events = 0  # that the connection is polled for
        self._woken, self.waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self.waker, False)
        self.watch(self._woken, select.POLLIN, self._wake)

    def __len__(self) -> int:
        return len(self._core)

    @property
    def waiting(self) -> int:
        """Jobs that wait here and are bound to no host."""
        return self._core.waiting

    @property
    def is_full(self) -> bool:
        """Whether a job waits because no host has a free slot."""
        return self._core.is_full

    # -- for the caller ----------------------------------------------------------------------------

    def start(
        self,
        spawn: Spawn,
        stdin: bytes | int | Input | None = None,
        on_output: Callable[[int, memoryview], int | None] | None = None,
        on_started: Callable[[int, str], None] | None = None,
        on_exit: Callable[[Status], None] | None = None,
        on_note: Callable[[dict[str, Any]], None] | None = None,
        services: Mapping[str, Service] | None = None,
        on_send: Callable[[bool], bool] | None = None,
    ) -> BatchJob:
        """Take a job. It is sent in a later `turn`, when its WHERE has room; the functions are those of BatchJob.

        `stdin` is all of its input; or a descriptor, which is read when the job runs and stays the caller's; or a
        function, see BatchJob; None is empty input.
        """
        spawn.capability = spawn.capability or os.urandom(16).hex()
        source = Descriptor(self, stdin) if isinstance(stdin, int) else stdin or b""
        job = self._core.add(
            spawn,
            source,
            Functions(on_started, on_output, on_note, on_exit, on_send),
            self._handlers if services is None else services,
        )
        if isinstance(source, Descriptor):
            source.ready = job.more
        return job

    def recall(self, host: str) -> None:
        """Send the jobs elsewhere that a host was given and has not begun, as far as it says so."""
        self._core.recall(host)

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Have `call` called in `turn` with the events of a descriptor, until `unwatch`. One function a descriptor."""
        if fd in self._watched and self._watched[fd] != call:
            raise ValueError(f"descriptor {fd} is watched already")
        self._poll.register(fd, events)
        self._watched[fd] = call

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None):
            self._poll.unregister(fd)

    def turn(self, timeout: float | None = None) -> None:
        """Wait for events, at most `timeout` seconds, and handle them. All functions are called from here.

        Returns when something was handled. With no job and nothing watched it would wait for ever.
        """
        core = self._core
        core.now = time.monotonic()
        if self._wire is None and core.waiting:
            self._connect()
        self._send()
        for fd, events in self._poll.poll(self._pause(timeout)):
            core.now = time.monotonic()
            if call := self._watched.get(fd):  # an earlier one may have ended it
                call(events)
        core.now = time.monotonic()
        if self._wire and self._silence.broke(self._greeted, core.now) and self._on_note:
            self._on_note({"silent": core.log})
        core.tell()
        self._send()

    def close(self, goes_on: bool = False) -> None:
        """Give up all jobs, without calling their functions: the node ends those that run.

        With `goes_on` those that are kept (`Spawn.keep`) go on for their lease, as after a death of this process.
        """
        self._core.abandon(goes_on)
        self._drain()
        self._disconnect()
        for fd in (self._woken, self.waker):
            self.unwatch(fd)
            os.close(fd)

    # -- the connection ----------------------------------------------------------------------------

    @property
    def _greeted(self) -> bool:
        return bool(self._core.session and self._core.session.peer)

    def _connect(self) -> None:
        try:
            if self._tries >= node_socket.TRIES:
                self._tries = 0
                raise node_socket.short_lived()
            connection = connect()
        except Refused as refused:
            self._core.refuse(refused)
            return
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            self._core.refuse(Refused(f"the node of this machine cannot be connected to: {why}"))
            return
        session = Session(opener=True, hello={"build": this_build.build_hash(), "pid": os.getpid()})
        self._wire = Wire(connection, session, node_socket.CLIENT)
        self._silence = Silence()
        self._core.connected(session)
        self._events = select.POLLIN
        self.watch(connection.fileno(), self._events, self._receive)

    def _receive(self, events: int) -> None:
        wire = self._wire
        assert wire
        if not events & ~select.POLLOUT:
            return
        try:
            data = wire.receive()
        except OSError as error:
            self._lost(str(error))
            return
        if data is None:
            self._lost("")
            return
        try:
            self._core.receive(data)  # an OSError of a caller's function is no fault of the connection
        except ProtocolError as error:
            self._lost(str(error))

    def _lost(self, why: str) -> None:
        self._tries = 0 if self._core.answered else self._tries + 1
        self._disconnect()
        self._core.lost(why)

    def _disconnect(self) -> None:
        if self._services:
            self._services.close()
            self._services = None
        if self._wire:
            self.unwatch(self._wire.socket.fileno())
            self._wire.drop()
            self._wire.socket.close()
            self._wire = None

    def _send(self) -> None:
        """Send what is due, as far as the socket takes it."""
        self._core.pump()
        wire = self._wire
        if wire is None:
            return
        try:
            wire.flush()
        except OSError as error:
            self._lost(str(error))
            return
        events = select.POLLIN | (select.POLLOUT if wire.unsent else 0)
        if events != self._events:
            self._events = events
            self._poll.modify(wire.socket, events)

    def _drain(self) -> None:
        """Send all that is queued, for LAST seconds at most."""
        until = time.monotonic() + LAST
        poll = select.poll()
        while (wire := self._wire) and self._greeted:
            try:
                wire.flush()
            except OSError:
                return
            if not wire.unsent or time.monotonic() > until:
                return
            poll.register(wire.socket, select.POLLOUT)
            poll.poll(max(0, int(1000 * (until - time.monotonic()))))

    def _pause(self, timeout: float | None) -> int | None:
        """Return the milliseconds until there is something to do without an event."""
        core, wire = self._core, self._wire
        if core.busy and not (wire and wire.unsent):
            return 0
        if wire is None and core.waiting:
            return 0  # the node has ended, and another one is needed
        due = [core.due, None if self._greeted or wire is None else self._silence.due]
        pauses = [each - core.now for each in due if each is not None]
        if timeout is not None:
            pauses.append(timeout)
        pause = max(0, int(1000 * min(pauses)) + 1) if pauses and min(pauses) > 0 else 0 if pauses else None
        return self._services.relieve(pause) if self._services else pause

    # -- requests ----------------------------------------------------------------------------------

    def _request(self, frame: Frame) -> None:
        if self._services is None:
            from transport.rpc.services import Services

            assert self._wire and self._core.session
            self._services = Services(
                self._core.session,
                {},
                self.waker,
                "",
                self._on_refused,
                self._wire.attach,
                rights=self._rights,
                most=REQUESTS,
                threads=THREADS,
            )
        self._services.on_frame(frame)

    def _rights(self, number: object) -> tuple[str, Mapping[str, Service]] | None:
        job = self._core.job(number)
        return (job.spawn.capability, job.services) if job else None

    def _wake(self, _: int) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            return
        if self._services:
            self._services.send()


class Descriptor:
    """Stdin of a job from a descriptor, which is never made non-blocking: it is read when poll says so."""

    __slots__ = ("_batch", "_fd", "_readable", "_regular", "_watched", "ready")

    def __init__(self, batch: Batch, fd: int) -> None:
        self._batch = batch
        self._fd = fd
        self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
        self._readable = self._watched = False
        self.ready: Callable[[], None] = lambda: None

    def __call__(self, room: int) -> bytes | None:
        if self._readable or self._regular:
            self._readable = False
            try:
                return os.read(self._fd, room)
            except BlockingIOError:
                pass  # another process made it non-blocking, and read first
            except OSError as error:
                if is_no_input(self._fd, error):
                    return b""
                name = os.readlink(f"/proc/self/fd/{self._fd}")
                raise OSError(error.errno, error.strerror, name if name[0] == "/" else "stdin") from None
        self._batch.watch(self._fd, select.POLLIN, self._is_readable)
        self._watched = True
        return None

    def _is_readable(self, _: int) -> None:
        self.close()
        self._readable = True
        self.ready()

    def close(self) -> None:
        if self._watched:
            self._watched = False
            self._batch.unwatch(self._fd)
