#!/usr/bin/env python3
"""A librarian: searches a directory itself if that fits into its turns, and else gives each part to a child."""

from __future__ import annotations

import re
import sys

sys.path[0] += "/.."
from play import Call, Play, failure, fork, play, renew, sh

INTENT = """\
[CONTEXT]: Search the library directory {} for something non-random.
[GOAL]: Find which files (if any) contain non-random content.
[DELIVERABLE]: If found, write the full filepaths to stdout, one a line.
[VERIFY]: cat the file you identify and confirm it contains non-random content."""

SURVEY = "find {0} -mindepth 1 -maxdepth 1 -type d | sort; find {0} -type f | wc -l"
LOOK = "find {0} -type f | sort | tail -n +{1} | head -n {2} | xargs head -n 99 /dev/null"
SHOWN = 25  # volumes at a time: more would be cut from the result
RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def librarian(mission: str, wisdom: dict[str, str]) -> Play:
    sector = mission.partition("library directory ")[2].split()[0]
    if not wisdom:
        survey = yield sh(SURVEY.format(sector), "First the structure: directories below, number of volumes.")
        *parts, volumes = survey.stdout.split()
        if parts and int(volumes) > (survey.turns_left - 2) * SHOWN:  # two turns to verify and to deliver
            return (yield from delegate(parts, volumes))
        wisdom = {"files": volumes, "files_checked": "0", "found": ""}

    files, checked, found = int(wisdom["files"]), int(wisdom["files_checked"]), wisdom["found"].split()
    while checked < files:
        shown = yield sh(LOOK.format(sector, checked + 1, SHOWN), f"Volumes from number {checked + 1} on.")
        checked, found = checked + SHOWN, found + suspects(shown.stdout)
        if shown.last and (found or checked < files):
            return another_life(files, checked, found)
    if found:
        verified = yield sh(f"cat {' '.join(found)}", "This does not look random. Is it so?")
        if not suspects(verified.stdout):
            return failure("the volumes found cannot be confirmed")
        if verified.last:
            return another_life(files, checked, found)
        yield deliver(found)
    return None


def delegate(parts: list[str], volumes: str) -> Play:
    intents = [INTENT.format(part) for part in parts]
    forked = yield fork(intents, f"{volumes} volumes are too many for me: one child for each part.")
    if lost := [child.stderr for child in forked.children if not child.ok]:
        return failure(f"{len(lost)} of {len(parts)} children failed: {lost[0]}")
    if found := [path for child in forked.children for path in child.stdout.split()]:
        yield deliver(found)
    return None


def deliver(found: list[str]) -> Call:
    return sh(f"printf '%s\\n' {' '.join(sorted(found))} >&4", "The volumes found are my deliverable.")


def another_life(files: int, checked: int, found: list[str]) -> Call:
    return renew("My turns are over, not my work.", files=files, files_checked=checked, found=" ".join(found))


def suspects(shown: str) -> list[str]:
    """Return the volumes that hold a line that is no UUID."""
    path, found = "this one", []
    for line in shown.splitlines():
        if line.startswith("==> "):
            path = line[4:-4]
        elif line and not RANDOM.fullmatch(line) and path not in found:
            found.append(path)
    return found


if __name__ == "__main__":
    play(librarian)
