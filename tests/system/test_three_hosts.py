"""Three hosts build one artefact by files only: two map, the third reduces, and the store's keys stay at the origin.

The guest is that of examples/mapreduce.jsonl, held where a search has to find everything in its place. Real sshd, the
whole main job; the tier is a directory of the origin and a real S3 server. The tree's record is in the tier, too.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.files.seaweed import BUCKET, KEY, SECRET, Weed
from tests.lab import Lab, processes
from tests.support.agents import QUINE, left, sh, until
from tests.support.remote_agents import warm
from tests.system.canary import Search

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HOSTS = ("h1", "h2", "h3")
MISSION = "count the answers by status"

pytestmark = pytest.mark.timeout(600)


def answer(log: bytes) -> bytes:
    """The report, counted here."""
    counts = Counter(line.split(b'"')[2].split()[0] for line in log.splitlines())
    return b"".join(sorted(b"%s %d\n" % item for item in counts.items()))


def script(gates: Path) -> list[dict[str, Any]]:
    """The guest of the example; each agent over there stops once at a gate, when all it does by files is done."""
    lines = [json.loads(line) for line in (EXAMPLES / "mapreduce.jsonl").read_text().splitlines()]
    held = []
    for line in lines:
        calls = line["reply"]["tool_calls"]
        if line["match"] in ("^map", "^reduce") and calls[0]["name"] == "exit":
            gate = f"echo up >{gates}/up.$QUINE_NODE_NAME; read x <{gates}/gate.$QUINE_NODE_NAME"
            held.append({"match": line["match"], "reply": {"text": "", "tool_calls": [sh(gate)]}})
        held.append(line)
    return held


class Gates:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for host in HOSTS:
            os.mkfifo(directory / f"gate.{host}")

    def arrived(self, *hosts: str) -> bool:
        return all((self.directory / f"up.{host}").exists() for host in hosts)

    def open(self, *hosts: str) -> None:
        for host in hosts:
            (self.directory / f"gate.{host}").write_text("\n")


def everything(lab: Lab) -> tuple[list[int], list[Path]]:
    """All processes of the hosts, and the directories in which anything of theirs could be."""
    pids: set[int] = set()
    for host in lab.hosts.values():
        own = [process.pid for process in host.processes()]
        pids |= {host.pid, *own, *host.sessions()}
        for pid in own:
            pids |= set(processes.descendants(pid))
    return sorted(pids - {0}), [folder for host in lab.hosts.values() for folder in (host.base, host.run)]


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    (tmp_path / "gates").mkdir()
    return Gates(tmp_path / "gates")


@pytest.fixture(params=["origin", pytest.param("s3", marks=pytest.mark.whole)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    if request.param == "origin":
        # Keys that nothing here needs are no less to be kept.
        yield {
            "QUINE_FS": f"origin:{tmp_path}/tier",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        return
    weed: Weed = request.getfixturevalue("weed")
    yield {"QUINE_FS": f"s3://{BUCKET}/three/{uuid.uuid4()}", **weed.environ}


@pytest.mark.long
def test_three_hosts_build_one_report(lab: Lab, tmp_path: Path, store: dict[str, str], gates: Gates) -> None:
    log = gzip.decompress((EXAMPLES / "access.log.gz").read_bytes())
    data = tmp_path / "data"
    env = {
        **lab.script(script(gates.directory), f"{tmp_path.name}.jsonl"),
        **store,
        "QUINE_DATA_DIR": str(data),
    }
    search = Search({"secret": SECRET.encode(), "key": KEY.encode()})
    warm(lab, *HOSTS)
    agent = lab.popen(
        [MISSION], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert agent.stdin
    agent.stdin.write(log)
    agent.stdin.close()
    agent.stdin = None

    def waits_at(*hosts: str) -> None:
        until(lambda: gates.arrived(*hosts) or agent.poll() is not None, 200)
        assert gates.arrived(*hosts), agent.communicate()
        pids, folders = everything(lab)
        assert len([pid for pid in pids if (one := processes.find(pid)) and "quine" in str(one)]) >= len(
            hosts
        )
        if os.getuid() == 0:
            assert search.processes(pids) == []
        assert search.files(*folders, data, lab.work, lab.tmp) == []
        gates.open(*hosts)

    try:
        waits_at("h1", "h2")
        waits_at("h3")
        out, err = agent.communicate(timeout=200)
    finally:
        agent.kill()
        agent.communicate()
    assert (agent.returncode, out, err) == (0, answer(log), b"")
    if os.getuid() == 0:
        assert search.processes(everything(lab)[0]) == []
    assert search.files(*everything(lab)[1], data, lab.work, lab.tmp) == []
    what_is_in_the_tier(lab, env, log)
    the_record_of_the_tree(tmp_path, env, data)


def what_is_in_the_tier(lab: Lab, env: dict[str, str], log: bytes) -> None:
    """Every part was taken once, by one of two, and its material is whole."""

    def fs(*words: str) -> bytes:
        return lab.run(["fs", *words], env=env, check=True).stdout

    parts = fs("ls", "log").split()
    assert len(parts) == 8 and fs("ls", "taken").split() == fs("ls", "counts").split() == parts
    assert fs("cat", "log/*") == log
    takers = Counter(fs("cat", "taken/*").split())
    assert takers.total() == 8 and set(takers) <= {b"h1", b"h2"}
    assert fs("cat", "report") == answer(log)


def the_record_of_the_tree(tmp_path: Path, env: dict[str, str], data: Path) -> None:
    """Tapes of all three hosts are found with nothing but the URL and the keys."""
    other = tmp_path / "other"
    other.mkdir()
    env = {"PATH": os.environ["PATH"], **env, "HOME": str(other), "QUINE_DATA_DIR": str(other / "data")}
    root = next(path.stem for path in data.glob("*.jsonl") if f'"{MISSION}"' in path.read_text())
    # Where the end of the tree had not the patience for a slow machine, it goes on.
    assert not left("--keep", root)

    def elsewhere(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*QUINE, *words], cwd=other, env=env, capture_output=True, timeout=200)

    tree = elsewhere("tape", "tree", root)
    assert tree.returncode == 0, tree.stderr
    assert {line.split()[0] for line in tree.stdout.decode().splitlines()[1:]} == {"local", *HOSTS}
    verified = elsewhere("tape", "verify")
    assert verified.returncode == 0 and verified.stdout.count(b"whole") == 4, verified.stdout
    assert elsewhere("wait", root).returncode == 0
    assert SECRET.encode() not in tree.stdout + verified.stdout


@pytest.mark.long
def test_the_search_would_find_it(lab: Lab) -> None:
    """Somebody who does take the key to a host is found out, in each of the places."""
    job = lab.popen(
        [
            "run",
            "--on",
            "h1",
            "--env",
            f"A={SECRET}",
            "--",
            "sh",
            "-c",
            "echo $A >~/planted; echo up; read x",
            "x",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert job.stdout and job.stdout.readline() == b"up\n"
    try:
        pids, folders = everything(lab)
        search = Search({"secret": SECRET.encode()})
        found = (
            {one.what for one in search.processes(pids) + search.files(*folders)}
            if os.getuid() == 0
            else None
        )
        assert found in (None, {"environ", "memory", "file"})
    finally:
        (lab["h1"].home / "planted").unlink()
        job.communicate(b"x\n", timeout=120)
