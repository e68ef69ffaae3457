"""`quine fs get X NAME`: where the file comes to when the name is a link, a pipe or a device."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.files.commands import Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.ok("put", "-", "a", input=b"content")
    return shelf


def test_a_link_that_was_named_is_followed(shelf: Shelf) -> None:
    here = shelf.directory
    (here / "real").write_bytes(b"old")
    (here / "link").symlink_to("real")
    (here / "second").symlink_to("link")
    shelf.ok("get", "a", "second")
    assert (here / "link").is_symlink() and (here / "second").is_symlink()
    assert (here / "real").read_bytes() == b"content"
    (here / "dangling").symlink_to("made")
    shelf.ok("get", "a", "dangling")
    assert (here / "dangling").is_symlink() and (here / "made").read_bytes() == b"content"


def test_a_link_that_was_named_stays_where_nothing_shall_be_replaced(shelf: Shelf) -> None:
    (shelf.directory / "dangling").symlink_to("made")
    assert "dangling: file exists" in shelf.fails("get", "-n", "a", "dangling")
    assert not (shelf.directory / "made").exists()


def test_what_is_no_file_is_written_and_not_replaced(shelf: Shelf) -> None:
    pipe = shelf.directory / "pipe"
    os.mkfifo(pipe)
    (shelf.directory / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        came: list[bytes] = []
        reader = threading.Thread(target=lambda came=came: came.append(pipe.read_bytes()))  # type: ignore[misc]
        reader.start()
        shelf.ok("get", "a", name)
        reader.join(60)
        assert came == [b"content"] and pipe.is_fifo()
    (shelf.directory / "null").symlink_to("/dev/null")
    shelf.ok("get", "a", "null")
    assert (shelf.directory / "null").is_symlink() and Path("/dev/null").is_char_device()


def test_a_descriptor_is_written_where_it_stands(shelf: Shelf) -> None:
    """By a link of this test's: where links are replaced, root would lose the machine's /dev/stdout."""
    (shelf.directory / "out").symlink_to("/proc/self/fd/1")
    with shelf.popen("get", "a", "out", stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=120) == (b"content", b"")
