"""A command below a purse: this process holds the purse, adopts what the command leaves, and leaves as it left.

Laws
1. The command has our streams, environment, process group, signal mask and dispositions: it is as if it were this
   process. Nothing is read, written or waited for in between.
2. A signal that another process sends to this one reaches the command. One that the kernel sends to the foreground of
   a terminal (^C, ^\\, ^Z, a hangup) has reached the command already, and is not sent a second time.
3. This process is the subreaper of all below: an agent finds the purse among its ancestors, whatever its environment,
   session or descriptors, until the command has ended. A process that runs on holds the purse itself.
4. If this process is killed, the command and the agents go on within the same caps.
"""

from __future__ import annotations

import os
import sys

from quine.base.errors import complain
from transport import inherit
from transport.lean import contextlib, signal
from transport.status import Status, die_of

# Signals that are not taken for others: two that nobody can block, and those of a fault of this process itself.
OURS = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
    *(signal.SIGTRAP, signal.SIGSYS, signal.SIGABRT),
}
TAKEN = {int(number) for number in signal.valid_signals() - OURS}
FOREVER = 1e6  # seconds; PyPy has no sigwaitinfo
STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def run(command: list[str], purse: int) -> int:
    """Run the command; return its exit status, or die of its signal. `purse` stays open until then."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # ignored by a caller, it would lose the status of the command
    inherit.adopt_orphans()  # without it they have only the descriptors that they inherited
    try:
        pid = os.posix_spawnp(
            command[0], command, os.environ, setsigmask=mask, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )
    except (FileNotFoundError, NotADirectoryError):
        from quine.base.slips.missions import as_mission

        complain(f"command not found: {command[0]}", as_mission(sys.argv[1:]))
        return 127
    except OSError as error:
        complain(f"cannot execute {command[0]}: {error.strerror}")
        return 126
    _leave_secrets(pid)
    return wait(pid)


def wait(pid: int) -> int:
    """Wait for the command, whose signals are blocked here. Return its exit status, or die of its signal."""
    status = Status.from_wait(_end_of(pid))
    if status.signal:
        die_of(status.signal)
    return status.code


def _leave_secrets(pid: int) -> None:
    """Begin this program anew without the secrets, which the command has: `main` finds the command, and waits for it.

    A process with secrets is closed to others. An agent that had lost its descriptors found no purse above it.
    """
    clean = inherit.scrubbed(os.environ)
    if clean.keys() != os.environ.keys() - {inherit.VARIABLE}:  # of those with a secret in the value, too
        if inherit.VARIABLE in os.environ:
            clean[inherit.VARIABLE] = os.environ[inherit.VARIABLE]
        with contextlib.suppress(OSError):  # then it waits as it is
            inherit.renew(clean, {"command": pid})


def _end_of(pid: int) -> int:
    """Pass signals on to the command until it has ended; return its wait status."""
    while True:
        sent = signal.sigtimedwait(TAKEN, FOREVER)
        if sent is None:
            continue
        if sent.si_signo == signal.SIGCHLD:
            status = _reaped(pid)
            if status is not None:
                return status
        elif sent.si_code <= 0:  # by a process; one by the kernel has a code above
            os.kill(pid, sent.si_signo)  # not reaped yet, so the pid is still its own


def _reaped(pid: int) -> int | None:
    """Reap all that have ended; return the wait status of the command if it is among them, else None."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return None
        if not ended:
            return None
        if ended == pid and not os.WIFSTOPPED(status):
            return status
        # Stopped by the terminal: the shell above waits for this process to stop, too. A SIGCONT that has come since
        # is for both.
        if ended == pid and os.WSTOPSIG(status) in STOPS and signal.SIGCONT not in signal.sigpending():
            os.kill(os.getpid(), signal.SIGSTOP)
