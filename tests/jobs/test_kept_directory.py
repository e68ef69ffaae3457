"""Messages of `quine run` about the directory of a job on a host, if it is kept."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from quine.base.sessions import new_session
from tests.lab import Lab
from tests.support import waiting
from tests.support.agents import OK, says, sh, until
from tests.support.detached import detach
from tests.support.detached import go as go
from transport.job.launcher_client import Folders
from transport.launcher import workdir


def test_a_directory_that_is_kept_is_named_once(lab: Lab, tmp_path: Path) -> None:
    report = tmp_path / "report"
    words = ["run", "--on", "h1", "--report", report, "--", "sh", "-c"]
    env = {"QUINE_ROOT_SESSION": "left-1"}
    done = lab.run([*words, "pwd; echo x >kept"], env=env)
    assert (done.returncode, done.stdout) == (0, f"{lab['h1'].home}/quine/left-1\n".encode())
    assert done.stderr == b"quine: h1: files are left in ~/quine/left-1\n"
    assert json.loads(report.read_text())["left"] == "~/quine/left-1"
    done = lab.run([*words, "cat kept; exit 3"], env=env)  # nothing new is known of it
    assert (done.returncode, done.stdout, done.stderr) == (3, b"x\n", b"")
    assert json.loads(report.read_text())["left"] == ""
    done = lab.run([*words, "rm kept"], env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not (lab["h1"].home / "quine" / "left-1").exists()


@pytest.mark.parametrize("how", ["", "files", "inside"])
def test_a_detached_job_holds_it_as_long_as_it_runs(lab: Lab, go: Path, how: str) -> None:
    """Another job of the tree left it, and it was removed: it was empty, and nobody else held it.

    With files it has one of its own.
    """
    tree = new_session()
    env, place = {"QUINE_ROOT_SESSION": tree}, lab["h1"].home / "quine" / tree
    line = f"{'rm f;' * (how == 'files')} echo >started; rm started; read x <{go}; echo x >out"
    if how == "files":
        (lab.work / "f").write_text("x")
    words = ["--files=f"] if how == "files" else []
    if how == "inside":
        done = lab.run(
            ["run", "--on", "h1", "--", "quine", "run", "--detach", "--", "sh", "-c", line], env=env
        )
        assert done.returncode == 0, done.stderr
        job = done.stdout.decode().strip()
    else:
        job = detach(lab, "--on", "h1", *words, "--", "sh", "-c", line, env=env)
    lab.run(["run", "--on", "h1", "--", "true"], env=env, check=True)
    fd = os.open(go, os.O_RDWR)
    os.write(fd, b"\n")
    os.close(fd)
    assert lab.run(["wait", "--on", "h1", job]).returncode == 0
    place = place.parent / job if how == "files" else place
    assert (place / "out").read_text() == "x\n"
    if how == "files":
        shutil.rmtree(place)
        return
    job = detach(lab, "--on", "h1", "--", "rm", "out", env=env)
    assert lab.run(["wait", "--on", "h1", job]).returncode == 0
    waiting.until(lambda: not place.exists(), "the last one has removed it")


def test_a_job_that_failed_or_died_names_it_too(lab: Lab) -> None:
    for end, code in (("exit 3", 3), ("kill -USR1 $$", -10)):
        done = lab.run(["run", "--on", "h1", "--", "sh", "-c", f"echo x >kept; {end}"])
        assert done.returncode == code
        assert (
            done.stderr.startswith(b"quine: h1: files are left in ~/quine/") and done.stderr.count(b"\n") == 1
        )


def test_many_jobs_of_one_directory_name_it_once(lab: Lab) -> None:
    done = lab.sh(
        "seq 8 | xargs -P 8 -I{} quine run --on h1 -- sh -c 'echo >{}; until test -e 1 -a -e 8; do sleep 0.01; done'",
        env={"QUINE_ROOT_SESSION": "left-2"},
    )
    assert (done.returncode, done.stderr) == (0, b"quine: h1: files are left in ~/quine/left-2\n")


def test_nothing_is_said_where_the_user_knows_or_wants_silence(lab: Lab) -> None:
    (lab.work / "src").write_bytes(b"data")
    for words in (["-q"], ["--cwd", "~"], ["--cwd", lab["h1"].home], ["--files", "src"], ["--detach"]):
        done = lab.run(["run", "--on", "h1", *words, "--", "sh", "-c", "echo >kept"])
        assert done.returncode == 0 and b"left in" not in done.stderr, words


def test_a_directory_with_a_process_that_the_command_has_left_stays_as_long_as_that(
    lab: Lab, tmp_path: Path
) -> None:
    """It was empty when the command ended, and the output of the process was lost with it."""
    go = tmp_path / "go"
    line = f"pwd; (until test -e {go}; do sleep 0.01; done; $0) >/dev/null 2>&1 &"
    for end, stays in (("touch kept", True), ("true", False)):
        done = lab.run(["run", "--on", "h1", "--", "sh", "-c", line.replace("$0", end)])
        place = Path(done.stdout.decode().strip())
        assert (done.returncode, done.stderr) == (
            0,
            f"quine: h1: files are left in ~/quine/{place.name}\n".encode(),
        )
        assert place.exists()
        go.touch()
        until((place / "kept").exists if stays else lambda: not place.exists())  # noqa: B023
        go.unlink()


def test_an_agent_names_it_too(lab: Lab, tmp_path: Path) -> None:
    env = {**lab.script([says(sh("echo >kept")), says(OK)], "left.jsonl"), "QUINE_DATA_DIR": str(tmp_path)}
    done = lab.run(["--on", "h1", "a mission"], env=env)
    assert done.returncode == 0
    assert done.stderr.startswith(b"quine: h1: files are left in ~/quine/") and done.stderr.count(b"\n") == 1


def enter(folders: Folders, path: Path) -> None:
    """As a child does it, and its node."""
    folders.join(str(path))
    fd = workdir.enter(str(path))
    folders.enter(str(path), fd, workdir.is_empty(fd))


def leave(folders: Folders, path: Path) -> bool:
    """As a node does it, and its launcher."""
    fd, empty = folders.leave(str(path))
    return fd >= 0 and workdir.leave(str(path), fd) == workdir.KEPT and empty


def test_a_folder_is_said_to_be_kept_by_the_last_of_those_for_whom_it_was_empty(tmp_path: Path) -> None:
    folders, path = Folders(), tmp_path / "tree"
    enter(folders, path)
    enter(folders, path)
    (path / "file").touch()
    assert not leave(folders, path)
    assert leave(folders, path)
    enter(folders, path)
    assert not leave(folders, path)
    enter(folders, path)
    (path / "file").unlink()
    assert not leave(folders, path) and not path.exists()


def test_a_folder_that_another_node_holds_is_not_said_to_be_kept(tmp_path: Path) -> None:
    folders, path = Folders(), tmp_path / "tree"
    enter(folders, path)
    other = workdir.enter(str(path))
    (path / "file").touch()
    assert not leave(folders, path)
    assert workdir.leave(str(path), other) == workdir.KEPT


def test_of_jobs_that_start_together_any_may_have_found_it_empty(tmp_path: Path) -> None:
    """Their news are heard of in any order: the one that came second may have seen what the first had made."""
    folders, path = Folders(), str(tmp_path / "tree")
    for _ in range(2):
        folders.join(path)
    first, second = workdir.enter(path), workdir.enter(path)
    folders.enter(path, second, False)
    folders.enter(path, first, True)
    (tmp_path / "tree" / "file").touch()
    assert folders.leave(path) == (-1, False)
    fd, empty = folders.leave(path)
    assert empty and workdir.leave(path, fd) == workdir.KEPT


def test_a_job_that_is_being_started_is_not_left_out(tmp_path: Path) -> None:
    """It holds the lock before its news come: to the last of the others the folder was held, to itself it was full."""
    folders, path = Folders(), tmp_path / "tree"
    enter(folders, path)
    (path / "file").touch()
    folders.join(str(path))  # ordered
    late = workdir.enter(str(path))
    assert not leave(folders, path)
    folders.enter(str(path), late, False)
    assert leave(folders, path)


def test_a_job_that_is_ordered_as_the_last_one_leaves_says_it_in_its_place(tmp_path: Path) -> None:
    folders, path = Folders(), tmp_path / "tree"
    enter(folders, path)
    (path / "file").touch()
    fd, empty = folders.leave(str(path))
    enter(folders, path)
    assert workdir.leave(str(path), fd) == workdir.HELD and empty
    folders.was_empty(str(path))
    assert leave(folders, path)
    folders.was_empty(str(path))  # that of another node: nothing of ours is there


def test_a_start_that_failed_before_it_came_there_leaves_nothing_to_remove(tmp_path: Path) -> None:
    folders, path = Folders(), tmp_path / "tree"
    folders.join(str(path))
    assert folders.leave(str(path)) == (-1, False)
    enter(folders, path)
    assert not leave(folders, path) and not path.exists()
