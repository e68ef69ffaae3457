"""The broker of a process: named by the memo, found by the keys, or made; after that the keys are forgotten.

Laws
1. The keys leave the environment and the memory of this process before an agent begins. Only their marks stay, by which
   a tape is masked.
2. Makers of a broker wait for each other, so that agents that start together share one. The lock is that of the kernel,
   and the wait is bounded.
3. A broker that cannot prove that it has the keys is a stranger: another one is made, under a name that is told to
   descendants alone.
"""

from __future__ import annotations

import fcntl
import os
import time

from quine.base.errors import NOT_STARTED, Failure
from quine.broker import credentials, memory, wire
from quine.broker.client import Broker, Gone, Unreachable, proven
from quine.providers.choice import KEYS, choose
from quine.tape.redact import Forgotten, forgotten
from transport.address import runtime_directory
from transport.errors import Refused
from transport.lean import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from quine.base.messages import Tool
    from quine.budget.ledger import Ledger
    from transport.lean import socket

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
        self.proof = b""  # of `wire.proof`; forgotten with the keys


_state = _State()


def masks() -> tuple[Forgotten, ...]:
    """Return the marks of the keys that this process has forgotten."""
    return _state.masks


def begin(environ: MutableMapping[str, str] = os.environ) -> None:
    """Take the keys out of the environment and the memory of this process, and find or make their broker.

    An error is kept, and raised once a guest is wanted: then all options have been read.
    """
    if environ.get(credentials.FILE):  # the broker reads it, from another directory
        environ[credentials.FILE] = os.path.abspath(os.path.expanduser(environ[credentials.FILE]))
    keys = {name: environ[name].strip() for name in KEYS if environ.get(name, "").strip()}
    if environ.get("QUINE_API_TYPE") == "program":
        memory.forget(())  # the program gets the key from the agent
        return
    if keys:
        # A script here: a nested agent may have a server for its guest.
        unfit = () if credentials.is_elsewhere(environ) else ("QUINE_API_TYPE", "QUINE_API_BASE")
        own = {name: value for name, value in environ.items() if name not in unfit}
        try:
            _own(own, keys)
        except Failure as failure:
            _state.failure = failure
        own.clear()
    found = [value.encode("utf-8", "surrogateescape") for value in keys.values()]
    _state.masks = tuple(mark for value in keys.values() for mark in forgotten(value))
    copies = {name for name, value in environ.items() if _holds(value, keys)} if keys else set()
    for name in copies.union(name for name in KEYS if name in environ):
        del environ[name]
    keys.clear()
    proof, _state.proof = _state.proof, b""
    memory.forget([*found, proof])


def is_served(environ: Mapping[str, str], memo: Mapping[str, object]) -> bool:
    """Return whether a broker chooses the guest, which alone knows all of its settings."""
    return credentials.is_elsewhere(environ) and (VARIABLE in memo or credentials.sources(environ))


def _holds(value: str, keys: Mapping[str, str]) -> bool:
    return any(len(key) >= memory.SHORTEST and key in value for key in keys.values())


def _given(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a key in place of the one that a file or a command gives."""
    return {"QUINE_API_KEY": "given"} if credentials.sources(environ) else {}


def _own(environ: Mapping[str, str], keys: Mapping[str, str]) -> None:
    """Find or make the broker of these keys, and keep the connection. Raises Failure."""
    known = {name: environ[name] for name in credentials.GUEST if environ.get(name)}
    choose({"QUINE_MODEL_ID": "any", **known, **_given(environ), **keys})
    _state.keyed = bool(keys)
    _state.path, line = _found_or_made(environ, keys)
    _state.line = (os.getpid(), line)


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
        _own(environ, keys)
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
    key = _state.proof = credentials.secret(environ, keys)
    try:
        directory = runtime_directory()
        path = f"{directory}/{credentials.name_of(key)}{wire.SUFFIX}"
        try:
            return path, proven(path, key)
        except Gone:
            pass
        except OSError:
            path = f"{path.removesuffix(wire.SUFFIX)}-{os.urandom(6).hex()}{wire.SUFFIX}"
        lock = _locked(directory)
        try:
            try:
                return path, proven(path, key)
            except Gone:
                from quine.broker import keeper  # here: a broker is found a thousand times and made once

                keeper.make(path, key, keys, environ)
        finally:
            os.close(lock)
        return path, proven(path, key)
    except Refused as refused:
        raise Failure(NOT_STARTED, refused.detail, refused.hint) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise Failure(NOT_STARTED, f"no process can be made that asks the guest: {why}") from None


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
