"""The process that has the record of a batch, as a word of that record: may it still run?

Laws
1. It is over if its machine was booted since, or if no process has its number and its start.
2. Of a process on another machine, or in another container of this one, nothing can be known here.
"""

from __future__ import annotations

import os

from quine.tape.registry import lives
from transport.address import boot_id, pid_space, start_time
from transport.lean import NamedTuple
from transport.text import harmless


class Owner(NamedTuple):
    """A process, and where it runs."""

    boot: str
    machine: str  # digest of what names the machine in all its boots
    space: str  # where its number is one: the namespace of pids
    pid: int
    start: int  # of the process, in clock ticks since boot
    node: str  # name of the machine, for messages

    @property
    def word(self) -> str:
        return ",".join(map(str, self))

    def is_elsewhere(self, here: Owner) -> bool:
        """Whether it ran where its end cannot be seen from `here`."""
        if self.boot == here.boot:
            return self.space != here.space
        return self.machine != here.machine

    def runs(self, here: Owner) -> bool:
        """Whether it runs, as far as that can be seen from `here`, another process."""
        if (self.boot, self.space) != (here.boot, here.space) or self.pid == here.pid:
            return False
        return lives(self.pid, self.start)


def this_process() -> Owner:
    node = "-".join(os.uname().nodename.split()) or "-"
    return Owner(boot_id(), _machine(node), pid_space(), os.getpid(), start_time(os.getpid()), node)


def parsed(word: str) -> Owner:
    """Raises ValueError."""
    boot, machine, space, pid, start, node = word.split(",", 5)
    return Owner(boot, machine, space, int(pid), int(start), harmless(node))


def _machine(node: str) -> str:
    """The machine's own id is not to be shown to others, and clones of one machine may have the same."""
    from transport.lean import blake2b

    own = b""
    try:
        with open("/etc/machine-id", "rb") as file:
            own = file.read(64).strip()
    except OSError:
        pass
    return blake2b(b"quine\0" + own + b"\0" + os.fsencode(node), digest_size=8).hexdigest()
