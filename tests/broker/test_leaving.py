"""An agent leaves its keys by an exec: the same process goes on with no secret in its memory or environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.serving import BYE, FIRST, Careless, Served, said
from tests.support.agents import QUINE, Started
from tests.support.detached import go as go
from tests.support.waiting import until, wait_for
from tests.system.canary import Search
from tests.vendors.server import KEY
from transport.address import start_time
from transport.this_build import PACKAGES, ROOT

TOKEN = "ghp_canary-0a1b2c3d4e5f"
PASSWORD = "pw-canary-6f7a8b"
SECRETS = {
    "GITHUB_TOKEN": TOKEN,
    "COPY": f"https://me:{KEY}@host",
    "DATABASE_URL": f"postgres://ada:{PASSWORD}@db/x",
}
SEARCH = Search({"key": KEY.encode(), "token": TOKEN.encode(), "password": PASSWORD.encode()})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


def holding(served: Served, go: Path) -> None:
    """Let the agent say that it is there, and wait."""
    served.plan[FIRST] = [said(f"echo $PPID >{served.directory}/there; read x <{go}; cat <&3 >&4"), BYE]


@pytest.mark.skipif(os.getuid() != 0, reason="reads the memory of other processes")
def test_the_same_process_without_its_secrets(served: Served, tmp_path: Path, go: Path) -> None:
    """Pid, start, argv and descriptors are those of the process that was started, and stdin is not read before.

    A secret lies in no memory, environment or memory file of it; and the search does find what is there.
    """
    holding(served, go)
    report, theirs = os.pipe()
    words = [*QUINE, "--report", str(theirs), "--", FIRST]
    env = {**served.env, **SECRETS}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        with Started(words, cwd=tmp_path, env=env, pass_fds=[theirs], **pipes) as agent:  # type: ignore[call-overload]
            assert agent.stdin
            begun = start_time(agent.pid)
            wait_for(tmp_path / "there")
            until((tmp_path / "there").read_text, "the pid of the agent")
            assert (tmp_path / "there").read_text() == f"{agent.pid}\n" and start_time(agent.pid) == begun
            shown = Path(f"/proc/{agent.pid}/cmdline").read_bytes().split(b"\0")
            assert shown[-5:] == [*(word.encode() for word in words[-4:]), b""]
            before = SEARCH.bytes
            assert SEARCH.processes([agent.pid]) == [] and SEARCH.bytes > before + (1 << 20)
            assert SEARCH.processes(served.brokers()[:1]) != []
            agent.stdin.write(b"material\n")
            go.write_text("\n")
            out, err = agent.communicate(timeout=120)
        assert (agent.returncode, out, err) == (0, b"material\n", b"")
        assert json.loads(os.read(report, 65536))["pid"] == agent.pid
    finally:
        for fd in (report, theirs):
            os.close(fd)


@pytest.mark.parametrize(
    "key", ["12345678", "0123456789", "0123456789abcdef", "sk-ant-0123456789abcdef0123456789abcdef", "x"]
)
def test_any_text_is_a_key(served: Served, key: str) -> None:
    """A text that stands in the program, too, as `0123456789abcdef` does; and the mission comes from stdin."""
    served.provider.vendor = Careless(served.provider.vendor)
    served.env["QUINE_API_KEY"] = key
    done = served._end(["-f", "-"], FIRST.encode())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hi\n", b"")
    assert {seen.headers["authorization"] for seen in served.provider.requests} == {f"Bearer {key}"}


@pytest.mark.parametrize("way", ["script", "one file"])
def test_it_goes_on_as_the_program_that_was_started(served: Served, tmp_path: Path, way: str) -> None:
    """As the console script, by its own name; and as the one file of hosts, a directory once it is unpacked."""
    script, lib = Path(sys.executable).with_name("quine"), tmp_path / "lib"
    lib.mkdir()
    for package in PACKAGES:
        (lib / package).symlink_to(Path(ROOT, package))
    shutil.copy(Path(ROOT, "quine", "one_file.py"), lib / "__main__.py")
    words = {"script": [str(script)], "one file": [sys.executable, str(lib)]}[way]
    served.plan[FIRST] = [said("cat /proc/$PPID/comm >&4; tr '\\0' ' ' </proc/$PPID/cmdline >&4"), BYE]
    done = subprocess.run([*words, FIRST], cwd=tmp_path, env=served.env, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    name, shown = done.stdout.decode().splitlines()
    started = f"{sys.executable} {script}" if way == "script" else f"{sys.executable} {lib}"
    assert shown == f"{started} {FIRST} " and (name == "quine") is (way == "script")


def test_secrets_of_any_name_are_masked_and_named_and_in_no_command(served: Served) -> None:
    served.plan[FIRST] = [said(f"env | grep -c -e canary -e {KEY}; echo {TOKEN} {KEY}"), BYE]
    done = served.run(mission=FIRST, env=SECRETS)
    assert done.returncode == 0, done.stderr
    (result,) = served.results(FIRST)
    assert "0\n<secret> <secret>" in result
    text = "".join(path.read_text() for path in served.data.glob("*.jsonl"))
    assert TOKEN not in text and PASSWORD not in text
    first = next(entry["data"] for entry in served.tape(FIRST) if entry["data"].get("role") == "user")
    assert 'they hold secrets: ["COPY", "DATABASE_URL", "GITHUB_TOKEN"]' in first["content"]


def test_a_nested_agent_with_a_key_of_its_own_is_of_its_tree(served: Served) -> None:
    """Also where it has lost the memo of the agent above it."""
    names = [name for name in served.env if name.startswith(("QUINE_", "XDG_RUNTIME_DIR", "PATH"))]
    inner = f"QUINE_API_KEY={KEY} {' '.join(QUINE)} inner-errand"
    served.plan[FIRST] = [
        said(f"{inner}; env -i {' '.join(f'{name}=${name}' for name in names)} {inner}"),
        BYE,
    ]
    done = served.run(mission=FIRST)
    assert done.returncode == 0, done.stderr
    metas = [json.loads(tape.read_text().partition("\n")[0])["data"] for tape in served.data.glob("*.jsonl")]
    (root,) = {meta["root_session_id"] for meta in metas}
    parents = sorted(meta["parent_session_id"] or "" for meta in metas)
    assert parents == ["", root, root]


def test_settings_that_name_no_guest_are_told_as_ever(served: Served) -> None:
    done = served.run(mission=FIRST, env={"QUINE_API_TYPE": "nonsense"})
    assert done.returncode == 2 and b"QUINE_API_TYPE must be one of" in done.stderr
