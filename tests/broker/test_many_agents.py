"""Real agents of one account, whose provider has limits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.agents import OK, Agents
from tests.vendors import chat
from tests.vendors.limits import Limited
from tests.vendors.server import KEY, Said

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
