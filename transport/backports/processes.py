"""Processes and their signals: pidfds, waitid, posix_spawn, sigtimedwait."""

from __future__ import annotations

import errno
import os
import struct
import time
from typing import NamedTuple

from transport.backports.libc import INT, LONG, POINTER, call, checked, ctypes, function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434  # the same number on all machines
_SIGINFO, _SIGSET = 128, 128  # bytes
_SPAWN_STATE = 512  # bytes; in glibc and musl the attributes have 336, the file actions 80
_SPAWN_RESETIDS, _SPAWN_SETPGROUP, _SPAWN_SETSIGDEF, _SPAWN_SETSIGMASK, _SPAWN_SETSID = 1, 2, 4, 8, 0x80
_OPEN, _CLOSE, _DUP2 = 0, 1, 2  # of os.POSIX_SPAWN_*; the numbers are Python's own


def pidfd_open(pid: int, flags: int = 0) -> int:
    ask = function("syscall", LONG, LONG, INT, ctypes.c_uint)
    return call(ask, _PIDFD_OPEN, pid, flags)  # the kernel makes it close-on-exec


def pidfd_send_signal(pidfd: int, sig: int, siginfo: None = None, flags: int = 0) -> None:
    if siginfo is not None:
        raise TypeError("siginfo must be None")
    ask = function("syscall", LONG, LONG, INT, INT, POINTER, ctypes.c_uint)
    call(ask, _PIDFD_SEND_SIGNAL, pidfd, sig, None, flags)


class SigInfo(NamedTuple):
    """The fields of a siginfo_t, as signal.struct_siginfo has them.

    si_pid, si_uid and si_status say nothing for SIGPOLL, and si_band nothing for any other signal: they share memory.
    """

    si_signo: int
    si_code: int
    si_errno: int
    si_pid: int
    si_uid: int
    si_status: int
    si_band: int


def _siginfo(raw: bytes) -> SigInfo:
    number, error, code, pid, uid, status = struct.unpack_from("@iii4xiIi", raw)
    (band,) = struct.unpack_from("@l", raw, 16)
    return SigInfo(number, code, error, pid, uid, status, band)


class WaitidResult(NamedTuple):
    """As os.waitid_result."""

    si_pid: int
    si_uid: int
    si_signo: int
    si_status: int
    si_code: int


def waitid(idtype: int, id: int, options: int) -> WaitidResult | None:
    raw = ctypes.create_string_buffer(_SIGINFO)  # zeros: with WNOHANG nothing is written if no child is ready
    call(function("waitid", INT, INT, ctypes.c_uint, POINTER, INT), idtype, id, raw, options)
    info = _siginfo(raw.raw)
    if not info.si_pid:
        return None
    return WaitidResult(info.si_pid, info.si_uid, info.si_signo, info.si_status, info.si_code)


def _sigset(signals: Iterable[int]) -> Any:
    found = ctypes.create_string_buffer(_SIGSET)
    call(function("sigemptyset", INT, POINTER), found)
    add = function("sigaddset", INT, POINTER, INT)
    for number in signals:
        call(add, found, int(number))
    return found


def sigtimedwait(sigset: Iterable[int], timeout: float) -> SigInfo | None:
    """Wait for a pending signal of `sigset`; None after `timeout` seconds."""
    if timeout < 0:
        raise ValueError("timeout must be non-negative")
    wanted, raw = _sigset(sigset), ctypes.create_string_buffer(_SIGINFO)
    wait = function("sigtimedwait", INT, POINTER, POINTER, POINTER)
    deadline = time.monotonic() + timeout
    while True:
        whole, part = divmod(
            max(0, int((deadline - time.monotonic()) * 1e9)) if timeout else 0, 1_000_000_000
        )
        pause = (ctypes.c_long * 2)(whole, part)
        if wait(wanted, raw, pause) != -1:
            return _siginfo(raw.raw)
        number = ctypes.get_errno()
        if number == errno.EAGAIN:
            return None
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def posix_spawn(path: Any, argv: Sequence[Any], env: Mapping[Any, Any], **options: Any) -> int:
    return _spawn("posix_spawn", path, argv, env, **options)


def posix_spawnp(path: Any, argv: Sequence[Any], env: Mapping[Any, Any], **options: Any) -> int:
    return _spawn("posix_spawnp", path, argv, env, **options)


def _spawn(
    name: str,
    path: Any,
    argv: Sequence[Any],
    env: Mapping[Any, Any],
    *,
    file_actions: Sequence[tuple[Any, ...]] = (),
    setpgroup: int | None = None,
    resetids: bool = False,
    setsid: bool = False,
    setsigmask: Iterable[int] | None = None,
    setsigdef: Iterable[int] | None = None,
) -> int:
    """Start a program. None of a set or group leaves it as it is here, as a missing argument of os.posix_spawn does."""
    if not argv:
        raise ValueError(f"{name}: argv must not be empty")
    file, words = os.fsencode(path), _texts([os.fsencode(word) for word in argv])
    pairs = _texts([os.fsencode(key) + b"=" + os.fsencode(value) for key, value in env.items()])
    spawn = function(name, INT, POINTER, ctypes.c_char_p, *[POINTER] * 4)
    attributes, actions = (ctypes.create_string_buffer(_SPAWN_STATE) for _ in range(2))
    checked(function("posix_spawnattr_init", INT, POINTER)(attributes))
    try:
        flags = _SPAWN_RESETIDS * bool(resetids) | _SPAWN_SETSID * bool(setsid)
        if setpgroup is not None:
            flags |= _SPAWN_SETPGROUP
            checked(function("posix_spawnattr_setpgroup", INT, POINTER, INT)(attributes, setpgroup))
        for numbers, which, flag in (
            (setsigmask, "sigmask", _SPAWN_SETSIGMASK),
            (setsigdef, "sigdefault", _SPAWN_SETSIGDEF),
        ):
            if numbers is not None:
                flags |= flag
                give = function(f"posix_spawnattr_set{which}", INT, POINTER, POINTER)
                checked(give(attributes, _sigset(numbers)))  # copied
        checked(function("posix_spawnattr_setflags", INT, POINTER, ctypes.c_short)(attributes, flags))
        checked(function("posix_spawn_file_actions_init", INT, POINTER)(actions))
        try:
            for action in file_actions:
                _add_action(actions, *action)
            pid = ctypes.c_int()
            checked(spawn(ctypes.byref(pid), file, actions, attributes, words, pairs), path)
            return pid.value
        finally:
            function("posix_spawn_file_actions_destroy", INT, POINTER)(actions)
    finally:
        function("posix_spawnattr_destroy", INT, POINTER)(attributes)


def _texts(values: Sequence[bytes]) -> Any:
    """Return an array of C strings that ends with NULL; it holds its strings."""
    if any(b"\0" in value for value in values):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(values) + 1))(*values, None)


def _add_action(actions: Any, kind: int, fd: int, *more: Any) -> None:
    add = "posix_spawn_file_actions_add"
    if kind == _DUP2:
        checked(function(f"{add}dup2", INT, POINTER, INT, INT)(actions, fd, *more))
    elif kind == _CLOSE:
        checked(function(f"{add}close", INT, POINTER, INT)(actions, fd))
    elif kind == _OPEN:
        path, flags, mode = more
        # libc copies the path
        opens = function(f"{add}open", INT, POINTER, INT, ctypes.c_char_p, INT, ctypes.c_uint)
        checked(opens(actions, fd, os.fsencode(path), flags, mode))
    else:
        raise TypeError("unknown file_actions identifier")
