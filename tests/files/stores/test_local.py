"""The tier that is a directory: nothing leads out of it, whoever swaps what; nothing of dead writers stays."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.files import paths
from quine.files.api import Tier
from quine.files.stores.local import dirfd, io, temp
from quine.files.stores.local.store import Local
from quine.files.stores.registry import open_store
from tests.files.tiers import below, get, opened, put, scratch
from tests.support.agents import Started, until

SECRET = b"outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a tier; files beside it must not be reachable through the tier."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_bytes(SECRET)
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def tier(root: Path) -> Local:
    return Local(str(root))


def fails(number: int, what: Callable[[], object]) -> OSError:
    with pytest.raises(OSError) as caught:
        what()
    assert caught.value.errno == number, caught.value
    return caught.value


def left(root: Path) -> list[str]:
    directory = root / temp.NAME
    return os.listdir(directory) if directory.exists() else []


# -- nothing leads out -----------------------------------------------------------------------------


def ways(tier: Tier, path: str) -> Iterator[Callable[[], object]]:
    """Every operation on a path, and on one below it."""
    for each in (path, f"{path}/file"):
        yield lambda each=each: tier.stat(each)
        yield lambda each=each: tier.open(each)
        yield lambda each=each: list(tier.list(each))
        yield lambda each=each: put(tier, each, b"x")
        yield lambda each=each: put(tier, each, b"x", if_absent=True)
        yield lambda each=each: tier.remove(each)
        yield lambda each=each: tier.remove(each, recursive=True)
        yield lambda each=each: tier.rename(each, "new")
        yield lambda each=each: tier.rename("inside", each)
        yield lambda each=each: tier.copy(each, "new")
        yield lambda each=each: tier.copy("inside", each)
    yield lambda: tier.mkdir(f"{path}/new")


@pytest.mark.parametrize(
    "target", ["../outside", "../outside/file", "inside", "nothing", ".", "/etc", "link"]
)
def test_no_symlink_is_followed(tier: Local, root: Path, target: str) -> None:
    put(tier, "inside", b"inside")
    (root / "link").symlink_to(target)
    for way in ways(tier, "link"):
        assert "symlink" in str(fails(errno.EPERM, way))
    assert below(tier) == ["inside"]
    assert os.readlink(root / "link") == target
    assert (root.parent / "outside/file").read_bytes() == SECRET
    assert left(root) == []


def test_what_is_no_file_is_refused(tier: Local, root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(root)
        made.bind("socket")
        os.chdir(here)
    with contextlib.suppress(PermissionError):  # only root may, and not in a user namespace
        os.mknod(root / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    for name in os.listdir(root):
        if name != temp.NAME:
            fails(errno.EPERM, lambda name=name: tier.open(name))  # type: ignore[misc]
            fails(errno.EPERM, lambda name=name: put(tier, name))  # type: ignore[misc]
    assert below(tier) == []


def test_all_of_a_directory_is_removed_and_nothing_beyond(tier: Local, root: Path) -> None:
    put(tier, "d/e/f")
    (root / "d/out").symlink_to("../../outside")
    (root / "d/e/out").symlink_to("../../../outside/file")
    os.mkfifo(root / "d/e/fifo")
    assert [entry.path for entry in tier.walk("")] == ["d", "d/e", "d/e/f"]
    fails(errno.ENOTEMPTY, lambda: tier.remove("d"))
    tier.remove("d", recursive=True)
    assert os.listdir(root.parent / "outside") == ["file"]
    assert not (root / "d").exists()


def swapping(one: Path, other: Path) -> int:
    """A process that exchanges the two, for ever and as quickly as it goes; its pid."""
    libc = ctypes.CDLL(None, use_errno=True)
    rename, exchange = libc.renameat2, 2
    if rename(-100, bytes(one), -100, bytes(other), exchange):
        pytest.skip("this filesystem exchanges nothing")
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it would go on for ever
        while True:
            rename(-100, bytes(one), -100, bytes(other), exchange)
    return pid


def test_who_swaps_directories_for_symlinks_leads_nobody_out(tier: Local, root: Path) -> None:
    put(tier, "d/e/file", b"inside")
    outside = root.parent / "outside"
    (outside / "e").mkdir()
    (outside / "e/file").write_bytes(SECRET)
    (root / "link").symlink_to("../outside")
    pid = swapping(root / "d", root / "link")
    refused, done = 0, {"get": 0, "put": 0, "remove": 0, "list": 0, "rename": 0, "mkdir": 0, "empty": 0}
    try:
        for index in range(4000):
            acts: dict[str, Callable[[], object]] = {
                "get": lambda: get(tier, "d/e/file") == b"inside",
                "put": lambda index=index: put(tier, f"d/e/{index}"),  # type: ignore[misc]
                "rename": lambda index=index: tier.rename(f"d/e/{index}", f"d/e/x{index}"),  # type: ignore[misc]
                "remove": lambda index=index: tier.remove(f"d/e/x{index}"),  # type: ignore[misc]
                "list": lambda: "d/e/file" in [entry.path for entry in tier.list("d/e")],
                "mkdir": lambda index=index: tier.mkdir(f"d/m/{index}"),  # type: ignore[misc]
                "empty": lambda: tier.remove("d/m", recursive=True),
            }
            for name, act in acts.items():
                try:
                    assert act() is not False
                    done[name] += 1
                except PermissionError:
                    refused += 1
                except FileNotFoundError:
                    assert name not in ("get", "list", "put", "mkdir")
            if refused > 200 and min(done.values()) > 5:
                break
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert os.listdir(outside / "e") == ["file"]
    assert sorted(os.listdir(outside)) == ["e", "file"]
    assert (outside / "e/file").read_bytes() == SECRET
    assert refused
    assert min(done.values())


def test_a_pipe_in_place_of_a_file_holds_up_nobody(tier: Local, root: Path) -> None:
    """The path is a file at the look and a pipe at the open."""
    put(tier, "a", b"x")
    look = dirfd.look

    def late(directory: int, name: str) -> os.stat_result:
        facts = look(directory, name)
        (root / "a").unlink()
        os.mkfifo(root / "a")
        return facts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dirfd, "look", late)
        fails(errno.EPERM, lambda: tier.open("a"))


def test_a_symlink_in_place_of_a_file_is_refused(tier: Local, root: Path) -> None:
    put(tier, "a", b"x")
    look = dirfd.look

    def late(directory: int, name: str) -> os.stat_result:
        facts = look(directory, name)
        (root / "a").unlink()
        (root / "a").symlink_to("../outside/file")
        return facts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dirfd, "look", late)
        fails(errno.EPERM, lambda: tier.open("a"))


def test_the_root_itself_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    put(Local(str(tmp_path / "root")), "a", b"x")
    assert (tmp_path / "real/a").read_bytes() == b"x"


# -- the root --------------------------------------------------------------------------------------


def test_a_root_that_is_not_there_is_empty_and_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    tier = Local(str(tmp_path / "data/fs"))
    assert list(tier.list("")) == []
    assert tier.stat("").kind == "directory"
    fails(errno.ENOENT, lambda: tier.stat("a"))
    fails(errno.ENOENT, lambda: tier.remove("a"))
    assert os.listdir(tmp_path) == []
    put(tier, "d/a")
    for made in ("data", "data/fs"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "data/fs/d").stat().st_mode) == 0o755


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    fails(errno.ENOTDIR, lambda: put(Local(str(tmp_path / "file")), "a"))
    fails(errno.ENOTDIR, lambda: list(Local(str(tmp_path / "file")).list("")))


@pytest.mark.parametrize("root", ["/proc/nothing", "/proc/self"])
def test_a_root_that_takes_nothing_is_named(root: str) -> None:
    with pytest.raises(OSError, match=f"{root}: ") as caught:
        put(Local(root), "a/b")
    assert caught.value.filename == "a/b"


def test_who_may_write_to_the_root_may_write_aside(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o777)
    put(Local(str(tmp_path / "root")), "a")
    assert stat.S_IMODE((tmp_path / "root" / temp.NAME).stat().st_mode) == 0o1777


def test_in_a_directory_of_a_group_files_are_the_groups(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    if os.geteuid() == 0:
        os.chown(root, -1, 54321)
    root.chmod(0o2775)
    put(Local(str(root)), "d/a")
    assert stat.S_IMODE((root / temp.NAME).stat().st_mode) == 0o3775
    assert (root / "d" / "a").stat().st_gid == root.stat().st_gid


def test_what_is_not_permitted_is_said_with_the_path_of_the_tier(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    tier = Local(str(tmp_path))
    put(tier, "d/a", b"x")
    (tmp_path / "d").chmod(0o500)
    assert fails(errno.EACCES, lambda: put(tier, "d/b")).filename == "d/b"
    (tmp_path / "d").chmod(0o700)


def test_a_root_that_may_not_be_listed_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    (tmp_path / "root").mkdir(0o300)
    with pytest.raises(PermissionError, match=f"{tmp_path}/root: permission denied"):
        list(Local(str(tmp_path / "root")).list(""))


def test_a_root_that_another_user_made_for_itself_is_named_with_the_cure() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root is two users")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # a parent for all users
        os.chmod(place, 0o755)
        root = f"{place}/root"
        put(Local(root), "in")
        assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
        os.seteuid(54321)
        try:
            tier = Local(root)
            why = f"{root}: permission denied; its mode is 700, and its owner, user 0, can chmod it"
            for call in (lambda: tier.stat("in"), lambda: tier.list(""), lambda: put(tier, "d/new")):
                with pytest.raises(PermissionError, match=why):
                    call()
        finally:
            os.seteuid(0)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """The limit of file sizes stands for a full disk: the error is handled in the same way."""
    tier = Local(str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        assert fails(errno.EFBIG, lambda: put(tier, "d/a", bytes(200_000))).filename == "d/a"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert below(tier) == []
    assert left(tmp_path) == []


# -- parts -----------------------------------------------------------------------------------------


def test_what_is_written_aside_is_the_tiers_own(tier: Local, root: Path) -> None:
    put(tier, "d/a")
    assert (root / temp.NAME).is_dir()
    assert below(tier) == ["d"]
    for path in (temp.NAME, f"{temp.NAME}/x", f"d/{temp.NAME}", f"d/{temp.NAME}/x"):
        for act in (tier.stat, tier.open, tier.remove, tier.mkdir, lambda path: put(tier, path)):  # type: ignore[misc]
            fails(errno.EPERM, lambda act=act, path=path: act(path))  # type: ignore[misc]
    put(Local(str(root / "d")), "b")  # another tier, with its root in this one
    assert below(tier, "d") == ["a", "b"]
    tier.remove("d/a")
    tier.remove("d/b")
    tier.remove("d")  # it seems empty, so it goes
    assert below(tier) == []


def test_what_dead_writers_left_is_swept(root: Path) -> None:
    store = opened(f"file://{root}")
    with Started(store.command("hang", "a", "10"), env=store.environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        [part] = left(root)
        put(store.another(), "b")  # sweeps, and leaves what is alive
        assert left(root) == [part]
        process.kill()
    old = root / temp.NAME / "0123456789ab-of-another-machine"
    for age, stays in ((temp.OLD / 2, True), (temp.OLD * 2, False)):
        old.write_bytes(b"")
        os.utime(old, (0, time.time() - age))
        put(store.another(), "b")
        assert left(root) == [old.name] * stays


def test_a_part_that_was_swept_before_it_was_locked_is_made_again(tier: Local, root: Path) -> None:
    lock, swept = temp._lock, []

    def late(file: int, unsure: bool = True) -> bool:
        if not swept:
            swept.extend(left(root))
            (root / temp.NAME / swept[0]).unlink()
        return lock(file, unsure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(temp, "_lock", late)
        with tier.create("a") as writer:
            writer.write(b"x")
            writer.commit()
    assert swept
    assert get(tier, "a") == b"x"
    assert left(root) == []


def test_a_part_that_is_gone_is_no_success(tier: Local, root: Path) -> None:
    with tier.create("d/a") as writer:
        writer.write(b"x")
        (root / temp.NAME / left(root)[0]).unlink()
        fails(errno.ENOENT, writer.commit)
    fails(errno.ENOENT, lambda: tier.stat("d/a"))


def test_many_who_sweep_leave_what_is_alive(root: Path) -> None:
    tiers = [Local(str(root)) for _ in range(4)]
    failed: list[BaseException] = []

    def run(tier: Local, which: int) -> None:
        try:
            for index in range(60):
                tier._parts._swept = -temp.AGAIN
                put(tier, f"{which}/{index}", b"x" * index)
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=run, args=(tier, which)) for which, tier in enumerate(tiers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [len(below(tiers[0], str(which))) for which in range(4)] == [60] * 4
    assert left(root) == []


@pytest.mark.long
def test_who_is_killed_at_any_moment_leaves_a_whole_file_or_none(root: Path) -> None:
    store = opened(f"file://{root}")
    for moment in range(4):
        with Started(
            store.command("append", "d", str(moment), "100000"), env=store.environment, stdout=subprocess.PIPE
        ) as process:
            until(lambda moment=moment: any(name.startswith(f"{moment}-") for name in os.listdir(root / "d"))  # type: ignore[misc]
                  if (root / "d").exists() else False)  # fmt: skip
            process.send_signal(signal.SIGKILL)
        for entry in store.tier.list("d"):
            assert get(store.tier, entry.path) == paths.name(entry.path).partition("-")[0].encode()
    put(store.another(), "z")
    assert left(root) == []


# -- moves where nothing stands --------------------------------------------------------------------


@pytest.mark.parametrize("able", [True, False], ids=["renameat2", "link"])
def test_a_move_is_decided_by_the_filesystem(
    tier: Local, able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS has no RENAME_NOREPLACE: then a link decides for files, and making it for directories."""
    if not able:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    won: list[int] = []

    def contend(number: int) -> None:
        with contextlib.suppress(FileExistsError):
            put(tier, "lock", b"%d" % number, if_absent=True)
            won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [get(tier, "lock")] == [b"%d" % number for number in won]
    put(tier, "d/a", b"x")
    tier.rename("d", "e", if_absent=True)
    tier.rename("e/a", "f", if_absent=True)
    tier.mkdir("d")
    for source, target in (("e", "d"), ("f", "lock"), ("e", "f"), ("f", "d")):
        fails(errno.EEXIST, lambda source=source, target=target: tier.rename(source, target, if_absent=True))  # type: ignore[misc]
    assert below(tier) == ["d", "e", "f", "lock"]
    assert left(Path(tier.root)) == []


