"""The verb `xargs`: one command or agent for each item of the input, many at a time, here or on hosts.

Laws
1. stdout and stderr belong to the jobs. quine speaks on stderr, and only where something is not done.
2. Standard library only, and for commands nothing that only agents need.
3. A batch that is refused has changed no log and no table: another batch may be writing them. The log is locked before
   anything else is opened, and nothing is emptied or cut before all of it is there.
"""

from __future__ import annotations

import os
import select
import time

from quine.base.cli_options import field
from quine.base.errors import DENIED, LOST, Failure, Misconfigured, complain, say
from quine.fanout import outcome
from quine.fanout.input.items import Items
from quine.fanout.input.template import Template, Word
from quine.fanout.options import OPTIONS, Options, V, elsewhere, parse, usage
from quine.jobs import batch_state
from quine.jobs.client import runs_in_place
from transport.lean import signal
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from quine.fanout.input.items import Item
    from quine.fanout.joblog import Joblog
    from quine.fanout.output.results import Report
    from quine.fanout.output.sinks import Sink
    from quine.fanout.run import Run
    from quine.fanout.tasks import Work
    from quine.fanout.view import View
    from quine.remote.crowd import Crowd
    from transport.client.batch import Batch

EXAMPLE = "quine xargs [OPTIONS] [--on WHERE] -- CMD [ARG…]"
OF_AGENTS = ("model", "max_turns", "max_depth", "max_agents", "max_tokens", "max_cost", "deadline")
DETACHED = "QUINE_DETACHED"  # the id of its job, in the environment of a batch that was detached
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
OF_TERMINAL = (signal.SIGTSTP, signal.SIGCONT)


def main(words: list[str]) -> int:
    """Return the exit status."""

    if words[:1] == ["--sent"]:
        from quine.fanout.detached.arrival import start

        return start(words[1:])
    options, rest, dashes = parse(words)
    if options.help:
        print(usage())
        return 0
    items = Items(options, [options.mission, *rest] if options.mission else rest)
    if not items.command:
        raise Misconfigured("no command", EXAMPLE)
    mission = not dashes
    if options.mission and dashes:
        raise Misconfigured("--mission is for agents, and a command stands behind --")
    if mission:
        _check_mission(options, words, items.command, rest)
        items.command = [" ".join(items.command)]
    elif of_agents := next((name for name in OF_AGENTS if getattr(options.spawn, name)), ""):
        raise Misconfigured(f"--{of_agents.replace('_', '-')} is about agents, and this is a command")
    command = template(options, items.command, mission)
    if options.dry_run:
        return _print(options, command, items, mission)
    if mission and not options.spawn.detach:
        from quine.remote.compose import leave_keys

        leave_keys(options.spawn)  # as an agent, before anything is read: this process may begin anew here
    detached = os.environ.pop(DETACHED, "")
    _check(options)
    if options.spawn.detach:
        return _detach(options, rest, batch_state.shown(words), mission)
    if detached:
        options.spawn = options.spawn.replace(job=detached)
    if store := options.spawn.fs or os.environ.get("QUINE_FS", ""):
        from quine.files.urls import absolute

        os.environ["QUINE_FS"] = absolute(store)
    return _run(options, command, items, mission, batch_state.shown(words))


def _check(options: Options) -> None:
    """Refuse wrong values before anything is begun."""
    from quine.fanout.load import Limit

    outcome.Halt(options.halt)
    Limit(options)
    if not options.share("timeout"):
        options.seconds("timeout")
    options.seconds("delay")
    options.number("retries")
    options.number("jobs", 0)
    _kept(options)
    if options.cleanup and not (options.spawn.files or options.spawn.returns):
        raise Misconfigured("--cleanup is about --files and --returns")
    if options.spawn.detach:
        from quine.fanout.detached import checks

        checks.check(options)
    elif alone := next(
        (name for name in ("from", "job", "output-limit") if getattr(options.spawn, field(name))), ""
    ):
        raise Misconfigured(f"--{alone} goes with --detach")
    if elsewhere(options):
        return  # the rest is about this machine
    if options.spawn.detach and not checks.check_here(options):
        return
    if options.spawn.report:
        from quine.base import run_report

        options.spawn = options.spawn.replace(report=run_report.begin(options.spawn.report))


def _detach(options: Options, words: list[str], shown: str, mission: bool) -> int:
    """Start the batch as a job of its own, here or at a host."""
    if elsewhere(options):
        from quine.fanout.detached.away import detach_at

        return detach_at(options, words, shown, mission)
    from quine.fanout.detached.here import detach

    return detach(options, words, shown, mission)


