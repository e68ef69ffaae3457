"""The verb `xargs`: one command or agent for each item of the input, many at a time, here or on hosts.

Laws
1. stdout and stderr belong to the jobs. quine speaks on stderr, and only where something is not done.
2. Standard library only, and for commands nothing that only agents need.
"""

from __future__ import annotations

import os
import select

from quine.base.errors import DENIED, Misconfigured, complain
from quine.fanout import outcome
from quine.fanout.input.items import Items
from quine.fanout.input.template import Template, Word
from quine.fanout.options import Options, parse, usage
from transport.lean import signal
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from quine.fanout.input.items import Item
    from quine.fanout.joblog import Joblog
    from quine.fanout.run import Run

EXAMPLE = "quine xargs [OPTIONS] [--on WHERE] -- CMD [ARG…]"
OF_AGENTS = ("model", "max_turns", "max_depth", "max_agents", "max_tokens", "max_cost", "deadline")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def main(words: list[str]) -> int:
    """Return the exit status."""
    options, rest, dashes = parse(words)
    if options.help:
        print(usage())
        return 0
    items = Items(options, rest)
    if not items.command:
        raise Misconfigured("no command", EXAMPLE)
    mission = not dashes
    if mission:
        _check_mission(items.command)
        items.command = [" ".join(items.command)]
    elif of_agents := next((name for name in OF_AGENTS if getattr(options.spawn, name)), ""):
        raise Misconfigured(f"--{of_agents.replace('_', '-')} is about agents, and this is a command")
    command = template(options, items.command, mission)
    outcome.Halt(options.halt)
    if options.dry_run:
        return _print(command, items)
    if store := options.spawn.fs or os.environ.get("QUINE_FS", ""):
        from quine.files.urls import absolute

        os.environ["QUINE_FS"] = absolute(store)
    return _run(options, command, items, mission)


def _check_mission(words: list[str]) -> None:
    """Refuse words that were probably meant as a command: agents would be paid for them."""
    from shutil import which

    if which(words[0]):
        from shlex import join

        raise Misconfigured(
            f"{words[0]} is a command, and a mission for agents stands here",
            f"for a command: quine xargs [OPTIONS] -- {join(words)}; for a mission: quote it as one word",
        )


def template(options: Options, command: list[str], mission: bool = False) -> Template:
    """Return the template of the command; an item that is stdin, or names it, need not be an argument."""
    replace = options.replace or "{}"
    in_stdin = options.pipe or options.stdin == "item" or Word(options.stdin, replace, options.jsonl).replaced
    return Template(command, replace, options.jsonl, append=not in_stdin and not mission)


def _run(options: Options, command: Template, items: Items, mission: bool) -> int:
    from quine.fanout.output.results import Report
    from quine.fanout.output.sinks import Sink
    from quine.fanout.output.streams import Streams
    from quine.fanout.run import Run
    from quine.fanout.starter import Starter
    from quine.fanout.tasks import Work
    from transport import inherit
    from transport.client.batch import Batch
    from transport.client.signals import Caught

    inherit.hold_standard_streams()
    material = mission and not command.replaced and not options.pipe and not options.stdin
    work = Work(options, command, items.command, material)
    report = Report(options, work)
    crowd = None
    if mission:
        from quine.remote.crowd import Crowd

        crowd = Crowd(options.spawn)
    batch = Batch(on_refused=crowd.refused if crowd else None)
    streams = Streams(batch)
    sink = Sink(streams, options.keep_order, options.line_buffer)
    if crowd:
        from quine.fanout.agents import AgentStarter

        starter: Starter = AgentStarter(options, batch, work, sink, report, crowd)
    else:
        starter = Starter(options, batch, work, sink, report)
    log = _log(options)
    if log:
        starter.record(log)
    run = Run(options, batch, starter, work, items, sink, report, log)
    caught = Caught()
    caught.install(SIGNALS)

    def take(_: int) -> None:
        caught.drain()
        while number := caught.take():
            run.signalled(number)

    batch.watch(caught.fd, select.POLLIN, take)
    try:
        run.run()
    finally:
        caught.uninstall()
        streams.close()
        batch.close()
        starter.close()
        items.close()
        if log:
            log.close()
    return _end(options, run)


def _log(options: Options) -> Joblog | None:
    if not options.joblog:
        if options.resume or options.resume_failed:
            raise Misconfigured("--resume and --resume-failed need --joblog FILE")
        return None
    from quine.fanout.joblog import Joblog

    keep = {outcome.DONE, outcome.LOST}
    if not options.resume_failed:
        keep |= {outcome.FAILED, outcome.KILLED, outcome.TIMEOUT}
    if options.spawn.idempotent:
        keep -= {outcome.LOST}
    return Joblog(options.joblog, keep if options.resume or options.resume_failed else None)


def _end(options: Options, run: Run) -> int:
    """Report items that are not done; return the exit status, or die of the signal that has ended the batch."""
    if run.tally.failed:
        complain(
            f"{run.tally.failed} of {run.tally.ended} items are not done: {run.tally.text(outcome.DONE)}"
        )
    if run.fault:
        raise run.fault
    if run.ended_by:
        from transport.status import die_of, signal_name

        die_of(signal_name(run.ended_by))
        return 128 + run.ended_by
    status = run.tally.exit_status(options.exit_count)
    return DENIED if run.spent and status in (0, outcome.SOME_FAILED) else status


def _print(command: Template, items: Items) -> int:
    """Print the commands, as a shell would have to be given them."""
    from shlex import join

    for item in _waited(items):
        write_all(1, os.fsencode(join(command.argv(item)) + "\n"))
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
