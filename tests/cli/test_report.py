"""`--report`: refused before anything starts where it cannot be written; never an earlier run's."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from quine.base import run_report
from quine.base.errors import Misconfigured
from tests.lab import Lab
from tests.support.agents import OK, Agents, says, sh
from transport.status import Status

EARLIER = '{"state":"exited","code":0}\n'


def read(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text())
    assert isinstance(record, dict)
    return record


def test_a_command_line_without_a_mission_reports_that(agents: Agents) -> None:
    path = agents.directory / "r"
    for place in ([], ["--on", "h1"]):
        path.write_text(EARLIER)
        done = agents.quine(*place, "--report", "r", "--", " ")
        assert (done.returncode, read(path)["detail"]) == (2, "no mission"), place


def test_an_unknown_host_is_named(agents: Agents, lab: Lab) -> None:
    """Not "local": nothing was to be done there."""
    env = lab.script([says(OK)], "unknown.jsonl")
    for words in (
        ["--report", "r", "--on", "nowhere", "m"],
        ["run", "--report", "r", "--on", "nowhere", "--", "true"],
    ):
        done = lab.run(words, cwd=agents.directory, env=env)
        record = read(agents.directory / "r")
        assert (done.returncode, record["state"], record["host"]) == (69, "unreachable", "nowhere")


def test_one_that_cannot_be_written_is_refused_before_anything_starts(agents: Agents, lab: Lab) -> None:
    agents.script(says(sh("touch started")), says(OK))
    for target, why in (
        ("none/r", "no such file or directory"),
        (".", "is a directory"),
        ("x" * 300, "file name too long"),
        ("99", "bad file descriptor"),
        ("0", "it is not open for writing"),
        ("9" * 30, "no such descriptor"),
    ):
        error = f"quine: error: cannot write the report to {target}: {why}\nquine: hint: --report FILE|FD: "
        done = agents.quine("--report", target, "--", "work", input="")
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(error), done
        done = agents.quine("run", "--report", target, "--", "touch", "started", input="")
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(error), done
    assert os.listdir(agents.directory) == ["script.jsonl"]


def test_a_status_is_not_0_if_it_cannot_be_written_at_the_end(agents: Agents, lab: Lab) -> None:
    """A disk that is full by then: here the directory has gone."""
    (agents.directory / "d").mkdir()
    gone = ["--report", f"{agents.directory}/d/r"]
    done = agents.run(says(sh("rm -r d")), says(OK), options=gone)
    assert done.returncode == 74 and b"cannot write the report to" in done.stderr
    for words in (["run", *gone, "--", "sh", "-c"], ["xargs", *gone, "--", "sh", "-c"]):
        (agents.directory / "d").mkdir()
        done = lab.run([*words, "rm -r d"], cwd=agents.directory, input="an item\n")
        assert done.returncode == 74 and b"cannot write the report to" in done.stderr, done
    (agents.directory / "d").mkdir()
    done = lab.run(["run", *gone, "--", "sh", "-c", "rm -r d; exit 3"], cwd=agents.directory)
    assert done.returncode == 3


def test_one_of_an_earlier_run_is_gone_before_anything_starts(agents: Agents, lab: Lab) -> None:
    path = agents.directory / "r"
    path.write_text(EARLIER)
    path.chmod(0o640)
    os.link(path, agents.directory / "kept")
    done = agents.run(says(sh("cat r >&4")), says(OK), options=["--report", "r"])
    assert (done.returncode, done.stdout, read(path)["tokens_in"]) == (0, b"", 0)
    done = lab.run(["run", "--report", "r", "--", "cat", "r"], cwd=agents.directory)
    assert (done.returncode, done.stdout, read(path)["tokens_in"]) == (0, b"", None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (agents.directory / "kept").samefile(path), "another name of it is one of it still, as for >"


def test_one_of_an_earlier_run_does_not_outlive_one_that_is_killed(agents: Agents) -> None:
    path = agents.directory / "r"
    path.write_text(EARLIER)
    done = agents.run(says(sh("kill -9 $PPID")), options=["--report", "r"])
    assert (done.returncode, path.read_text()) == (-signal.SIGKILL, "")


def test_a_name_that_is_not_there_is_there_when_it_is_whole(agents: Agents) -> None:
    done = agents.run(says(sh("ls >&4")), says(OK), options=["--report", "r"])
    assert done.stdout == b"data\nscript.jsonl\nstate\n" and read(agents.directory / "r")["state"] == "exited"


def test_an_agent_that_is_refused_reports_it(agents: Agents, lab: Lab) -> None:
    """In both places: the verdict of this run, not of the one before."""
    path = agents.directory / "r"
    for place in ([], ["--on", "h1"]):
        path.write_text(EARLIER)
        env = lab.script([says(OK)], "refused.jsonl") | {"QUINE_MAX_TURNS": "x"}
        done = lab.run([*place, "--report", path, "m"], env=env)
        assert (done.returncode, read(path)["code"]) == (2, 2), done


def test_one_onto_a_file_of_our_output_is_refused(lab: Lab, tmp_path: Path) -> None:
    """It takes the name of the file, so our output would be in a file without one."""
    for words in (">out", "2>out"):
        done = lab.sh(f"quine run --report out -- echo precious {words}", cwd=tmp_path)
        assert done.returncode == 2
    said = done.stderr.decode() + (tmp_path / "out").read_text()
    assert "cannot write the report to out: stdout or stderr is that file" in said


def test_a_dash_is_no_file_of_that_name() -> None:
    with pytest.raises(Misconfigured, match="- is neither") as wrong:
        run_report.begin("-")
    assert "--report 1 for stdout" in wrong.value.hint and "./-" in wrong.value.hint


def test_the_report_of_a_lost_job_has_its_cure() -> None:
    lost = Status("lost", 74, host="h1", detail="gone", hint="the results are still on the host, in ~/x")
    assert run_report.record(lost)["hint"] == lost.hint
    assert "hint" not in run_report.record(Status("exited", 0))
