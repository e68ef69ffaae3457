"""exec and signals of an agent on another machine: state that the relay keeps through a change of image."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from quine.tape import verify
from quine.tape.redact import MASK
from tests.lab import Lab
from tests.support.agents import OK, call, says, sh

NONE, SOME = "^\\{\\}$", "."


def tapes(data: Path) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(data.glob("*.jsonl"))
    ]


def test_exec_over_there(lab: Lab, tmp_path: Path) -> None:
    """Same process, same streams, still the origin's guest and tape; and a nested quine after it."""
    data = tmp_path / "data"
    lines = [
        says(
            sh("read x <&3; echo 1 $x $PPID >&4"), call("exec", wisdom={"n": "1"}), wisdom=NONE, match="^work"
        ),
        says(sh("read x <&3; echo 2 $x $PPID >&4; quine inner >&4"), OK, wisdom=SOME, match="^work"),
        says(sh("echo inner >&4"), OK, match="^inner"),
    ]
    env = {**lab.script(lines, f"{tmp_path.name}.jsonl"), "QUINE_DATA_DIR": str(data)}
    done = lab.run(["--on", "h1", "work"], env=env, input="a\nb\n")
    assert (done.returncode, done.stderr) == (0, b"")
    first, second, inner = done.stdout.decode().splitlines()
    assert first.split()[:2] == ["1", "a"]
    assert second.split() == ["2", "b", first.split()[2]]
    assert inner == "inner"
    one, two, three = tapes(data)
    assert [tape[0]["data"]["born"] for tape in (one, two, three)] == ["start", "exec", "start"]
    assert {tape[0]["data"]["node"] for tape in (one, two, three)} == {"h1"}
    assert len({tape[0]["data"]["root_session_id"] for tape in (one, two, three)}) == 1
    assert three[0]["data"]["parent_session_id"] == two[0]["data"]["session_id"]


def test_an_agent_of_a_plain_job_has_a_guest_of_its_own(lab: Lab, tmp_path: Path) -> None:
    """Its origin has no life for it: neither it nor what it starts asks there."""
    path = tmp_path / "own.jsonl"
    lines = [
        says(sh("quine inner >&4"), OK, match="^work"),
        says(sh("echo inner >&4"), OK, match="^inner"),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = ["QUINE_API_TYPE=script", f"QUINE_API_BASE={path}", f"QUINE_DATA_DIR={tmp_path}/data"]
    command = ["env", *own, sys.executable, "-P", "-m", "quine", "work"]
    done = lab.run(["run", "--on", "h1", "--", *command])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"inner\n", b"")
    assert len(tapes(tmp_path / "data")) == 2


def test_nothing_is_left_over_there(lab: Lab, tmp_path: Path) -> None:
    lines = [
        says(sh("echo $QUINE_DATA_DIR >&4"), call("exec", wisdom={"n": "1"}), wisdom=NONE),
        says(sh("ls -d $QUINE_DATA_DIR >&4"), OK, wisdom=SOME),
    ]
    env = {**lab.script(lines, f"{tmp_path.name}.jsonl"), "QUINE_DATA_DIR": str(tmp_path / "data")}
    done = lab.run(["--on", "h1", "work"], env=env)
    folder = Path(done.stdout.decode().splitlines()[0])
    # walked, because it may be just being removed
    left = {name for _, folders, files in os.walk(folder) for name in (*folders, *files)}
    assert left <= {"bin", "quine"}  # a `quine` on PATH, where there was none


