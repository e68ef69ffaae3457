"""The host loop as a process: streams, verdicts, turns, bad calls, tape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import OK, QUINE, Agents, call, says, section, sh

# -- streams ---------------------------------------------------------------------------------------


def test_material_to_deliverable(agents: Agents) -> None:
    done = agents.run(says(sh("tr a-z A-Z <&3 >&4; echo seen; echo note >&5")), says(OK), input=b"abc\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ABC\n", b"note\n")
    assert section(agents.results()[0], "STDOUT") == "seen\n"


def test_result_format(agents: Agents) -> None:
    agents.run(says(sh("echo o; echo e >&2; exit_() { return 5; }; exit_"), sh("true")), says(OK))
    first, second = agents.results()
    assert first == "[EXIT CODE] 5\n[STDOUT]\no\n\n[STDERR]\ne\n"
    assert second == "[EXIT CODE] 0\n[STDOUT]\n\n[STDERR]\n\n[TURNS LEFT] 18\n[CONTEXT USED] 1K of 128K"


def test_binary_passes_untouched(agents: Agents) -> None:
    data = os.urandom(300_000)
    done = agents.run(says(sh("cat <&3 >&4")), says(OK), input=data)
    assert done.stdout == data


def test_material_is_read_in_parts(agents: Agents) -> None:
    done = agents.run(
        says(sh("head -c 3 <&3 >&4")), says(sh("read x <&3; echo \"[$x]\" >&4")), says(sh("cat <&3 >&4")), says(OK),
        input=b"abcdef\nrest\n",
    )  # fmt: skip
    assert done.stdout == b"abc[def]\nrest\n"


def test_silence_is_success(agents: Agents) -> None:
    done = agents.run(says(sh("echo noise; echo noise >&2")), says(OK))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_closed_streams(agents: Agents) -> None:
    agents.script(says(sh("cat <&3; echo x >&4 2>/dev/null; :")), says(OK))
    command = " ".join(f"'{word}'" for word in QUINE)
    env = {**agents.env, "PYTHONWARNINGS": "error"}
    got = subprocess.run(["sh", "-c", f"{command} work <&- >&- 2>&-"], cwd=agents.directory, env=env)
    assert got.returncode == 0
    assert "There is no material" in agents.tape()[2]["data"]["content"]


def test_a_deliverable_for_a_closed_stdout_is_not_swallowed(agents: Agents) -> None:
    agents.script(says(sh("echo x >&4")), says(OK))
    command = " ".join(f"'{word}'" for word in QUINE)
    subprocess.run(["sh", "-c", f"{command} work >&-"], cwd=agents.directory, env=agents.env, check=True)
    assert agents.results()[0].startswith("[EXIT CODE] 1\n")


@pytest.mark.parametrize(
    ("stdin", "words"), [("null", "no material"), ("pipe", "a pipe"), ("file", "a file")]
)
def test_material_is_announced(agents: Agents, stdin: str, words: str) -> None:
    agents.script(says(OK))
    file = agents.directory / "in"
    file.write_text("x")
    with file.open() as opened:
        given = {"null": subprocess.DEVNULL, "pipe": subprocess.PIPE, "file": opened}[stdin]
        with agents.start("work", stdin=given) as process:
            process.communicate()
    assert words in agents.tape()[2]["data"]["content"]


def test_binary_option_saves_the_material(agents: Agents) -> None:
    agents.run(
        says(sh("cat <&3; cat $QUINE_DATA_DIR/stdin-*.bin >&4")), says(OK), input=b"\0\1", options=["-b"]
    )
    (saved,) = agents.data.glob("stdin-*.bin")
    assert saved.read_bytes() == b"\0\1"
    assert saved.stat().st_mode & 0o777 == 0o600
    assert str(saved) in agents.tape()[2]["data"]["content"]


def test_material_that_cannot_be_saved_starts_nothing(agents: Agents) -> None:
    """Neither a defect (70) nor lost (74): no inference was made."""
    agents.script(says(OK))
    limit = ["sh", "-c", 'ulimit -f 400; exec "$@"', "sh"]
    words = [*limit, *QUINE, "-b", "mission"]
    done = subprocess.run(
        words, env=agents.env, cwd=agents.directory, input=bytes(1 << 20), capture_output=True, timeout=120
    )
    assert done.returncode == 69, done.stderr
    assert done.stderr.startswith(b"quine: error: stdin cannot be saved in ")
    assert done.stderr.endswith(b".bin: file too large\n")
    assert not list(agents.data.glob("stdin-*"))


def test_quine_inside_sh(agents: Agents) -> None:
    done = agents.run(
        says(sh("echo in | quine inner >&4; echo $?"), match="^outer"),
        says(OK, match="^outer"),
        says(sh("tr a-z A-Z <&3 >&4"), match="^inner"),
        says(call("exit", status=9, stderr="nine"), match="^inner"),
        mission="outer",
    )
    assert done.stdout == b"IN\n"
    assert "9\n" in agents.results("outer")[0]
    outer, inner = agents.tape("outer")[0]["data"], agents.tape("inner")[0]["data"]
    assert inner["parent_session_id"] == inner["root_session_id"] == outer["session_id"]
    assert inner["depth"] == 1


def test_quine_is_found_without_being_on_path(agents: Agents) -> None:
    done = agents.run(
        says(sh("quine inner >&4; echo $? >&4"), match="^outer"), says(OK, match="^outer"), says(OK, match="^inner"),
        mission="outer", env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == b"0\n"


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [("success", 0), ("failure", 1), (63, 63)])
def test_exit_status(agents: Agents, status: int | str, code: int) -> None:
    why = {"stderr": "why"} if code else {}
    done = agents.run(says(call("exit", status=status, **why)))
    assert (done.returncode, done.stderr) == (code, b"why\n" if code else b"")
    assert agents.outcome()["exit_code"] == code
    assert agents.outcome()["termination_mode"] == "exit"


def test_exit_is_sent_back(agents: Agents) -> None:
    refused: list[tuple[dict[str, object], str]] = [
        ({"status": 0, "stderr": "x"}, "success takes no stderr"),
        ({"status": 4}, "needs a reason"),
        ({"status": "failure", "stderr": " "}, "needs a reason"),
        ({}, "status is missing"),
        *(({"status": n, "stderr": "x"}, "between 0 and 63") for n in (-1, 64, 137, 256)),
        ({"status": "progress"}, "must be one of 'success', 'failure'"),
        ({"status": True}, "must be an integer, not a boolean"),
    ]
    done = agents.run(
        says(sh("mkfifo go; cat go >&4 &"), *(call("exit", **arguments) for arguments, _ in refused)),
        says(OK, sh("echo late >go; wait")),
        says(OK),
    )
    assert (done.returncode, done.stdout) == (0, b"late\n")
    for (arguments, words), result in zip(refused, agents.results()[1:], strict=False):
        assert words in result, arguments
    assert "may still write to descriptor 4: pid " in agents.results()[len(refused) + 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (call("sh"), "command is missing"),
        (call("sh", command=3), "command must be a string, not an integer"),
        (call("sh", command="true", timeout="soon"), "timeout must be a number, not a string"),
        (call("sh", command="true", detach=True), "detach is not an argument; known are command, timeout"),
        (call("rm", path="/"), "unknown tool: rm; there are sh, fork, exec, exit"),
        ({"name": "sh", "arguments": '{"command": "tru'}, "not JSON"),
        ({"name": "sh", "arguments": "[1]"}, "not a JSON object"),
        (call("sh", command="a\0b"), "NUL character"),
        (call("sh", command="\ud83d"), "surrogate"),
        (call("fork"), "give either intent or children"),
        (call("fork", intent=" "), "blank"),
        (call("fork", children=[]), "at least 1"),
        (call("fork", children=[{"host": "h1"}]), "children[0].intent is missing"),
        (call("fork", intent="x", files=["a"]), "files a: no such file"),
        (call("fork", intent="x", wait=True, stdin="/no/such"), "no such file"),
        (call("exec", wisdom={"a=b": "x"}), "must match"),
        (call("exec", wisdom={"a": 1}), "wisdom.a must be a string"),
        (call("exec", wisdom={"a": "x" * 140_000}), "too long"),
        (call("exec", host="h1", argv=["true"]), "a host is for your own next life"),
        (call("exec", argv=["/no/such/program"]), "not found"),
    ],
)  # fmt: skip
def test_a_bad_call_is_answered_and_life_goes_on(agents: Agents, bad: dict[str, object], words: str) -> None:
    done = agents.run(says(bad, sh("echo alive >&4")), says(OK))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"alive\n", b"")
    assert words in agents.results()[0]
    assert agents.tape()[4]["data"]["is_error"]


def test_replies_without_a_call(agents: Agents) -> None:
    agents.run(
        {"reply": {"text": "hm"}},
        {"reply": {"text": "hm"}},
        says(sh("true")),
        {"reply": {"text": "so"}},
        says(OK),
    )
    assert agents.outcome()["exit_code"] == 0
    done = agents.run({"reply": {"text": "hm"}, "repeat": True}, mission="talk")
    assert done.returncode == 1
    assert b"quine: error: the guest made no tool call in 3 replies" in done.stderr
    assert b"hint: has this model tools, " in done.stderr
    said = [e["data"]["content"] for e in agents.tape("talk") if e["type"] == "message"]
    assert sum(text.startswith("[REMINDER]") for text in said) == 2
    done = agents.run(says(sh("echo done >&4")), {"reply": {"text": "42"}, "repeat": True}, mission="work")
    assert (done.returncode, done.stdout) == (1, b"done\n")
    assert b"hint: its tools work, and what they did stays; it never called exit" in done.stderr


def test_nothing_but_refused_calls_ends_a_life(agents: Agents) -> None:
    """Whatever was refused counts: a verdict, an unknown tool, arguments that are none, a program that is not there."""
    bad = (call("exit", status=300), call("exit", status=1), call("rm"), call("fork", intent=" "))
    done = agents.run(*map(says, (*bad, call("exec", argv=["/no"])) * 2), says(sh("echo no >&4")))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"quine: error: every call of 10 replies in a row had to be refused" in done.stderr
    assert agents.outcome()["termination_mode"] == "error"
    assert len(agents.results()) == 10


def test_a_result_is_on_the_disk_before_the_next_call(agents: Agents) -> None:
    done = agents.run(says(sh("echo first"), sh("grep -c first $QUINE_DATA_DIR/*.jsonl >&4")), says(OK))
    assert done.stdout == b"2\n"  # the calls, and the result of the first


def test_the_context_is_full(agents: Agents) -> None:
    full = {"usage": {"input": 900, "output": 200}}
    env = {"QUINE_CONTEXT_WINDOW": "1000"}
    done = agents.run({**says(sh("true")), **full}, says(sh("echo no >&4")), env=env)
    assert (done.returncode, done.stdout) == (77, b"")
    assert agents.outcome()["termination_mode"] == "context_exhaustion"
    first, second = agents.results()
    assert "[LAST REPLY] The context is full" in first
    assert "only exec and exit" in second
    assert "[LAST REPLY]" not in second
    done = agents.run({**says(sh("true")), **full}, says(OK), env=env, mission="ends")
    assert done.returncode == 0


def test_calls_after_exit_never_run(agents: Agents) -> None:
    agents.run(says(sh("echo 1 >>log"), OK, sh("echo 2 >>log")))
    assert (agents.directory / "log").read_text() == "1\n"


# -- turns -----------------------------------------------------------------------------------------


def test_turns_run_out(agents: Agents) -> None:
    done = agents.run(
        says(sh("true"), sh("true"), sh("echo 3 >&4")), says(sh("true")), options=["--max-turns", "2"]
    )
    assert done.returncode == 77
    assert done.stdout == b""
    assert b"quine: error: all 2 turns are used" in done.stderr
    assert agents.outcome()["termination_mode"] == "turn_exhaustion"
    results = agents.results()
    assert "no turns are left" in results[2]
    assert "[TURNS LEFT] 0" in results[2]
    assert "[LAST REPLY]" in results[2]
    assert "only exec and exit" in results[3]


def test_the_last_reply_can_exit(agents: Agents) -> None:
    done = agents.run(says(sh("true")), says(OK), options=["--max-turns=1"])
    assert done.returncode == 0


def test_only_sh_costs_turns(agents: Agents) -> None:
    done = agents.run(says(call("sh"), sh("true")), says(call("exit", status=1)), says(sh("true")), says(OK),
                      env={"QUINE_MAX_TURNS": "3"})  # fmt: skip
    assert done.returncode == 0
    assert "[TURNS LEFT] 2" in agents.results()[1]


def test_unlimited_turns(agents: Agents) -> None:
    agents.run(says(sh("true")), says(OK), env={"QUINE_MAX_TURNS": "0"})
    assert "[TURNS LEFT]" not in agents.results()[0]


# -- tape ------------------------------------------------------------------------------------------


def test_tape(agents: Agents) -> None:
    """Its form; and nothing else is left in the data directory."""
    agents.run(says(sh("true"), text="thinking"), says(OK))
    names = sorted(path.name for path in agents.data.rglob("*") if path.is_file())
    assert names[:2] == [".gitignore", ".mark"] and [Path(name).suffix for name in names[2:]] == [".jsonl"]
    (path,) = agents.data.glob("*.jsonl")
    lines = path.read_bytes().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [e["type"] for e in entries] == [
        "meta",
        "message",
        "message",
        "message",
        "tool_result",
        "message",
        "outcome",
    ]
    assert [e["seq"] for e in entries] == list(range(7))
    assert entries[0]["prev"] == ""
    for before, entry in zip(lines, entries[1:], strict=False):
        assert entry["prev"] == sha256(before).hexdigest()
    meta = entries[0]["data"]
    assert meta["session_id"] == path.stem
    assert meta["node"] == "local"
    assert meta["pid"] > 1
    assert entries[3]["data"]["content"] == "thinking"
    assert entries[3]["data"]["tool_calls"][0]["arguments"] == {"command": "true"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert agents.data.stat().st_mode & 0o777 == 0o700


def test_mission_in_the_system_prompt_and_nothing_volatile(agents: Agents) -> None:
    agents.run(says(OK), mission="do {SHELL} and {MISSION}")
    agents.run(says(OK), mission="do {SHELL} and {MISSION}", input=b"x", options=["--max-turns", "7"])
    first, second = (tape[1]["data"]["content"] for tape in agents.tapes())
    assert first == second
    assert first.endswith("# Your mission\n\ndo {SHELL} and {MISSION}")


def test_start_path_is_lean(agents: Agents) -> None:
    agents.script(says(sh("true")), says(OK))
    command = [sys.executable, "-P", "-X", "importtime", "-m", "quine", "work"]
    got = subprocess.run(
        command,
        cwd=agents.directory,
        env=agents.env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    imported = {
        line.rsplit("|", 1)[1].strip() for line in got.stderr.splitlines() if line.startswith("import time:")
    }
    assert got.returncode == 0
    assert not imported & {
        "asyncio", "pydantic", "httpx", "typer", "asyncssh", "fsspec", "subprocess", "dataclasses", "argparse",
        "inspect", "pathlib", "hashlib", "tempfile", "socket", "threading", "logging",
    }  # fmt: skip


PUTS = """
import sys
from quine.tape.writer import FileSink
put = FileSink.put
def told(self, lines):
    print(len(lines), file=sys.stderr)
    put(self, lines)
FileSink.put = told
sys.argv = ["quine", "work"]
from quine.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("first", "puts"),
    [
        # The first messages; then the verdict and the outcome, between which nothing happens.
        ([], [3, 2]),
        # A shell is ended by the verdict, which is on the disk before that.
        ([says(sh("sleep 61 4>&- &"))], [3, 1, 1, 1, 1]),
        # A refused verdict goes to the disk with the result that says so.
        ([says(call("exit", status=3))], [3, 2, 2]),
    ],
)
def test_the_tape_goes_to_the_disk_before_each_effect_and_no_more_often(
    agents: Agents, first: list[dict[str, Any]], puts: list[int]
) -> None:
    agents.script(*first, says(OK))
    words = [sys.executable, "-P", "-c", PUTS]
    done = subprocess.run(
        words, cwd=agents.directory, env=agents.env, stdin=-3, capture_output=True, timeout=120
    )
    assert done.returncode == 0
    assert list(map(int, done.stderr.split())) == puts
