"""Jobs of one tree on one host, with different files under one name: each has its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base.sessions import new_session
from quine.fanout.agents import AgentStarter
from quine.fanout.input.items import Item
from quine.fanout.input.rows import Row
from quine.fanout.main import template
from quine.fanout.options import parse
from quine.fanout.starter import Starter
from quine.fanout.tasks import Work
from tests.lab import Lab
from tests.support.agents import OK, PATIENCE, call, says, sh
from tests.support.detached import detach, go, record
from tests.support.remote_agents import environment
from tests.support.waiting import until
from transport.errors import ProtocolError
from transport.job import order
from transport.node import hosts
from transport.spawn import Spawn, Template

__all__ = ["go"]

ROOT = "0123456789abcdef0123456789abcdef"


def two(work: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        (work / name).mkdir()
        (work / name / "in.csv").write_text(name)
    return work / "a", work / "b"


def test_commands_of_one_agent_have_directories_of_their_own(lab: Lab, tmp_path: Path) -> None:
    """They shared that of their tree: the first one read the file of the second one, and both were done."""
    a, b = two(tmp_path)
    up, go = tmp_path / "up", tmp_path / "go"
    script = f"touch {up}; until test -e {go}; do sleep 0.02; done; cat in.csv; cp in.csv out"
    words = ["run", "--on", "h1", "--files", "in.csv", "--returns", "out", "--", "sh", "-c"]
    env = {"QUINE_ROOT_SESSION": ROOT}
    first = lab.popen([*words, script], cwd=a, env=env, stdout=subprocess.PIPE)
    script = f"until test -e {up}; do sleep 0.02; done; cat in.csv; cp in.csv out; touch {go}"
    done = lab.run([*words, script], cwd=b, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"b", b"")
    assert first.communicate(timeout=PATIENCE)[0] == b"a"
    assert ((a / "out").read_text(), (b / "out").read_text()) == ("a", "b")


def test_batches_of_one_agent_have_directories_of_their_own(lab: Lab, tmp_path: Path, go: Path) -> None:
    """The first one read the files of the second one, which removed them at its end."""
    a, b = two(tmp_path)
    up, env = tmp_path / "up", {"QUINE_ROOT_SESSION": new_session()}
    words = ["xargs", "--on", "h1", "--cleanup", "--files", "in.csv", "--returns", "out", "--", "sh", "-c"]
    running = lab.popen([*words, f"touch {up}; read x <{go}; cp in.csv out", ":::", "1"], cwd=a, env=env)
    until(lambda: up.exists() or running.poll() is not None, "it has begun")
    done = lab.run([*words, "cp in.csv out", ":::", "1"], cwd=b, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    go.write_text("\n")
    assert running.wait(PATIENCE) == 0
    assert ((a / "out").read_text(), (b / "out").read_text()) == ("a", "b")
    assert not (lab["h1"].home / "quine" / env["QUINE_ROOT_SESSION"]).exists()


@pytest.mark.parametrize(
    ("words", "apart"), [([], False), (["--files", "f"], True), (["--returns", "f", "--cwd", "/w"], False)]
)
def test_jobs_of_a_batch_with_files_have_one_directory_on_a_host(words: list[str], apart: bool) -> None:
    options, command, _ = parse(["--on", "h1", *words, "--", "echo"])
    work = Work(options, template(options, command), command)
    crowd: Any = SimpleNamespace(left=None, agent=lambda *_: (Spawn(["x"], tree=ROOT), None, []))
    sink: Any = SimpleNamespace(say=print)
    none: Any = None
    agents = AgentStarter(options, none, work, sink, none, crowd)
    for starter in (Starter(options, none, work, sink, none), agents):
        folders = set()
        for _ in range(2):
            spawn, services, _ = starter.make(work.task(Item(Row(("a",)), 1)), [])
            folders.add(spawn.folder)
            if services:
                services.close()
        assert len(folders) == 1 and any(folders) == apart


def test_detached_commands_of_one_agent_have_directories_of_their_own(
    lab: Lab, tmp_path: Path, go: Path
) -> None:
    a, b = two(tmp_path)
    env = {"QUINE_ROOT_SESSION": new_session()}
    script = f"read x <{go}; cp in.csv out"
    words = ["--on", "h1", "--files", "in.csv", "--", "sh", "-c", script]
    jobs = [detach(lab, *words, cwd=each, env=env) for each in (a, b)]
    go.write_text("\n\n")
    for job, each in zip(jobs, (a, b), strict=True):
        assert Path(record(job, lab["h1"].home)["cwd"]).name == job
        done = lab.run(["wait", "--returns", "out", job], cwd=each, env=env)
        assert (done.returncode, done.stderr) == (0, b"")
    assert ((a / "out").read_text(), (b / "out").read_text()) == ("a", "b")


def test_detached_commands_that_one_job_starts_have_directories_of_their_own(
    lab: Lab, tmp_path: Path, go: Path
) -> None:
    lab.alias("n1", "h1", may_fork=["n2"])
    lab.alias("n2", "h2")
    two(tmp_path)
    detaching = "quine run --detach --on n2 --files in.csv -- sh -c"
    script = f"for x in a b; do (cd {tmp_path}/$x; {detaching} 'read x <{go}; cat in.csv'); done"
    done = lab.run(["run", "--on", "n1", "--", "sh", "-c", script])
    assert (done.returncode, done.stderr) == (0, b"")
    go.write_text("\n\n")
    jobs = done.stdout.decode().split()
    assert lab.run(["wait", "--on", "h2", *jobs]).returncode == 0
    assert [lab.run(["logs", "--on", "h2", job]).stdout for job in jobs] == [b"a", b"b"]


def test_children_of_one_agent_have_directories_of_their_own(lab: Lab, tmp_path: Path) -> None:
    two(tmp_path)
    up, go = tmp_path / "up", tmp_path / "go"
    children = [
        {"intent": name, "host": "h1", "files": [f"{name}/in.csv:in.csv"], "returns": [f"{name}.out"]}
        for name in ("a", "b")
    ]
    fork = call("fork", children=children, wait=True, context="none")
    first = sh(f"touch {up}; until test -e {go}; do sleep 0.02; done; cp in.csv a.out")
    second = sh(f"until test -e {up}; do sleep 0.02; done; cp in.csv b.out; touch {go}")
    env = environment(lab, tmp_path / "data",
        says(fork, OK, match="^parent"), says(first, OK, match="^a"), says(second, OK, match="^b"))  # fmt: skip
    done = lab.run(["parent"], env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [(tmp_path / f"{name}.out").read_text() for name in ("a", "b")] == ["a", "b"]


def test_a_folder_that_a_host_names_is_one_of_its_own_tree() -> None:
    assert hosts._folder("tree", "x") == hosts._folder("tree", "x")
    assert len({hosts._folder(*pair) for pair in (("tree", "x"), ("tree", "y"), ("other", "x"))}) == 3
    spawn = Spawn(["true"], workdir="/w", tree="tree", folder="apart")
    assert order._directory(spawn) == ("/w/apart/", "/w/apart")
    assert order._directory(Spawn(["true"], workdir="/w", tree="tree"))[1] == "/w/tree"
    assert Spawn.from_json(spawn.to_json()).folder == "apart" and "folder" not in Spawn(["true"]).to_json()
    for fields in (spawn.shared_fields(), Spawn(["true"]).shared_fields()):
        template = Template.from_json(fields)
        assert template.fits(Spawn.from_json({"id": "x", "argv": ["x"], **fields}))
    assert not Template.of(spawn).fits(Spawn(["true"], workdir="/w", tree="tree"))
    for wrong in ("../x", "a/b", ".", "x" * 65):
        with pytest.raises(ProtocolError):
            Spawn.from_json({**spawn.to_json(), "folder": wrong})
