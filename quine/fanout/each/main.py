"""The verb `each`: one command on every host that matches WHERE, at the same time.

Laws
1. stdout and stderr belong to the commands, and to the lines that name their hosts. quine speaks on stderr, at the end,
   and only of hosts where it is not done.
2. Standard library only.
"""

from __future__ import annotations

import os
import select

from quine.base.errors import Misconfigured, need_stdin
from quine.base.procs import raise_open_files
from quine.fanout.each.options import EXAMPLE, parse, usage
from quine.jobs.client import Notes, choose_store
from transport.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import RunOptions
    from quine.fanout.each.options import Options

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
FILES = 1 << 16  # open files at most: outputs that wait for others may be files


def main(words: list[str]) -> int:
    """Return the exit status, unless the process dies of a signal."""
    options, where, command = parse(words)
    if options.help:
        print(usage())
        return 0
    if not where or not command or not command[0]:
        raise Misconfigured(f"no {'command' if where else 'WHERE'}", EXAMPLE)
    options.spawn = options.spawn.replace(on=where)  # it is elsewhere
    hosts = chosen(where, options.spawn)
    choose_store(options.spawn)
    stdin = _stdin(options.stdin)
    try:
        return _run(options, hosts, command, stdin)
    finally:
        if stdin is not None:
            os.close(stdin)


def chosen(where: str, options: RunOptions) -> list[str]:
    """Return the names of the hosts, in the order of the inventory. Raises Misconfigured, or NoSuchHost."""
    from quine.base.allowed_hosts import asks_origin, find
    from quine.jobs.remote import hosts
    from transport import inherit

    if asks_origin(bool(options.inventory), find(options, os.environ).path, inherit.read()):
        raise Misconfigured("quine each chooses its hosts where the inventory is", "quine run --on HOST")
    if "local" in where.replace("!", ",").split(","):
        from transport.errors import NoSuchHost

        raise NoSuchHost(
            "local is this machine, and no host of the inventory",
            "leave it out; here the command needs no quine",
        )
    return hosts(where, options)


def _stdin(named: str) -> int | None:
    """Return a file that has the stdin of each command; None for an empty one. Raises Misconfigured."""
    if not named:
        return None
    import shutil
    import tempfile

    if named == "all":
        need_stdin("--stdin all: ")
    try:
        given = os.dup(0) if named == "all" else os.open(named, os.O_RDONLY | os.O_CLOEXEC)
        with open(given, "rb", buffering=0) as source:
            if source.seekable():
                return os.dup(source.fileno())
            with tempfile.TemporaryFile(prefix="quine-each-") as copy:
                shutil.copyfileobj(source, copy)
                copy.seek(0)
                return os.dup(copy.fileno())
    except OSError as error:
        why = (error.strerror or "").lower()
        raise Misconfigured(f"--stdin {named}: cannot be read: {why}") from None


def _run(options: Options, hosts: list[str], command: list[str], stdin: int | None) -> int:
    from quine.fanout.each.run import Run
    from quine.fanout.output.sinks import Sink
    from quine.fanout.output.streams import Streams
    from transport.client.batch import Batch
    from transport.client.signals import Caught

    raise_open_files(FILES)
    batch = Batch(on_note=Notes(options.spawn, raw=False).hear)
    streams = Streams(batch)
    sink = Sink(streams, options.keep_order)
    run = Run(options, batch, sink, hosts, command, stdin)
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
    run.tell()
    if run.ended_by:
        from transport.status import die_of, signal_name

        die_of(signal_name(run.ended_by))
        return 128 + run.ended_by
    if run.fault:
        raise run.fault
    return run.exit_status
