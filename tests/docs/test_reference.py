"""The reference of the command line and the man pages say what the tables of the program say, and are well formed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.host import KEYS
from quine.base.cli_options import VERBS

pytestmark = pytest.mark.law

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "man").glob("*.1"))
REFERENCE = ROOT / "docs" / "reference"


def test_nothing_is_stale() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"], capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_there_is_a_page_for_each_verb() -> None:
    assert {path.stem for path in PAGES} == {"quine", *(f"quine-{verb}" for verb in VERBS)}


@pytest.mark.parametrize(
    "command", [["groff", "-man", "-ww", "-z", "-Tutf8"], ["mandoc", "-Tlint"]], ids=["groff", "mandoc"]
)
def test_the_man_pages_are_well_formed(command: list[str]) -> None:
    if not shutil.which(command[0]):
        pytest.skip(f"there is no {command[0]} here")
    for path in PAGES:
        done = subprocess.run([*command, str(path)], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), path.name


def test_every_key_of_the_inventory_is_documented() -> None:
    text = (REFERENCE / "inventory.md").read_text()
    missing = [key for key in KEYS if key != "name" and f"`{key}`" not in text]
    assert missing == []


def test_every_variable_is_documented() -> None:
    """Each QUINE_… that the program names, less those that only its own processes, or its shell, know."""
    import re

    text = (REFERENCE / "environment.md").read_text()
    own = {"QUINE_DETACHED", "QUINE_LAYER", "QUINE_MOVED", "QUINE_VIEW", "QUINE_WISDOM_", "QUINE_API_"}
    own |= {"QUINE_ENDED", "QUINE_ENDING"}  # in the shell of `sh`, not exported
    named = {
        name
        for package in ("quine", "transport", "deploy")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r"\bQUINE_[A-Z_]+", path.read_text())
    }
    assert sorted(name for name in named - own if f"`{name}`" not in text) == []
