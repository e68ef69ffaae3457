"""The launcher's end of zygotes: made while starts of one program follow each other, one for each environment.

Laws
1. A start that is not plain (limits, a terminal, a long command line) is made in another way, and so is one that comes
   before its zygote is ready. The launcher waits for no zygote.
2. A zygote has no secret in its environment: starts that differ in secrets alone share one.
3. At most MOST are kept, and each for LIFE seconds after its last start.
4. A start that was given to a zygote which is killed then is ordered again by the node, if it had not begun.
"""

from __future__ import annotations

import os
import sys
import time

from transport import inherit, this_build
from transport.launcher import child, spare, termination, zygote
from transport.lean import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Forks = Callable[[list[str]], bool]  # whether a job of this program with such an argv may be a fork
    Key = tuple[tuple[str, str], ...]

LIFE = 10.0  # seconds
SOON = 2.0  # seconds between two starts that follow each other
MOST = 2
FAILURES = 3  # zygotes in a row that end before they are ready; then none is made any more
ROOM = 20_000  # bytes of the longest command line, which the zygote has to show
LAST = 1.0  # seconds to wait for killed ones at the end


class Zygote:
    """One process, and the launcher's end of the channel to it."""

    def __init__(self, env: Key, files: int, now: float) -> None:
        """Start the process. OSError if that cannot be done."""
        self.socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._report, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready = False
        self.used = now
        self.ordered: list[int] = []  # numbers of starts that it has, and no job yet
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            words = ("node", "--zygote", str(far.fileno()), str(files), " " * ROOM)
            start = child.Start(
                [*this_build.own_command(), *words],
                {**dict(env), inherit.VARIABLE: str(zygote.MEMO)},
                "/",
                [null, null, 2],
                keep=(far.fileno(),),
                files=files,
            )
            self.pid = child.fork(start, report)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(null)
            far.close()
            report.close()

    def send(self, data: bytes, fds: list[int]) -> bool:
        """Send one message. False if the process was killed, or the kernel has no room."""
        numbers = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if fds else []
        try:
            self.socket.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def receive(self) -> bytes | None:
        """Return one of its messages, b"" if it has ended, None if there is none."""
        try:
            return self.socket.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        self._report.close()
        self.socket.close()


class Zygotes:
    """`files`: soft limit of open files of a job."""

    def __init__(self, files: int, forks: Forks) -> None:
        self._files = files
        self._forks = forks
        self._all: dict[Key, Zygote] = {}
        self._seen: dict[Key, float] = {}  # the last start of each that no zygote has made
        self._wanted: Key | None = None
        self._failures = 0
        self._vain: list[int] = []  # numbers of starts that went with their zygote

    @property
    def open(self) -> list[int]:
        """The descriptors to poll: `hear` when one is readable."""
        return [each.socket.fileno() for each in self._all.values()]

    def start(self, number: int, order: dict[str, Any], data: bytes, fds: list[int]) -> bool:
        """Have a zygote make the job of a message; False if it must be made in another way."""
        if not order["own"] or order["limits"] or order["terminal"] or not self._forks(order["argv"]):
            return False
        if sum(len(os.fsencode(word)) + 1 for word in order["argv"]) > ROOM:
            return False
        key = tuple(inherit.scrubbed(order["env"]).items())
        found, now = self._all.get(key), time.monotonic()
        if found is None:
            if now - self._seen.get(key, 0.0) < SOON and self._failures < FAILURES:
                self._wanted = key
            while len(self._seen) > MOST:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = now
            return False
        found.used = now
        if not found.ready or not found.send(zygote.START + data, fds):
            return False
        os.close(fds.pop(spare.REPORT))
        found.ordered.append(number)
        if not found.send(zygote.GO, []):
            self._let_go(key)  # it ends without the start, which is ordered again
        return True

    def make(self) -> None:
        """Start the zygote that is wanted, now that the start which wanted it is reported."""
        key, self._wanted = self._wanted, None
        if key is None or key in self._all:
            return
        now = time.monotonic()
        if len(self._all) >= MOST:
            last = min(self._all, key=lambda each: self._all[each].used)
            if now - self._all[last].used < SOON:
                return
            self._let_go(last)
        try:
            self._all[key] = Zygote(key, self._files, now)
        except OSError:
            pass  # no room for a process: starts go on without

    def hear(self) -> list[tuple[int, int]]:
        """Return (number, pid) of each start that has ended in a job since, or in none: pid 0."""
        made, self._vain = [(number, 0) for number in self._vain], []
        for key, each in list(self._all.items()):
            while (data := each.receive()) is not None:
                if data[:1] == zygote.READY:
                    each.ready, self._failures = True, 0
                elif data[:1] == zygote.MADE:
                    number, pid = map(int, data[1:].split())
                    each.ordered.remove(number)
                    made.append((number, pid))
                else:
                    self._failures += not each.ready
                    self._let_go(key)
                    break
        made += [(number, 0) for number in self._vain]
        self._vain = []
        return made

    def _let_go(self, key: Key) -> None:
        each = self._all.pop(key)
        self._vain += each.ordered
        each.close()

    def due(self) -> float | None:
        """The time at which `dismiss` has something to do."""
        return min((each.used + LIFE for each in self._all.values()), default=None)

    def dismiss(self, now: float) -> None:
        """Let those go that were not used for LIFE seconds."""
        for key in [key for key, each in self._all.items() if now >= each.used + LIFE]:
            self._let_go(key)

    def close(self) -> None:
        """Kill all: one that is not ready yet may not see that its channel is closed."""
        pids = [each.pid for each in self._all.values()]
        for each in self._all.values():
            termination.send(each.pid, signal.SIGKILL)
            each.close()
        self._all.clear()
        if pids:
            termination.wait_ended(pids, time.monotonic() + LAST)
