"""Lies about hosts of a batch: their load, and the jobs that they keep for --resume."""

from __future__ import annotations

import json
from typing import Any

from quine.fanout.load import ASK
from tests.remote.lies.lie import EXIT, GREET, HAVE, MARK, Lie, Plan, batch, frame, jobs

HUGE = 10**400
KEPT = "c0" * 16  # the id of a job of the run before


def loaded(*answer: list[Any], words: list[str]) -> Lie:
    """A host that answers so when it is asked for its load."""
    return Lie(lambda size: jobs(["of", ASK[2], *(_sized(each, size) for each in answer)]), words, 0)


def _sized(step: list[Any], size: int) -> list[Any]:
    return [*step[:3], size // len(step[2])] if step[3] is None else step


def resumed(*steps: list[Any], kept: dict[str, object] | None = None) -> Lie:
    """A host of a batch that was killed, which says that it `kept` these jobs; `steps`: of one that is taken over."""

    def plan(_: int) -> Plan:
        told = json.dumps({"kept": {"ids": [KEPT], "remembers": 1, "forgot": False, **(kept or {})}})
        status = ["of", "--status", ["attach"], ["output", 1, told, 1], EXIT]
        return [HAVE, GREET, MARK, ["jobs", status, ["of", "-", *steps], ["of", "sh", ["attach"], EXIT]]]

    log = ["--joblog", "FOLDER/log", "--resume"]
    journal = f"quine batch {'b0' * 16} 1 {'e0' * 16} boot\nhost LIAR\n{KEPT} {'a0' * 16} 1 -\n"
    return Lie(plan, batch(*log), 0, files={"log.started": journal})


TAKEN = {"base": [0, 0, 0], "input": False, "seconds": 1}


def taken(**change: object) -> list[Any]:
    return frame("ATTACH", json={"pid": 7, "kept": {**TAKEN, **change}})


WATCHED = batch("--load", "100000", "--delay", "0.2")  # its state is published once a second
HOSTS: dict[str, tuple[Lie, ...]] = {
    "its load: of /proc/loadavg, and processors": (
        loaded(["output", 1, "inf 0 0 1/1 1\n4\n", 1], words=WATCHED),
        loaded(["output", 1, f"0 0 0 1/1 1\n{'9' * 400}\n", 1], words=batch("--load", "9999%")),
        loaded(["output", 1, "9" * 6000, None], words=WATCHED),
    ),
    "`--resume`: the jobs that it keeps, `remembers`": (
        resumed(kept={"ids": [], "remembers": HUGE}),
        resumed(kept={"ids": {"a": [HUGE]}, "remembers": "x"}),
    ),
    "a job that is taken over: `base`, `seconds`": (
        resumed(["frame", taken(seconds=HUGE)]),
        resumed(["frame", taken(base=[1 << 63] * 3)]),
    ),
}
