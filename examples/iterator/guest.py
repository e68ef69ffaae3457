#!/usr/bin/env python3
"""Two ways through an endless stream: a factory worker, for whom each item is a new world, and a historian."""

from __future__ import annotations

import sys
from datetime import datetime

sys.path[0] += "/.."
from play import Play, play, renew, sh, success

FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%d %B %Y", "%B %d, %Y")
ITEM = """IFS= read -r item <&3 && printf '%s\\n' "$item" """.strip()
PAGE = 10
READ = f"for line in $(seq {PAGE}); do IFS= read -r entry <&3 && printf '%s\\n' \"$entry\"; done"


def worker(mission: str, wisdom: dict[str, str]) -> Play:
    """Mode A, independent: nothing is carried into the next life."""
    item = yield sh(ITEM, "One item, and not a byte of the next.")
    if not item.ok:
        return success("There is no item left.")
    yield sh(f"echo '{iso(item.stdout.strip())}' >&4")
    return renew("The next item is a new world.")


def historian(mission: str, wisdom: dict[str, str]) -> Play:
    """Mode B, sequential: the names of those inside are carried on as wisdom, and nothing else."""
    inside = set(wisdom.get("inside", "").split())
    read = yield sh(READ, "The next page of the book.")
    entries = read.stdout.split("\n")[:-1]
    for name, verb in map(str.split, entries):
        (inside.add if verb == "arrives" else inside.discard)(name)
    names = " ".join(sorted(inside))
    if len(entries) == PAGE:
        return renew("I need to remember what I have just read.", inside=names)
    yield sh(f"printf '%s\\n' {names} >&4", "The book ends here.")
    return None


def iso(text: str) -> str:
    for form in FORMS:
        try:
            return datetime.strptime(text, form).date().isoformat()
        except ValueError:
            continue
    return "?"


def either(mission: str, wisdom: dict[str, str]) -> Play:
    return (historian if "visitors" in mission else worker)(mission, wisdom)


if __name__ == "__main__":
    play(either)
