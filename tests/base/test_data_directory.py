"""Owners of data directories: one that a repository, an archive or another user brings is not the user's."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.agent.capture import Capture
from quine.agent.children import Job
from quine.agent.env import ensure_quine
from quine.base import data_directory
from quine.base.errors import Failure, Misconfigured
from quine.base.log import Log
from quine.base.sessions import job_directory, outputs_directory, tape_path
from quine.files.stores.registry import open_store
from quine.tape import courier, index, lines, registry, verify
from quine.tape.writer import FileSink
from transport.provenance import git_index
from transport.status import Status


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("QUINE_DATA_DIR", raising=False)
    monkeypatch.setattr(data_directory, "_judged", set())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def use(place: Path, make: bool = False) -> None:
    data_directory._judged.clear()  # as another process has it
    os.close(data_directory.opened(str(place), make))


def refused(place: Path, why: str) -> str:
    with pytest.raises(Misconfigured, match=why) as said:
        use(place)
    assert said.value.hint.endswith(", or name another directory with QUINE_DATA_DIR")
    return said.value.hint


def git(*words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words], check=True, capture_output=True
    )


def test_one_that_is_made_is_marked(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    use(here / ".quine", make=True)
    assert (here / ".quine").stat().st_mode & 0o777 == 0o700
    assert (here / ".quine" / ".gitignore").read_text() == "*\n"
    (here / ".quine" / "fs").symlink_to("/")  # whatever is in it: it is the user's
    use(here / ".quine")
    shutil.copytree(here / ".quine", here.parent / "copy", symlinks=True)
    use(here.parent / "copy")
    assert capfd.readouterr().err == ""


def test_one_of_today_is_marked_and_that_is_said_once(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = here / ".quine"
    (place / "jobs" / "one").mkdir(parents=True)
    use(place)
    assert "has no mark of yours yet, and is taken for your data directory" in capfd.readouterr().err
    use(place)
    assert capfd.readouterr().err == ""
    (place / ".mark").write_text("0123456789abcdef 0123456789abcdef\n")  # another user's, or a forged one
    use(place)
    assert "has no mark of yours yet" in capfd.readouterr().err


@pytest.mark.parametrize("link", ["fs", "jobs/one", "session.jsonl"])
def test_one_with_links_is_refused(here: Path, link: str) -> None:
    place = here / ".quine"
    (place / "jobs").mkdir(parents=True)
    (place / link).symlink_to("/")
    assert f"rm {place}/{link}" in refused(place, f"{link} in it is a symlink")


def test_a_link_in_its_place_is_refused(here: Path) -> None:
    (here / ".quine").symlink_to("..")
    for look in (data_directory.path, data_directory.checked):
        with pytest.raises(Misconfigured, match=r"\.quine is a symlink"):
            look({})
    # the user names it
    assert data_directory.path({"QUINE_DATA_DIR": ".quine"}) == str(here / ".quine")
    use(here / ".quine")


def test_one_that_git_tracks_behind_a_link_is_refused(here: Path) -> None:
    """A repository brings the link, and what it leads to under another name."""
    git("init", "-q")
    true = here / ".github" / "x" / "quine"
    true.mkdir(parents=True)
    (true / "a.jsonl").touch()
    (here / ".cache").symlink_to(".github/x")
    (here / "data").symlink_to(".github/x/quine")
    git("add", "-f", ".")
    for place in (here / ".cache" / "quine", here / "data"):
        assert f"git rm -r --cached {true}" in refused(place, "git tracks it")
        assert "a.jsonl" in git_index.Tracked(str(place))
        assert not (true / ".mark").exists()


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_one_that_git_tracks_is_refused(here: Path, version: str) -> None:
    place = here / ".quine"
    place.mkdir()
    (place / "a.jsonl").write_text("")
    (here / ".quickstart").write_text("")
    (here / ".quine-not").write_text("")
    git("init", "-q")
    git("update-index", "--index-version", version)
    git("add", ".quickstart", ".quine-not")
    assert not git_index.tracks(str(place))
    git("add", "-f", ".quine/a.jsonl")
    if version == "3":
        (here / "late").write_text("")
        git("add", "-N", "late")  # an entry with more flags
    git("commit", "-qm", "all")
    assert git_index.tracks(str(place)) and git_index.tracks(str(here / ".quickstart"))
    assert f"git rm -r --cached {place}" in refused(place, "git tracks it")
    git("rm", "-qr", "--cached", ".quine")
    use(place)


def test_a_work_tree_elsewhere_and_a_repository_of_sha256(here: Path) -> None:
    git("init", "-q", "--object-format=sha256", "main")
    os.chdir("main")
    (Path.cwd() / ".quine").mkdir()
    Path(".quine/a").write_text("")
    Path("b").write_text("")
    git("add", "-f", ".quine/a", "b")
    git("commit", "-qm", "all")
    git("worktree", "add", "-q", "../linked")
    for tree in ("main", "linked"):
        assert git_index.tracks(str(here / tree / ".quine")), tree
        assert not git_index.tracks(str(here / tree / "other")), tree


def test_one_of_a_split_index_is_refused_with_both_commands(here: Path) -> None:
    place = here / ".quine"
    place.mkdir()
    (place / "a").write_text("")
    git("init", "-q")
    git("add", "-f", ".quine/a")
    git("update-index", "--split-index")
    assert "git update-index --no-split-index, then git rm -r" in refused(place, "git tracks it")
    git("update-index", "--no-split-index")
    git("rm", "-qr", "--cached", ".quine")
    use(place)


def test_a_full_disk_leaves_no_part_of_a_file_and_the_next_use_mends_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place, state = here / ".quine", here.parent / "state" / "quine"
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        use(place, make=True)
    assert [*place.iterdir(), *state.glob("*")] == []
    use(place)
    assert {path.name for path in place.iterdir()} == {".gitignore", ".mark"}
    assert (place / ".gitignore").read_text() == "*\n"
    assert [path.name for path in state.iterdir()] == ["mark-secret"]


def test_a_gitignore_that_was_left_empty_is_written_and_one_of_the_user_is_not(here: Path) -> None:
    use(here / ".quine", make=True)
    ignore = here / ".quine" / ".gitignore"
    for before, after in (("", "*\n"), ("!x\n", "!x\n")):
        ignore.write_text(before)
        use(here / ".quine")
        assert ignore.read_text() == after
    ignore.unlink()
    use(here / ".quine")
    assert not ignore.exists()


@pytest.mark.parametrize("length", [0, 40])
def test_a_secret_of_which_a_part_is_left_is_made_anew(here: Path, length: int) -> None:
    secret = here.parent / "state" / "quine" / "mark-secret"
    secret.parent.mkdir(parents=True)
    secret.write_text("0" * length)
    secret.chmod(0o600)
    use(here / ".quine", make=True)
    assert len(secret.read_text()) == 64
    assert data_directory.marked_at(str(here / ".quine")) is not None
    data_directory._fleeting = b""
    assert data_directory.is_sealed(b"x", data_directory.seal(b"x")) and not data_directory._fleeting


@pytest.mark.parametrize("planted", ["directory", "pipe"])
def test_something_else_in_the_place_of_the_mark(here: Path, planted: str) -> None:
    """Verbs that read had gone on; an agent ended."""
    place = here / ".quine"
    place.mkdir()
    mark = place / ".mark"
    mark.mkdir() if planted == "directory" else os.mkfifo(mark)
    assert f"rm -r {mark}" in refused(place, "is no regular file")
    with pytest.raises(Misconfigured, match="is no regular file"):
        data_directory.checked({})


def test_an_error_of_the_system_is_no_missing_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    (here / ".quine").mkdir()
    monkeypatch.setattr(data_directory, "_links", fails)
    with pytest.raises(Misconfigured, match=r"\.quine: input/output error"):
        data_directory.checked({})


def test_names_in_a_message_are_made_harmless(here: Path) -> None:
    (here / ".quine").mkdir()
    (here / ".quine" / "a\x1b[31m\nquine: note: fake").symlink_to("/")
    hint = refused(here / ".quine", r"a\\x1b\[31m\\nquine: note: fake in it is a symlink")
    assert "\x1b" not in hint and "\n" not in hint


def test_one_that_others_can_write_is_refused(here: Path) -> None:
    use(here / ".quine", make=True)
    (here / ".quine").chmod(0o777)
    assert "chmod go-w" in refused(here / ".quine", "others can write it")


def test_a_way_that_others_can_change_is_refused_once_it_was_named(here: Path) -> None:
    (here / "open" / "data").mkdir(parents=True)
    (here / "open").chmod(0o777)
    refused(here / "open" / "data", f"bad permissions of {here}/open")
    (here / "open").chmod(0o755)
    use(here / "open" / "data")
    (here / "open").chmod(0o777)
    use(here / "open" / "data")  # it has a mark by now


def test_where_no_secret_can_be_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    use(here / ".quine", make=True)
    use(here / ".quine")
    assert not (here / ".quine" / ".mark").exists()
    assert (here / ".quine" / ".gitignore").read_text() == "*\n"
    (here / ".quine" / "fs").symlink_to("/")
    refused(here / ".quine", "fs in it is a symlink")


def test_the_shared_files_are_no_link(here: Path) -> None:
    """A clone with `.quine/fs -> ../..` made the home directory the shared files of every job."""
    place = here / ".quine"
    store = open_store("", {}, str(place))
    store.mkdir("made")
    assert [entry.path for entry in store.list("")] == ["made"]
    shutil.rmtree(place / "fs")
    (place / "fs").symlink_to("..")
    for act in (lambda: store.list(""), lambda: store.stat("x"), lambda: store.mkdir("x")):
        with pytest.raises(Misconfigured, match="fs is a symlink"):
            act()


ID = "01a2095f-e397-79a8-b878-b5f246be26d7"
FORGED = '{"code": 0, "state": "exited", "signal": "", "detail": ""}'


def _opened(place: str) -> object:
    """Open it as an agent does that writes there, and as a verb that only reads there."""
    with contextlib.suppress(Misconfigured):
        return data_directory.checked(option=place)
    data_directory._judged.clear()
    return os.close(data_directory.opened(place))


def _child(place: str) -> object:
    """Record a child that never started, and read the record, the status and the output of a job."""
    job = Job(ID, "theirs", "h1", "")
    job.status = Status("unreachable", 69)
    job.never_started(place, ID)
    found = registry.find(ID, place)
    return [one for one in found if one.directory] or registry.record(job_directory(place, ID))


def _status(place: str) -> object:
    (agent,) = registry.find(ID, place)
    return agent.end().code == 0


def _output(place: str) -> object:
    return os.close(registry.opened(job_directory(place, ID), "stdout"))


def _capture(place: str) -> object:
    capture = Capture(8, f"{outputs_directory(place, ID)}/1.stdout")
    capture.feed(b"x" * 100)
    return "the whole could not be kept" not in capture.text()


def _program(place: str) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        patch.setattr("sys.executable", "/nowhere/python")
        patch.setenv("XDG_STATE_HOME", "/dev/null/state")  # else `quine` is put there
        return ensure_quine(place)


def _tape(place: str) -> object:
    with contextlib.suppress(Failure):
        FileSink(tape_path(place, ID)).put([b"{}"])
        return True
    return index.ends(tape_path(place, ID)).first or lines.first(tape_path(place, ID))


# Each name that quine makes or reads below the data directory, with its use; "/" behind that of a directory. In the
# place of the other files it makes new ones alone, with O_EXCL: see `test_no_file_of_ours_is_created_through_a_link`.
NAMES: dict[str, tuple[Callable[[str], object], ...]] = {
    "bin/": (_opened, _program),
    "jobs/": (_opened, _child),
    "outputs/": (_opened, _capture),
    "replays/": (_opened,),
    "fs/": (lambda place: list(open_store("", {}, place).list("")),),
    f"direct-{ID}/": (lambda place: courier._make_index(f"{place}/direct-{ID}"),),
    f"jobs/{ID}/": (_child, _output),
    f"jobs/{ID}/job": (lambda place: registry.record(job_directory(place, ID)),),
    f"jobs/{ID}/status": (_status,),
    f"jobs/{ID}/stdout": (_output,),
    f"outputs/{ID}/": (_capture,),
    f"outputs/{ID}/1.stdout": (_capture,),
    f"direct-{ID}/sessions": (lambda place: courier._make_index(f"{place}/direct-{ID}"),),
    f"{ID}.jsonl": (_tape,),
    f"{ID}.log": (lambda place: Log(f"{place}/{ID}.log").write("x"),),
}


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "of another"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_in_it_is_no_link_and_no_other_users(here: Path, kind: str, name: str) -> None:
    """Git puts links into a marked directory, too. Another user's status was the end of a job."""
    if kind == "of another" and os.getuid():
        pytest.skip("only root gives files to another user")
    use(place := here / ".quine", make=True)
    theirs = here.parent / "theirs"
    if name.endswith("/"):
        shutil.copytree(_filled(place) / name, theirs, dirs_exist_ok=True)
        shutil.rmtree(place / name)
    else:
        (_filled(place) / name).rename(theirs)
    if kind == "of another":
        theirs.rename(theirs := place / name)
        os.chown(theirs, 65534, 65534)
    else:
        (place / name).symlink_to(theirs if kind == "link" else here.parent / "nowhere")
    before = _all(theirs)
    for act in NAMES[name]:
        try:
            assert not act(str(place))
        except (OSError, Misconfigured):
            continue
        assert act in (_child, _capture, _tape, _status) or name.endswith("/job"), "it was used"
    assert _all(theirs) == before and not (here.parent / "nowhere").exists()