def test_one_id_from_the_call_to_the_process(lab: Lab, tmp_path: Path) -> None:
    """The log of either node has the session id that the tape gives for a fork, with the host and the pid."""
    data = tmp_path / "data"
    lines = [
        says(call("fork", intent="child", host="h1", wait=True), OK, match="^work"),
        says(sh("true"), OK, match="^child"),
    ]
    env = {**lab.script(lines, f"{tmp_path.name}.jsonl"), "QUINE_DATA_DIR": str(data)}
    lab.run(["work"], env=env, check=True)
    ids = {tape[0]["data"]["mission"]: tape[0]["data"]["session_id"] for tape in tapes(data)}
    (parent,) = [tape for tape in tapes(data) if tape[0]["data"]["mission"] == "work"]
    forks = [entry["data"] for entry in parent if entry["type"] == "fork"]  # its start, and its end
    assert forks and all(ids["child"] in json.dumps(fork) for fork in forks)
    for run, words in ((Path(lab.env["XDG_RUNTIME_DIR"]), "to h1"), (lab["h1"].run, "started as pid")):
        logs = "".join(path.read_text() for path in run.glob("quine-*/*.log"))
        assert f"job {ids['child']}: {words}" in logs


KEYS = {"ANTHROPIC_API_KEY": "sk-ant-canary-0123456789", "GITHUB_TOKEN": "ghp_canary0123456789"}


def masked_in(data: Path, tapes: int) -> list[str]:
    """The text of each tape, which is whole and shows no key."""
    paths = sorted(data.glob("*.jsonl"))
    texts = [path.read_text() for path in paths]
    assert len(texts) == tapes
    assert [key for key in KEYS.values() for text in texts if key in text] == []
    assert {verify.verify(path).state for path in paths} == {verify.OK}
    return texts


def test_what_an_agent_elsewhere_was_told_and_has_read_is_masked(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("".join(f"{name}={key}\n" for name, key in KEYS.items()))
    lines = [says(sh("cat .env"), match="^push"), says(call("exit", status=3, stderr=KEYS["GITHUB_TOKEN"]))]
    env = {**lab.script(lines, f"{tmp_path.name}.jsonl"), "QUINE_DATA_DIR": str(tmp_path / "data"), **KEYS}
    done = lab.run(
        ["--on", "h1", "--files", ".env", "-q", f"push with {KEYS['GITHUB_TOKEN']}"], env=env, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (3, KEYS["GITHUB_TOKEN"].encode() + b"\n")
    (text,) = masked_in(tmp_path / "data", 1)
    assert all(f"{name}={MASK}" in text for name in KEYS)
    assert f"push with {MASK}" in text
    shown = lab.run(["tape", "replay", "--dry"], env=env)
    assert shown.returncode == 0 and b"canary" not in shown.stdout


@pytest.mark.long
def test_what_a_child_elsewhere_has_read_is_masked_on_every_way(lab: Lab, tmp_path: Path) -> None:
    """The root has taken its keys out of its environment, and its children's tapes come by way of proxies."""
    lab.alias("k2", "h2")
    lab.alias("k1", "h1", may_fork=["k2"])
    (tmp_path / ".env").write_text("".join(f"{name}={key}\n" for name, key in KEYS.items()))
    below = call("fork", intent="grandchild", host="k2", stdin=".env", wait=True)
    lines = [
        says(call("fork", intent="child", host="k1", stdin=".env", wait=True), match="^root", wisdom=NONE),
        says(call("exec", host="k1", wisdom={"n": "1"}), match="^root", wisdom=NONE),
        says(sh("cat <&3 >.env; cat .env"), below, OK, match="^child"),
        says(sh("cat <&3"), OK, match="^grandchild"),
        says(sh("cat <&3"), OK, match="^root", wisdom=SOME),
    ]
    env = {**lab.script(lines, f"{tmp_path.name}.jsonl"), "QUINE_DATA_DIR": str(tmp_path / "data"), **KEYS}
    done = lab.run(["root"], env=env, cwd=tmp_path, input=(tmp_path / ".env").read_bytes())
    assert done.returncode == 0, done.stderr
    texts = masked_in(tmp_path / "data", 4)
    assert len([text for text in texts if all(f"{name}={MASK}" in text for name in KEYS)]) == 3
