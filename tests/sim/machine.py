"""A machine: a clock, a node on a loop of its own, processes, and clients."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from tests.sim.network import End, connect
from tests.sim.process import STATUS, Launcher, Process
from tests.sim.world import Loop, World
from transport.launcher import termination
from transport.node.daemon import Node

LOCAL = 0.0001  # seconds of a byte through a Unix socket


class Machine:
    """`scripts` has the steps of its commands, by name; `place` is a node's Place, where it has an inventory."""

    def __init__(self, world: World, name: str, number: int, scripts: dict[str, Any]) -> None:
        self.world = world
        self.name = name
        self.clock = world.make_clock()
        self.scripts = scripts
        self.place: Callable[..., Any] | None = None
        self.spawn: Callable[..., Any]  # (name, process): a job of this machine asks for another
        self.node: Node | None = None
        self.loop: Loop
        self.processes: dict[int, Process] = {}
        self.sessions: dict[int, list[Process]] = {}
        self.launches: list[tuple[str, Process]] = []
        self.ends: list[End] = []  # the ends of its node
        self.texts: Any = None  # the files of a batch
        self.nodes = 0  # started so far
        self.processors = 0
        self.judged = 0  # launches that a rule has seen
        self._pids = number * 100_000
        self.places: dict[str, int] = {}  # folders of jobs
        self.start_node()

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def script(self, argv: list[str]) -> Any:
        """The script of a job of ours: one that moves files, else one that asks the node for its status."""
        return (self.texts and self.texts.script(argv)) or STATUS

    # -- the node -----------------------------------------------------------------------------------

    def start_node(self) -> None:
        """As a client or a dial does that finds none."""
        if self.node is None:
            self.nodes += 1
            self.loop = self.world.make_loop(self.clock)
            self.loop.after_turn = self.poke
            self.ends = []
            seat = {"origin": self.name, "began": self.nodes}
            self.node = self.loop.do(lambda: Node(Launcher(self), self.place, seat=seat))
            self.tell_processors(self.processors)

    def tell_processors(self, number: int) -> None:
        """Have the node tell of so many; 0: of those of this machine."""
        self.processors = number
        for facts in (self.node._facts, self.node._served._facts) if number else ():
            facts["processors"] = number

    def look(self) -> None:
        """A pipe has changed: its node and its processes look at it."""
        self.loop.looked = False

    def poke(self) -> None:
        for process in list(self.processes.values()):
            if process.alive:
                process.poke()

    def kill_node(self) -> None:
        """SIGKILL. Its connections end, and its guard ends its jobs."""
        node, loop = self.node, self.loop
        if node is None:
            return
        self.world.say(f"{self.name}: its node is killed")
        self.node = None
        loop.held = True
        for end in self.ends:
            end.close()
        for fd in node_descriptors(node):
            os.close(fd)
        for process in list(self.processes.values()):
            process.kill(signal.SIGTERM, by_node=True)
        self.clock.after(termination.PAUSE, self._guard_kills, list(self.processes.values()))

    @staticmethod
    def _guard_kills(processes: list[Process]) -> None:
        for process in processes:
            process.kill(signal.SIGKILL, by_node=True)

    def crash(self) -> None:
        """The power is cut: all processes end, without notice to any peer."""
        self.world.say(f"{self.name}: crashes")
        for end in self.ends:
            end.hole = end.peer.hole = True
        node, self.node = self.node, None
        if node:
            self.loop.held = True
            for fd in node_descriptors(node):
                os.close(fd)
        for process in list(self.processes.values()):
            process.kill(signal.SIGKILL, by_node=True)

    def stop_node(self, seconds: float) -> None:
        """SIGSTOP, and after so long SIGCONT. The clock goes on."""
        loop = self.loop
        loop.held = True
        self.world.say(f"{self.name}: its node is stopped")

        def go_on() -> None:
            if self.loop is loop and self.node:
                loop.held = False
                self.world.say(f"{self.name}: its node goes on")

        self.world.clock.after(seconds, go_on)

    def suspend(self, seconds: float) -> None:
        """The laptop sleeps: nothing on it runs, and its clock stands still."""
        self.clock.sleep()
        self.world.say(f"{self.name}: sleeps")

        def wake() -> None:
            self.clock.wake()
            self.world.say(f"{self.name}: wakes")

        self.world.clock.after(seconds, wake)

    def client(self, soon: Callable[..., object]) -> End:
        """A client's end of a connection to the node here, which is started if there is none."""
        self.start_node()
        ours, theirs = connect(self.world, soon, self.loop.call_soon, LOCAL, LOCAL)
        self.ends.append(theirs)
        node = self.node
        self.loop.call_soon(lambda: node.serve_client(theirs))  # type: ignore[union-attr]
        return ours

    def close(self) -> None:
        """At the end of a simulation."""
        if self.node:
            for fd in node_descriptors(self.node):
                os.close(fd)

    def dialled(self, end: End) -> None:
        """A connection that another node has dialled has come."""
        self.start_node()
        end.soon = self.loop.call_soon
        self.ends.append(end)
        node = self.node
        self.loop.call_soon(lambda: node.serve_dial(end))  # type: ignore[union-attr]


def node_descriptors(node: Node) -> list[int]:
    """Return the descriptors that the kernel closes for a killed node, and mark them as closed."""
    found = []
    for job in node._jobs.values():
        for pump in (*job._sources, job._sink):
            if pump and pump._fd >= 0:
                found.append(pump._fd)
                pump._fd = -1
    return found
