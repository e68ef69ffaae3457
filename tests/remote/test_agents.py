"""Agents on other machines: their proxy here, their guest and their tape at the origin. Against real sshd."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, processes
from tests.support.agents import until
from tests.support.imports import HEAVY, imported_by
from tests.support.remote_agents import environment, leave, results, tapes, warm
from tests.support.waiting import read_until


def sh(command: str, **guard: str) -> dict[str, Any]:
    return {**guard, "reply": {"tool_calls": [{"name": "sh", "arguments": {"command": command}}]}}


def fork(children: list[dict[str, str]], **rest: Any) -> dict[str, Any]:
    guard = {"match": rest.pop("match")} if "match" in rest else {}
    arguments = {"children": children, "wait": True, **rest}
    return {**guard, "reply": {"tool_calls": [{"name": "fork", "arguments": arguments}]}}


@pytest.fixture
def data(lab: Lab, tmp_path: Path) -> Path:
    return tmp_path / "data"


def files(top: Path) -> list[Path]:
    """Those below it, while a node may remove folders there."""
    return [
        path for folder, _, names in os.walk(top) for name in names if (path := Path(folder, name)).is_file()
    ]


def test_an_agent_over_there_with_its_proxy_here(lab: Lab, data: Path) -> None:
    shout = sh("cat <&3 | tr a-z A-Z >&4; echo $QUINE_NODE_NAME; echo note >&5")
    env = environment(lab, data, {**shout, "usage": {"input": 7, "output": 3}}, leave())
    words = ["--on", "h1", "--report", str(data.parent / "r"), "shout"]
    done = lab.run(words, env=env, input="material\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"MATERIAL\n", b"note\n")
    (tape,) = tapes(data).values()
    assert tape[0]["type"] == "meta" and tape[-1]["type"] == "outcome"
    assert tape[0]["data"]["node"] == "h1"
    reported(data.parent / "r", "h1", tape[0]["data"]["session_id"])
    assert any("h1" in str(entry["data"].get("content")) for entry in tape)
    assert not [path for path in files(lab["h1"].home) if path.suffix == ".jsonl"], (
        "no tape and no script over there"
    )


NAMED = """
import sys
from quine.__main__ import main
from quine.remote import handlers

def named(*args, make=handlers.services):
    def one(name, answer):
        def told(body):
            print("request", name, file=sys.stderr)
            return answer(body)
        return told
    return {name: one(name, answer) for name, answer in make(*args).items()}

handlers.services = named
main()
"""


def test_what_an_agent_was_told_goes_to_its_tape_with_the_next_inference(lab: Lab, data: Path) -> None:
    """A request of its own would be one round trip more in each turn, on a line that may be long."""
    warm(lab, "h1")
    env = {**lab.env, **environment(lab, data, {"match": "work", **sh("true")}, leave())}
    for mission, asked in (
        ("leave", ["life", "infer", "tape"]),
        # its shell may run something still when it leaves, so the reply goes first
        ("work", ["life", "infer", "tape", "infer", "tape", "tape"]),
    ):
        done = subprocess.run(
            [sys.executable, "-c", NAMED, "--on", "h1", mission],
            env=env,
            cwd=lab.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert re.findall("^request (.*)$", done.stderr.decode(), re.MULTILINE) == asked
        tape = tapes(data)[mission]
        assert [entry["seq"] for entry in tape] == list(range(len(tape)))


def test_lines_do_not_wait_for_the_inferences_of_others(lab: Lab, data: Path, tmp_path: Path) -> None:
    """A host that ends meanwhile would leave no tape of an agent that has run a command, or of one just forked."""
    warm(lab, "h1")
    children = [{"intent": "one"}, {"intent": "two"}]
    guest = tmp_path / "guest"
    begin = json.dumps(fork(children)["reply"])
    guest.write_text(
        f'#!/bin/sh\nmission=$(sed \'s/.*"mission": *"//; s/".*//\')\n'
        f"if [ \"$mission\" = all ] && mkdir {tmp_path}/forked 2>/dev/null; then echo '{begin}'; exit; fi\n"
        f'[ "$mission" = all ] || while ! [ -e {tmp_path}/go ]; do sleep 0.02; done\n'
        f"echo '{json.dumps(leave()['reply'])}'\n"
    )
    guest.chmod(0o755)
    env = {
        "QUINE_API_TYPE": "program",
        "QUINE_API_BASE": str(guest),
        "QUINE_DATA_DIR": str(data),
        "QUINE_MAX_CONCURRENT": "1",
    }
    with lab.popen(["--on", "h1", "all"], env=env) as agent:
        until(lambda: {"one", "two"} <= tapes(data).keys())
        assert agent.poll() is None
        (tmp_path / "go").touch()
        assert agent.wait(60) == 0
    assert [tape[-1]["type"] for tape in tapes(data).values()] == ["outcome"] * 3


def test_the_verdict_crosses(lab: Lab, data: Path) -> None:
    done = lab.run(["--on", "h1", "fail"], env=environment(lab, data, leave(63)))
    assert (done.returncode, done.stderr) == (63, b"it failed\n")


def test_three_agents_in_a_pipeline_on_three_hosts(lab: Lab, data: Path) -> None:
    replies = [sh("{ cat <&3; echo $QUINE_NODE_NAME; } >&4"), leave()]
    env = environment(lab, data, *replies)
    done = lab.sh("echo go | quine --on h1 one | quine --on h2 two | quine --on h3 three", env=env)
    assert (done.stdout, done.stderr) == (b"go\nh1\nh2\nh3\n", b"")
    assert {mission: tape[0]["data"]["node"] for mission, tape in tapes(data).items()} == {
        "one": "h1",
        "two": "h2",
        "three": "h3",
    }


def test_head_ends_an_agent_over_there(lab: Lab, data: Path) -> None:
    env = environment(lab, data, sh("yes >&4; echo yes ended with $?"), leave())
    done = lab.sh("quine --on h1 flood | head -1", env=env)
    assert done.stdout == b"y\n"
    assert lab.wait_idle() == []


def test_a_quine_inside_an_agents_shell_over_there(lab: Lab, data: Path) -> None:
    """Its guest and its tape are the origin's, though it is started as a plain command."""
    env = environment(
        lab,
        data,
        sh("quine nested >&4; echo $?", match="^outer"),
        leave(match="^outer"),
        sh("echo from within >&4", match="^nested"),
        leave(match="^nested"),
    )
    done = lab.run(["--on", "h1", "outer"], env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"from within\n", b"")
    found = tapes(data)
    assert set(found) == {"outer", "nested"}
    assert found["nested"][0]["data"]["parent_session_id"] == found["outer"][0]["data"]["session_id"]
    assert found["nested"][0]["data"]["node"] == "h1"