def _check_mission(options: Options, words: list[str], mission: list[str], rest: list[str]) -> None:
    """Refuse words that were probably meant as a command, or as options: agents would be paid for them."""
    from quine.base.slips.missions import command_for_items
    from quine.base.slips.order import behind

    items = rest[len(mission) - bool(options.mission) :]
    wrong = None if options.mission else command_for_items(mission)
    if wrong := wrong or behind(OPTIONS, words, mission, V, items):
        raise wrong


def template(options: Options, command: list[str], mission: bool = False) -> Template:
    """Return the template of the command; an item that is stdin, or names it, need not be an argument."""
    replace = options.replace or "{}"
    in_stdin = options.pipe or options.stdin == "item" or Word(options.stdin, replace, options.named).replaced
    return Template(command, replace, options.named, append=not in_stdin and not mission)


def _run(options: Options, command: Template, items: Items, mission: bool, shown: str) -> int:
    if not options.spawn.job:  # else it was checked before it was detached
        from quine.base.allowed_hosts import check_where

        check_where(options.spawn)
    options.cleanup = options.cleanup and not runs_in_place(options.spawn)  # in place nothing was brought
    work = _work(options, command, items, mission)
    report, log = _opened(options, work)
    try:
        return _run_with(options, items, mission, shown, work, report, log)
    finally:
        if log:
            log.leave()


def _run_with(
    options: Options,
    items: Items,
    mission: bool,
    shown: str,
    work: Work,
    report: Report,
    log: Joblog | None,
) -> int:
    from quine.base.sessions import new_session
    from quine.fanout.output.sinks import Sink
    from quine.fanout.output.streams import Streams
    from quine.fanout.progress import Progress
    from quine.fanout.run import Run
    from quine.fanout.starter import Starter
    from quine.fanout.view import View
    from transport.client.batch import Batch

    now = time.monotonic()
    crowd = _crowd(options, shown) if mission else None
    batch = Batch(on_refused=crowd.refused if crowd else None, bounded=not options.jobs)
    sink = Sink(streams := Streams(batch), options.keep_order)
    if crowd:
        from quine.fanout.agents import AgentStarter

        starter: Starter = AgentStarter(options, batch, work, sink, report, crowd)
    else:
        starter = Starter(options, batch, work, sink, report)
    facts = {
        "id": options.spawn.job or (crowd.root if crowd else new_session()),
        **{"pid": os.getpid(), "detached": bool(options.spawn.job), "command": shown},
    }
    view = View(streams, Progress(outcome.Tally(), now), items, options, batch, now, facts)
    view.totals, view.provider = (crowd.totals, crowd.waits.look) if crowd else (None, None)
    run = Run(options, batch, starter, work, items, sink, report, log, view)
    if log:
        log.begin()  # as late as that: a batch that was refused before has changed nothing
        work.contents.replaced, work.knows, work.taken = log.replaced, log.knows, log.taken
        starter.record(log.journal)
    report.begin()
    facts["tree"] = os.environ.get("QUINE_ROOT_SESSION", "") or starter.tree  # not that of the first run
    try:
        _play(options, run, batch, sink, view)
    finally:
        left = view.left() if run.stopped else 0  # which reads the input
        view.close()
        streams.close()
        batch.close(goes_on=not run.killed)
        starter.close()
        report.close()
        items.close()
        if log:
            log.close()
        told = not options.spawn.report or _report(options, run, view)
    return _end(options, run, left, view.progress.total) or (0 if told else LOST)


def _crowd(options: Options, shown: str) -> Crowd:
    from quine.remote.crowd import Crowd, arrive

    arrive()
    crowd = Crowd(options.spawn)
    crowd.offer(options.spawn.job or crowd.root, shown)
    return crowd


def _opened(options: Options, work: Work) -> tuple[Report, Joblog | None]:
    """Open the log and the outputs, and leave them as they are: the batch may still be refused."""
    from quine.fanout.output.results import Report

    log = _log(options)
    try:
        report = Report(options, work)
    except BaseException:
        if log:
            log.leave()
        raise
    report.log = log
    return report, log


def _work(options: Options, command: Template, items: Items, mission: bool) -> Work:
    from quine.fanout.tasks import Work

    material = mission and not command.replaced and not options.pipe and not options.stdin
    return Work(options, command, items.command, material)


