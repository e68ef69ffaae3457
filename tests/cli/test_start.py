"""The start of a process: garbage is not collected while modules are loaded, and is afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from quine import __main__ as entry
from tests.lab import Lab
from tests.transport.client.test_batch import origin
from transport.client import client
from transport.status import Status


@pytest.fixture
def disabled() -> Iterator[None]:
    """As the console script does it."""
    gc.disable()
    yield
    gc.enable()


def test_a_client_collects_garbage_once_it_has_loaded_its_modules(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, disabled: None
) -> None:
    origin(lab, monkeypatch)
    found: list[bool] = []

    def run(*_: Any, **__: Any) -> Status:
        found.append(gc.isenabled())
        return Status("exited", 7)

    monkeypatch.setattr(client, "run", run)
    assert entry.dispatch(["run", "--on", "h1", "--", "true"]) == 7
    assert found == [True]


def test_every_other_verb_collects_garbage(disabled: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.dispatch(["--version"]) == 0 and gc.isenabled()


def test_the_console_script_does_not_while_it_loads_modules(lab: Lab) -> None:
    with open(lab.quine) as file:
        text = file.read()
    assert text.index("gc.disable()") < text.index("from quine")
