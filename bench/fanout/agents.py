"""One-turn scripted agents over four hosts, beside as many processes of xargs on this machine."""

from __future__ import annotations

from bench.fanout.peers import HOSTS, LONGEST, quiet
from bench.fanout.rate import batch_hosts
from bench.measure import Row, alternate, size
from tests.lab import Lab
from tests.support.agents import OK, says

LOCAL = 16  # at one time, by xargs


def run(_: Lab) -> list[Row]:
    agents = size(100, 300, 1000)
    with Lab(HOSTS, installed=True) as lab:
        batch_hosts(lab)
        env = {**lab.script([says(OK)]), "QUINE_MAX_AGENTS": "0"}
        lines = "\n".join(map(str, range(agents)))

        def ours() -> None:
            words = ["xargs", "--on", "@batch", "say nothing"]
            lab.run(
                words,
                check=True,
                env={**env, "QUINE_DATA_DIR": str(lab.tmp / "far")},
                input=lines,
                timeout=LONGEST,
            )

        given = " ".join(f"{name}={value}" for name, value in env.items())
        local = quiet(
            lab,
            f"seq {agents} | env {given} QUINE_DATA_DIR={lab.tmp / 'near'} xargs -P {LOCAL} -I% quine 'say nothing'",
        )
        far, near = alternate(size(1, 1, 3), ours, local)
    rate = agents / far
    return [
        Row(
            *(f"{agents} one-turn agents over 4 hosts, 8 at one time", rate, "agents/s"),
            *(f"xargs -P{LOCAL} of local ones", agents / near, "≥ 50, aim 100", rate >= 50),
        )
    ]
