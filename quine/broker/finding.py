"""The broker of a process: named by the memo, found by the keys, or made.

Laws
1. A process with keys does not look for their broker itself: its prover does (quine/broker/memory.py), and proves to
   the broker that the agent comes from a holder of the keys. The agent has marks of the secrets, by which it masks its
   tape.
2. Makers of a broker wait for each other, so that agents that start together share one. The lock is that of the kernel,
   and the wait is bounded.
3. A broker that cannot prove that it has the keys is a stranger: another one is made, under a name that is told to
   descendants alone.
"""

from __future__ import annotations

import fcntl
import os
import time

from quine.base.errors import NOT_STARTED, USAGE, Failure, Misconfigured, NoGuest
from quine.broker import credentials, memory, wire
from quine.broker.client import Broker, Gone, Unreachable, proven
from quine.providers.choice import KEYS, choose
from quine.tape.redact import Forgotten, forgotten
from transport import inherit
from transport.address import runtime_directory
from transport.errors import Refused
from transport.lean import contextlib, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from quine.base.messages import Tool
    from quine.broker.client import Proofs
    from quine.budget.ledger import Ledger
    from transport.lean import Any

PATIENCE = (
    60.0  # seconds to wait for another process that makes a broker; the kernel ends the lock with its holder
)
STEP = 0.005
VARIABLE = "broker"  # in the memo


class _State:
    """The broker of this process, once it has been looked for."""

    def __init__(self) -> None:
        self.path = ""
        self.keyed = False
        self.line: tuple[int, socket.socket] | None = None
        self.masks: tuple[Forgotten, ...] = ()
        self.failure: Failure | None = None


_state = _State()


def masks() -> tuple[Forgotten, ...]:
    """Return the marks of the secrets that this process has left behind."""
    return _state.masks


# -- the keys of a process that is an agent ----------------------------------------------------------


def prove(line: socket.socket, agent: int, environ: Mapping[str, str], left: Mapping[str, str]) -> None:
    """Find or make the broker for a process that has left its secrets, tell it, and prove that the keys are here.

    This is the prover. `environ` is the environment that the agent was started with, and `left` the variables that it
    has no more. Return when the agent has its connection, or has ended. Raises OSError.
    """
    keys = {name: left[name].strip() for name in KEYS if left.get(name, "").strip()}
    # A script here: a nested agent may have a server for its guest.
    unfit = () if credentials.is_elsewhere(environ) else ("QUINE_API_TYPE", "QUINE_API_BASE")
    own = {name: value for name, value in environ.items() if name not in unfit}
    _settle(own)
    told: dict[str, Any] = {"masks": [mark for value in left.values() for mark in forgotten(value.strip())]}
    broker = 0
    try:
        # Held as long as this process is there: an idle broker could end before the agent has a connection of its own.
        told["path"], held = _own(own, keys)
        broker = wire.peer(held)[0]
    except Failure as failure:
        told |= {"failure": [failure.status, failure.detail, failure.hint, isinstance(failure, NoGuest)]}
    wire.send(line, wire.packed(told))
    key = credentials.secret(own, keys)
    while True:
        asked = wire.receive_json(line)
        # For no other process and no other broker: its answer is worthless to all but them.
        if asked.get("pids") != [broker, agent]:
            return
        wire.send(line, wire.packed({"proofs": _proofs(key)(asked["nonces"], (broker, agent))}))


def arrive(environ: MutableMapping[str, str] = os.environ) -> None:
    """Take the broker that the prover has found, if this process has left its keys to one; it has no other key now.

    A failure is kept, and raised once a guest is wanted: then all options have been read.
    """
    _settle(environ)
    state = inherit.renewed(inherit.read(environ))
    if "prover" in state:
        line = socket.socket(fileno=state["line"])
        try:
            _take(line)
        except (OSError, ValueError) as error:
            _state.failure = _unmade(error)
        finally:
            line.close()
        with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored
            os.waitpid(state["prover"], 0)
    memory.reopen()


def _settle(environ: MutableMapping[str, str]) -> None:
    if environ.get(credentials.FILE):  # the broker reads it, from another directory
        environ[credentials.FILE] = os.path.abspath(os.path.expanduser(environ[credentials.FILE]))


def _take(line: socket.socket) -> None:
    told = wire.receive_json(line)
    _state.masks = tuple(Forgotten(*mark) for mark in told["masks"])
    if "failure" in told:
        status, detail, hint, no_guest = told["failure"]
        usage = (NoGuest if no_guest else Misconfigured)(detail, hint)
        _state.failure = usage if status == USAGE else Failure(status, detail, hint)
        return

    def proofs(nonces: tuple[str, str], pids: tuple[int, int]) -> tuple[str, str]:
        wire.send(line, wire.packed({"nonces": nonces, "pids": pids}))
        client, broker = wire.receive_json(line)["proofs"]
        return client, broker

    _state.path, _state.keyed = told["path"], True
    _state.line = (os.getpid(), proven(_state.path, proofs))


