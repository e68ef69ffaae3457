"""`--detach --job ID --on WHERE` with several candidates: the id chooses the host, whatever its load."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deploy.inventory import Inventory, load
from quine.__main__ import _detach as run_detached
from quine.base.sessions import new_session
from quine.cli import run
from tests.lab import Lab
from tests.support.detached import detach
from tests.support.detached import go as go
from tests.support.loads import idle, jobs
from transport.client import client
from transport.status import Status


def fleet(path: Path, *names: str) -> Inventory:
    path.write_text("".join(f"[hosts.{name}]\nslots = 4\n" for name in names))
    return load(path, {})


def test_the_choice_is_the_same_whatever_the_load_and_the_order(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    one, other = fleet(tmp_path / "1", *names), fleet(tmp_path / "2", *reversed(names))
    fewer = fleet(tmp_path / "3", *names[:-1])
    chosen = []
    for job in (f"job-{n}" for n in range(400)):
        host = one.select("any", idle, pick=job).name
        assert (
            host
            == one.select("any", jobs(**{host: 4}), ["b"], pick=job).name
            == other.select("any", idle, pick=job).name
        )
        assert host in ("d", fewer.select("any", idle, pick=job).name), (
            "a host that leaves moves no other's jobs"
        )
        chosen.append(host)
    assert all(60 < chosen.count(name) < 140 for name in names)


def test_what_is_lost_is_asked_for_again_on_its_host(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without --job the host was chosen by load; the id alone might choose another one."""
    monkeypatch.setattr(client, "run", lambda *_, **__: Status("lost", 74, host="h2", detail="cut"))
    assert run.main(["--detach", "--on", "h1,h2", "--", "true"], run_detached) == 74
    hint = capfd.readouterr().err.splitlines()[-1]
    assert hint.startswith("quine: hint: if it was started, its id is ")
    assert "; the same again with --on h2 --job " in hint


@pytest.mark.long  # two hosts that nobody has dialled yet
def test_the_same_id_starts_one_job_wherever_there_is_room(lab: Lab, tmp_path: Path, go: Path) -> None:
    job, where = new_session(), "one,two"
    hosts = [lab.alias("one", "h1", slots=1), lab.alias("two", "h2", slots=1)]
    for host in hosts:
        busy = lab.popen(
            ["run", "--on", host, "--", "sh", "-c", f"echo up; read x <{go}"], stdout=subprocess.PIPE
        )
        assert busy.stdout and busy.stdout.readline() == b"up\n"
        script = f"echo $QUINE_NODE_NAME >>{tmp_path}/ran"
        assert detach(lab, "--job", job, "--on", where, "--", "sh", "-c", script) == job
        go.write_text("\n")
        busy.communicate(timeout=120)
    lab.run(["wait", "--on", where, job], check=True)
    assert len((tmp_path / "ran").read_text().splitlines()) == 1
