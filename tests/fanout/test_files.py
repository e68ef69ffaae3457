"""`quine xargs --files --returns`: the files of an item come to its job, and its results come back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base.errors import Misconfigured
from quine.fanout.files import contents
from quine.fanout.files.files import Files
from quine.fanout.files.names import Names
from quine.fanout.joblog import Entry
from quine.fanout.outcome import Unreturned
from quine.fanout.starter import Starter
from quine.fanout.tasks import Task
from quine.staging import content
from quine.staging.caller_side import Staging
from tests.fanout.test_xargs import SH
from tests.lab import Lab
from tests.support.agents import OK, call, says
from tests.support.trees import there as there
from transport.spawn import Spawn
from transport.status import Status

SUM = ["--", "sh", "-c", 'tr a-z A-Z <"$0" >"$0.up"', "{}"]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number} x.txt").write_text(f"text {number}\n")
    return tmp_path


def names(inputs: Path, pattern: str = "*.txt") -> list[str]:
    return sorted(str(path.relative_to(inputs)) for path in (inputs / "in").glob(pattern))


def test_files_of_items_go_and_results_come(lab: Lab, inputs: Path) -> None:
    words = ["--on", "h1,h2", "-P3", "--files", "{}", "--returns", "{}.up", *SUM, ":::", *names(inputs)]
    done = lab.run(["xargs", *words], cwd=inputs)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    for number in range(6):
        assert (inputs / "in" / f"{number} x.txt.up").read_text() == f"TEXT {number}\n"


def test_a_file_that_is_not_there_costs_its_item_alone(lab: Lab, inputs: Path) -> None:
    words = ["--on", "h1", "--files", "{}", "--returns", "{}.up", "--joblog", "log", *SUM]
    done = lab.run(["xargs", *words, ":::", "in/0 x.txt", "in/none"], cwd=inputs)
    assert done.returncode == 123
    assert done.stderr.decode().splitlines() == [
        "quine: error: item 2: --files in/none: no such file or directory",
        "quine: error: 1 of 2 items are not done: 1 never started",
        "quine: hint: item 2 (in/none): never started",
    ]
    assert names(inputs, "*.up") == ["in/0 x.txt.up"]


def test_a_result_that_is_not_there_is_a_failure(lab: Lab, inputs: Path) -> None:
    done = lab.run(["xargs", "--on", "h1", "--returns", "{}.none", "--", "true", ":::", "a"], cwd=inputs)
    assert done.returncode == 123
    assert b"item 1: --returns a.none: nothing there to be brought back" in done.stderr


def test_results_that_do_not_come_stay_on_their_host_and_are_asked_for_again(
    lab: Lab, inputs: Path, there: Path
) -> None:
    """--cleanup removed them. The next run asks for them, and runs nothing."""
    stands = inputs / "in" / "0 x.txt.up"
    stands.mkdir()
    (inputs / "all").touch()
    words = [
        "--on",
        "h1",
        "--cwd",
        str(there),
        "--cleanup",
        "--joblog",
        "log",
        "--files",
        "{}",
        "--files",
        "all",
    ]
    words += ["--returns", "{}.up", "--", "sh", "-c", f'{SUM[3]}; echo >>"{inputs}/ran"', "{}"]
    for options in ([], ["--resume"]):
        done = lab.run(["xargs", *options, *words, ":::", *names(inputs)[:2]], cwd=inputs)
        assert done.returncode == 74
        error, hint, *_ = done.stderr.decode().splitlines()
        assert error.startswith("quine: h1: error: item 1: the files cannot be brought back: in/0 x.txt.up: ")
        assert hint == f"quine: h1: hint: the results are still on the host, in {there}"
        assert sorted(path.name for path in (there / "in").iterdir()) == ["0 x.txt", "0 x.txt.up"]
        assert (there / "all").exists()
    stands.rmdir()
    done = lab.run(["xargs", "--resume", *words, ":::", *names(inputs)[:2]], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"")
    assert stands.read_text() == "TEXT 0\n"
    assert (inputs / "ran").read_text() == "\n\n" and not (inputs / "log.started").exists()
    assert list(there.iterdir()) == []


def test_the_end_of_an_item_removes_no_results_of_another(lab: Lab, inputs: Path, there: Path) -> None:
    """The pattern of 1 matches that of 10, which is made before 1 has ended, and goes on after it."""
    script = f"""
        echo begin >"$0.out"
        test "$0" = 1 || until test "$(wc -l <"{inputs}/log")" = 2; do sleep 0.02; done
        test "$0" = 10 || until test -e 10.out; do sleep 0.02; done
        echo end >>"$0.out"
    """
    words = ["--on", "h1", "--cwd", str(there), "--cleanup", "--joblog", "log", "-P2", "--returns", "{}*.out"]
    done = lab.run(["xargs", *words, *SH, script, "{}", ":::", "1", "10"], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"")
    for number in (1, 10):
        assert (inputs / f"{number}.out").read_text() == "begin\nend\n"
    assert list(there.iterdir()) == []


@pytest.mark.parametrize("ends", [False, True])
def test_a_try_that_is_repeated_since_a_result_is_missing_has_replaced_nothing(
    lab: Lab, inputs: Path, ends: bool
) -> None:
    """`ends`: it has no more tries, and its results are as they were before: those that are there come."""
    (inputs / "f").write_text("1")
    script = f'n=$(($(cat f) * 2)); echo $n >f; test -e "{inputs}/second" && touch done; :'
    script += "" if ends else f'; touch "{inputs}/second"'
    words = ["--on", "h1", "--retries", "2", "--files", "f", "--returns", "f", "--returns", "done"]
    done = lab.run(["xargs", *words, *SH, script, "{}", ":::", "a"], cwd=inputs)
    assert done.returncode == (123 if ends else 0)
    assert (inputs / "f").read_text() == "2\n"
    assert (b"--returns done: nothing there" in done.stderr) == ends


@pytest.mark.parametrize("again", ["the item", "another item"])
def test_a_later_run_removes_no_results_that_did_not_come(
    lab: Lab, inputs: Path, there: Path, again: str
) -> None:
    """They are among the files that all items have, which go at the end of a batch."""
    (inputs / "data").mkdir()
    (inputs / "data" / "x").touch()
    words = ["--on", "h1", "--cwd", str(there), "--cleanup", "--joblog", "log", "--files", "data", "-P1"]
    words += ["--colsep", ":", "--returns", "data/{1}.out"]
    script = [*SH, 'head -c "$1" /dev/zero >"data/$0.out"', "{1}", "{2}", ":::"]
    limit = ["--returns-limit", "100"]
    done = lab.run(["xargs", *words, *limit, *script, "1:10", "2:1000"], cwd=inputs)
    assert done.returncode == 74
    items = ["1:10", "2:1000"] if again == "the item" else ["3:10"]
    lab.run(["xargs", *words, "--resume", *limit, *script, *items, "4:10"], cwd=inputs)
    assert (there / "data" / "2.out").stat().st_size == 1000
    done = lab.run(["xargs", *words, "--resume", *script, "1:10", "2:1000"], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (inputs / "data" / "2.out").stat().st_size == 1000 and list(there.iterdir()) == []


def test_results_whose_way_is_a_link_now_stay_on_their_host(lab: Lab, inputs: Path) -> None:
    """Its user has moved them to a disk that is not full."""
    words = ["--on", "h1", "--joblog", "log", "--returns", "out/{}"]
    script = [*SH, 'mkdir -p out; echo "$0" >out/"$0"; head -c 4096 /dev/zero >>out/"$0"', "{}", ":::", "a"]
    done = lab.run(["xargs", *words, "--returns-limit", "10", *script], cwd=inputs)
    assert done.returncode == 74
    (inputs / "disk").mkdir()
    (inputs / "out").symlink_to("disk")
    done = lab.run(["xargs", "--resume", *words, *script], cwd=inputs)
    assert done.returncode == 74 and b"hint: the results are still on the host, in " in done.stderr
    assert "\tunreturned\t" in (inputs / "log").read_text()
    (inputs / "out").unlink()
    done = lab.run(["xargs", "--resume", *words, *script], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (inputs / "out" / "a").stat().st_size == 4098


@pytest.mark.parametrize("name", ["d" * 210, "\udce9\u202e d"])
def test_results_in_any_directory_can_be_asked_for(lab: Lab, inputs: Path, there: Path, name: str) -> None:
    """Its text for people was noted: cut short, and with escapes. No run could ask in it."""
    (there / name).mkdir(parents=True)
    words = ["--on", "h1", "--joblog", "log", "--cwd", str(there / name), "--returns", "out"]
    script = [*SH, "echo 12345678901 >out", "{}", ":::", "a"]
    done = lab.run(["xargs", *words, "--returns-limit", "10", *script], cwd=inputs)
    assert done.returncode == 74
    hint = done.stderr.decode().partition("hint: the results are still on the host, in ")[2]
    escaped = "'{}'".format(f"{there}/\\xe9\\u202e d")
    assert hint.startswith(escaped if " " in name else str(there / name))
    done = lab.run(["xargs", "--resume", *words, *script], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (inputs / "out").read_text() == "12345678901\n"


@pytest.mark.parametrize("place", ["/there", ""])
def test_results_that_cannot_be_asked_for_stay_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    note = Unreturned(2, 0, "", "h1", place)
    task = SimpleNamespace(item=None, entry=SimpleNamespace(unreturned=None), begin=lambda: None)

    def stage(item: object, begun: bool) -> None:
        assert begun  # links in the way are not looked at
        raise Misconfigured("the current directory has been removed", "go to another one")

    starter = SimpleNamespace(
        _journal=SimpleNamespace(unreturned={"id": note}), _work=SimpleNamespace(stage=stage)
    )
    ends: list[Status] = []
    Starter.fetch(starter, task, "id", lambda task, status: ends.append(status))  # type: ignore[arg-type]
    assert task.entry.unreturned is note
    assert (ends[0].state, ends[0].code, ends[0].host) == ("lost", 74, "h1")
    assert ends[0].hint == (
        f"the results are still on the host, in {place}" if place else "go to another one"
    )


def test_results_whose_host_is_away_again_stay_noted_with_their_place(tmp_path: Path) -> None:
    """The place was forgotten, and the next run asked in another directory, and called the item failed."""
    asked: list[Spawn] = []

    def start(spawn: Spawn, on_exit: Callable[[Status], None], **_: object) -> Any:
        asked.append(spawn)
        later.append(lambda: on_exit(Status("unreachable", 69, host="h1", detail="no route")))
        return SimpleNamespace(limit=lambda seconds, heard: None, overdue=False)

    later: list[Callable[[], None]] = []
    stage, note = Staging([], ["out"], str(tmp_path)), Unreturned(2, 0, "", "h1", "/there")
    stage.tries = 1
    starter: Any = object.__new__(Starter)
    starter._journal = SimpleNamespace(unreturned={"id": note}, brought={})
    starter._work = SimpleNamespace(stage=lambda item, begun: stage)
    starter._where, starter._env, starter._cwd, starter.tree, starter._context = "h1", {}, None, "tree", {}
    starter.folder = "apart"
    starter.files = Files(SimpleNamespace(start=start), None, print, cleanup=False, quiet=True)  # type: ignore[arg-type]
    starter.files.at = lambda when, call: None
    task = Task(SimpleNamespace(number=1, slot=0), Entry(1, "hash"))  # type: ignore[arg-type]
    ends: list[Status] = []
    starter.fetch(task, "id", lambda task, status: ends.append(status))
    later.pop()()
    assert (asked[0].cwd, asked[0].folder) == ("/there", "apart") and task.entry.unreturned == note
    assert (ends[0].state, ends[0].hint) == ("lost", "the results are still on the host, in /there")


def test_a_name_that_is_obeyed_here_stays_there_also_with_cleanup(
    lab: Lab, inputs: Path, there: Path
) -> None:
    """A pattern leaves it out, which is said once for all items."""
    script = 'mkdir -p personas; touch inventory.toml personas/me.md "out$0"'
    words = [
        "xargs",
        "--on",
        "h1",
        "-P1",
        "--cwd",
        str(there),
        "--cleanup",
        "--returns",
        "*",
        *SH,
        script,
        "{}",
    ]
    done = lab.run([*words, ":::", "1", "2"], cwd=inputs)
    cure = "--returns inventory.toml, --returns personas"
    text = f"inventory.toml, personas left out, names that quine or git obeys; to have it: {cure}"
    assert (done.returncode, done.stderr.decode()) == (0, f"quine: h1: {text}\n")
    assert sorted(path.name for path in inputs.iterdir()) == ["in", "out1", "out2"]
    assert sorted(path.name for path in there.iterdir()) == ["inventory.toml", "personas"]


@pytest.mark.parametrize("ends", [["--halt", "now,success=1"], ["--timeout", "1"]])
def test_a_job_that_was_ended_brings_nothing_and_its_result_stays(
    lab: Lab, inputs: Path, ends: list[str]
) -> None:
    """It says that it has ended well, and its result is a part of one."""
    (inputs / "out").write_text("whole\n")
    up = inputs / "up"
    slow = f"trap 'kill $!; exit 0' TERM; pwd >{inputs}/place; echo part >out; touch {up}; sleep 1000 & wait"
    fast = f"until test -e {up}; do sleep 0.01; done; echo whole >out"
    words = ["--on", "h1,h2", "-P2", "--cleanup", "--joblog", "log", "--returns", "out", *SH]
    items = ["slow", "fast"] if "--halt" in ends else ["slow"]
    script = f"case $0 in slow) {slow};; *) {fast};; esac"
    done = lab.run(["xargs", *ends, *words, script, "{}", ":::", *items], cwd=inputs)
    assert done.returncode == 123
    states = {line.split("\t")[-2] for line in (inputs / "log").read_text().splitlines()[1:]}
    assert states == ({"stopped", "done"} if "--halt" in ends else {"timeout"})
    if up.exists():
        assert b"it was not to finish, and nothing was brought back" in done.stderr
        place = Path((inputs / "place").read_text().strip())
        assert f"the results are still on the host, in ~/quine/{place.name}\n" in done.stderr.decode()
        assert (place / "out").read_text() == "part\n"
    assert (inputs / "out").read_text() == "whole\n"


def test_a_file_that_has_changed_is_run_again(lab: Lab, inputs: Path) -> None:
    words = ["--on", "h1", "--joblog", "log", "--resume", "--files", "{}", "--", "cat", "{}", ":::"]
    assert lab.run(["xargs", "-k", *words, *names(inputs)], cwd=inputs).stdout.count(b"\n") == 6
    (inputs / "in" / "3 x.txt").write_text("other\n")
    done = lab.run(["xargs", *words, *names(inputs)], cwd=inputs)
    assert (done.returncode, done.stdout) == (0, b"other\n")


def test_results_that_replace_their_files_are_no_other_items(lab: Lab, inputs: Path) -> None:
    """A done item is not run on its own result, and a retry begins with the file that the item had."""
    once = 'test "$0" != "in/1 x.txt" || test -e "$1/failed" || { touch "$1/failed"; exit 1; }'
    script = f'cat "$0" >>"$1/seen"; echo more >>"$0"; {once}'
    words = [
        "--on",
        "h1",
        "-P1",
        "--retries",
        "2",
        "--joblog",
        "log",
        "--resume",
        "--files",
        "{}",
        "--returns",
        "{}",
    ]
    words += ["--", "sh", "-c", script, "{}", str(inputs), ":::", *names(inputs)[:2]]
    for _ in range(2):
        done = lab.run(["xargs", *words], cwd=inputs)
        assert (done.returncode, done.stderr) == (0, b"")
        assert (inputs / "seen").read_text() == "text 0\ntext 1\ntext 1\n"
        assert [(inputs / name).read_text() for name in names(inputs)[:2]] == [
            "text 0\nmore\n",
            "text 1\nmore\n",
        ]
    (inputs / "in" / "0 x.txt").write_text("new\n")
    assert lab.run(["xargs", *words], cwd=inputs).returncode == 0
    assert (inputs / "seen").read_text().endswith("text 1\nnew\n")


@pytest.mark.parametrize(
    "words",
    [
        ["--files", "in", "--returns", "{}.out"],
        ["--files", ".", "--returns", "out/{}"],
        ["--files", "in/*", "--returns", "{}"],
        ["--files", "{}", "--files", "lib", "--returns", "{}.new", "--returns", "lib"],
        ["--stdin", "{}", "--files", "lib", "--returns", "{}", "--returns", "lib"],
    ],
    ids=["into a directory that is sent", "all is sent", "a pattern", "shared and returned", "stdin"],
)
def test_results_among_the_files_of_other_items_run_none_again(
    lab: Lab, inputs: Path, words: list[str]
) -> None:
    """Done items ran again, since the files that they were told apart by had results of others in them."""
    (inputs / "lib").write_text("lib\n")
    (seen := inputs.with_name(f"{inputs.name}-seen")).mkdir()
    script = """name=$(basename "$0"); echo run >>"$1/$name"; mkdir -p out in; test -e "$0" || cat >"$0"
    for each in "$0" "$0.out" "out/$0" "$0.new" lib; do mkdir -p "$(dirname "$each")"; echo "$0" >>"$each"; done"""
    words = ["--on", "h1", "-P1", "--joblog", "log", "--resume", *words]
    words += ["--", "sh", "-c", script, "{}", str(seen), ":::", *names(inputs)[:3]]
    for _ in range(3):
        done = lab.run(["xargs", *words], cwd=inputs)
        assert (done.returncode, done.stderr) == (0, b"")
        runs = {path.name: path.read_text() for path in seen.iterdir()}
        assert runs == {f"{number} x.txt": "run\n" for number in range(3)}
    changed = inputs / ("lib" if "lib" in words else names(inputs)[2])
    changed.write_text("by somebody else\n")
    assert lab.run(["xargs", *words], cwd=inputs).returncode == 0
    assert (seen / "2 x.txt").read_text() == "run\nrun\n"


def test_items_are_names_and_are_never_expanded(lab: Lab, inputs: Path) -> None:
    """An item named `~` once sent the home directory to a host."""
    odd = ["~", "~/x", "*", "?", "a:b", "[x]", "a*:[~]"]
    for name in odd:
        if "/" not in name:
            (inputs / name).write_text(name)
    (inputs / "secret").write_text("")
    command = ["sh", "-c", 'cat "$0" >"$0.up"; echo "$0"; ! ls -A | grep -e secret -e .ssh', "{}"]
    words = ["--on", "h1", "-k", "--files", "{}", "--returns", "{}.up", "--", *command, ":::", *odd]
    done = lab.run(["xargs", *words], cwd=inputs)
    assert done.stderr.decode().splitlines() == [
        "quine: error: item 2: --files ./~/x: no such file or directory",
        "quine: error: 1 of 7 items are not done: 1 never started",
        "quine: hint: item 2 (~/x): never started",
    ]
    odd.remove("~/x")
    assert done.stdout.decode().splitlines() == odd
    assert {name: (inputs / f"{name}.up").read_text() for name in odd} == {name: name for name in odd}


def test_here_files_are_where_they_are(lab: Lab, inputs: Path) -> None:
    words = ["--files", "{}", "--returns", "{}.up", *SUM, ":::", *names(inputs)]
    assert lab.run(["xargs", *words], cwd=inputs).returncode == 0
    assert len(names(inputs, "*.up")) == 6


def test_files_of_agents(lab: Lab, inputs: Path) -> None:
    lines = [says(call("sh", command='for f in in/*.txt; do cp "$f" "$f.up"; done')), says(OK)]
    env = {**lab.script(lines, "xargs-files.jsonl"), "QUINE_DATA_DIR": str(inputs / "data")}
    words = ["--on", "h2", "-P1", "--files", "{}", "--returns", "{}.up", "copy {}", ":::", *names(inputs)[:2]]
    done = lab.run(["xargs", *words], cwd=inputs, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert names(inputs, "*.up") == ["in/0 x.txt.up", "in/1 x.txt.up"]


def test_items_with_files_of_one_name_wait_for_each_other_and_a_dot_keeps_their_directories(
    lab: Lab, inputs: Path
) -> None:
    for number in range(3):
        (inputs / str(number)).mkdir()
        (inputs / str(number) / "d.csv").write_text(f"{number}\n")
    paths = [f"{inputs}/{number}/d.csv" for number in range(3)]
    words = ["xargs", "-kP4", "--on", "h1", "--cwd", "~", "--files"]
    done = lab.run(
        [*words, "{}", "--", "sh", "-c", "sleep .2; cat d.csv", ":::", *paths, paths[0]], cwd=inputs
    )
    assert (done.returncode, done.stdout) == (0, b"0\n1\n2\n0\n")
    assert done.stderr.startswith(
        b"quine: items whose --files have one name over there (d.csv) wait for each other; "
    )
    assert done.stderr.count(b"\n") == 1
    dotted = [f"{inputs}/./{number}/d.csv" for number in range(3)]
    kept = lab.run([*words, "{}", "--", "sh", "-c", 'cat "${0#*/./}"', "{}", ":::", *dotted], cwd=inputs)
    assert (kept.returncode, kept.stdout, kept.stderr) == (0, b"0\n1\n2\n", b"")
    named = lab.run([*words, "{}:{#}.csv", "--", "cat", "{#}.csv", ":::", *paths], cwd=inputs)
    assert (named.returncode, named.stdout, named.stderr) == (0, b"0\n1\n2\n", b"")


A, B = b"/a", b"/b"


@pytest.mark.parametrize(
    ("held", "sources", "waits"),
    [
        ([(A, b"n")], [(A, b"n")], False),
        ([(A, b"n")], [(B, b"n")], True),
        ([(A, b"n"), (A, b"m")], [(B, b"k"), (B, b"m")], True),
        ([(b"/a/d", b"d")], [(b"/a/d/f", b"d/f")], False),
        ([(b"/a/d/f", b"d/f")], [(b"/a/d", b"d")], False),
        ([(b"/a/d", b"d")], [(b"/b/d/f", b"d/f")], True),
        ([(b"/b/d/f", b"d/f")], [(b"/a/d", b"d")], True),
        ([(b"/b/d/e/f", b"d/e/f")], [(b"/a/d", b"d")], True),
        ([(b"/x", b"d/f")], [(b"/a/d", b"d")], True),
        ([(A, b"")], [(b"/a/f", b"f")], False),
        ([(A, b"")], [(B, b"f")], True),
        ([(B, b"f")], [(A, b"")], True),
        ([(A, b"d1")], [(B, b"d1/f")], True),
        ([(A, b"d")], [(B, b"d1/f")], False),
    ],
)
def test_names_that_clash(
    held: list[tuple[bytes, bytes]], sources: list[tuple[bytes, bytes]], waits: bool
) -> None:
    notes: list[str] = []
    called: list[int] = []
    names = Names(notes.append)
    assert names.take(held, [], lambda: None)
    assert names.take(sources, [], lambda: called.append(1)) is not waits and len(notes) == waits
    names.give(held, [])
    assert called == [1] * waits
    if not waits:
        names.give(sources, [])
    assert not names._paths and not names._above


def test_a_fault_of_this_machine_is_no_fault_of_a_host(lab: Lab, inputs: Path) -> None:
    os.mkfifo(inputs / "pipe")
    done = lab.run(["xargs", "--on", "h1", "--files", "pipe", "--", "true", ":::", *"1234"], cwd=inputs)
    assert done.returncode == 69 and b"set aside" not in done.stderr
    assert done.stderr.count(b"the files cannot be staged") == 1


def test_a_dot_in_a_path_of_returns(lab: Lab, inputs: Path) -> None:
    words = [
        "--files",
        "{}",
        "--returns",
        "{}.up",
        "--",
        "sh",
        "-c",
        'tr a-z A-Z <"${0#*/./}" >"${0#*/./}.up"',
        "{}",
    ]
    done = lab.run(["xargs", "--on", "h1", *words, ":::", f"{inputs}/./in/1 x.txt"], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (inputs / "in" / "1 x.txt.up").read_text() == "TEXT 1\n"


def test_without_a_host_nothing_moves_and_returns_are_looked_for(lab: Lab, inputs: Path) -> None:
    words = ["--files", "in", "--returns", "{}.up", *SUM, ":::"]
    done = lab.run(["xargs", *words, *names(inputs)], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"") and len(names(inputs, "*.up")) == 6
    done = lab.run(["xargs", "--returns", "{}.none", "--", "true", ":::", "a"], cwd=inputs)
    assert done.returncode == 123
    assert b"item 1: --returns a.none: nothing there to be brought back" in done.stderr
    done = lab.run(["xargs", "--files", "in:out", "--", "true", ":::", "a"], cwd=inputs)
    assert done.returncode == 69 and b"--files in:out: the job runs in this directory" in done.stderr
    done = lab.run(
        ["xargs", "--cleanup", "--files", "in", "--returns", "{}.up", *SUM, ":::", *names(inputs)], cwd=inputs
    )
    assert (done.returncode, done.stderr) == (0, b"") and len(names(inputs)) == len(
        names(inputs, "*.up")
    ) == 6


def test_links_below_a_directory_are_what_they_say_for_the_name_of_an_item(lab: Lab, tmp_path: Path) -> None:
    """Each of two links to their own directory led through both again, for ever."""
    place = tmp_path / "d"
    place.mkdir()
    for name in ("a", "b"):
        (place / name).symlink_to(".")
    words = ["xargs", "--joblog", "log", "--resume", "--on", "h1", "--files", "d", *SH, "ls d", ":::", "1"]
    done = lab.run(words, cwd=tmp_path, check=True)
    assert done.stdout == b"a\nb\n"
    assert lab.run(words, cwd=tmp_path, check=True).stdout == b""
    (place / "b").unlink()
    (place / "b").symlink_to("a")
    assert lab.run(words, cwd=tmp_path, check=True).stdout == b"a\nb\n", "it is another one"


def test_an_item_whose_input_cannot_be_read_has_a_name() -> None:
    """As if it were not there: its start tells of it. The whole batch ended by it."""
    (name, state) = contents.Contents().parts([("/proc/self/mem", b"mem")])
    assert name == b"mem" and state.startswith(b"?")


def test_what_all_items_have_is_read_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An origin read 20 MB again for each of a thousand items, and started none meanwhile."""
    (place := tmp_path / "dir").mkdir()
    (place / "a").write_text("one")
    (place / "link").symlink_to("a")
    reads: list[bytes] = []
    read = content.measure
    monkeypatch.setattr(content, "measure", lambda path: (reads.append(path), read(path))[1])
    some = contents.Contents()

    def parts() -> list[bytes]:
        return list(some.parts([(str(place), b"dir")], shared=True))

    now = time.time_ns()
    monkeypatch.setattr(contents, "time", SimpleNamespace(time_ns=lambda: now + 60 * 10**9))
    first = parts()
    assert parts() == first and len(reads) == 1
    (place / "link").unlink()
    (place / "link").symlink_to("b")
    second = parts()
    assert second != first and len(reads) == 1
    (place / "a").write_text("two")
    assert parts() not in (first, second) and len(reads) == 2
    monkeypatch.setattr(contents, "time", SimpleNamespace(time_ns=lambda: now))
    (place / "a").write_text("six")  # within one tick of its times there may be one more change
    parts()
    parts()
    assert len(reads) == 4
    place.rename(tmp_path / "other")
    assert parts() == [b"dir", b"-"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--files", "data", "--returns", "data/{}.out"], "data/$0.out"),
        (["--files", ".", "--returns", "{}"], "$0"),
        (["--files", ".", "--returns", "[{}]"], "$0"),
    ],
    ids=["beside its files", "in place", "by a pattern"],
)
def test_the_staging_of_an_item_leaves_the_results_of_others(
    lab: Lab, inputs: Path, there: Path, words: list[str], name: str
) -> None:
    """The result of 1 is there before 3 gets its files, among which is the one of the run before."""
    (inputs / "data").mkdir()
    (up := inputs.with_name(f"{inputs.name}-up")).mkdir()
    for item in "123":
        for path in (inputs / item, inputs / "data" / f"{item}.out"):
            path.write_text("old\n")
    script = f"""
        test "$0" != 2 || until test -e "{up}/1"; do sleep 0.02; done
        echo "good $0" >"{name}"; touch "{up}/$0"
        test "$0" != 1 || until test -e "{up}/3"; do sleep 0.02; done
    """
    words = ["--on", "h1", "--cwd", str(there), "-P2", *words]
    done = lab.run(["xargs", *words, *SH, script, "{}", ":::", "1", "2", "3"], cwd=inputs)
    assert (done.returncode, done.stderr) == (0, b"")
    came = [inputs / name.replace("$0", item) for item in "123"]
    assert [path.read_text() for path in came] == ["good 1\n", "good 2\n", "good 3\n"]


