"""A key of the origin is at the origin: on no far host is it in a file, an environment, an argv or a process's memory.

QUINE_TEST_CANARY=50 is the long form: so many agents infer at one time.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, processes
from tests.support.agents import OK, sh
from tests.system.canary import Found, Search
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Seen

AGENTS = int(os.environ.get("QUINE_TEST_CANARY", 3))
PATIENCE = 60.0 + AGENTS  # seconds until all of them have come to their inference
HOSTS = ("h1", "h2", "h3")
STORE = "canary-of-the-store-77af20c4"  # the secret that a store's client would take from the environment
PLANTED = "canary-planted-9be1c35d"

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="reads the memory of other processes"),
    pytest.mark.timeout(150 + 6 * AGENTS),
]


class Held(Provider):
    """Inferences wait until they are let go: the processes searched meanwhile hold still."""

    def __init__(self) -> None:
        super().__init__(chat, choose=self.choose)
        self.come = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.replies: dict[str, list[Said | Fault]] = {}  # by a word of the mission

    def next(self, seen: Seen, wrong: str | None) -> Any:
        self.come.release()
        self.go.acquire()  # however long the search takes; at the end all are let go
        return super().next(seen, wrong)

    def choose(self, seen: Seen) -> Said | Fault:
        system, _, *rest = seen.body["messages"]
        plan = next(plan for word, plan in self.replies.items() if word in system["content"])
        return plan[sum(message["role"] == "assistant" for message in rest)]

    def arrive(self, count: int) -> None:
        for number in range(count):
            assert self.come.acquire(timeout=PATIENCE), f"{number} of {count} have come"

    def let_go(self, count: int) -> None:
        self.go.release(count)


class Scene:
    """The lab with a provider at its origin, agents on its hosts, and the search."""

    def __init__(self, lab: Lab, directory: Path, provider: Held) -> None:
        self.lab = lab
        self.provider = provider
        self.data = directory / "data"
        identity = lab.identity.read_text().splitlines()[2]
        self.search = Search({"key": KEY.encode(), "store": STORE.encode(), "identity": identity.encode()})
        self.env = {
            "QUINE_API_TYPE": "openai",
            "QUINE_API_BASE": f"{provider.base}/v1",
            "QUINE_MODEL_ID": "m",
            "QUINE_API_KEY": KEY,
            "OPENAI_API_KEY": KEY,
            "AWS_SECRET_ACCESS_KEY": STORE,
            "QUINE_DATA_DIR": str(self.data),
            "QUINE_MAX_CONCURRENT": "0",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, where: str, mission: str, *options: str) -> subprocess.Popen[bytes]:
        process = self.lab.popen(
            ["--on", where, *options, mission],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def far(self) -> list[int]:
        """Return all processes on the hosts: those with their marks, their descendants, sshd and its sessions."""
        pids = set()
        for host in self.lab.hosts.values():
            own = [process.pid for process in host.processes()]
            pids |= {host.pid, *own, *host.sessions()}
            for pid in own:
                pids |= set(processes.descendants(pid))
        return sorted(pids - {0})

    def found(self) -> list[Found]:
        """Where a far host shows a secret, or a tape, a log or the node of the origin, none of which needs one."""
        hosts = self.lab.hosts.values()
        folders = [folder for host in hosts for folder in (host.base, host.run)]
        logs = Path(self.lab.env["XDG_RUNTIME_DIR"])
        here = self.search.processes(process.pid for process in self.lab.processes() if process.daemon)
        assert {found.secret for found in here} <= {"identity"}  # with which this node logs in
        return [
            *self.search.processes(self.far()),
            *self.search.files(*folders, logs, self.data, self.lab.work, self.lab.tmp),
        ]

    def ends(self, process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
        out, err = process.communicate(timeout=PATIENCE)
        for secret in (KEY, STORE):
            assert secret.encode() not in out + err
        return process.returncode, out, err


@pytest.fixture
def scene(lab: Lab, tmp_path: Path) -> Iterator[Scene]:
    with Held() as provider:
        made = Scene(lab, tmp_path, provider)
        yield made
        provider.let_go(10_000)
        for process in made.started:
            process.kill()
            process.communicate()


LOOK = "env; set; cat /proc/self/environ /proc/$PPID/environ /proc/$PPID/cmdline"


@pytest.mark.long
def test_while_many_infer(scene: Scene) -> None:
    """The search runs in their first inference, and in the second, when each holds the output of its commands."""
    scene.provider.replies = {"errand": [Said(calls=(sh(LOOK),)), Said(calls=(sh("echo done >&4"), OK))]}
    agents = [scene.start(HOSTS[n % len(HOSTS)], f"errand {n}") for n in range(AGENTS)]
    for _ in range(2):
        scene.provider.arrive(AGENTS)
        assert len([p for pid in scene.far() if (p := processes.find(pid)) and "errand" in str(p)]) >= AGENTS
        assert scene.found() == []
        scene.provider.let_go(AGENTS)
    assert [scene.ends(agent) for agent in agents] == [(0, b"done\n", b"")] * AGENTS
    assert scene.found() == []
    assert len(list(scene.data.glob("*.jsonl"))) == AGENTS


def test_the_search_finds_what_is_there(scene: Scene) -> None:
    """It finds them at the origin, which must have them; and on a host, in each place where the test plants one."""
    scene.provider.replies = {"errand": [Said(calls=(OK,))]}
    agent = scene.start("h1", "errand")
    scene.provider.arrive(1)
    # A node that has logged in need not keep the letters of the key that it has read.
    reading = ["sh", "-c", 'key=$(cat "$0"); echo up; read x', str(scene.lab.identity)]
    told = {"key": KEY, "store": STORE}  # no process of quine shows them
    with subprocess.Popen(
        reading, env={**scene.lab.env, **told}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout and reader.stdout.readline() == b"up\n"
        here = scene.search.processes(process.pid for process in scene.lab.processes())
        reader.communicate(b"\n")
    assert {(found.secret, found.what) for found in here} >= {
        ("key", "memory"), ("key", "environ"), ("store", "environ"), ("identity", "memory")
    }  # fmt: skip
    scene.provider.let_go(1)
    assert scene.ends(agent)[0] == 0

    search = Search({"planted": PLANTED.encode()})
    home = scene.lab["h1"].home
    job = scene.lab.popen(
        [
            "run",
            "--on",
            "h1",
            "--env",
            f"A={PLANTED}",
            "--",
            "sh",
            "-c",
            "echo $A > ~/planted; echo up; read x",
            PLANTED,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout and job.stdout.readline() == b"up\n"
    try:
        there = search.processes(scene.far()) + search.files(home)
        assert {found.what for found in there} == {"environ", "cmdline", "memory", "file"}
    finally:
        (home / "planted").unlink()
        job.communicate(b"x\n", timeout=PATIENCE)


def echoes(status: int, kind: str) -> Fault:
    """Some servers quote the key that they refuse."""
    return Fault(status, kind, {"retry-after-ms": "1"}, f"Incorrect API key provided: {KEY}. You can find it")


@pytest.mark.long
def test_when_the_provider_quotes_the_key(scene: Scene) -> None:
    """The key is in an error for an agent on a host, whose parent reads it and keeps it in its conversation."""
    quine = "quine inner-one 2>&1; quine inner-two 2>&1"
    scene.provider.replies = {
        "inner-one": [echoes(401, "auth")],
        "inner-two": [echoes(400, "bad")],
        "errand": [Said(calls=(sh(quine),)), Said(calls=(sh("echo done >&4"), OK))],
    }
    agent = scene.start("h1", "errand", "-v")
    for _ in range(3):
        scene.provider.arrive(1)
        assert scene.found() == []
        scene.provider.let_go(1)
    scene.provider.arrive(1)  # it has read what they said
    assert scene.found() == []
    scene.provider.let_go(1)
    status, out, _ = scene.ends(agent)
    assert (status, out) == (0, b"done\n")
    told = [
        entry["data"]["content"]
        for path in scene.data.glob("*.jsonl")
        for entry in map(json.loads, path.read_text().splitlines())
        if entry["type"] == "tool_result"
    ]
    assert sum(text.count("Incorrect API key provided") for text in told) == 2


@pytest.mark.whole
@pytest.mark.long
def test_when_the_link_breaks_in_the_middle(scene: Scene, lab: Lab) -> None:
    """Bytes that one end keeps to send them again must not hold a key either."""
    scene.provider.replies = {"errand": [Said(calls=(sh(LOOK),)), Said(calls=(OK,))]}
    lab.alias("broken", "h1", lab["h1"].proxy, lease=60)
    agent = scene.start("broken", "errand")
    scene.provider.arrive(1)
    assert lab["h1"].proxy.cut() >= 1
    assert scene.found() == []
    scene.provider.let_go(2)
    scene.provider.arrive(1)
    assert scene.found() == []
    assert scene.ends(agent)[0] == 0
    assert scene.found() == []
