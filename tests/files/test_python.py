"""`quine://` for Python: the interface that fsspec expects of a filesystem, and the promises of the files tier.

fsspec's own abstract suite runs over it. The other tests are about whole files, one version for each reader, and
the state after an exception.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import gc
import gzip
import io
import json
import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.common import GLOB_EDGE_CASES_TESTS
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quine.files.api import Reader
from quine.files.python.filesystem import QuineFileSystem
from quine.files.stores.local.store import Local
from tests.files.tiers import scratch
from tests.lab import Lab


@pytest.fixture
def fs(tmp_path: Path) -> QuineFileSystem:
    return QuineFileSystem(Local(str(tmp_path / "tier")), skip_instance_cache=True)


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The store of `quine://` URLs is a directory of this test."""
    monkeypatch.setenv("QUINE_FS", f"file://{tmp_path}/tier")
    QuineFileSystem.clear_instance_cache()
    yield tmp_path / "tier"
    QuineFileSystem.clear_instance_cache()


# ---------------------------------------------------------------------------- fsspec's own expectations


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, tmp_path: Path) -> QuineFileSystem:
        return QuineFileSystem(Local(str(tmp_path / "tier")), skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "path"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)


def few(test: Callable[..., None]) -> Callable[..., None]:
    """Every fifth of the patterns: fsspec expands them, and asks the filesystem the same questions for each."""

    @functools.wraps(test)
    def shorter(*positional: Any, **named: Any) -> None:
        test(*positional, **named)

    cases = pytest.mark.parametrize(
        GLOB_EDGE_CASES_TESTS["argnames"], GLOB_EDGE_CASES_TESTS["argvalues"][::5]
    )
    shorter.pytestmark = [cases.mark]  # type: ignore[attr-defined]
    return shorter


class TestCopy(AbstractCopyTests, Fixtures):
    test_copy_glob_edge_cases = few(AbstractCopyTests.test_copy_glob_edge_cases)


class TestGet(AbstractGetTests, Fixtures):
    test_get_glob_edge_cases = few(AbstractGetTests.test_get_glob_edge_cases)


class TestPut(AbstractPutTests, Fixtures):
    test_put_glob_edge_cases = few(AbstractPutTests.test_put_glob_edge_cases)


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass


# -------------------------------------------------------------------------------- as Python people use it


def test_fsspec_knows_the_protocol_and_opens_text_json_csv_and_gzip(ours: Path) -> None:
    with fsspec.open("quine://a/notes.txt", "w", encoding="utf-8") as file:
        file.write("ä\nb\n")
    with fsspec.open("quine://a/notes.txt", "r", encoding="utf-8") as file:
        assert list(file) == ["ä\n", "b\n"]
    with fsspec.open("quine://a/t.json", "w") as file:
        json.dump({"n": [1, 2]}, file)
    with fsspec.open("quine://a/t.json") as file:
        assert json.load(file) == {"n": [1, 2]}
    with fsspec.open("quine://a/t.csv.gz", "wt", compression="infer", newline="") as file:
        csv.writer(file).writerows([[1, "x"], [2, "y"]])
    with fsspec.open("quine://a/t.csv.gz", "rt", compression="infer", newline="") as file:
        assert list(csv.reader(file)) == [["1", "x"], ["2", "y"]]
    assert gzip.decompress((ours / "a/t.csv.gz").read_bytes()) == b"1,x\r\n2,y\r\n"
    many = fsspec.open_files("quine://b/part-*.txt", "w", num=3)
    for number, one in enumerate(many):
        with one as file:
            file.write(str(number))
    read = fsspec.open_files("quine://b/part-*.txt")
    with read as files:
        assert [file.read() for file in files] == [b"0", b"1", b"2"]


def test_the_protocol_is_an_entry_point() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="fsspec.specs", name="quine")
    assert found.load() is QuineFileSystem


