"""Make the library: 1,000 volumes in ./library/hex/shelf/volume, and on stdout the few that are not random.

    python make.py [VOLUMES-OF-A-LARGE-SHELF VOLUMES-OF-A-SMALL-SHELF]

Ten hexes: five large ones of five shelves with 30 volumes each, five small ones of two shelves with 25 each. A volume
is sixteen lines of UUIDs; in three of them a line was written by somebody. The same library each time.
"""

from __future__ import annotations

import random
import sys
import uuid
from pathlib import Path

LINES = 16
WRITTEN = (
    "The certitude that everything has been written negates us or turns us into phantoms.",
    "There are no two identical books in the vast library.",
    "I prefer to dream that the burnished surfaces feign and promise infinity.",
)


def make(large: int = 30, small: int = 25) -> list[str]:
    """Write the library; return the paths of the volumes that are not random, sorted."""
    chance = random.Random(1941)
    volumes: list[Path] = []
    for number in range(10):
        shelves, count = (5, large) if number % 2 else (2, small)
        for shelf in range(shelves):
            folder = Path("library", f"hex_{number:02}", f"shelf_{shelf}")
            folder.mkdir(parents=True)
            volumes += [folder / f"volume_{volume:05}.txt" for volume in range(count)]
    needles = dict(zip(chance.sample(volumes, len(WRITTEN)), WRITTEN, strict=True))
    for path in volumes:
        lines = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(LINES)]
        if path in needles:
            lines[chance.randrange(LINES)] = needles[path]
        path.write_text("\n".join(lines) + "\n")
    return sorted(f"./{path}" for path in needles)


if __name__ == "__main__":
    print("\n".join(make(*map(int, sys.argv[1:]))))
