"""Directories for staging: one to give, one at a host to fill, and their content as a value."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab

BLOCK = 1 << 20  # bytes read at a time of a large file


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "src" / "a.c").write_text("int a;")
    (folder / "src" / "deep" / "empty").write_bytes(b"")
    (folder / "src" / "nothing").mkdir()
    (folder / "src" / "link").symlink_to("a.c")
    (folder / "Makefile").write_text("all:")
    return folder


@pytest.fixture
def there(lab: Lab) -> Iterator[Path]:
    """A directory of h1 for this test alone."""
    folder = lab["h1"].home / f"stage-{os.urandom(4).hex()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def facts(top: Path) -> dict[str, Any]:
    """Kind, permissions, time and content of everything below."""
    found: dict[str, Any] = {}
    for path in sorted(top.rglob("*")):
        info = path.lstat()
        if path.is_symlink():
            found[str(path.relative_to(top))] = os.readlink(path)
        else:
            held = content(path) if path.is_file() else None
            found[str(path.relative_to(top))] = (info.st_mode, info.st_mtime_ns, held)
    return found


def content(path: Path) -> bytes | tuple[int, str]:
    """Return the content of a file; of a large one its size and a digest, without reading its holes."""
    size, digest = path.stat().st_size, hashlib.sha256()
    if size <= BLOCK:
        return path.read_bytes()
    with open(path, "rb", buffering=0) as file:
        at = 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // BLOCK * BLOCK
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # only a hole is left
            block = os.pread(file.fileno(), BLOCK, at)
            if block.count(0) < len(block):  # whether zeros are a hole is not asked here
                digest.update(b"%d " % at + block)
            at += BLOCK
    return size, digest.hexdigest()
