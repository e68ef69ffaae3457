#!/usr/bin/env python3
"""The guest of the third composition. It cannot be a fixed script: its exit status depends on the results it sees."""

from __future__ import annotations

import shlex
import sys

sys.path[0] += "/.."
from play import Play, failure, play, sh


def patcher(mission: str, wisdom: dict[str, str]) -> Play:
    applied = yield sh("git apply <&3", "git applies all of it or nothing.")
    return None if applied.ok else failure(f"the patch does not apply: {applied.stderr}")


def tester(mission: str, wisdom: dict[str, str]) -> Play:
    suite = yield sh("sh tests/run.sh", "This is the test suite.")
    lines = suite.stdout.splitlines()
    failed = [line for line in lines if line.startswith("not ok")]
    report = "\n".join([f"{len(lines) - len(failed)} of {len(lines)} tests passed", *failed])
    yield sh(f"printf '%s\\n' {shlex.quote(report)} >&4")
    return None if suite.ok else failure("the test suite fails")


def either(mission: str, wisdom: dict[str, str]) -> Play:
    return (patcher if mission == "Apply the patch" else tester)(mission, wisdom)


if __name__ == "__main__":
    play(either)
