"""A store that has no room, as shells see it: the write fails, as on a full disk. Real FUSE, dash and bash."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.files.room import NO_ROOM, Room
from quine.files.stores.local.store import Local
from quine.mount.writeback import REST, Draft, Reserved
from tests.mount.mounting import Mount, needs_fuse
from tests.support.agents import until

pytestmark = needs_fuse

ROOM = 1 << 20  # bytes of the store, most of which are taken
LARGE = ROOM // 2  # bytes of a file for which there is no room

# Each writes the content of "$1" to the file `f`, and its status says whether that went well.
WAYS = {
    "a builtin": 'printf %s "$text" >f',
    "echo": 'echo "$text" >f',
    "a command": 'cat "$1" >f',
    "appending": 'cat "$1" >>f',
    "the end of a pipe": 'cat "$1" | cat >f',
    "tee": 'cat "$1" | tee f >/dev/null',
    "cp": 'cp "$1" f',
    "dd": 'dd if="$1" of=f bs=64k',
    "a group": '{ printf %s "$text"; } >f',
    "a group of commands": '{ cat "$1"; } >f',
    "a subshell": '(cat "$1") >f',
    "a descriptor": 'exec 7>f; printf %s "$text" >&7',
    "a function": 'say() { printf %s "$text"; }; say >f',
    "a loop": 'for each in 1; do printf %s "$text"; done >f',
}


def run(shell: str, way: str, where: Path, content: Path) -> subprocess.CompletedProcess[bytes]:
    words = [shell, "-c", f'text=$(cat "$1"); {WAYS[way]}', shell, str(content)]
    return subprocess.run(words, cwd=where, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large"
    path.write_bytes(b"x" * LARGE)
    return path


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={ROOM},mode=700", "none", str(path)]
    if os.getuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("no filesystem can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True, timeout=60)


@pytest.fixture(scope="module", params=["quota", "disk"])
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    place = tmp_path_factory.mktemp("full")
    with contextlib.ExitStack() as stack:
        env = {"XDG_STATE_HOME": str(place / "state"), "TMPDIR": str(place)}
        if request.param == "disk":
            stack.enter_context(small_disk(place / "store"))
        else:
            env["QUINE_FS_QUOTA"] = str(ROOM)
        mount = stack.enter_context(Mount(place, place / "store", **env))
        (mount.path / "there").write_bytes(bytes(ROOM - LARGE + 64 * 1024))
        yield mount


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("way", WAYS)
def test_a_write_for_which_there_is_no_room_fails(
    mount: Mount, large: Path, tmp_path: Path, shell: str, way: str
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    small = tmp_path / "small"
    small.write_bytes(b"y")
    path, kept = mount.path / "f", mount.store / "f"
    try:
        done = run(shell, way, mount.path, large)
        assert done.returncode
        assert any(word in done.stderr for word in (b"space", b"quota", b"I/O error")), done.stderr
        path.unlink(missing_ok=True)  # a part of it, as on a disk
        done = run(shell, way, mount.path, small)
        assert (done.returncode, kept.read_bytes().strip()) == (0, b"y"), done.stderr
    finally:
        path.unlink(missing_ok=True)


def test_a_file_takes_more_than_half_of_what_is_left(mount: Mount) -> None:
    """Which is held for it until its commit takes as much."""
    data = os.urandom(ROOM * 5 // 16)
    for _ in range(2):
        path = mount.path / "f"
        path.write_bytes(data)
        assert (mount.store / "f").read_bytes() == data
        path.unlink()


def test_a_file_that_is_there_is_not_replaced_by_a_part_of_another(mount: Mount, large: Path) -> None:
    path, kept = mount.path / "f", mount.store / "f"
    path.write_bytes(b"old")
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(bytes(64 * 1024))
            with pytest.raises(OSError) as caught:
                file.write(large.read_bytes())
            with pytest.raises(OSError) as again:
                os.fsync(file.fileno())
            assert caught.value.errno == again.value.errno in NO_ROOM
            assert kept.read_bytes() == b"old"
            file.truncate(3)  # the program knows what is missing
        assert kept.read_bytes() == bytes(3)
    finally:
        path.unlink()


def test_what_could_be_kept_nowhere_else_is_named_in_the_log(tmp_path: Path, spools: Path) -> None:
    state, aside = tmp_path / "state", tmp_path / "aside"
    with Mount(tmp_path, tmp_path / "store", XDG_STATE_HOME=str(state), TMPDIR=str(spools)) as mount:
        fd = os.open(mount.path / "f", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"content")
        mount.store.rename(aside)
        mount.store.write_bytes(b"")  # no directory any more: a write has been accepted, and the commit fails
        with pytest.raises(NotADirectoryError):
            os.close(fd)
        until(lambda: any(spools.iterdir()))
        (kept,) = spools.iterdir()
        assert kept.name.startswith("quine-unsaved-") and kept.read_bytes() == b"content"
        until(lambda: (state / "quine" / "mount.log").exists())
        told = (state / "quine" / "mount.log").read_text()
        assert f"{mount.path}: f: not kept: " in told and str(kept) in told


class Counted(Room):
    """Room of 64 MiB, of which `held` is held."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.held = (0, 0)

    def need(self, space: int, growth: int, ahead: int, path: str) -> tuple[int, int]:
        if max(space, growth) > 64 << 20:
            raise OSError(errno.ENOSPC, "full", path)
        self.asked.append((space, growth))
        self.held = space + ahead, growth + ahead
        return self.held

    def close(self) -> None:
        self.held = (0, 0)


def test_the_store_is_asked_for_pieces_and_gets_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, clock = Counted(), [0.0]
    monkeypatch.setattr("quine.mount.writeback.time.monotonic", lambda: clock[0])
    store = Local(str(tmp_path))
    monkeypatch.setattr(store, "reserve", lambda: room)
    reserved = Reserved(store)
    for number in range(300):  # small files: their room is that of the ones before
        draft = Draft(str(number), None)
        draft.begin()
        reserved.take(draft, 1000, 1000)
        assert reserved.rest()
        reserved.give(draft)
        draft.close()
    assert len(room.asked) == 1
    large = Draft("large", None)
    large.begin()
    for end in range(1 << 20, 64 << 20, 1 << 20):
        reserved.take(large, end, end)
    with pytest.raises(OSError, match="full"):
        reserved.take(large, 65 << 20, 65 << 20)
    assert len(room.asked) < 16
    clock[0] += 2 * REST
    assert reserved.rest() and room.held >= (63 << 20, 63 << 20)  # which a draft needs
    assert reserved.make_way(large) and room.held == (0, 0)
    reserved.take(large, 4096, 4096)
    reserved.give(large)
    large.close()
    clock[0] += 2 * REST
    assert reserved.rest() == REST
    until(lambda: room.held == (0, 0) and reserved.rest() is None)