def test_forks_land_on_other_hosts_at_the_same_time(lab: Lab, data: Path, tmp_path: Path) -> None:
    """Two children meet: each waits for what the other does. They are clones of their parent.

    A host that is not known is told to the guest, and nothing runs here in its place.
    """
    for name in ("a", "b"):
        subprocess.run(["mkfifo", tmp_path / name], check=True)
    meet = f"if [ $QUINE_NODE_NAME = h1 ]; then timeout 60 sh -c 'echo x >{tmp_path}/a; cat {tmp_path}/b'; "
    meet += f"else timeout 60 sh -c 'cat {tmp_path}/a; echo x >{tmp_path}/b'; fi >/dev/null "
    meet += "&& echo $QUINE_NODE_NAME >&4"
    env = environment(
        lab,
        data,
        fork([{"intent": "child one", "host": "h1"}, {"intent": "child two", "host": "h2"}], match="^root"),
        fork([{"intent": "child three", "host": "h9"}], match="^root"),
        leave(match="^root"),
        sh(meet, match="^child"),
        leave(match="^child"),
    )
    done = lab.run(["root"], env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    found = tapes(data)
    assert set(found) == {"root", "child one", "child two"}
    result, lost = results(data, "root")
    assert "[EXIT CODE] 69" in lost and "no such host" in lost
    assert "[STDOUT]\nh1\n" in result and "[STDOUT]\nh2\n" in result
    root = found["root"][0]["data"]["session_id"]
    for mission, node in (("child one", "h1"), ("child two", "h2")):
        meta = found[mission][0]["data"]
        assert (meta["node"], meta["parent_session_id"], meta["cloned"]["session"]) == (node, root, root)
    tree = lab.run(["tape", "tree"], env=env)
    assert tree.stdout.count(b" h1 ") == 1 and tree.stdout.count(b" h2 ") == 1


def test_local_forks_of_an_agent_over_there(lab: Lab, data: Path) -> None:
    env = environment(
        lab,
        data,
        fork([{"intent": "child one"}, {"intent": "child two"}], match="^root"),
        sh("echo both >&4", match="^root"),
        leave(match="^root"),
        sh("echo $QUINE_NODE_NAME >&4", match="^child"),
        leave(match="^child"),
    )
    done = lab.run(["--on", "h1", "root"], env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"both\n", b"")
    assert [tape[0]["data"]["node"] for tape in tapes(data).values()] == ["h1"] * 3


@pytest.mark.long
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_signals_end_an_agent_over_there(lab: Lab, data: Path, name: str) -> None:
    command = "sh -c 'trap \"echo int >&4\" INT; echo up >&4; while :; do sleep 0.05; done'"
    env = environment(lab, data, sh(command), leave())
    process = lab.popen(["--on", "h1", "sleep"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    read_until(process.stdout.fileno(), b"up\n")
    process.send_signal(getattr(signal, f"SIG{name}"))
    _, err = process.communicate(timeout=120)
    assert process.returncode == -getattr(signal, f"SIG{name}"), err
    (tape,) = tapes(data).values()
    assert tape[-1]["data"]["termination_mode"] == "signal"
    assert lab.wait_idle() == []


def test_kill_9_of_the_root_ends_its_children_over_there(lab: Lab, data: Path) -> None:
    env = environment(
        lab,
        data,
        fork([{"intent": "child", "host": "h1"}], match="^root"),
        sh("echo up >&5; sleep 60", match="^child"),
    )
    process = lab.popen(["root"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def called() -> bool:
        """The child is there when its tape has its first tool call."""
        assert process.poll() is None
        return len(tapes(data).get("child", ())) > 2

    until(called, 60)
    for job in lab.processes():
        if not job.stays:
            processes.kill(job.pid)
    process.communicate()
    assert lab.wait_idle() == []


def test_no_key_reaches_the_host(lab: Lab, data: Path) -> None:
    canary = "canary-0a1b2c3d4e5f"
    env = environment(
        lab,
        data,
        sh("env; cat /proc/$PPID/environ /proc/$PPID/cmdline | tr '\\0' '\\n'; ls -R ~"),
        leave(),
    )
    done = lab.run(["--on", "h1", "look"], env={**env, "OPENAI_API_KEY": canary, "QUINE_API_KEY": canary})
    assert done.returncode == 0
    text = "".join(path.read_text() for path in data.rglob("*") if path.is_file())
    assert canary not in text and "QUINE_NODE_NAME=h1" in text
    for path in files(lab["h1"].home):
        if ".cache/quine" not in str(path):
            assert canary.encode() not in path.read_bytes(), path


def reported(path: Path, host: str, session: str) -> None:
    report = json.loads(path.read_text())
    assert (report["state"], report["code"], report["signal"], report["host"]) == ("exited", 0, None, host)
    assert (report["tokens_in"], report["tokens_out"]) == (7, 3)
    assert report["seconds"] > 0 and report["pid"] > 1 and report["rusage"]["maxrss"] > 0
    assert report["session"] == session


def test_the_report_of_an_agent(lab: Lab, data: Path, tmp_path: Path) -> None:
    env = environment(lab, data, {**sh("true"), "usage": {"input": 7, "output": 3}}, leave())
    lab.run(["--report", tmp_path / "r", "m"], env=env, check=True)
    (tape,) = tapes(data).values()
    reported(tmp_path / "r", "local", tape[0]["data"]["session_id"])


def test_the_report_follows_an_agent_through_exec(lab: Lab, data: Path, tmp_path: Path) -> None:
    again = {
        "reply": {"tool_calls": [{"name": "exec", "arguments": {"wisdom": {"n": "1"}}}]},
        "wisdom": "^\\{\\}$",
    }
    env = environment(lab, data, again, leave(3))
    done = lab.run(["--report", "r", "m"], env=env, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    report = json.loads((tmp_path / "r").read_text())
    assert (report["state"], report["code"]) == ("exited", 3)


def test_on_local_is_the_same_line_without_a_link(lab: Lab, data: Path) -> None:
    env = environment(lab, data, sh("cat <&3 >&4; echo $A; pwd"), leave())
    done = lab.run(["--on", "local", "m"], env={**env, "A": "1"}, input="x")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"x", b"")
    (tape,) = tapes(data).values()
    result = next(entry["data"]["content"] for entry in tape if entry["type"] == "tool_result")
    assert result.startswith(f"[EXIT CODE] 0\n[STDOUT]\n1\n{lab.work}\n")


def test_a_proxy_loads_nothing_that_it_can_do_without(lab: Lab, data: Path) -> None:
    """A module too many is a tenth of the memory that each proxy of a batch has for itself."""
    warm(lab, "h1")
    env = environment(lab, data, leave())
    loaded = imported_by(lab, "--on", "h1", "m", env=env)
    lean = {"collections", "contextlib", "enum", "functools", "json", "pathlib", "re", "threading", "typing"}
    assert not loaded & {*lean, *HEAVY, "asyncio", "ssl", "logging", "concurrent", "tomllib"}


def test_verbose_speaks_on_stderr_alone(lab: Lab, data: Path) -> None:
    done = lab.run(["run", "-v", "--on", "h1", "--", "echo", "x"])
    assert done.stdout == b"x\n"
    assert b"quine: started with pid " in done.stderr and b"quine: h1: exited 0 after " in done.stderr
