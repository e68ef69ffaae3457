"""The job whose tier is one of the stores of the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.files.job_stores import Door, opened
from tests.lab import Lab
from tests.support.agents import until


@pytest.fixture(scope="module")
def door(session_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A job on a host for all tests of a module that have the store `relayed`; each of them leaves the root empty.

    No other test of such a module has the lab: its watch waits until no job is left.
    """
    before = set(session_lab.litter())
    with opened(session_lab, "h1", tmp_path_factory.mktemp("door") / "fs") as door:
        yield door
    assert not session_lab.wait_idle()
    until(lambda: not set(session_lab.litter()) - before)