def _play(options: Options, run: Run, batch: Batch, sink: Sink, view: View) -> None:
    """Run the batch, which is told of the signals of this process."""
    from transport.client.signals import Caught

    caught = Caught()
    caught.install((*SIGNALS, *(OF_TERMINAL if view.terminal else ())))

    def take(_: int) -> None:
        caught.drain()
        while number := caught.take():
            if number in OF_TERMINAL:
                view.signalled(number, caught)
            else:
                run.signalled(number)

    batch.watch(caught.fd, select.POLLIN, take)
    try:
        run.run()
    except OSError as error:
        name, why = error.filename, (error.strerror or str(error)).lower()
        if isinstance(error, BrokenPipeError):
            run.ended_by = signal.SIGPIPE
            why = f"the reader of {name} has gone"
        else:
            run.fault = Failure(LOST, f"cannot write {name}: {why}")
        if options.joblog or not run.ended_by:  # as of any filter, the end of a reader is no news
            outputs = "1 output" if sink.kept == 1 else f"{sink.kept} outputs"
            say(f"quine: stopped: {why}; {run.text()}, {outputs} not passed on\n")
    finally:
        caught.uninstall()


def _kept(options: Options) -> set[str] | None:
    """Return the kinds of the ends that --resume leaves as they are; None without it. Raises Misconfigured."""
    resumes = options.resume or options.resume_failed
    if resumes and not options.joblog:
        from quine.fanout.joblog import NO_LOG

        raise Misconfigured(NO_LOG)
    if options.resume_elsewhere and not resumes:
        raise Misconfigured("--resume-elsewhere is about --resume and --resume-failed")
    keep = {outcome.DONE, outcome.LOST}
    if not options.resume_failed:
        keep |= {outcome.FAILED, outcome.KILLED, outcome.TIMEOUT}
    if options.spawn.idempotent:
        keep -= {outcome.LOST}
    return keep if resumes else None


def _log(options: Options) -> Joblog | None:
    keep = _kept(options)
    if not options.joblog:
        return None
    from quine.fanout.joblog import Joblog

    return Joblog(options.joblog, keep, options.resume_elsewhere, begins=False)


def _status(options: Options, run: Run) -> int:
    """Return the exit status, as a shell sees it."""
    if run.ended_by:
        return 128 + run.ended_by
    if isinstance(run.fault, Failure):
        return run.fault.status
    status = run.tally.exit_status(options.exit_count)
    return DENIED if run.spent and status in (0, outcome.SOME_FAILED) else status


def _report(options: Options, run: Run, view: View) -> bool:
    """Write --report. False if that fails."""
    from quine.base import run_report
    from transport.status import signal_name

    return run_report.put(
        options.spawn.report,
        {
            **{"code": _status(options, run), "signal": signal_name(run.ended_by) if run.ended_by else None},
            **{"detail": str(run.fault or ""), "spent": run.spent, "stopped": run.stopped},
            **{
                "items": run.tally.ended,
                **{"lost_before": run.tally.lost_before, "open": run.tally.open},
                **{name.replace(" ", "_"): n for name, n in run.tally.counts.items()},
            },
            **view.facts(time.monotonic()),
        },
    )


def _end(options: Options, run: Run, left: int | None, total: int | None) -> int:
    """Report items that are not done, and `left` ones; return the exit status, or die of the signal of the end."""
    if run.tally.failed and run.ended_by != signal.SIGPIPE:
        counts = run.tally.text(outcome.DONE)
        hint = run.unfinished(options.joblog)
        complain(f"{run.tally.failed} of {run.tally.ended} items are not done: {counts}", hint)
    if (lost := run.tally.lost_before) and run.ended_by != signal.SIGPIPE:
        hint = f"State is lost in their lines of {options.joblog}; --resume --idempotent runs them"
        complain(f"{lost} items were lost in a run before, and are not run again", hint)
    if left != 0 and run.ended_by != signal.SIGPIPE:
        rest = "the rest of the items was" if left is None else f"{left} of {total} items were"
        cure = (
            "--resume goes on with them" if options.joblog else "with --joblog FILE a later --resume goes on"
        )
        say(f"quine: {rest} not started; {cure}\n")
    if run.fault and not run.ended_by:
        raise run.fault
    if run.ended_by:
        from transport.status import die_of, signal_name

        die_of(signal_name(run.ended_by))
    return _status(options, run)


def _print(options: Options, command: Template, items: Items, mission: bool) -> int:
    """Print the commands, as a shell would have to be given them; with --resume only of what would be started."""
    from shlex import join

    keep, before = _kept(options), None
    if keep is not None:
        from quine.fanout.joblog import past

        before, work = past(options.joblog, keep), _work(options, command, items, mission)
        work.contents.replaced, work.knows = before.replaced, before.knows
    for item in _waited(items):
        if before and before.take(work.task(item).entry.hash)[0]:
            continue
        line = os.fsencode(join(command.argv(item)) + "\n")
        try:
            write_all(1, line)
        except OSError as error:
            error.filename = "stdout"  # else it counts as a defect
            raise
    return 0


def _waited(items: Items) -> Iterator[Item]:
    """The items, waiting for each."""
    for item in items:
        if item is not None:
            yield item
            continue
        poll = select.poll()
        poll.register(items.fd, select.POLLIN)
        poll.poll()
