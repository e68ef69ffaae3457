"""Make a long conversation like those of MRCR: python make.py TOKENS >conversation 2>answer

Many short pieces of many kinds about many things, each asked for by a user and written by an assistant; among them
six times the same request. The last of these stands near the end. The same conversation each time.
"""

from __future__ import annotations

import random
import re
import sys

CHARACTERS = 4  # of a token, about
WANTED = "short essay about distance"
TIMES = 6
KINDS = ("short essay", "poem", "letter", "riddle", "news item")
THINGS = ("distance", "time", "rivers", "patience", "bread", "bridges", "snow", "memory", "keys", "glass")
WORDS = re.findall(
    r"\w+",
    "a the this every no one some far near old new quiet open wide narrow long short first last lost found that "
    "which where when until road shore window letter hand map mile step line edge door bell stone light garden "
    "measures crosses carries keeps forgets turns opens waits answers returns divides follows begins ends between "
    "beyond under over toward from with without after before and but or nor yet so because while still never often",
)


def make(tokens: int) -> tuple[str, str]:
    """Return the conversation and the answer."""
    chance = random.Random(tokens)
    size = tokens * CHARACTERS
    due = [size * (0.98 * time / TIMES) for time in range(1, TIMES + 1)]  # where the wanted pieces end
    others = [f"{kind} about {thing}" for kind in KINDS for thing in THINGS]
    others.remove(WANTED)
    turns, length, answer = [], 0, ""
    while length < size:
        text = piece(chance)
        if due and length + len(text) > due[0]:
            due.pop(0)
            request, answer = WANTED, text
        else:
            request = chance.choice(others)
        turns.append(f"User: Write a {request}.\n\nAssistant: {text}\n\n")
        length += len(turns[-1])
    return "".join(turns), answer


def piece(chance: random.Random) -> str:
    """Return a paragraph of random words, unlike that of any other piece."""
    lengths = [chance.randint(6, 14) for _ in range(chance.randint(6, 12))]
    return " ".join(" ".join(chance.choices(WORDS, k=length)).capitalize() + "." for length in lengths)


if __name__ == "__main__":
    conversation, answer = make(int(sys.argv[1]))
    sys.stdout.write(conversation)
    sys.stderr.write(answer)
