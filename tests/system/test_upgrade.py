"""Two builds side by side, as after an upgrade: the newer one lists, reads, waits for and ends jobs of the older one.

Law: the newer build deploys itself and starts nodes of its own, here and there, and harms nothing of the older one.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.there.installer import KEPT
from tests.lab import Lab
from tests.lab.lab import ROOT, TIMEOUT
from transport.wire.frames import VERSION


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources that is another build, and speaks another version of the protocol between nodes."""
    root = tmp_path_factory.mktemp("newer")
    for package in ("quine", "transport", "deploy"):
        shutil.copytree(ROOT / package, root / package)  # with what is compiled, which is valid there, too
    frames = root / "transport" / "wire" / "frames.py"
    text = frames.read_text()
    assert text.count(f"\nVERSION = {VERSION}\n") == 1
    frames.write_text(text.replace(f"\nVERSION = {VERSION}\n", f"\nVERSION = {VERSION + 1}\n"))
    return root


class Quine:
    """Runs commands of the build whose sources are in `root`, at the origin of a lab."""

    def __init__(self, lab: Lab, root: Path) -> None:
        self.argv = [sys.executable, "-P", "-m", "quine"]
        self.env = lab.overlaid({"PYTHONPATH": str(root)})
        self._cwd = lab.work

    def __call__(self, *words: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.argv, *words],
            input=input,
            capture_output=True,
            env=self.env,
            cwd=self._cwd,
            timeout=TIMEOUT,
            check=False,
        )


@pytest.fixture
def upgraded(lab: Lab, newer: Path) -> Iterator[Quine]:
    yield Quine(lab, newer)
    lab.stop_nodes()  # other tests know one node on each machine


def flags(where: str) -> list[str]:
    return ["--on", where] if where else []


def facts(done: subprocess.CompletedProcess[bytes]) -> dict[str, dict[str, Any]]:
    """Return the lines of ps --json by id."""
    assert (done.returncode, done.stderr) == (0, b""), done
    return {fact["id"]: fact for fact in map(json.loads, done.stdout.splitlines())}


@contextmanager
def echoing(lab: Lab, where: str, of: Quine | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """An attached job, else of the older build, that has written a line, and lives until its stdin ends."""
    argv, env = (of.argv, of.env) if of else ([lab.quine], lab.env)
    words = [*argv, "run", "--on", where or "local", "--", "cat"]
    job = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=lab.work)
    assert job.stdin and job.stdout
    try:
        job.stdin.write(b"one\n")
        job.stdin.flush()
        assert job.stdout.readline() == b"one\n"
        yield job
    finally:
        job.terminate()
        job.communicate(timeout=TIMEOUT)


def detached(lab: Lab, where: str, *words: str) -> str:
    done = lab.run(["run", *flags(where), "--detach", *words], check=True)
    return done.stdout.decode().strip()


@pytest.mark.long
@pytest.mark.parametrize("where", ["h1", ""])
def test_a_detached_job(lab: Lab, upgraded: Quine, where: str) -> None:
    """Listed, read, given its stdin, waited for; and the older build reads the record, too."""
    script = "echo begun; read line; echo got $line; exit 7"
    job = detached(lab, where, "--stdin", "--", "sh", "-c", script)
    listed = facts(upgraded("ps", *flags(where), "--json"))[job]
    assert (listed["state"], listed["kind"], listed["host"]) == ("running", "detached", where or "local")
    assert upgraded("wait", *flags(where), "--timeout", "0.01", job).returncode == 124
    attached = upgraded("attach", *flags(where), "--stdin", job, input=b"a line\n")
    assert (attached.returncode, attached.stdout) == (7, b"begun\ngot a line\n"), attached
    assert upgraded("logs", *flags(where), job).stdout == b"begun\ngot a line\n"
    for run in (upgraded, lambda *words: lab.run(words)):
        waited = run("wait", *flags(where), job)
        assert (waited.returncode, waited.stderr) == (7, b""), waited


@pytest.mark.whole
@pytest.mark.long
def test_without_the_host_being_named(lab: Lab, upgraded: Quine) -> None:
    """All hosts of the inventory are asked, by nodes of the newer build."""
    job = detached(lab, "h1", "--", "sh", "-c", "echo here; exit 3")
    assert upgraded("wait", job).returncode == 3
    assert upgraded("logs", job).stdout == b"here\n"


@pytest.mark.long
@pytest.mark.parametrize("where", ["h1", ""])
def test_an_attached_job_runs_on(lab: Lab, upgraded: Quine, where: str) -> None:
    """Its node and that of the newer build serve side by side."""
    with echoing(lab, where) as job:
        assert upgraded("deploy", "h1").returncode == 0
        done = upgraded("run", *flags(where or "local"), "--", "echo", "newer")
        assert (done.returncode, done.stdout) == (0, b"newer\n"), done
        assert "cat" in {fact["mission"] for fact in facts(upgraded("ps", "--json")).values()}
        if where:
            assert "cat" in {
                fact["mission"] for fact in facts(upgraded("ps", "--on", where, "--json")).values()
            }
        out, _ = job.communicate(b"two\n", timeout=TIMEOUT)
        assert (job.returncode, out) == (0, b"two\n")