def _unmade(error: Exception) -> Failure:
    why = getattr(error, "strerror", None) or str(error)
    return Failure(NOT_STARTED, f"no process can be made that asks the guest: {why.lower()}")


def is_served(environ: Mapping[str, str], memo: Mapping[str, object]) -> bool:
    """Return whether a broker chooses the guest, which alone knows all of its settings."""
    return credentials.is_elsewhere(environ) and (VARIABLE in memo or credentials.sources(environ))


def _given(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a key in place of the one that a file or a command gives."""
    return {"QUINE_API_KEY": "given"} if credentials.sources(environ) else {}


def _own(environ: Mapping[str, str], keys: Mapping[str, str]) -> tuple[str, socket.socket]:
    """Find or make the broker of these keys; return its path and a connection. Raises Failure."""
    known = {name: environ[name] for name in credentials.GUEST if environ.get(name)}
    choose({"QUINE_MODEL_ID": "any", **known, **_given(environ), **keys})
    return _found_or_made(environ, keys)


def broker(
    ledger: Ledger,
    concurrent: int,
    tools: Sequence[Tool],
    memo: Mapping[str, object],
    environ: Mapping[str, str] = os.environ,
    secrets: Mapping[str, str] | None = None,
) -> Broker:
    """Return the broker of this process, which pays from `ledger`. Raises Failure: no guest, or none can be reached.

    `secrets` are keys that the process holds and keeps, as a program does that calls quine.
    """
    if _state.failure:
        raise _state.failure
    told = memo.get(VARIABLE)
    keys = {name: value for name, value in (secrets or {}).items() if name in KEYS and value}
    if not _state.path and not keys and isinstance(told, list) and len(told) == 2:
        _state.path, _state.keyed = str(told[0]), bool(told[1])
    if keys or not _state.path:
        _state.path, made = _own(environ, keys)
        _state.keyed, _state.line = bool(keys), (os.getpid(), made)
    line, _state.line = _state.line, None
    if line and line[0] != os.getpid():
        line = None
    again = None if _state.keyed else lambda: _found_or_made(environ, {})
    more = (ledger, concurrent, tools, environ)
    try:
        return Broker(_state.path, *more, line[1] if line else None, again)
    except Unreachable:
        if _state.keyed or again is None:
            raise
        _state.path, fresh = again()
        return Broker(_state.path, *more, fresh, again)


def check(memo: Mapping[str, object], environ: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Raise the error of the settings, as far as they are known here; a broker that was found knows them better."""
    if _state.failure:
        raise _state.failure
    if not _state.path and VARIABLE not in memo:
        choose({**environ, **secrets, **_given(environ)})


def join(
    ledger: Ledger,
    concurrent: int,
    tools: Sequence[Tool],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Let the broker of this process serve those below it, though this process needs none itself."""
    if _state.path and not _state.failure:
        with contextlib.suppress(Failure):  # it serves no guest of files, and has admitted this process
            broker(ledger, concurrent, tools, {}, environ).close()


def told() -> list[object] | None:
    """Return what the memo says of the broker."""
    return [_state.path, _state.keyed] if _state.path else None


def _found_or_made(environ: Mapping[str, str], keys: Mapping[str, str]) -> tuple[str, socket.socket]:
    """Return the path of the broker of these credentials, and a connection to it."""
    key = credentials.secret(environ, keys)
    proofs = _proofs(key)
    try:
        directory = runtime_directory()
        path = f"{directory}/{credentials.name_of(key)}{wire.SUFFIX}"
        try:
            return path, proven(path, proofs)
        except Gone:
            pass
        except OSError:
            path = f"{path.removesuffix(wire.SUFFIX)}-{os.urandom(6).hex()}{wire.SUFFIX}"
        lock = _locked(directory)
        try:
            try:
                return path, proven(path, proofs)
            except Gone:
                from quine.broker import keeper  # here: a broker is found a thousand times and made once

                keeper.make(path, key, keys, environ)
        finally:
            os.close(lock)
        return path, proven(path, proofs)
    except Refused as refused:
        raise Failure(NOT_STARTED, refused.detail, refused.hint) from None
    except OSError as error:
        raise _unmade(error) from None


def _proofs(key: bytes) -> Proofs:
    """Return the function that proves to each end that the other one holds `key`, see `proven`."""
    return lambda nonces, pids: (
        wire.proof(key, "client", nonces, pids),
        wire.proof(key, "broker", nonces, pids),
    )


def _locked(directory: str) -> int:
    """Return a descriptor that keeps other makers waiting until it is closed; without that after PATIENCE."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    over = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:
            if time.monotonic() > over:
                return fd
            time.sleep(STEP)
