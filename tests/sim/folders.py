"""The folders that jobs of a machine share, and the processes in them: the product's Folders over a scripted disk.

`transport.launcher.folders` counts the jobs of a folder and removes it, as in a launcher. Scripted are the calls to the
file system, and the look at process groups. A folder is empty unless a batch has files there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transport.launcher import folders, workdir

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.process import Process
    from tests.sim.world import World


class Disk:
    """The folders of one launcher; `Machine.places` are those that are there, with a number for each that was made."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.folders = folders.Folders()
        self._looks = False  # now and then at the processes that jobs have left

    def _name(self, folder: str) -> str:
        return folder and f"{self.machine.name}:{folder}"

    def join(self, folder: str) -> None:
        self.folders.join(self._name(folder))

    def enter(self, folder: str) -> None:
        if folder:
            self.folders.enter(self._name(folder))

    def ended(self, folder: str, group: int, told: bool = False) -> bool:
        """The process of a job was reaped; 0: it was not started. Return whether something is left in its folder.

        `told`: it was told to end.
        """
        left = self.folders.ended(self._name(folder), group, group > 0 and not told, told)
        if not self._looks:
            self._look()
        return left == workdir.KEPT

    def _look(self) -> None:
        for _, name, _ in self.folders.turn(self.machine.world.now):
            remove(self.machine, name)
        self._looks = self.folders.due is not None
        if self._looks:
            self.machine.clock.after(folders.LOOK, self._look)


def remove(machine: Machine, name: str) -> int:
    if machine.texts and machine.texts.there.get(name):
        return workdir.KEPT
    machine.places.pop(name, None)
    return workdir.GONE


def check_late(process: Process) -> None:
    """A process that its job has left writes a file, which somebody may want."""
    machine = process.machine
    if f"{machine.name}:{process.cwd}" not in machine.places and not process.ended_by_node:
        what = f"{process.cwd} was removed under {process.name}, pid {process.pid}"
        machine.world.violated("folder", what)


@contextlib.contextmanager
def scripted(world: World, machines: dict[str, Machine]) -> Iterator[None]:
    """Give `transport.launcher.folders` the disks, the processes and the time of a simulation."""

    def of(name: str) -> Machine:
        return machines[name.partition(":")[0]]

    def stat(name: str) -> int:
        if name not in of(name).places:
            raise FileNotFoundError(name)
        return of(name).places[name]

    def enter_once(name: str) -> int:
        return of(name).places.setdefault(name, next(world.serial))

    def lives(group: int) -> bool:
        return any(each.alive for machine in machines.values() for each in machine.sessions.get(group, ()))

    def waitpid(group: int, flags: int) -> tuple[int, int]:
        raise ChildProcessError(group)

    scripts: dict[str, Any] = {
        "os": SimpleNamespace(
            waitpid=waitpid,
            WNOHANG=0,
            stat=stat,
            fstat=lambda fd: fd,
            close=lambda fd: None,
            path=SimpleNamespace(samestat=lambda one, other: one == other),
        ),
        "time": SimpleNamespace(monotonic=lambda: world.now),
        "workdir": SimpleNamespace(
            GONE=workdir.GONE,
            KEPT=workdir.KEPT,
            enter_once=enter_once,
            remove=lambda name, fd: remove(of(name), name),
            share=lambda fd: None,
        ),
        "lives": lives,
    }
    before = {name: getattr(folders, name) for name in scripts}
    vars(folders).update(scripts)
    try:
        yield
    finally:
        vars(folders).update(before)
