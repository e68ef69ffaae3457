"""Agents on a host that infers by keys of its own: the key stays there, and the tape and the budget come here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.serving import BYE, Plan, said
from tests.lab import Lab
from tests.support.agents import call
from tests.support.remote_agents import tapes
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Seen

pytestmark = pytest.mark.timeout(240)


class Direct:
    """The host `d1` of a lab, with a key in a file of its own, and its provider on loopback."""

    def __init__(self, lab: Lab, data: Path, of: str = "h1", **keys: object) -> None:
        self.lab = lab
        self.data = data
        self.plan: Plan = {}
        self.provider = Provider(chat, choose=self._choose)
        self.host = lab[of]
        self.of = of
        self.keys = keys

    def __enter__(self) -> Direct:
        self.provider.__enter__()
        key = self.host.home / "key"
        key.write_text(f"{KEY}\n")
        key.chmod(0o600)
        self.there = {
            "QUINE_API_TYPE": "openai",
            "QUINE_API_BASE": f"{self.provider.base}/v1",
            "QUINE_MODEL_ID": "m",
            "QUINE_API_KEY_FILE": str(key),
            "QUINE_BROKER_IDLE": "1",
        }
        self.alias()
        self.env = {"QUINE_DATA_DIR": str(self.data)}
        return self

    def alias(self) -> None:
        self.lab.alias("d1", self.of, inference="direct", env=self.there, **self.keys)

    def __exit__(self, *args: Any) -> None:
        self.provider.__exit__(*args)

    def _choose(self, seen: Seen) -> Said | Fault:
        """The word of a plan is in the mission or, for a fork, in the last message before its own replies."""
        messages = seen.body["messages"]
        for word, plan in self.plan.items():
            at = [
                number
                for number, message in enumerate(messages)
                if message["role"] != "assistant" and word in str(message["content"])
            ]
            if at:
                return plan[sum(message["role"] == "assistant" for message in messages[at[-1] :])]
        raise AssertionError(messages)

    def tape(self, mission: str) -> list[dict[str, Any]]:
        return tapes(self.data)[mission]

    def verify(self) -> None:
        done = self.lab.run(["tape", "verify"], env=self.env)
        assert done.returncode == 0, done.stderr

    def litter(self) -> list[Path]:
        """Tapes and keys of an agent that stayed on the host."""
        return [path for path in self.host.home.rglob("*.jsonl") if path.is_file()]


@pytest.fixture
def direct(lab: Lab, tmp_path: Path) -> Iterator[Direct]:
    with Direct(lab, tmp_path / "data") as made:
        yield made


def test_it_infers_over_there_and_its_tape_and_cost_come_here(direct: Direct) -> None:
    direct.plan = {"shout": [said("tr a-z A-Z <&3 >&4; env >&5"), BYE]}
    report = direct.data.parent / "report"
    words = ["--on", "d1", "--report", str(report), "shout"]
    done = direct.lab.run(words, env=direct.env, input="material\n")
    assert (done.returncode, done.stdout) == (0, b"MATERIAL\n")
    assert b"QUINE_INFERENCE" not in done.stderr and KEY.encode() not in done.stderr
    tape = direct.tape("shout")
    assert [tape[0]["type"], tape[-1]["type"]] == ["meta", "outcome"] and tape[0]["data"]["node"] == "d1"
    assert len(direct.provider.requests) == 2
    facts = json.loads(report.read_text())
    assert (facts["tokens_in"], facts["tokens_out"]) == (200, 20)
    direct.verify()
    assert KEY not in "".join(path.read_text() for path in direct.data.rglob("*") if path.is_file())
    assert direct.litter() == []


def test_its_forks_and_nested_agents_infer_there_and_all_tapes_come(direct: Direct) -> None:
    children = [{"intent": "errand-child one"}, {"intent": "errand-child two"}]
    direct.plan = {
        "errand-child": [said("echo child on $QUINE_NODE_NAME >&4"), BYE],
        "errand-nested": [said("echo from $QUINE_NODE_NAME >&4"), BYE],
        "errand-root": [
            Said(calls=(call("fork", children=children, wait=True),)),
            said("quine errand-nested >&4; quine run -- quine 'errand-nested too' >&4"),
            BYE,
        ],
    }
    done = direct.lab.run(["--on", "d1", "--max-tokens", "100000", "errand-root"], env=direct.env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"from d1\nfrom d1\n", b"")
    found = tapes(direct.data)
    root = found.pop("errand-root")
    assert set(found) == {"errand-child one", "errand-child two", "errand-nested", "errand-nested too"}
    assert {tape[0]["data"]["parent_session_id"] for tape in found.values()} == {
        root[0]["data"]["session_id"]
    }
    assert len(direct.provider.requests) == 11
    direct.verify()
    assert direct.litter() == []


def test_a_host_without_a_key_says_so(direct: Direct) -> None:
    (direct.host.home / "key").unlink()
    done = direct.lab.run(["--on", "d1", "shout"], env=direct.env)
    assert (done.returncode, done.stdout) == (2, b"")
    why = f"QUINE_API_KEY_FILE {direct.host.home}/key cannot be read: no such file or directory"
    assert done.stderr.decode() == f"quine: d1: error: {why}\n"
    for name in ("QUINE_API_KEY_FILE", "QUINE_API_BASE", "QUINE_API_TYPE"):
        del direct.there[name]
    direct.alias()
    done = direct.lab.run(["--on", "d1", "shout"], env=direct.env)
    assert done.returncode == 2 and b'error: inference = "direct", and this host has no key' in done.stderr
    assert direct.provider.requests == [] and direct.litter() == []


def test_what_it_is_lent_ends_it_where_the_tree_has_no_more(direct: Direct) -> None:
    """Each inference takes 110 tokens; the host gets no more than the tree has."""
    direct.plan = {"long errand": [said("true") for _ in range(200)]}
    report = direct.data.parent / "report"
    words = [
        "--on",
        "d1",
        "--max-turns",
        "0",
        "--max-tokens",
        "12000",
        "--report",
        str(report),
        "long errand",
    ]
    done = direct.lab.run(words, env=direct.env)
    assert done.returncode == 77 and b"budget" in done.stderr
    facts = json.loads(report.read_text())
    assert 0 < facts["tokens_in"] + facts["tokens_out"] <= 12000
    direct.verify()
