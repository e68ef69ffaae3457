"""An agent's end of its broker: found, or made; and asked for inferences.

Laws
1. A process that has keys gives them to nobody: a broker that was found proves that it holds the same ones, or
   another one is made. A process without keys asks the broker that the memo names.
2. A connection belongs to the process that opened it, and carries one inference at a time. An interrupted one is
   closed.
3. An inference that the end of a worker has cut is asked for again, TRIES times.
4. Nothing here loads a client of HTTP.
"""

from __future__ import annotations

import _thread
import os
import time
from _weakref import ref

from quine.base.errors import NOT_STARTED, Denied, Failure, Misconfigured, NoGuest
from quine.base.messages import Refused, Unavailable, unheard
from quine.broker import wire
from quine.broker.credentials import GUEST
from transport import quickjson
from transport.lean import contextlib, socket
from transport.this_build import build_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from quine.base.messages import Tool
    from quine.budget.ledger import Ledger

    Proofs = Callable[[tuple[str, str], tuple[int, int]], tuple[str, str]]

TRIES = 4  # of one inference that workers cut
PAUSE = 0.05  # seconds before the next one, doubled each time
PATIENCE = 10.0  # seconds that a broker may take to answer a greeting
_SHUT_RDWR = 2  # of shutdown(2)
_living: set[ref[Broker]] = set()  # the brokers of this process
GONE = "the process that holds the keys has ended"
CURE = "start the agent anew, from where the key is"


class Gone(OSError):
    """There is no broker at an address."""


class Unreachable(Failure):
    """There is no broker any more: exit 69."""

    def __init__(self, error: OSError) -> None:
        detail = GONE if isinstance(error, Gone) else f"{GONE}: {error}"
        super().__init__(NOT_STARTED, detail, CURE)


class Guest:
    """The guest of a broker, as that describes it."""

    def __init__(self, kind: str, model: str) -> None:
        self.kind = kind
        self.model = model


