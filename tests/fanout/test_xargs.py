"""`quine xargs` as a process: jobs here and on hosts, their outputs, failures, signals, and resuming."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, peak_rss
from tests.support.agents import PATIENCE
from tests.support.imports import HEAVY, imported_by
from tests.support.waiting import read_until, until

SH = ["--", "sh", "-c"]
WAIT_FOR_GO = "until test -e go; do sleep 0.01; done"


@pytest.fixture
def dead(lab: Lab) -> Iterator[str]:
    """A host whose port is closed."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else's
        lab.alias("dead", "h1", port=held.getsockname()[1])
        yield "dead"


def rows(path: Path) -> list[list[str]]:
    """The lines of a log, by their items' numbers."""
    return sorted(
        (line.split("\t") for line in path.read_text().splitlines()[1:]), key=lambda row: int(row[0])
    )


# -- work ------------------------------------------------------------------------------------------


def test_one_job_for_each_item(lab: Lab) -> None:
    done = lab.run(["xargs", "-k", "--", "echo", "<{}>"], input="a b\n'c\n$HOME\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"<a b>\n<'c>\n<$HOME>\n", b"")


def test_no_item_is_no_job(lab: Lab) -> None:
    done = lab.run(["xargs", "--", "false"], input="")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_hosts_share_the_items(lab: Lab) -> None:
    done = lab.run(["xargs", "--on", "h1,h2", "--tag", *SH, 'echo "$QUINE_NODE_NAME"'], input="1\n2\n3\n4\n")
    assert (done.returncode, done.stderr) == (0, b"")
    found = dict(line.split("\t") for line in done.stdout.decode().splitlines())
    assert set(found) == {"1", "2", "3", "4"} and set(found.values()) <= {"h1", "h2"}


def test_so_many_at_a_time_and_each_has_a_slot_of_its_own(lab: Lab, tmp_path: Path) -> None:
    """Each waits for the other of its pair: with fewer than two at a time it would never end."""
    script = (
        'mkdir "s$1" || exit 9; touch "$0"; until test -e $((($0 - 1) / 2 * 2 + 1)) -a -e $((($0 + 1) / 2 * 2)); '
        'do sleep 0.01; done; ls -d s* | wc -l; rmdir "s$1"'
    )
    done = lab.run(["xargs", "-P2", *SH, script, "{}", "{%}", ":::", *"12345678"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {b"1", b"2"}


@pytest.mark.parametrize(
    ("options", "stdin", "expected"),
    [
        ([], "1\n2\n", b""),
        (["--stdin", "none"], "1\n2\n", b""),
        (["--stdin", "item"], "1\n2\n", b"1\n2\n"),
        (["--stdin", "{}.in"], "1\n2\n", b"one\0two\n"),
        (["--stdin", "1.in"], "1\n2\n", b"one\0one\0"),
        (["--pipe", "--block", "4"], "1\n2\n345678\n9", b"1\n2\n345678\n9"),
        (["--pipe", "--block", "3", "--recend", ";"], "1;2;3;", b"1;2;3;"),
    ],
)
def test_stdin_of_the_jobs(lab: Lab, tmp_path: Path, options: list[str], stdin: str, expected: bytes) -> None:
    (tmp_path / "1.in").write_bytes(b"one\0")
    (tmp_path / "2.in").write_bytes(b"two\n")
    done = lab.run(["xargs", "-k", *options, *SH, 'cat; printf "$1"', "sh"], input=stdin, cwd=tmp_path)
    if options in ([], ["--stdin", "none"], ["--stdin", "1.in"]):
        expected = b"".join(expected[:4] + item for item in (b"1", b"2"))
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, b""), (
        "only here the item is an argument"
    )


def test_a_pipe_without_a_writer_holds_up_no_other_item(lab: Lab, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("of the file\n")
    words = ["xargs", "-P2", "--stdin", "{}", "--", "cat", ":::", "pipe", "file"]
    with lab.popen(words, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        try:
            assert read_until(process.stdout.fileno(), b"\n") == b"of the file\n"
        finally:  # also one that waits for it in an open
            writer = os.open(tmp_path / "pipe", os.O_RDWR)
        os.write(writer, b"of the pipe\n")
        os.close(writer)
        assert process.stdout.read() == b"of the pipe\n"
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("asked", [0, 2 * (os.cpu_count() or 1) + 1], ids=["as processors", "as asked"])
def test_a_host_without_slots_has_as_many_jobs_as_processors_or_as_are_asked_for(
    lab: Lab, tmp_path: Path, asked: int
) -> None:
    """Each waits for all of its group: with fewer at a time it would never end. The host has no node at the start.

    A group is of those that start one after the other, whichever they are: a host gives items back, and the next ones
    start before them.
    """
    most = asked or os.cpu_count() or 1
    (tmp_path / "all").mkdir()
    script = (
        f'cd {tmp_path}; n=1; until mkdir "all/$n" 2>/dev/null; do n=$((n + 1)); done; '
        'mkdir "running.$n"; echo running.* | wc -w; '
        f"last=$(((n - 1) / {most} * {most} + {most})); "
        'until test -e "all/$last"; do sleep 0.01; done; rmdir "running.$n"'
    )
    words = ["xargs", "--on", "h1", *([f"-P{asked}"] if asked else []), *SH, script, "{}"]
    lab.stop_nodes()
    done = lab.run(words, input="".join(f"{number}\n" for number in range(3 * most)))
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(seen := [int(line) for line in done.stdout.split()]) == 3 * most and max(seen) <= most


def test_an_input_that_never_ends_is_read_as_jobs_have_room(lab: Lab) -> None:
    done = lab.sh("yes | quine xargs -P2 -- echo {#} | head -n 3 | wc -l")
    assert (done.stdout.strip(), done.stderr) == (b"3", b"")


def test_items_are_run_as_they_come(lab: Lab) -> None:
    with lab.popen(
        ["xargs", "--", "echo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        for item in (b"a\n", b"b\n"):
            process.stdin.write(item)
            process.stdin.flush()
            read_until(process.stdout.fileno(), item)
        process.stdin.close()
        assert (process.wait(PATIENCE), process.stderr.read()) == (0, b"")


def test_directory_environment_and_limits(lab: Lab, tmp_path: Path) -> None:
    words = ["--cwd", str(tmp_path), "--env", "A=b c", "--limit", "nofile=33", "--", "sh", "-c"]
    done = lab.run(["xargs", *words, 'pwd; echo "$A"; ulimit -n', ":::", "x"])
    assert done.stdout.decode().splitlines() == [os.path.realpath(tmp_path), "b c", "33"]


# -- outputs ---------------------------------------------------------------------------------------

NOT_TEXT = b"\0\xff\r\n\0no newline"


def test_bytes_of_an_output_are_not_touched(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(NOT_TEXT)
    for options in ([], ["-k"], ["--line-buffer"]):
        done = lab.run(["xargs", "-P1", *options, "--", "cat", ":::", "a", "a"], cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, NOT_TEXT * 2)


@pytest.mark.parametrize(("options", "expected"), [([], b"2\n2\n1\n1\n"), (["-k"], b"1\n1\n2\n2\n")])
def test_outputs_are_grouped_and_with_k_in_the_order_of_the_items(
    lab: Lab, tmp_path: Path, options: list[str], expected: bytes
) -> None:
    """The first job ends when the output of the second has been read, or with -k at any time."""
    script = 'echo "$0"; test "$0" = 2 || until test -e two; do sleep 0.01; done; echo "$0"'
    words = ["xargs", "-P2", *options, *SH, script, ":::", "1", "2"]
    with lab.popen(words, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        out = b"" if options else read_until(process.stdout.fileno(), b"2\n2\n")
        (tmp_path / "two").touch()
        assert out + process.stdout.read() == expected


def test_lines_are_passed_on_at_once_and_whole(lab: Lab, tmp_path: Path) -> None:
    script = 'printf "a\\nb"; until test -e go; do sleep 0.01; done; echo c; printf d'
    words = ["xargs", "--line-buffer", "--tag", *SH, script, ":::", "x"]
    with lab.popen(words, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        assert read_until(process.stdout.fileno(), b"\n") == b"x\ta\n"
        (tmp_path / "go").touch()
        assert process.stdout.read() == b"x\tbc\nx\td"


def test_stderr_is_stderr_and_is_tagged_too(lab: Lab) -> None:
    done = lab.run(["xargs", "--tag", *SH, "echo out; echo err >&2", ":::", "x"])
    assert (done.stdout, done.stderr) == (b"x\tout\n", b"x\terr\n")


def test_results_are_kept_in_files(lab: Lab, tmp_path: Path) -> None:
    words = ["xargs", "-k", "--results", "r", *SH, 'echo "$0$1"; echo e >&2', ":::", "a", "b/c", ":::", "1"]
    done = lab.run(words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"a1\nb/c1\n")
    found = {
        str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert found == {
        **{"r/1/a/2/1/stdout": "a1\n", "r/1/a/2/1/stderr": "e\n", "r/1/a/2/1/seq": "1"},
        **{"r/1/b\\_c/2/1/stdout": "b/c1\n", "r/1/b\\_c/2/1/stderr": "e\n", "r/1/b\\_c/2/1/seq": "2"},
    }


def test_json(lab: Lab) -> None:
    script = 'printf "\\377" >&2; echo "$0"; exit "$0"'
    done = lab.run(["xargs", "-k", "--json", "--on", "h1", *SH, script, ":::", "0", "3"])
    first, second = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 123
    assert (first["seq"], first["args"], first["state"], first["code"]) == (1, ["0"], "done", 0)
    assert (first["host"], first["stdout"], first["stderr_base64"]) == ("h1", "0\n", "/w==")
    assert (second["state"], second["code"], second["attempt"]) == ("failed", 3, 1)
    assert second["command"] == ["sh", "-c", script, "3"]
    done = lab.run(["xargs", "--json", "--", "echo"], input=b"\xff\xfe\n")
    odd = json.loads(done.stdout)
    assert (odd["args"], odd["args_base64"]) == (["\ufffd\ufffd"], ["//4="])
    assert odd["command_base64"] == ["ZWNobw==", "//4="]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [*(pytest.param(each, marks=pytest.mark.whole) for each in ([], ["--line-buffer"])), ["-k"]],
)
def test_a_slow_consumer_slows_the_jobs_and_nothing_is_lost(
    lab: Lab, tmp_path: Path, options: list[str]
) -> None:
    """400 MB, of which the reader takes none until the jobs have stopped; the client holds a bounded part of it."""
    words = ["xargs", "-P4", *options, *SH, 'touch "$0"; head -c 4000000 /dev/zero; echo "$0"', ":::"]
    with lab.popen([*words, *map(str, range(1, 101))], stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"\0")
        stopped = subprocess.run(
            [sys.executable, "-c", STEADY, str(tmp_path)], capture_output=True, timeout=PATIENCE, check=True
        )
        assert int(stopped.stdout) < 100
        peak = peak_rss(process.pid)
        found = process.stdout.read()
        assert process.wait(PATIENCE) == 0
    numbers = [int(text) for text in found.replace(b"\0", b" ").split()]
    assert sorted(numbers) == list(range(1, 101)) and ("-k" not in options or numbers == sorted(numbers))
    assert found.count(b"\0") in range(400_000_000 - 70_000, 400_000_000)
    assert peak < 80 << 20


# the number of files in a directory, when it has not changed for a second
STEADY = """
import os, sys, time
seen = -1
while seen != len(os.listdir(sys.argv[1])):
    seen = len(os.listdir(sys.argv[1]))
    time.sleep(1)
print(seen)
"""


@pytest.mark.parametrize("options", [[], ["--line-buffer"]])
def test_an_output_is_never_held_in_memory(lab: Lab, options: list[str]) -> None:
    """100 MB of one job; the reader takes the first lines, and the others when the client's size has not changed."""
    words = ["xargs", *options, *SH, "yes | head -c 100000000", ":::", "1"]
    with lab.popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"y\n")
        subprocess.run(
            [sys.executable, "-c", STILL, f"/proc/{process.pid}/statm"], timeout=PATIENCE, check=True
        )
        process.stdout.read(95_000_000)
        peak = peak_rss(process.pid)
        process.stdout.read()
        assert process.wait(PATIENCE) == 0
    assert peak < 60 << 20


# returns when a file has not changed for a second
STILL = """
import sys, time
seen = ""
while seen != open(sys.argv[1]).read():
    seen = open(sys.argv[1]).read()
    time.sleep(1)
"""


def test_a_reader_that_has_gone_ends_the_batch(lab: Lab) -> None:
    with lab.popen(
        ["xargs", "--line-buffer", *SH, "echo up; exec sleep 1000", ":::", "1"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        process.stdout.close()
        assert process.wait(PATIENCE) == -signal.SIGPIPE


@pytest.mark.parametrize("options", [[], ["--line-buffer"]])
def test_output_that_cannot_be_written(lab: Lab, options: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        words = ["xargs", *options, *SH, "echo up; exec sleep 0", ":::", "1"]
        with lab.popen(words, stdout=full, stderr=subprocess.PIPE) as process:
            assert process.stderr
            stopped, error = process.stderr.read().decode().splitlines()
            assert stopped.startswith("quine: stopped: no space left on device; ")
            assert error == "quine: error: cannot write stdout: no space left on device"
            assert process.wait(PATIENCE) == 74


# -- failures --------------------------------------------------------------------------------------


def test_what_is_not_done_is_counted_by_kind(lab: Lab) -> None:
    """Only the one that is late has a time: the others end when a busy machine lets them."""
    script = "case $0 in kill) kill -9 $$ ;; *) exit $0 ;; esac"
    words = [*SH, script, ":::", "0", "0", "3", "kill"]
    done = lab.run(["xargs", "-P5", *words])
    assert done.returncode == 123
    counts, named = done.stderr.decode().splitlines()
    assert counts == "quine: error: 2 of 4 items are not done: 1 failed, 1 killed"
    assert set(named.removeprefix("quine: hint: ").split("; ")) == {
        "item 3 (3): status 3",
        "item 4 (kill): KILL",
    }
    assert lab.run(["xargs", "-P5", "--exit-count", *words]).returncode == 2
    done = lab.run(["xargs", "--timeout", "0.5", *SH, "exec sleep 1000", ":::", "late"])
    assert (done.returncode, done.stderr.decode().splitlines()) == (
        123,
        [
            "quine: error: 1 of 1 items are not done: 1 timeout",
            "quine: hint: item 1 (late): timeout",
        ],
    )


def test_a_command_that_is_not_there(lab: Lab) -> None:
    done = lab.run(["xargs", "-P1", "--", "no-such-command", ":::", "1", "2", "3"])
    assert done.returncode == 123
    assert done.stderr.decode().splitlines() == [
        "quine: error: item 1: command not found: no-such-command",
        "quine: error: 3 of 3 items are not done: 3 failed",
        "quine: hint: item 1 (1): status 127; item 2 (2): status 127; item 3 (3): status 127",
    ]


@pytest.mark.parametrize(
    ("more", "where"), [([], "--joblog FILE records them"), (["--joblog", "log"], "in log")]
)
def test_the_first_items_that_are_not_done_are_named(
    lab: Lab, tmp_path: Path, more: list[str], where: str
) -> None:
    words = ["-P1", *more, *SH, "exit 3", ":::", "a\x1b", "b" * 41, "", "d", "e"]
    done = lab.run(["xargs", *words], cwd=tmp_path)
    hint = f"item 1 (a\\x1b): status 3; item 2 ({'b' * 39}…): status 3; item 3: status 3; 2 more: {where}"
    assert done.stderr.decode().splitlines()[1] == f"quine: hint: {hint}"


def test_a_host_that_cannot_be_reached_costs_no_item(lab: Lab, dead: str, tmp_path: Path) -> None:
    words = ["--on", "dead,h2", "--joblog", "log", "-P4", "--", "true", ":::", *map(str, range(12))]
    done = lab.run(["xargs", *words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {(row[9], row[12]) for row in rows(tmp_path / "log")} == {("h2", "done")}
    aside = b"quine: dead: 3 starts in a row have failed; set aside for a while: connection refused by "
    assert not done.stderr or done.stderr.startswith(aside)


def test_a_wrong_inventory_is_a_usage_error(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("[hosts.h1]\nslots = 'x'\n")
    done = lab.run(["xargs", "--inventory", "wrong", "--on", "h1", "--", "true", ":::", *"123"], cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count(b"[hosts.h1]: slots: not a whole number") == 1


@pytest.mark.parametrize(
    ("where", "why"),
    [("local,h1", "'local,h1' mixes this machine with others"), ("@none", "no host has the tag")],
)
def test_a_where_that_means_no_host_is_refused_once_before_the_input_is_read(
    lab: Lab, where: str, why: str
) -> None:
    done = lab.sh(f"printf 'a\\nb\\n' | {{ quine xargs --on {where} -- echo; echo $?; cat; }}")
    assert done.stdout == b"69\na\nb\n"
    assert done.stderr.startswith(f"quine: error: {why}".encode()) and done.stderr.count(b"error: ") == 1


def test_nothing_was_started(lab: Lab) -> None:
    done = lab.run(["xargs", "--cwd", "/no/such", "--", "true", ":::", "1", "2"])
    assert done.returncode == 69 and b"2 of 2 items are not done: 2 never started" in done.stderr
    assert done.stderr.count(b"/no/such") == 1


def test_an_item_is_tried_again_on_a_host_where_it_has_not_failed(lab: Lab, tmp_path: Path) -> None:
    script = (
        'echo "$QUINE_NODE_NAME"; '
        'if test -e "$0"; then test "$(cat "$0")" != "$QUINE_NODE_NAME"; else echo "$QUINE_NODE_NAME" >"$0"; exit 3; fi'
    )
    words = ["-P1", "--on", "h1,h2", "--retries", "2", "--joblog", "log", *SH, script, "{}", ":::"]
    items = [str(tmp_path / f"item-{number}") for number in range(6)]
    done = lab.run(["xargs", "-k", "--tag", "--results", "r", *words, *items], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 6, "the output of the first try is not shown"
    assert {(row[11], row[12]) for row in rows(tmp_path / "log")} == {("2", "done")}


def test_retries_end(lab: Lab, tmp_path: Path) -> None:
    done = lab.run(["xargs", "--retries", "3", *SH, "echo >>n; exit 7", ":::", "a"], cwd=tmp_path)
    assert done.returncode == 123 and (tmp_path / "n").read_text() == "\n" * 3


@pytest.mark.parametrize(("options", "status", "tries"), [([], 74, "1"), (["--idempotent"], 0, "2")])
def test_lost_items_are_run_again_only_if_that_is_harmless(
    lab: Lab, tmp_path: Path, options: list[str], status: int, tries: str
) -> None:
    """The job kills the node of its host, so nobody can tell how it ended."""
    script = 'mkdir "$0" 2>/dev/null && kill -9 $(ps -o ppid= -p $PPID); true'
    words = [
        "--on",
        "h1,h2",
        "--retries",
        "2",
        "--joblog",
        "log",
        *options,
        *SH,
        script,
        ":::",
        str(tmp_path / "d"),
    ]
    done = lab.run(["xargs", *words], cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert [row[11:13] for row in rows(tmp_path / "log")] == [[tries, "lost" if status else "done"]]


@pytest.mark.parametrize("options", [[], ["--idempotent", "--retries", "9"]])
def test_a_host_that_dies_in_the_middle(lab: Lab, tmp_path: Path, options: list[str]) -> None:
    """Each item is done and has run once, or is lost; with --idempotent all are done."""
    words = ["xargs", "-P6", "--on", "h1,h2", "--line-buffer", "--joblog", "log", *options]
    script = 'echo "$0" >>ran; echo "$0"'
    items = [*map(str, range(1, 121))]
    with lab.popen(
        [*words, "--cwd", str(tmp_path), *SH, script, ":::", *items], stdout=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"\n")  # it has begun, so there is a log
        until(lambda: len(rows(tmp_path / "log")) > 40, "some items have ended")
        lab["h1"].crash()
        process.stdout.read()
        status = process.wait(PATIENCE)
    ends = {row[0]: row[12] for row in rows(tmp_path / "log")}
    ran = (tmp_path / "ran").read_text().split()
    assert len(rows(tmp_path / "log")) == len(ends) == 120 and set(ends.values()) <= {"done", "lost"}
    assert status == (74 if "lost" in ends.values() else 0)
    if options:
        assert status == 0 and set(ran) == set(items)
    else:
        assert len(ran) == len(set(ran)) and {item for item in items if ends[item] == "done"} <= set(ran)


def test_halt_soon_waits_for_what_runs(lab: Lab, tmp_path: Path) -> None:
    script = 'test "$0" = bad && exit 1; until test -e go; do sleep 0.01; done; echo "$0"'
    words = ["xargs", "-P2", "--halt", "soon,fail=1", *SH, script, ":::", "good", "bad", *"xyz"]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout and process.stderr
        read_until(process.stderr.fileno(), b"quine: halted: 1 failed, 1 running\n")
        (tmp_path / "go").touch()
        assert process.stdout.read() == b"good\n"
        assert process.wait(PATIENCE) == 123


def test_halt_now_ends_what_runs(lab: Lab) -> None:
    script = 'test "$0" = bad && exit 1; exec sleep 1000'
    for given, rest in (([":::"], "3 of 5 items were"), ([], "the rest of the items was")):
        items = ["good", "bad", *"xyz"]
        words = ["xargs", "-P2", "--halt", "now,fail=1", *SH, script, *given, *(items if given else [])]
        done = lab.run(words, input="\n".join(items).encode())
        assert done.returncode == 123
        assert b"2 of 2 items are not done: 1 failed, 1 killed" in done.stderr
        last = f"quine: {rest} not started; with --joblog FILE a later --resume goes on"
        assert done.stderr.decode().splitlines()[-1] == last


def drained(process: subprocess.Popen[bytes], tmp_path: Path) -> tuple[bytes, list[str]]:
    """Interrupt a batch that has one job running, let the job end, and return stdout and the lines of stderr."""
    process.send_signal(signal.SIGINT)
    assert process.stdout and process.stderr
    said = read_until(process.stderr.fileno(), b"waiting for 1 jobs; ^C again ends them\n")
    (tmp_path / "go").touch()
    out = process.stdout.read()
    said += process.stderr.read()
    assert process.wait(PATIENCE) == -signal.SIGINT
    return out, said.decode().splitlines()


def test_the_first_interrupt_drains(lab: Lab, tmp_path: Path) -> None:
    script = f'echo up >&2; {WAIT_FOR_GO}; echo "$0"'
    words = ["xargs", "-P1", "--joblog", "log", "--line-buffer", *SH, script, ":::", "a", "b"]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stderr
        read_until(process.stderr.fileno(), b"up\n")
        assert drained(process, tmp_path)[0] == b"a\n"
    assert [row[12] for row in rows(tmp_path / "log")] == ["done"]


def test_an_interrupt_that_is_before_the_news_of_a_begin_says_what_it_waits_for(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    """The command has begun over there, and the news of it is under way."""
    host = through("h1")
    lab["h1"].proxy.delay(0.5)
    words = ["xargs", "--on", host, *SH, f'cd {tmp_path}; touch up; {WAIT_FOR_GO}; echo "$0"', ":::", "a"]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        until((tmp_path / "up").exists, "it has begun")
        assert drained(process, tmp_path)[0] == b"a\n"


def test_an_item_whose_next_try_does_not_begin_keeps_the_end_and_the_output_of_the_one_before(
    lab: Lab, tmp_path: Path
) -> None:
    """The next try waits on its host, whose one place another item has, when the batch is told to start no more."""
    lab.alias("one", "h1", slots=1)
    script = (
        f'cd {tmp_path}; if test "$0" = bad; then echo out; echo err >&2; exit 3; fi; touch up; {WAIT_FOR_GO}'
    )
    # The other item is read at any time, so there are more tries than can be made until it has the place.
    words = ["--on", "one", "-P2", "--retries", "1000", "--joblog", "log", "--results", "r"]
    command = ["xargs", *words, *SH, script, ":::", "bad", "long"]
    with lab.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        until((tmp_path / "up").exists, "the other item has the place")
        out, said = drained(process, tmp_path)
    assert (out, sorted(said)) == (
        b"out\n",
        [
            "err",
            "quine: error: 1 of 2 items are not done: 1 failed",
            "quine: hint: item 1 (bad): status 3",
            "quine: waiting for 1 jobs; ^C again ends them",
        ],
    )
    assert [(row[6], row[12]) for row in rows(tmp_path / "log")] == [("3", "failed"), ("0", "done")]
    assert (tmp_path / "r/1/bad/stdout").read_bytes() == b"out\n"


def test_the_second_interrupt_ends_all(lab: Lab, tmp_path: Path) -> None:
    words = [
        "xargs",
        "-P2",
        "--joblog",
        "log",
        "--line-buffer",
        *SH,
        "echo up; exec sleep 1000",
        ":::",
        *"abc",
    ]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout and process.stderr
        read_until(process.stdout.fileno(), b"up\nup\n")
        process.send_signal(signal.SIGINT)
        read_until(process.stderr.fileno(), b"^C again ends them\n")
        process.send_signal(signal.SIGINT)
        assert (
            b"\nquine: 1 of 3 items were not started; --resume goes on with them\n" in process.stderr.read()
        )
        assert process.wait(PATIENCE) == -signal.SIGINT
    assert [row[12] for row in rows(tmp_path / "log")] == ["stopped", "stopped"]


def test_items_that_wait_for_a_slot_were_not_started(lab: Lab, tmp_path: Path) -> None:
    """They were sent to the host, or are held by the node here: none of them is counted as read and forgotten."""
    lab.alias("narrow", "h1", slots=1)
    words = [
        "xargs",
        "--on",
        "narrow",
        "--line-buffer",
        *SH,
        "echo up; exec sleep 1000",
        ":::",
        *map(str, range(60)),
    ]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout and process.stderr
        read_until(process.stdout.fileno(), b"up\n")
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert b"quine: 59 of 60 items were not started; with --joblog FILE a later --resume goes on\n" in said


def test_a_signal_ends_a_batch_whose_output_nobody_reads(lab: Lab, tmp_path: Path) -> None:
    """The output of an item that has ended is passed on when the batch is resumed."""
    words = ["xargs", "--joblog", "log"]
    items = [*SH, "echo >>ran; head -c 3000000 /dev/zero", ":::", "1"]
    with lab.popen([*words, *items], stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"\0")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    assert rows(tmp_path / "log") == []
    done = lab.run([*words, "--resume", *items], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, bytes(3000000), b"")
    assert (tmp_path / "ran").read_text() == "\n"


def test_by_lines_what_a_signal_has_ended_before_its_output_was_read_is_run_again(
    lab: Lab, tmp_path: Path
) -> None:
    """It has no line in the log, and its host tells of an end that was not its own."""
    words = ["xargs", "--joblog", "log", "--line-buffer"]
    # More than xargs and its pipe take, less than a window beside that: so the end comes here.
    script = "echo >>ran; yes | head -c 140000; touch written; test -e go || exec sleep 1000"
    items = [*SH, script, ":::", "1"]
    with lab.popen([*words, *items], stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        assert os.read(process.stdout.fileno(), 2) == b"y\n"  # no more: a read makes room
        until((tmp_path / "written").exists, "all of its output is under way")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    assert rows(tmp_path / "log") == [] and "\nhalted " in (tmp_path / "log.started").read_text()
    until(lambda: not [job for job in lab.jobs() if "140000" in str(job)], "the job has been ended")
    (tmp_path / "go").touch()
    done = lab.run([*words, "--resume", *items], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"y\n" * 70000) and (tmp_path / "ran").read_text() == "\n\n"
    assert [row[12] for row in rows(tmp_path / "log")] == ["done"]


def test_copies_that_cannot_be_made(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "r").touch()
    done = lab.run(["xargs", "--results", "r", "--", "true", ":::", "a"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, b"quine: error: --results r: file exists\n")


def test_more_jobs_at_a_time_than_descriptors(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "in").touch()
    line = (
        "ulimit -n 128; seq 100 | quine xargs -P100 --on h1,h2,h3 --stdin in --results r -- sh -c : ; echo $?"
    )
    done = lab.sh(line, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (b"0\n", b"")
    assert len(list((tmp_path / "r" / "1").iterdir())) == 100


def test_a_signal_asks_for_the_counts(lab: Lab, tmp_path: Path) -> None:
    script = 'test "$0" = 1 && exit 0; echo up; until test -e go; do sleep 0.01; done'
    words = ["xargs", "-P1", "--line-buffer", *SH, script, ":::", "1", "2", "3"]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout and process.stderr
        read_until(process.stdout.fileno(), b"up\n")
        process.send_signal(signal.SIGUSR1)
        said = read_until(process.stderr.fileno(), b"\n").decode()
        assert said.startswith("quine: 1 of 3: 1 done, 1 running, ") and "/s" in said
        (tmp_path / "go").touch()
        process.stdout.read()
        assert process.wait(PATIENCE) == 0


def test_starts_are_so_far_apart(lab: Lab) -> None:
    begun = time.monotonic()
    assert lab.run(["xargs", "-P9", "--delay", "0.7", "--", "true", ":::", *"1234"]).returncode == 0
    assert time.monotonic() - begun > 3 * 0.7
    # and behind the last one nothing is waited for
    assert lab.run(["xargs", "--delay", "3600", "--", "echo", ":::", "a"]).stdout == b"a\n"


def test_an_item_that_no_host_can_start_fails_once(lab: Lab, tmp_path: Path) -> None:
    """And counts against none of them: the others go on there."""
    large = "\0".join([*["x" * 100_000] * 25, *["y"] * 25, ""])
    words = ["xargs", "-0", "-n25", "-P1", "--on", "h1,h2", "--joblog", "log", "--", "sh", "-c", "echo $#"]
    done = lab.run(words, input=large * 4, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (123, b"24\n" * 4), done.stderr
    assert b"Argument list too long" in done.stderr and b"set aside" not in done.stderr
    assert [row[6] for row in rows(tmp_path / "log")] == ["126", "0"] * 4


def test_hosts_that_appear_in_the_inventory_join_and_those_that_go_get_no_more(
    lab: Lab, tmp_path: Path
) -> None:
    lab.alias("one", "h1", tags=["x"])
    lab.alias("three", "h3", tags=["y"])
    where = "@x,one,@y!three"
    words = [
        "xargs",
        "-P2",
        "--on",
        where,
        "--joblog",
        str(tmp_path / "log"),
        "--line-buffer",
        *SH,
        'echo "$QUINE_NODE_NAME"',
    ]
    with lab.popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout

        def next_host() -> bytes:
            assert process.stdin and process.stdout
            process.stdin.write(b"item\n")
            process.stdin.flush()
            return read_until(process.stdout.fileno(), b"\n")

        assert next_host() == b"one\n"
        lab.forget_aliases()
        lab.alias("two", "h2", tags=["x"])
        assert next_host() == b"two\n"
        whole = lab.inventory.read_text()
        lab.inventory.write_text("[hosts.")
        assert next_host() == b"two\n", "a file that is being edited changes nothing"
        lab.inventory.write_text(whole)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


# -- resuming --------------------------------------------------------------------------------------


def test_resuming_runs_what_is_not_done(lab: Lab, tmp_path: Path) -> None:
    words = ["xargs", "-k", "--joblog", "log", *SH, 'echo "$0"; test -e go || exit "$0"', "{}"]
    done = lab.run([*words, ":::", "0", "1", "0"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (123, b"0\n1\n0\n")
    (tmp_path / "go").touch()
    more = [":::", "5", "1", "0", "0", "0"]  # another order, and more of them
    done = lab.run([*words[:2], "--resume", *words[2:], *more], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"5\n0\n")
    done = lab.run([*words[:2], "--resume-failed", *words[2:], *more], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert len(rows(tmp_path / "log")) == 5
    done = lab.run([*words[:2], "--resume", *words[2:-1], "x{}", ":::", "0"], cwd=tmp_path)
    assert done.stdout == b"x0\n", "another command is other work"
    assert done.stderr == b""
    done = lab.run([*words[:2], "--resume", *words[2:-1], "y{}", ":::", *map(str, range(9))], cwd=tmp_path)
    told = f"none of the first 6 items is in {tmp_path}/log: their command or files are other ones"
    assert done.stderr.decode() == f"quine: {told}\n"


def test_resuming_with_another_list_overwrites_no_result(lab: Lab, tmp_path: Path) -> None:
    """Each is the first of its list, and has a name that no file can have, or none."""
    words = ["xargs", "--joblog", "log", "--resume", "--results", "r"]
    for letter in "ab":
        done = lab.run([*words, "--", "echo", ":::", letter * 300], cwd=tmp_path)
        assert (done.returncode, b"error" in done.stderr) == (0, False)
        done = lab.run([*words, "--pipe", "--", "cat"], input=f"{letter}\n", cwd=tmp_path)
        assert (done.returncode, b"error" in done.stderr) == (0, False)
    kept = sorted(path.read_text() for path in (tmp_path / "r").rglob("stdout"))
    assert kept == ["a\n", "a" * 300 + "\n", "b\n", "b" * 300 + "\n"]


@pytest.mark.parametrize("halts", [False, True])
def test_resuming_runs_what_the_batch_has_ended(lab: Lab, tmp_path: Path, halts: bool) -> None:
    """Also where a job made an exit status of the signal; a job that has died or failed by itself is not run again."""
    script = (
        'case $0 in dies) kill -9 $$ ;; catches) trap "exit 5" TERM ;; esac; test -e go && exit 0; echo up; '
        'until test "$0" = fails -a -e fail; do sleep 0.01; done; exit 1'
    )
    words = ["xargs", "-P4", "--line-buffer", "--joblog", "log", "--halt", "now,fail=2"]
    items = [*SH, script, ":::", "dies", "fails", "catches", "waits"]
    with lab.popen([*words, *items], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"up\nup\nup\n")
        until(lambda: len(rows(tmp_path / "log")) == 1, "one has died")
        if halts:
            (tmp_path / "fail").touch()
        else:
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)
    assert b"4 of 4 items are not done: " in err
    own = ["killed", "failed"] if halts else ["killed"]
    assert [row[12] for row in rows(tmp_path / "log")] == own + ["stopped"] * (4 - len(own))
    (tmp_path / "go").touch()
    done = lab.run([*words, "--resume", *items], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [row[12] for row in rows(tmp_path / "log")] == own + ["done"] * (4 - len(own))


REFUSED = [
    (["-a", "/", "--", "true"], "the items cannot be read: is a directory"),
    (["--resume", "--", "true"], "--resume and --resume-failed need --joblog FILE"),
    (["--timeout", "x", "--", "true"], "--timeout x: should be a number of seconds"),
    (["--halt", "x", "--", "true"], "--halt x: should be "),
    (["-k", "--line-buffer", "--", "true"], "-k passes outputs on as a whole"),
    (["--jsno", "--", "true"], "no such option: --jsno"),
    (["-j4", "--", "true"], "no such option: -j4\nquine: hint: -P N\n"),
    (["--eta", "--", "true"], "no such option: --eta\nquine: hint: the view on a terminal shows it"),
    (["--"], "no command"),
    (["--max-cost", "1", "--", "true"], "--max-cost is about agents, and this is a command"),
    (["cat", "{}"], "cat is a command, and a mission for agents stands here"),
    (
        ["cat", "{}", ":::", "a b"],
        "for a command: quine xargs [OPTIONS] -- cat {}; for a mission: --mission 'cat {}'",
    ),
    (["--mission", "cat {}", "--", "true"], "--mission is for agents, and a command stands behind --"),
]


def test_refusals(lab: Lab) -> None:
    for words, message in REFUSED:
        done = lab.run(["xargs", *words], input="a\n")
        assert (done.returncode, done.stdout) == (2, b"") and message in done.stderr.decode(), words


@pytest.mark.parametrize("words", ["", "-a -", "--pipe", "--dry-run", "--detach", "--detach --from h1"])
def test_a_stdin_that_is_closed_is_no_empty_input(lab: Lab, words: str) -> None:
    done = lab.sh(f"exec quine xargs {words} -- cat <&-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"quine: error: ") and done.stderr.endswith(b"stdin is closed\n")
    if not words:
        assert lab.sh("exec quine xargs -- echo ::: a <&-").stdout == b"a\n"


def test_a_fault_of_the_input_ends_the_batch_after_what_runs(lab: Lab) -> None:
    done = lab.run(["xargs", "-k", "--jsonl", "--", "echo", "{a}"], input='{"a":1}\nx\n{"a":2}\n')
    assert (done.returncode, done.stdout) == (2, b"1\n")
    assert b"--jsonl: line 2, character 1: no JSON" in done.stderr


def test_it_imports_the_standard_library_only(lab: Lab) -> None:
    blocking = HEAVY | {"asyncio", "argparse"}
    assert not imported_by(lab, "xargs", "--retries", "2", "--", "true", ":::", "a") & blocking


def test_jobs_here_have_the_umask_and_the_limits_of_their_caller(own_lab: Callable[..., Lab]) -> None:
    """Not those of the command that happened to start the node."""
    lab = own_lab(())
    job = (
        "quine xargs -P1 -- sh -c 'umask; ulimit -v' ::: x; quine run --on local -- sh -c 'umask; ulimit -v'"
    )
    for umask, room in (("0077", "3000000"), ("0027", "4000000"), ("0022", "unlimited")):
        done = lab.sh(f"umask {umask}; ulimit -Sv {room}; {job}")
        assert done.stdout.decode().split() == [umask, room] * 2
