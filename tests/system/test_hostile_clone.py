"""In a directory that somebody else has filled, no verb reads, writes or runs what it leads to."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.support.agents import OK, says

HUGE = 20 << 30  # bytes, all of them a hole
ID = "01a2095f-e397-79a8-b878-b5f246be26d7"


def outer_link(clone: Path) -> None:
    (clone / ".quine").symlink_to("..")


def inner_link(clone: Path) -> None:
    (clone / ".quine").mkdir()
    (clone / ".quine" / "fs").symlink_to("../..")


def tracked(clone: Path) -> None:
    (clone / ".quine" / "fs").mkdir(parents=True)
    (clone / ".quine" / "fs" / "planted").write_text("planted")
    (clone / ".quine" / f"{ID}.jsonl").write_text('{"type": "planted"}\n')
    for words in ("init -q", "add -f .", "-c user.name=x -c user.email=x@x commit -qm all"):
        subprocess.run(["git", *words.split()], cwd=clone, check=True, capture_output=True)


def open_to_all(clone: Path) -> None:
    (clone / ".quine" / "fs").mkdir(parents=True)
    (clone / ".quine" / "fs" / "planted").write_text("planted")
    (clone / ".quine").chmod(0o777)


def link_to_a_file(clone: Path) -> None:
    (clone / ".quine").symlink_to("../secret")


def pipe(clone: Path) -> None:
    os.mkfifo(clone / ".quine")


def inner_pipe(clone: Path) -> None:
    """In the place of the shared files, and of a tape."""
    (clone / ".quine").mkdir()
    for name in ("fs", f"{ID}.jsonl"):
        os.mkfifo(clone / ".quine" / name)
    (clone / ".quine").chmod(0o777)


def planted(clone: Path) -> None:
    (clone / ".quine" / "fs").mkdir(parents=True)
    (clone / ".quine" / "fs" / "planted").write_text("planted")
    (clone / ".quine" / f"{ID}.jsonl").write_text('{"type":"meta","data":{"mission":"planted"}}\n')


def pipe_for_git(clone: Path) -> None:
    planted(clone)
    os.mkfifo(clone / ".git")


def pipe_for_the_index(clone: Path) -> None:
    planted(clone)
    (clone / ".git").mkdir()
    os.mkfifo(clone / ".git" / "index")


def hole_for_the_index(clone: Path) -> None:
    planted(clone)
    (clone / ".git").mkdir()
    (clone / ".git" / "index").touch()
    os.truncate(clone / ".git" / "index", HUGE)


def device_for_git(clone: Path) -> None:
    planted(clone)
    (clone / ".git").write_text("gitdir: /dev/zero")


def directory_for_the_mark(clone: Path) -> None:
    planted(clone)
    (clone / ".quine" / ".mark").mkdir()


def of_another_user(clone: Path) -> None:
    if os.getuid():
        pytest.skip("needs root to give files away")
    open_to_all(clone)
    (clone / ".quine").chmod(0o755)
    for path in (clone / ".quine", *(clone / ".quine").rglob("*")):
        os.chown(path, 65534, -1)


FILLS = [
    outer_link, inner_link, link_to_a_file, tracked, open_to_all, pipe, inner_pipe, of_another_user, pipe_for_git,
    pipe_for_the_index, hole_for_the_index, device_for_git, directory_for_the_mark,
]  # fmt: skip


@pytest.mark.parametrize("fill", FILLS)
def test_a_data_directory_of_somebody_else(lab: Lab, tmp_path: Path, fill: Callable[[Path], None]) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / f"{ID}.jsonl").write_text('{"type": "secret"}\n')
    fill(clone)
    script = lab.script([says(OK)], "clone.jsonl")
    for words in (
        "fs ls", "fs cat secret", "fs cat planted", "fs put - new", "fs get -r . out", "tape ls", f"tape show {ID}",
        "ps", f"logs {ID}", f"wait {ID}", "mission one", "--on h1 mission one",
    ):  # fmt: skip
        done = lab.run(words.split(), cwd=clone, input=b"new", env=script)
        said = done.stderr.decode()
        assert done.returncode == 2, (words, done)
        assert "quine: error: the " in said and ".quine" in said and "quine: hint: " in said, (words, said)
        assert b"secret" not in done.stdout and b"planted" not in done.stdout, words
    for words in (
        "quine fs cat secret",
        "quine fs cat planted",
        "quine fs ls",
        "echo new | quine fs put - new",
    ):
        done = lab.run(["run", "--on", "h1", "--", "sh", "-c", words], cwd=clone)
        assert done.returncode not in (0, 70) and done.stdout == b"", (words, done)
        assert b"defect" not in done.stderr, (words, done)
    assert lab.run(["run", "--on", "h1", "--", "echo", "x"], cwd=clone, check=True).stdout == b"x\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{ID}.jsonl", "clone", "secret"]
    assert not (clone / "out").exists() and not list(clone.rglob("new"))


def test_ones_own_data_directory_goes_on(lab: Lab, tmp_path: Path) -> None:
    """One of an older build, without a mark: it is taken, which is said once."""
    script = lab.script([says(OK)], "own.jsonl")
    (tmp_path / ".quine" / "fs").mkdir(parents=True)
    (tmp_path / ".quine" / "fs" / "kept").write_text("kept")
    done = lab.run(["fs", "cat", "kept"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"kept"), done
    assert b"is taken for your data directory from now on" in done.stderr
    done = lab.run(["run", "--on", "h1", "--", "quine", "fs", "cat", "kept"], cwd=tmp_path, check=True)
    assert (done.stdout, done.stderr) == (b"kept", b"")
    done = lab.run(["mission", "one"], cwd=tmp_path, env=script, check=True)
    assert done.stderr == b""
    (tape,) = (tmp_path / ".quine").glob("*.jsonl")
    assert json.loads(tape.read_text().splitlines()[0])["type"] == "meta"