# -- what is read ----------------------------------------------------------------------------------


def test_a_file_that_became_shorter_is_stale(tier: Local, root: Path) -> None:
    put(tier, "a", bytes(10_000))
    for how in ("read", "give"):
        (root / "a").write_bytes(bytes(10_000))
        with tier.open("a") as reader, open(os.devnull, "wb") as sink:
            assert reader.read(5000) == bytes(5000)
            os.truncate(root / "a", 6000)
            assert reader.read(5000) == bytes(1000)
            fails(errno.ESTALE, lambda: reader.read(1) if how == "read" else reader.give(sink.fileno(), 1))  # noqa: B023


def test_a_file_that_grows_is_read_as_it_was(tier: Local, root: Path) -> None:
    (root / "log").write_bytes(b"one\n")
    with tier.open("log") as reader:
        with (root / "log").open("ab") as file:
            file.write(b"two\n")
        assert reader.read() == b"one\n"
        assert reader.read() == b""


RUNS = st.lists(st.tuples(st.booleans(), st.integers(1, 300_000)), max_size=12)


@settings(max_examples=40)
@given(RUNS, st.integers(0, 1_000_000), st.none() | st.integers(0, 1_000_000))
def test_holes_are_where_nothing_was_written(
    runs: list[tuple[bool, int]], offset: int, length: int | None
) -> None:
    with scratch() as root:
        holes_are_kept(Local(root), runs, offset, length)


