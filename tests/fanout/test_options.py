"""`quine xargs`: tables, folding, named columns, shares of the median, loads, clean-up, the report at the end."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.base.sizes import seconds
from quine.fanout.load import ANSWER, ASK, EVERY, PATIENCE, WORDS, Limit, Loads, parsed
from quine.fanout.options import parse
from quine.fanout.outcome import Tally
from quine.fanout.output.fold import folded
from quine.fanout.progress import MOST, Median, Progress, Rate
from tests.lab import Lab
from transport.spawn import Spawn
from transport.status import Status

SH = ["--", "sh", "-c"]
OK = Status("exited", 0)
# Answers to the question for the load: as much as half of the processors, and a little less.
FULL, FREE = b"4.00 3.00 2.00 1/99 1234\n8\n", b"3.90 3.00 2.00 1/99 1234\n8\n"


# -- tables ----------------------------------------------------------------------------------------


def test_a_table_is_instead_of_the_output(lab: Lab, tmp_path: Path) -> None:
    script = 'printf "%s,\\"\\n" "$0"; echo e >&2; exit "$1"'
    words = ["-k", "--results", "r.csv", *SH, script, "{1}", "{2}", ":::", "a b", "c", ":::", "0", "3"]
    done = lab.run(["xargs", *words], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (123, b"")
    with open(tmp_path / "r.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == [
        *("Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command"),
        *("V1", "V2", "Stdout", "Stderr"),
    ]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[9:] for row in rows[:2]] == [["a b", "0", 'a b,"\n', "e\n"], ["a b", "3", 'a b,"\n', "e\n"]]
    assert [(row[1], row[6]) for row in rows] == [(":", "0"), (":", "3")] * 2


def test_tables_of_json_and_of_tabs(lab: Lab, tmp_path: Path) -> None:
    assert lab.run(["xargs", "--results", "r.jsonl", "--", "echo", ":::", "a"], cwd=tmp_path).stdout == b""
    entry = json.loads((tmp_path / "r.jsonl").read_text())
    assert (entry["args"], entry["stdout"], entry["state"]) == (["a"], "a\n", "done")
    done = lab.run(["xargs", "--json", "--json-limit", "1", "--", "echo", ":::", "a"])
    assert json.loads(done.stdout)["cut"] == {"stdout": 2} and done.returncode == 74
    lab.run(["xargs", "--header", ":", "--results", "r.tsv", "--", "echo", ":::", "name", "a"], cwd=tmp_path)
    head, row, _ = (tmp_path / "r.tsv").read_text().splitlines()
    assert head.endswith("\tCommand\tname\tStdout\tStderr") and '"echo a"\ta\t"a' in row


def test_a_table_goes_on_when_its_batch_is_resumed(lab: Lab, tmp_path: Path) -> None:
    words = ["xargs", "--joblog", "log", "--results", "r.csv"]
    lab.run([*words, "--", "echo", ":::", "a"], cwd=tmp_path)
    lab.run([*words, "--resume", "--", "echo", ":::", "a", "b"], cwd=tmp_path)
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines if not line.startswith('"')] == ["Seq", "1", "2"]
    lab.run([*words, "--", "echo", ":::", "c"], cwd=tmp_path)
    assert "echo a" not in (tmp_path / "r.csv").read_text()


def test_columns_with_names_name_the_directories_of_results(lab: Lab, tmp_path: Path) -> None:
    words = [
        "xargs",
        "--header",
        ":",
        "--results",
        "r",
        "--",
        "echo",
        "{b}",
        ":::",
        "a",
        "1",
        ":::",
        "b",
        "x",
    ]
    assert lab.run(words, cwd=tmp_path).stdout == b"x\n"
    assert (tmp_path / "r" / "a" / "1" / "b" / "x" / "stdout").read_text() == "x\n"


# -- folding ---------------------------------------------------------------------------------------


def test_identical_outputs_once(lab: Lab) -> None:
    script = 'test "$0" = 3 && echo other >&2; head -c 100000 /dev/zero | tr "\\\\0" "$(($0 % 2))"; echo'
    done = lab.run(["xargs", "--fold", *SH, script, ":::", *"12345"])
    assert (done.returncode, done.stderr) == (0, b"other\n")
    found = done.stdout.decode().replace("0" * 100000, "ZEROS").replace("1" * 100000, "ONES").splitlines()
    groups = {head.strip(): text.strip() for head, text in zip(found[::2], found[1::2], strict=True)}
    assert groups == {"==> [1,5] (2) <==": "ONES", "==> 3 <==": "ONES", "==> [2,4] (2) <==": "ZEROS"}


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["h1", "h3", "h2", "db"], "db,h[1-3]"),
        (["a b", "c"], "'a b' c"),
        (["a,b", "c[1]"], "a,b 'c[1]'"),
    ],
)
def test_names_of_items_that_have_one_output(names: list[str], text: str) -> None:
    assert folded(names) == text


# -- time ------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_a_median(times: list[float]) -> None:
    median = Median()
    for time in times:
        median.add(time)
    assert median.value == (sorted(times)[len(times) // 2] if len(times) >= 3 else None)


def test_a_median_is_of_the_last_times_and_holds_no_more() -> None:
    median = Median()
    for time in [1.0] * MOST + [2.0] * MOST:
        median.add(time)
    assert median.value == 2.0 and len(median._times) == len(median._sorted) == MOST


def test_a_rate_is_of_the_last_seconds() -> None:
    rate = Rate(100.0)
    for at in range(50):
        rate.add(100.0 + at / 10)
    assert rate.value(105.0) == 10
    assert rate.value(200.0) == 0


def test_the_time_that_is_left_is_that_of_the_median() -> None:
    progress = Progress(Tally(), 0.0)
    progress.total, progress.read, progress.under_way = 100, 40, 4
    assert progress.eta() is None
    for _ in range(4):
        progress.started("h1", 0.0)
    for _ in range(3):
        progress.stopped("h1")
        progress.ended("h1", "done", 0.0, 2.0)
        progress.started("h1", 2.0)
    assert progress.left() == 64 and progress.eta() == 64 * 2.0 / 4


@pytest.mark.clock
def test_a_share_of_the_median_ends_what_takes_longer(lab: Lab) -> None:
    """The items that are done take no time to speak of; without them the last one would never end."""
    script = 'test "$0" = late && exec sleep 1000; sleep 0.1'
    words = ["xargs", "-P2", "--timeout", "1000%", *SH, script, ":::", "late", *"123"]
    done = lab.run(words)
    assert (done.returncode, done.stderr) == (
        123,
        b"quine: error: 1 of 4 items are not done: 1 timeout\nquine: hint: item 1 (late): timeout\n",
    )


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("1.5", 1.5), ("2m", 120), ("1h", 3600), ("1d", 86400)]
)
def test_seconds(text: str, value: float) -> None:
    assert seconds(text, "--delay") == value


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "m", "1 2"])
def test_no_seconds(text: str) -> None:
    with pytest.raises(Misconfigured, match=r"--delay .*: should be a number of seconds"):
        seconds(text, "--delay")


def test_a_time_that_poll_cannot_wait_for(lab: Lab) -> None:
    done = lab.run(["xargs", "--timeout", "9e8", "--", "true", ":::", "a"])
    assert (done.returncode, done.stderr) == (0, b"")


# -- load ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "load", "cpus", "over"),
    [("2", 1.9, 8, False), ("2", 2.0, 8, True), ("50%", 3.9, 8, False), ("50%", 4.0, 8, True)],
)
def test_a_limit_of_load(text: str, load: float, cpus: int, over: bool) -> None:
    options, _, _ = parse(["--load", text])
    assert Limit(options).over(load, cpus) is over


@pytest.mark.parametrize("where", [[], ["--on", "h1,h2"]])
def test_a_host_with_little_load_is_used(lab: Lab, where: list[str]) -> None:
    done = lab.run(["xargs", *where, "--load", "100000", "-k", "--", "echo", ":::", *"1234"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n2\n3\n4\n", b"")


class Asking:
    """A batch whose hosts answer when the test says so."""

    def __init__(self) -> None:
        self.asked: dict[str, tuple[Spawn, Callable[[int, memoryview], None], Callable[[Status], None]]] = {}
        self.limits: dict[float, Callable[[], None]] = {}  # of the last question

    def start(self, spawn: Spawn, on_output: Any, on_exit: Any, on_note: Any) -> Any:
        self.asked[spawn.where] = spawn, on_output, on_exit
        abandoned = Status("lost", 74)
        abandon = lambda: self.asked.pop(spawn.where)[2](abandoned)  # noqa: E731
        return SimpleNamespace(abandon=abandon, limit=lambda seconds: self.limits.update({seconds: abandon}))

    def answer(self, host: str, text: bytes, status: Status = OK) -> None:
        _, on_output, on_exit = self.asked.pop(host)
        on_output(1, memoryview(text))
        on_exit(status)

    def loads(self, inventory: Path, where: str) -> Loads:
        options, _, _ = parse(["--inventory", str(inventory), "--on", where, "--load", "50%"])
        return Loads(self, options, Progress(Tally(), 0.0), None, 0.0)  # type: ignore[arg-type]


def test_hosts_with_too_much_load_are_avoided_and_a_batch_waits_while_all_have_it(lab: Lab) -> None:
    asking = Asking()
    loads = asking.loads(lab.inventory, "h1,h2")
    assert loads.blocked
    loads.tick(0.0)
    assert loads.blocked and set(asking.asked) == {"h1", "h2"}
    asking.answer("h1", FULL)
    assert loads.blocked, "of the other one nothing is known yet"
    asking.answer("h2", FREE)
    assert not loads.blocked and loads.avoid == ["h1"]
    loads.tick(EVERY)
    asking.answer("h2", FULL)
    assert loads.blocked
    asking.answer("h1", FREE)
    assert not loads.blocked and loads.avoid == ["h2"]


def test_a_host_that_never_tells_its_load_is_as_one_that_cannot_be_reached(lab: Lab) -> None:
    """It was held back for ever, and the only one held the batch."""
    asking = Asking()
    loads = asking.loads(lab.inventory, "h1,h2")
    loads.tick(0.0)
    asking.answer("h1", FREE)
    asking.limits[PATIENCE]()
    assert not loads.blocked and loads.avoid == ["h2"]
    loads.tick(EVERY)
    assert set(asking.asked) == {"h1", "h2"}, "it is asked again"
    alone = Asking()
    loads = alone.loads(lab.inventory, "h1")
    loads.tick(0.0)
    assert loads.blocked
    alone.limits[PATIENCE]()
    assert not loads.blocked and loads.avoid == []


@pytest.mark.parametrize(
    ("text", "status"), [(FULL[:25], Status("exited", 127)), (FULL[:25], OK), (FULL + b"more", OK), (b"", OK)]
)
def test_a_host_that_does_not_know_its_processors_is_not_held_back(
    lab: Lab, text: bytes, status: Status
) -> None:
    """The number of a process, the last of /proc/loadavg, would be taken for that of its processors."""
    asking = Asking()
    loads = asking.loads(lab.inventory, "h1,h2")
    loads.tick(0.0)
    asking.answer("h1", FULL)
    asking.answer("h2", text, status)
    assert not loads.blocked and loads.avoid == ["h1"]
    assert not loads._progress.hosts["h2"].cpus


@pytest.mark.parametrize(
    "text",
    [
        b"inf 0 0 1/1 1 4\n",
        b"nan 0 0 1/1 1 4\n",
        b"1e300 0 0 1/1 1 4\n",
        b"-1 0 0 1/1 1 4\n",
        b"0.1 0 0 1/1 1 " + b"9" * 3500,
        b"0.1 0 0 1/1 1 0\n",
        "0.1 0 0 1/1 1 ²\n".encode(),
        b"\xff 0 0 1/1 1 4\n",
    ],
)
def test_a_load_that_is_no_number_is_no_answer(lab: Lab, text: bytes) -> None:
    """It ended the batch, and with it the jobs of all hosts."""
    asking = Asking()
    loads = asking.loads(lab.inventory, "h1,h2")
    loads.tick(0.0)
    asking.answer("h1", FULL)
    asking.answer("h2", text)
    assert not loads.blocked and loads.avoid == ["h1"]
    host = loads._progress.hosts["h2"]
    assert (host.load, host.cpus) == (-1.0, 0)
    with pytest.raises(ValueError, match=r"number|codec"):
        parsed(text)


def test_an_answer_about_the_load_without_an_end_is_not_read(lab: Lab) -> None:
    asking = Asking()
    loads = asking.loads(lab.inventory, "h1,h2")
    loads.tick(0.0)
    _, on_output, _ = asking.asked["h2"]
    on_output(1, memoryview(b"1" * ANSWER))
    assert "h2" in asking.asked
    on_output(1, memoryview(b"1" * (1 << 20)))
    assert "h2" not in asking.asked, "it is still waited for"
    asking.answer("h1", FULL)
    assert not loads.blocked and loads.avoid == ["h1"], "it cannot answer, and is not held back"


def test_the_processors_are_told_without_getconf_or_not_at_all(tmp_path: Path) -> None:
    programs = {"cat": shutil.which("cat"), "nproc": shutil.which("nproc")}
    for name, path in programs.items():
        (tmp_path / name).symlink_to(str(path))
    sh = [str(shutil.which("sh")), *ASK[1:]]
    done = subprocess.run(sh, env={"PATH": str(tmp_path)}, capture_output=True)
    assert done.returncode == 0 and len(done.stdout.split()) == WORDS
    (tmp_path / "nproc").unlink()
    assert subprocess.run(sh, env={"PATH": str(tmp_path)}, capture_output=True).returncode


def test_a_host_that_cannot_be_reached_is_used_only_if_no_other_can_be(lab: Lab) -> None:
    """While the others have too much load all items would be tried there, each until it has its end."""
    asking, gone = Asking(), Status("unreachable", 69)
    loads = asking.loads(lab.inventory, "h1,h2")
    loads.tick(0.0)
    asking.answer("h2", b"", gone)
    assert loads.blocked, "of the other one nothing is known yet"
    asking.answer("h1", FULL)
    assert loads.blocked and loads.avoid == ["h1", "h2"]
    loads.tick(EVERY)
    asking.answer("h2", b"", gone)
    assert loads.blocked
    asking.answer("h1", b"", gone)
    assert not loads.blocked and not loads.avoid, "a start tells why"
    loads.tick(2 * EVERY)
    asking.answer("h2", FREE)
    assert not loads.blocked and loads.avoid == ["h1"]


def test_hosts_that_join_are_asked_before_a_start_and_hosts_that_leave_hold_nothing_up(
    tmp_path: Path,
) -> None:
    inventory, aside = tmp_path / "inventory.toml", tmp_path / "aside"

    def write(text: str) -> None:
        aside.write_text(text)
        aside.replace(inventory)

    write("[hosts.h1]\n")
    asking = Asking()
    loads = asking.loads(inventory, "any")
    loads.tick(0.0)
    asking.answer("h1", FREE)
    assert not loads.blocked
    write("[hosts.h1]\n[hosts.h2]\nslots = 3\n")
    loads.tick(0.1)
    assert loads.avoid == ["h2"] and set(asking.asked) == {"h1", "h2"}
    assert loads._progress.hosts["h2"].slots == 3
    asking.answer("h2", FULL)
    write("")  # somebody writes it
    loads.tick(0.2)
    assert loads.avoid == ["h2"] and not loads.blocked
    write("[hosts.h2]\n")
    loads.tick(0.3)
    assert loads.blocked, "the one without load is no host of the batch any more"


# -- clean-up and report -----------------------------------------------------------------------------


def test_files_are_removed_over_there(lab: Lab, tmp_path: Path) -> None:
    """Those of an item after it, those of all at the end; a file that the job has made itself stays."""
    (tmp_path / "in").mkdir()
    for name in ("in/a", "in/b", "all"):
        (tmp_path / name).write_text(name)
    there = tmp_path / "there"
    there.mkdir()
    script = 'cat all "$0" >"$0.out"; echo >>mine; ls in | grep -v out | wc -l'
    words = ["--on", "h1", "-P1", "--cwd", str(there), "--files", "{}", "--files", "all", "--returns", "{}.*"]
    done = lab.run(["xargs", *words, "--cleanup", *SH, script, ":::", "in/a", "in/b"], cwd=tmp_path)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [b"1", b"1"], b"")
    assert (tmp_path / "in" / "a.out").read_text() == "allin/a"
    assert [path.name for path in there.rglob("*")] == ["mine"]


def test_a_file_of_two_items_stays_while_one_needs_it(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    there = tmp_path / "there"
    there.mkdir()
    # The first has its end, and a line in the log, after its files were removed.
    script = (
        'if test "$0" = 1; then until test -e "$1"; do sleep 0.01; done; '
        'else touch "$1"; until test "$(wc -l <"$2")" = 2; do sleep 0.01; done; fi; cat f'
    )
    words = ["--on", "h1", "-P2", "--cwd", str(there), "--files", "{2}", "--cleanup", "--joblog", "log"]
    more = [str(tmp_path / "go"), str(tmp_path / "log")]
    done = lab.run(["xargs", *words, *SH, script, "{1}", *more, ":::", "1", "2", ":::", "f"], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"xx", b"")
    assert list(there.iterdir()) == []


def test_a_report_at_the_end(lab: Lab, tmp_path: Path) -> None:
    done = lab.run(["xargs", "--report", "r", "--exit-count", *SH, 'exit "$0"', ":::", *"010"], cwd=tmp_path)
    found = json.loads((tmp_path / "r").read_text())
    assert done.returncode == found["code"] == 1
    assert (found["items"], found["done"], found["failed"], found["never_started"]) == (3, 2, 1, 0)
    assert (found["signal"], found["spent"], found["tokens"]) == (None, False, None)
    assert found["hosts"] == {"local": {"ended": 3, "failed": 1}} and found["seconds"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--results", "x.json"], "--results x.json: one object a line is .jsonl"),
        (["--results", "x.csv", "--tag"], "--results FILE.csv is instead of the output, and --tag"),
        (["--results", "/dev/null/x.csv"], "--results /dev/null/x.csv: not a directory"),
        (["--results", "/dev/null/x"], "--results /dev/null/x: not a directory"),
        (["--fold", "--json"], "--fold and --json exclude each other"),
        (["--fold", "--joblog", "l"], "--fold prints at the end"),
        (["--timeout", "0%"], "--timeout 0%: should be a share"),
        (["--load", "0"], "--load 0: should be a number over 0, or a share"),
        (["--header", "x"], "--header x: should be :"),
        (["--cleanup"], "--cleanup is about --files and --returns"),
        (["--returns", "/etc/x"], "--returns: '/etc/x' leads out of the job's directory"),
        (["--report", "/no/such/r"], "cannot write the report to /no/such/r"),
    ],
)
def test_refusals(lab: Lab, tmp_path: Path, words: list[str], message: str) -> None:
    done = lab.run(["xargs", *words, "--", "touch", "ran", ":::", "a"], cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr.decode()
    assert not list(tmp_path.iterdir())
