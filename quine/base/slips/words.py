"""Parts that the modules of slips share: the comparison of words, and their form on a command line."""

from __future__ import annotations


def join(words: list[str]) -> str:
    """Return a command line of these words."""
    import shlex

    return shlex.join(words)


def is_one_edit(one: str, other: str) -> bool:
    """Return True if one character is added, missing or replaced, or two neighbours are swapped."""
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) == 1 or (len(one) == 2 and one == other[::-1])
