"""Staging against who speaks its words himself, and against what somebody has laid in its way."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base import data_directory
from quine.base.errors import Misconfigured
from quine.staging import (
    apply,
    content,
    remote_main,
    renames,
    returns_receiver,
    scan,
    shared_directory,
    source,
    spec,
)
from quine.staging.caller_side import SOONEST, Staging
from quine.staging.content import Feed, tell
from quine.staging.manifest import IMPLIED, SIZE, Manifest, digest_of, parse
from quine.staging.returns_receiver import Taking
from quine.staging.source import Tree
from tests.staging.wired import Relay, bring, inside, killed_before_b, refused_link, sealed, stage, three
from tests.staging.wired import cache as cache
from tests.staging.wired import here as here
from tests.staging.wired import there as there
from tests.support.waiting import until
from transport.errors import RequestError
from transport.spawn import LEASE, Spawn
from transport.status import Status


@pytest.mark.parametrize(
    ("spot", "name"),
    [(b"0", b"../planted"), (b"0", b"/planted"), (b"0", b"d/../../planted"), (b"../../../kept", b"mine")],
)
def test_a_journal_leads_nowhere_else(here: Path, tmp_path: Path, spot: bytes, name: bytes) -> None:
    """It may have come with an archive that was unpacked there."""
    (here / "d").mkdir()
    top = here / ".quine-aside-0123"
    (top / "new").mkdir(parents=True)
    (top / "new" / "0").write_text("planted")
    (tmp_path / "kept").write_text("mine")
    sealed(top, [(spot, name)])
    renames.recover(os.fsencode(here))
    assert not (tmp_path / "planted").exists() and not Path("/planted").exists()
    assert (tmp_path / "kept").read_text() == "mine"
    assert sorted(path.name for path in here.iterdir() if path != top) == ["d"]


def planted(here: Path) -> Path:
    """A private directory of staging that came with a repository, as quine would have left it."""
    (here / ".git" / "hooks").mkdir(parents=True)
    top = here / ".quine-aside-0123456789abcdef"
    (top / "new").mkdir(parents=True)
    (top / "new" / "0").write_text("#!/bin/sh\n")
    (top / "journal").write_bytes(b"0\0.git/hooks/post-commit\0")
    return top


def test_a_journal_that_came_with_a_repository_is_not_obeyed(here: Path, there: Path) -> None:
    """It is the user's by its owner, and nothing else of it."""
    top = planted(here)
    (there / "r").write_text("x")
    for said in ([top.name], []):
        staging = Staging([], ["r"], str(here))
        taking = staging.taking()
        taking.begin()
        relay = Relay(taking.taken)
        with inside(there):
            assert remote_main._give_back(relay, staging.key)  # type: ignore[arg-type]
        relay.close()
        taking.end(Status("exited", 0))
        taking.close()
        assert not taking.failure
        assert [name for name in [top.name] if name in taking.note("h1")] == said
    assert (here / "r").exists() and (top / "new" / "0").exists()
    assert list((here / ".git" / "hooks").iterdir()) == []


