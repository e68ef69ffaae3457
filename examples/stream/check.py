"""Score an answer: python check.py ANSWER EXPECTED MARK prints the score of MRCR; status 1 if it is too low.

MRCR's score is the ratio of difflib.SequenceMatcher; an answer that does not begin with the mark has 0.
"""

from __future__ import annotations

import sys
from difflib import SequenceMatcher
from pathlib import Path

ENOUGH = 0.99


def score(answer: str, expected: str, mark: str) -> float:
    if not answer.startswith(mark):
        return 0.0
    return SequenceMatcher(None, answer.removeprefix(mark).strip(), expected, autojunk=False).ratio()


if __name__ == "__main__":
    reached = score(Path(sys.argv[1]).read_text(), Path(sys.argv[2]).read_text(), sys.argv[3])
    print(f"{reached:.3f}")
    sys.exit(reached < ENOUGH)
