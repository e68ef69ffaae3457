"""`quine node --status` and `--resume` with brokers: gates as people see them, and pauses that end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.serving import BYE, FIRST, Served, said
from tests.support.agents import PATIENCE, QUINE, until
from tests.vendors.server import KEY, Fault


@pytest.fixture
def served() -> Iterator[Served]:
    """In a directory with a short name, as those of sockets have to be."""
    with tempfile.TemporaryDirectory() as short, Served(Path(short)) as made:
        yield made


def node(served: Served, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QUINE, "node", *options],
        env=served.env,
        cwd=served.directory,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_gate_has_a_line_and_every_fact_in_json(served: Served) -> None:
    assert served.run(mission=FIRST).returncode == 0
    done = node(served, "--status")
    lines = done.stdout.splitlines()
    keeper, worker = served.brokers()
    assert lines[0].split() == ["BROKER", "SECONDS", "AGENTS", "KEYS"]
    assert lines[1].split()[0] in (str(keeper), str(worker)) and lines[1].split()[3] == "QUINE_API_KEY"
    assert re.fullmatch(r" *\d+ +QUINE_API_KEY +m +http://127\S+/v1 +0/20 +0 +2 +0 +-", lines[3]), lines[3]
    assert done.returncode == 1 and "no node of this build runs here" in done.stderr
    (broker,) = json.loads(node(served, "--json", "--status").stdout)["brokers"]
    (gate,) = broker["gates"]
    assert (gate["model"], gate["started"], gate["answered_429"], gate["without_quota"]) == ("m", 2, 0, [])
    assert KEY not in json.dumps(broker)


def test_a_model_writes_nothing_to_a_terminal(served: Served) -> None:
    served.env["QUINE_MODEL_ID"] = "m\x1b]0;owned\x07\n x"
    assert served.run(mission=FIRST).returncode == 0
    told = node(served, "--status").stdout
    assert "\x1b" not in told and "\x07" not in told and len(told.splitlines()) == 4


def test_a_broker_that_does_not_tell_is_named_and_hides_no_other(served: Served) -> None:
    assert served.run(mission=FIRST).returncode == 0
    (path,) = served.sockets()
    strange = path.with_name("f" * 32 + ".broker")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(strange))
        stranger.listen()
        told = node(served, "--status").stdout
    assert f"the broker at {strange} does not tell: " in told and " 0/20 " in told
    strange.unlink()


def test_a_pause_for_a_quota_is_shown_and_ended(served: Served) -> None:
    replies = iter([Fault(429, "quota"), said("echo after it >&4"), BYE])
    served.plan[FIRST] = []
    served.provider.choose = lambda seen: next(replies)
    with served.start(FIRST, "--deadline", "600") as agent:
        until(lambda: "without quota" in node(served, "--status").stdout)
        assert re.search(r"a tree without quota .*at most \d+ s", node(served, "--status").stdout)
        done = node(served, "--resume")
        assert (done.returncode, done.stderr) == (0, "")
        out, _ = agent.communicate(timeout=PATIENCE)
        assert (agent.returncode, out) == (0, b"after it\n")
    done = node(served, "--resume")
    assert done.returncode == 1 and "nothing is paused" in done.stderr


def test_a_paused_agent_is_ended_by_a_signal_and_its_pause_with_it(served: Served) -> None:
    served.env["QUINE_BROKER_IDLE"] = "600"  # the pause does not end because the broker does
    served.provider.choose = lambda seen: Fault(429, "quota")
    with served.start(FIRST, "--deadline", "600") as agent:
        until(lambda: "without quota" in node(served, "--status").stdout)
        os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait(PATIENCE) == -signal.SIGTERM
    until(lambda: "without quota" not in node(served, "--status").stdout)
    assert len(served.sockets()) == 1
