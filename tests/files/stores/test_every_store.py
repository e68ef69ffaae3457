"""One suite for every store of the files tier: the promises of `quine/files/api.py`, with any backend.

`QUINE_TEST_TIER=100000` is the long form: so many small files, and 5 GB also where a store has no holes. On a disk that
syncs in milliseconds it takes an hour or two; `--basetemp` in /dev/shm spares that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quine.files.api import BLOCK, Tier, pour
from tests.files.tiers import MAKERS, Store, below, get, makers, put

GIGABYTES_5 = 5 << 30
LONG = int(os.environ.get("QUINE_TEST_TIER", 0))
NAMES = [
    " ", " a ", "a b", "a\nb", "a\tb", "\r", "'", '"', "`$(x)`", ";&|<>", "-rf", "--", "~", "~root", "%", "%2F", "%zz",
    "*", "?", "[a]", "{a,b}", "\\", "a\\b", ".hidden", "...", "..a", "a.", "#", "a#b?c=d&e", "+", "@", ":", "a:b", "C:",
    "=", ",", "!", "é", unicodedata.normalize("NFD", "é"), "日本語", "🦊", "\u202e", "\x01", "\x7f",
    os.fsdecode(b"\xff\xfe"), os.fsdecode(b"caf\xe9"), os.fsdecode(b"\xed\xa0\x80"), "A", "a", "CON", "_", "__",
    "x" * 255, "é" * 127, "~~x~", "index.html", "s3:", "null", "quine-parts", ".quine-part",
]  # fmt: skip
SIZES = [0, 1, 4095, 4096, 4097, 65536, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]


@pytest.fixture(params=makers())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with MAKERS[request.param](request, tmp_path) as store:
        yield store
        store.tier.close()


@pytest.fixture
def tier(store: Store) -> Tier:
    return store.tier


def refused(number: int, what: Callable[[], object]) -> OSError:
    with pytest.raises(OSError) as caught:
        what()
    assert caught.value.errno == number, caught.value
    return caught.value


# -- content ---------------------------------------------------------------------------------------


def test_a_new_tier_is_an_empty_root(tier: Tier) -> None:
    assert tier.stat("").kind == "directory"
    assert tier.stat("").path == ""
    assert list(tier.list("")) == [] == list(tier.walk(""))
    refused(errno.ENOENT, lambda: tier.stat("a"))


def test_every_byte_comes_back(tier: Tier) -> None:
    for size in SIZES:
        data = os.urandom(size)
        put(tier, f"sizes/{size}", data)
        entry = tier.stat(f"sizes/{size}")
        assert (entry.path, entry.kind, entry.size) == (f"sizes/{size}", "file", size)
        assert get(tier, f"sizes/{size}") == data
    listed = {entry.path: entry.size for entry in tier.list("sizes")}
    assert listed == {f"sizes/{size}": size for size in SIZES}


def test_writes_of_any_size_are_one_file(tier: Tier) -> None:
    data = os.urandom(100_000)
    with tier.create("a") as writer:
        for start, end in ((0, 1), (1, 1), (1, 7000), (7000, 99_999), (99_999, 100_000)):
            writer.write(memoryview(data)[start:end])
        writer.write(bytearray())
        entry = writer.commit()
    assert entry == tier.stat("a")
    assert entry.size == 100_000
    assert get(tier, "a") == data


def test_ranges(tier: Tier) -> None:
    data = os.urandom(10_000)
    put(tier, "a", data)
    for offset, length in (
        (0, 0),
        (0, 10),
        (9_999, 10),
        (1234, 4321),
        (10_000, None),
        (20_000, 5),
        (5, None),
    ):
        end = None if length is None else offset + length
        with tier.open("a", offset, length) as reader:
            assert reader.offset == offset
            assert reader.entry.size == 10_000
            assert reader.length == len(data[offset:end])
            assert b"".join(iter(lambda reader=reader: reader.data(777), b"")) == data[offset:end]  # type: ignore[misc]
            assert reader.read(10) == b""
    refused(errno.EINVAL, lambda: tier.open("a", -1))


def test_a_file_is_replaced_whole(tier: Tier) -> None:
    put(tier, "a", b"a long first version")
    put(tier, "a", b"short")
    assert get(tier, "a") == b"short"
    put(tier, "a")
    assert tier.stat("a").size == 0
    assert below(tier) == ["a"]


def test_an_empty_file_is_a_file(tier: Tier) -> None:
    put(tier, "d/empty")
    assert tier.stat("d/empty").is_file
    assert [entry.kind for entry in tier.list("d")] == ["file"]
    assert get(tier, "d/empty") == b""


def test_versions_tell_contents_apart(store: Store) -> None:
    store.needs("versions")
    tier = store.tier
    versions = [put(tier, "a", data, mtime=1e9) for data in (b"one", b"two", b"three", b"one two")]
    assert len(set(versions)) == 4
    assert tier.stat("a").version == versions[-1] != ""
    assert next(iter(tier.list(""))).version == versions[-1]
    with tier.open("a") as reader:
        assert reader.entry.version == versions[-1]


# -- holes, descriptors ----------------------------------------------------------------------------


def sparse(tier: Tier, path: str, size: int) -> None:
    """Data at the beginning, in the middle and near the end, which is a hole."""
    with tier.create(path, size=3 * size) as writer:
        writer.write(b"first" * 1000)
        writer.hole(size)
        writer.write(b"middle" * 1000)
        writer.hole(size)
        writer.write(b"last")
        writer.hole(size)
        assert writer.commit().size == 3 * size + 11_004


def test_a_hole_is_zeros(tier: Tier) -> None:
    sparse(tier, "a", 200_000)
    hole = bytes(200_000)
    content = b"first" * 1000 + hole + b"middle" * 1000 + hole + b"last" + hole
    assert get(tier, "a") == content
    for offset, length in ((4_999, 3), (5_000, 200_000), (100_000, None), (300_000, 200_000), (611_000, 9)):
        end = None if length is None else offset + length
        assert get(tier, "a", offset, length) == content[offset:end]
    with tier.open("a") as reader, tier.create("b") as writer:
        assert pour(reader, writer) == len(content)
        writer.commit()
    assert get(tier, "b") == content


def test_a_file_that_is_only_a_hole(tier: Tier) -> None:
    with tier.create("a") as writer:
        writer.hole(300_000)
        assert writer.commit().size == 300_000
    assert get(tier, "a") == bytes(300_000)


def test_holes_are_known_and_kept(store: Store) -> None:
    store.needs("holes")
    tier, size = store.tier, GIGABYTES_5 // 3
    sparse(tier, "a", size)
    tier.copy("a", "b")
    for path in ("a", "b"):
        with tier.open(path) as reader:
            assert sum(length for _, length in reader.holes) > 3 * size - BLOCK
            data = b"".join(iter(lambda reader=reader: reader.data(BLOCK), b""))  # type: ignore[misc]
            assert len(data) == reader.length - sum(length for _, length in reader.holes)
            assert data.replace(b"\0", b"") == b"first" * 1000 + b"middle" * 1000 + b"last"
        with tier.open(path, size, 2 * size) as reader:  # within what is read
            assert all(size <= start and start + length <= 3 * size for start, length in reader.holes)


@pytest.mark.timeout(3 * 3600 if LONG else 300)
def test_five_gigabytes_of_nothing(store: Store) -> None:
    """Where the store has no holes these are bytes, and minutes: the long form."""
    if not (store.has("holes") or LONG):
        pytest.skip("in the long form only")
    tier, size = store.tier, GIGABYTES_5 // 3
    sparse(tier, "a", size)
    assert tier.stat("a").size == 3 * size + 11_004
    assert get(tier, "a", 4_998, 4) == b"st\0\0"
    assert get(tier, "a", size + 4_998, 9) == b"\0\0middlem"
    assert get(tier, "a", 2 * size + 11_000 - 2, 8) == b"\0\0last\0\0"
    assert get(tier, "a", 3 * size + 11_000) == bytes(4)
    tier.remove("a")


def test_descriptors_take_over(store: Store, tmp_path: Path) -> None:
    tier, data = store.tier, os.urandom(3 * BLOCK + 5)
    (tmp_path / "from").write_bytes(data)
    with (tmp_path / "from").open("rb", buffering=0) as source, tier.create("a") as writer:
        writer.write(b"before")
        assert writer.take(source.fileno(), len(data)) == len(data)
        assert writer.take(source.fileno(), 5) == 0
        writer.write(b"after")
        writer.commit()
    with (tmp_path / "to").open("wb", buffering=0) as target, tier.open("a", 3) as reader:
        assert reader.data(3) == b"ore"
        while reader.give(target.fileno(), BLOCK):
            continue
    assert (tmp_path / "to").read_bytes() == data + b"after"
    if store.has("descriptors"):
        with tier.open("a", 2, 100) as reader:
            assert reader.data(2) == b"fo"
            assert os.read(reader.fileno(), 2) == b"re"
            assert reader.data(1000) == data[:96]
            assert reader.data(1) == b""
        with tier.create("b") as writer:
            writer.write(b"one")
            os.write(writer.fileno(), b"two")
            writer.write(b"three")
            writer.commit()
        assert get(tier, "b") == b"onetwothree"


def test_a_pipe_is_taken_to_its_end(tier: Tier) -> None:
    reading, writing = os.pipe()
    thread = threading.Thread(target=lambda: (os.write(writing, b"x" * 50_000), os.close(writing)))
    thread.start()
    try:
        with tier.create("a") as writer:
            assert writer.take(reading, 1 << 40) == 50_000
            writer.commit()
    finally:
        thread.join()
        os.close(reading)
    assert get(tier, "a") == b"x" * 50_000


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_name_is_kept_as_it_is(tier: Tier) -> None:
    for name in NAMES:
        put(tier, f"names/{name}", os.fsencode(name))
    assert below(tier, "names") == sorted(NAMES, key=os.fsencode)
    for name in NAMES:
        assert get(tier, f"names/{name}") == os.fsencode(name)
        assert tier.stat(f"names/{name}").path == f"names/{name}"
    for name in NAMES[::6]:
        tier.rename(f"names/{name}", f"moved/{name}")
        assert get(tier, f"moved/{name}") == os.fsencode(name)
        tier.remove(f"moved/{name}")
    assert below(tier, "names") == sorted(set(NAMES) - set(NAMES[::6]), key=os.fsencode)


def test_every_name_may_be_a_directory(tier: Tier) -> None:
    some = NAMES[::3]
    for name in some:
        put(tier, f"{name}/{name}", b"x")
    assert below(tier) == sorted(some, key=os.fsencode)
    assert {entry.path for entry in tier.walk("") if entry.is_file} == {f"{name}/{name}" for name in some}
    tier.mkdir("\n/a /*")
    assert [entry.path for entry in tier.walk("\n")] == ["\n/a ", "\n/a /*"]


def test_paths_may_be_deep(tier: Tier) -> None:
    deep = "/".join(["d"] * 60)
    longest = "/".join(["x" * 250] * 3)
    for path in (deep, longest):
        put(tier, f"{path}/file", b"deep")
        assert get(tier, f"{path}/file") == b"deep"
    assert len(list(tier.walk("d"))) == 60
    tier.remove("d", recursive=True)
    refused(errno.ENOENT, lambda: tier.stat("d"))


def test_the_order_is_that_of_bytes(tier: Tier) -> None:
    files = ["a", "a-b", "a.b", "B", "a0", "Z", "é", os.fsdecode(b"\xff"), "~"]
    for name in files:
        put(tier, f"d/{name}/f")
        put(tier, f"d/{name}!")
    assert below(tier, "d") == sorted([*files, *(f"{name}!" for name in files)], key=os.fsencode)


# -- what is seen, and when ------------------------------------------------------------------------


def test_nothing_is_seen_before_the_commit(store: Store) -> None:
    tier, other = store.tier, store.another()
    put(tier, "there", b"old")
    for path in ("there", "new/file"):
        with tier.create(path) as writer:
            writer.write(b"x" * 100_000)
            assert get(other, "there") == b"old"
            refused(errno.ENOENT, lambda: other.stat("new/file"))
            assert [entry.path for entry in other.walk("") if entry.is_file] == ["there"]
    # It was left without a commit.
    assert [entry.path for entry in other.walk("") if entry.is_file] == ["there"]
    with tier.create("new/file") as writer:
        writer.write(b"now")
        writer.commit()
        assert get(other, "new/file") == b"now"
    other.close()


def test_room_is_refused_before_a_byte_is_written(store: Store) -> None:
    put(store.tier, "there")
    with contextlib.closing(store.tier.reserve()) as room:
        for space in (4096, 1 << 20, 4096):
            assert min(room.need(space, space, 0, "f")) >= space
        if store.has("room"):
            with pytest.raises(OSError) as caught:
                room.need(1 << 50, 1 << 50, 0, "a/f")
            assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "a/f")
        assert min(room.need(8192, 8192, 0, "f")) >= 8192
    assert below(store.tier) == ["there"]


def test_who_gives_up_leaves_nothing(tier: Tier) -> None:
    put(tier, "a", b"kept")
    writer = tier.create("a")
    writer.write(b"x" * 10_000)
    writer.abort()
    writer.abort()
    with pytest.raises(ZeroDivisionError), tier.create("b") as writer:
        writer.write(b"x")
        raise ZeroDivisionError
    with tier.create("c") as writer:
        writer.commit()
        writer.abort()
    assert below(tier) == ["a", "c"]
    assert get(tier, "a") == b"kept"


def test_a_reader_keeps_what_he_opened_or_is_told(store: Store) -> None:
    tier = store.tier
    first, second = os.urandom(5 * BLOCK), os.urandom(5 * BLOCK)
    for change in (lambda: put(tier, "a", second), lambda: tier.remove("a")):
        put(tier, "a", first)
        with tier.open("a") as reader:
            begun = reader.read(1000)
            change()
            try:
                rest = b"".join(iter(reader.read, b""))
            except OSError as problem:
                assert problem.errno == errno.ESTALE
                assert not store.has("old")
            else:
                assert begun + rest == first


def test_if_absent(store: Store) -> None:
    tier = store.tier
    if not store.has("if_absent"):
        refused(errno.ENOTSUP, lambda: put(tier, "a", b"first", if_absent=True))
        assert below(tier) == []
        return
    put(tier, "a", b"first", if_absent=True)
    refused(errno.EEXIST, lambda: put(tier, "a", b"second", if_absent=True))
    assert get(tier, "a") == b"first"
    with tier.create("b", if_absent=True) as one, tier.create("b", if_absent=True) as two:
        one.write(b"one")
        two.write(b"two")
        two.commit()
        refused(errno.EEXIST, one.commit)
    assert get(tier, "b") == b"two"
    assert below(tier) == ["a", "b"]
    tier.remove("b")
    put(tier, "b", b"again", if_absent=True)


# -- directories -----------------------------------------------------------------------------------


def test_directories_come_with_what_is_put_below_them(tier: Tier) -> None:
    put(tier, "a/b/c", b"x")
    assert [entry.kind for entry in (tier.stat("a"), tier.stat("a/b"))] == ["directory", "directory"]
    entry = tier.stat("a")
    assert (entry.path, entry.size, entry.version) == ("a", 0, "")
    assert [(entry.path, entry.kind) for entry in tier.walk("")] == [
        ("a", "directory"),
        ("a/b", "directory"),
        ("a/b/c", "file"),
    ]


def test_a_directory_that_was_made_stays(store: Store) -> None:
    tier = store.tier
    tier.mkdir("made/below")
    put(tier, "made/below/file")
    tier.remove("made/below/file")
    assert below(tier, "made") == ["below"]
    assert below(tier, "made/below") == []
    if store.has("stays"):
        put(tier, "came/file")
        tier.remove("came/file")
        assert below(tier, "came") == []


def test_mkdir(tier: Tier) -> None:
    tier.mkdir("a")
    refused(errno.EEXIST, lambda: tier.mkdir("a"))
    tier.mkdir("a", exist_ok=True)
    tier.mkdir("", exist_ok=True)
    refused(errno.EEXIST, lambda: tier.mkdir(""))
    put(tier, "f")
    refused(errno.EEXIST, lambda: tier.mkdir("f", exist_ok=True))
    refused(errno.ENOTDIR, lambda: tier.mkdir("f/g"))
    tier.mkdir("a/b/c")
    assert below(tier, "a/b") == ["c"]


def test_remove(store: Store) -> None:
    tier = store.tier
    put(tier, "d/e/f")
    put(tier, "d/g")
    tier.mkdir("d/empty")
    put(tier, "dd")
    refused(errno.ENOTEMPTY, lambda: tier.remove("d"))
    tier.remove("d/g")
    tier.remove("d/empty")
    refused(errno.ENOENT, lambda: tier.remove("d/g"))
    refused(errno.ENOENT, lambda: tier.remove("d/empty", recursive=True))
    tier.remove("d", recursive=True)
    refused(errno.ENOENT, lambda: tier.stat("d"))
    tier.remove("dd", recursive=True)
    shown = below(tier)
    assert not shown or not store.has("gone")
    for name in shown:
        refused(errno.ENOENT, lambda name=name: tier.stat(name))  # type: ignore[misc]
    refused(errno.EPERM, lambda: tier.remove("", recursive=True))


ERRORS: list[tuple[str, int, Callable[[Tier], object]]] = [
    ("stat of nothing", errno.ENOENT, lambda tier: tier.stat("x")),
    ("stat below nothing", errno.ENOENT, lambda tier: tier.stat("x/y/z")),
    ("stat below a file", errno.ENOTDIR, lambda tier: tier.stat("file/y")),
    ("list of nothing", errno.ENOENT, lambda tier: list(tier.list("x"))),
    ("list of a file", errno.ENOTDIR, lambda tier: list(tier.list("file"))),
    ("list below a file", errno.ENOTDIR, lambda tier: list(tier.list("file/y"))),
    ("open of nothing", errno.ENOENT, lambda tier: tier.open("x")),
    ("open of a directory", errno.EISDIR, lambda tier: tier.open("full")),
    ("open of the root", errno.EISDIR, lambda tier: tier.open("")),
    ("open below a file", errno.ENOTDIR, lambda tier: tier.open("file/y/z")),
    ("create of a directory", errno.EISDIR, lambda tier: put(tier, "full")),
    ("create of an empty directory", errno.EISDIR, lambda tier: put(tier, "empty")),
    ("create of the root", errno.EISDIR, lambda tier: put(tier, "")),
    ("create below a file", errno.ENOTDIR, lambda tier: put(tier, "file/y")),
    ("create far below a file", errno.ENOTDIR, lambda tier: put(tier, "file/y/z")),
    ("mkdir far below a file", errno.ENOTDIR, lambda tier: tier.mkdir("file/y/z", exist_ok=True)),
    ("remove of nothing", errno.ENOENT, lambda tier: tier.remove("x")),
    ("remove below a file", errno.ENOTDIR, lambda tier: tier.remove("file/y")),
    ("remove of a full directory", errno.ENOTEMPTY, lambda tier: tier.remove("full")),
    ("remove of the root", errno.EPERM, lambda tier: tier.remove("")),
    ("rename of nothing", errno.ENOENT, lambda tier: tier.rename("x", "y")),
    ("rename of nothing below nothing", errno.ENOENT, lambda tier: tier.rename("x/y", "y")),
    ("rename of a file to a directory", errno.EISDIR, lambda tier: tier.rename("file", "empty")),
    ("rename of a file to its directory", errno.EISDIR, lambda tier: tier.rename("full/file", "full")),
    ("rename of a file to the root", errno.EISDIR, lambda tier: tier.rename("file", "")),
    ("rename of a directory to a file", errno.ENOTDIR, lambda tier: tier.rename("full", "file")),
    ("rename of a directory to a full one", errno.ENOTEMPTY, lambda tier: tier.rename("empty", "full")),
    ("rename of a directory into itself", errno.EINVAL, lambda tier: tier.rename("full", "full/y/z")),
    ("rename of the root", errno.EINVAL, lambda tier: tier.rename("", "y")),
    ("rename below a file", errno.ENOTDIR, lambda tier: tier.rename("full", "file/y")),
    ("rename of a file below itself", errno.ENOTDIR, lambda tier: tier.rename("file", "file/y")),
    ("copy of nothing", errno.ENOENT, lambda tier: tier.copy("x", "y")),
    ("copy of a directory", errno.EISDIR, lambda tier: tier.copy("full", "y")),
    ("copy to a directory", errno.EISDIR, lambda tier: tier.copy("file", "full")),
    ("copy below a file", errno.ENOTDIR, lambda tier: tier.copy("file", "file/y")),
]
FIRST: list[tuple[str, int, Callable[[Tier], object]]] = [
    ("rename to what is there", errno.EEXIST, lambda tier: tier.rename("file", "full/file", if_absent=True)),
    ("rename to a directory", errno.EEXIST, lambda tier: tier.rename("full", "empty", if_absent=True)),
    ("rename to itself", errno.EEXIST, lambda tier: tier.rename("file", "file", if_absent=True)),
    ("copy to what is there", errno.EEXIST, lambda tier: tier.copy("file", "full/file", if_absent=True)),
    ("create of what is there", errno.EEXIST, lambda tier: put(tier, "file", if_absent=True)),
    ("create of a directory", errno.EISDIR, lambda tier: put(tier, "empty", if_absent=True)),
]


def test_what_is_wrong_is_said_as_a_filesystem_would(store: Store) -> None:
    tier = store.tier
    put(tier, "file", b"content")
    put(tier, "full/file", b"other")
    tier.mkdir("empty")
    before = list(tier.walk(""))
    for what, number, act in [*ERRORS, *(FIRST if store.has("if_absent") else ())]:
        with pytest.raises(OSError) as caught:
            act(tier)
        assert caught.value.errno == number, f"{what}: {caught.value!r}"
        named = caught.value.filename
        assert isinstance(named, str), what
        assert named in ("x", "y", "file", "full", "empty", "") or named.startswith(
            ("x/", "file/", "full/")
        ), what
    assert list(tier.walk("")) == before


# -- moving ----------------------------------------------------------------------------------------


def test_rename(tier: Tier) -> None:
    put(tier, "a", b"a", mtime=1e9)
    version = put(tier, "b/c", b"bc")
    tier.rename("a", "new/place/a")
    assert get(tier, "new/place/a") == b"a"
    tier.rename("new/place/a", "b/c")  # a file replaces a file
    assert get(tier, "b/c") == b"a"
    assert tier.stat("b/c").version != version
    tier.rename("b/c", "b/c")
    assert get(tier, "b/c") == b"a"
    refused(errno.ENOENT, lambda: tier.stat("a"))
    tier.rename("b", "moved/b")
    assert [entry.path for entry in tier.walk("moved")] == ["moved/b", "moved/b/c"]
    refused(errno.ENOENT, lambda: tier.stat("b"))
    tier.mkdir("hollow")
    tier.rename("moved", "hollow")  # an empty directory is replaced
    assert get(tier, "hollow/b/c") == b"a"
    assert "moved" not in below(tier)


def test_rename_if_absent(store: Store) -> None:
    store.needs("if_absent")
    tier = store.tier
    put(tier, "a", b"a")
    put(tier, "d/f", b"f")
    tier.rename("a", "b", if_absent=True)
    tier.rename("d", "e", if_absent=True)
    put(tier, "a", b"second")
    refused(errno.EEXIST, lambda: tier.rename("a", "b", if_absent=True))
    assert (get(tier, "a"), get(tier, "b"), get(tier, "e/f")) == (b"second", b"a", b"f")


def test_copy(store: Store) -> None:
    tier = store.tier
    put(tier, "a", b"a" * 100_000, mode=0o750, mtime=1.5e9)
    entry = tier.copy("a", "d/b")
    assert entry == tier.stat("d/b")
    assert get(tier, "d/b") == b"a" * 100_000 == get(tier, "a")
    if store.has("mode"):
        assert entry.mode == 0o750
    if store.has("mtime"):
        assert entry.mtime == 1.5e9
    put(tier, "c", b"c")
    tier.copy("c", "d/b")
    assert get(tier, "d/b") == b"c"
    tier.copy("c", "c")
    assert get(tier, "c") == b"c"
    if store.has("if_absent"):
        refused(errno.EEXIST, lambda: tier.copy("a", "c", if_absent=True))
        assert get(tier, "c") == b"c"


def test_setattr_leaves_the_content(store: Store) -> None:
    tier, data = store.tier, os.urandom(100_000)
    put(tier, "d/a", data, mode=0o644, mtime=1.5e9)
    with tier.open("d/a") as reader:
        entry = tier.setattr("d/a", mode=0o4710)
        assert entry == tier.stat("d/a")
        assert (entry.path, entry.size) == ("d/a", len(data))
        if store.has("mode"):
            assert (entry.mode, entry.mtime) == (0o710, 1.5e9)
        entry = tier.setattr("d/a", mtime=1.6e9)
        if store.has("mode"):
            assert (entry.mode, entry.mtime) == (0o710, 1.6e9)
        assert tier.setattr("d/a").size == len(data)
        assert b"".join(iter(reader.read, b"")) == data  # for who has it open, too
    assert get(tier, "d/a") == data
    refused(errno.EISDIR, lambda: tier.setattr("d", mode=0o700))
    refused(errno.EISDIR, lambda: tier.setattr("", mode=0o700))
    refused(errno.ENOENT, lambda: tier.setattr("d/b", mtime=1.0))
    refused(errno.ENOTDIR, lambda: tier.setattr("d/a/b", mode=0o700))


def test_modes_and_times(store: Store) -> None:
    tier = store.tier
    for index, (mode, mtime) in enumerate(
        [(0o600, 0.0), (0o755, 1e9 + 0.25), (0o444, 1.7e9 + 0.123456), (0o640, 2.0)]
    ):
        put(tier, f"d/{index}", b"x", mode=mode, mtime=mtime)
        entry = tier.stat(f"d/{index}")
        if store.has("mode"):
            assert entry.mode == mode
        if store.has("mtime"):
            assert entry.mtime == (mtime if store.has("fractions") else mtime // 1)
        if store.has("listed"):
            assert entry in list(tier.list("d"))
        tier.rename(f"d/{index}", f"e/{index}")
        moved = tier.stat(f"e/{index}")
        assert (
            (moved.mode, moved.mtime) == (entry.mode, entry.mtime)
            or not store.has("mode")
            or not store.has("mtime")
        )
    put(tier, "set", mode=0o4755)
    assert tier.stat("set").mode in (0o755, 0o644)
    put(tier, "now")
    put(tier, "later")
    assert tier.stat("now").mtime <= tier.stat("later").mtime
    assert tier.stat("now").mtime > 1.7e9


def test_walk(tier: Tier) -> None:
    for path in ("a/1", "a/b/2", "a/b/c/3", "a-/4", "z"):
        put(tier, path)
    tier.mkdir("a/empty")
    walked = [entry.path for entry in tier.walk("")]
    assert walked == ["a", "a/1", "a/b", "a/b/2", "a/b/c", "a/b/c/3", "a/empty", "a-", "a-/4", "z"]
    assert [entry.path for entry in tier.walk("a/b")] == ["a/b/2", "a/b/c", "a/b/c/3"]
    refused(errno.ENOENT, lambda: list(tier.walk("nothing")))


def test_a_file_has_a_url(tier: Tier) -> None:
    assert tier.url_of("a/b").endswith("/a/b")


@pytest.mark.long
@pytest.mark.timeout(3 * 3600 if LONG else 300)
def test_many_files(store: Store) -> None:
    """Eight at a time, as `quine fs put -r` has them."""
    tier, count = store.tier, LONG or (300 if store.near else 100)
    with ThreadPoolExecutor(8) as pool:
        put_all = pool.map(
            lambda index: put(tier, f"many/{index % 7}/{index:06}", b"%d" % index), range(count)
        )
        assert sum(1 for _ in put_all) == count
    found = [entry.path for entry in tier.walk("many") if entry.is_file]
    assert found == sorted(f"many/{index % 7}/{index:06}" for index in range(count))
    assert get(tier, f"many/{(count - 1) % 7}/{count - 1:06}") == b"%d" % (count - 1)
    tier.remove("many", recursive=True)
    assert below(tier) == []