def test_files_and_directories(fs: QuineFileSystem) -> None:
    fs.pipe({"d/one": b"1", "d/two": b"22", "d/e/three": b"333"})
    assert fs.ls("d", detail=False) == ["d/e", "d/one", "d/two"]
    assert [one["type"] for one in fs.ls("quine://d")] == ["directory", "file", "file"]
    assert fs.ls("d/one", detail=False) == ["d/one"]
    assert sorted(fs.find("")) == ["d/e/three", "d/one", "d/two"]
    assert sorted(fs.glob("d/*o*")) == ["d/one", "d/two"]
    assert sorted(fs.glob("**/t*")) == ["d/e/three", "d/two"]
    assert fs.info("d/two")["size"] == 2 and fs.info("d")["type"] == "directory"
    assert fs.exists("d") and fs.isdir("d") and fs.isfile("d/one") and not fs.isfile("d")
    assert not fs.exists("nothing") and not fs.exists("d/one/below") and not fs.isdir("nothing")
    assert fs.cat({"d/one": None}.keys()) == b"1" or fs.cat(["d/one", "d/two"]) == {
        "d/one": b"1",
        "d/two": b"22",
    }
    assert fs.cat_file("d/e/three", 1, 2) == b"3" and fs.cat_file("d/two", -1) == b"2"
    assert fs.du("d") == 6
    fs.mv("d/one", "d/e/")
    assert fs.cat("d/e/one") == b"1" and not fs.exists("d/one")
    fs.mv("d/e", "f")
    assert sorted(fs.find("")) == ["d/two", "f/one", "f/three"]
    fs.cp("f/one", "f/copied")
    fs.cp("f", "g", recursive=True)
    assert sorted(fs.find("g")) == ["g/copied", "g/one", "g/three"]
    fs.touch("empty")
    assert fs.cat("empty") == b""
    fs.pipe_file("kept", b"k")
    fs.touch("kept", truncate=False)
    assert fs.cat("kept") == b"k"
    assert [name for _, _, names in fs.walk("g") for name in names] == ["copied", "one", "three"]
    fs.rm("g", recursive=True)
    assert not fs.exists("g")
    fs.rm_file("f/one")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("f")
    with pytest.raises(NotADirectoryError):
        fs.rmdir("kept")
    with pytest.raises(FileNotFoundError):
        fs.rm("nothing")


