"""End of an agent process: report, status file, exit status or death by signal.

Laws
1. A defect in quine is exit 70, names the file of its traceback, and writes an outcome to the tape if possible.
2. An agent ended by a signal dies of that signal, so that its parent sees the true cause.
3. The last agent of a tree on a host leaves no empty directory.
"""

from __future__ import annotations

import os

from quine.agent.children import recorded
from quine.agent.outcome import End
from quine.base import procs
from quine.base.errors import DEFECT, Failure, complain
from transport import quickjson
from transport.atomic import write_aside
from transport.launcher import workdir
from transport.lean import Any, NoReturn, contextlib
from transport.status import Status, die_of, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.agent.running import Running


def report(loop: Running, end: End, put: Callable[[str, dict[str, Any]], int] | None = None) -> int:
    """Write the report of an agent whose process was this one, and return what `put` does: False if that fails."""
    import resource
    import time

    from quine.base import run_report

    own, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    rusage = {
        "utime": own.ru_utime + below.ru_utime,
        "stime": own.ru_stime + below.ru_stime,
        "maxrss": float(max(own.ru_maxrss, below.ru_maxrss)),
    }
    outcome = end.outcome  # the last session ran on another machine
    if outcome is None:
        outcome = _status(end)
        outcome.pid, outcome.rusage = os.getpid(), rusage
        outcome.detail = outcome.detail or end.reason.strip()
    settings = loop.settings
    agents, _, cost = loop.ledger.totals()
    record = run_report.record(
        outcome,
        session=loop.spec.session,
        started=settings.began,
        seconds=time.time() - settings.began,
        tokens_in=settings.spent.input + end.usage.input,
        tokens_out=settings.spent.output + end.usage.output,
        cost=cost or None,
        agents=agents,
    )
    return (put or run_report.put)(settings.report, record)


def note(end: End, record: str, report: int) -> None:
    """Tell the parent what an exit status cannot: the end of a child it does not wait for, or an unknown end.

    `record`: directory of the status file, "" if the parent waits. `report`: pipe to the waiting parent, else -1.
    """
    unknown = end.outcome is not None and end.outcome.state not in ("exited", "signaled")
    facts = recorded(end.outcome if end.outcome and unknown else _status(end))
    with contextlib.suppress(OSError):
        if record:
            write_aside(os.path.join(record, "status"), facts)
        elif report >= 0 and unknown:
            procs.set_parent_death_signal(report, os.getpid(), on=False)
            os.write(report, quickjson.dumps(facts).encode())


def _status(end: End) -> Status:
    """Return how this process ends, whatever became of a session on another machine."""
    if end.signal:
        return Status("signaled", end.status, signal_name(end.signal))
    return Status("exited", end.status)


def vanish(end: End) -> NoReturn:
    """End a forked child by os._exit: the frames above it are its parent's."""
    try:
        os._exit(leave(end))
    finally:
        os._exit(DEFECT)


def leave(end: End) -> int:
    """Return the exit status, or die of the same signal."""
    if end.signal:
        die_of(signal_name(end.signal))
    return end.status


def defect(error: Exception, loop: Running) -> End:
    """Report an exception that the loop did not handle, record the outcome, and end shell and children."""
    if isinstance(error, Failure):
        complain(error.detail, error.hint, error.host)
        end = End(error.status)
    else:
        _tell(error, loop)
        end = End(DEFECT)
    with contextlib.suppress(Exception):
        loop.record_end(end.status, "error", f"{type(error).__name__}: {error}")
    with contextlib.suppress(Exception):
        loop.shell.close()
    with contextlib.suppress(Exception):  # apart: without a descriptor left the shell cannot be closed
        loop.jobs.end(list(loop.jobs.running))
    return end


def unborn(error: Exception) -> End:
    """Report on stderr, which the parent shows, that a forked child could not begin its session."""
    if isinstance(error, Failure):
        complain(error.detail, error.hint, error.host)
        return End(error.status)
    if isinstance(error, OSError):
        complain(f"cannot begin: {(error.strerror or str(error)).lower()}")
    else:
        complain(f"a defect in quine: {error!r}")
    return End(DEFECT)


def _tell(error: Exception, loop: Running) -> None:
    path = loop.log.path or os.path.join(loop.settings.data_dir, f"{loop.spec.session}.log")
    try:
        import traceback  # here: fails without free descriptors

        from quine.base.log import Log

        Log(path).write("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        complain(f"a defect in quine: {type(error).__name__}", f"the traceback is in {path}")
    except (OSError, ImportError):
        complain(f"a defect in quine: {error!r}")


def tidy(path: str, held: int) -> None:
    """Remove the directories of quine that are empty: with the tape at the origin, none is needed here."""
    for folder in ("outputs", "jobs", ".") if workdir.is_last(held) else ():
        with contextlib.suppress(OSError):
            os.rmdir(os.path.normpath(os.path.join(path, folder)))
    os.close(held)
