"""The quota of a tree in the files tier: shared by its processes, never exceeded, and kill -9 takes nothing of it."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.budget import limits
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.budget.shared_counters import PUT, Numbers, SharedCounters
from quine.files.api import BLOCK, Entry, Tier, Writer
from quine.files.layers.quota import Quota, bounded
from quine.files.room import LEAST
from quine.files.stores.local.store import Local
from quine.files.wire.client import Remote
from quine.files.wire.server import LARGE, Service
from tests.files.tiers import below, get, put, scratch
from tests.support.agents import OK, Agents, says, sh, until
from tests.support.machine import in_child, kill
from tests.transport.rpc import streams

LIMIT = 1_000_000
Make = Callable[..., Quota]


@pytest.fixture
def book() -> Iterator[SharedCounters]:
    book = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0, limit_stored=LIMIT), "quine-quota")
    yield book
    os.close(book.fd)


@pytest.fixture
def tier(book: SharedCounters, tmp_path: Path) -> Quota:
    return Quota(Local(str(tmp_path / "store")), book)


def held(tier: Tier) -> int:
    return sum(max(entry.size, LEAST) for entry in tier.walk("") if entry.is_file)


def full(what: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        what()
    assert caught.value.errno == errno.EDQUOT


def test_what_does_not_fit_is_refused(tier: Quota, book: SharedCounters) -> None:
    put(tier, "a", bytes(600_000))
    full(lambda: put(tier, "b", bytes(400_001)))
    assert below(tier) == ["a"]
    put(tier, "b", bytes(400_000))
    full(lambda: put(tier, "c", b"x"))
    assert book.numbers().stored == held(tier) == LIMIT


@pytest.mark.parametrize("size", [0, 1, LEAST])
def test_files_that_are_empty_or_small_are_bounded_too(tier: Quota, book: SharedCounters, size: int) -> None:
    most = LIMIT // LEAST
    put(tier, "large", bytes((most - 20) * LEAST))
    for number in range(20):
        put(tier, f"d/{number}", bytes(size))
    assert book.numbers().stored == held(tier) == most * LEAST
    full(lambda: put(tier, "more"))
    full(lambda: tier.create("more", size=0))
    full(lambda: tier.copy("d/0", "more"))
    put(tier, "d/0", bytes(LEAST))
    tier.rename("d/0", "d/1")
    put(tier, "more", bytes(size))
    full(lambda: put(tier, "d/0", bytes(size)))
    tier.remove("d", recursive=True)
    tier.remove("more")
    assert book.numbers().stored == (most - 20) * LEAST


def test_a_size_that_is_known_is_refused_before_a_byte_is_written(tier: Quota) -> None:
    full(lambda: tier.create("a", size=LIMIT + 1))
    put(tier, "a", b"x", size=LIMIT)  # a size is no promise
    put(tier, "b", bytes(LIMIT - LEAST))


def test_a_size_that_is_not_known_is_refused_while_it_comes(tier: Quota, book: SharedCounters) -> None:
    with tier.create("a") as writer:
        for _ in range(10):
            writer.write(bytes(LIMIT // 10))
        full(lambda: writer.write(b"x"))
    assert below(tier) == []
    put(tier, "b", bytes(LIMIT))
    assert book.count(PUT) == 0


def test_what_is_replaced_and_removed_counts_no_more(tier: Quota, book: SharedCounters) -> None:
    for _ in range(3):
        put(tier, "a", bytes(LIMIT))
        put(tier, "a", bytes(LIMIT), size=LIMIT)
    put(tier, "a", bytes(10))
    assert book.numbers().stored == LEAST
    put(tier, "d/b", bytes(500_000))
    put(tier, "d/c/e", bytes(300_000))
    tier.rename("d/b", "a")
    assert book.numbers().stored == held(tier) == 800_000
    tier.remove("d", recursive=True)
    tier.remove("a")
    assert book.numbers().stored == 0
    put(tier, "d", bytes(LIMIT), if_absent=True)
    tier.remove("d", recursive=True)
    assert book.numbers().stored == 0


def test_what_others_have_put_is_not_counted(tier: Quota, book: SharedCounters, tmp_path: Path) -> None:
    other = Local(str(tmp_path / "store"))
    put(other, "theirs", bytes(5 * LIMIT))
    put(tier, "ours", bytes(LIMIT))
    tier.remove("theirs")
    assert book.numbers().stored == 0  # never below: nothing is saved up for later
    full(lambda: put(tier, "more", bytes(LIMIT + 1)))


def test_a_copy_and_a_hole_count_as_they_are_read(tier: Quota, book: SharedCounters) -> None:
    put(tier, "a", bytes(400_000))
    tier.copy("a", "b")
    full(lambda: tier.copy("a", "c"))
    with tier.create("d") as writer:
        writer.hole(200_000)
        full(lambda: writer.hole(1))
        writer.commit()
    assert book.numbers().stored == held(tier) == LIMIT


class Copying(Local):
    """Copies by itself."""

    copies = True
    asked = 0
    meanwhile: Callable[[], object] | None = None

    def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
        self.asked += 1
        if self.meanwhile:
            self.meanwhile()
        return super().copy(source, target, if_absent)


def test_a_copy_is_left_to_the_store_and_counted(book: SharedCounters, tmp_path: Path) -> None:
    store = Copying(str(tmp_path / "store"))
    tier = Quota(store, book)
    put(tier, "a", bytes(400_000))
    tier.copy("a", "b")
    assert (store.asked, book.numbers().stored) == (1, 800_000)
    full(lambda: tier.copy("a", "c"))
    with pytest.raises(FileExistsError):
        tier.copy("a", "b", if_absent=True)
    assert (store.asked, book.numbers().stored) == (1, 800_000)
    put(tier, "b", b"x")
    tier.copy("b", "a")
    assert book.numbers().stored == held(tier) == 2 * LEAST
    for source in ("none", ""):
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            tier.copy(source, "a")
    store.meanwhile = lambda: put(Local(store.root), "b", bytes(10_000))  # by another tree
    tier.copy("b", "c")
    assert book.numbers().stored == 2 * LEAST + 10_000
    assert book.count(PUT) == 0


def test_a_copy_whose_answer_was_lost_is_counted(book: SharedCounters, tmp_path: Path) -> None:
    class Lost(Copying):
        def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
            super().copy(source, target, if_absent)
            raise OSError(errno.EIO, "lost")

    tier = Quota(Lost(str(tmp_path / "store")), book)
    put(tier, "a", bytes(10_000))
    with pytest.raises(OSError, match="lost"):
        tier.copy("a", "b")
    assert book.numbers().stored == held(tier) == 20_000


def test_descriptors_are_counted(tier: Quota, book: SharedCounters, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(LIMIT + 1))
    with (tmp_path / "file").open("rb", buffering=0) as file:
        with tier.create("a") as writer:
            assert writer.fileno() == -1
            full(lambda: writer.take(file.fileno(), LIMIT + 1))
        file.seek(1)
        with tier.create("a") as writer:
            assert writer.take(file.fileno(), LIMIT + 1) == LIMIT
            writer.commit()
    tier.remove("a")
    for size, much in ((10_000, 10_000), (10, 20_000)):
        with tier.create("a", size=size) as writer:
            os.write(writer.fileno(), bytes(much))
            writer.commit()
        assert book.numbers().stored == much
    with tier.create("a", size=1) as writer:
        os.write(writer.fileno(), bytes(LIMIT + 1))
        full(writer.commit)
    assert book.numbers().stored == held(tier) == 20_000


def test_who_comes_second_costs_nothing(tier: Quota, book: SharedCounters) -> None:
    put(tier, "lock", b"one", if_absent=True)
    for _ in range(5):
        with contextlib.suppress(FileExistsError):
            put(tier, "lock", b"two", if_absent=True)
        with tier.create("late", if_absent=True) as late:
            late.write(b"two")
            put(tier, "late", b"one")
            with pytest.raises(FileExistsError):
                late.commit()
        tier.remove("late")
    assert book.numbers().stored == LEAST
    assert book.count(PUT) == 0


class Failing(Local):
    """Keeps it, or does not, and fails in both cases."""

    keeps = False

    def create(self, path: str, **more: object) -> Writer:  # type: ignore[override]
        writer = super().create(path, **more)  # type: ignore[arg-type]
        commit = writer.commit

        def failing() -> Entry:
            if self.keeps:
                commit()
            raise OSError(errno.EIO, "lost")

        writer.commit = failing  # type: ignore[method-assign]
        return writer


@pytest.mark.parametrize("keeps", [False, True])
def test_a_commit_that_fails_is_counted_where_it_was_kept(
    book: SharedCounters, tmp_path: Path, keeps: bool
) -> None:
    store = Failing(str(tmp_path / "store"))
    tier = Quota(store, book)
    store.keeps = keeps
    for path in ("a", "b", "a"):
        with pytest.raises(OSError, match="lost"):
            put(tier, path, bytes(10_000))
    assert book.numbers().stored == held(tier) == (20_000 if keeps else 0)
    assert book.count(PUT) == 0


def test_what_another_tree_puts_there_meanwhile_is_not_ours(book: SharedCounters, tmp_path: Path) -> None:
    """The answer is lost and nothing is kept. The file there now has another size, so it is not counted."""

    class Overtaken(Local):
        def create(self, path: str, **more: object) -> Writer:  # type: ignore[override]
            writer = super().create(path, **more)  # type: ignore[arg-type]

            def failing() -> Entry:
                put(Local(self.root), path, bytes(10))
                raise OSError(errno.EIO, "lost")

            writer.commit = failing  # type: ignore[method-assign]
            return writer

    with pytest.raises(OSError, match="lost"):
        put(Quota(Overtaken(str(tmp_path / "store")), book), "a", bytes(1000))
    assert book.numbers().stored == 0


class Unheard(Local):
    """Does it, and then fails."""

    def remove(self, path: str, recursive: bool = False) -> None:
        super().remove(path, recursive)
        raise OSError(errno.EIO, "lost")

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        super().rename(source, target, if_absent)
        raise OSError(errno.EIO, "lost")


def test_a_change_whose_answer_was_lost_is_counted(book: SharedCounters, tmp_path: Path) -> None:
    tier = Quota(Unheard(str(tmp_path / "store")), book)
    for path in ("a", "b", "c"):
        put(tier, path, bytes(10_000))
    for act in (lambda: tier.remove("a"), lambda: tier.rename("b", "c")):
        with pytest.raises(OSError, match="lost"):
            act()
    with pytest.raises(FileNotFoundError):
        tier.rename("none", "c")
    assert book.numbers().stored == held(tier) == 10_000


def test_a_smaller_file_whose_answer_was_lost_is_counted(book: SharedCounters, tmp_path: Path) -> None:
    store = Failing(str(tmp_path / "store"))
    put(Quota(Local(store.root), book), "a", bytes(10_000))
    tier = Quota(store, book)
    for keeps, size in ((False, 10_000), (True, LEAST)):
        store.keeps = keeps
        with pytest.raises(OSError, match="lost"):
            put(tier, "a", bytes(10))
        assert book.numbers().stored == held(tier) == size


def test_what_goes_through_a_descriptor_and_what_follows_it_are_together_within_it(tier: Quota) -> None:
    """An unfinished write counts too: a writer that never ends it has at most the limit on the disk."""
    half = LIMIT // 2 + 1
    with tier.create("a", size=half) as writer:
        os.write(writer.fileno(), bytes(half))
        full(lambda: writer.write(bytes(half)))
        full(lambda: writer.hole(half))
        writer.write(bytes(LIMIT - half))
        full(lambda: writer.write(b"x"))
        writer.commit()
    assert held(tier) == LIMIT


def test_what_a_job_sends_beyond_the_size_it_told_is_counted_as_it_comes(tier: Quota) -> None:
    """The bytes count before the commit: a job that never commits would fill the disk meanwhile."""
    with streams.joined(Service(lambda: tier)) as relay, Remote(relay).create("a", size=LARGE) as writer:  # type: ignore[arg-type]
        writer.write(bytes(LARGE))
        full(lambda: [writer.write(bytes(BLOCK)) for _ in range(64)])
    assert held(tier) == 0


def test_room_is_held_for_files_that_are_not_there(tier: Quota, book: SharedCounters) -> None:
    with streams.joined(Service(lambda: tier)) as relay:
        remote = Remote(relay)  # type: ignore[arg-type]
        room, other = remote.reserve(), tier.reserve()
        assert min(room.need(600_000, 600_000, 1 << 20, "f")) >= 600_000
        full(lambda: other.need(400_001, 400_001, 0, "g"))
        full(lambda: put(tier, "b", bytes(400_001)))
        full(lambda: room.need(LIMIT + 1, LIMIT + 1, 0, "f"))
        full(lambda: other.need(400_001, 400_001, 0, "g"))  # the first room is held on
        assert room.need(600_000, 300_000, 0, "f") == (600_000, 300_000)  # it replaces a file
        other.need(700_000, 700_000, 0, "g")
        other.close()
        room.close()
        until(lambda: book.count(PUT) == 0)
    put(tier, "b", bytes(LIMIT))


# -- many ------------------------------------------------------------------------------------------


def churn(tier: Tier, seed: int, rounds: int) -> None:
    """Change the files at random; the quota may refuse a change."""
    choice = random.Random(seed)
    for _ in range(rounds):
        path, other = (f"{choice.choice('ab')}/{choice.randrange(4)}" for _ in range(2))
        size = choice.choice((0, 1000, 100_000, 400_000, LIMIT))
        try:
            match choice.randrange(6):
                case 0 | 1:
                    put(tier, path, bytes(size), size=choice.choice((size, None)))
                case 2:
                    put(tier, path, bytes(size), if_absent=True)
                case 3:
                    tier.rename(
                        *choice.choice([(path, other), ("a", "b"), ("b", "a"), ("a", "c"), ("c", "b")])
                    )
                case 4:
                    tier.copy(path, other)
                case _:
                    tier.remove(choice.choice([path, path, "a", "b"]), recursive=choice.random() < 0.5)
        except OSError as problem:
            assert problem.errno in (
                errno.EDQUOT, errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR
            ), problem  # fmt: skip
        assert held_at_most(tier) <= LIMIT


def held_at_most(tier: Tier) -> int:
    """Return the largest size in one walk. A walk can see a moving file twice, so a sum would be too large."""
    return max((entry.size for entry in tier.walk("")), default=0)


def test_threads_share_the_count(tier: Quota, book: SharedCounters) -> None:
    failed: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            churn(tier, seed, 40)
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    assert book.numbers().stored == held(tier) <= LIMIT
    assert book.count(PUT) == 0


def test_processes_share_the_count_and_never_exceed_it(tier: Quota, book: SharedCounters) -> None:
    children = []
    for seed in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                churn(tier, seed, 50)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)
    assert book.numbers().stored == held(tier) <= LIMIT
    assert book.count(PUT) == 0


def test_only_as_many_are_written_at_once_as_fit(tier: Quota, book: SharedCounters) -> None:
    writers = []
    for index in range(4):
        writer = tier.create(str(index), size=300_000)
        writers.append(writer)
        if index == 2:
            full(lambda: tier.create("more", size=300_000))
            writers.pop(0).abort()
    for writer in writers:
        writer.write(bytes(300_000))
        writer.commit()
    assert book.numbers().stored == held(tier) == 900_000


def test_who_is_killed_while_he_writes_has_nothing_reserved(tier: Quota, book: SharedCounters) -> None:
    def begin() -> None:
        writer = tier.create("a", size=LIMIT)
        writer.write(bytes(1000))
        kept.append(writer)

    kept: list[Writer] = []
    for _ in range(3):
        pid = in_child(begin)
        full(lambda: put(tier, "b", b"x"))
        kill(pid)
        put(tier, "b", bytes(LIMIT))
        tier.remove("b")
    assert book.numbers().stored == 0


def test_who_is_killed_at_random_never_lets_others_exceed_it(tier: Quota, book: SharedCounters) -> None:
    """The count is at least the stored size: a kill during a commit leaves it too strict, never too lax."""
    chance = random.Random(7)
    for seed in range(8):
        pid = in_child_running(lambda seed=seed: churn(tier, seed, 10_000))  # type: ignore[misc]
        threading.Event().wait(chance.uniform(0.005, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert held(tier) <= book.numbers().stored <= LIMIT
    assert book.count(PUT) == 0


def in_child_running(what: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            what()
        finally:
            os._exit(1)
    return pid


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "absent", "remove", "all", "rename", "copy"]),
        st.sampled_from(["a", "b", "d/a", "d/b", "d"]),
        st.sampled_from(["a", "b", "d/a", "d/b", "d", "e/f"]),
        st.sampled_from([0, 1, LEAST, 2 * LEAST, 3 * LEAST + 1, 5 * LEAST, 6 * LEAST]),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(STEPS, st.sampled_from([Local, Copying]))
def test_the_count_is_what_is_there(steps: list[tuple[str, str, str, int]], kind: type[Local]) -> None:
    book = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0, limit_stored=10 * LEAST), "quine-quota")
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, book.fd)
        tier = Quota(kind(stack.enter_context(scratch())), book)
        for what, path, other, size in steps:
            before, there = list(tier.walk("")), held(tier)
            try:
                match what:
                    case "put":
                        put(tier, path, bytes(size))
                    case "absent":
                        put(tier, path, bytes(size), if_absent=True)
                    case "rename":
                        tier.rename(path, other)
                    case "copy":
                        tier.copy(path, other)
                    case _:
                        tier.remove(path, recursive=what == "all")
            except OSError as problem:
                assert list(tier.walk("")) == before
                if problem.errno == errno.EDQUOT:  # rightly
                    assert what != "put" or there + max(size, LEAST) > 10 * LEAST
            assert book.numbers().stored == held(tier) <= 10 * LEAST
            assert book.count(PUT) == 0


# -- whose quota it is -----------------------------------------------------------------------------


def test_the_root_of_the_tree_decides(tmp_path: Path) -> None:
    store = Local(str(tmp_path / "store"))
    assert bounded(store, {}) is store
    ledger = Ledger.create(Limits(stored=1_000_000))
    try:
        first, second = bounded(store, {}), bounded(store, {"QUINE_FS_QUOTA": "1T"})
        put(first, "a", bytes(600_000))
        full(lambda: put(second, "b", bytes(600_000)))
        assert ledger.book.numbers().stored == 600_000
    finally:
        os.close(ledger.fd)


def test_without_a_quota_a_tree_may_have_half_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any host could fill the disk of the origin. A command of the user has no bound."""
    store = Local(str(tmp_path / "no" / "store"))
    look, facts = os.statvfs, os.statvfs(tmp_path)  # once: others write to that disk, too
    monkeypatch.setattr(os, "statvfs", lambda place: facts if os.path.exists(place) else look(place))
    assert store.free() == Local(str(tmp_path)).free() != 0
    monkeypatch.setattr(Local, "free", lambda self: 2_000_000)
    ledger = Ledger.create(Limits(stored=limits.stored({})))
    try:
        first = bounded(store, {})
        monkeypatch.setattr(Local, "free", lambda self: 10)  # it is settled once
        second = bounded(store, {})
        assert isinstance(first, Quota) and isinstance(second, Quota) and second.most == 1_000_000
        put(first, "a", bytes(600_000))
        full(lambda: put(second, "b", bytes(600_000)))
    finally:
        os.close(ledger.fd)
    before = set(os.listdir("/proc/self/fd"))
    assert bounded(store, {}) is store and bounded(store, {"QUINE_FS_QUOTA": "0"}, for_job=True) is store
    monkeypatch.setattr(Local, "free", lambda self: 2_000_000)
    try:
        jobs = [bounded(store, {}, for_job=True) for _ in range(2)]  # of one batch of commands
        put(jobs[0], "c", bytes(600_000))
        full(lambda: put(jobs[1], "d", bytes(600_000)))
    finally:
        for fd in set(os.listdir("/proc/self/fd")) - before:
            with contextlib.suppress(OSError):
                os.close(int(fd))
    monkeypatch.setattr(Local, "free", lambda self: None)
    ledger = Ledger.create(Limits(stored=limits.stored({})))
    try:
        assert bounded(store, {}) is store
    finally:
        os.close(ledger.fd)


