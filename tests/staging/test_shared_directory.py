"""A directory that jobs under several names of hosts have: its identity, turns in it, and what others left there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quine.fanout.files.results import Around, Results
from quine.staging import notes, remote_main, renames, scan, shared_directory, store
from quine.staging.caller_side import Staging
from tests.lab import Lab
from tests.staging.wired import End, Relay, inside, sealed, stage
from tests.staging.wired import cache as cache
from tests.staging.wired import here as here
from tests.staging.wired import there as there
from transport.errors import RequestError


def identity(folder: Path) -> str:
    with inside(folder):
        return shared_directory.identity()


@contextmanager
def occupied(folder: Path) -> Iterator[None]:
    """Another job lays out its files there."""
    with inside(folder):
        turn = shared_directory.alone(store.Objects(), shared_directory.identity())
        turn.__enter__()
    try:
        yield
    finally:
        turn.__exit__(None, None, None)


def around_of(results: Results, job: object, host: str, patterns: list[str]) -> Around:
    around = results.add(job, patterns, ())
    around.where = lambda: host
    return around


# -- which one it is -------------------------------------------------------------------------------


def test_a_directory_has_one_identity_whoever_asks_first(tmp_path: Path, there: Path) -> None:
    (tmp_path / "other name").symlink_to(there)
    found = identity(there)
    assert scan.is_identity(found)
    assert identity(tmp_path / "other name") == found
    assert [path.name for path in there.iterdir()] == [scan.PLACE]
    (other := tmp_path / "other").mkdir()
    assert identity(other) != found


def test_of_two_jobs_that_make_an_identity_one_is_the_first(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, found = os.link, []

    def slow(source: str, target: str) -> None:
        if not found:
            found.append("")
            found.append(shared_directory.identity())
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    assert identity(there) == found[1] != ""
    assert [path.name for path in there.iterdir()] == [scan.PLACE]


@pytest.mark.parametrize("content", ["", "x" * 32, "0" * 31, None])
def test_what_quine_has_not_made_is_no_identity(there: Path, tmp_path: Path, content: str | None) -> None:
    if content is None:
        (tmp_path / "elsewhere").write_text("0" * 32)
        (there / scan.PLACE).symlink_to(tmp_path / "elsewhere")
    else:
        (there / scan.PLACE).write_text(content)
    assert identity(there) == ""


def test_a_copied_identity_is_made_anew(there: Path, tmp_path: Path) -> None:
    """As by rsync -a or git: of two directories with one identity a file of one job was not laid out."""
    found, copy = identity(there), tmp_path / "copy"
    shutil.copytree(there, copy)
    with occupied(copy):
        again = identity(copy)
    assert len({found, again, identity(tmp_path)}) == 3 and scan.is_identity(again)
    assert (identity(there), identity(copy)) == (found, again)
    there.rename(tmp_path / "renamed")
    assert identity(tmp_path / "renamed") == found
    assert [path.name for path in copy.iterdir()] == [scan.PLACE]


def test_an_identity_of_a_build_before_is_made_anew(there: Path) -> None:
    (there / scan.PLACE).write_text(f"{'5' * 32}\n")
    found = identity(there)
    assert scan.is_identity(found) and found != "5" * 32 and identity(there) == found


@pytest.mark.parametrize(
    ("kind", "clone", "copy"),
    [("ext4", False, False), ("nfs4", True, False), ("fuse.sshfs", True, True)],
)
def test_an_identity_is_believed_as_far_as_its_file_system_tells_copies(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, clone: bool, copy: bool
) -> None:
    """`clone`: it stays with another boot, as of a client or of a machine's copy; `copy`: with another inode."""
    monkeypatch.setattr(shared_directory, "is_local", lambda _: kind == "ext4")
    monkeypatch.setattr(shared_directory, "kinds_of", lambda _: {kind})
    found = identity(there)
    shutil.copytree(there, tmp_path / "copy")
    assert (identity(tmp_path / "copy") == found) == copy
    monkeypatch.setattr(shared_directory, "boot_id", lambda: "another")
    assert (identity(there) == found) == clone


