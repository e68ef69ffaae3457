"""python -m tests.sim: run seeds, one seed with its trace, or a product with a fix taken back."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.sim.batch.mutations import MUTATIONS
from tests.sim.batch.simulation import BATCHES
from tests.sim.run import report, run_seeds
from tests.sim.shrink import NODES
from tests.sim.taken_back import TAKEN_BACK

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print what happens")
    parser.add_argument("--first", type=int, default=0, help="first of several seeds")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="go on from where the last soak ended")
    parser.add_argument("--batch", action="store_true", help="batches over hosts, in place of single jobs")
    parser.add_argument("--without", choices=sorted(TAKEN_BACK | MUTATIONS), help="take this fix back first")
    parser.add_argument("--no-shrink", action="store_true", help="report a scenario as it was drawn")
    args = parser.parse_args()
    kind, table = (BATCHES, MUTATIONS) if args.batch else (NODES, TAKEN_BACK)
    if args.without and args.without not in table:
        parser.error(f"--without {args.without}: there are {', '.join(table)}")
    mutation = table[args.without].restore if args.without else None
    last = CACHE / f"quine-sim-seed{'-batch' * args.batch}"
    if args.seed is not None:
        trace: list[str] = []
        scenario = kind.draw(args.seed)
        print(scenario.describe())
        violation = kind.simulate(scenario, trace, mutation)
        print("\n".join(trace))
        return 1 if violation else 0
    first, until = args.first, None
    if args.soak is not None:
        first = int(last.read_text()) if last.exists() else 1_000_000
        until = time.monotonic() + args.soak
        args.seeds = 1 << 40
    begin = time.monotonic()
    done, found = run_seeds(range(first, first + args.seeds), mutation, until, kind)
    if args.soak is not None:
        last.parent.mkdir(parents=True, exist_ok=True)
        last.write_text(str(first + done))
    seconds = time.monotonic() - begin
    print(f"seeds {first} to {first + done - 1}: {done / seconds:.0f} a second")
    if found:
        print(report(*found, mutation, shrinks=not args.no_shrink, kind=kind))
        if args.without:
            print(f"without {args.without}: caught after {done} seeds")
    if args.without:
        return 0 if found else 1
    return 1 if found else 0


sys.exit(main())
