"""python -m bench [--short|--long] [--limit SECONDS] [--plots DIR] [FIGURE…]: measure, and print the table.

Figures: client, line, memory, stream, streams, fairness, agent, guests, broker, fork, tape, conversation, seeing,
crowd, breaks, files, small, hostile, stage, first, batch, longline, agents, waiting, each, busy, scale; without a
name all of them. No figure takes longer than the limit: one that is not done then is left out of the table, and said
to be.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import (
    agent,
    breaks,
    broker,
    client,
    crowd,
    files,
    first,
    hostile,
    plot,
    stage,
    stream,
    streams,
    tape,
)
from bench.fanout import agents, memory, rate, scale
from bench.fanout import crowd as many
from bench.measure import Form, Row, table
from tests.lab import Lab

FIGURES: dict[str, Callable[[Lab], list[Row]]] = {
    "client": client.warm_client,
    "memory": client.idle_memory,
    "line": client.long_line,
    "stream": stream.both_ways,
    "streams": streams.both_ways,
    "fairness": stream.fairness,
    "agent": agent.cold,
    "guests": agent.guests,
    "broker": broker.run,
    "fork": agent.fork,
    "tape": tape.rate,
    "conversation": tape.memory,
    "seeing": tape.seeing,
    "crowd": crowd.run,
    "breaks": breaks.run,
    "files": files.run,
    "small": files.small,
    "hostile": hostile.run,
    "stage": stage.run,
    "first": first.run,
    "batch": rate.run,
    "longline": rate.long_line,
    "agents": agents.run,
    "waiting": memory.run,
    "each": many.each,
    "busy": many.busy,
    "scale": scale.run,
}
LIMIT = 900.0  # seconds of one figure
AGAIN = 60.0  # seconds until it is interrupted again, if it waits for something as it ends
LONG = 8.0  # times as much for a long form


class TooLong(Exception):
    """A figure was not done in time."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise TooLong in this thread, whatever it waits for, once so many seconds are over, and again after AGAIN."""

    def ring(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measured(name: str, lab: Lab, limit: float) -> list[Row]:
    """The rows of a figure; one that says so if it was not done in time, or has failed: the others are measured."""
    print(f"bench: {name}", file=sys.stderr, flush=True)
    try:
        with bounded(limit):
            return FIGURES[name](lab)
    except TooLong:
        return [Row(f"`{name}`", limit, "s", "not done in that time", met=False)]
    except Exception as error:
        print(f"bench: {name}: {error!r}"[:2000], file=sys.stderr)
        return [Row(f"`{name}`", 0.0, "s", "failed, see stderr", met=False)]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--short", action="store_const", const=0, dest="form", default=1, help="few of everything"
    )
    form.add_argument("--long", action="store_const", const=2, dest="form", help="a million items")
    parser.add_argument("--limit", type=float, default=0.0, metavar="SECONDS", help="for each figure")
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="write each figure with peers as an SVG, too"
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE")
    args = parser.parse_args(words)
    if unknown := set(args.figures) - set(FIGURES):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    Form.chosen, Form.plots = args.form, args.plots
    limit = args.limit or LIMIT * (LONG if args.form == 2 else 1)
    rows: list[Row] = []
    with Lab(("h1",)) as lab:
        lab.run(["run", "--on", "h1", "--", "true"], check=True)
        for name in args.figures or FIGURES:
            found = measured(name, lab, limit)
            rows += found
            if args.plots:
                plot.write_bars(args.plots, name, found)
    print(table(rows))
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