def holes_are_kept(tier: Tier, runs: list[tuple[bool, int]], offset: int, length: int | None) -> None:
    content = bytearray()
    with tier.create("a") as writer:
        for hole, size in runs:
            content += bytes(size) if hole else b"x" * size
            if hole:
                writer.hole(size)
            else:
                writer.write(b"x" * size)
        assert writer.commit().size == len(content)
    expected = content[offset : None if length is None else offset + length]
    with tier.open("a", offset, length) as reader:
        at = offset
        for start, size in reader.holes:
            assert at <= start
            at = start + size
            assert not any(content[start:at])
        assert at <= offset + reader.length
        assert b"".join(iter(reader.read, b"")) == expected
    with tier.open("a", offset, length) as reader:
        data = b"".join(iter(lambda: reader.data(100_000), b""))
        assert len(data) == len(expected) - sum(size for _, size in reader.holes)
    tier.copy("a", "b")
    assert get(tier, "b") == content


def test_very_many_holes_are_not_all_told(tier: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "MOST_HOLES", 3)
    with tier.create("a") as writer:
        for _ in range(6):
            writer.write(b"x" * 4096)
            writer.hole(1 << 20)
        writer.commit()
    with tier.open("a") as reader:
        assert len(reader.holes) == 3
        assert sum(map(len, iter(lambda: reader.data(1 << 20), b""))) == 6 * 4096 + (3 << 20)


