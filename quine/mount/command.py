"""`quine fs mount DIR`, `quine fs umount DIR`, and how a process gets a mount of its own ($QUINE_MOUNT).

Laws
1. A mount for a process is kept by a fresh image of this program, which has nothing of that process's memory.
2. A mount that somebody has asked for, by an option or in a host's own table, is had, or nothing is started (69). One
   that is wanted of all hosts ([defaults]) is had where it can be: elsewhere the variable is absent. A wrong
   configuration is an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

from quine.base.cli_options import MOUNT
from quine.base.errors import NOT_STARTED, Failure, Misconfigured, complain
from quine.base.errors import USAGE as WRONG_USAGE
from quine.files.select import tier_here
from quine.files.urls import absolute
from transport import this_build
from transport.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

SECONDS = 60.0  # for a supervisor to mount, on the busiest machine


def perform(verb: str, values: Mapping[str, object], paths: list[str]) -> int:
    """Run `mount` or `umount`; return the exit status. Raises Failure."""
    if "fs" in values:
        os.environ["QUINE_FS"] = absolute(str(values["fs"]))
    if not paths and verb == "mount":
        from quine.base.text import shown_path
        from quine.mount import mounts

        print("".join(f"{shown_path(path)}\n" for path, _ in mounts.mounted()), end="")
        return 0
    if not paths:
        raise Misconfigured("no directory", f"quine fs {verb} --help")
    if verb == "mount" and len(paths) > 1:
        raise Misconfigured(
            "mount takes one directory", "quine fs mount DIR; --fs URL says what is shown there"
        )
    if verb == "umount":
        return max(map(_umount, paths))
    return _mount(os.path.realpath(paths[0]), "foreground" in values)


def keep(words: list[str]) -> int:
    """Run `--keep PID --ready-fd N`, the image that `attach` starts."""
    from quine.mount import supervisor

    target, _, ready = words
    return supervisor.keep("", int(ready), int(target))


def _mount(path: str, foreground: bool) -> int:
    from quine.mount import mounts, registry
    from quine.mount.supervisor import keep

    registry.sweep()
    if mounts.is_mounted(path):
        raise Misconfigured(f"a files tier is mounted there already: {path}", f"quine fs umount {path}")
    if not os.path.isdir(path):
        raise Misconfigured(f"not a directory: {path}", f"mkdir {path}")
    _expect_apart(path)
    ready, told = os.pipe()
    if foreground:
        status = keep(path, told, detach=False)
        if status:
            _raise_told(ready)
        return status
    pid = os.fork()
    if not pid:
        os.close(ready)
        os._exit(keep(path, told))
    os.close(told)
    os.waitpid(pid, 0)
    _raise_told(ready)
    return 0


def _expect_apart(path: str) -> None:
    """Raise Misconfigured if store and mount point contain one another: the server would wait for itself for ever."""
    with contextlib.closing(tier_here(os.environ)) as tier:
        store = tier.directory_here()
    real = os.path.realpath(store) if store else ""
    if store and os.path.commonpath([real, path]) in (real, path):
        hint = "the mount point should be neither in the store nor above it"
        raise Misconfigured(f"the files tier is in {store}, and cannot be shown at {path}", hint)


def _umount(path: str) -> int:
    from quine.mount import mounts, registry

    swept = registry.sweep()
    path = _place(path)
    try:
        if path not in swept or mounts.is_mounted(path):
            mounts.unmount(path, lazily=False)
    except OSError as error:
        hint = f"end what uses it: fuser -vm {path}" if error.errno == errno.EBUSY else ""
        complain(f"{path}: {(error.strerror or '').lower()}", hint)
        return 1
    return 0


def _place(written: str) -> str:
    """Return the mount point that `written` names, by any symlinks. A mount itself is not accessed: it may hang."""
    from quine.mount import mounts

    there = [place for place, _ in mounts.mounted()]
    path = os.path.abspath(written)
    if path not in there:
        above, name = os.path.split(path)
        path = os.path.join(os.path.realpath(above), name)
    return path if path in there else os.path.realpath(path)


def attach(environ: MutableMapping[str, str], needed: bool) -> str:
    """Mount for this process, and put the path into `environ`. Return "", or the reason why there is no mount.

    Raises Failure if the URL of the store is wrong, and where a `needed` mount cannot be had.
    """
    environ.pop(MOUNT, None)
    try:
        environ[MOUNT] = _started(dict(environ))
        return ""
    except Refused as refused:
        why, hint = refused.detail, refused.hint
    except Failure as failure:
        if failure.status == WRONG_USAGE:
            raise
        why, hint = failure.detail, failure.hint
    if needed:
        raise Failure(NOT_STARTED, why, hint or "quine doctor; without --mount nothing is mounted")
    return why


def _started(environ: dict[str, str]) -> str:
    from quine.mount.supervisor import heard

    ready, told = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, told, 3), *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2))]
        words = [*this_build.own_command(), "fs", "mount", "--keep", str(os.getpid()), "--ready-fd", "3"]
        pid = os.posix_spawn(
            words[0],
            words,
            environ,
            file_actions=actions,
            setsigmask=[],
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
        os.close(told)
        told = -1
        try:
            kind, *rest = heard(ready, SECONDS)
        finally:
            os.waitpid(pid, 0)  # the supervisor itself is a child of that process
    finally:
        for fd in (ready, told, null):
            if fd >= 0:
                os.close(fd)
    if kind != "ok":
        raise _error(rest)
    return rest[0]


def _raise_told(ready: int) -> None:
    from quine.mount.supervisor import heard

    try:
        kind, *rest = heard(ready, SECONDS)
    finally:
        os.close(ready)
    if kind != "ok":
        raise _error(rest)


def _error(rest: list[str]) -> Failure:
    detail, hint, status = (*rest, "", "", "")[:3]
    return Failure(int(status) if status.isdigit() else NOT_STARTED, detail, hint)