def test_what_is_in_it_is_used(here: Path) -> None:
    """The same names, as quine has made them."""
    use(place := here / ".quine", make=True)
    _filled(place)
    data_directory.checked(option=str(place))
    for act in (_status, _child, _capture):
        assert act(str(place)), act
    _output(str(place))
    _program(str(place))
    assert index.ends(tape_path(str(place), ID)).first
    (link := here / "link.jsonl").symlink_to(tape_path(str(place), ID))
    assert verify.verify(link, named=True).lines == 1  # `tape verify FILE`


def _filled(place: Path) -> Path:
    for name in NAMES:
        (place / name).parent.mkdir(exist_ok=True)
        if name.endswith("/"):
            (place / name).mkdir(exist_ok=True)
    for name, text in {
        f"jobs/{ID}/job": f'{{"session": "{ID}", "intent": "theirs"}}',
        f"jobs/{ID}/status": FORGED,
        f"jobs/{ID}/stdout": "theirs",
        f"outputs/{ID}/1.stdout": "theirs",
        f"direct-{ID}/sessions": "theirs",
        f"{ID}.jsonl": '{"type":"meta","data":{"mission":"theirs"}}\n',
        f"{ID}.log": "theirs",
        "fs/theirs": "theirs",
    }.items():
        (place / name).write_text(text)
    return place


def _all(top: Path) -> dict[str, str]:
    files = [top, *top.rglob("*")] if top.is_dir() else [top]
    return {str(path): path.read_text() if path.is_file() else "" for path in files}


@pytest.mark.parametrize("writable", [True, False])
def test_programs_that_a_pull_brought_are_not_on_the_path(
    here: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    """`.quine/bin/cargo` of a repository ran on a machine without a cargo, where `quine` was no command."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    if not writable:
        monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    use(here / ".quine", make=True)
    ensure_quine(str(here / ".quine"))
    monkeypatch.setenv("PATH", "/nowhere")
    (here / ".quine/bin").mkdir(exist_ok=True)
    (here / ".quine/bin/cargo").write_text("#!/bin/sh\n")
    (here / ".quine/bin/cargo").chmod(0o755)
    with contextlib.nullcontext() if writable else pytest.raises(Misconfigured, match="bin holds cargo"):
        ensure_quine(str(here / ".quine"))
    assert shutil.which("cargo") is None and (shutil.which("quine") is not None) == writable
