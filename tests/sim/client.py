"""A client as an actor: the real Core and Services, with scripted streams of its caller around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.network import End
from tests.sim.process import PERIOD, pattern
from transport import this_build
from transport.client.core import Core
from transport.rpc.services import Services
from transport.status import Status
from transport.wire.session import Session

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from transport.spawn import Spawn

READ = 8192  # bytes that a reader of our output takes at once
TRIES = 3  # nodes that may be gone before they have read a byte, as in transport.node.rendezvous


class Inline:
    """The pool of Services: handlers run a while later, in the order in which they were asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, work: Callable[..., None], /, *args: Any) -> None:
        def run() -> None:
            work(*args)
            self._client.core.answered()
            self._client._pump()

        self._client.soon(run, seconds=0.01)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


class Client:
    """One job, as a command of a user. `rate`: bytes a second that the reader of its output takes, 0 = all at once.

    `status` is there when it has ended; `dead`: it was killed. `stdin` is how many bytes it is given.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        spawn: Spawn,
        rate: float = 0.0,
        stdin: int = 0,
        checks: bool = True,
    ) -> None:
        self.machine = machine
        self.world = machine.world
        self.name = name
        self.spawn = spawn
        self.rate = rate
        self.stdin = stdin
        self.checks = checks  # that every byte is the one that was written
        self.status: Status | None = None
        self.dead = False
        self.ended = 0.0
        self.delivered = [0, 0, 0]  # bytes that its caller's stdout and stderr took
        self.notes: list[dict[str, Any]] = []
        self._queued: list[list[bytes]] = [[], [], []]
        self._reading = [False, False, False]
        self._typed = 0
        self._tries = 0
        self._signals: list[str] = []
        self._stopped: list[Callable[..., None]] | None = None  # calls to make once it goes on
        self._connect()

    def soon(self, call: Callable[..., None], seconds: float = 0.0) -> None:
        self.machine.clock.after(seconds, self._do, call)

    def _do(self, call: Callable[..., None]) -> None:
        if self._stopped is not None:
            self._stopped.append(call)
        elif not self.over:
            call()

    def stop(self, seconds: float = 0.0) -> None:
        """SIGSTOP, and after so long SIGCONT."""
        if self._stopped is None and not self.over and seconds:
            self._stopped = []
            self.world.clock.after(seconds, self._go_on)

    def _go_on(self) -> None:
        calls, self._stopped = self._stopped or [], None
        for call in calls:
            self._do(call)

    @property
    def over(self) -> bool:
        return self.dead or self.status is not None

    def _connect(self) -> None:
        self._tries += 1
        self.core = Core(self.spawn, {"build": this_build.build_hash(), "pid": 1}, self)
        self.core.begin()
        self.end: End = self.machine.client(self.soon)
        self.end.attach(self)
        self._pump()

    def _pump(self) -> None:
        """Send the data that is due; check whether the client has ended."""
        core = self.core
        while not self.over and core.number and self._typed <= self.stdin and (room := core.room):
            data = pattern(self._typed, min(room, self.stdin - self._typed, PERIOD))
            core.typed(data, self.machine.clock.time())
            self._typed += len(data) or 1
        core.tick(self.machine.clock.time())
        while chunks := core.session.pull(1 << 16):
            self.end.writelines(chunks)
        if core.over and not self.over:
            self._over()

    def _over(self) -> None:
        self.end.close()
        self.core.close()
        if self.core.status is None and self._tries < TRIES:
            self._connect()
            return
        self.status = self.core.status or Status(
            "unreachable", 69, detail="the node ends as soon as it is started"
        )
        self.ended = self.world.now
        self.world.say(f"{self.name}: {self.status}")
        self.machine.look()
        self.machine.poke()

    # -- what its caller does ---------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL."""
        if not self.over:
            self.world.say(f"{self.name}: is killed")
            self.dead, self.ended = True, self.world.now
            self.end.close()

    def signal(self, number: int) -> None:
        if not self.over:
            self.core.signalled(number, self.machine.clock.time())
            self._pump()

    # -- from the node ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self.over:
            self.core.receive(data, self.machine.clock.time())
            self._pump()

    def connection_lost(self, why: str) -> None:
        if not self.over:
            self.core.closed()
            self._pump()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    # -- transport.client.core.Driver ---------------------------------------------------------------

    def write(self, stream: int, data: bytes) -> None:
        self._queued[stream].append(data)
        if not self._reading[stream]:
            self._reading[stream] = True
            self.soon(lambda: self._take(stream))

    def _take(self, stream: int) -> None:
        """The reader of the output takes all bytes that are there, or one piece of them."""
        queued, self._queued[stream] = b"".join(self._queued[stream]), []
        if self.rate and len(queued) > READ:
            self._queued[stream].append(queued[READ:])
            queued = queued[:READ]
        at = self.delivered[stream]
        for start in range(0, len(queued), PERIOD):
            piece = queued[start : start + PERIOD]
            if self.checks and piece != pattern(at + start, len(piece)):
                self.world.violated("bytes", f"{self.name}: stream {stream} differs after byte {at + start}")
        self.delivered[stream] += len(queued)
        self.core.took(stream, self.delivered[stream], self.machine.clock.time())
        self._reading[stream] = bool(self.rate and queued) or bool(self._queued[stream])
        if self._reading[stream]:
            self.soon(lambda: self._take(stream), len(queued) / self.rate if self.rate else 0.0)
        self._pump()

    def written(self, stream: int, count: int) -> None: ...

    def close_stdin(self) -> None:
        self._typed = self.stdin + 1

    def started(self, pid: int, host: str) -> None: ...

    def noted(self, body: dict[str, Any]) -> None:
        self.notes.append(body)

    def services(self, session: Session) -> Services:
        handlers = {"echo": lambda body: body}
        return Services(
            session, handlers, -1, self.spawn.capability, clock=self.machine.clock.time, pool=Inline(self)
        )

    def suspend(self) -> None: ...

    def take_terminal(self) -> None: ...

    def tell_size(self) -> None: ...

    def say_escapes(self) -> None: ...