def test_two_builds_side_by_side(lab: Lab, upgraded: Quine) -> None:
    """`quine node` tells of its own build's node and stops that one alone; jobs of the older build can be killed."""
    builds = [lab.run(["--version"]).stdout, upgraded("--version").stdout]
    assert all(builds) and builds[0] != builds[1]
    lab.run(["run", "--on", "local", "--", "true"], check=True)
    assert upgraded("run", "--on", "local", "--", "true").returncode == 0
    older = json.loads(lab.run(["node", "--status", "--json"], check=True).stdout)
    assert json.loads(upgraded("node", "--status", "--json").stdout)["pid"] != older["pid"]
    assert upgraded("node", "--stop").returncode == 0
    assert json.loads(lab.run(["node", "--status", "--json"], check=True).stdout)["pid"] == older["pid"]
    refused = upgraded("node", "--stop")
    assert refused.returncode == 1 and b"no node of this build runs here" in refused.stderr
    assert re.search(rf"by kill (\d+ )*{older['pid']}\b", refused.stderr.decode()), refused.stderr
    for where in ("h1", ""):
        job = detached(lab, where, "--", "sleep", "1000")
        assert upgraded("kill", *flags(where), job).returncode == 0, where
        waited = upgraded("wait", *flags(where), job)
        assert waited.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), (where, waited)
        assert job not in facts(upgraded("ps", *flags(where), "--json")), where
        with echoing(lab, where) as attached:  # its host is not named
            listed = facts(upgraded("ps", "--json"))
            (number,) = (name for name, fact in listed.items() if fact["mission"] == "cat")
            assert upgraded("wait", "--timeout", "0.01", number).returncode == 124, where
            assert upgraded("kill", number).returncode == 0, where
            attached.communicate(timeout=TIMEOUT)
            assert attached.returncode == -signal.SIGTERM, where


@pytest.mark.whole
@pytest.mark.long
def test_sources_that_are_replaced_in_place(own_lab: Callable[..., Lab], newer: Path, tmp_path: Path) -> None:
    """As pip does it: processes of the older build run on, with the newer one's files under their names."""
    shutil.copytree(newer, tmp_path / "root", ignore=shutil.ignore_patterns("__pycache__"))
    lab = own_lab(["h1"])
    run = Quine(lab, tmp_path / "root")
    before = run("--version").stdout
    jobs = [
        run(
            "run", *flags(where), "--detach", "--stdin", "--", "sh", "-c", "read line; echo got $line; exit 7"
        )
        for where in ("h1", "")
    ]
    with echoing(lab, "h1", run) as attached:
        with open(tmp_path / "root" / "quine" / "__init__.py", "a") as file:
            file.write("# in place\n")
        assert run("--version").stdout != before
        assert "cat" in {fact["mission"] for fact in facts(run("ps", "--json")).values()}
        for job, where in zip(jobs, ("h1", ""), strict=True):
            number = job.stdout.decode().strip()
            done = run("attach", *flags(where), "--stdin", number, input=b"a line\n")
            assert (done.returncode, done.stdout) == (7, b"got a line\n"), done
        out, _ = attached.communicate(b"two\n", timeout=TIMEOUT)
        assert (attached.returncode, out) == (0, b"two\n")


@pytest.mark.long
def test_the_installation_of_a_running_job_stays(lab: Lab, newer: Path, upgraded: Quine) -> None:
    """Old installations are removed but for the newest few, and but for those in use."""
    with echoing(lab, "h2") as job:
        cache = lab["h2"].path_of(".cache/quine")
        in_use = address_of(lab, "h2")
        before, first = set(cache.iterdir()), set[Path]()
        base = (newer / "quine" / "__init__.py").read_text()
        try:
            for number in range(KEPT + 1):
                (newer / "quine" / "__init__.py").write_text(f"{base}# {number}\n")
                assert upgraded("deploy", "h2").returncode == 0
                first = first or set(cache.iterdir()) - before
        finally:
            (newer / "quine" / "__init__.py").write_text(base)
        assert (cache / in_use / "quine").exists()
        assert len(first) == 1 and not first & set(cache.iterdir()), (
            "an old one that nothing runs from has gone"
        )
        out, _ = job.communicate(b"two\n", timeout=TIMEOUT)
        assert (job.returncode, out) == (0, b"two\n")


def address_of(lab: Lab, host: str) -> str:
    """Return the name of the installation of this build there."""
    done = lab.run(["run", "--on", host, "--", "sh", "-c", "command -v quine"], check=True)
    return Path(done.stdout.decode().strip()).parent.name
