"""A directory on a disk: a mount that cannot commit keeps nothing in memory, which is lost with the machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def spools() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)