def test_a_file_that_is_a_result_of_another_item_is_waited_for(lab: Lab, inputs: Path) -> None:
    (inputs / "a").write_text("a")
    (inputs / "b").write_text("old")
    words = ["--on", "h1", "-P2", "--files", "{1}", "--returns", "{2}", *SH, 'echo "$0$(cat "$0")" >"$1"']
    done = lab.run(["xargs", *words, "{1}", "{2}", ":::", "a", "b", ":::+", "b", "c"], cwd=inputs)
    assert done.returncode == 0
    assert done.stderr == b"quine: items wait for each other: b is a file of one and a result of another\n"
    assert [(inputs / name).read_text() for name in "bc"] == ["aa\n", "baa\n"]


@pytest.mark.parametrize(
    ("result", "items", "ran", "came"),
    [
        ("a", ["a", ":::+", "a"], "aa", "new is here\n"),
        ("b", ["b", "a", ":::+", "c", "b"], "ab", "a is here is here\n"),
        ("b", ["b", ":::+", "c"], "ab", "b is here\n"),
    ],
    ids=["its file has changed", "its item is behind", "its item is not there"],
)
def test_an_item_whose_results_did_not_come_holds_up_no_other(
    lab: Lab, inputs: Path, result: str, items: list[str], ran: str, came: str
) -> None:
    """Its names were taken until its item was read: never, or not before an item that waited for them."""
    for name in "ab":
        (inputs / name).write_text(f"{name}\n")
    words = ["--on", "h1", "-P1", "--joblog", "log", "--files", "{1}", "--returns", "{2}", *SH]
    words += ['echo "$0" >>"$2/ran"; echo "$(cat "$0") is here" >"$1"', "{1}", "{2}", str(inputs), ":::"]
    done = lab.run(["xargs", "--returns-limit", "1", *words, "a", ":::+", result], cwd=inputs)
    assert done.returncode == 74
    if result == "a":
        (inputs / "a").write_text("new\n")
    done = lab.run(["xargs", "--resume", *words, *items], cwd=inputs)
    assert (done.returncode, (inputs / "ran").read_text().split()) == (0, [*ran]), done.stderr
    assert (inputs / items[items.index(":::+") + 1]).read_text() == came