def test_directories_that_are_made(fs: QuineFileSystem) -> None:
    fs.makedirs("a/b/c")
    fs.makedirs("a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("a/b/c")
    with pytest.raises(FileExistsError):
        fs.mkdir("a")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("x/y", create_parents=False)
    fs.mkdir("x/y")
    fs.rmdir("x/y")
    assert fs.isdir("x") and not fs.exists("x/y")


def test_what_would_lead_out_is_refused(fs: QuineFileSystem) -> None:
    for path in ("../x", "quine://a/../../x", "a/.."):
        with pytest.raises(PermissionError):
            fs.info(path)
        with pytest.raises(PermissionError):
            fs.exists(path)
        with pytest.raises(PermissionError):
            fs.open(path, "wb")


@pytest.mark.parametrize("mode", ["ab", "a", "r+b", "w+b", "rb+"])
def test_what_is_replaced_whole_is_not_appended_to(fs: QuineFileSystem, mode: str) -> None:
    fs.pipe("file", b"before")
    with pytest.raises(OSError, match="replaced whole"):
        fs.open("file", mode)
    assert fs.cat("file") == b"before"


def test_exclusive_is_decided_by_the_store(fs: QuineFileSystem) -> None:
    won: list[int] = []

    def contend(number: int) -> None:
        with contextlib.suppress(FileExistsError), fs.open("lock", "xb") as file:
            file.write(str(number).encode())
        if fs.cat("lock") == str(number).encode():
            won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [int(fs.cat("lock"))]
    with pytest.raises(FileExistsError):
        fs.pipe_file("lock", b"again", mode="create")


# ----------------------------------------------------------------------------- seen whole or not at all


def test_nobody_sees_a_file_before_it_is_closed(fs: QuineFileSystem) -> None:
    fs.pipe("file", b"old")
    with fs.open("file", "wb") as file:
        file.write(b"n" * (3 << 20))
        assert fs.cat("file") == b"old" and file.tell() == 3 << 20
    assert fs.cat("file") == b"n" * (3 << 20)


class Broken(Exception):
    pass


def leave_binary(fs: QuineFileSystem) -> None:
    with fs.open("file", "wb") as file:
        file.write(b"half")
        raise Broken


def leave_text(fs: QuineFileSystem) -> None:
    with fs.open("file", "w") as file:
        file.write("half")
        file.flush()
        raise Broken


def leave_by_fsspec(fs: QuineFileSystem) -> None:
    with fsspec.core.OpenFile(fs, "file", "wt", compression="gzip") as file:
        file.write("half")
        raise Broken


def leave_by_a_library(fs: QuineFileSystem) -> None:
    """As pandas does it: a handle that closes what it has, and tells it nothing."""

    class Handles:
        def __init__(self) -> None:
            self.file = fs.open("file", "wb")

        def __enter__(self) -> Any:
            return self.file

        def __exit__(self, kind: object, error: object, trace: object) -> None:
            self.file.close()

    with Handles() as file:
        file.write(b"half")
        raise Broken


def leave_by_a_stack(fs: QuineFileSystem) -> None:
    with contextlib.ExitStack() as stack:
        file = fs.open("file", "wb")
        stack.callback(file.close)
        file.write(b"half")
        raise Broken


def leave_a_transaction(fs: QuineFileSystem) -> None:
    with fs.transaction:
        with fs.open("file", "wb") as file:
            file.write(b"half")
        raise Broken


@pytest.mark.parametrize(
    "leave",
    [
        leave_binary,
        leave_text,
        leave_by_fsspec,
        leave_by_a_library,
        leave_by_a_stack,
        leave_a_transaction,
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_what_is_left_by_an_exception_is_discarded(
    fs: QuineFileSystem, leave: Callable[[QuineFileSystem], None], before: bool
) -> None:
    if before:
        fs.pipe("file", b"old")
    with pytest.raises(Broken):
        leave(fs)
    assert fs.find("") == (["file"] if before else [])
    assert not before or fs.cat("file") == b"old"


def test_a_file_written_while_another_exception_is_handled_is_kept(fs: QuineFileSystem) -> None:
    class Reports:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: object, error: object, trace: object) -> None:
            with fs.open("report", "w") as file:
                file.write(repr(error))

    try:
        raise Broken
    except Broken:
        with fs.open("handled", "w") as file:
            file.write("yes")
    with pytest.raises(Broken), Reports():
        raise Broken
    assert fs.cat("handled") == b"yes" and fs.cat("report") == b"Broken()"


def test_a_file_that_nobody_closes_is_discarded_and_told(fs: QuineFileSystem) -> None:
    def forget() -> None:
        file = fs.open("file", "wb")
        file.write(b"half")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        forget()
        gc.collect()
    assert any("discarded" in str(one.message) for one in told)
    assert fs.find("") == []


def test_a_transaction_shows_nothing_before_its_end(fs: QuineFileSystem) -> None:
    with fs.transaction:
        for name in ("a", "b"):
            with fs.open(name, "wb") as file:
                file.write(name.encode())
        assert fs.find("") == []
    assert fs.cat(["a", "b"]) == {"a": b"a", "b": b"b"}
    with fs.open("c", "wb") as file:
        file.write(b"c")
    assert fs.cat("c") == b"c"


def test_a_transaction_holds_whatever_way_a_file_is_put(fs: QuineFileSystem, tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"put")

    def put() -> None:
        fs.pipe({"piped": b"piped", "none": b""})
        fs.touch("touched")
        fs.put(str(tmp_path / "own"), "put")
        assert fs.find("") == []

    with pytest.raises(Broken), fs.transaction:
        put()
        raise Broken
    assert fs.find("") == []
    with fs.transaction:
        put()
        with contextlib.suppress(Broken), fs.open("left", "wb") as file:
            file.write(b"half")
            raise Broken
    assert fs.cat(fs.find("")) == {"none": b"", "piped": b"piped", "put": b"put", "touched": b""}


# ------------------------------------------------------------------------------------------- reading


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(0, 3 << 20),
    moves=st.lists(
        st.tuples(
            st.sampled_from([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END, None]),
            st.integers(0, 3 << 20),
            st.sampled_from([1, 100, 1 << 16, 1 << 20, -1]),
        ),
        max_size=12,
    ),
)
def test_seeks_and_reads_are_those_of_a_plain_file(
    size: int, moves: list[tuple[int | None, int, int]]
) -> None:
    content = random.Random(size).randbytes(size)
    plain = io.BytesIO(content)
    with contextlib.ExitStack() as stack:
        fs = QuineFileSystem(Local(stack.enter_context(scratch())), skip_instance_cache=True)
        fs.pipe("file", content)
        file = stack.enter_context(fs.open("file", "rb"))
        assert file.size == size
        for whence, offset, wanted in moves:
            if whence is not None:
                offset = min(offset, size) if whence == io.SEEK_SET else -min(offset, size)
                if whence == io.SEEK_CUR:
                    offset = max(offset, -plain.tell())
                assert file.seek(offset, whence) == plain.seek(offset, whence)
            assert file.read(wanted) == plain.read(wanted)
            assert file.tell() == plain.tell()


def test_a_seek_asks_for_little_and_reading_on_for_more(fs: QuineFileSystem) -> None:
    """The foot of a large table is read, not the table."""
    asked: list[tuple[int, int | None]] = []
    tier = fs.tier

    class Counting(type(tier)):  # type: ignore[misc]
        def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
            asked.append((offset, length))
            return super().open(path, offset, length)  # type: ignore[no-any-return]

    fs.pipe("file", bytes(20 << 20))
    tier.__class__ = Counting
    with fs.open("file", "rb") as file:
        file.seek(-8, io.SEEK_END)
        assert len(file.read(8)) == 8
        file.seek(1 << 20)
        for _ in range(64):
            file.read(1 << 17)
    assert asked[0] == (0, None) and all(length is not None and length <= 1 << 25 for _, length in asked[1:])
    assert len(asked) < 8


def test_who_reads_reads_one_version(fs: QuineFileSystem) -> None:
    fs.pipe("file", b"a" * (4 << 20))
    with fs.open("file", "rb") as file:
        first = file.read(100)
        fs.pipe("file", b"b" * (4 << 20))
        file.seek(3 << 20)
        with contextlib.suppress(OSError):
            first += file.read(100)
        assert set(first) == {ord("a")}


def test_whole_files_come_and_go_with_mode_and_time(fs: QuineFileSystem, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "below" / "target"
    source.write_bytes(os.urandom(1 << 20))
    source.chmod(0o640)
    os.utime(source, (1e9, 1e9))
    fs.put_file(str(source), "kept")
    fs.get_file("kept", str(target))
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mtime == 1e9 and target.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in target.parent.iterdir()] == ["target"]
    assert fs.modified("kept").timestamp() == 1e9
    before = fs.ukey("kept")
    fs.pipe("kept", b"other")
    assert fs.ukey("kept") != before


def test_a_get_that_fails_leaves_the_old_file(fs: QuineFileSystem, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        fs.get_file("nothing", str(target))
    assert target.read_bytes() == b"old"


# ------------------------------------------------------------------------------------------ in a job

SCRIPT = """
import csv, gzip, json, sys
import fsspec
with fsspec.open("quine://in/data.json.gz", "rt", compression="infer") as file:
    rows = json.load(file)
with fsspec.open("quine://out/rows.csv", "w", newline="") as file:
    csv.writer(file).writerows(rows)
fs = fsspec.filesystem("quine")
fs.pipe("out/bytes", bytes(range(256)) * 4096)
with fs.open("out/bytes") as file:
    file.seek(-256, 2)
    assert file.read() == bytes(range(256))
try:
    with fsspec.open("quine://out/half", "w") as file:
        file.write("half" * 1_000_000)
        raise KeyError
except KeyError:
    pass
try:
    with fs.open("in/data.json.gz", "xb") as file:
        file.write(b"other")
except FileExistsError:
    print("there is one")
print(fs.ls("out", detail=False), type(fs.tier).__name__)
"""


def test_a_job_on_a_host_has_it_in_the_python_of_its_binary(lab: Lab, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    (tier / "in").mkdir(parents=True)
    (tier / "in/data.json.gz").write_bytes(gzip.compress(b'[[1, "x"], [2, "y"]]'))
    done = lab.run(
        ["run", "--on", "h1", "--", "quine", "fs", "python", "-"],
        env={"QUINE_FS": f"origin:{tier}"},
        input=SCRIPT,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "there is one\n['out/bytes', 'out/rows.csv'] Remote\n"
    assert (tier / "out/rows.csv").read_bytes() == b"1,x\r\n2,y\r\n"
    assert (tier / "out/bytes").read_bytes() == bytes(range(256)) * 4096


def test_it_is_there_without_a_job_too(lab: Lab, tmp_path: Path) -> None:
    code = "import fsspec; fsspec.filesystem('quine').pipe('a', b'1')"
    done = lab.run(["fs", "python", "-c", code], env={"QUINE_FS": f"file://{tmp_path}/tier"})
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "tier/a").read_bytes() == b"1"
