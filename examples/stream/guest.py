#!/usr/bin/env python3
"""A reader: takes its material in pieces that it can hold, and begins anew with notes before its context is full."""

from __future__ import annotations

import re
import shlex
import sys

sys.path[0] += "/.."
from play import Play, failure, play, renew, sh

BYTES = 14400  # read at a time: of more than 20 KB a part would be cut out
TOKENS = BYTES // 4 + 100  # of one more result
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
MISSION = re.compile(r"Find the (\w+) (.+); prepend the hash (\w+) and output")


def reader(mission: str, wisdom: dict[str, str]) -> Play:
    asked = MISSION.search(mission)
    if not asked:
        return failure("I do not know what to find")
    ordinal, wanted, mark = asked.groups()
    found = int(wisdom.get("found_count", 0))
    position = int(wisdom.get("current_position", 0))
    partial = wisdom.get("partial_content", "")
    while True:
        read = yield sh(f"head -c {BYTES} <&3", f"{found} so far. The next piece, from byte {position}.")
        position += len(read.stdout)
        ended = len(read.stdout) < BYTES
        turns, partial = whole(partial + read.stdout, ended)
        for request, answer in turns:
            found += request == f"Write a {wanted}."
            if found == ORDINALS.index(ordinal) + 1:
                yield sh(f"printf %s {shlex.quote(mark + answer)} >&4", f"This is the {ordinal} one.")
                return None
        if ended:
            return failure(f"there are only {found} of them")
        if read.last or read.room < TOKENS:
            return renew(
                "My context is almost full: the notes hold everything I need, and the stream stays where it is.",
                found_count=found,
                current_position=position,
                partial_content=partial,
            )


def whole(text: str, ended: bool) -> tuple[list[tuple[str, str]], str]:
    """Return the turns that are complete, and the rest of the text."""
    *turns, rest = re.split(r"^(?=User: )", text, flags=re.MULTILINE)
    if ended:
        turns, rest = [*turns, rest], ""
    pairs = (turn.removeprefix("User: ").partition("\n\nAssistant: ") for turn in turns if turn)
    return [(request, answer.strip()) for request, _, answer in pairs], rest


if __name__ == "__main__":
    play(reader)