def connected(path: str, seconds: float = PATIENCE) -> tuple[socket.socket, str]:
    """Return a connection to the broker at `path`, and its nonce. Raises Gone, or OSError if it does not answer."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(seconds)
        _connect(line, path, seconds)
        if wire.peer(line)[1] != os.getuid():
            raise OSError("the socket belongs to another user")
        return line, str(wire.receive_json(line).get("nonce"))
    except BaseException:
        line.close()
        raise


def _connect(line: socket.socket, path: str, seconds: float) -> None:
    """Connect to the broker at `path`. Raises Gone if there is none, OSError if it takes nobody for so many seconds.

    A full queue of a socket refuses with EAGAIN at once. Its broker lives: it was taken for dead, and another one made.
    """
    over = time.monotonic() + seconds
    while True:
        try:
            with wire.reachable(path) as name:
                line.connect(name)
            return
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise Gone(str(error)) from None
        except BlockingIOError:
            if time.monotonic() > over:
                raise
        time.sleep(PAUSE)


def proven(path: str, proofs: Proofs) -> socket.socket:
    """Return a connection to the broker at `path`, each end sure that the other holds a key. Raises Gone or OSError.

    `proofs` returns the proofs of the client and of the broker, given both nonces and both pids.
    """
    line, theirs = connected(path)
    try:
        nonces, pids = (theirs, wire.nonce()), (wire.peer(line)[0], os.getpid())
        ours, due = proofs(nonces, pids)
        wire.send(line, wire.packed({"nonce": nonces[1], "proof": ours}))
        answer = wire.receive_json(line)
        if not wire.same(str(answer.get("proof")), due):
            raise OSError("it does not hold the keys")
        return line
    except BaseException:
        line.close()
        raise


class Broker:
    """The broker of this process and its ledger. Used from any thread, and in forks of its maker.

    `line` is a connection on which this process has proved its keys. `again` makes a new broker and returns its path
    and such a connection; None where only the one that has ended had the keys.
    """

    def __init__(
        self,
        path: str,
        ledger: Ledger,
        concurrent: int,
        tools: Sequence[Tool],
        environ: Mapping[str, str] = os.environ,
        line: socket.socket | None = None,
        again: Callable[[], tuple[str, socket.socket]] | None = None,
    ) -> None:
        self.path = path
        self._ledger = ledger
        self._again = again
        self._proven: socket.socket | None = None
        self._hello = {
            "build": build_hash(),
            "env": {name: environ[name] for name in GUEST if environ.get(name)},
            "mark": list(ledger.own),
            "concurrent": concurrent,
            "limited": bool(ledger.mark.cost),
            "tools": [list(tool) for tool in tools],
        }
        self._lock = _thread.allocate_lock()
        self._free: list[tuple[int, socket.socket]] = []  # with the process that each belongs to
        # A copy in a fork would keep the end of the maker from being heard: its inference would go on, and be paid.
        _living.add(ref(self, _living.discard))
        try:
            line, self.guest = self._greeted(line)
        except OSError as error:
            raise Unreachable(error) from None
        self._free.append((os.getpid(), line))

    def ask(self, name: str, body: bytes, note: Callable[[str], None] = unheard) -> bytes:
        """Ask for an inference and return the answer. Raises GuestError, Failure, or a signal handler's exception."""
        pause = PAUSE
        for tried in range(TRIES):
            line = None
            try:
                line = self._line()
                wire.send(line, wire.frame(body))
                while (answer := wire.receive(line)).startswith(wire.NOTE):
                    note(str(quickjson.loads(answer)["note"]))
            except OSError as error:
                _end(line)
                self.close()  # the others are as old, and their worker is the one that has ended
                if isinstance(error, Gone) and not self._made_again():
                    raise Refused(GONE, CURE, NOT_STARTED) from None
                if tried + 1 < TRIES:
                    note(f"the broker has ended in the middle, try {tried + 2} of {TRIES}: {error}")
                    time.sleep(pause)
                    pause *= 2
            except BaseException:
                _end(line)
                raise
            else:
                self._give_back(line)
                return answer
        raise Unavailable("the broker ends again and again")

    def close(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for _, line in free:
            line.close()

    def let_go(self) -> None:
        """Close a fork's copies of its maker's connections. The lock may be held by a thread that is not here."""
        free, self._free = self._free, []
        for _, line in free:
            line.close()

    def _made_again(self) -> bool:
        if self._again is None:
            return False
        try:
            self.path, self._proven = self._again()
        except Failure as failure:
            raise Refused(failure.detail, failure.hint, failure.status) from None
        return True

    def _line(self) -> socket.socket:
        """Return a free connection of this process, or a new one."""
        with self._lock:
            while self._free:
                pid, line = self._free.pop()
                if pid == os.getpid():
                    return line
                line.close()  # the maker's, in a fork
        proven, self._proven = self._proven, None
        try:
            return self._greeted(proven)[0]
        except Failure as failure:
            raise Refused(failure.detail, failure.hint, failure.status) from None

    def _give_back(self, line: socket.socket) -> None:
        with self._lock:
            self._free.append((os.getpid(), line))

    def _greeted(self, line: socket.socket | None) -> tuple[socket.socket, Guest]:
        """Say who this process is, and return what the guest is. Raises Failure or OSError."""
        if line is None:
            line, _ = connected(self.path)
        try:
            line.settimeout(None)
            fds = (self._ledger.fd, *self._ledger.purses[-wire.MOST_PURSES :])
            wire.send(line, wire.packed(self._hello), fds)
            answer = wire.receive_json(line)
            if "error" in answer:
                raise _refusal(answer)
            return line, Guest(str(answer["kind"]), str(answer["model"]))
        except BaseException:
            line.close()
            raise


def _end(line: socket.socket | None) -> None:
    """End a connection for all that have a copy of it, so that the broker hears of it."""
    if line is not None:
        with contextlib.suppress(OSError):
            line.shutdown(_SHUT_RDWR)
        line.close()


def _forked() -> None:
    for living in list(_living):
        if broker := living():
            broker.let_go()


# Once for all brokers: each fork calls all functions that were ever registered.
os.register_at_fork(after_in_child=_forked)


def _refusal(answer: dict[str, Any]) -> Failure:
    detail, hint = str(answer.get("detail")), str(answer.get("hint", ""))
    if answer["error"] == "noguest":
        return NoGuest(detail, hint)
    if answer["error"] == "denied":
        return Denied(f"the broker refuses to infer: {detail}", hint)
    return Misconfigured(detail, hint)
