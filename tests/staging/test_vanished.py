"""Files named for a job that vanish before they are sent: nothing is started, and the message names them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quine.staging import scan
from quine.staging.source import Tree
from tests.lab import Lab
from tests.staging.wired import bring, stage
from tests.staging.wired import cache as cache
from tests.staging.wired import here as here
from tests.support.agents import OK, call, says
from tests.support.remote_agents import environment, results, tapes
from tests.support.trees import there as there
from tests.support.trees import work as work
from transport.errors import RequestError

GONE = "vanished before it was sent"


def lose(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Remove the file before the first look at the named files."""
    take = scan.scan

    def taken(*args: object, **more: object) -> scan.Scan:
        if more.get("whole"):  # not a look of the side that lays out
            path.unlink(missing_ok=True)
        return take(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(scan, "scan", taken)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("files", [["d"], ["f"], ["f", "d/a"], ["f", "d"], ["d/*"]], ids=" ".join)
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_a_name_that_is_gone_is_an_error(
    here: Path, empty: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], again: bool
) -> None:
    """The error comes also if all the files were sent before and are on the host."""
    (here / "d").mkdir()
    for name in ("f", "d/a", "d/b"):
        (here / name).write_text(name)
    if again:
        stage(here, empty, *files)
        before = sorted(empty.rglob("*"))
    victim = here / files[-1].replace("*", "b")
    find = Tree.__init__

    def late(tree: Tree, *args: object) -> None:
        if victim.exists():
            shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
        find(tree, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Tree, "__init__", late)
    with pytest.raises(RequestError, match=f"{victim}: {GONE}"):
        stage(here, empty, *files)
    assert sorted(empty.rglob("*")) == (before if again else [])


def test_a_file_that_goes_away_while_its_directory_is_read_is_an_error(
    here: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every later look is at a directory without it."""
    (here / "d").mkdir()
    for name in ("a", "b"):
        (here / "d" / name).write_text(name)
    build = Tree._build

    def late(tree: Tree, found: scan.Scan, record: scan.Record) -> bool:
        (here / "d" / "a").unlink(missing_ok=True)
        return build(tree, found, record)

    monkeypatch.setattr(Tree, "_build", late)
    with pytest.raises(RequestError, match=f"d/a: {GONE}"):
        stage(here, empty, "d")
    assert list(empty.iterdir()) == []


def test_a_name_in_a_listing_is_there_or_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is renamed all the time would else be found under neither name."""
    (here / "a").write_text("a")
    monkeypatch.setattr(os, "listdir", lambda fd: ["a", "gone"])
    with pytest.raises(FileNotFoundError, match=GONE) as caught:
        scan.scan([(os.fsencode(here), b"")], whole=True)
    assert caught.value.filename == os.fsencode(here / "gone")
    monkeypatch.setattr(os, "listdir", lambda fd: ["a", ".quine-aside-1"])
    assert scan.scan([(os.fsencode(here), b"")], whole=True).names == [b"a"], "a name in use is left out"


def test_a_file_that_is_away_for_a_moment_is_sent(
    here: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a").write_text("a")
    find, times = Tree.__init__, [0]

    def late(tree: Tree, *args: object) -> None:
        times[0] += 1
        if times[0] == 1:
            (here / "a").rename(here / "aside")
        try:
            find(tree, *args)  # type: ignore[arg-type]
        finally:
            if times[0] == 1:
                (here / "aside").rename(here / "a")

    monkeypatch.setattr(Tree, "__init__", late)
    stage(here, empty, "a")
    assert (empty / "a").read_text() == "a"


def test_what_is_to_come_back_and_goes_away_meanwhile_is_missing(
    here: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (empty / name).write_text(name)
    lose(monkeypatch, empty / "a")
    assert bring(here, empty, "a", "b") == ("", ["a"])
    assert [path.name for path in here.iterdir()] == ["b"]


# ------------------------------------------------------------------------------------------ as processes

# quine, which loses a file after it has looked for it so often
LOSE = """
import os, shutil, sys
from quine import __main__
from quine.staging import spec

times, victim = int(sys.argv[1]), sys.argv[2]
sources = spec.sources

def late(*args):
    global times
    found = sources(*args)
    times -= 1
    if not times:
        shutil.rmtree(victim) if os.path.isdir(victim) else os.unlink(victim)
    return found

spec.sources = late
sys.argv[:3] = ["quine"]
sys.exit(__main__.main())
"""


def losing(
    lab: Lab, times: int, victim: Path, *words: str | Path, **env: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-c", LOSE, str(times), victim, *words]
    return subprocess.run(
        command, cwd=victim.parent, env=lab.overlaid(env), capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("detach", "victim"), [([], "src"), (["--detach"], "Makefile")], ids=["run", "detach"]
)
def test_a_job_whose_files_are_gone_is_not_started(
    lab: Lab, work: Path, there: Path, victim: str, detach: list[str]
) -> None:
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    words = ["run", *detach, "--on", "h1", "--cwd", there, "--files", "src", "--files", "Makefile", "--"]
    done = losing(lab, 1, work / victim, *words, "touch", "started")
    assert (done.returncode, done.stdout) == (69, b"")
    assert f"the files cannot be staged: {work / victim}: {GONE}" in done.stderr.decode()
    assert done.stderr.count(b"error") == 1
    assert list(there.iterdir()) == []


def test_a_child_whose_files_are_gone_is_not_started(lab: Lab, work: Path, tmp_path: Path) -> None:
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    made = call("fork", intent="child", host="h1", wait=True, context="none", files=["src", "Makefile"])
    env = environment(lab, tmp_path / "data", says(made, OK, match="^parent"), says(OK, match="^child"))
    done = losing(lab, 2, work / "src", "parent", **env)
    assert done.returncode == 0, done.stderr
    assert "[EXIT CODE] 69" in results(tmp_path / "data", "parent")[0]
    assert f"{work / 'src'}: {GONE}" in results(tmp_path / "data", "parent")[0]
    assert "child" not in tapes(tmp_path / "data")