def test_an_identity_is_no_file_of_a_job_and_goes_at_the_end(here: Path, there: Path) -> None:
    identity(here)
    (here / "a").write_text("a")
    stage(here, there, ".")
    assert [path.name for path in there.iterdir()] == ["a"]
    identity(there)
    with inside(there):
        assert shared_directory.clean(["*", ".*"], []) == 0
        assert [path.name for path in there.iterdir()] == [scan.PLACE]
        with occupied(there):
            assert shared_directory.clean([scan.PLACE], []) == 0
            assert (there / scan.PLACE).exists()
        assert shared_directory.clean([scan.PLACE], []) == 0
    assert not list(there.iterdir())


# -- results of jobs on another host ---------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
def test_results_of_a_job_under_another_name_of_the_host_are_left_as_they_are(
    here: Path, there: Path, tmp_path: Path, same: bool
) -> None:
    """Login nodes that share a home: the result of a job on one was replaced by the staging of a job on the other."""
    (here / "one.out").write_text("of the run before")
    results = Results()
    stage(here, there, "one.out", around=around_of(results, "one", "h1", ["one.out"]))
    other = there if same else tmp_path / "other"
    other.mkdir(exist_ok=True)
    (other / "one.out").write_text("new")
    stage(here, other, "one.out", around=around_of(results, "two", "h2", ["two.out"]))
    assert (other / "one.out").read_text() == ("new" if same else "of the run before")


def test_a_host_has_the_identity_that_it_has_told_last(there: Path, tmp_path: Path) -> None:
    results = Results()
    results.locate("h1", "a" * 32)
    results.locate("h2", "a" * 32)
    results.locate("h3", "")
    results.locate("h4", "")
    assert results.alike("h1") == {"h1", "h2"} and results.alike("h3") == {"h3"}
    results.locate("h2", "b" * 32)
    assert results.alike("h1") == {"h1"}


# -- the command begins once its caller knows ------------------------------------------------------


class Deaf(Relay):
    """The word that the files are there does not reach the caller."""

    def stream(self, name: str) -> End:
        end = super().stream(name)
        write = end.write

        def lossy(data: bytes) -> None:
            if json.dumps("done").encode() not in data:
                write(data)
            else:
                end._go.put(RequestError("the line was cut"))

        end.write = lossy  # type: ignore[method-assign]
        return end


def test_no_command_begins_whose_caller_does_not_know(here: Path, there: Path) -> None:
    """For its caller it was still to begin: other jobs were told to make results that it had removed."""
    (here / "a").write_text("a")
    staging, results = Staging(["a"], [], str(here), own=[]), Results()
    staging.around = around_of(results, "one", "h1", ["one.out"])
    relay = Deaf(staging.giving().given)
    try:
        with inside(there), pytest.raises(RequestError):
            remote_main._staged(relay, staging.key)  # type: ignore[arg-type]
    finally:
        relay.close()
    assert results.of_others("two", "h1") == ([], ["one.out"])


