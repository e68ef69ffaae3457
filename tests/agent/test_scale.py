"""Many agents of one tree at once: no limit is exceeded, no slot is lost, no tape is torn, whoever is killed.

CI runs a dozen; QUINE_TEST_AGENTS=200 runs as many as a busy machine has.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import processes
from tests.lab.machine import readable
from tests.support.agents import OK, call, says, section, sh
from tests.support.crowd import Crowd, broken, meet

AGENTS = int(os.environ.get("QUINE_TEST_AGENTS", 13))
SEED = int(os.environ.get("QUINE_TEST_SEED", 4))
INFERENCES = 4  # at one time


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    with Crowd(tmp_path) as made:
        yield made


def fork(*intents: str) -> dict[str, Any]:
    return call("fork", children=[{"intent": intent} for intent in intents], wait=True)


def plant(crowd: Crowd, probe: str) -> int:
    """A tree of AGENTS in three levels. The last, the prober, runs `probe` when its door is opened.

    All of them meet; returns how many come: the leaves and the prober.
    """
    branches = round((AGENTS / 4) ** 0.5) + 2
    leaves = AGENTS - 2 - branches
    crowd.says("root", says(fork(*(f"branch{n}" for n in range(branches)), "prober")), says(OK))
    for branch in range(branches):
        mine = [f"leaf {branch}.{n}" for n in range(leaves // branches + (branch < leaves % branches))]
        crowd.says(f"branch{branch}", says(fork(*mine)), says(OK))
    crowd.says("prober", says(sh(f"{meet('door')}\n{probe}"), fork("extra too many")), says(OK))
    crowd.says("extra", says(sh(meet())), says(OK))
    crowd.env |= {"QUINE_MAX_AGENTS": str(AGENTS), "QUINE_MAX_CONCURRENT": str(INFERENCES)}
    return leaves + 1


def faults(crowd: Crowd, killed: tuple[int, ...] = ()) -> list[str]:
    """Of all tapes; those of the killed need no end."""
    ends = {path: pid_of(path) not in killed for path in crowd.data.glob("*.jsonl")}
    return [fault for path, ended in ends.items() if (fault := broken(path, ended))]


def pid_of(tape: Path) -> int:
    (pid,) = re.findall(r'"pid":(\d+),', tape.read_text().split("\n", 1)[0])
    return int(pid)


def test_a_full_tree(crowd: Crowd) -> None:
    """All live at one moment, as many as are allowed; not one more is let in, by fork or by a nested quine."""
    count = plant(crowd, "quine extra 1; echo $? >$CROWD/roll")
    crowd.says("leaf", says(sh(meet())), says(OK), meets=(1,))
    with crowd.start("root") as root:
        here = crowd.arrive(count)
        assert len(set(here)) == count
        tapes = list(crowd.data.glob("*.jsonl"))
        assert len(tapes) == AGENTS
        assert [path for path in tapes if processes.find(pid_of(path)) is None] == []
        crowd.let_go(1, "door")
        assert crowd.arrive(1) == ["77"]
        crowd.let_go(count - 1)
        # As many inferences as may be under way: each waits for us, so that one too many would have come.
        crowd.arrive(INFERENCES)
        assert crowd.nobody_else()
        crowd.let_go(count - 1, "desk")
        crowd.arrive(count - 1 - INFERENCES)
        out, err = root.communicate(timeout=120)
    assert (root.returncode, out, err) == (0, b"", b"")
    assert b"too many agents" in section(crowd.results("prober")[1], "STDERR").encode()
    assert crowd.results("prober")[2].startswith("[FORK ERROR] too many agents")
    assert crowd.most("infer") == INFERENCES
    assert crowd.most("agent") == AGENTS
    assert len(list(crowd.data.glob("*.jsonl"))) == AGENTS
    assert faults(crowd) == []
    assert crowd.gone()


@pytest.mark.long
def test_a_third_of_them_is_killed(crowd: Crowd) -> None:
    """Slots of the dead are free for as many others, and for no more. The survivors go on, and the tree ends."""
    drawn = random.Random(SEED)
    refused = (
        "test $code = 77 && echo 77 >$CROWD/roll"  # else it may try when those who were let go have left
    )
    extra = f"(quine extra $n; code=$?; echo $code; {refused})"
    count = plant(crowd, f"for n in $(seq $(cat $CROWD/many)); do {extra} & done; wait")
    crowd.says("leaf", says(sh(meet())), says(OK))
    with crowd.start("root") as root:
        crowd.arrive(count)
        pids = {tape[0]["data"]["mission"]: tape[0]["data"]["pid"] for tape in crowd.tapes() if tape}
        others = sorted(mission for mission in pids if mission not in ("root", "prober"))
        victims = {"branch0", *drawn.sample(others, (AGENTS - 2) // 3)}
        # Whoever is waited for by one that was killed is ended too, by TERM.
        orphans = {mission for mission in others if f"branch{mission[5:].split('.')[0]}" in victims} - victims
        ends = {os.pidfd_open(pids[mission]): mission in victims for mission in victims | orphans}
        for fd, victim in ends.items():
            if victim:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        for fd in ends:
            assert readable(fd, 30)
            os.close(fd)
        (crowd.directory / "many").write_text(str(len(ends) + 1))
        crowd.let_go(1, "door")
        # all of them live at this moment, beside those who were not killed, and one was refused
        assert crowd.arrive(len(ends) + 1).count("77") == 1
        crowd.let_go(2 * AGENTS)
        out, err = root.communicate(timeout=120)
    assert (root.returncode, out, err) == (0, b"", b"")
    codes = Counter(section(crowd.results("prober")[1], "STDOUT").split())
    assert codes == {"0": len(ends), "77": 1}
    assert crowd.results("root")[0].count("[SIGNAL] KILL") == sum("branch" in mission for mission in victims)
    assert crowd.gone()
    assert faults(crowd, tuple(pids[mission] for mission in victims)) == []
    codes = Counter(crowd.outcome(mission)["exit_code"] for mission in set(others) - victims)
    assert codes == Counter({0: len(others) - len(ends), 143: len(orphans)})


def test_killed_while_they_infer(crowd: Crowd) -> None:
    """The place of an inference is free when its agent has died, though its guest goes on."""
    crowd.says("root", says(fork(*(f"leaf{n}" for n in range(8)))), says(OK))
    for n in range(8):
        crowd.says(f"leaf{n}", says(OK), meets=(0,))
    crowd.env |= {"QUINE_MAX_CONCURRENT": str(INFERENCES)}
    with crowd.start("root") as root:
        first = crowd.arrive(INFERENCES)
        firsts = [path.read_text().partition("\n") for path in crowd.data.glob("*.jsonl")]
        # that of one that waits for its turn may be on its way
        begun = [json.loads(line)["data"] for line, newline, _ in firsts if newline]
        pids = {meta["mission"]: meta["pid"] for meta in begun}
        assert crowd.nobody_else()
        for mission in first[:3]:
            os.kill(pids[mission], signal.SIGKILL)
        crowd.arrive(3)
        assert crowd.nobody_else()
        crowd.let_go(gate="desk")
        out, err = root.communicate(timeout=120)
    assert (root.returncode, out, err) == (0, b"", b"")
    assert crowd.results("root")[0].count("[SIGNAL] KILL") == 3
    assert crowd.gone()
    assert faults(crowd, tuple(pids[mission] for mission in first[:3])) == []


@pytest.mark.long
def test_a_storm_of_nested_quines(crowd: Crowd) -> None:
    """Agents of their own processes, more than may live: each tries until it is let in, none is lost."""
    wanted = AGENTS // 2
    storm = f"seq {wanted} | xargs -P 8 -I% sh -c 'until quine leaf % 2>/dev/null; do test $? = 77 || echo $?; done'"
    crowd.says("root", says(sh(storm)), says(OK))
    crowd.says("leaf", says(sh("true")), says(OK))
    crowd.env |= {"QUINE_MAX_AGENTS": "5", "QUINE_MAX_CONCURRENT": "2"}
    done = crowd.run(mission="root")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert section(crowd.results("root")[0], "STDOUT").strip() == ""
    assert len(list(crowd.data.glob("*.jsonl"))) == wanted + 1
    assert 2 <= crowd.most("agent") <= 5
    assert crowd.most("infer") <= 2
    assert faults(crowd) == []
    assert crowd.gone()
