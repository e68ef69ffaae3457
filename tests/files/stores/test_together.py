"""Many at the same store of the files tier: threads, clients, processes, also killed ones. And any order of operations.

The same suite for every store, as tests/files/stores/test_every_store.py.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.files import paths
from quine.files.api import Tier
from tests.files.tiers import MAKERS, Store, below, get, makers, marked, put, whole
from tests.support.acts import together

EXAMPLES = int(os.environ.get("QUINE_TEST_TIER", 0)) // 100

pytestmark = pytest.mark.timeout(300)  # several processes that each load a driver


@pytest.fixture(params=makers())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with MAKERS[request.param](request, tmp_path) as store:
        yield store
        store.tier.close()


# -- threads ---------------------------------------------------------------------------------------


def test_one_of_many_is_the_first(store: Store) -> None:
    store.needs("if_absent")
    tier, won = store.tier, []

    def contend(name: bytes) -> None:
        with contextlib.suppress(FileExistsError):
            put(tier, "locks/one", name, if_absent=True)
            won.append(name)

    for _ in range(3 if store.near else 1):
        together(*(lambda name=b"%d" % index: contend(name) for index in range(16)))  # type: ignore[misc]
        assert [get(tier, "locks/one")] == won
        assert below(tier, "locks") == ["one"]
        tier.remove("locks/one")
        won.clear()


@pytest.mark.long
@pytest.mark.parametrize("if_absent", [False, True])
def test_one_of_many_moves_it(store: Store, if_absent: bool) -> None:
    store.needs("rename")
    tier, moved = store.tier, []

    def claim(index: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            tier.rename("queue/item", f"claimed/{index}", if_absent)
            moved.append(index)

    for _ in range(6 if store.near else 3):
        put(tier, "queue/item", b"work")
        together(*(lambda index=index: claim(index) for index in range(8)))  # type: ignore[misc]
        assert below(tier, "claimed") == [str(index) for index in moved]
        assert len(moved) == 1
        tier.remove(f"claimed/{moved.pop()}")


@pytest.mark.long
def test_readers_see_one_version_whole(store: Store) -> None:
    tier, over = store.tier, threading.Event()
    begun = threading.Barrier(3)  # every reader has begun before the first write
    put(tier, "a", marked("first", 1000))
    seen = []

    def write(name: str) -> None:
        for index in range(10):
            put(tier, "a", marked(f"{name}{index}", 50_000 + 10_000 * index))

    def read() -> None:
        other = store.another()
        try:
            assert whole(get(other, "a"))
        finally:
            begun.wait(120)
        last = False
        while not last:
            last = over.wait(0.001)  # once more, when nobody writes any longer
            try:
                data = get(other, "a")
            except OSError as problem:
                assert problem.errno == errno.ESTALE and not store.has("old") and not last
                continue
            assert whole(data)
            seen.append(len(data))
        other.close()

    readers = [threading.Thread(target=read) for _ in range(2)]
    failed: list[object] = []
    before, threading.excepthook = threading.excepthook, lambda arguments: failed.append(arguments.exc_value)
    try:
        for reader in readers:
            reader.start()
        begun.wait(120)
        together(*(lambda name=name: write(name) for name in "xyz"))  # type: ignore[misc]
    finally:
        over.set()
        for reader in readers:
            reader.join()
        threading.excepthook = before
    assert not failed
    assert seen
    assert whole(get(tier, "a"))
    assert below(tier) == ["a"]


@pytest.mark.long
def test_who_puts_wins_over_who_removes_the_directory(store: Store) -> None:
    """A put makes its directory first. Another process may remove it while it is empty: the put succeeds."""
    tier, over = store.tier, threading.Event()
    count = 40 if store.near else 15

    def put_all() -> None:
        try:
            for index in range(count):
                put(tier, f"d/e/{index}", b"x")
                put(tier, f"kept/{index}", b"x")
                tier.rename(f"d/e/{index}", f"d/f/{index}")
                tier.remove(f"d/f/{index}")
        finally:
            over.set()

    def remove_all() -> None:
        while not over.wait(0.001):
            for path in ("d/e", "d/f", "d"):
                try:
                    tier.remove(path)
                except OSError as problem:
                    assert problem.errno in (errno.ENOENT, errno.ENOTEMPTY), problem

    together(put_all, remove_all)
    assert len(below(tier, "kept")) == count


@pytest.mark.long
def test_listing_what_comes_and_goes(store: Store) -> None:
    tier, over = store.tier, threading.Event()
    for index in range(20):
        put(tier, f"d/stays-{index:02}")

    def change() -> None:
        try:
            for index in range(30 if store.near else 12):
                put(tier, f"d/goes-{index}/x")
                tier.remove(f"d/goes-{index}", recursive=True)
        finally:
            over.set()

    def look() -> None:
        while not over.wait(0.002):
            listed = [entry.path for entry in tier.walk("")]
            assert [path for path in listed if "stays" in path] == [
                f"d/stays-{index:02}" for index in range(20)
            ]

    together(change, look)


# -- processes -------------------------------------------------------------------------------------


def started(store: Store, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(store.command(*words), env=store.environment, stdout=subprocess.PIPE)


def results(processes: list[subprocess.Popen[bytes]]) -> list[bytes]:
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outputs


@pytest.mark.long
def test_one_of_many_processes_is_the_first(store: Store) -> None:
    store.needs("if_absent")
    count = 40 if store.near else 20
    processes = [started(store, "contend", str(n), str(count)) for n in range(4)]
    won = [json.loads(text) for text in results(processes)]
    assert sorted(index for each in won for index in each) == list(range(count))
    assert {get(store.tier, f"locks/{index}") for index in won[0]} <= {b"0"}
    assert len(below(store.tier, "locks")) == count


@pytest.mark.long
def test_processes_replace_the_same_file(store: Store) -> None:
    put(store.tier, "a", marked("first", 1000))
    writers = [started(store, "overwrite", "a", name, "20") for name in "xyz"]
    try:
        while any(writer.poll() is None for writer in writers):
            try:
                assert whole(get(store.tier, "a"))
            except OSError as problem:
                assert problem.errno == errno.ESTALE and not store.has("old")
    finally:
        results(writers)
    assert get(store.tier, "a") in [marked(f"{name}19", 119_000) for name in "xyz"]
    assert below(store.tier) == ["a"]


@pytest.mark.long
def test_processes_put_into_the_same_new_directory(store: Store) -> None:
    results([started(store, "append", "deep/new/directory", str(n), "15") for n in range(3)])
    assert len(below(store.tier, "deep/new/directory")) == 45


@pytest.mark.long
def test_who_is_killed_leaves_nothing(store: Store) -> None:
    put(store.tier, "there", b"old")
    for path in ("there", "new/file"):
        writer = started(store, "hang", path, "3000000")
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == b"begun\n"
        finally:
            os.kill(writer.pid, signal.SIGKILL)
            writer.communicate()
        assert [entry.path for entry in store.tier.walk("") if entry.is_file] == ["there"]
        assert get(store.tier, "there") == b"old"
        put(store.tier, "there", b"old")


# -- any order -------------------------------------------------------------------------------------

SOME = ["a", "b", "a/a", "a/b", "b/a", "a/b/c", "b/a/b/a", "", "\n/-", os.fsdecode(b"\xff")]
PATHS = st.sampled_from(SOME)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PATHS, st.binary(max_size=3), st.booleans()),
        st.tuples(st.just("mkdir"), PATHS, st.booleans()),
        st.tuples(st.just("remove"), PATHS, st.booleans()),
        st.tuples(st.just("rename"), PATHS, PATHS, st.booleans()),
        st.tuples(st.just("copy"), PATHS, PATHS, st.booleans()),
        st.tuples(st.just("get"), PATHS),
        st.tuples(st.just("list"), PATHS),
        st.tuples(st.just("stat"), PATHS),
    ),
    max_size=25,
)


class Model:
    """A model of a tier: paths with their content, or None for a directory."""

    def __init__(self) -> None:
        self.all: dict[str, bytes | None] = {"": None}

    def find(self, path: str) -> bytes | None:
        for above in paths.ancestors(path):
            if self.all.get(above) is not None:
                raise OSError(errno.ENOTDIR, "")
        if path not in self.all:
            raise OSError(errno.ENOENT, "")
        return self.all[path]

    def may(self, path: str) -> bool:
        """Is something there?"""
        try:
            self.find(path)
        except FileNotFoundError:
            return False
        return True

    def place(self, path: str, content: bytes | None) -> None:
        for above in paths.ancestors(path):
            self.all.setdefault(above, None)
        self.all[path] = content

    def inside(self, path: str) -> list[str]:
        return [each for each in self.all if each.startswith(path + "/") or (not path and each)]

    def put(self, path: str, data: bytes, if_absent: bool) -> None:
        if self.may(path):
            if self.all[path] is None:
                raise OSError(errno.EISDIR, "")
            if if_absent:
                raise OSError(errno.EEXIST, "")
        self.place(path, data)

    def mkdir(self, path: str, exist_ok: bool) -> None:
        if self.may(path):
            if self.all[path] is not None or not exist_ok:
                raise OSError(errno.EEXIST, "")
        else:
            self.place(path, None)

    def remove(self, path: str, recursive: bool) -> None:
        if not path:
            raise OSError(errno.EPERM, "")
        self.find(path)
        if self.inside(path) and not recursive:
            raise OSError(errno.ENOTEMPTY, "")
        for each in [path, *self.inside(path)]:
            del self.all[each]

    def rename(self, source: str, target: str, if_absent: bool) -> None:
        content = self.find(source)
        if not source or target.startswith(source + "/"):
            raise OSError(errno.ENOTDIR if content is not None else errno.EINVAL, "")
        if self.may(target):
            there = self.all[target]
            if if_absent:
                raise OSError(errno.EEXIST, "")
            if source == target:
                return
            if content is not None and there is None:
                raise OSError(errno.EISDIR, "")
            if content is None and there is not None:
                raise OSError(errno.ENOTDIR, "")
            if content is None and self.inside(target):
                raise OSError(errno.ENOTEMPTY, "")
        moved = [(each[len(source) :], self.all.pop(each)) for each in [source, *self.inside(source)]]
        for rest, what in moved:
            self.place(target + rest, what)

    def copy(self, source: str, target: str, if_absent: bool) -> None:
        content = self.find(source)
        if content is None:
            raise OSError(errno.EISDIR, "")
        self.put(target, content, if_absent)

    def get(self, path: str) -> bytes:
        content = self.find(path)
        if content is None:
            raise OSError(errno.EISDIR, "")
        return content

    def list(self, path: str) -> list[tuple[str, str, int]]:
        if self.find(path) is not None:
            raise OSError(errno.ENOTDIR, "")
        found = [each for each in self.inside(path) if paths.parent(each) == path]
        return [self.stat(each) for each in sorted(found, key=os.fsencode)]

    def stat(self, path: str) -> tuple[str, str, int]:
        content = self.find(path)
        return path, "directory" if content is None else "file", len(content or b"")


class Real:
    """The same of a tier, below a directory of its own."""

    def __init__(self, tier: Tier, root: str) -> None:
        self.tier = tier
        self.root = root

    def at(self, path: str) -> str:
        return paths.join(self.root, path)

    def put(self, path: str, data: bytes, if_absent: bool) -> None:
        put(self.tier, self.at(path), data, if_absent=if_absent)

    def mkdir(self, path: str, exist_ok: bool) -> None:
        self.tier.mkdir(self.at(path), exist_ok)

    def remove(self, path: str, recursive: bool) -> None:
        self.tier.remove(self.at(path), recursive)

    def rename(self, source: str, target: str, if_absent: bool) -> None:
        self.tier.rename(self.at(source), self.at(target), if_absent)

    def copy(self, source: str, target: str, if_absent: bool) -> None:
        self.tier.copy(self.at(source), self.at(target), if_absent)

    def get(self, path: str) -> bytes:
        return get(self.tier, self.at(path))

    def seen(self, path: str, kind: str, size: int) -> tuple[str, str, int]:
        return path[len(self.root) + 1 :], kind, size

    def list(self, path: str) -> list[tuple[str, str, int]]:
        return [self.seen(each.path, each.kind, each.size) for each in self.tier.list(self.at(path))]

    def stat(self, path: str) -> tuple[str, str, int]:
        entry = self.tier.stat(self.at(path))
        return self.seen(entry.path, entry.kind, entry.size)


def outcome(what: object, verb: str, arguments: tuple[object, ...]) -> object:
    try:
        return getattr(what, verb)(*arguments)
    except OSError as problem:
        return errno.errorcode[problem.errno or 0]


def allowed(store: Store, step: tuple[object, ...]) -> bool:
    """Return whether a step can be done. The root of the model must stay, and a store may lack an operation."""
    verb = str(step[0])
    if "" in step[1:3] and verb in ("remove", "rename"):
        return False
    if verb in ("put", "rename", "copy") and step[-1]:
        return store.has("if_absent")
    return True


@pytest.mark.long
def test_any_order_of_operations(store: Store) -> None:
    numbers = iter(range(1 << 30))

    @settings(max_examples=EXAMPLES or (150 if store.near else 15))
    @given(STEPS)
    def run(steps: list[tuple[object, ...]]) -> None:
        model, real = Model(), Real(store.tier, f"example-{next(numbers)}")
        store.tier.mkdir(real.root)
        for step in steps:
            if allowed(store, step):
                expected = outcome(model, str(step[0]), step[1:])
                assert outcome(real, str(step[0]), step[1:]) == expected, step
                if not store.has("stays"):  # then what is empty is made, in both
                    for path in [path for path, content in model.all.items() if content is None and path]:
                        store.tier.mkdir(real.at(path), exist_ok=True)
        found = [real.seen(each.path, each.kind, each.size) for each in store.tier.walk(real.root)]
        assert sorted(found) == sorted(model.stat(path) for path in model.all if path)
        assert {path: real.get(path) for path, content in model.all.items() if content is not None} == {
            path: content for path, content in model.all.items() if content is not None
        }

    run()


def test_the_library_is_not_needed(tmp_path: Path) -> None:
    """A local tier is opened, used and closed without the libraries of other stores."""
    code = """
import sys
from quine.files.stores.registry import open_store
tier = open_store("origin:", {}, sys.argv[1])
with tier.create("a", if_absent=True) as writer:
    writer.write(b"x")
    writer.commit()
tier.remove("a")
assert not {"fsspec", "asyncssh", "httpx", "pydantic", "typer", "asyncio"} & set(sys.modules)
"""
    root = str(Path(__file__).parents[3])
    subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)], env={"PYTHONPATH": root}, check=True, timeout=120
    )