def test_no_job_asks_for_results_before_it_is_known_that_another_has_begun(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a").write_text("a")
    around, held = around_of(Results(), "one", "h1", []), []
    begin = around.begin

    def begins(begun: bool) -> None:
        held.append((begun, store._try_lock(str(there / scan.PLACE), False)))
        begin(begun)

    monkeypatch.setattr(around, "begin", begins)
    stage(here, there, "a", around=around)
    assert held == [(False, -1), (True, None)]


# -- turns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False])
def test_a_job_that_is_stopped_holds_up_no_job_in_another_directory(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    """There were 256 locks for all directories of a user."""
    if not marked:
        monkeypatch.setattr(shared_directory, "identity", lambda: "")
        monkeypatch.setattr(remote_main, "identity", lambda: "")
    monkeypatch.setattr(store, "PATIENCE", 0.0)
    monkeypatch.setattr(shared_directory, "LONGEST", 0.0)
    met: dict[str, Path] = {}
    for number in range(300):
        (folder := tmp_path / f"{number}").mkdir()
        other = met.setdefault(scan.key_of(str(folder))[:2], folder)
        if other != folder:
            break
    (here / "a").write_text("a")
    with occupied(other):
        stage(here, folder, "a", around=around_of(Results(), "one", "h1", []))


@pytest.mark.parametrize("marked", [True, False])
def test_a_wait_for_a_job_that_is_stopped_ends_and_names_it(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    if not marked:
        monkeypatch.setattr(shared_directory, "identity", lambda: "")
        monkeypatch.setattr(remote_main, "identity", lambda: "")
    monkeypatch.setattr(store, "PATIENCE", 0.0)
    monkeypatch.setattr(shared_directory, "LONGEST", 0.0)
    (here / "a").write_text("a")
    staging = Staging(["a"], [], str(here), own=[])
    staging.around = around_of(Results(), "one", "h1", [])
    giving = staging.giving()
    relay = Relay(giving.given)
    try:
        with occupied(there), inside(there):
            assert not remote_main._staged(relay, staging.key)  # type: ignore[arg-type]
    finally:
        relay.close()
    holder = f"(pid {os.getpid()} on {os.uname().nodename.lower()})"
    assert f"{there}: another job {holder} has been laying out its files there for 0 s" in giving.failure
    assert giving.cure.startswith(f"if it is stopped, end it (kill {os.getpid()}), or choose another")
    assert not (there / "a").exists()


def test_jobs_that_take_turns_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand hosts of one home begin at one time: each waits for one holder after the other."""
    monkeypatch.setattr(store, "PATIENCE", 0.0)
    path = str(tmp_path / "lock")
    held, waits = store.lock(path, True), list[tuple[str, bool]]()

    def late(holder: str, seconds: float) -> None:
        waits.append((holder.partition(" ")[0], seconds > 0))
        if len(waits) == 4:
            os.close(held)
        else:
            os.pwrite(held, f"{len(waits) // 2} x".encode().ljust(store.HOLDER), 0)

    os.close(store.lock(path, False, late))
    assert waits == [(str(os.getpid()), False), ("0", False), ("1", False), ("1", True)]


def test_the_lock_of_a_file_that_was_removed_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = str(tmp_path / "lock"), fcntl.flock

    def later(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        store.remove_lock(path)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", later)
    fd = store.lock(path, True)
    assert os.path.samestat(os.fstat(fd), os.stat(path))
    store.remove_lock(path)
    assert os.path.exists(path)
    os.close(fd)
    store.remove_lock(path)
    assert not os.path.exists(path)


def test_locks_of_directories_that_are_not_used_any_more_are_removed(cache: Path) -> None:
    objects = store.Objects()
    for name in ("commit-old", "commit-new"):
        os.close(objects.lock(name))
    os.utime(f"{objects.folder}/commit-old", (0, 0))
    store.clean(objects.folder)
    assert [name for name in os.listdir(objects.folder) if name.startswith("commit")] == ["commit-new"]


# -- what another machine has begun ----------------------------------------------------------------


def begun(folder: Path, name: bytes) -> Path:
    """A private directory with a journal: `a` is to be replaced."""
    top = folder / os.fsdecode(name)
    (top / "new").mkdir(parents=True)
    (folder / "a").write_text("before")
    (top / "new" / "0").write_text("new")
    sealed(top, [(b"0", b"a")])
    return top


Marks = Callable[[], tuple[bytes, bytes]]


@pytest.mark.parametrize(
    ("marks", "recovers"),
    [((b"boot", b"machine"), True), ((b"next", b"machine"), True), ((b"next", b"other"), False)],
    ids=["this boot", "this machine after another boot", "another machine"],
)
def test_only_the_machine_of_a_private_directory_finishes_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, marks: Any, recovers: bool
) -> None:
    """NFS keeps the lock of a directory to one machine: on another one the directory looks abandoned."""
    monkeypatch.setattr(scan, "_marks", lambda: (b"boot", b"machine"))
    top = begun(here, scan.new_aside())
    monkeypatch.setattr(scan, "_marks", lambda: marks)
    assert renames.recover(os.fsencode(here)) == []
    assert (here / "a").read_text() == ("new" if recovers else "before")
    assert top.exists() != recovers
    if not recovers:
        os.utime(top, (0, 0))
        said = notes.left_alone(renames.recover(os.fsencode(here)))
        why = (
            "of another machine that has this directory, too, and a day old; remove it if no quine runs there"
        )
        assert said == f"{top.name} left alone, {why}"


@pytest.mark.parametrize("local", [True, False])
def test_a_machine_that_was_given_another_host_name_finishes_what_it_has_begun(
    here: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """Copied images have one machine id, and may have one directory by NFS: there it has to be a day old."""
    node = os.uname()
    monkeypatch.setattr(scan, "MACHINE_ID", str(here.parent / "machine-id"))
    (here.parent / "machine-id").write_text("1234\n")
    monkeypatch.setattr(renames, "is_local_device", lambda _: local, raising=False)
    top = begun(here, scan.new_aside())
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((node[0], "renamed", *node[2:])))
    monkeypatch.setattr(scan, "boot_id", lambda: "the next boot")
    assert renames.recover(os.fsencode(here)) == [] and top.exists() != local
    if not local:
        os.utime(top, (0, 0))
        assert renames.recover(os.fsencode(here)) == [] and not top.exists()
    assert (here / "a").read_text() == "new"
    top = begun(here, scan.new_aside())
    (here.parent / "machine-id").write_text("5678\n")
    monkeypatch.setattr(scan, "boot_id", lambda: "a third one")
    assert renames.recover(os.fsencode(here)) == [] and top.exists()


def test_a_private_directory_of_a_build_before_is_finished(here: Path) -> None:
    top = begun(here, scan.ASIDE + b"0123456789abcdef")
    assert renames.recover(os.fsencode(here)) == []
    assert (here / "a").read_text() == "new" and not top.exists()


def test_a_machine_without_an_id_of_its_own_is_known_by_its_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "MACHINE_ID", str(tmp_path / "none"))
    boot, machine = scan._marks()
    assert boot == machine
    (tmp_path / "none").write_text("1234\n")
    assert scan._marks()[0] == boot != scan._marks()[1]


def test_a_journal_of_another_version_is_named_with_what_to_do(here: Path) -> None:
    top = begun(here, scan.new_aside())
    fd = os.open(top, os.O_RDONLY)
    try:
        os.unlink(top / "journal")
        for seal in top.glob("seal-*"):
            seal.unlink()
        text = b"0\0a\0"
        line = renames.data_directory.seal(renames._sealed(fd, text)).encode() + b"\n"
        (top / "journal").write_bytes(line + text)
    finally:
        os.close(fd)
    said = notes.left_alone(renames.recover(os.fsencode(here)))
    assert said.startswith(
        f"{top.name} left alone, begun by another version of quine: its `new` has the files to come"
    )
    assert "or move what is missing and remove it" in said and top.exists()


# -- two hosts of which both have it ---------------------------------------------------------------


def test_jobs_of_two_hosts_in_one_directory_keep_their_results(lab: Lab, tmp_path: Path) -> None:
    """The result of 1 is there before 3 gets its files on the other host, among which is the one of the run before."""
    (inputs := tmp_path / "inputs").mkdir()
    (up := tmp_path / "up").mkdir()
    (place := tmp_path / "there").mkdir()
    for item in "123":
        (inputs / f"{item}.out").write_text("old\n")
    script = f"""
        test "$0" != 2 || until test -e "{up}/1"; do sleep 0.02; done
        echo "good $0" >"$0.out"; echo "$QUINE_NODE_NAME" >"{up}/$0"
        test "$0" != 1 || until test -e "{up}/3"; do sleep 0.02; done
    """
    words = ["--on", "h1,h2", "--cwd", str(place), "-P2", "--cleanup", "--files", ".", "--returns", "{}.out"]
    done = lab.run(["xargs", *words, "--", "sh", "-c", script, "{}", ":::", "1", "2", "3"], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (up / "1").read_text() != (up / "3").read_text()
    assert [(inputs / f"{item}.out").read_text() for item in "123"] == ["good 1\n", "good 2\n", "good 3\n"]
    assert list(place.iterdir()) == []
