"""Make the visitors' book of a house: python visits.py LINES. The same book each time."""

import random
import sys

NAMES = ("ada", "alan", "barbara", "dennis", "donald", "edsger", "frances", "grace", "john", "ken", "niklaus")


def main(lines: int) -> None:
    chance = random.Random(1978)
    inside: set[str] = set()
    for _ in range(lines):
        name = chance.choice(NAMES)
        print(name, "leaves" if name in inside else "arrives")
        inside ^= {name}


if __name__ == "__main__":
    main(int(sys.argv[1]))
