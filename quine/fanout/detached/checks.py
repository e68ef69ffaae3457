"""Checks before the id of a detached batch is printed: afterwards its log alone would tell of wrong options."""

from __future__ import annotations

import os

from quine.base.allowed_hosts import check_where
from quine.base.cli_options import environment, limits
from quine.base.errors import Misconfigured
from quine.base.sessions import is_session
from quine.fanout.joblog import check_forgets_none
from quine.fanout.output import results, tables
from quine.fanout.output.record_file import hold, locked
from quine.fanout.retries import Retries
from quine.fanout.timers import Timers
from quine.jobs.job_files import BATCH, bound, is_started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.fanout.options import Options


def check(options: Options) -> None:
    """Refuse wrong options, wherever the batch is to go on."""
    if options.spawn.report.isdecimal():
        raise Misconfigured("--report FD does not go with --detach: nothing waits", "--report FILE")
    results.check(options, tables.kind_of(options.results))
    environment(options.spawn, os.environ)
    limits(options.spawn)
    options.number("jobs", 0)
    Retries(options, Timers())


def check_here(options: Options) -> bool:
    """Refuse what cannot be done on this machine, in this directory. Raises NoSuchHost, too.

    Return False for a second start of an id: it starts nothing, and the files of the batch are in use.
    """
    job = options.spawn.job
    if is_session(job):  # a wrong one is told of later
        bound(options.spawn.replace(on=""), job, BATCH)
        if is_started(job):
            return False
    check_log(options)
    check_where(options.spawn)
    return True


def check_log(options: Options) -> None:
    """Refuse a log that another batch has, and files in directories that are not there."""
    table = options.results if tables.kind_of(options.results) else ""
    for name, path in (("joblog", options.joblog), ("results", table)):
        if path and not os.path.isdir(os.path.dirname(os.path.realpath(path))):
            raise Misconfigured(f"--{name} {path}: no such directory")
    if os.path.isfile(table):
        _check_unused(table)
    if options.joblog:
        _check_free(options.joblog)
        if not (options.resume or options.resume_failed):
            check_forgets_none(options.joblog)


def _check_unused(table: str) -> None:
    """Raise Misconfigured if another batch writes this table. Nothing is made."""
    try:
        fd = os.open(table, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return  # the batch tells it
    try:
        hold(fd)
    except BlockingIOError:
        raise Misconfigured(f"--results {table} is in use by another batch") from None
    finally:
        os.close(fd)


def _check_free(path: str) -> None:
    """Raise Misconfigured if another batch has this log. Nothing is made."""
    if os.path.isfile(path):
        try:
            os.close(locked(os.path.realpath(path)))
        except BlockingIOError:
            raise Misconfigured(f"{path} is in use by another batch") from None
        except OSError as error:
            raise Misconfigured(f"{path}: {(error.strerror or str(error)).lower()}") from None
