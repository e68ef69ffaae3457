"""A file is replaced, removed or exchanged at the worst moment, between the kernel's look and its open. Real FUSE."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.files.stores.local.store import Local
from quine.mount import reopen
from quine.mount.cache import WHOLE
from quine.mount.dispatch import perform
from quine.mount.inodes import ROOT, Node
from quine.mount.protocol import Op, Request
from quine.mount.state import State
from tests.mount.mounting import needs_fuse, serving

pytestmark = needs_fuse

NUMBERS = itertools.count()

# `always…` is replaced whenever somebody was told of it or has opened it, so that no answer is true when it arrives.
# `gone` is removed then, and of `turns` a file and a directory take turns.
SHIFTY = """
from quine.files.stores.local.store import Local
from quine.files.api import Tier
number = 0
class Shifty(Local):
    def stat(self, path):
        entry = super().stat(path)
        self.shift(path)
        return entry
    def open(self, path, offset=0, length=None):
        reader = super().open(path, offset, length)
        self.shift(path)
        return reader
    def shift(self, path):
        global number
        number += 1
        if path == "gone":
            self.remove(path)
        elif path == "turns" or path.startswith("always"):
            if path == "turns":
                self.remove(path)
                if number % 2:
                    return self.mkdir(path)
            with self.create(path) as writer:
                writer.write(b"%d " % number * TIMES)
                writer.commit()
