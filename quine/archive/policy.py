"""The archive of a tree: whether its tapes and results are kept in the shared files, and how its daemon is started.

Laws
1. QUINE_FS_TAPES switches the archive on or off. Without it, it is on for a store that other machines can reach: any
   but the default and `memory:`.
2. An agent starts the archive daemon and, at its end, waits a bounded time for it. In between there is no contact, so a
   slow or unreachable store neither slows nor fails a session.
3. The daemon gets the store's credentials in a sealed memo, and no key of a guest.
4. Standard library only, and no work at all if nothing is kept.
"""

from __future__ import annotations

import os
import struct

from quine.base.errors import NOT_STARTED, Failure, Misconfigured
from quine.files.urls import RESERVED
from quine.providers.choice import KEYS
from transport import inherit
from transport.address import start_time
from transport.lean import contextlib, signal
from transport.this_build import own_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

PLACE = f"{RESERVED}/sessions"  # laid out as a data directory
BEAT = ".beat"  # suffix of the heartbeat file of a root, which changes as long as its archive daemon runs
VARIABLE = "QUINE_FS_TAPES"
PATIENCE = 15.0  # seconds that the end of a tree waits until all is kept, at most
HURRY = 3.0  # the same if a signal has ended it
DONE, FAILED = b"+", b"-"


def wanted(environ: Mapping[str, str]) -> bool:
    """Return whether sessions are kept in, and read from, the shared files. Raises Misconfigured."""
    told = environ.get(VARIABLE, "")
    if told not in ("", "on", "off"):
        raise Misconfigured(f"{VARIABLE} must be on or off, not {told[:80]!r}")
    if told:
        return told == "on"
    url = environ.get("QUINE_FS", "")
    return url.lower() not in ("", "origin:") and not url.lower().startswith("memory:")


def of_the_store(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return `secrets` without the keys of guests, which the archive daemon does not need."""
    return {name: value for name, value in secrets.items() if name not in KEYS}


def begin(session: str, environ: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Start the archive daemon of the tree whose root this process is. It is orphaned, and ends after the tree.

    It reports its failures in the log of the root. Raises Failure if it cannot be started.
    """
    try:
        _begin(session, environ, secrets)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise Failure(NOT_STARTED, f"the archive of the tree cannot be started: {why}") from None


def _begin(session: str, environ: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    # Bind the socket before starting the daemon, so that an early client queues instead of failing.
    listener = _listen(session)
    if listener is None:
        return
    with listener:
        fd = inherit.write({"environ": dict(secrets)})
        facts = (session, os.getpid(), start_time(os.getpid()), listener.fileno())
        argv = [*own_command(), "tape", "--keep", *map(str, facts)]
        try:
            pid = os.fork()
            if not pid:
                _become(argv, {**environ, inherit.VARIABLE: str(fd)}, {fd, listener.fileno()})
            os.waitpid(pid, 0)
        finally:
            os.close(fd)


def _become(argv: list[str], environ: dict[str, str], fds: set[int]) -> None:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        inherit.close_others(fds)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        for fd in fds:
            os.set_inheritable(fd, True)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(argv[0], argv, environ)
    finally:
        os._exit(127)


def finish(session: str, seconds: float = PATIENCE) -> bool:
    """Wait until all files of the tree so far are in the store. Return False if they are not: the daemon tries on."""
    import socket

    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(seconds)
        line.connect(address(session))
        return _uid(line) == os.getuid() and line.recv(1) == DONE
    return False


def _listen(session: str) -> socket.socket | None:
    """Return the daemon's socket; None if a daemon runs already. The abstract name ends with its process."""
    import socket

    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address(session))
    except OSError:
        listener.close()
        return None
    listener.listen(8)
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """Accept a waiting client; None if it is another user's."""
    line, _ = listener.accept()
    if _uid(line) == os.getuid():
        return line
    line.close()
    return None


def address(session: str) -> str:
    return f"\0quine-keeper-{os.getuid()}-{session}"


def _uid(line: socket.socket) -> int:
    import socket

    return int(struct.unpack("iII", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
