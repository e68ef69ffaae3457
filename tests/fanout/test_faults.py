"""`quine xargs` where outputs or the log cannot be kept: it ends with a message, and what was finished is passed on."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.support.agents import PATIENCE
from tests.support.waiting import read_until, until

SH = ["--", "sh", "-c"]
# Under a limit of the size of files Python would leave a truncated file of bytecode behind, for all that come after.
LIMITED = {"PYTHONDONTWRITEBYTECODE": "1"}
FULL = "no space left on device"


def kinds(path: Path) -> dict[str, str]:
    """How items ended, by their numbers."""
    rows = [line.split("\t") for line in path.read_text().splitlines(True)[1:] if line.endswith("\n")]
    return {row[0]: row[12] for row in rows}


@pytest.mark.parametrize("order", [[], ["-k"], ["--line-buffer"]])
def test_a_copy_of_an_output_that_cannot_be_written(lab: Lab, tmp_path: Path, order: list[str]) -> None:
    """The item whose output is not whole is lost, though it has ended well; the one that waits goes on."""
    place = tmp_path / "r" / "1" / "full"
    place.mkdir(parents=True)
    (place / "stdout").symlink_to("/dev/full")
    waits = (
        "full) until test -e up; do sleep 0.01; done ;; late) touch up; until test -e go; do sleep 0.01; done"
    )
    script = f'case $0 in {waits} ;; esac; echo "$0"'
    words = [
        "-P2",
        "--results",
        "r",
        "--joblog",
        "log",
        *order,
        *SH,
        script,
        ":::",
        "good",
        "full",
        "late",
        "none",
    ]
    done = lab.run(["xargs", *words], cwd=tmp_path)
    stopped, counts, named, rest, error = done.stderr.decode().splitlines()
    assert stopped.startswith(f"quine: stopped: --results r/1/full: {FULL}; 1 done, ")
    assert counts == "quine: error: 1 of 2 items are not done: 1 lost"
    assert named == "quine: hint: item 2 (full): lost"
    assert rest == "quine: 1 of 4 items were not started; --resume goes on with them"
    assert error == f"quine: error: --results r/1/full: {FULL}"
    assert (done.returncode, done.stdout) == (74, b"good\n")
    assert kinds(tmp_path / "log") == {"1": "done", "2": "lost"}
    (tmp_path / "go").touch()
    more = lab.run(["xargs", "--resume", *words], cwd=tmp_path)
    assert (more.returncode, sorted(more.stdout.split())) == (74, [b"late", b"none"])
    assert more.stderr.startswith(b"quine: error: 1 items were lost in a run before, and are not run again\n")


def test_a_table_that_cannot_be_written(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "r.csv").symlink_to("/dev/full")
    words = ["-P1", "--results", "r.csv", "--joblog", "log", "--", "echo", ":::", "a", "b", "c"]
    done = lab.run(["xargs", *words], cwd=tmp_path)
    assert done.returncode == 74
    assert f"quine: stopped: --results r.csv: {FULL}; " in done.stderr.decode()
    assert done.stderr.decode().endswith(f"quine: error: --results r.csv: {FULL}\n")
    assert kinds(tmp_path / "log") == {}, "a row that was not written is no end of an item"


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_a_table_has_no_part_of_a_row_after_a_disk_was_full(lab: Lab, tmp_path: Path, kind: str) -> None:
    """The next run would add its first row to that part, and a reader would miss both."""
    lab.run(["run", "--on", "local", "--", "true"])  # the node has no limit
    script = 'head -c 3000 /dev/zero | tr "\\0" x; echo "$0"'
    words = (
        f"quine xargs -P1 --results r.{kind} --joblog log --resume -- sh -c '{script}' ::: a b c d e f g h"
    )
    assert lab.sh(f"ulimit -f 20; exec {words}", cwd=tmp_path, env=LIMITED).returncode == 74
    assert (tmp_path / f"r.{kind}").stat().st_size > 3000
    assert lab.sh(words, cwd=tmp_path).returncode == 0
    with (tmp_path / f"r.{kind}").open(newline="") as file:
        if kind == "jsonl":
            found = [json.loads(line)["stdout"] for line in file]
        else:
            found = [row["Stdout"] for row in csv.DictReader(file, delimiter="," if kind == "csv" else "\t")]
    assert sorted(text[-2:] for text in found) == [f"{item}\n" for item in "abcdefgh"]


@pytest.mark.parametrize("options", ["", "-k", "--fold", "--json"])
def test_a_temporary_file_that_cannot_be_written(lab: Lab, tmp_path: Path, options: str) -> None:
    """No file may have more than 100 KiB, as on a disk that is almost full."""
    lab.run(["run", "--on", "local", "--", "true"])  # the node of this machine has no such limit
    script = 'head -c "$0" /dev/zero | tr "\\0" x; echo'
    line = f"ulimit -f 200; exec quine xargs -P1 {options} -- sh -c '{script}' ::: 10 200000 20"
    done = lab.sh(line, cwd=tmp_path, env=LIMITED)
    assert done.returncode == 74
    why = "an output cannot be kept in a temporary file: file too large"
    assert done.stderr.decode().splitlines()[0].startswith(f"quine: stopped: {why}; 1 done, ")
    assert done.stderr.decode().endswith(f"quine: error: {why}\n")
    assert b"xxxxxxxxxx" in done.stdout


def test_outputs_that_cannot_be_folded(lab: Lab, tmp_path: Path) -> None:
    """Each is small enough to be kept in memory, but together they are not."""
    lab.run(["run", "--on", "local", "--", "true"])  # the node has no limit
    script = 'head -c 8000 /dev/zero | tr "\\0" "$0"; echo'
    line = f"ulimit -f 20; exec quine xargs -P1 --fold -- sh -c '{script}' ::: a b c"
    done = lab.sh(line, cwd=tmp_path, env=LIMITED)
    assert done.returncode == 74 and b"a" * 8000 in done.stdout
    assert done.stderr.endswith(b"error: an output cannot be kept in a temporary file: file too large\n")


def test_a_log_that_cannot_be_written(lab: Lab, tmp_path: Path) -> None:
    lab.run(["run", "--on", "local", "--", "true"])  # the node has no limit
    job = """-- sh -c 'echo "$0" >>ran; echo "$0"'"""
    limited = f"ulimit -f 4; seq 1 30 | exec quine xargs -k -P1 --joblog log {job}"
    done = lab.sh(limited, cwd=tmp_path, env=LIMITED)
    assert done.returncode == 74
    assert b"quine: stopped: " in done.stderr and done.stderr.endswith(b"/log: file too large\n")
    shown = done.stdout.split()
    assert 3 < len(shown) < 30
    assert shown == [b"%d" % number for number in range(1, len(shown) + 1)], "in their order"
    assert set(kinds(tmp_path / "log").values()) == {"done"} and (tmp_path / "log.started").exists()
    more = lab.sh(f"seq 1 30 | quine xargs -k --joblog log --resume {job}", cwd=tmp_path)
    assert (more.returncode, more.stderr) == (0, b"")
    # The next run passes on once more what was said, and nothing else.
    twice = set(shown) & set(more.stdout.split())
    said = re.findall(rb"item (\d+): its output was passed on and its end is not in the log", done.stderr)
    assert twice == set(said) and len(twice) == 1
    # Those that have no line were taken over: none has run twice.
    assert sorted((tmp_path / "ran").read_text().split(), key=int) == [*map(str, range(1, 31))]
    assert set(shown + more.stdout.split()) == {b"%d" % number for number in range(1, 31)}


@pytest.mark.parametrize("order", [[], ["-k"], ["--line-buffer"]])
@pytest.mark.parametrize("log", [True, False])
def test_a_reader_that_has_gone_is_told_of_where_there_is_a_log(
    lab: Lab, tmp_path: Path, log: bool, order: list[str]
) -> None:
    words = [
        "xargs",
        "-P3",
        *order,
        *(["--joblog", "log"] if log else []),
        *SH,
        'echo "$0"; exec sleep 0',
        ":::",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with lab.popen([*words, *map(str, range(9999))], cwd=tmp_path, **pipes) as process:
        assert process.stdout and process.stderr
        read_until(process.stdout.fileno(), b"\n")
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE) == -signal.SIGPIPE
    if not log:
        assert said == ""
        return
    assert said.startswith("quine: stopped: the reader of stdout has gone; ") and said.count("\n") == 1
    found = re.search(r"; (?:(\d+) done, )?\d+ running, (\d+) outputs? not passed on$", said)
    passed_on = list(kinds(tmp_path / "log").values())
    assert found and int(found[1] or 0) - int(found[2]) == len(passed_on), said
    assert set(passed_on) <= {"done"} and (tmp_path / "log.started").exists()


def test_an_output_of_which_a_part_was_read_is_not_on_record(lab: Lab, tmp_path: Path) -> None:
    """It is more than a pipe takes: --resume passes it on."""
    script = "case $0 in a) head -c 200000 /dev/zero ;; b) touch begun; until test -e go; do sleep 0.01; done ;; esac"
    words = ["xargs", "-P1", "--joblog", "log", *SH, script, ":::", "a", "b"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with lab.popen(words, cwd=tmp_path, **pipes) as process:
        assert process.stdout and process.stderr
        until((tmp_path / "begun").exists, "the output before was queued as a whole")
        assert os.read(process.stdout.fileno(), 10) == bytes(10)
        process.stdout.close()
        said = process.stderr.read().decode()
    assert (
        said == "quine: stopped: the reader of stdout has gone; 1 done, 1 running, 1 output not passed on\n"
    )
    assert kinds(tmp_path / "log") == {}
    (tmp_path / "go").touch()
    more = lab.run(["xargs", "--resume", *words[1:]], cwd=tmp_path)
    assert (more.returncode, more.stdout, more.stderr) == (0, bytes(200000), b"")


def test_folded_outputs_that_cannot_be_written_are_counted_each(lab: Lab) -> None:
    done = lab.sh("exec quine xargs --fold -- echo same '#' ::: a b c >/dev/full")
    assert done.returncode == 74
    assert done.stderr.startswith(f"quine: stopped: {FULL}; 3 done, 0 running, 3 outputs not passed".encode())


def test_stdout_that_is_closed(lab: Lab, tmp_path: Path) -> None:
    done = lab.sh("exec quine xargs -P1 -- echo ::: a b >&-", cwd=tmp_path)
    assert done.returncode != 0 and b"quine: " in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_an_output_that_cannot_be_written_to_stderr(lab: Lab, tmp_path: Path, closed: str) -> None:
    script = 'echo "$0" >>ran; if test "$0" = a; then until test "$(wc -l <ran)" -ge 2; do sleep 0.01; done; '
    script += 'else until test -e go; do sleep 0.01; done; fi; echo "$0" >&2'
    job = f"-P2 --joblog log -- sh -c '{script}' ::: a b c"
    assert lab.sh(f"quine xargs {job} {closed}", cwd=tmp_path).returncode == 74
    (tmp_path / "go").touch()
    done = lab.sh(f"quine xargs --resume {job}", cwd=tmp_path)
    assert (done.returncode, sorted(done.stderr.split())) == (0, [b"a", b"b", b"c"])
    assert sorted((tmp_path / "ran").read_text().split()) == ["a", "b", "c"]


@pytest.mark.parametrize("closed", [">&-", ">/dev/full"])
def test_commands_that_cannot_be_printed(lab: Lab, closed: str) -> None:
    done = lab.sh(f"quine xargs --dry-run -- echo ::: 1 {closed}")
    assert done.returncode == 74 and done.stderr.startswith(b"quine: error: cannot write stdout: ")


def test_a_file_that_cannot_be_read_is_no_stdin(lab: Lab, tmp_path: Path) -> None:
    for path, why in ((str(tmp_path), "is a directory"), ("/proc/self/mem", "input/output error")):
        done = lab.run(["xargs", "--joblog", "log", "--stdin", "{}", "--", "cat", ":::", path], cwd=tmp_path)
        assert (done.returncode, done.stdout) == (69, b"") and f"{path}: {why}".encode() in done.stderr
        assert "\tdone\t" not in (tmp_path / "log").read_text()


def test_what_was_lost_before_is_told_of_by_a_run_that_leaves_it(lab: Lab, tmp_path: Path) -> None:
    job = [*SH, "echo $0", ":::", "a", "b"]
    assert lab.run(["xargs", "--joblog", "log", *job], cwd=tmp_path).returncode == 0
    log = tmp_path / "log"
    log.write_text(log.read_text().replace("\tdone\t", "\tlost\t", 1))
    for option in ("--resume", "--resume-failed"):
        done = lab.run(["xargs", "--joblog", "log", option, "--report", "report", *job], cwd=tmp_path)
        assert (done.returncode, done.stdout) == (74, b"")
        report = json.loads((tmp_path / "report").read_text())
        assert (report["code"], report["items"], report["lost_before"]) == (74, 0, 1)
        assert b"1 items were lost in a run before, and are not run again" in done.stderr
    done = lab.run(["xargs", "--joblog", "log", "--resume", "--idempotent", *job], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout in (b"a\n", b"b\n")


def test_a_host_that_does_not_answer_holds_up_one_item_of_each_dial(lab: Lab, tmp_path: Path) -> None:
    """It has more free slots than the other one. An item that has waited for the failure of a dial has two tries."""
    log = tmp_path / "log"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        listener.setblocking(False)
        silent = lab.alias("silent", "h1", listener.getsockname()[1])
        live = lab.alias("live", "h1", slots=2)
        words = ["-P100", "--on", f"{silent},{live}", "--joblog", "log", "--", "true", ":::"]
        with lab.popen(["xargs", *words, *map(str, range(12))], cwd=tmp_path) as process:
            until(lambda: log.exists() and len(log.read_text().splitlines()) >= 12, "all but one have ended")
            dials = list(iter(lambda: _accepted(listener), None))
            listener.close()
            for dial in dials:
                dial.close()
            assert process.wait(PATIENCE) == 0
    ends = [line.split("\t") for line in log.read_text().splitlines()[1:]]
    assert {(row[9], row[12]) for row in ends} == {("live", "done")} and len(ends) == 12
    assert dials and sum(row[11] != "1" for row in ends) <= len(dials)


def _accepted(listener: socket.socket) -> socket.socket | None:
    try:
        return listener.accept()[0]
    except BlockingIOError:
        return None


def test_an_item_that_has_failed_stays_so_if_it_cannot_be_started_again(lab: Lab, tmp_path: Path) -> None:
    """It was never started, said its line: so --resume ran it again."""
    (tmp_path / "in").write_text("once")
    words = [
        "xargs",
        "--joblog",
        "log",
        "--retries",
        "3",
        "--stdin",
        "in",
        *SH,
        "cat; rm in; exit 3",
        ":::",
        "1",
    ]
    done = lab.run(words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (123, b"once")
    row = (tmp_path / "log").read_text().splitlines()[1].split("\t")
    assert (row[6], row[11], row[12]) == ("3", "1", "failed")
    assert lab.run(["xargs", "--resume", *words[1:]], cwd=tmp_path).stdout == b""


def test_nothing_is_shown_behind_a_gap_in_an_output(lab: Lab, tmp_path: Path) -> None:
    """A piece that did not fit on the disk was left out, and a smaller one behind it was kept."""
    lab.run(["run", "--on", "h1", "--", "true"], check=True)  # nodes have no limit
    line = "ulimit -f 40; quine xargs -P3 --tag --on h1 -- sh -c 'seq 200000' ::: a b c"
    done = lab.sh(line, cwd=tmp_path, env=LIMITED)
    assert done.returncode == 74
    for item in (b"a", b"b", b"c"):
        numbers = re.findall(item + rb"\t([0-9]*)", done.stdout)
        whole = [b"%d" % number for number in range(1, len(numbers) + 1)]
        assert numbers[:-1] == whole[:-1] and all(map(bytes.startswith, whole[-1:], numbers[-1:]))


@pytest.mark.parametrize("name", ["stdout", "stderr", "seq"])
def test_a_named_pipe_where_an_output_is_to_be_holds_up_nothing(lab: Lab, tmp_path: Path, name: str) -> None:
    """Its open waited for a reader, and no signal but KILL ended that."""
    (place := tmp_path / "r" / "1" / "a").mkdir(parents=True)
    os.mkfifo(place / name)
    done = lab.run(["xargs", "--results", "r", "--", "echo", ":::", "a"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (74, b"")
    assert "r/1/a: a named pipe, or a socket" in done.stderr.decode()


@pytest.mark.parametrize("words", [["--resume"], ["--dry-run", "--resume"]])
def test_a_named_pipe_instead_of_a_log_or_its_journal(lab: Lab, tmp_path: Path, words: list[str]) -> None:
    os.mkfifo(tmp_path / "log.started")
    (tmp_path / "log").write_text("")
    done = lab.run(["xargs", "--joblog", "log", *words, "--", "echo", ":::", "a"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    (tmp_path / "log.started").unlink()
    (tmp_path / "log").unlink()
    os.mkfifo(tmp_path / "log")
    done = lab.run(["xargs", "--joblog", "log", *words, "--", "echo", ":::", "a"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("number", ["²", "1" * 5000])
def test_a_line_of_a_log_without_a_number_is_no_line(lab: Lab, tmp_path: Path, number: str) -> None:
    words = ["xargs", "--joblog", "log", "--", "echo", ":::", "a"]
    assert lab.run(words, cwd=tmp_path).returncode == 0
    log = (tmp_path / "log").read_text()
    odd = log.splitlines(True)[1].replace("1\t", f"{number}\t", 1)
    (tmp_path / "log").write_text(log + odd)
    done = lab.run(["xargs", "--resume", *words[1:]], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "log").read_text() == log


def test_an_argument_that_no_host_takes_is_a_fault_of_no_host(lab: Lab) -> None:
    """It was tried again and again, and the host was set aside."""
    lines = b"x" * 131_072 + b"\n" + b"y" * 131_071 + b"\n"
    done = lab.run(["xargs", "--on", "h1", *SH, "echo ${#0}"], input=lines)
    assert (done.returncode, done.stdout) == (123, b"131071\n")
    first, hint, *_ = done.stderr.decode().splitlines()
    assert (
        first == "quine: error: item 1: an argument has 131072 bytes, and no command takes more than 131071"
    )
    assert hint == "quine: hint: --stdin item gives items to stdin"


def test_the_names_of_an_item_are_harmless_for_a_terminal(lab: Lab, tmp_path: Path) -> None:
    done = lab.run(
        ["xargs", "--on", "h1", "--returns", "{}", "--", "true"], input=b"a\033]0;evil\007b\n", cwd=tmp_path
    )
    assert b"nothing there to be brought back" in done.stderr
    assert b"\033" not in done.stderr and b"\007" not in done.stderr


@pytest.mark.parametrize("most", [5, 8])
def test_too_few_open_files_are_no_defect(lab: Lab, tmp_path: Path, most: int) -> None:
    lab.run(["run", "--", "true"], check=True)
    done = lab.sh(f"ulimit -n {most}; quine xargs -P20 -- echo ::: a b c", cwd=tmp_path, env=LIMITED)
    hint = "quine: hint: raise the limit, as with: ulimit -n 1024\n"
    assert done.returncode == 74 and done.stderr.decode() == f"quine: error: too many open files\n{hint}"