tier = Shifty(STORE)
"""


def write(store: Local, path: str, data: bytes) -> None:
    with store.create(path) as writer:
        writer.write(data)
        writer.commit()


@pytest.fixture(scope="module", params=[1, 400_000], ids=["small", "large"])
def served(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[Path, Local]]:
    place = tmp_path_factory.mktemp("served")
    store = Local(str(place / "store"))
    program = SHIFTY.replace("TIMES", str(request.param)).replace("STORE", repr(store.root))
    with serving(place, program) as path:
        yield path, store


@pytest.fixture
def shifty(served: tuple[Path, Local]) -> tuple[Path, Local, str]:
    """The mount, its store, and the name of a file that is always replaced; no test has used this name."""
    path, store = served
    for entry in store.list(""):
        store.remove(entry.path, recursive=True)
    name = f"always{next(NUMBERS)}"
    write(store, name, b"0 ")
    return path, store, name


def number_of(data: bytes) -> int:
    """Which version it is; all of it is that one."""
    word = data[: data.index(b" ") + 1]
    assert data == word * (len(data) // len(word))
    return int(word)


def test_what_is_always_replaced_is_read(shifty: tuple[Path, Local, str]) -> None:
    path, last = shifty[0] / shifty[2], -1
    for _ in range(10):
        number = number_of(path.read_bytes())
        assert number > last
        last = number
    # The kernel trusts the facts of a listing for a second, but not at an open.
    with os.scandir(path.parent) as entries:
        assert [entry.stat().st_size > 0 for entry in entries] == [True]
    assert number_of(path.read_bytes()) > last


def test_what_is_always_replaced_is_written(shifty: tuple[Path, Local, str]) -> None:
    path, store = shifty[0] / shifty[2], shifty[1]
    for mode in ("r+b", "ab", "wb", "w+b", "r+b"):
        with open(path, mode) as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            assert (size == 0) == mode.startswith("w")
            file.write(b"x")
        with store.open(shifty[2]) as reader:
            data = reader.read(1 << 24)
        assert data[size:] == b"x"
        before = data.rstrip(b"x")  # bytes that were written are a version, too, if nobody has looked since
        assert before == b"" or number_of(before) > 0
    with path.open("r+b") as file, path.open("rb") as again:  # a writer sees its own writes
        file.write(b"mine ")
        file.flush()
        assert again.read(5) == b"mine "


@pytest.mark.long
def test_what_many_write_and_read_at_one_time_is_always_replaced(shifty: tuple[Path, Local, str]) -> None:
    path = shifty[0] / shifty[2]
    code = (
        "import sys, threading\n"
        "def work(mode):\n"
        "    for _ in range(8):\n"
        "        with open(sys.argv[1], mode) as file:\n"
        "            file.read(10) if mode == 'rb' else file.write(b'7 ')\n"
        "threading.excepthook = lambda told: print(told.exc_value)\n"
        "threads = [threading.Thread(target=work, args=(mode,)) for mode in ('rb', 'r+b', 'ab', 'wb')]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    said = [process.communicate(timeout=200) for process in processes]
    assert said == [(b"", b"")] * 3


def test_what_goes_while_it_is_opened_is_absent_or_made(shifty: tuple[Path, Local, str]) -> None:
    path, store = shifty[0] / "gone", shifty[1]
    for mode in ("rb", "r+b"):
        write(store, "gone", b"there")
        with pytest.raises(FileNotFoundError):
            path.open(mode).close()
    for mode in ("ab", "wb", "a+b", "w+b"):
        write(store, "gone", b"there")
        with open(path, mode) as file:
            file.write(b"made")
        assert store.stat("gone").size == 4
    write(store, "gone", b"there")
    with pytest.raises(FileNotFoundError):
        os.chmod(path, 0o600)


def test_what_is_a_file_and_a_directory_in_turn(shifty: tuple[Path, Local, str]) -> None:
    path, store = shifty[0] / "turns", shifty[1]
    write(store, "turns", b"0 ")
    for _ in range(10):
        try:
            number_of(path.read_bytes())
        except IsADirectoryError:
            pass
        try:
            assert os.listdir(path) == []
        except NotADirectoryError:
            pass
        path.stat()


def test_what_was_told_and_never_came_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Local(str(tmp_path / "store"))
    write(store, "f", b"first" * WHOLE)  # too large for the cache to keep
    state = State(store)
    state.again.tell(state.nodes.of(store.stat("f")), 7)
    state.again.tell(state.nodes.of(store.stat("f")), 8, writes=True)
    read, written = state.again.find("f", 7), state.again.find("f", 8)
    assert read and written and read.content and written.draft
    assert state.again.find("f", 9) is None
    assert state.again.find("f", 8) is written
    write(store, "f", b"second" * WHOLE)
    assert state.again.find("f", 7) is not read  # each look finds what is there now
    assert (len(state.again), len(state.nodes)) == (2, 3)
    monkeypatch.setattr("quine.mount.reopen.time.monotonic", lambda: time.time() + reopen.LOOKS)
    state.again.tell(state.nodes.of(store.stat("f")), 10)
    assert len(state.again) == 1
    assert state.drafts("f") == []
    assert len(state.nodes) == 1


def test_a_draft_that_ends_while_it_is_told_of_is_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread looks, another one of its process closes: the number of a node that is gone would be ESTALE."""
    store = Local(str(tmp_path / "store"))
    write(store, "f", b"old")
    state = State(store)
    found = state.draft_for
    request = Request(Op.CREATE, 1, ROOT, os.getpid(), (os.O_WRONLY, 0o600), (b"f",))
    create = b"".join(perform(state, request))
    number, handle = int.from_bytes(create[:8], sys.byteorder), int.from_bytes(create[128:136], sys.byteorder)

    def ends(path: str, thread: int) -> Node | None:
        node = found(path, thread)
        perform(state, Request(Op.RELEASE, 2, number, thread, (handle,)))
        state.nodes.forget(number, 1)
        return node

    monkeypatch.setattr(state, "draft_for", ends)
    (entry,) = perform(state, Request(Op.LOOKUP, 3, ROOT, os.getpid(), (), (b"f",)))
    told = int.from_bytes(entry[:8], sys.byteorder)
    assert told != number
    assert perform(state, Request(Op.GETATTR, 4, told, os.getpid(), (0, 0, 0)))
    state.reserved.close()
