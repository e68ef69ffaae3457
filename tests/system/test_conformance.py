"""Behaviours of the paper and the reference implementation that no other file of tests shows."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from typing import Any

import pytest

from tests.support.agents import OK, QUINE, Agents, call, says, section, sh
from tests.vendors import chat
from tests.vendors.server import KEY, Provider, Said

NONE, SOME = r"^\{\}$", "."
QUINE_WORD = " ".join(f"'{word}'" for word in QUINE)


def quine(agents: Agents, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [*QUINE, *words], cwd=agents.directory, env=agents.env, capture_output=True, text=True, **more
    )


def pipeline(agents: Agents, line: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which `quine` is this one."""
    more.setdefault("stdin", subprocess.DEVNULL)
    line = re.sub(r"\bquine\b", lambda _: QUINE_WORD, line)
    return subprocess.run(
        ["sh", "-c", line], cwd=agents.directory, env=agents.env, capture_output=True, text=True, **more
    )


# -- invocation and prompt -------------------------------------------------------------------------


def test_the_words_of_the_command_line_are_the_mission(agents: Agents) -> None:
    agents.script(says(OK))
    assert quine(agents, "count", "the  lines", "-x").returncode == 0
    assert agents.tapes()[0][0]["data"]["mission"] == "count the  lines -x"


