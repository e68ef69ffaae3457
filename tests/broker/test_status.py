"""`quine node --status` and `--resume` with brokers: gates as people see them, and pauses that end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.broker import asking
from quine.cli.node import status
from tests.broker.serving import BYE, FIRST, Served, said
from tests.support.agents import PATIENCE, until
from tests.vendors.server import KEY, Fault


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """In a directory with a short name, as those of sockets have to be; this process asks its brokers."""
    with tempfile.TemporaryDirectory() as short, Served(Path(short)) as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(made.runtime))
        yield made


def gates() -> list[dict[str, object]]:
    return [gate for broker in asking.status() for gate in broker.get("gates", ())]


def test_gates_have_a_line_and_every_fact_in_json(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """A model writes nothing to a terminal; a broker that does not tell is named, and hides no other."""
    assert served.run(mission=FIRST).returncode == 0
    served.env["QUINE_MODEL_ID"] = "z\x1b]0;owned\x07\n x"
    assert served.run(mission=FIRST).returncode == 0
    (path,) = served.sockets()
    strange = path.with_name("f" * 32 + ".broker")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(strange))
        stranger.listen()
        code = status.show(as_json=False)
    strange.unlink()
    told, errors = capfd.readouterr()
    lines = told.splitlines()
    keeper, worker = served.brokers()
    assert lines[0].split() == ["BROKER", "SECONDS", "AGENTS", "KEYS"]
    assert lines[1].split()[0] in (str(keeper), str(worker)) and lines[1].split()[3] == "QUINE_API_KEY"
    assert re.fullmatch(r" *\d+ +QUINE_API_KEY +m +http://127\S+/v1 +0/20 +0 +2 +0 +- +-", lines[3]), lines[3]
    assert "\x1b" not in told and "\x07" not in told and len(lines) == 6
    assert lines[5].startswith(f"the broker at {strange} does not tell: ")
    assert code == 1 and "no node of this build runs here" in errors
    status.show(as_json=True)
    (broker,) = json.loads(capfd.readouterr().out)["brokers"]
    gate = broker["gates"][0]
    assert (gate["model"], gate["started"], gate["answered_429"], gate["without_quota"]) == ("m", 2, 0, [])
    assert KEY not in json.dumps(broker)


def test_a_pause_for_a_quota_is_shown_and_ended(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """By a person, and by a signal to the agent that is paused. An agent without a deadline ends instead."""
    without = Fault(429, "quota")
    replies = iter([without, said("echo after it >&4"), BYE, without, without])
    served.provider.choose = lambda seen: next(replies)
    with served.start(FIRST, "--deadline", "600") as agent:
        until(lambda: [gate for gate in gates() if gate["without_quota"]])
        status.show(as_json=False)
        until(lambda: any("paused until the quota" in log.read_text() for log in served.data.glob("*.log")))
        assert re.search(r"a tree without quota .*at most \d+ s", capfd.readouterr().out)
        resumed = served.quine("node", "--resume")
        assert (resumed.returncode, resumed.stderr) == (0, "")
        out, _ = agent.communicate(timeout=PATIENCE)
        assert (agent.returncode, out) == (0, b"after it\n")
    nothing = served.quine("node", "--resume")
    assert nothing.returncode == 1 and "nothing is paused" in nothing.stderr
    with served.start(FIRST, "--deadline", "600") as agent:
        until(lambda: [gate for gate in gates() if gate["without_quota"]])
        os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait(PATIENCE) == -signal.SIGTERM
    until(lambda: not [gate for gate in gates() if gate["without_quota"]])
    assert len(served.sockets()) == 1 and gates()  # the pause has ended, and not because the broker has
    done = served.run(mission=FIRST)
    assert done.returncode == 2 and b"no quota left" in done.stderr
    assert len(served.provider.requests) == 5


@pytest.mark.parametrize("gates", [[1], [{"paused": "x"}], [{"without_quota": [{"seconds": None}]}]])
def test_a_stranger_whose_gates_cannot_be_read_hides_no_broker(gates: list[object]) -> None:
    true = {"pid": 7, "seconds": 1.0, "agents": 2, "keys": ["QUINE_API_KEY"], "gates": []}
    told = status._of_brokers([{"pid": 9, "gates": gates}, true])
    assert "the gates of broker 9 cannot be read" in told and "QUINE_API_KEY" in told
