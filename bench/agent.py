"""Agents: a cold one-turn agent, and a local fork that carries a tape of a megabyte."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.measure import Row, alternate
from tests.lab import Lab
from tests.vendors import chat
from tests.vendors.server import KEY, Provider, Said

LEAVE = {"reply": {"tool_calls": [{"name": "exit", "arguments": {"status": "success"}}]}}


def cold(lab: Lab) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        env = {**lab.env, **lab.script([LEAVE]), "QUINE_DATA_DIR": directory}

        def agent() -> None:
            subprocess.run([lab.quine, "leave"], env=env, check=True, stdin=subprocess.DEVNULL)

        def python() -> None:
            subprocess.run([sys.executable, "-c", "pass"], env=env, check=True, stdin=subprocess.DEVNULL)

        ours, bare = (1000 * t for t in alternate(25, agent, python))
    return [
        Row(
            "one-turn agent, scripted guest, cold",
            ours,
            "ms",
            "bare python",
            bare,
            "≤ 120, aim 60",
            ours <= 120,
        )
    ]


PROGRAM = """#!/bin/sh
cat >/dev/null
echo '{"tool_calls": [{"name": "exit", "arguments": {"status": "success"}}]}'
"""


def guests(lab: Lab) -> list[Row]:
    """A cold one-turn agent with each kind of guest; the server of the HTTP guest is in this process."""
    leave = Said(calls=({"name": "exit", "arguments": {"status": "success"}},))
    with tempfile.TemporaryDirectory() as directory, Provider(chat, choose=lambda seen: leave) as provider:
        program = Path(directory, "guest")
        program.write_text(PROGRAM)
        program.chmod(0o700)
        kinds = {
            "script": lab.script([LEAVE]),
            "program": {"QUINE_API_TYPE": "program", "QUINE_API_BASE": str(program)},
            "openai": {
                "QUINE_API_TYPE": "openai",
                "QUINE_API_BASE": f"{provider.base}/v1",
                "QUINE_API_KEY": KEY,
                "QUINE_MODEL_ID": "m",
            },
        }

        def agent(kind: str) -> None:
            env = {**lab.env, **kinds[kind], "QUINE_DATA_DIR": directory}
            subprocess.run([lab.quine, "leave"], env=env, check=True, stdin=subprocess.DEVNULL)

        def python() -> None:
            subprocess.run([sys.executable, "-c", "pass"], env=lab.env, check=True, stdin=subprocess.DEVNULL)

        *times, bare = alternate(15, *(partial(agent, kind) for kind in kinds), python)
    return [
        Row(f"one-turn agent, {kind} guest, cold", 1000 * took, "ms", "bare python", 1000 * bare)
        for kind, took in zip(kinds, times, strict=True)
    ]


def fork(lab: Lab) -> list[Row]:
    """The time from the fork entry on the parent's tape to the first inference on the child's."""
    text = "x" * 20_000
    big = {
        "reply": {
            "text": text,
            "tool_calls": [{"name": "sh", "arguments": {"command": f"echo {'y' * 20_000}"}}],
        }
    }
    measure = "grep -E '^Private_(Clean|Dirty)' /proc/$PPID/smaps_rollup >&4"
    replies = [
        *({**big, "match": "^root"} for _ in range(19)),
        {
            "match": "^root",
            "reply": {"tool_calls": [{"name": "fork", "arguments": {"intent": "child", "wait": True}}]},
        },
        {**LEAVE, "match": "^root"},
        {"match": "^child", "reply": {"tool_calls": [{"name": "sh", "arguments": {"command": measure}}]}},
        {**LEAVE, "match": "^child"},
    ]
    times, private = [], []
    for _ in range(9):
        with tempfile.TemporaryDirectory() as directory:
            env = {
                **lab.env,
                **lab.script(replies),
                "QUINE_DATA_DIR": directory,
                "QUINE_MAX_TURNS": "0",
                "QUINE_CONTEXT_WINDOW": "10000000",
            }
            subprocess.run([lab.quine, "root"], env=env, check=True, stdin=subprocess.DEVNULL)
            tapes = {}
            for path in Path(directory).glob("*.jsonl"):
                entries = [json.loads(line) for line in path.read_text().splitlines()]
                tapes[entries[0]["data"]["mission"]] = (entries, path.stat().st_size)
            parent, size = tapes["root"]
            assert size > 700_000, size
            began = next(entry["ts"] for entry in parent if entry["type"] == "fork")
            child = tapes["child"][0]
            first = next(entry for entry in child if entry["data"].get("role") == "assistant")
            times.append(1000 * (first["data"].get("asked", first["ts"]) - began))
            result = next(
                entry["data"]["content"]
                for entry in parent
                if "Private_Dirty" in str(entry["data"].get("content"))
            )
            private.append(
                sum(int(line.split()[1]) for line in result.splitlines() if line.startswith("Private_"))
                / 1024
            )
    took, memory = statistics.median(times), statistics.median(private)
    return [
        Row(
            "local fork with a 1 MB tape, to the child's first inference",
            took,
            "ms",
            reach="≤ 10",
            met=took <= 10,
        ),
        Row("private memory of that child", memory, "MB", reach="≤ 8", met=memory <= 8),
    ]
