"""The verbs on jobs of other hosts: whose a job is that several of them list."""

from __future__ import annotations

import pytest

from quine.base.cli_options import RunOptions
from quine.base.errors import Misconfigured
from quine.jobs import remote

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
