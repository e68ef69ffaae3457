"""Agents of a batch on one host: forks of one process there that has loaded all they need, and no process each here."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab import Lab, processes
from tests.support.agents import OK, call, says

# Forks of one process have its addresses; an exec draws new ones.
SHOW = r"""
cd /proc/$PPID
stack=$(grep '\[stack\]' maps) && echo "${stack%%-*}" >&4
tr '\0' '|' <cmdline >&4; echo >&4
cat comm >&4
grep -c hush environ >&4
exit 0
"""


def test_agents_that_follow_each_other_on_a_host_are_forks_and_look_like_programs(
    lab: Lab, tmp_path: Path
) -> None:
    env = {**lab.script([says(call("sh", command=SHOW)), says(OK)]), "QUINE_DATA_DIR": str(tmp_path)}
    words = ["xargs", "--json", "-P1", "--on", "h1", "--env", "TEST_API_KEY=hush", "look at {}"]
    seen: dict[str, list[str]] = {}
    rest = set()
    with lab.popen(words, env=env, stdin=-1, stdout=-1, stderr=-1) as batch:
        assert batch.stdin and batch.stdout
        number = 0
        while max(map(len, seen.values()), default=0) < 3:  # the first ones do not wait for a zygote
            number += 1
            batch.stdin.write(b"%d\n" % number)
            batch.stdin.flush()
            stack, argv, name, secrets = json.loads(batch.stdout.readline())["stdout"].splitlines()
            own, mission = argv.rstrip("|").rsplit("|", 1)
            assert mission == f"look at {number}" and processes.children(batch.pid) == {}
            seen.setdefault(stack, []).append(mission)
            rest.add((own, name, secrets))
        batch.stdin.close()
        assert batch.wait(60) == 0
    assert len(rest) == 1, rest
    ((own, name, secrets),) = rest
    assert own.endswith("lib|--") and name.startswith("py") and secrets == "0"
