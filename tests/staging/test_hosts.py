"""Files for jobs over there and what they made brought back: --files, --returns, fork's files. Against real sshd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from quine.staging.caller_side import Staging
from tests.lab import Lab
from tests.support.agents import OK, call, says, sh
from tests.support.remote_agents import environment, leave, tapes
from tests.support.remote_agents import reach as reach
from tests.support.trees import facts
from tests.support.trees import there as there
from tests.support.trees import work as work
from transport.spawn import Spawn
from transport.status import Status

BLOCK = 1 << 20


def results_of(data: Path) -> list[str]:
    """The tool results of the agent `parent`."""
    tape = tapes(data)["parent"]
    return [entry["data"]["content"] for entry in tape if entry["type"] == "tool_result"]


def test_files_are_there_before_the_command_starts(lab: Lab, work: Path, there: Path) -> None:
    (work / "src" / "a.c").chmod(0o750)
    os.utime(work / "src" / "a.c", ns=(1, 1_234_567_890_123_456_789))
    (work / "src" / "deep").chmod(0o500)
    os.utime(work / "src", ns=(1, 1_000_000_000_000_000_001))
    before = facts(work)
    words = ["run", "--on", "h1", "--cwd", there, "--files", "src", "--files", "Makefile", "--"]
    done = lab.run([*words, "cat", "src/link"], cwd=work)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"int a;", b"")
    assert facts(there) == before
    for top in (work, there):
        (top / "src" / "deep").chmod(0o700)


def test_of_a_directory_for_one_job_no_record_is_kept(lab: Lab, work: Path, there: Path) -> None:
    """There are so many of them that they would push out those that are of use."""
    seen = lab["h1"].home / ".cache" / "quine" / "staging" / "seen"
    lab.run(["run", "--on", "h1", "--cwd", there, "--files", "Makefile", "--", "true"], cwd=work, check=True)
    before = {path.name for path in seen.iterdir()}
    assert before
    done = lab.run(["run", "--on", "h1", "--files", "Makefile", "--", "cat", "Makefile"], cwd=work)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"all:", b"")
    assert {path.name for path in seen.iterdir()} == before


def test_what_changed_over_there_is_as_it_should_be_again(lab: Lab, work: Path, there: Path) -> None:
    words = ["run", "--on", "h1", "--cwd", there, "--files", "src", "--", "sh", "-c"]
    spoil = (
        "echo spoilt >src/a.c; rm src/deep/empty; rmdir src/nothing; ln -sf x src/link; echo mine >src/new"
    )
    assert lab.run([*words, spoil], cwd=work).returncode == 0
    done = lab.run([*words, "cat src/link src/new; ls -A"], cwd=work)
    assert (done.returncode, done.stdout) == (0, b"int a;mine\nsrc\n")
    (work / "src" / "a.c").write_text("int b;")
    assert lab.run([*words, "cat src/a.c"], cwd=work).stdout == b"int b;"


def test_what_it_made_comes_back_also_when_it_failed(lab: Lab, work: Path) -> None:
    line = "mkdir -p logs/x; echo 1 >logs/1; echo 2 >logs/x/2; tr a-z A-Z <src/a.c >out; exit 7"
    words = ["run", "--on", "h1", "--files", "src", "--returns", "out", "--returns", "logs/*"]
    done = lab.run([*words, "--", "sh", "-c", line], cwd=work)
    assert (done.returncode, done.stderr) == (7, b"")
    assert (work / "out").read_text() == "INT A;"
    assert {path.name for path in (work / "logs").rglob("*")} == {"1", "x", "2"}


def test_a_death_by_signal_is_that_death_and_its_files_come_back(lab: Lab, work: Path) -> None:
    line = "echo x >out; kill -USR1 $$"
    done = lab.run(["run", "--on", "h1", "--returns", "out", "--", "sh", "-c", line], cwd=work)
    assert done.returncode == -signal.SIGUSR1
    assert (work / "out").read_text() == "x\n"


def test_what_is_not_there_is_named_and_the_rest_comes(lab: Lab, work: Path) -> None:
    words = ["run", "--on", "h1", "--returns", "out", "--returns", "no*", "--returns", "none", "--"]
    done = lab.run([*words, "sh", "-c", "echo x >out"], cwd=work)
    assert done.returncode == 1
    assert done.stderr == b"quine: h1: error: --returns no*, none: nothing there to be brought back\n"
    assert (work / "out").read_text() == "x\n"
    done = lab.run(["run", "--on", "h1", "--returns", "none", "--", "sh", "-c", "exit 9"], cwd=work)
    assert done.returncode == 9


def test_a_name_that_is_obeyed_here_is_said_to_be_left_out(lab: Lab, work: Path) -> None:
    line = "mkdir .git; touch out .git/config"
    words = ["run", "--on", "h1", "--returns", ".", "--", "sh", "-c"]
    done = lab.run([*words, line], cwd=work)
    text = b"quine: h1: .git left out, a name that quine or git obeys; to have it: --returns .git\n"
    assert (done.returncode, done.stderr) == (0, text)
    assert (work / "out").exists() and not (work / ".git").exists()
    done = lab.run([*words[:5], "--returns", ".git", *words[5:], line], cwd=work)
    assert (done.returncode, done.stderr) == (0, b"") and (work / ".git" / "config").exists()


def test_what_cannot_be_brought_back_is_still_there(lab: Lab, work: Path) -> None:
    (work / "out").mkdir()
    done = lab.run(["run", "--on", "h1", "--returns", "out", "--", "sh", "-c", "echo x >out; pwd"], cwd=work)
    where = done.stdout.decode().strip()
    assert done.returncode == 74 and where.startswith(f"{lab['h1'].home}/quine/")
    error, hint = done.stderr.decode().splitlines()
    assert "the files cannot be brought back: out: " in error
    assert hint == f"quine: h1: hint: the results are still on the host, in {where}"
    (work / "out").rmdir()
    lab.run(["run", "--on", "h1", "--cwd", where, "--returns", "out", "--", "true"], cwd=work, check=True)
    assert (work / "out").read_text() == "x\n"


def test_results_that_stay_in_a_shared_directory_are_said_to_be_in_the_workdir() -> None:
    """The name of a key of the inventory is no directory."""
    status = Status("signaled", 143, "TERM", pid=5)
    Staging([], ["out"], "/").leave(status, Spawn(["true"], tree="a" * 32))
    assert status.hint == (
        f"the results are still on the host, in {'a' * 32} in its workdir "
        "(~/quine, if the inventory names no other)"
    )


@pytest.mark.parametrize("how", ["signal", "deadline"])
def test_a_job_that_was_told_to_end_brings_nothing(lab: Lab, work: Path, tmp_path: Path, how: str) -> None:
    """Its result is a part of one, even if it says that it has ended well."""
    (work / "out").write_text("whole")
    place = tmp_path / "place"
    # Before the trap: a process that the shell forks later may take the signal as the shell does, and lose it.
    # The place is in its file before the line comes here: tee(1) writes its file last, and was ended before that.
    line = f"sleep 1000 & trap 'kill $!; exit 0' TERM; echo part >out; pwd >{place}; pwd; wait"
    words = ["run", "--on", "h1", "--returns", "out", *(["--deadline", "1"] if how == "deadline" else [])]
    process = lab.popen(
        [*words, "--", "sh", "-c", line], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if how == "signal":
        assert process.stdout and process.stdout.readline()
        process.terminate()
    error = process.communicate(timeout=120)[1].decode()
    assert process.returncode == (-signal.SIGTERM if how == "signal" else 124)
    assert (work / "out").read_text() == "whole"
    if place.exists():
        assert "it was not to finish, and nothing was brought back" in error
        name = Path(place.read_text().strip()).name
        assert f"hint: the results are still on the host, in ~/quine/{name}\n" in error


def test_a_directory_where_nothing_can_be_made_is_named(lab: Lab, work: Path) -> None:
    done = lab.run(["run", "--on", "h1", "--cwd", "/sys", "--files", "src", "--", "true"], cwd=work)
    assert done.returncode == 69
    error, hint = done.stderr.decode().splitlines()
    assert error.startswith("quine: h1: error: the files cannot be laid out there: /sys: ")
    assert hint.startswith("quine: h1: hint: choose another directory with --cwd")


def test_a_file_that_is_not_here_is_said_before_anything_starts(lab: Lab, work: Path) -> None:
    done = lab.run(["run", "--on", "h1", "--files", "nope", "--", "true"], cwd=work)
    assert (done.returncode, done.stderr) == (2, b"quine: error: --files nope: no such file or directory\n")


def test_what_cannot_be_staged_is_named_and_nothing_is_started(lab: Lab, work: Path, there: Path) -> None:
    (work / "src" / "out").symlink_to("/etc/passwd")
    done = lab.run(
        ["run", "--on", "h1", "--cwd", there, "--files", "src", "--", "touch", "started"], cwd=work
    )
    assert done.returncode == 69
    assert b"src/out: a link that leads out of what is staged, to /etc/passwd" in done.stderr
    assert done.stderr.count(b"error") == 1
    assert b"hint: a link that is named is followed" in done.stderr
    assert list(there.iterdir()) == []
    (work / "src" / "out").unlink()
    (work / "src" / "out").symlink_to("../Makefile")
    words = ["run", "--on", "h1", "--cwd", there, "--files", "src/*", "--", "cat", "src/out"]
    assert lab.run(words, cwd=work).stdout == b"all:"  # as the hint says


def test_a_directory_in_the_way_is_named(lab: Lab, work: Path, there: Path) -> None:
    (there / "src" / "a.c").mkdir(parents=True)
    done = lab.run(["run", "--on", "h1", "--cwd", there, "--files", "src", "--", "true"], cwd=work)
    assert done.returncode == 69
    assert b"src/a.c: a directory stands where it should go" in done.stderr
    assert [path.name for path in there.iterdir()] == ["src"]


def test_the_streams_are_the_commands_own(lab: Lab, work: Path) -> None:
    words = ["run", "--on", "h1", "--files", "src", "--returns", "src/b", "--", "tee", "src/b"]
    done = lab.run(words, cwd=work, input=b"\0\xff" * 100_000)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\0\xff" * 100_000, b"")
    assert (work / "src" / "b").read_bytes() == done.stdout


@pytest.mark.long
def test_an_agent_has_its_files_and_returns_others(lab: Lab, work: Path, tmp_path: Path) -> None:
    command = "cat src/a.c >&4; echo r >result"
    reply = {"reply": {"tool_calls": [{"name": "sh", "arguments": {"command": command}}]}}
    env = environment(lab, tmp_path / "data", reply, leave())
    done = lab.run(["--on", "h1", "--files", "src", "--returns", "result", "go"], env=env, cwd=work)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"int a;", b"")
    assert (work / "result").read_text() == "r\n"


def test_fork_sends_files_and_has_returns(lab: Lab, work: Path, tmp_path: Path) -> None:
    child = {"intent": "child", "host": "h1", "files": ["src"], "returns": ["made", "none"]}
    arguments = {"children": [child], "wait": True, "context": "none"}
    tool = {"name": "sh", "arguments": {"command": "wc -c <src/a.c >made"}}
    replies = [
        {"match": "child", "reply": {"tool_calls": [tool]}},
        {"match": "child", **leave()},
        {"match": "parent", "reply": {"tool_calls": [{"name": "fork", "arguments": arguments}]}},
        {"match": "parent", **leave()},
    ]
    env = environment(lab, tmp_path / "data", *replies)
    done = lab.run(["parent"], env=env, cwd=work)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (work / "made").read_text() == "6\n"
    results = results_of(tmp_path / "data")
    assert "--returns none: nothing there to be brought back" in results[0]


def test_the_loser_of_a_race_brings_nothing(lab: Lab, work: Path, tmp_path: Path) -> None:
    """It gets TERM, and what it has made until then is a part of a result."""
    children = [{"intent": name, "host": host} for name, host in (("slow", "h1"), ("fast", "h2"))]
    race = call("fork", children=children, mode="race", context="none", returns=["out"])
    up = tmp_path / "up"
    env = environment(lab, tmp_path / "data",
        says(race, OK, match="^parent"),
        says(sh(f"echo part >out; touch {up}; sleep 1000"), match="^slow"),
        says(sh(f"until test -e {up}; do sleep 0.01; done; echo whole >out"), OK, match="^fast"))  # fmt: skip
    done = lab.run(["parent"], env=env, cwd=work)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (work / "out").read_text() == "whole\n"
    (result,) = results_of(tmp_path / "data")
    assert "[WINNER]" in result and "it was not to finish, and nothing was brought back" in result
    assert not list(tmp_path.rglob("*.winner"))


@pytest.mark.long
def test_a_child_of_an_agent_elsewhere_has_its_files_from_there(
    reach: Lab, work: Path, tmp_path: Path
) -> None:
    """From b1 to b2 by way of the origin, which has neither them nor a say in them."""
    made = call("fork", intent="child", host="b2", wait=True, context="none", files=["own"], returns=["back"])
    env = environment(reach, tmp_path / "data",
        says(sh("mkdir own; cat src/a.c >own/x"), made, sh("cat back >&4"), OK, match="^root"),
        says(sh("{ cat own/x; echo $QUINE_NODE_NAME; } >back"), OK, match="^child"))  # fmt: skip
    done = reach.run(["--on", "b1", "--files", "src", "root"], env=env, cwd=work)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"int a;b2\n", b"")
    assert not (work / "back").exists() and not (work / "own").exists()


def test_a_fork_that_names_what_is_not_there_starts_nothing(lab: Lab, work: Path, tmp_path: Path) -> None:
    bad = call("fork", intent="child", host="h1", wait=True, files=["src", "nope"])
    worse = call("fork", intent="child", host="h1", wait=True, returns=["../x"])
    env = environment(lab, tmp_path / "data", says(bad, worse, OK))
    assert lab.run(["parent"], env=env, cwd=work).returncode == 0
    results = results_of(tmp_path / "data")
    assert "[FORK ERROR] files nope: no such file or directory, nothing was started" in results[0]
    assert "[FORK ERROR] returns: '../x' leads out" in results[1]


def test_here_files_are_copied_where_the_directory_is_another(lab: Lab, work: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    words = ["run", "--cwd", tmp_path / "other", "--files", "src", "--returns", "out", "--"]
    done = lab.run([*words, "sh", "-c", "cat src/a.c | tee out"], cwd=work)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"int a;", b"")
    assert (work / "out").read_text() == "int a;"
    done = lab.run(["run", "--files", "src", "--returns", "none", "--", "cat", "src/a.c"], cwd=work)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"int a;", b""), "all of it is here already"


def test_a_command_that_is_not_there(lab: Lab, work: Path) -> None:
    done = lab.run(["run", "--on", "h1", "--files", "src", "--", "no-such-command"], cwd=work)
    assert (done.returncode, done.stderr) == (127, b"quine: h1: error: command not found: no-such-command\n")


def test_the_report_says_that_nothing_was_started(lab: Lab, work: Path) -> None:
    os.mkfifo(work / "src" / "pipe")
    done = lab.run(["run", "--on", "h1", "--report", "r", "--files", "src", "--", "true"], cwd=work)
    report = json.loads((work / "r").read_text())
    assert (done.returncode, report["state"], report["code"]) == (69, "unreachable", 69)
    assert "src/pipe: neither a file nor a directory nor a link" in report["detail"]


def test_plain_commands_load_nothing_of_it(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", "true"], env={"PYTHONPROFILEIMPORTTIME": "1"}, check=True)
    assert b"quine.staging" not in done.stderr
