"""The notes of the places where sessions and jobs were begun: an id is found from any directory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.base import data_directory
from quine.base.cli_options import RunOptions
from quine.base.errors import Misconfigured
from quine.base.sessions import SHORT, new_session
from quine.cli import ps_table, tape
from quine.jobs import remote
from quine.tape import places
from tests.support.agents import OK, Agents, says

Note = Callable[[str], Path]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "quine"


def made(path: Path, *sessions: str) -> str:
    """A data directory of this user with empty tapes."""
    os.close(data_directory.opened(str(path), make=True))
    for session in sessions:
        (path / f"{session}.jsonl").touch()
    places.note_folder(str(path))
    return str(path)


def test_a_directory_is_noted_once_and_the_latest_is_the_first(tmp_path: Path, state: Path) -> None:
    assert places.folders() == [] and not state.exists()
    one, two = made(tmp_path / "one"), made(tmp_path / "two of\udce4 us")
    made(tmp_path / "one")
    assert places.folders() == [two, one]
    assert (state / places.FOLDERS).stat().st_mode & 0o777 == 0o600
    places.note_folder(f"{tmp_path}/a\nb")
    assert places.folders() == [two, one]


def test_the_directory_of_a_session_is_found(tmp_path: Path) -> None:
    session = new_session()
    one, two = made(tmp_path / "one", session), made(tmp_path / "two", new_session())
    assert places.having(session[:SHORT]) == places.having(session, two) == [one]
    assert places.having(session, one) == places.having("") == places.having("0" * SHORT) == []


def test_the_beginning_of_an_id_that_two_directories_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But one session may be in many: as a copy, or with the output of its job apart from its tape."""
    first, second = "01a2012b-9e35-7c17-974b-28781c831bee", "01a2012b-9e35-7c17-974b-28781c831bef"
    one, two = made(tmp_path / "one", first), made(tmp_path / "two", first)
    (Path(made(tmp_path / "three")) / second).mkdir()
    monkeypatch.setenv("QUINE_DATA_DIR", made(tmp_path / "here"))
    assert str(tape._holding(RunOptions(), first[:SHORT])) == two
    (Path(one) / f"{second}.jsonl").touch()
    assert str(tape._holding(RunOptions(), first)) == two
    with pytest.raises(
        Misconfigured, match="2 data directories have sessions that begin with 01a2012b"
    ) as caught:
        tape._holding(RunOptions(), first[:SHORT])
    assert caught.value.hint.startswith(f"{two}, {one}: ")


def test_a_directory_that_is_not_the_users_any_more_is_passed_over(tmp_path: Path, state: Path) -> None:
    one, two = made(tmp_path / "one"), made(tmp_path / "two")
    os.rename(one, tmp_path / "moved")
    (tmp_path / "one").mkdir()  # as a repository that was put there would have it
    os.chmod(made(tmp_path / "open"), 0o777)
    os.unlink(Path(odd := made(tmp_path / "odd")) / data_directory.MARK)
    os.mkdir(Path(odd) / data_directory.MARK)
    with open(state / places.FOLDERS, "ab") as file:
        file.write(b"relative\n\n/torn\n" + os.fsencode(two)[:-1])
    assert places.folders() == [two]


def test_a_note_is_bounded(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LARGEST", 1000)
    for n in range(200):
        places.note_host(f"{n:032x}", "host")
        assert (state / places.HOSTS).stat().st_size <= 2 * places.LARGEST
    kept = places.hosts("")
    assert kept[0] == (f"{199:032x}", "host") and len(kept) > 20
    assert [job for job, _ in kept] == [f"{199 - n:032x}" for n in range(len(kept))]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_another_thing_in_place_of_a_note_is_no_fault(state: Path, make: Callable[[Path], None]) -> None:
    state.mkdir(parents=True)
    make(state / places.HOSTS)
    places.note_host(new_session(), "host")
    assert places.hosts("") == []


def test_the_verbs_find_a_session_from_another_directory(agents: Agents, tmp_path: Path) -> None:
    agents.run(says(OK))
    (session,) = [path.stem for path in agents.data.glob("*.jsonl")]
    away = tmp_path / "away"
    away.mkdir()

    def quine(*words: str) -> subprocess.CompletedProcess[str]:
        return agents.quine(*words, cwd=away, env={"QUINE_DATA_DIR": ""})

    shown = quine("tape", "show", session)
    assert shown.returncode == 0 and session in shown.stdout, shown.stderr
    assert quine("tape", "cost", session[:SHORT]).returncode == 0
    assert quine("tape", "cost", "0" * SHORT).returncode == 2
    assert (quine("wait", session[:SHORT]).returncode, quine("wait", "0" * SHORT).returncode) == (0, 2)
    assert quine("tape", "show", "--data-dir=.", session).returncode == 2


def test_a_batch_is_found_by_the_sessions_of_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, theirs = new_session(), made(tmp_path / "theirs")
    data = {"root_session_id": root, "born": "exec", "mission": "m", "pid": 1}
    line = json.dumps({"type": "meta", "ts": 1.0, "data": data})
    Path(theirs, f"{new_session()}.jsonl").write_text(line + "\n")
    made(tmp_path / "later", new_session())
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    monkeypatch.delenv("QUINE_DATA_DIR", raising=False)
    assert tape._holding(RunOptions(), root[:SHORT]) == Path(theirs)
    assert tape._holding(RunOptions(), "0" * SHORT) == Path(data_directory.NAME)


def test_ps_on_a_terminal_names_the_hosts_of_commands_of_the_last_day(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 2)
    monkeypatch.setattr(
        remote, "hosts", lambda where, options: [where] if where in ("h1", "h2") else ["h1", "h2"]
    )
    for host in ("h1", "h2", "gone"):
        places.note_host(new_session(), host)
    places.note_host("01800000-0000-7000-8000-000000000000", "h1")  # of years ago
    folders = (str(agents.data),)
    assert ps_table.ps(folders, RunOptions()) == 0
    assert capsys.readouterr().err == "quine: 2 detached on hosts in the last day: quine ps --on h1,h2\n"
    assert ps_table.ps(folders, RunOptions(json=True)) == 0 and capsys.readouterr().err == ""
