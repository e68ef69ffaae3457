"""A client with many jobs as an actor: the real Batch, its connection and its poll those of a world.

`turn` runs the world until something has come for this process. So the code above it is the product's as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.world import Violation
from transport import this_build
from transport.client.batch import Batch
from transport.client.batch_core import BatchCore
from transport.client.job_core import Silence
from transport.node_socket import TRIES, short_lived
from transport.wire.session import Session

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.network import End

PULL = 256 * 1024  # bytes taken from the session at once


class Killed(BaseException):
    """SIGKILL: the process does nothing more."""


class Connection:
    """The end of the client, as `transport.client.batch` uses its Wire."""

    def __init__(self, session: Session, end: End) -> None:
        self.session, self.end = session, end
        self.paused = False

    @property
    def unsent(self) -> bool:
        return self.paused and bool(self.session.pending)

    def flush(self) -> None:
        while not self.paused and (chunks := self.session.pull(PULL)):
            self.end.writelines(chunks)


class SimulatedBatch(Batch):
    """One process. `until`: the world's time at which it has to be over."""

    def __init__(self, machine: Machine, until: float, bounded: bool) -> None:
        self._machine, self._world, self._until = machine, machine.world, until
        self._handlers = {}
        self._on_note = self._on_refused = None
        self._core = BatchCore(bounded=bounded)
        self._wire: Any = None
        self._services = None
        self._silence = Silence()
        self._tries = 0
        self._inbox: deque[tuple[Connection | None, Callable[[], None]]] = deque()
        self._killed = self._stopped = False

    # -- what befalls the process ------------------------------------------------------------------

    def kill(self) -> None:
        self._killed = True
        if self._wire:
            self._wire.end.close()

    def stop(self, seconds: float) -> None:
        """SIGSTOP, and after so long SIGCONT."""
        self._stopped = True

        def go_on() -> None:
            self._stopped = False

        self._world.clock.after(seconds, go_on)

    def soon(self, call: Callable[[], None], seconds: float = 0.0) -> None:
        """Call a function in a turn of this process."""
        self._machine.clock.after(seconds, self._inbox.append, (None, call))

    # -- transport.client.batch.Batch --------------------------------------------------------------

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None: ...

    def unwatch(self, fd: int) -> None: ...

    def turn(self, timeout: float | None = None) -> None:
        core = self._core
        core.now = self._machine.clock.time()
        if self._wire is None and core.waiting:
            self._connect()
        self._send()
        pause = self._pause(timeout)
        due = [pause == 0]
        if pause:
            self._machine.clock.after(pause / 1000, due.append, True)

        def ready() -> bool:
            return self._killed or (not self._stopped and (any(due) or bool(self._inbox)))

        if not self._world.run(self._until, ready):
            raise Violation("drains", f"the client waits: {len(core)} jobs, {core.waiting} not sent")
        if self._killed:
            raise Killed
        for _ in range(len(self._inbox)):
            core.now = self._machine.clock.time()
            connection, call = self._inbox.popleft()
            if connection is None or connection is self._wire:
                call()
        core.now = self._machine.clock.time()
        core.tell()
        self._send()

    def close(self, goes_on: bool = False) -> None:
        self._core.abandon(goes_on)
        if self._wire and self._greeted:
            self._wire.paused = False
            self._wire.flush()
        self._disconnect()

    def _connect(self) -> None:
        if self._tries >= TRIES:
            self._tries = 0
            self._core.refuse(short_lived())
            return
        session = Session(opener=True, hello={"build": this_build.build_hash(), "pid": 1})
        end = self._machine.client(lambda call: self._machine.clock.after(0.0, call))
        self._wire = Connection(session, end)
        self._silence = Silence()
        self._core.connected(session)
        end.attach(self)

    def _disconnect(self) -> None:
        if self._wire:
            self._wire.end.close()
            self._wire = None

    def _send(self) -> None:
        self._core.pump()
        if self._wire:
            self._wire.flush()

    # -- from the node -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._inbox.append((self._wire, lambda: self._core.receive(data)))

    def connection_lost(self, why: str) -> None:
        self._inbox.append((self._wire, lambda: self._lost("")))

    def pause_writing(self) -> None:
        if self._wire:
            self._wire.paused = True

    def resume_writing(self) -> None:
        if wire := self._wire:
            wire.paused = False
            self._inbox.append((wire, wire.flush))
