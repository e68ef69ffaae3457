"""One ledger for a tree over many machines. Against real sshd.

CI runs dozens of agents; QUINE_TEST_LEDGER=1 runs more of them, more often.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.book import NAME, Book
from tests.agents import OK, call, says, sh
from tests.crowd import Crowd, meet
from tests.lab import Lab

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
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def book_of(pid: int) -> Book:
    """The book that an agent holds; its descriptor is the caller's to close."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if os.path.exists(path) and os.readlink(path) == f"/memfd:{NAME} (deleted)":
            return Book(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    raise AssertionError(f"{pid} has no book")


# -- agents ------------------------------------------------------------------------------------------


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


def test_ten_forks_over_there_ask_four_times_at_the_most(hosts: Hosts) -> None:
    forks = [fork(f"leaf {n}", wait=False) for n in range(10)]
    hosts.says("branch", says(*forks), says(sh(hosts.meet(word="branch"))), says(OK))
    hosts.says("leaf", says(sh(hosts.meet())), says(OK))
    with hosts.begin("branch", "--on", "h1", QUINE_MAX_AGENTS="64", QUINE_MAX_TURNS="0") as root:
        hosts.arrive(11)
        book = book_of(hosts.pids()["branch"])
        numbers = book.numbers()
        os.close(book.fd)
        hosts.let_go(100)
        assert ended(root) == (0, b"", b"")
    assert numbers.asked <= 4
    assert 11 <= numbers.granted <= 14


def test_what_lies_idle_on_one_host_is_there_for_another(hosts: Hosts) -> None:
    """h1 has used its places and waits in a long command; h2 is refused nothing."""
    hosts.says("root", says(fork("first@h1", "second@h2")), says(OK))
    hosts.says(
        "first", says(fork(*(f"leaf {n}" for n in range(6)))), says(sh(hosts.meet(word="idle"))), says(OK)
    )
    hosts.says(
        "second",
        says(sh(hosts.meet("door", "ready"))),
        says(fork(*(f"other {n}" for n in range(6)))),
        says(OK),
    )
    hosts.says("leaf", says(OK))
    hosts.says("other", says(sh(hosts.meet(word="other"))), says(OK))
    with hosts.begin("root", QUINE_MAX_AGENTS="10") as root:
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


@pytest.mark.parametrize("how", ["node", "agent"])
def test_the_places_of_a_host_that_vanishes_come_back(hosts: Hosts, how: str) -> None:
    hosts.says("root", says(fork("branch@h1")), says(fork(*(f"late {n}" for n in range(8)))), says(OK))
    hosts.says("branch", says(fork(*(f"leaf {n}" for n in range(7)))), says(OK))
    hosts.says("leaf", says(sh(hosts.meet())), says(OK))
    hosts.says("late", says(sh(hosts.meet())), says(OK))
    with hosts.begin("root", QUINE_MAX_AGENTS="9") as root:
        hosts.arrive(7)
        if how == "agent":
            os.kill(hosts.pids()["branch"], signal.SIGKILL)
        else:
            hosts.lab["h1"].kill_processes()
        hosts.arrive(8)
        hosts.let_go(100)
        assert ended(root)[0] == 0


def test_depth_holds_over_there(hosts: Hosts) -> None:
    hosts.says("root", says(fork("branch@h1")), says(OK))
    hosts.says("branch", says(fork("leaf")), says(OK))
    hosts.says("leaf", says(fork("more")), says(sh("QUINE_MAX_DEPTH=9 quine more; echo $?")), says(OK))
    with hosts.begin("root", "--max-depth", "3") as root:
        assert ended(root) == (0, b"", b"")
    fork_result, nested = hosts.results("leaf")
    assert "too deep" in fork_result
    assert "77\n" in nested


def test_the_report_counts_the_whole_tree(hosts: Hosts) -> None:
    hosts.says("root", says(fork("branch@h1", "leaf 0")), says(OK))
    hosts.says("branch", says(fork("leaf 1", "leaf 2"), sh("quine leaf 3")), says(OK))
    hosts.says("leaf", says(OK))
    for where, expected in (([], 6), (["--on", "h2"], 4)):
        report = hosts.directory / "report"
        options = [*where, "--report", str(report)]
        with hosts.begin("branch" if where else "root", *options, QUINE_MAX_TURNS="9") as root:
            ended(root)
        assert json.loads(report.read_text())["agents"] == expected
