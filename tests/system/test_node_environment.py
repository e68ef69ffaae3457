"""The node that a command of an agent starts is the user's: the command does not choose its programs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents import OK, Agents, says, sh


@pytest.fixture
def runtime(agents: Agents) -> Iterator[str]:
    """A runtime directory without a node; its name is short, because of the socket."""
    folder = tempfile.mkdtemp(prefix="qn-")
    agents.env["XDG_RUNTIME_DIR"] = folder
    yield folder
    agents.quine("node", "--stop", "--force")
    shutil.rmtree(folder)


@pytest.mark.parametrize("before", ["", "env -u QUINE_CREDENTIALS_FD "])
def test_a_command_does_not_choose_the_carriers(agents: Agents, runtime: str, before: str) -> None:
    places = {name: agents.directory / name for name in ("good", "evil")}
    for place in places.values():
        place.mkdir()
        program = place / "carrier"
        program.write_text(f"#!/bin/sh\ntouch {place}/ran\nexit 1\n")
        program.chmod(0o700)
    inventory = agents.directory / "hosts.toml"
    inventory.write_text('[hosts.box]\ntransport = "command"\ncommand = ["carrier"]\n')
    env = {"PATH": f"{places['good']}:{os.environ['PATH']}", "QUINE_INVENTORY": str(inventory)}
    quine = f'{before}env PATH="{places["evil"]}:$PATH" quine run --on box -- true; true'
    done = agents.run(says(sh(quine)), says(OK), env=env)
    assert done.returncode == 0
    assert [name for name, place in places.items() if Path(place / "ran").exists()] == ["good"], (
        agents.results()
    )
