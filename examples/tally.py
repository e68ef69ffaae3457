"""Sum up the tapes of a run in one line: python tally.py [DIRECTORY]"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path


def tally(directory: Path) -> str:
    tapes = [list(map(json.loads, path.read_text().splitlines())) for path in directory.glob("*.jsonl")]
    metas = [tape[0]["data"] for tape in tapes]
    depths = Counter(meta["depth"] for meta in metas if meta["born"] != "exec")
    levels = f" on {len(depths)} levels ({' + '.join(str(depths[depth]) for depth in sorted(depths))})"
    turns = sum(tape[-1]["data"].get("turn_count", 0) for tape in tapes)
    usages = [entry["data"]["usage"] for tape in tapes for entry in tape if "usage" in entry["data"]]
    context = max(usage["input"] + usage["output"] for usage in usages)
    seconds = max(tape[-1]["ts"] for tape in tapes) - min(tape[0]["ts"] for tape in tapes)
    return ", ".join(
        [
            f"sessions {len(tapes)}",
            f"processes {depths.total()}{levels if len(depths) > 1 else ''}",
            f"execs {sum(meta['born'] == 'exec' for meta in metas)}",
            f"turns {turns}",
            f"largest context {context} tokens",
            f"{seconds:.1f} s",
        ]
    )


if __name__ == "__main__":
    print(tally(Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["QUINE_DATA_DIR"])))
