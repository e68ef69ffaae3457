"""The modules that a whole process imports: its table of options, its verb, and their needs of the standard library."""

from __future__ import annotations

from pathlib import Path

from tests.lab import Lab
from tests.support.imports import BLOCKING, imported_by
from tests.support.sessions import write_sessions

ROOT = Path(__file__).resolve().parents[2]


def test_a_plain_command_imports_the_standard_library_only(lab: Lab) -> None:
    assert not imported_by(lab, "run", "--", "true") & BLOCKING


def test_a_command_of_the_files_tier_imports_the_standard_library_only(lab: Lab) -> None:
    for words in (
        ["ls"],
        ["find"],
        ["put", str(ROOT / "README.md"), "a"],
        ["sync", "-n", str(ROOT / "docs"), "tier:d"],
    ):
        assert not imported_by(lab, "fs", *words) & BLOCKING


def test_tapes_are_shown_and_listed_with_the_standard_library_only(lab: Lab, tmp_path: Path) -> None:
    (session,) = write_sessions(tmp_path, 1)
    for words in (["show", session], ["ls"], ["tree"], ["cost"]):
        assert not imported_by(lab, "tape", *words, env={"QUINE_DATA_DIR": str(tmp_path)}) & BLOCKING


def test_a_scripted_agent_imports_the_standard_library_only(lab: Lab) -> None:
    env = lab.script([{"reply": {"tool_calls": [{"name": "exit", "arguments": {"status": "success"}}]}}])
    assert not imported_by(lab, "say nothing", env=env) & BLOCKING