def test_a_job_there_names_a_journal_that_is_not_obeyed_once(
    here: Path, there: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    top = planted(there)
    (here / "a").write_text("x")
    stage(here, there, "a")
    stage(here, there, "a")
    assert capfd.readouterr().err.count(top.name) == 1
    assert (top / "new" / "0").exists() and list((there / ".git" / "hooks").iterdir()) == []


def test_a_private_directory_of_staging_is_no_result_and_is_not_cleaned_up(here: Path, there: Path) -> None:
    top = planted(there)
    (there / ".r").write_text("x")
    assert bring(here, there, ".*", left=[".git"]) == ("", [])
    assert [path.name for path in here.iterdir()] == [".r"]
    with inside(there):
        assert shared_directory.clean([".*"], []) == 0
    assert top.exists() and not (there / ".r").exists()


@pytest.mark.parametrize("change", ["copied", "journal", "seal"])
def test_the_seal_of_a_journal_holds_for_no_other(here: Path, tmp_path: Path, change: str) -> None:
    top = planted(here)
    (top / "journal").unlink()
    sealed(top, [(b"0", b"mine")])
    if change == "copied":  # its user has committed it, and it comes with the next clone
        shutil.copytree(top, tmp_path / "copy")
        shutil.rmtree(top)
        shutil.copytree(tmp_path / "copy", top)
        shutil.rmtree(tmp_path / "copy")
    elif change == "journal":
        seal = (top / "journal").read_bytes().partition(b"\n")[0]
        (top / "journal").write_bytes(seal + b"\n0\0.git/hooks/post-commit\0")
    else:  # that of the directory
        (seal,) = (path.name.partition("-")[2] for path in top.glob("seal-*"))
        (top / "journal").write_bytes(seal.encode() + b"\n0\0.git/hooks/post-commit\0")
    assert renames.recover(os.fsencode(here)) == [top.name]
    assert (top / "new" / "0").exists() and not (here / "mine").exists()
    assert list((here / ".git" / "hooks").iterdir()) == []


@pytest.mark.parametrize("brought", ["nothing", "a file", "a pipe", "a link"])
def test_a_directory_without_the_seal_of_its_user_is_not_removed(here: Path, brought: str) -> None:
    top = here / ".quine-aside-0"
    top.mkdir()
    if brought == "a file":
        (top / "seal-0").write_text("0" * 32)
    elif brought == "a pipe":
        os.mkfifo(top / "seal-0")
        os.mkfifo(top / "journal")
    elif brought == "a link":
        (top / "journal").symlink_to("/dev/zero")
    assert renames.recover(os.fsencode(here)) == ([] if brought == "nothing" else [top.name])
    assert top.exists() == (brought != "nothing")  # its owner was killed before it was sealed


def test_without_a_secret_a_journal_is_of_its_process(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that cannot be written."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    monkeypatch.setattr(data_directory, "_fleeting", b"")
    for other in (False, True):
        top = here / f".quine-aside-{other}"
        (top / "new").mkdir(parents=True)
        (top / "new" / "0").write_text("x")
        sealed(top, [(b"0", b"mine-%d" % other)])
        if other:
            monkeypatch.setattr(data_directory, "_fleeting", os.urandom(32))
        assert renames.recover(os.fsencode(here)) == [top.name] * other
        assert (here / f"mine-{other:d}").exists() != other


def test_what_is_killed_while_it_is_removed_is_removed_by_the_next(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def dying(call: Callable[..., None], *args: Any, **more: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed
        call(*args, **more)

    for killed_at in range(1, 12):
        top = here / ".quine-aside-0"
        for name in ("new/d", "old"):
            (top / name).mkdir(parents=True)
        (top / "new" / "d" / "x").write_text("x")
        sealed(top, [])
        left = [killed_at]
        with monkeypatch.context() as patched, suppress(Killed):
            for name in ("unlink", "rmdir"):
                patched.setattr(os, name, partial(dying, getattr(os, name)))
            renames.recover(os.fsencode(here))
        assert renames.recover(os.fsencode(here)) == []
        assert list(here.iterdir()) == []


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_who_renames_and_is_killed_before_it_began_has_brought_nothing(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(here, there)
    monkeypatch.setattr(apply.Layout, "commit", lambda layout, undo: os.kill(os.getpid(), signal.SIGKILL))
    failure, _ = bring(here, there, "*")
    assert "killed" in failure
    assert contents(here) == dict.fromkeys("abc", "old")


def test_who_renames_and_is_killed_in_the_middle_has_it_finished(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(here, there)
    killed_before_b(monkeypatch)
    assert bring(here, there, "*") == ("", [])
    assert contents(here) == dict.fromkeys("abc", "new")


def test_a_result_that_does_not_come_since_a_newer_file_is_there_is_told(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dropped without a word, and the job was done."""
    three(here, there)
    killed_before_b(monkeypatch, lambda: (here / "b").write_text("newer"))
    failure, _ = bring(here, there, "*")
    assert failure.endswith("b left as it is, since it was written while a result for it came")
    assert contents(here) == {"a": "new", "b": "newer", "c": "new"}


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("links", [True, False])
def test_who_takes_renames_back_and_is_killed_has_them_finished(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, links: bool, step: int
) -> None:
    """The old files were in place again, and were taken for newer: the new ones were gone, and said to be in place."""
    if not links:
        monkeypatch.setattr(os, "link", refused_link)
    three(here, there)
    caller, rename, unlink, left = os.getpid(), os.rename, os.unlink, [-1]

    def failing(source: bytes, target: bytes, **more: int) -> None:
        if target == b"c" and source != b"old/2" and left[0] < 0 and os.getpid() != caller:
            left[0] = step
            raise OSError(5, "Input/output error", target)
        dying()
        rename(source, target, **more)

    def unlinked(path: str, **more: int) -> None:
        if path == "journal":
            dying(last=True)
        unlink(path, **more)

    def dying(last: bool = False) -> None:
        if os.getpid() != caller and left[0] >= 0:
            if last or not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    monkeypatch.setattr(os, "rename", failing)
    monkeypatch.setattr(os, "unlink", unlinked)
    assert bring(here, there, "*") == ("", [])
    assert contents(here) == dict.fromkeys("abc", "new")


def test_what_can_neither_be_renamed_nor_taken_back_is_left_to_the_next(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(here, there)
    rename, broken = os.rename, [False]

    def failing(source: bytes, target: bytes, **more: int) -> None:
        broken[0] |= target == b"c"
        if broken[0]:
            raise OSError(5, "Input/output error", target)
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", failing)
    failure, _ = bring(here, there, "*")
    (top,) = here.glob(".quine-aside-*")
    assert "input/output error" in failure
    assert f"not all are in place, and the others are in {top.name}" in failure
    monkeypatch.undo()
    renames.recover(os.fsencode(here))
    assert contents(here) == dict.fromkeys("abc", "new")


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ("/d\udce9/\n", "/d\udce9/\n"),
        ("/" + "d" * 4094, "/" + "d" * 4094),
        *(
            (bad, "")
            for bad in (None, 7, "", "d", "(unreachable)/d", "/\0", "/\ud800", "/" + "\udce9" * 4095)
        ),
    ],
)
def test_the_place_of_a_sending_job_is_a_directory_or_not_known(told: object, place: str) -> None:
    assert content.place_of({"in": told}) == place


def test_what_was_brought_is_not_the_next_conversations(here: Path, there: Path) -> None:
    """It ends by something that nobody has thought of, after a first one that was good."""
    three(here, there)
    staging = Staging([], ["*"], str(here))
    taking = staging.taking()
    relay = Relay(taking.taken)
    with inside(there):
        assert remote_main._give_back(relay, staging.key)  # type: ignore[arg-type]
    assert not taking.failure
    taking._check = lambda manifest: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    with inside(there), pytest.raises(RequestError):
        remote_main._give_back(relay, staging.key)  # type: ignore[arg-type]
    relay.close()
    assert taking.failure
    assert taking.layout
    taking.layout.close()


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("8,2", ""),
        ("0,0", ""),
        ("7", "8 bytes, and --returns-limit allows 7"),
        ("8,1", "2 names, and --returns-limit allows 1"),
    ],
)
def test_what_comes_back_has_a_limit(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    """A host could fill the disk, and names cost time and memory: it is refused before any of it comes."""
    (there / "a").write_text("1234")
    (there / "b").write_text("5678")
    parsed: list[bytes] = []

    def read(packed: bytes, whole: bool) -> Manifest:
        parsed.append(packed)
        return parse(packed, whole)

    monkeypatch.setattr(returns_receiver, "parse", read)
    staging = Staging([], ["*"], str(here), limit=limit)
    taking = staging.taking()
    relay = Relay(taking.taken)
    with inside(there), nullcontext() if not why else pytest.raises(RequestError):
        remote_main._give_back(relay, staging.key)  # type: ignore[arg-type]
    relay.close()
    assert taking.failure == why and bool(parsed) == ("names" not in why)
    status = Status("exited", 0)
    if taking.layout:
        taking.end(status)
    taking.close()
    staging.brought(taking, status)
    assert sorted(os.listdir(here)) == ([] if why else ["a", "b"])
    cure = f"the results are still on the host, in {there}; --returns-limit SIZE,NAMES, 0 = no limit"
    assert status.hint == (cure if why else "")
    assert status.detail == (f"the files cannot be brought back: {why}" if why else "")


def test_a_sender_tries_no_more_guesses_than_an_honest_one_needs(here: Path) -> None:
    """A file is asked for unless it is here: so the host learns whether it has guessed what is in one."""
    (here / "pin").write_text("0005")
    taking = Staging([], ["*"], str(here)).taking()
    relay = Relay(taking.taken)
    heard = list[str]()
    for number in range(9):
        guess = Manifest()
        guess.add(b"pin", stat.S_IFREG | 0o644, 0, 4, blake2b(b"%04d" % number, digest_size=SIZE).digest())
        asked = relay.stream("stage")
        tell(asked, {"say": "out", "in": "/there"})
        with suppress(RequestError):
            assert Feed(asked).hear()[0]["returns"] == ["*"]
            tell(asked, {"tree": digest_of(guess.pack())}, guess.pack())
            heard.append(Feed(asked).hear(1)[0]["say"])
        asked.close()
    relay.close()
    taking.close()
    assert heard == ["want"] * 4
    assert taking.fault.endswith("their job has tried more than 4 times")


def test_a_sender_that_falls_silent_holds_nobody(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where the results are, and then no more: its job ends, or is given up, in the middle of that."""
    staging = Staging([], ["*"], str(here))
    taking, now = staging.taking(), [1000.0]
    assert taking.patience == 640.0, "it may read 10 GiB for their digests"
    monkeypatch.setattr(staging, "taking", lambda claim: taking)
    monkeypatch.setattr(returns_receiver, "time", SimpleNamespace(monotonic=lambda: now[0]))
    left = list[float]()

    def run(spawn: object, *_: object, **more: Any) -> Status:
        relay = Relay(taking.taken)
        asked = relay.stream("stage")
        tell(asked, {"say": "out", "in": "/there"})
        assert Feed(asked).hear()[0]["returns"] == ["*"]
        until(lambda: taking._heard.waits, "the next message is waited for")
        while now[0] < 2000.0 and (not left or left[-1] > 0):
            left.append(more["left"]())
            now[0] += 6.0
        threads.extend(relay.threads)
        return Status("signaled", 143, "TERM")

    threads = list[Any]()
    monkeypatch.setattr(returns_receiver.client, "run", run)
    status = Status("exited", 0)
    staging.bring(Spawn(["-"]), status)
    assert 1640 <= now[0] < 1660 and max(left) == 1.0
    assert (status.state, status.code) == ("lost", 74)
    assert status.detail == "the files cannot be brought back: their host was silent for 640 s"
    assert status.hint == "the results are still on the host, in /there"
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_results_whose_deadline_is_over_may_still_come(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[float]()
    monkeypatch.setattr(Taking, "bring", lambda taking, out, stderr: taken.append(taking.patience))
    staging = Staging([], ["*"], str(here), limit="1M")
    for left in (None, 500.0, -3.0):
        staging.tries = 1
        staging.bring(Spawn(["-"]), Status("exited", 0), left=left)
    assert taken == [LEASE, 500.0, SOONEST]


@pytest.mark.parametrize("text", ["x", "1,", ",5", "1,x", "-1", "1,2,3"])
def test_a_limit_that_is_none_is_refused(here: Path, text: str) -> None:
    with pytest.raises(Misconfigured, match="--returns-limit must be"):
        Staging([], ["*"], str(here), limit=text)


def test_a_failure_that_is_no_text_is_told(here: Path, there: Path) -> None:
    (here / "a").write_text("a")
    staging = Staging(["a"], ["a"], str(here))
    giving, taking = staging.giving(), staging.taking()
    for service in (giving.given, taking.taken):
        relay = Relay(service)
        with relay.stream("stage") as asked:
            tell(asked, {"say": "failed", "why": "\ud800 \x1b"})  # type: ignore[arg-type]
            asked.end()
            assert asked.read(1) == b""
        relay.close()
    assert giving.failure.endswith(r"\ud800 \x1b")
    assert taking.failure.endswith(r"\ud800 \x1b")


@pytest.mark.parametrize("pattern", ["**/x", "**/a/**/a/**/x"])
def test_a_name_of_very_many_parts_is_soon_compared(pattern: str) -> None:
    deep = b"/".join([b"a"] * 1900)
    assert not spec.allowed(deep, [pattern])
    assert spec.allowed(deep + b"/x", [pattern])


def steps(work: Callable[[], object]) -> int:
    """How many calls it makes, which is no matter of the machine."""
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(step)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_many_names_are_not_each_compared_with_all_others(here: Path) -> None:
    many = 1000
    for number in range(many):
        (here / f"{number:03}").mkdir()
        (here / f"{number:03}" / "f").touch()
        (here / f"{number:03}" / "l").symlink_to("f")
    named = [f"{number:03}/{name}" for number in range(many) for name in "fl"]
    assert steps(lambda: spec.sources(named, str(here))) < 400 * many
    assert steps(lambda: spec.matching(["*/f", "*/l"], str(here))) < 400 * many
    manifest = Manifest()
    for number in range(many):
        manifest.add(b"%03d" % number, stat.S_IFDIR | 0o755 | IMPLIED, 0)
        manifest.add(b"%03d/f" % number, stat.S_IFREG | 0o644, 0, 0, bytes(SIZE))
        manifest.add(b"%03d/l" % number, stat.S_IFLNK | 0o777, 0, 0, b"f")
    taking = Staging([], ["*/f", "*/l"], str(here)).taking()
    assert steps(lambda: taking._check(parse(manifest.pack()))) < 400 * many


def test_a_directory_named_with_what_stands_before_a_dot(here: Path, there: Path) -> None:
    """`.` is all there is, whatever else was named and matches."""
    (there / "+x").write_text("x")
    assert bring(here, there, "*", ".") == ("", [])
    assert contents(here) == {"+x": "x"}


def test_a_content_that_stands_twice_is_whole_twice(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write takes less than it was given where the disk is nearly full."""
    content = os.urandom(3_000_000)
    for name in ("a", "b"):
        (here / name).write_bytes(content)
    write = os.write
    monkeypatch.setattr(
        apply.os, "write", lambda fd, data: write(fd, memoryview(data)[: max(1, len(data) * 2 // 3)])
    )
    stage(here, there, "a", "b")
    assert [(there / name).read_bytes() == content for name in ("a", "b")] == [True, True]


def test_a_job_that_has_started_reads_no_more(here: Path, there: Path) -> None:
    (here / "a").write_text("as it was when it started")
    staging = Staging(["a"], [], str(here))
    giving = staging.giving()
    relay = Relay(giving.given)
    try:
        with inside(there):
            assert remote_main._staged(relay, staging.key)  # type: ignore[arg-type]
        (here / "a").write_text("for nobody over there")
        line = relay.stream("stage")
        tell(line, {"say": "in", "has": ""})
        with pytest.raises(RequestError):
            Feed(line).hear(1 << 20)
        line = relay.stream("stage")
        tell(line, {"say": "failed", "why": "I never ran"})
        line.end()
        with pytest.raises(RequestError):
            line.read(1)
        assert not giving.failure
    finally:
        relay.close()


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("moment", ["listed", "looked at"])
def test_a_directory_that_is_a_link_by_now_is_not_followed(
    here: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, size: int
) -> None:
    """Somebody exchanges it between the steps of a look, or between the look and the reading."""
    for top in (here / "t", tmp_path / "secret"):
        (top / "d").mkdir(parents=True)
        (top / "d" / "f").write_bytes(top.name[:1].encode() * size)

    def exchange() -> None:
        if not (here / "t" / "d").is_symlink():
            (here / "t" / "d").rename(tmp_path / "away")
            (here / "t" / "d").symlink_to(tmp_path / "secret" / "d")

    look, into = scan.scan, scan._scan_into

    def looked(*args: Any, **more: Any) -> Any:
        found = look(*args, **more)
        if more.get("whole"):  # the other side looks at what it has, at the same time
            exchange()
        return found

    def listed(fd: int, *more: Any) -> Any:
        found = into(fd, *more)
        if any(name == b"d" for name, _ in found[2]):
            exchange()
        return found

    if moment == "listed":
        monkeypatch.setattr(scan, "_scan_into", listed)
    else:
        monkeypatch.setattr(scan, "scan", looked)
    monkeypatch.setattr(source, "resolve_ambiguous", lambda take, found: (found, True))
    with pytest.raises(RequestError):
        stage(here, there, "t")
    assert not any(path.is_file() and path.read_bytes()[:1] == b"s" for path in there.rglob("*"))


def test_a_directory_above_what_was_asked_for_keeps_its_mode(
    here: Path,
    there: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for top in (here, there):
        (top / "out").mkdir()
    (here / "out").chmod(0o750)
    (there / "out" / "a").write_text("x")
    imply = Tree._imply

    def named(self: Any) -> None:
        imply(self)
        for index, name in enumerate(self._manifest.names):
            if name == b"out":
                self._manifest.modes[index] = self._manifest.modes[index] & ~IMPLIED | 0o777

    monkeypatch.setattr(Tree, "_imply", named)
    failure, _ = bring(here, there, "out/a")
    assert "was not asked for" in failure
    assert stat.S_IMODE((here / "out").stat().st_mode) == 0o750
