"""The memory of this process towards others of its user: closed to them, and left by an exec with the keys in it.

A process of the same user may read the memory, the environment and the descriptors of another one, unless that one is
not dumpable (prctl(2)). An exec makes a process dumpable again, a fork does not.

    agent, as it was started                     prover, a fork of it
    keys in its environment, closed to others    keys in its memory, closed to others
        |  exec                                  finds or makes the broker
    the same process, with no key   <----------  marks of the secrets, path of the broker, proofs that the keys are here

Laws
1. An exec is what takes a key out of a process: the kernel gives it new memory and another environment. No content is
   looked for or overwritten, so that no text of the program can be taken for a key.
2. The process execs before it has read, written or prepared anything. So it is started twice with the same argv,
   directory and descriptors, and only its environment differs.
3. The prover lives until the agent has its connection to the broker, or has ended. It holds no other descriptor.
"""

from __future__ import annotations

import fcntl
import os

from quine.base import exposure
from transport import inherit
from transport.lean import contextlib, prctl, signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_SET_DUMPABLE = 4  # of prctl(2)
SHORTEST = 8  # characters; a shorter secret is a word that stands elsewhere with another meaning
_closed = False  # by `hide`


def close_to_others(closed: bool = True) -> bool:
    """Close the memory of this process to others of its user, or open it again. Return whether the kernel did it."""
    return prctl(_SET_DUMPABLE, not closed)


def show(words: Sequence[str]) -> None:
    """Show another argv in `ps`. A process that is closed to others cannot open its own /proc/self/mem for it."""
    with contextlib.suppress(Exception):
        import _ctypes

        class Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
            _type_ = "c"

        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if 0 < start < end:
            text = b"\0".join(map(os.fsencode, words))[: end - start - 1].ljust(end - start, b"\0")
            (Byte * (end - start)).from_address(start)[:] = text  # type: ignore[call-overload]


def is_traced() -> bool:
    """Return whether a debugger holds this process."""
    try:
        with open("/proc/self/status", "rb") as file:
            return file.read().partition(b"TracerPid:")[2].split()[0] != b"0"
    except (OSError, IndexError):
        return False


def hide(names: Collection[str]) -> None:
    """Take secret variables, and those that hold copies, out of the environment that /proc shows of this process.

    Its memory still has them, so it is closed to other processes; but not for a proxy, which commands here have, too.
    A node with a proxy was closed, and nothing showed that its jobs are below a node.
    """
    global _closed
    secrets = [os.environ[name].strip() for name in names if name != inherit.VARIABLE]
    exposure.forget({*names, *holders(os.environ, secrets)})
    if any(inherit.withholds(name, os.environ[name], here=True) for name in names):
        _closed = close_to_others()


def reopen() -> None:
    """Open the memory again that `hide` has closed: the process has no key."""
    global _closed
    if _closed:
        close_to_others(False)
        _closed = False


def holders(environ: Mapping[str, str], secrets: Sequence[str]) -> set[str]:
    """Return the variables whose value has one of the secrets in it."""
    long = [secret for secret in secrets if len(secret) >= SHORTEST]
    return {name for name, value in environ.items() if any(secret in value for secret in long)}


def leave(
    environ: Mapping[str, str], state: Mapping[str, object], prover: Callable[[socket.socket], None]
) -> None:
    """Begin this program anew with `environ`, and run `prover` in a fork, with a line to it. Raises OSError.

    The new program finds `state`, with the number of its end of the line and the pid of the prover, by
    `inherit.renewed`.
    """
    line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            _prove(far, prover)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    kept = fcntl.fcntl(line.fileno(), fcntl.F_DUPFD, inherit.FIRST_FD)  # the only one that outlives the exec
    inherit.renew(environ, {**state, "line": kept, "prover": pid})


def _prove(line: socket.socket, prover: Callable[[socket.socket], None]) -> None:
    """Run the prover and end: the frames above are those of the agent."""
    try:
        inherit.close_others({line.fileno()})
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        prover(line)
    except OSError:
        pass  # the agent has ended
    finally:
        os._exit(0)
