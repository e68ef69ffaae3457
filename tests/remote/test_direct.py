"""Agents on a host that infers by keys of its own: the key stays there, and the tape and the budget come here.

QUINE_TEST_STOPPED=SECONDS: how long the node of this machine is stopped in the middle of an agent, else for a moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.serving import BYE, Plan, said
from tests.lab import Lab, processes
from tests.lab.host import OTHER, Host
from tests.support.agents import call
from tests.support.provider import reused
from tests.support.remote_agents import tapes
from tests.support.waiting import read_until, until
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Seen

STOPPED = float(os.environ.get("QUINE_TEST_STOPPED", "0"))  # seconds

pytestmark = [
    pytest.mark.timeout(240 + STOPPED),
    pytest.mark.skipif(
        "pypy" in OTHER, reason="the models of providers' answers need a newer Python than PyPy is of"
    ),
]


class Direct:
    """The host `d1` of a lab, with a key in a file of its own, and its provider on loopback."""

    def __init__(self, lab: Lab, data: Path, provider: Provider, of: str = "h1", **keys: object) -> None:
        self.lab = lab
        self.data = data
        self.plan: Plan = {}
        self.provider = provider
        self.host = lab[of]
        self.of = of
        self.keys = keys
        self._clients = contextlib.ExitStack()

    def __enter__(self) -> Direct:
        self._clients.enter_context(reused(self.provider))
        self.provider.choose = self._choose
        key = self.host.home / "key"
        key.write_text(f"{KEY}\n")
        key.chmod(0o600)
        self.there = {
            "QUINE_API_TYPE": "openai",
            "QUINE_API_BASE": f"{self.provider.base}/v1",
            "QUINE_MODEL_ID": "m",
            "QUINE_API_KEY_FILE": str(key),
            "QUINE_BROKER_IDLE": "60",  # the next test has the same provider
        }
        self.alias()
        self.env = {"QUINE_DATA_DIR": str(self.data)}
        return self

    def alias(self) -> None:
        self.lab.alias("d1", self.of, inference="direct", env=self.there, **self.keys)

    def __exit__(self, *args: Any) -> None:
        self._clients.__exit__(*args)
        (self.host.home / "key").unlink(
            missing_ok=True
        )  # the host is also other tests', who look for keys there

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

    def up(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a client, and wait until its agent has said "up"."""
        process = self.lab.popen(words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.own(process)
        assert process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        return process

    def own(self, process: subprocess.Popen[bytes]) -> None:
        self._clients.enter_context(process)
        self._clients.callback(process.kill)

    def nodes(self) -> list[int]:
        """The node of this machine."""
        return [p.pid for p in processes.marked(self.lab.mark) if p.daemon and "--dial" not in p.argv]

    def courier(self) -> int:
        """The process of the job that leads a group of its own, and whose parent has ended."""
        found = [
            process.pid
            for process in self.host.jobs()
            if process.pid == os.getpgid(process.pid) != os.getsid(process.pid)
            and process.argv[-1] == "errand"
        ]
        assert len(found) == 1, [str(p) for p in self.host.jobs()]
        return found[0]

    def litter(self) -> list[Path]:
        """Tapes and keys of an agent that stayed on the host."""
        return [path for path in self.host.home.rglob("*.jsonl") if path.is_file()]


def brokers(host: Host) -> list[int]:
    there = processes.marked(f"HOME={host.home}", brokers=True)
    return [process.pid for process in there if process.broker]


@pytest.fixture(scope="module")
def provider(session_lab: Lab) -> Iterator[Provider]:
    """One for all tests of this file, so that they have one broker, which takes most of a test's time to start."""
    with Provider(chat) as made:
        yield made
        for pid in brokers(session_lab["h1"]):
            processes.kill(pid)


@pytest.fixture
def direct(lab: Lab, tmp_path: Path, provider: Provider) -> Iterator[Direct]:
    with Direct(lab, tmp_path / "data", provider) as made:
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
    direct.plan = {"long errand": [said("true") for _ in range(50)]}
    report = direct.data.parent / "report"
    words = ["--on", "d1", "--max-turns", "0", "--max-tokens", "3000", "--report", str(report), "long errand"]
    done = direct.lab.run(words, env=direct.env)
    assert done.returncode == 77 and b"budget" in done.stderr
    facts = json.loads(report.read_text())
    assert 0 < facts["tokens_in"] + facts["tokens_out"] <= 3000
    direct.verify()


def pipes(top: Path, *names: str) -> list[Path]:
    """Named pipes by which a test and a command of an agent wait for each other."""
    for name in names:
        os.mkfifo(top / name)
    return [top / name for name in names]


@pytest.mark.long
def test_it_goes_on_while_the_node_here_is_stopped(direct: Direct, tmp_path: Path) -> None:
    (go,) = pipes(tmp_path, "go")
    direct.keys["lease"] = 600  # the default; hosts of the lab have seconds
    direct.alias()
    direct.plan = {"long errand": [said(f"echo up >&4; read x <{go}"), *[said("echo on")] * 3, BYE]}
    report = tmp_path / "report"
    words = ["--on", "d1", "--max-tokens", "100000", "--report", str(report), "long errand"]
    client = direct.up(*words)
    (node,) = direct.nodes()
    os.kill(node, signal.SIGSTOP)
    try:
        go.write_text("x\n")
        until(lambda: len(direct.provider.requests) == 5, "all is inferred")
        time.sleep(STOPPED)
        assert client.poll() is None and len(direct.tape("long errand")) < 12
    finally:
        os.kill(node, signal.SIGCONT)
    assert client.wait(60) == 0
    facts = json.loads(report.read_text())
    assert (facts["tokens_in"], facts["tokens_out"]) == (500, 50)
    assert sum(entry["type"] == "tool_result" for entry in direct.tape("long errand")) == 4
    direct.verify()
    assert direct.litter() == []


def test_it_goes_on_while_the_link_is_down(direct: Direct, tmp_path: Path) -> None:
    """The tapes of agents that ended before and meanwhile come later; a fork waits, if it needs another place."""
    go, on = pipes(tmp_path, "go", "on")
    proxy = direct.host.proxy
    direct.keys["via"] = proxy
    direct.alias()
    fork = Said(calls=(call("fork", children=[{"intent": "errand-child"}], wait=True),))
    direct.plan = {
        "errand-child": [said(f"echo up >&4; read x <{go}"), BYE],
        "errand-root": [fork, said("true"), said(f"read x <{on}"), said("quine errand-late"), BYE],
        "errand-late": [said("true"), BYE],
    }
    words = ["--on", "d1", "--max-tokens", "100000", "errand-root"]
    client = direct.lab.popen(words, env=direct.env)
    direct.own(client)
    with go.open("w") as writer:  # opened by the child, which is at work then
        proxy.refuse()
        proxy.cut()
        try:
            writer.write("x\n")
            writer.flush()
            until(lambda: len(direct.provider.requests) == 5, "all but the last is inferred")
        finally:
            proxy.heal()
    on.write_text("x\n")
    assert client.wait(90) == 0
    assert sorted(tapes(direct.data)) == ["errand-child", "errand-late", "errand-root"]
    direct.verify()
    assert direct.litter() == []


def test_the_broker_over_there_is_killed(direct: Direct, tmp_path: Path) -> None:
    (go,) = pipes(tmp_path, "go")
    direct.plan = {"errand": [said(f"echo up >&4; read x <{go}"), said("true"), BYE]}
    client = direct.up("--on", "d1", "errand")
    serving = brokers(direct.host)
    assert serving
    for pid in serving:
        os.kill(pid, signal.SIGKILL)
    go.write_text("x\n")
    assert client.wait(60) == 0
    direct.verify()


def test_a_courier_that_was_killed_leaves_the_tape_there_and_is_told_of(
    direct: Direct, tmp_path: Path
) -> None:
    (go,) = pipes(tmp_path, "go")
    direct.plan = {"errand": [said(f"echo up >&4; read x <{go}"), BYE]}
    client = direct.up("--on", "d1", "errand")
    os.kill(direct.courier(), signal.SIGKILL)
    go.write_text("x\n")
    _, said_ = client.communicate(timeout=60)
    assert client.returncode == 74 and b"the process that sends it has ended" in said_
    (kept,) = direct.litter()
    assert json.loads(kept.read_text().splitlines()[-1])["type"] == "outcome"
    shutil.rmtree(direct.host.home / "quine")
    assert b"files are left" in said_


def test_a_signal_ends_it_and_its_tape_says_so(direct: Direct) -> None:
    direct.plan = {"errand": [said("echo up >&4; sleep 600"), BYE]}
    client = direct.up("--on", "d1", "errand")
    client.send_signal(signal.SIGTERM)
    assert client.wait(60) == -signal.SIGTERM
    assert direct.tape("errand")[-1]["data"]["termination_mode"] == "signal"
    assert direct.litter() == []


def test_a_batch_of_agents(direct: Direct) -> None:
    direct.plan = {"errand": [said("echo done by $QUINE_NODE_NAME >&4"), BYE]}
    words = ["xargs", "--on", "d1", "-k", "-P2", "--max-tokens", "100000", "errand {}", ":::", "1", "2", "3"]
    done = direct.lab.run(words, env=direct.env)
    assert (done.returncode, done.stdout) == (0, b"done by d1\n" * 3), done.stderr
    assert len(list(direct.data.rglob("*.jsonl"))) == 3
    assert direct.litter() == []


def test_a_detached_agent(direct: Direct) -> None:
    direct.plan = {"errand": [said("echo done >&4"), BYE]}
    begun = direct.lab.run(["--detach", "--on", "d1", "errand"], env=direct.env, check=True)
    id = begun.stdout.decode().strip()
    assert direct.lab.run(["wait", id], env=direct.env).returncode == 0
    assert direct.lab.run(["logs", id], env=direct.env).stdout == b"done\n"
    direct.verify()