def test_without_a_mission_nothing_begins(agents: Agents) -> None:
    agents.script(says(OK))
    for words in ([], [" ", "\t\n"], ["--"]):
        done = quine(agents, *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith("quine: error: no mission\nquine: hint: "), words
        assert not agents.data.exists(), words


def test_material_reaches_the_guest_by_its_own_reading_alone(agents: Agents) -> None:
    agents.run(says(sh("cat <&3")), says(OK), input=b"canary-in-the-material")
    told = [json.dumps(entry["data"]) for entry in agents.tape()]
    assert [number for number, text in enumerate(told) if "canary" in text] == [4]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Agents:
    """An agent whose tape shows what each one has."""
    agents = Agents(tmp_path_factory.mktemp("usual"))
    agents.run(
        {**says(sh("true"), text="so"), "usage": {"input": 7, "output": 5}},
        says(sh("cut -d' ' -f5 /proc/$$/stat /proc/$PPID/stat; echo $$")),
        says(sh("(exit 9) & pid=$!; f() { echo f$1; }"), sh("wait $pid; echo $?; f 1"), sh("(exit 7)")),
        says(OK),
        env={"FOO": "x"},
    )
    return agents


def test_the_prompt_describes_the_world(usual: Agents) -> None:
    """All placeholders are filled; channels, tools, the ends of a life and delegation are described."""
    prompt = usual.tape()[1]["data"]["content"]
    assert not re.search(r"\{[A-Z_]+\}", prompt)
    for told in (
        "descriptor 3", "descriptor 4", "descriptor 5", "exit status", "`sh`", "`fork`", "`exec`", "`exit`",
        "Material is a stream: bytes that were read\nare gone", "Your turns are counted", "A signal can end you",
        "context, goal, deliverable, how it is verified", "Do not run `exit` in `sh`", "silence means success",
        "empty memory and full turns", "a reason, which goes to stderr",
    ):  # fmt: skip
        assert told in prompt, told


def test_a_status_other_than_zero_is_an_error(usual: Agents) -> None:
    errors = [e["data"]["is_error"] for e in usual.tape() if e["type"] == "tool_result"]
    assert errors == [False, False, False, False, True]


def test_the_shell_is_a_group_of_its_own_and_remembers(usual: Agents) -> None:
    _, first, _, fourth, _ = usual.results()
    shell, agent, pid = section(first, "STDOUT").split()
    assert shell == pid != agent
    assert section(fourth, "STDOUT") == "9\nf1\n"


def test_the_fields_of_the_tape(usual: Agents) -> None:
    """Those of the reference; more may follow."""
    wanted = {
        "meta": {"session_id", "parent_session_id", "depth", "model_id", "created_at"},
        "message": {"role", "content", "timestamp"},
        "tool_result": {"tool_id", "content", "is_error"},
        "outcome": {
            "exit_code", "stderr", "duration_ms", "tokens_in", "tokens_out", "turn_count", "termination_mode",
        },
    }  # fmt: skip
    for entry in usual.tape():
        assert wanted[entry["type"]] <= entry["data"].keys()
    outcome = usual.outcome()
    assert [outcome[k] for k in ("tokens_in", "tokens_out", "turn_count", "exit_code")] == [7, 5, 5, 0]
    asked, answer = usual.tape()[3]["data"]["tool_calls"][0], usual.tape()[4]["data"]
    assert asked["id"] == answer["tool_id"]


def test_the_defaults_of_the_reference(usual: Agents) -> None:
    limits = usual.tape()[0]["data"]["limits"]
    wanted = {"turns": 20, "depth": 5, "agents": 10, "concurrent": 20, "sh_timeout": 600.0, "truncate": 20480}
    assert {**limits, **wanted, "window": 128000} == limits


def test_neither_a_limit_nor_material(agents: Agents) -> None:
    """No limit of turns is told as such; `-b` saves no file where there is nothing to save."""
    agents.run(says(OK), options=["-b", "--max-turns", "0"], input=b"")
    told = agents.tape()[2]["data"]["content"]
    assert "Turns: unlimited." in told and told.startswith("There is no material")
    assert not list(agents.data.glob("stdin-*"))


def test_what_is_inherited(agents: Agents) -> None:
    """The environment is copied by fork and kept by exec; empty wisdom is none, and keys are told in order."""
    show = sh('echo "$FOO-$QUINE_WISDOM_b"')
    agents.run(
        says(show, call("fork", intent="clone", wait=True), match="^work", wisdom='^{"a":"1","b":"2"}$'),
        says(call("fork", intent="fresh", wait=True, context="none"), match="^work", wisdom='"a"'),
        says(call("exec", wisdom={"a": ""}), match="^work", wisdom='"a"'),
        says(show, OK, match="^work", wisdom='^{"b":"2"}$'),
        says(show, OK, match="^(clone|fresh)"),
        env={"QUINE_WISDOM_b": "2", "QUINE_WISDOM_a": "1", "QUINE_WISDOM_c": "", "FOO": "bar"},
    )
    first, clone, fresh, second = agents.tapes()
    assert '\n{"a": "1", "b": "2"}\n' in first[2]["data"]["content"]
    assert '\n{"b": "2"}\n' in second[2]["data"]["content"]
    assert "isdom" not in fresh[2]["data"]["content"]
    shown = [
        section(next(e["data"]["content"] for e in tape[1:] if e["data"].get("name") == "sh"), "STDOUT")
        for tape in (first, clone, fresh, second)
    ]
    assert shown == ["bar-2\n", "bar-2\n", "bar-\n", "bar-2\n"]


# -- streams and composition -----------------------------------------------------------------------


def test_diagnostics_come_while_it_runs(agents: Agents) -> None:
    os.mkfifo(agents.directory / "go")
    agents.script(says(sh("echo failed >&5; read x <go")), says(OK))
    with agents.start("work") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"failed\n"
        assert process.poll() is None
        (agents.directory / "go").write_text("\n")
        process.communicate(timeout=120)
    assert process.returncode == 0


@pytest.mark.long
def test_it_composes_as_any_filter(agents: Agents) -> None:
    agents.script(
        says(sh("tr a-z A-Z <&3 >&4"), OK, match="^upper"),
        says(sh("rev <&3 >&4"), OK, match="^turn"),
        says(call("exit", status="failure", stderr="no\n"), match="^fail"),
        says(sh("wc -c <$(cat <&3) >&4"), OK, match="^size"),
        says(sh("echo $PPID >&4"), OK, match="^pid"),
    )
    done = pipeline(agents, "printf 'b\\nabc\\n' | quine upper | quine turn it | sort | uniq -c | tr -s ' '")
    assert (done.stdout, done.stderr) == (" 1 B\n 1 CBA\n", "")
    done = pipeline(
        agents, 'quine fail && echo reached; quine fail || echo "it failed: $?"; quine turn && echo ok'
    )
    assert (done.stdout, done.stderr) == ("it failed: 1\nok\n", "no\nno\n")
    done = pipeline(agents, "printf 'a\\nb\\nc\\n' | xargs -P 3 -n 1 quine pid | sort -u | wc -l")
    assert done.stdout.split() == ["3"]


def test_limits_of_the_kernel_hold_in_commands(agents: Agents) -> None:
    agents.script(says(sh("ulimit -n >&4"), OK))
    assert pipeline(agents, "ulimit -n 200; quine work").stdout == "200\n"


def test_a_command_learns_that_nobody_reads_any_more(agents: Agents) -> None:
    agents.script(says(sh("yes >&4; echo status $?")), says(sh("touch alive"), OK))
    done = pipeline(agents, "quine work | head -n 1; while ! [ -e alive ]; do sleep 0.02; done")
    assert done.stdout == "y\n"
    assert section(agents.results()[0], "STDOUT") == "status 141\n"


def test_an_interrupt_ends_the_whole_command(agents: Agents) -> None:
    """As ^C does in a terminal: an interrupt of `make; deploy` must not deploy."""
    agents.script(says(sh("sh -c 'echo up >&4; exec sleep 71381'; echo deployed >&4")), says(OK))
    with agents.start("work", "--interrupt=command") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, b"")
    assert agents.results()[0].startswith("[EXIT CODE] 130\n")