def test_commands_of_an_agent_share_its_quota(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    agents.env["QUINE_FS_QUOTA"] = "1M"
    done = agents.run(
        says(sh("head -c 600000 /dev/zero | quine fs put - a")),
        says(sh("head -c 600000 /dev/zero | QUINE_FS_QUOTA=1T quine fs put - b")),
        says(
            sh(
                "quine fs rm a && head -c 1000000 /dev/zero | env -u QUINE_FS_QUOTA quine fs put - c; quine fs ls"
            )
        ),
        says(OK),
    )
    assert done.returncode == 0
    first, second, third = agents.results()[:3]
    assert first.startswith("[EXIT CODE] 0\n")
    assert second.startswith("[EXIT CODE] 1\n")
    assert "the tree has 600000 of 1048576 bytes in the files tier" in second
    assert third.startswith("[EXIT CODE] 0\n[STDOUT]\nc\n")


def test_who_becomes_nobodys_child_still_counts_with_the_tree(tmp_path: Path) -> None:
    """As a mount does, which outlives whoever asked for it, with a variable of its own."""
    code = """
import os, sys
from quine.files.layers import quota
from quine.files.stores.local.store import Local
from transport import inherit
told = int(sys.argv[2])
book = quota.of_our_tree()
if os.fork():
    os._exit(0)
os.setsid()
inherit.close_others({book.fd, told})
tier = quota.bounded(Local(sys.argv[1]), {"QUINE_FS_QUOTA": "1T"})
for size in (600_000, 500_000):
    try:
        with tier.create(str(size)) as writer:
            writer.write(bytes(size))
            writer.commit()
        os.write(told, b"done ")
    except OSError as problem:
        os.write(told, problem.strerror.encode())
"""
    ledger = Ledger.create(Limits(stored=1_000_000))
    reading, writing = os.pipe()
    try:
        root = str(Path(__file__).parents[2])
        command = [sys.executable, "-P", "-c", code, str(tmp_path / "store"), str(writing)]
        # Python closes the book, as many programs do: it is found in what holds it above
        subprocess.run(command, pass_fds=[writing], env={"PYTHONPATH": root}, check=True, timeout=120)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            told = b"the tree has 600000 of 1000000 bytes in the files tier, and no room for 500000 more"
            assert file.read() == b"done " + told
        assert ledger.book.numbers().stored == 600_000
    finally:
        os.close(ledger.fd)


def test_without_a_tree_it_is_of_this_process(tmp_path: Path) -> None:
    store = Local(str(tmp_path / "store"))
    before = set(os.listdir("/proc/self/fd"))
    tier = bounded(store, {"QUINE_FS_QUOTA": "1M"})
    assert isinstance(tier, Quota)
    try:
        put(tier, "a", bytes(1 << 20))
        full(lambda: put(tier, "b", b"x"))
        assert get(tier, "a") == bytes(1 << 20)
    finally:
        for fd in set(os.listdir("/proc/self/fd")) - before:
            with contextlib.suppress(OSError):
                os.close(int(fd))
    with pytest.raises(Misconfigured, match="QUINE_FS_QUOTA must be a size as 500M or 2G, not much"):
        bounded(store, {"QUINE_FS_QUOTA": "much"})
