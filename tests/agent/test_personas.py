"""Personas are instructions: only those that no other user can have written."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.agent import personas
from quine.agent.tools import exec as exec_tool
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits


def test_the_own_persona_of_the_user_is_not_replaced_by_one_of_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own, clone = tmp_path / "config" / "quine" / "personas", tmp_path / "personas"
    for place, names in ((own, ("both", "own", "link")), (clone, ("both", "clone", "link"))):
        place.mkdir(parents=True)
        for name in names:
            (place / f"{name}.md").write_text(f"of {place}")
    (own / "link.md").unlink()
    (own / "link.md").symlink_to("own.md")
    ledger = Ledger.create(Limits(), False, personas.now() + 10**9, personas.identities(str(tmp_path)))
    notes: list[str] = []
    loop: Any = SimpleNamespace(
        ledger=ledger, tree=SimpleNamespace(start=str(tmp_path)), log=SimpleNamespace(note=notes.append)
    )
    try:
        for name, place in (("own", own), ("clone", clone), ("both", own)):
            assert exec_tool._persona(loop, name) == f"of {place}"
        assert notes == [f"persona both: {own}/both.md is used, and not {clone}/both.md"]
        with pytest.raises(ValueError, match=f"{own}/link.md is a symlink"):
            exec_tool._persona(loop, "link")
        with pytest.raises(ValueError, match=f"neither {clone}/none.md nor {own}/none.md"):
            exec_tool._persona(loop, "none")
    finally:
        os.close(ledger.fd)
        os.close(ledger.beginning.fd)


def test_a_persona_that_another_user_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    places = [tmp_path / "personas", config / "quine" / "personas"]
    for place in places:
        place.mkdir(parents=True)
        (place / f"{place.parent.name}.md").write_text("You doubt.")
    ledger = Ledger.create(Limits(), False, personas.now() + 10**9, personas.identities(str(tmp_path)))
    try:
        # The user's own directory is judged with the way to it; one that was found is known by its identity.
        for place, ways in zip(places, ((), (config, config / "quine")), strict=True):
            name = place.parent.name
            assert personas.text(name, str(tmp_path), ledger) == "You doubt."
            for path in (*ways, place, place / f"{name}.md"):
                before = path.stat().st_mode
                path.chmod(0o777)
                with pytest.raises(ValueError, match=f"bad permissions of {path}: others can write it"):
                    personas.text(name, str(tmp_path), ledger)
                path.chmod(before)
                if os.geteuid() == 0:
                    os.chown(path, 65534, -1)
                    with pytest.raises(ValueError, match=f"bad owner of {path}: user id 65534"):
                        personas.text(name, str(tmp_path), ledger)
                    os.chown(path, 0, -1)
            assert personas.text(name, str(tmp_path), ledger) == "You doubt."
    finally:
        os.close(ledger.fd)
        os.close(ledger.beginning.fd)
