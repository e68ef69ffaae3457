"""A full context: the guest is warned before it and asked once more after it. Text that does not fit is cut."""

from __future__ import annotations

import json
import sys
from typing import Any

from quine.agent import prompt
from tests.support.agents import OK, Agents, call, says, sh


def guest(agents: Agents, code: str) -> dict[str, str]:
    """The environment of an agent whose guest is this Python program."""
    path = agents.directory / "guest"
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return {"QUINE_API_TYPE": "program", "QUINE_API_BASE": str(path)}


def used(line: dict[str, Any], prompt: int) -> dict[str, Any]:
    return {**line, "usage": {"input": prompt, "output": 0}}


def test_a_warning_once_and_then_the_last_reply(agents: Agents) -> None:
    env = {"QUINE_CONTEXT_WINDOW": "10000"}
    agents.script(
        *(used(says(sh(f"echo {n}"), wisdom="^{}$"), n) for n in (7000, 8500, 9000, 10_000)),
        used(says(call("exec", wisdom={"seen": "4"}), wisdom="^{}$"), 10_100),
        used(says(sh("echo anew"), wisdom="4"), 100),
        says(OK, wisdom="4"),
    )
    done = agents.run(env=env)
    assert done.returncode == 0
    first, second = agents.tapes()
    texts = [e["data"]["content"] for e in first if e["type"] == "tool_result"]
    assert ["85 % of your memory is used" in text for text in texts] == [False, True, False, False]
    assert "[LAST REPLY] The context is full" in texts[3]
    assert "[CONTEXT USED] 0K of 10K" in next(
        e["data"]["content"] for e in second if e["type"] == "tool_result"
    )


def test_what_has_come_since_the_guest_counted_is_counted(agents: Agents) -> None:
    agents.script(used(says(sh("head -c 16000 /dev/zero | tr '\\0' x")), 1000), says(call("exit", status=0)))
    agents.run(env={"QUINE_CONTEXT_WINDOW": "4000"})
    assert "[CONTEXT USED] 5K of 4K\n[LAST REPLY]" in agents.results()[0]


# A guest whose window is full at so many characters; it tells, as a provider does, by an error.
FULL = """
import json, os, sys
asked = json.load(sys.stdin)
size = sum(len(m.get("content") or "") + len((m.get("result") or ["", "", ""])[2]) for m in asked["messages"])
with open("sizes", "a") as file:
    print(size, asked["wisdom"], file=file)
if size > 20000:
    print(json.dumps({"error": "overflow", "detail": "too long"}))
elif asked["wisdom"]:
    print(json.dumps({"tool_calls": [{"name": "exit", "arguments": {"status": 0}}]}))
elif "LAST REPLY" in json.dumps(asked["messages"]):
    print(json.dumps({"tool_calls": [{"name": "exec", "arguments": {"wisdom": {"n": "1"}}}]}))
else:
    command = os.environ["COMMAND"]
    print(json.dumps({"tool_calls": [{"name": "sh", "arguments": {"command": command}}] * 2}))
"""


def full(agents: Agents, command: str) -> dict[str, str]:
    return {**guest(agents, FULL), "COMMAND": command}


def test_a_conversation_that_does_not_fit_gets_one_last_chance_to_exec(agents: Agents) -> None:
    done = agents.run(env=full(agents, "seq 2500"))
    assert (done.returncode, done.stderr) == (0, b"")
    first, second = agents.tapes()
    assert first[-1]["data"]["termination_mode"] == "exec"
    assert second[0]["data"]["wisdom"] == {"n": "1"}
    again = [e["data"] for e in first if e["type"] == "tool_result" and e["data"].get("again")]
    assert [data["content"] for data in again] == [prompt.DROPPED] * 2
    notes = [e["data"]["content"] for e in first if e["type"] == "message" and e["data"]["role"] == "user"]
    assert "[LAST REPLY] The context is full" in notes[-1]
    whole = [e["data"] for e in first if e["type"] == "tool_result" and not e["data"].get("again")]
    assert all("2500" in data["content"] for data in whole)  # the tape has what was dropped


def test_older_results_are_dropped_where_the_last_ones_are_not_enough(agents: Agents) -> None:
    """Many small ones: no single reply brought it over the edge."""
    done = agents.run(env={**full(agents, "seq 500"), "QUINE_MAX_TURNS": "0"})
    assert (done.returncode, done.stderr) == (0, b"")
    sizes = [int(line.split()[0]) for line in (agents.directory / "sizes").read_text().splitlines()]
    assert max(sizes) > 20_000 > sizes[-1]


def test_what_never_fits_ends_the_life(agents: Agents) -> None:
    done = agents.run(env=full(agents, "true"), mission="m" * 30_000)
    assert done.returncode == 77
    assert b"the context is full: too long" in done.stderr
    (tape,) = agents.tapes()
    assert tape[-1]["data"]["termination_mode"] == "context_exhaustion"


def test_a_window_that_fills_during_the_reply(agents: Agents) -> None:
    env = guest(
        agents,
        "import json, sys\nn = json.load(sys.stdin)['ordinal']\n"
        "call = {'name': 'sh', 'arguments': {'command': 'echo hi'}} if n == 0 else "
        "{'name': 'exit', 'arguments': {'status': 9, 'stderr': 'full'}}\n"
        "print(json.dumps({'tool_calls': [call], 'stop': 'context' if n == 0 else 'tool'}))\n",
    )
    done = agents.run(env=env)
    assert (done.returncode, done.stderr) == (9, b"full\n")
    assert "[LAST REPLY] The context is full" in agents.results()[0]


def test_a_reply_that_was_cut_is_told_so(agents: Agents) -> None:
    env = guest(
        agents,
        "import json, sys\nasked = json.load(sys.stdin)\n"
        "if asked['ordinal'] == 0: print(json.dumps({'text': 'so long', 'stop': 'length'}))\n"
        "else: print(json.dumps({'tool_calls': [{'name': 'exit', 'arguments': {'status': 'success'}}]}))\n",
    )
    assert agents.run(env=env).returncode == 0
    said = [e["data"]["content"] for e in agents.tape() if e["type"] == "message"]
    assert prompt.CUT in said


# -- what the operator sees ---------------------------------------------------------------------------


def test_verbose_tells_on_stderr_and_keeps_nothing(agents: Agents) -> None:
    agents.script(used(says(sh("true")), 12), says(OK))
    done = agents.run(options=("-v",))
    assert done.returncode == 0
    lines = done.stderr.decode().splitlines()
    assert "level 1, model script" in lines[0]
    assert lines[1].endswith("12 tokens in, 0 out: sh")
    assert not list(agents.data.glob("*.log"))
    assert agents.run().stderr == b""


def test_what_had_to_be_tried_again_is_in_the_log(agents: Agents) -> None:
    env = guest(
        agents,
        "import os, sys\n"
        "if not os.path.exists('tried'): open('tried', 'w'); print('{\"error\": \"unavailable\", \"after\": 0.01}')\n"
        'else: print(\'{"tool_calls": [{"name": "exit", "arguments": {"status": 0}}]}\')\n',
    )
    done = agents.run(env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    (log,) = agents.data.glob("*.log")
    assert "tried again in 0.01 s: it gave no reason" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert json.loads(next(agents.data.glob("*.jsonl")).read_text().splitlines()[0])["type"] == "meta"
