"""Personas are instructions: only those that no other user can have written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quine.agent import personas
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits


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
