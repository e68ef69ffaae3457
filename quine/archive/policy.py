"""What of a tree is kept in the files tier: tapes and results of its agents, copied by a keeper beside its root.

Laws
1. It is done where the tier is one that others can reach (anything but the default), or where QUINE_FS_TAPES says so.
2. An agent starts the keeper and, at its end, waits a bounded time for it. In between it knows nothing of it: a
   store that is slow or away neither slows nor fails a life.
3. The keeper has the store's credentials by a sealed memo, and no key of a guest.
4. Standard library only, and nothing at all where nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct

from quine.base.errors import Misconfigured
from quine.files.urls import RESERVED
from quine.providers.vendors import KEYS
from transport.address import own_command, start_time
from transport.job import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

PLACE = f"{RESERVED}/sessions"  # what stands there stands as in a data directory
BEAT = ".beat"  # the end of the name of a file, of the root of a tree, that changes for as long as its keeper lives
VARIABLE = "QUINE_FS_TAPES"
PATIENCE = 15.0  # seconds that the end of a tree waits until all is kept
HURRY = 3.0  # the same where somebody has ended it
DONE, FAILED = b"+", b"-"


def wanted(environ: Mapping[str, str]) -> bool:
    """Is anything to be kept, or looked for, in the tier?"""
    told = environ.get(VARIABLE, "")
    if told not in ("", "on", "off"):
        raise Misconfigured(f"{VARIABLE} must be on or off, not {told[:80]!r}")
    if told:
        return told == "on"
    url = environ.get("QUINE_FS", "")
    return url not in ("", "origin:") and not url.startswith("memory:")


def of_the_store(secrets: Mapping[str, str]) -> dict[str, str]:
    """Without the keys of guests, which no keeper needs."""
    return {name: value for name, value in secrets.items() if name not in KEYS}


def begin(session: str, environ: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Start the keeper of the tree whose root this process is. It is nobody's child, and ends by itself after the tree.

    What it cannot do it says in the log of the root.
    """
    # Made here, so that who asks soon waits for a keeper that has not yet come to its senses.
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
    """Wait until what the tree has left so far is in the tier. False where that is not so: the keeper tries on."""
    import socket

    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(seconds)
        line.connect(address(session))
        return _uid(line) == os.getuid() and line.recv(1) == DONE
    return False


def _listen(session: str) -> socket.socket | None:
    """The keeper's end; None where there is one already. The name goes with the process: nothing has to be swept."""
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
    """Somebody of this user who waits."""
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
