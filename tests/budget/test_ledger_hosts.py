"""One ledger for a tree over many machines. Against real sshd.

CI runs dozens of agents; QUINE_TEST_LEDGER=1 runs more of them, more often.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.budget.shared_counters import NAME, SharedCounters
from tests.lab import Lab
from tests.support.agents import OK, call, says, sh
from tests.support.crowd import Crowd, meet

LONG = bool(os.environ.get("QUINE_TEST_LEDGER"))
HOSTS = ("h1", "h2", "h3")


class Hosts(Crowd):
    """A crowd whose agents start at the origin of a lab; they meet in files that all machines of it see."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        super().__init__(directory)
        self.lab = lab

    @contextlib.contextmanager
    def begin(self, mission: str, *options: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
        ours = {name: self.env[name] for name in ("QUINE_API_TYPE", "QUINE_API_BASE", "CROWD")}
        with self.lab.popen(
            [*options, "--", mission],
            env={**ours, "QUINE_DATA_DIR": str(self.data), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise

    def arrive(self, count: int, seconds: float = 110) -> list[str]:
        return super().arrive(count, seconds)  # the first of all waits for the binary that goes to the hosts

    def meet(self, gate: str = "gate", word: str = "$PPID") -> str:
        return meet(gate).replace("$CROWD", str(self.directory)).replace("$PPID", word)

    def pids(self) -> dict[str, int]:
        """Of the agents that have begun, by mission."""
        return {tape[0]["data"]["mission"]: tape[0]["data"]["pid"] for tape in self.tapes() if tape}


@pytest.fixture
def hosts(lab: Lab, tmp_path: Path) -> Iterator[Hosts]:
    with Hosts(lab, tmp_path) as made:
        yield made


def fork(*intents: str, wait: bool = True, **more: Any) -> dict[str, Any]:
    """Intents with a host after an @ begin there."""
    children = []
    for intent in intents:
        mission, _, host = intent.partition("@")
        children.append({"intent": mission, **({"host": host} if host else {})})
    return call("fork", children=children, wait=wait, context="none", **more)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def book_of(pid: int) -> SharedCounters:
    """The book that an agent holds; its descriptor is the caller's to close."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if os.path.exists(path) and os.readlink(path) == f"/memfd:{NAME} (deleted)":
            return SharedCounters(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    raise AssertionError(f"{pid} has no book")


# -- agents ------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("limit", [20, 64] if LONG else [20])
def test_sixty_agents_on_three_hosts_keep_to_one_limit(hosts: Hosts, limit: int) -> None:
    """Each host tries for more than its part; all who got a place meet, and they are as many as are allowed."""
    each = 20
    hosts.says("root", says(fork(*(f"branch{n}@h{n}" for n in (1, 2, 3)))), says(OK))
    for n in (1, 2, 3):
        mine = [fork(*(f"leaf {n}.{k}.{i}" for i in range(4)), wait=False) for k in range(each // 4)]
        hosts.says(f"branch{n}", says(*mine), says(sh(hosts.meet())), says(OK))
    hosts.says("leaf", says(sh(hosts.meet())), says(OK))
    with hosts.begin("root", QUINE_MAX_AGENTS=str(limit)) as root:
        # Fours are taken while there are four; the rest of the limit is less than four.
        rest = (limit - 4) % 4 if limit < 4 + 3 * each else limit - 4 - 3 * each
        here = hosts.arrive(limit - 1 - rest)
        assert len(set(here)) == limit - 1 - rest
        assert hosts.nobody_else()
        hosts.let_go(100)
        code, out, err = ended(root)
    assert (code, out, err) == (0, b"", b"")
    refused = sum(
        r.startswith("[FORK ERROR] too many agents") for n in (1, 2, 3) for r in hosts.results(f"branch{n}")
    )
    assert refused == max(0, 3 * each - (limit - 4 - rest)) / 4


def test_a_fork_over_there_asks_once_for_all_of_its_children(hosts: Hosts) -> None:
    forks = fork(*(f"leaf {n}" for n in range(4)), wait=False)
    hosts.says("branch", says(forks), says(sh(hosts.meet(word="branch"))), says(OK))
    hosts.says("leaf", says(sh(hosts.meet())), says(OK))
    with hosts.begin("branch", "--on", "h1", QUINE_MAX_AGENTS="64", QUINE_MAX_TURNS="0") as root:
        hosts.arrive(5)
        book = book_of(hosts.pids()["branch"])
        numbers = book.numbers()
        os.close(book.fd)
        hosts.let_go(100)
        code, out, err = ended(root)
        assert (code, out) == (0, b"") and err.startswith(
            b"quine: h1: files are left in "
        )  # those of its children
    assert numbers.asked == 1
    assert numbers.granted == 5


@pytest.mark.long
@pytest.mark.parametrize("how", ["ended", "killed"])
def test_what_lies_idle_on_one_host_is_there_for_another(hosts: Hosts, how: str) -> None:
    """h1 has had its places used and waits in a long command; h2 is refused nothing."""
    mine, others = (tuple(f"{kind} {n}" for n in range(6)) for kind in ("leaf", "other"))
    hosts.says("root", says(fork("first@h1", "second@h2")), says(OK))
    hosts.says("first", says(fork(*mine)), says(sh(hosts.meet(word="idle"))), says(OK))
    hosts.says("second", says(sh(hosts.meet("door", "ready"))), says(fork(*others)), says(OK))
    hosts.says("leaf", says(sh(hosts.meet("door")) if how == "killed" else OK))
    hosts.says("other", says(sh(hosts.meet(word="other"))), says(OK))
    with hosts.begin("root", QUINE_MAX_AGENTS="10") as root:
        if how == "killed":
            hosts.arrive(7)
            for mission in mine:
                os.kill(hosts.pids()[mission], signal.SIGKILL)
            assert hosts.arrive(1) == ["idle"]
        else:
            assert sorted(hosts.arrive(2)) == ["idle", "ready"]
        hosts.let_go(1, "door")
        assert hosts.arrive(6) == ["other"] * 6
        hosts.let_go(7)
        assert ended(root) == (0, b"", b"")


def test_two_hosts_race_for_the_last_place(hosts: Hosts) -> None:
    hosts.says("root", says(fork("branch1@h1", "branch2@h2")), says(OK))
    for n in (1, 2):
        steps = (sh(hosts.meet("door")), fork("leaf", wait=False), sh(hosts.meet()), OK)
        hosts.says(f"branch{n}", *map(says, steps))
    hosts.says("leaf", says(sh(hosts.meet())), says(OK))
    for _ in range(5 if LONG else 1):
        with hosts.begin("root", QUINE_MAX_AGENTS="4") as root:
            hosts.arrive(2)
            hosts.let_go(2, "door")
            hosts.arrive(3)
            assert hosts.nobody_else()
            hosts.let_go(3)
            assert ended(root) == (0, b"", b"")
        for tape in hosts.data.glob("*.jsonl"):
            tape.unlink()


@pytest.mark.long
@pytest.mark.parametrize("how", ["node", "agent", "link"])
def test_the_places_of_a_host_that_vanishes_come_back(hosts: Hosts, how: str) -> None:
    host = hosts.lab.alias("far", "h1", hosts.lab["h1"].proxy)
    hosts.says("root", says(fork(f"branch@{host}")), says(fork(*(f"late {n}" for n in range(8)))), says(OK))
    hosts.says("branch", says(fork(*(f"leaf {n}" for n in range(7)))), says(OK))
    hosts.says("leaf", says(sh(hosts.meet())), says(OK))
    hosts.says("late", says(sh(hosts.meet())), says(OK))
    with hosts.begin("root", QUINE_MAX_AGENTS="9") as root:
        hosts.arrive(7)
        if how == "agent":
            os.kill(hosts.pids()["branch"], signal.SIGKILL)
        elif how == "link":
            hosts.lab["h1"].proxy.refuse()
            hosts.lab["h1"].proxy.cut()
        else:
            hosts.lab["h1"].kill_processes()
        hosts.arrive(8)
        hosts.let_go(100)
        assert ended(root)[0] == 0


def test_the_places_of_a_lost_try_are_free_for_the_next_one(hosts: Hosts) -> None:
    """The first try has forked as many as there are places; so does the second one, on another host."""
    hosts.says("branch", says(fork(*(f"leaf {n}" for n in range(2)))), says(OK))
    hosts.says("leaf", says(sh(hosts.meet(word="$QUINE_NODE_NAME"))), says(OK))
    options = ("--on", "h1,h2", "--retry", "1", "--idempotent")
    with hosts.begin("branch", *options, QUINE_MAX_AGENTS="3") as root:
        (first,) = set(hosts.arrive(2))
        hosts.lab[first].kill_processes()
        assert set(hosts.arrive(2)) == {"h1", "h2"} - {first}
        hosts.let_go(100)
        assert ended(root)[0] == 0


def test_depth_holds_over_there_and_the_report_counts_the_whole_tree(hosts: Hosts) -> None:
    """An agent that was refused is not counted."""
    hosts.says("root", says(fork("branch@h1", "plain 0")), says(OK))
    hosts.says("branch", says(fork("leaf"), sh("quine plain 1")), says(OK))
    hosts.says("leaf", says(fork("more")), says(sh("QUINE_MAX_DEPTH=9 quine more; echo $?")), says(OK))
    hosts.says("plain", says(OK))
    report = hosts.directory / "report"
    with hosts.begin("root", "--max-depth", "3", "--report", str(report)) as root:
        assert ended(root) == (0, b"", b"")
    fork_result, nested = hosts.results("leaf")
    assert "too deep" in fork_result
    assert "77\n" in nested
    assert json.loads(report.read_text())["agents"] == 5
    hosts.says("pair", says(fork("plain 2"), sh("quine plain 3")), says(OK))
    with hosts.begin("pair", "--on", "h2", "--report", str(report), QUINE_MAX_TURNS="9") as root:
        ended(root)
    assert json.loads(report.read_text())["agents"] == 3


# -- tokens, money, time -----------------------------------------------------------------------------


def used(line: dict[str, Any], prompt: int, reply: int) -> dict[str, Any]:
    return {**line, "usage": {"input": prompt, "output": reply}}


def spent(data: Path) -> int:
    """Tokens, on all tapes."""
    lines = [json.loads(line) for path in data.glob("*.jsonl") for line in path.read_text().splitlines()]
    usages = [line["data"]["usage"] for line in lines if "usage" in line["data"]]
    return sum(usage["input"] + usage["output"] for usage in usages)


def run(lab: Lab, directory: Path, lines: list[dict[str, Any]], *options: str, **env: str) -> int:
    """A scripted tree to its end; its tapes are in `data`."""
    script = lab.script(lines, f"{directory.name}.jsonl")
    done = lab.run(options, env={**script, "QUINE_DATA_DIR": str(directory / "data"), **env}, timeout=120)
    return done.returncode


def tapes(directory: Path) -> dict[str, list[dict[str, Any]]]:
    paths = sorted((directory / "data").glob("*.jsonl"))
    found = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    return {tape[0]["data"]["mission"]: tape for tape in found}


def results(tape: list[dict[str, Any]]) -> list[str]:
    return [entry["data"]["content"] for entry in tape if entry["type"] == "tool_result"]


@pytest.mark.long
def test_the_tokens_of_a_tree_are_used_up_and_not_exceeded(lab: Lab, tmp_path: Path) -> None:
    """Agents on three hosts draw until each is refused: less than 2 % is left then, and not one token too many."""
    leaves, limit = (19, 3_000_000) if LONG else (3, 500_000)
    lines = [used(says(fork(*(f"branch{n}@h{n}" for n in (1, 2, 3))), match="^root"), 3000, 200)]
    for n in (1, 2, 3):
        mine = (f"leaf {n}.{i}" for i in range(leaves))
        lines.append(used(says(fork(*mine), match=f"^branch{n}"), 3000, 200))
    # They draw when all are there: those who come late would find nothing left to come with.
    met = f"echo >>{tmp_path}/met; until [ $(wc -l <{tmp_path}/met) -ge {3 * leaves} ]; do sleep 0.05; done"
    lines += [
        used(says(sh(met), match="^leaf"), 3000, 200),
        {**used(says(sh("true"), match="^(branch|leaf)"), 3000, 200), "repeat": True},
        {**used(says(call("exit", status=1, stderr="no"), match="^root"), 3000, 200), "repeat": True},
    ]
    env = {"QUINE_MAX_AGENTS": "0", "QUINE_MAX_TURNS": "0"}
    run(lab, tmp_path, lines, "--max-tokens", str(limit), "--report", str(tmp_path / "report"), "root", **env)
    ends = [tape[-1]["data"] for tape in tapes(tmp_path).values() if tape[0]["data"]["mission"] != "root"]
    assert len(ends) == 3 * (1 + leaves)
    assert {end["termination_mode"] for end in ends} == {"budget"}
    total = spent(tmp_path / "data")
    print(f"{total} of {limit} tokens, {100 * (limit - total) / limit:.2f} % left")
    assert 0.98 * limit <= total <= limit


def test_a_narrower_budget_of_a_nested_agent_holds_over_there(lab: Lab, tmp_path: Path) -> None:
    """In tokens and in money."""
    prices = tmp_path / "prices.toml"
    prices.write_text("[models.dear]\ninput = 10\noutput = 100\n")
    both = sh("quine --max-tokens 8000 inner"), sh("QUINE_MAX_TOKENS=999999999 quine wide")
    lines = [
        used(says(sh("quine --max-cost 0.1 dear"), *both, match="^work"), 3000, 0),
        says(OK, match="^work"),
        {**used(says(sh("true"), match="^(inner|wide)"), 3000, 0), "repeat": True},
        {**used(says(sh("true"), match="^dear"), 3000, 100), "repeat": True},
    ]
    env = {"QUINE_PRICES": str(prices), "QUINE_MODEL_ID": "dear"}
    run(lab, tmp_path, lines, "--max-tokens", "50000", "--max-cost", "50", "--on", "h1", "work", **env)
    found = tapes(tmp_path)
    assert ["[EXIT CODE] 77" in result for result in results(found["work"])] == [True] * 3
    left = [re.findall(r"TOKENS LEFT. (\d+)", results(found[name])[0]) for name in ("inner", "wide")]
    asked, paid = (sum("usage" in entry["data"] for entry in found[name]) for name in ("inner", "dear"))
    assert asked == 2
    assert left == [["5000"], [str(50_000 - 3000 * (2 + asked) - 3100 * paid)]]
    assert "[COST LEFT] 0.0600 US dollars" in results(found["dear"])[0]
    assert 0.04 <= 0.04 * paid <= 0.1


@pytest.mark.clock
@pytest.mark.long
def test_the_deadline_crosses_as_what_is_left_of_it(lab: Lab, tmp_path: Path) -> None:
    """Through a fork to a host, a fork there and a nested agent; none gets more of it."""
    lines = [
        says(fork("branch@h1"), match="^root"),
        says(fork("leaf"), match="^branch"),
        says(sh("QUINE_DEADLINE=1000 quine inner"), match="^leaf"),
        says(sh("sleep 71997"), match="^inner"),
        {**says(call("exit", status=4, stderr="no time")), "repeat": True},
    ]
    limit = 12  # all four must have begun by then
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    begun = time.monotonic()
    run(lab, tmp_path, lines, "--deadline", str(limit), "root")
    assert limit - 0.1 < time.monotonic() - begun < limit + 60
    found = tapes(tmp_path)
    assert set(found) == {"root", "branch", "leaf", "inner"}
    for mission, tape in found.items():
        assert tape[0]["data"]["limits"]["deadline"] <= limit or mission == "inner"
        assert tape[-1]["data"]["exit_code"] in (4, 124, 143), mission
