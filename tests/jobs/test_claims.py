"""The verbs on jobs of other hosts: whose a job is that several of them list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base.cli_options import RunOptions
from quine.base.errors import Misconfigured
from quine.base.sessions import SHORT
from quine.cli import job_ids
from quine.jobs import remote
from quine.tape import places, registry

ID = "01a2012b-9e35-7c17-974b-28781c831bee"


def claim(host: str, **more: object) -> dict[str, object]:
    facts = {"id": ID, "host": host, "kind": "agent", "state": "running", "pid": 7, "started": 1.0}
    facts |= {"mission": "m", "root": ID}
    return {**facts, **more}


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ([claim("h1")], "h1"),
        ([claim("h1", state="unknown"), claim("h2")], "h2"),  # a home that they share: one of them knows it
        ([claim("h1", state="exited"), claim("h2", state="exited")], "h1"),
        ([claim("h1"), claim("h2", pid=8)], ""),  # one of them lies, and would be given the other's stdin
        ([claim("h1"), claim("h2", mission="mine")], ""),
    ],
)
def test_an_id_that_two_hosts_claim(
    monkeypatch: pytest.MonkeyPatch, facts: list[dict[str, object]], found: str
) -> None:
    monkeypatch.setattr(remote, "hosts", lambda where, values: ["h1", "h2"])
    monkeypatch.setattr(remote, "listed", lambda *_: (facts, []))
    if found:
        assert remote.find(ID[:8], "", RunOptions()) == [remote.Remote(found, ID)]
    else:
        with pytest.raises(Misconfigured, match="is on h1 and on h2"):
            remote.find(ID[:8], "", RunOptions())


One = Callable[[dict[str, list[Any] | None]], Any]


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> One:
    """Look for ID, which is noted as started on h1. Give what each host lists, None if it does not answer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(remote, "hosts", lambda where, options: [where] if where else ["h1", "h2"])
    places.note_host(ID, "h1")

    def found(lists: dict[str, list[Any] | None], text: str = ID[:SHORT]) -> Any:
        def listed(names: list[str], options: RunOptions, job: str = "") -> Any:
            facts = [fact for name in names for fact in lists[name] or []]
            return facts, [remote.Silent(name, "is down", "") for name in names if lists[name] is None]

        monkeypatch.setattr(remote, "listed", listed)
        return job_ids.one("wait", (str(tmp_path / "data"),), text, RunOptions())

    return found


def test_the_host_that_is_noted_is_asked_alone(one: One) -> None:
    """Also one that does not answer: the job is there, as far as is known."""
    assert one({"h1": [claim("h1", state="exited")]}) == one({"h1": None}) == remote.Remote("h1", ID, True)


def test_the_other_hosts_are_asked_for_a_job_that_the_noted_one_does_not_know(one: One) -> None:
    """Its name may mean another machine since."""
    for there in ([], [claim("h1", state="unknown")]):
        assert one({"h1": there, "h2": [claim("h2", state="exited")]}) == remote.Remote("h2", ID)
    with pytest.raises(
        Misconfigured, match=r"no such job: .*; all hosts that were asked have answered: h1, h2"
    ):
        one({"h1": [], "h2": []})


def test_a_note_of_a_directory_and_one_of_a_host_are_no_one_job(
    one: One, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = SimpleNamespace(id=ID.replace("bee", "bef"), supervisor=0, known_here=True)
    monkeypatch.setattr(places, "having", lambda text: ["/elsewhere"])
    monkeypatch.setattr(
        registry, "find", lambda text, *folders: [agent] if folders == ("/elsewhere",) else []
    )
    with pytest.raises(Misconfigured, match=f"2 jobs begin with {ID[:SHORT]}"):
        one({"h1": [claim("h1")]})
    agent.id = ID
    assert one({"h1": [claim("h1")]}) is agent
