"""python -m bench [FIGURE…]: bring up a host, measure, print the table.

Figures: client, line, memory, stream, streams, fairness, agent, guests, fork, tape, conversation, seeing, crowd,
breaks, files, small, hostile, stage, first, batch, each; without a name all of them.
"""

from __future__ import annotations

import sys

from bench import agent, batch, breaks, client, crowd, files, first, hostile, stage, stream, streams, tape
from bench.measure import Row, table
from tests.lab import Lab

FIGURES = {
    "client": client.warm_client,
    "memory": client.idle_memory,
    "line": client.long_line,
    "stream": stream.both_ways,
    "streams": streams.both_ways,
    "fairness": stream.fairness,
    "agent": agent.cold,
    "guests": agent.guests,
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
    "batch": batch.run,
    "each": batch.each,
}


def main(names: list[str]) -> int:
    unknown = set(names) - set(FIGURES)
    if unknown:
        print(
            f"bench: error: no such figure: {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}",
            file=sys.stderr,
        )
        return 2
    rows: list[Row] = []
    with Lab(("h1",)) as lab:
        lab.run(["run", "--on", "h1", "--", "true"], check=True)
        for name in names or FIGURES:
            print(f"bench: {name}", file=sys.stderr, flush=True)
            rows += FIGURES[name](lab)
    print(table(rows))
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
