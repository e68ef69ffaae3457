"""exec to another host: the next life runs there, this process is its proxy: same pid, streams, signals, status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.support.agents import OK, call, says, sh
from tests.support.remote_agents import environment, results, tapes, warm
from tests.support.waiting import read_until, until

NONE, SOME = "^\\{\\}$", "."


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def reach(lab: Lab) -> Lab:
    lab.alias("e2", "h2")
    lab.alias("e1", "h1", may_fork=["e2"])
    return lab


def lives(data: Path) -> list[list[dict[str, Any]]]:
    """Tapes in the order of their beginning."""
    texts = [path.read_text().rpartition("\n")[0] for path in sorted(data.glob("*.jsonl"))]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]  # a line may be on its way


MOVE = call("exec", host="h1", wisdom={"n": "1"})


def test_the_next_life_runs_there(lab: Lab, data: Path, tmp_path: Path) -> None:
    env = environment(
        lab,
        data,
        says(sh("read x <&3; echo 1 $x $PPID >&4"), MOVE, wisdom=NONE),
        says(
            sh("read x <&3; echo 2 $x $QUINE_NODE_NAME >&4; cat <&3 >&4; env | grep ^QUINE_WISDOM_n >&4"),
            call("exit", status=5, stderr="five\n"),
            wisdom=SOME,
        ),
    )
    process = lab.popen(
        ["--report", tmp_path / "r", "work"],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(b"a\nb\nc\nd\n", 120)
    assert (process.returncode, err) == (5, b"five\n")
    assert out.decode().splitlines() == [
        f"1 a {process.pid}", "2 b h1", "c", "d", "QUINE_WISDOM_n=1",
    ]  # fmt: skip
    old, new = lives(data)
    assert old[-1]["type"] == "outcome" and old[-1]["data"]["termination_mode"] == "exec"
    assert old[-1]["data"]["to"] == new[0]["data"]["session_id"]
    meta = new[0]["data"]
    assert (meta["born"], meta["node"], meta["depth"]) == ("exec", "h1", 0)
    assert meta["parent_session_id"] == meta["root_session_id"] == old[0]["data"]["session_id"]
    assert old[-1]["ts"] <= new[0]["ts"]
    assert lab.run(["tape", "verify"], env=env).returncode == 0
    report = json.loads((tmp_path / "r").read_text())
    assert (report["state"], report["code"], report["host"]) == ("exited", 5, "h1")
    assert report["session"] == old[0]["data"]["session_id"]


def test_where_it_cannot_run_the_old_life_goes_on(lab: Lab, data: Path) -> None:
    """With its shell, and with every byte of its stdin."""
    lab.alias("dead", "h1", 1)
    places = {
        "nowhere": "no such host", "dead": "connection refused", "local,h1": "mixes", "@none": "tag",
    }  # fmt: skip
    env = environment(
        lab, data,
        says(sh("v=kept; read x <&3")),
        *(says(call("exec", host=where)) for where in places),
        says(sh("echo $v >&4; cat <&3 >&4"), OK),
    )  # fmt: skip
    done = lab.run(["work"], env=env, input="a\n" + "b\n" * 1000)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"kept\n" + b"b\n" * 1000, b"")
    assert len(lives(data)) == 1
    for (where, words), result in zip(places.items(), results(data, "work")[1:], strict=False):
        assert result.startswith(f"[EXEC ERROR] {where}: unreachable: ") and words in result.lower()
        assert "nothing was started, this life goes on" in result


def test_not_while_children_run(lab: Lab, data: Path) -> None:
    env = environment(
        lab, data,
        says(call("fork", intent="child"), MOVE, match="^root", wisdom=NONE),
        says(sh("touch $QUINE_DATA_DIR/go; quine wait $(ls $QUINE_DATA_DIR/jobs); echo waited >&4"), MOVE,
             match="^root", wisdom=NONE),
        says(sh("sleep 1000 4>&- & echo $QUINE_NODE_NAME >&4"), OK, match="^root", wisdom=SOME),
        says(sh("until [ -e $QUINE_DATA_DIR/go ]; do sleep 0.1; done"), OK, match="^child"),
    )  # fmt: skip
    done = lab.run(["root"], env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"waited\nh1\n", b"")
    refused = next(
        e["data"]["content"]
        for e in lives(data)[0]
        if e["data"].get("name") == "exec" and "content" in e["data"]
    )
    child = tapes(data)["child"][0]["data"]
    assert refused.startswith(
        f"[EXEC ERROR] children of yours still run: {child['session_id']} (pid {child['pid']})"
    )


def test_a_forked_child_moves_and_its_parent_waits(lab: Lab, data: Path) -> None:
    env = environment(
        lab, data,
        says(call("fork", intent="child", wait=True), OK, match="^root"),
        says(sh("echo 1 >&4"), call("exec", host="h2", wisdom={"n": "1"}), match="^child", wisdom=NONE),
        says(sh("echo 2 $QUINE_NODE_NAME >&4"), call("exit", status=9, stderr="nine\n"), match="^child", wisdom=SOME),
    )  # fmt: skip
    assert lab.run(["root"], env=env).returncode == 0
    assert results(data, "root")[0].startswith("[EXIT CODE] 9\n[STDOUT]\n1\n2 h2\n\n[STDERR]\nnine\n")


def test_what_is_not_known_of_a_child_that_moved_is_told(lab: Lab, data: Path) -> None:
    """Waited for or not: that it is lost is more than its exit status says."""
    there = says(sh("echo up >&5; sleep 60"), OK, match="^child", wisdom=SOME)
    env = environment(
        lab, data,
        says(call("fork", intent="child", wait=True), match="^root"),
        says(OK, match="^root"),
        says(MOVE, match="^child", wisdom=NONE), there,
    )  # fmt: skip
    process = lab.popen(["root"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(
        lambda: any(len(life) > 3 and life[0]["data"]["node"] == "h1" for life in lives(data)),
        "it lives there",
    )
    assert process.poll() is None
    lab["h1"].kill_processes()
    assert process.wait(120) == 0
    process.communicate()
    assert "[EXIT CODE] 74" in results(data, "root")[0] and "[STATE] lost: " in results(data, "root")[0]
    assert lab.wait_idle() == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["TERM", "HUP", "INT"])
def test_signals_reach_the_life_over_there(lab: Lab, data: Path, name: str) -> None:
    up = sh("(echo up >&4; exec sleep 60)")  # the process that prints it takes the signal
    env = environment(lab, data, says(MOVE, wisdom=NONE), says(up, OK, wisdom=SOME))
    warm(lab, "h1")
    process = lab.popen(["work"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    read_until(process.stdout.fileno(), b"up\n")
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.wait(120) == -getattr(signal, f"SIG{name}")
    assert lives(data)[1][-1]["data"]["termination_mode"] == "signal"
    process.communicate()
    assert lab.wait_idle() == []


def test_a_signal_while_the_host_is_dialled_ends_the_old_life(lab: Lab, data: Path) -> None:
    lab["h3"].proxy.blackhole()
    lab.alias("mute", "h3", lab["h3"].proxy)
    env = environment(lab, data, says(sh("echo up >&4"), call("exec", host="mute")))
    process = lab.popen(["work"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    read_until(process.stdout.fileno(), b"up\n")
    logs = Path(lab.env["XDG_RUNTIME_DIR"])
    until(
        lambda: any(": to mute\n" in log.read_text() for log in logs.glob("quine-*/*.log")), "it is dialled"
    )
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == -signal.SIGTERM
    process.communicate()
    (life,) = lives(data)
    assert life[-1]["data"]["termination_mode"] == "signal"


def test_a_reader_that_has_gone_is_told_over_there(lab: Lab, data: Path) -> None:
    env = environment(
        lab, data, says(MOVE, wisdom=NONE), says(sh("yes >&4; echo ended with $?"), OK, wisdom=SOME)
    )
    done = lab.sh("quine work | head -1", env=env)
    assert done.stdout == b"y\n"
    assert lab.wait_idle() == []


def test_nothing_of_the_old_life_stays(lab: Lab, data: Path) -> None:
    """The proxy holds three streams, the socket of the node, its slot in the ledger: no shell, no tape, no pipe."""
    env = environment(
        lab, data,
        says(sh("sleep 1000 & echo $! >&4"), MOVE, wisdom=NONE),
        says(sh("echo up >&4; read x <&3; ls -l /proc/$PPID/fd"), OK, wisdom=SOME),
    )  # fmt: skip
    warm(lab, "h1")
    process = lab.popen(["work"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout and process.stdin
    read_until(process.stdout.fileno(), b"up\n")
    fds = {}
    for number in os.listdir(f"/proc/{process.pid}/fd"):
        fds[int(number)] = os.readlink(f"/proc/{process.pid}/fd/{number}")
    process.communicate(b"x\n", 120)
    assert process.returncode == 0
    assert not [at for at in fds.values() if at.endswith(".jsonl")]
    streams = {at for number, at in fds.items() if number < 3}
    pipes = [at for at in fds.values() if at.startswith("pipe:") and at not in streams]
    # both ends of two pipes: one wakes the proxy, the other is for the agent's own handlers
    assert len(set(pipes)) <= 2, fds
    assert lab.wait_idle() == []


def test_from_one_host_to_the_next(reach: Lab, data: Path) -> None:
    """A life that was moved moves on: its proxy over there stays one, and the first one too."""
    lines = [
        says(call("exec", host="e1", wisdom={"n": "1"}), wisdom=NONE),
        says(sh("read x <&3; echo $x $QUINE_NODE_NAME >&4"), call("exec", host="e2", wisdom={"n": "2"}), wisdom='"1"'),
        says(sh("read x <&3; echo $x $QUINE_NODE_NAME >&4"), call("exec", host="e1", wisdom={"n": "3"}), wisdom='"2"'),
        says(sh("cat <&3 >&4"), OK, wisdom='"2"'),
    ]  # fmt: skip
    env = environment(reach, data, *lines)
    done = reach.run(["work"], env=env, input="a\nb\nc\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a e1\nb e2\nc\n", b"")
    found = lives(data)
    assert [life[0]["data"]["node"] for life in found] == ["local", "e1", "e2"]
    assert [life[0]["data"]["depth"] for life in found] == [0, 0, 0]
    denied = [e["data"]["content"] for e in found[2] if e["type"] == "tool_result"][1]
    assert denied.startswith("[EXEC ERROR] e1: denied: may_fork does not allow 'e1' from here; allowed: e2")
    assert reach.run(["tape", "verify"], env=env).returncode == 0


def test_what_belongs_to_the_tree_is_kept(lab: Lab, data: Path) -> None:
    """The same ledger counts the tokens of the new life, and the proxy holds the slot of the agent."""
    two = call("fork", children=[{"intent": "c"}] * 2, wait=True)
    used = {"usage": {"input": 3000, "output": 100}}
    env = environment(
        lab, data,
        {**says(MOVE, match="^root", wisdom=NONE), **used},
        {**says(two, sh("true"), match="^root", wisdom=SOME), **used},
        {**says(OK, match="^root", wisdom=SOME), **used},
    )  # fmt: skip
    done = lab.run(["--max-tokens", "20000", "--max-agents", "2", "root"], env=env)
    assert done.returncode == 0, done.stderr
    life = lives(data)[1]
    fork, true = (e["data"]["content"] for e in life if e["type"] == "tool_result")
    assert "too many agents" in fork
    left = int(true.split("[TOKENS LEFT] ")[1].split()[0])
    assert 20000 - 2 * 3100 - 100 <= left <= 20000 - 2 * 3100