def test_a_small_limit_of_file_sizes_is_no_defect(agents: Agents) -> None:
    agents.script(says(OK))
    agents.env["TMPDIR"] = str(agents.directory)
    assert pipeline(agents, "ulimit -f 40; quine work").returncode == 0


# -- sh --------------------------------------------------------------------------------------------


def test_the_shell_is_the_users_choice(agents: Agents) -> None:
    agents.run(says(sh("echo ${BASH_VERSION:+bash}")), says(OK), env={"QUINE_SHELL": "/bin/bash"})
    assert section(agents.results()[0], "STDOUT") == "bash\n"
    assert "/bin/bash" in agents.tape()[1]["data"]["content"]


def test_every_command_has_a_time_limit(agents: Agents) -> None:
    agents.run(says(sh("sleep 71382")), says(OK), env={"QUINE_SH_TIMEOUT": "1"})
    assert agents.results()[0].startswith("[EXIT CODE] 124\n")
    assert "[TIMEOUT] the command was ended after 1 s" in agents.results()[0]


def test_wisdom_given_by_hand(agents: Agents) -> None:
    """A shell hands over to the next agent: `export`, then `exec quine`."""
    done = agents.run(
        says(sh("export QUINE_WISDOM_note=hi; exec quine next"), match="^work", wisdom=NONE),
        says(OK, match="^work", wisdom=NONE),
        says(sh("echo $QUINE_WISDOM_note >&4"), OK, match="^next", wisdom='"note":"hi"'),
    )
    assert section(agents.results()[0], "STDOUT") == "hi\n"
    assert done.returncode == 0


# -- lives, limits, tape ---------------------------------------------------------------------------


def test_a_stream_longer_than_any_memory(agents: Agents) -> None:
    """Five lives read a stream one after the other; each has the wisdom of the one before and nothing else."""
    lives = [
        says(sh("n=0; while [ $n -lt 200 ] && read x <&3; do n=$((n + 1)); t=$((t + x)); done; echo $t >>sums"),
             call("exec", wisdom={"life": str(n + 1)}), wisdom=f'"life":"{n}"' if n else NONE)
        for n in range(4)
    ]  # fmt: skip
    done = agents.run(
        *lives,
        says(sh("while read x <&3; do t=$((t + x)); done; echo $t >>sums; paste -sd+ sums | sed 's/.*/echo $((&))/' "
                "| sh >&4"), OK, wisdom='"life":"4"'),
        input=b"".join(b"%d\n" % n for n in range(1, 1001)),
    )  # fmt: skip
    assert done.stdout == b"500500\n"
    assert len(agents.tapes()) == 5
    assert max(len(tape) for tape in agents.tapes()) <= 7


def test_a_new_life_remembers_wisdom_alone(agents: Agents) -> None:
    with Provider(
        chat,
        Said("thinking", (sh("echo canary"),)),
        Said(calls=(call("exec", wisdom={"n": "1"}),)),
        Said(calls=(OK,)),
    ) as provider:
        env = {"QUINE_API_TYPE": "openai", "QUINE_API_BASE": f"{provider.base}/v1", "QUINE_API_KEY": KEY}
        assert agents.run(env={**env, "QUINE_MODEL_ID": "m"}).returncode == 0
    first, _, last = (body["messages"] for body in provider.bodies)
    assert [message["role"] for message in last] == ["system", "user"]
    assert last[0] == first[0]
    assert "canary" not in last[1]["content"]


def test_two_of_one_mission_at_one_time(agents: Agents) -> None:
    agents.run(
        says(sh("quine inner & quine inner & wait"), match="^work"), says(OK, match="^work"),
        says(OK, match="^inner"),
    )  # fmt: skip
    parent, one, two = (tape[0]["data"] for tape in agents.tapes())
    assert len({parent["session_id"], one["session_id"], two["session_id"]}) == 3
    assert one["parent_session_id"] == two["parent_session_id"] == parent["session_id"]


def test_who_waits_holds_no_place_of_an_inference(agents: Agents) -> None:
    done = agents.run(
        says(call("fork", intent="child", wait=True), match="^work"), says(sh("quine child"), match="^work"),
        says(OK, match="^work"),
        says(call("fork", intent="grand", wait=True), OK, match="^child"), says(OK, match="^grand"),
        env={"QUINE_MAX_CONCURRENT": "1"},
    )  # fmt: skip
    assert done.returncode == 0
    assert len(agents.tapes()) == 5


def test_a_tape_that_cannot_be_written_ends_the_agent(agents: Agents) -> None:
    """An action that cannot be recorded does not happen."""
    agents.script(says(sh("echo happened >&4"), text="x" * 200_000), says(OK))
    with agents.start(
        "work", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    ) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (74, b"")
    assert err.startswith(b"quine: error: the tape ")