# -- names and urls --------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.text(st.characters(codec="utf-8"), max_size=40) | st.binary(max_size=40).map(os.fsdecode))
def test_a_clean_path_is_clean(path: str) -> None:
    try:
        cleaned = paths.clean(path)
    except OSError as problem:
        assert problem.errno in (errno.EINVAL, errno.EPERM, errno.ENAMETOOLONG)
        assert "\0" in path or ".." in path.split("/")
        return
    assert paths.clean(cleaned) == cleaned
    assert not {"", ".", ".."} & set(cleaned.split("/")) or not cleaned
    assert [name for name in path.split("/") if name not in ("", ".")] == [
        name for name in cleaned.split("/") if name
    ]
    assert paths.join(paths.parent(cleaned), paths.name(cleaned)) == cleaned


@pytest.mark.parametrize("path", ["..", "a/../b", "/..", "a/..", b"../x"])
def test_what_leads_out_is_refused(path: str | bytes) -> None:
    fails(errno.EPERM, lambda: paths.clean(path))


def test_a_name_may_have_255_bytes_and_a_path_so_many() -> None:
    assert paths.clean("é" * 127 + "x") == "é" * 127 + "x"
    fails(errno.ENAMETOOLONG, lambda: paths.clean("é" * 128))
    assert len(paths.clean("a/" * (paths.LONGEST_PATH // 2))) == paths.LONGEST_PATH - 1
    fails(errno.ENAMETOOLONG, lambda: paths.clean("a/" * (paths.LONGEST_PATH // 2 + 1)))


@pytest.mark.long
def test_a_deep_path_goes_there_and_back(tier: Local) -> None:
    """No recursion and no descriptor for each level: a path may have two thousand of them."""
    deep = "/".join(["d"] * 300)
    limits, most = resource.getrlimit(resource.RLIMIT_NOFILE), sys.getrecursionlimit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, limits[1]))
    sys.setrecursionlimit(250)
    try:
        put(tier, f"{deep}/f", b"x")
        assert sum(1 for _ in tier.walk("")) == 301
        tier.remove("d", recursive=True)
    finally:
        sys.setrecursionlimit(most)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert below(tier) == []


@pytest.mark.parametrize(
    ("url", "root", "shown"),
    [
        ("", "/data/fs", "origin:"),
        ("origin:", "/data/fs", "origin:"),
        ("origin:/srv/shared", "/srv/shared", "origin:/srv/shared"),
        ("ORIGIN:/srv", "/srv", "origin:/srv"),
        ("file:///mnt/a%20b", "/mnt/a%20b", "file:///mnt/a%20b"),
        ("file://localhost/mnt/x/", "/mnt/x", "file:///mnt/x"),
        ("file:/mnt", "/mnt", "file:///mnt"),
        ("file:////mnt/../x", "/x", "file:///x"),
    ],
)
def test_a_url_opens_a_directory(url: str, root: str, shown: str) -> None:
    tier = open_store(url, {}, "/data")
    assert isinstance(tier, Local)
    assert (os.path.normpath(tier.root).replace("//", "/"), tier.url.replace("////", "///")) == (root, shown)


def test_a_relative_origin_is_of_this_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tier = open_store("origin:shared", {}, "/data")
    assert isinstance(tier, Local)
    assert tier.root == str(tmp_path / "shared")


@pytest.mark.parametrize(
    "url",
    ["ftp//me:hunter2@host/x", "//me:hunter2@host", "ftp:me:hunter2@host/x", "dir::ftp:me:hunter2@host"],
)
def test_a_password_in_a_url_that_is_none_is_not_told(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        open_store(url, {}, "/data")
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    "url", ["file://host/x", "file:x", "file:", "origin://x", "/mnt/x", "x", "file:///a\nb", "://"]
)
def test_a_url_that_is_wrong_is_said_to_be(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        open_store(url, {}, "/data")
    assert str(caught.value) == str(caught.value).rstrip(".")
    assert "\n" not in str(caught.value)
