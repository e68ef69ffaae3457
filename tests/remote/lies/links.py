"""Lies about the link, its frames, the ends of jobs and their output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.remote.lies.lie import (
    BATCH,
    EXIT,
    GREET,
    HAVE,
    LINK,
    MARK,
    MEGABYTE,
    Lie,
    Plan,
    batch,
    before,
    flood,
    frame,
    jobs,
    pour,
)

# -- before the link, and of the link ----------------------------------------------------------------


def flooded(each: int, *frames: dict[str, Any], told: str, deaf: bool = False) -> Lie:
    """Frames without end, of a job that was started: it is lost."""
    return Lie(
        lambda size: [*LINK, *([["deaf"]] if deaf else []), flood(size, each, *frames)], BATCH, 74, told
    )


def early(*steps: Callable[[int], list[Any]]) -> Lie:
    """Before a job was started: the honest host has its item."""
    return Lie(lambda size: before(*(step(size) for step in steps)), BATCH, 0)


def have(_: int) -> list[Any]:
    return HAVE


def greets(**change: Any) -> Callable[[int], list[Any]]:
    return lambda _: ["greet", change]


def hello(size: int) -> list[Any]:
    return flood(size, 60_000, {"kind": "HELLO", "payload": "9", "times": 60_000})


REQUEST = frame("REQUEST", [2, 2], 0, json={"name": "fs", "job": "JOB"})
STRAY = frame("REQUEST", [2, 2], 0, json={"name": "fs", "job": 99})
PART = frame("REQUEST", 2, 1, payload="[],", times=20_000)
BODY = [frame("DATA", [2, 2], 0, offset=60_000 * n, payload="x", times=60_000) for n in range(4)]
SPAWN = frame("SPAWN", [2, 2], 0, json={"id": "a" * 32, "tree": "a" * 32, "argv": ["true"]})

LINKS: dict[str, tuple[Lie, ...]] = {
    "host key, ssh banner, login text": (early(pour), early(have, pour)),
    "stderr of the carrier": (early(lambda size: pour(size, "login \x1b[2J", 2)),),
    "answer of the probe: state, system, machine, version, free, kept, Python": (
        early(lambda _: ["shell", "MARKER need ", 1], pour),
        early(lambda _: ["shell", "MARKER need L\x1b[2J x 1 2 3 p\n", 1], pour),
        early(lambda size: ["shell", "MARKER hung /x\n", size // 45]),
        early(lambda size: ["shell", "MARKER shell 1 /x\n", size // 48]),
    ),
    "hello: `version`, `build`": (
        early(have, greets(version="9" * 60_000), hello),
        early(have, greets(build=["9" * 60_000]), hello),
    ),
    "hello: `system`": (
        Lie(
            lambda _: [HAVE, ["greet", {"system": "x\x07 y" * 5000}], MARK, ["jobs", ["attach"], EXIT]],
            BATCH,
            0,
        ),
    ),
    "hello: `mount`": (
        Lie(
            lambda _: [HAVE, ["greet", {"mount": ["9\x07" * 5_000]}], MARK, ["jobs", ["attach"], EXIT]],
            BATCH,
            0,
        ),
    ),
    "hello: `processors`": (
        Lie(
            lambda _: [HAVE, ["greet", {"processors": 1 << 60}], MARK, ["jobs", ["attach"], EXIT]],
            BATCH,
            0,
            slots=None,
        ),
    ),
    "hello: `link`, `seen`, `attempt`, `life`": (
        early(have, greets(seen=10**9), lambda size: flood(size, 18, {"kind": "SEEN", "offset": 5})),
        early(have, greets(link="ab" * 16), lambda size: flood(size, 18, {"kind": "SEEN", "offset": 5})),
        early(have, greets(attempt="1" * 50_000, life=[]), lambda size: flood(size, 18, {"kind": "SEEN"})),
    ),
    "a frame": (
        Lie(
            lambda size: [*LINK, ["frame", frame("DATA", stream=1, length=0xFFFFFFFF)], pour(size)],
            BATCH,
            74,
            "frame of 4294967295 bytes",
        ),
    ),
    "control frames": (
        flooded(18, {"kind": "PING"}, told="a flood of words"),
        flooded(18, {"kind": "PING"}, told="a flood of words", deaf=True),
        flooded(100, STRAY, frame("STOP", [2, 2]), told="asks but does not read", deaf=True),
    ),
    "spawns": (flooded(120, SPAWN, told="spawn from a node that was dialled"),),
    "requests: opening": (
        flooded(60_000, PART, told="request of more than 4194304 bytes")._replace(large=True),
        flooded(60, STRAY, told="too many channels"),
    ),
    "bodies under way": (
        flooded(240_000, REQUEST, *BODY, told="bytes of requests at one time")._replace(large=True),
    ),
    "acknowledged offsets, windows": (
        flooded(18, frame("ACK", stream=0, offset=[10**6, 1]), told="acknowledgement of 1000000"),
        flooded(
            60_000,
            frame("DATA", stream=1, offset=[0, 60_000], payload="x", times=60_000),
            told="",
        )._replace(disk=1 << 40),
    ),
    "notes about slots and links": (
        flooded(
            50_000, frame("NOTE", json={"up": False, "why": "\x07" * 8000}), told="note from another node"
        ),
    ),
}

# -- jobs ---------------------------------------------------------------------------------------------


WORDS = {"detail": "\x07" * 6000, "hint": "x" * 9000, "host": "y" * 9000, "code": 3}


def ends(**change: Any) -> Lie:
    """An end of the wrong form, again and again."""
    wrong = frame("EXIT", json={"state": "exited", "code": 0, **change})
    return flooded(100, wrong, told="exit frame without a status")


def printing(text: str, stream: int, size: int) -> Plan:
    return jobs(["output", stream, text, size // len(text)])


def prints(text: str, words: list[str], status: int, told: str = "", stream: int = 1) -> Lie:
    """More output than is shown."""
    plan = partial(printing, text, stream)
    return Lie(plan, words, status, told, disk=16 * MEGABYTE)


JOBS: dict[str, tuple[Lie, ...]] = {
    "exit record: `state`, `code`, `signal`": (
        ends(state="great"),
        ends(code="7" * 5000),
        ends(state="signaled", signal=["KILL"]),
        ends(more={}),
    ),
    "exit record: `detail`, `hint`, `host`": (
        Lie(
            lambda _: [HAVE, GREET, MARK, ["jobs", ["attach"], ["exit", WORDS]]],
            BATCH,
            123,
            "items are not done",
        ),
        ends(detail=[["x"] * 9000]),
    ),
    "exit record: `left`": (ends(left="z" * 9000), ends(left="a\nb"), ends(left=["a"])),
    "exit record: `pid`, `rusage`": (
        ends(pid=10**400),
        ends(rusage={"utime": 10**300}),
        ends(rusage={"x" * 50_000: 1}),
    ),
    "stdout and stderr": (
        prints("x" * 6000 + "\n", [word for word in BATCH if word != "--json"], 0)._replace(disk=1 << 40),
    ),
    "the same in `--json` and in a table": (
        prints('\xffx"\n' * 1500, batch("--json-limit", "1M"), 74, "was cut at 1048576"),
        prints("x\n" * 3000, batch("--json-limit", "1M"), 74, "was cut at 1048576", 2),
    ),
    "offsets of an output that is kept there": (
        flooded(
            100,
            frame("ATTACH", json={"pid": 7, "kept": {"base": [1 << 61] * 3}}),
            told="attach from the server",
        ),
    ),
}
