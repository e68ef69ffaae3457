"""QUINE_CALLER: an agent in a job of the node draws on the purse below which the job's caller is."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from quine.budget import caller
from tests.lab import Lab
from transport.address import boot_id, start_time
from transport.errors import Unseen

SAYS = {
    "reply": {"text": "x" * 2000, "tool_calls": [{"name": "sh", "arguments": {"command": "true"}}]},
    "repeat": True,
}


@pytest.fixture
def env(lab: Lab) -> dict[str, str]:
    """Agents that infer until they may no more."""
    return {**lab.script([SAYS], "talks.jsonl"), "QUINE_MAX_TURNS": "0"}


@pytest.mark.parametrize(
    "way",
    [
        "run --deadline 60 --",
        "xargs -P1 --",
        "run --on local -- quine run --on local --",
    ],
    ids=["deadline", "xargs", "nested"],
)
def test_a_job_of_the_node_is_held_to_the_purse_of_its_caller(
    lab: Lab, env: dict[str, str], way: str
) -> None:
    words = f"quine budget --max-tokens 20k -- quine {way} quine talk"
    done = lab.sh(f"echo 1 | {words}" if "xargs" in way else words, env=env, timeout=120)
    assert done.returncode in (77, 123) and b"budget" in done.stderr, done


def test_a_detached_one_too_while_its_caller_lives(lab: Lab, env: dict[str, str]) -> None:
    line = "id=$(quine run --detach -- quine talk); quine wait $id; echo $?; quine logs --stderr $id"
    done = lab.sh(f"quine budget --max-tokens 20k -- sh -c '{line}'", env=env, timeout=120)
    assert done.stdout.startswith(b"77\n") and b"budget" in done.stdout + done.stderr, done


def test_without_a_purse_there_is_no_variable(lab: Lab) -> None:
    assert lab.sh("quine run --on local -- printenv QUINE_CALLER").returncode == 1
    told = lab.sh(
        "quine budget --max-tokens 1k -- quine run --on local -- printenv QUINE_CALLER"
    ).stdout.decode()
    assert told.startswith(f"{boot_id()}:")


def test_a_caller_that_is_none_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's budget is spent, and nothing fails."""
    boot, pid = boot_id(), os.getpid()
    start = start_time(pid)
    monkeypatch.setenv(caller.VARIABLE, f"{boot}:{pid}:{start}")
    assert caller._caller() == pid
    lies = (
        "",
        "x",
        f"{boot}:1:1",
        f"{boot}:99999999:5",
        f"other:{pid}:{start}",
        f"{boot}:-1:0",
        f"{boot}:²:1",
    )
    for lie in (*lies, f"{boot}:{pid}:{start + 1}", f"{boot}:{pid}:0", f"{boot}:{pid}"):
        monkeypatch.setenv(caller.VARIABLE, lie)
        assert caller._caller() == 0, lie


def test_a_caller_that_ends_while_it_is_looked_at_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    living: list[int] = []
    monkeypatch.setattr(caller, "_caller", lambda: living.pop() if living else 0)
    living[:] = [ended.pid]
    assert caller.with_those_of_caller({}) == {}
    living[:] = [ended.pid, ended.pid]
    with pytest.raises(Unseen):
        caller.with_those_of_caller({})


def test_a_forged_caller_spends_from_no_purse_but_its_own(lab: Lab, env: dict[str, str]) -> None:
    """The ledger above a process by the kernel wins over what a variable says."""
    other = "quine budget --max-tokens 1M -- sh -c 'echo $$; read x <&3' 3<go"
    script = f"""
        mkfifo go; {other} >pid & exec 4>go
        until [ -s pid ]; do sleep 0.01; done
        pid=$(cat pid); boot=$(cat /proc/sys/kernel/random/boot_id | tr -d -)
        start=$(cut -d' ' -f22 /proc/$pid/stat)
        QUINE_CALLER=$boot:$pid:$start quine budget --max-tokens 20k -- quine talk; echo $?
        quine budget show --json; echo >&4; wait
    """
    done = lab.sh(script, env=env, timeout=120)
    first, *shown = done.stdout.decode().splitlines()
    assert first == "77", done
    (left,) = [json.loads(line) for line in shown]
    assert left["tokens"] == 0, left
