"""Lies of agents to their origin, and answers about jobs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from tests.remote.lies.lie import AGENTS, MEGABYTE, Lie, jobs
from tests.remote.lies.links import printing

SAYS = '{"session":"TREE","mission":"m","ordinal":0,"wisdom":{},"messages":[{"role":"user","content":"'
OTHER = "0192aaaa-bbbb-7ccc-8ddd-eeeeffff0000"
OVER = 18 * MEGABYTE  # a body that is too large


def entry(kind: str, seq: int, **data: object) -> str:
    return json.dumps({"type": kind, "data": data, "seq": seq, "ts": 1.5, "prev": ""})


def asks(name: str, *parts: list[Any], answered: str, count: int = 1, **more: Any) -> Lie:
    """An agent of the host asks its origin."""
    return Lie(
        lambda _: jobs(["crowd", count, name, list(parts)]),
        AGENTS,
        0,
        answered=answered,
        env={"QUINE_API_TYPE": "script", "QUINE_API_BASE": "GUEST"},
        **more,
    )


def tape(*lines: str) -> list[Any]:
    return [json.dumps({"session": OTHER, "lines": list(lines)}), 1]


def lists(text: str, told: str, words: list[str], status: int = 69, stream: int = 1) -> Lie:
    """An answer about jobs."""
    return Lie(partial(printing, text, stream), words, status, told)


PS = ["ps", "--on", "LIAR,good"]
LINES = "".join(json.dumps({"id": f"{number:032x}"}) + "\n" for number in range(1000))

ASKED: dict[str, tuple[Lie, ...]] = {
    "body of a request": (
        asks("infer", [SAYS, 1], ["[],", 90_000], answered="infer: "),
        asks(
            "infer",
            [SAYS, 1],
            ["x" * 6000, OVER // 6000],
            answered="a request of more than 16777216",
            large=True,
        ),
        # one wide character: four bytes of memory for each of the others
        asks(
            "infer",
            [SAYS + "\\ud83d\\ude00", 1],
            ["x" * 6000, 15 * MEGABYTE // 6000],
            ['"}]}', 1],
            answered="asked for already",
            count=6,
            large=True,
        )._replace(words=["--on", "LIAR", "errand"]),
        asks(
            "ledger",
            ['{"ledger":"', 1],
            ["x" * 6000, 100],
            ['"}', 1],
            answered="ledger: not of the form",
            count=9,
        ),
    ),
    "tape: lines": (
        asks(
            "tape",
            ['{"session":"TREE","lines":["', 1],
            ["x" * 6000, 9 * MEGABYTE // 6000],
            ['"]}', 1],
            answered="tape: lines: ",
            large=True,
        ),
        asks("tape", tape(entry("message", 5)), answered="must be the session's own meta", count=99),
    ),
    "tape: replies of the guest": (
        asks(
            "tape",
            tape(entry("message", 0, role="assistant", content="x" * 99_000)),
            answered="own meta",
            count=9,
        ),
    ),
    "tape: tokens of a reply": (
        asks(
            "tape",
            tape(entry("message", 0, usage={"input": 10**300, "output": 1})),
            answered="own meta",
            count=9,
        ),
    ),
    "tape: agents": (
        asks(
            "tape",
            tape(entry("meta", 0, session_id=OTHER, root_session_id=OTHER)),
            answered="another tree",
            count=99,
        ),
    ),
    "the list of jobs of a host": (
        lists(LINES, "an answer of more than 20000 lines", [*PS, "--json"])._replace(large=True),
        lists("x" * 6000, "an answer of more than 16 MiB", PS)._replace(large=True),
        lists(
            "[]," * 2000, "an answer of more than 16 MiB", ["logs", "--on", "LIAR,good", "00000000"]
        )._replace(large=True),
    ),
    "its errors": (
        lists("\x1b[2J" * 1000, "an answer of more than 16 MiB", PS, stream=2)._replace(large=True),
    ),
}
