"""The two processes of a mount: the supervisor, which ends it, and the server, which answers the kernel.

Laws
1. Each unmounts when the other ends, however that happened; neither does anything else then that could fail.
2. A mount for a job ends with the process that it was made for. Data that no close had committed by then is not kept.
3. The store is opened in the server alone: its connections and threads are created after the last fork.
4. No stream, directory or descriptor of the job is held, with two exceptions: the memo, by which requests to the origin
   are authorised, and the tree's shared counters, in which the quota counts writes made here.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

from quine.base import dirs
from quine.base.errors import NOT_STARTED, Failure
from quine.base.log import Log
from quine.files.layers import quota
from quine.files.select import tier_here
from quine.files.urls import settle
from quine.mount import mounts, registry
from transport import inherit
from transport.address import state_directory
from transport.errors import Refused

LOG = "mount.log"  # in the state directory
GRACE = 5.0  # seconds for a server to finish its operations after the unmount
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def keep(path: str, ready: int, target: int = 0, detach: bool = True) -> int:
    """Mount the store at `path` ("": in a directory of ours), for the process `target` or until it is unmounted.

    `ready` receives the outcome. With `detach`, a child goes on and the caller's process returns; else it returns when
    the mount ends. Return the exit status.
    """
    watched = -1
    if target:
        watched = os.pidfd_open(target)
        if os.getppid() != target:
            return 1  # the target has ended already
    book = quota.of_our_tree()  # while we still descend from the tree
    if detach and os.fork():
        return 0
    if detach:
        os.setsid()
        settle(os.environ)  # else the server would resolve a relative URL below the root
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
    memo = os.environ.get(inherit.VARIABLE, "")
    keep_open = {ready, watched} | ({int(memo)} if memo.isdigit() else set()) | ({book.fd} if book else set())
    inherit.close_others(keep_open)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in _ENDS:
        signal.signal(number, lambda *_: None)
    place = None
    try:
        registry.sweep()
        place = registry.Place(path)
        fd = mounts.mount(place.path, place.source)
    except (Refused, OSError) as error:
        if place is not None:
            place.leave()
        _tell(ready, "error", *_words(error))
        return 1
    server = _fork_server(place, fd, ready)
    os.close(fd)
    os.close(ready)
    return _watch(place, server, watched, woken)


def _fork_server(place: registry.Place, fd: int, ready: int) -> int:
    keeper = os.getpid()
    above = os.pidfd_open(keeper)
    server = os.fork()
    if server:
        os.close(above)
        return server
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)  # the supervisor receives them too, and unmounts
        serve(place, fd, ready, above)
        status = 0
    except (Refused, Failure, OSError) as error:
        _tell(ready, "error", *_words(error))
    finally:
        os._exit(status)


def serve(place: registry.Place, fd: int, ready: int, keeper: int) -> None:
    """Run the server process."""
    from quine.mount.server import Server
    from quine.mount.state import State

    server = Server(fd, State(tier_here(os.environ), lambda text: _note(f"{place.path}: {text}")))
    _tell(ready, "ok", place.path)
    os.close(ready)

    def woken(which: int) -> bool:
        place.leave()  # the supervisor has ended; the kernel reports when no file is open any more
        return False

    server.serve([keeper], woken)
    server.wait(GRACE)


def _note(text: str) -> None:
    """Append to the log of this user's mounts."""
    folder = state_directory()
    with contextlib.suppress(OSError):
        dirs.make(folder)
    Log(os.path.join(folder, LOG)).note(text)


def _watch(place: registry.Place, server: int, watched: int, woken: int) -> int:
    """Wait until the server, the job or this process is to end; then unmount, and end the server."""
    pidfd = os.pidfd_open(server)
    poll = select.poll()
    for fd in (pidfd, watched, woken):
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    poll.poll()
    place.leave()
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(GRACE * 1000):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)  # files are still open; their users are not waited for
    os.waitpid(server, 0)
    place.leave()
    return 0


def _tell(ready: int, *words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(ready, "\0".join(words).encode("utf-8", "surrogateescape") + b"\n")


def _words(error: Exception) -> tuple[str, str, str]:
    if isinstance(error, (Refused, Failure)):
        return error.detail, error.hint or "", str(error.status)
    return f"the files tier cannot be mounted: {error}", "", str(NOT_STARTED)


def heard(ready: int, seconds: float) -> list[str]:
    """Read the outcome of a mount: "ok" and the path, or "error", text, hint, status. Raises Refused if none comes."""
    told = b""
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    while not told.endswith(b"\n"):
        if not poll.poll(seconds * 1000):
            raise Refused("the files tier was not mounted in time")
        block = os.read(ready, 8192)
        if not block:
            raise Refused("the files tier was not mounted: its supervisor has ended", "quine doctor")
        told += block
    return told[:-1].decode("utf-8", "surrogateescape").split("\0")
