"""Real agents of one account: a provider with limits, and one whose quota is used up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.agents import OK, Agents, until
from tests.vendors import chat
from tests.vendors.limits import Limited
from tests.vendors.server import KEY, Fault, Provider, Said

END = Said("", (OK,))
COUNT = 30


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    made = Agents(tmp_path)
    made.env |= {"QUINE_API_TYPE": "openai", "QUINE_API_KEY": KEY, "QUINE_MODEL_ID": "m"}
    return made


@pytest.mark.long
def test_agents_share_what_an_account_bears(agents: Agents) -> None:
    """Five at a time and twenty in five seconds: each of them by itself would be refused over and over."""
    with Limited(chat, END, 5, 20, 5.0, 0.05) as provider:
        agents.env["QUINE_API_BASE"] = f"{provider.base}/v1"
        started: list[subprocess.Popen[bytes]] = []
        try:
            started += [agents.start(f"work {n}") for n in range(COUNT)]
            for process in started:
                _, errors = process.communicate(timeout=120)
                assert (process.returncode, errors) == (0, b"")
        finally:
            for process in started:
                process.kill()
                process.wait()
    assert provider.most <= 5
    assert len(provider.requests) == COUNT + len(provider.refusals)
    # The exact share is held in virtual time; without the gate all but five are refused, again and again.
    assert len(provider.refusals) < COUNT / 2


def test_an_agent_with_a_deadline_whose_provider_has_no_quota_left_waits(agents: Agents) -> None:
    with Provider(chat, choose=lambda _: Fault(429, "quota")) as provider:
        agents.env["QUINE_API_BASE"] = f"{provider.base}/v1"
        with agents.start("work", "--deadline", "600") as process:
            until(
                lambda: any("paused until the quota" in log.read_text() for log in agents.data.glob("*.log"))
            )
            assert process.poll() is None
            process.terminate()
            process.communicate(timeout=120)
        assert process.returncode == -15
        assert len(provider.requests) == 1


def test_without_a_deadline_an_agent_without_quota_ends(agents: Agents) -> None:
    with Provider(chat, choose=lambda _: Fault(429, "quota")) as provider:
        agents.env["QUINE_API_BASE"] = f"{provider.base}/v1"
        done = agents.run()
        assert done.returncode == 2 and b"no quota left" in done.stderr
        assert len(provider.requests) == 1
