"""quine top: batches, trees and jobs, as text and on a terminal."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.base import procs
from quine.base.cli_options import RunOptions
from quine.cli.top import draw as drawing
from quine.cli.top import look as looking
from quine.cli.top.draw import columns, cut, draw
from quine.cli.top.look import Found, Looker, Tree
from quine.jobs import batch_state
from quine.tape import index
from tests.cli.screen import Screen
from tests.fanout.test_detach import detach as detach_batch
from tests.fanout.test_detach import running
from tests.fanout.test_xargs import SH
from tests.lab import Lab
from tests.support.agents import OK, PATIENCE, Agents, Started, says, sh
from tests.support.detached import detach
from tests.support.detached import go as go
from tests.support.rights import ordinary
from tests.support.sessions import write_sessions
from tests.support.waiting import until

TERM = {"TERM": "xterm"}
WAITS = "touch up$PPID$0; read x <go"


@pytest.fixture
def work(lab: Lab, tmp_path: Path, go: Path) -> Iterator[Path]:
    """The directory of a batch; at the end its jobs go on."""
    yield tmp_path
    free(go)
    until(lambda: not lab.jobs(), "all jobs have ended")


def jobs_up(work: Path, count: int) -> None:
    until(lambda: len(list(work.glob("up*"))) == count, f"{count} jobs run")


def free(go: Path) -> None:
    go.write_text("\n" * 64)


def objects(done: subprocess.CompletedProcess[Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- what is found ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["local", "h1"])
def test_a_batch_is_one_entry_with_its_numbers(lab: Lab, work: Path, go: Path, where: str) -> None:
    words = ["xargs", "-P2", "--on", where, "--cwd", str(work), *SH, WAITS, ":::", *"12345"]
    with lab.popen(words, cwd=work) as process:
        jobs_up(work, 2)
        until(
            lambda: [one for one in objects(lab.run(["top", "--json"])) if one.get("running") == 2], "two run"
        )
        found = objects(lab.run(["top", "--json"]))
        text = lab.run(["top"]).stdout.decode().splitlines()
        free(go)
        assert process.wait(PATIENCE) == 0
    (batch,) = [one for one in found if one.get("pid") == process.pid]
    assert (batch["kind"], batch["running"], batch["done"], batch["agents"]) == ("batch", 2, 0, None)
    assert [(host["host"], host["running"]) for host in batch["hosts"]] == [(where, 2)]
    assert not [one for one in found if one["kind"] in ("job", "proxy") and WAITS in one["mission"]]
    at = next(at for at, line in enumerate(text) if batch["id"][:13] in line)
    assert f"quine xargs -P2 --on {where} --cwd" in text[at] and text[at].endswith(" ::: …")
    assert "2 running" in text[at + 1] and text[at + 2].lstrip().startswith(f"{where}  2")
    assert not [one for one in objects(lab.run(["top", "--json"])) if one.get("pid") == process.pid]


def test_a_batch_with_secrets_is_seen_by_its_user(lab: Lab, work: Path, go: Path) -> None:
    """It is closed to others, as its commands get the secrets: a child without them holds its state."""
    words, quine = ["xargs", "-P2", *SH, WAITS, ":::", *"12"], [*ordinary(), lab.quine]
    env = lab.overlaid({"MY_TOKEN": "t-1234567"})
    with Started([*quine, *words], cwd=work, env=env, stdout=subprocess.PIPE) as batch:
        jobs_up(work, 2)

        def shown() -> list[dict[str, Any]]:
            done = subprocess.run([*quine, "top", "--json"], env=env, capture_output=True, check=True)
            return [row for row in objects(done) if row["kind"] == "batch" and row["running"] == 2]

        (found,) = until(shown, "the batch is shown")
        assert found["pid"] == batch.pid
        assert (batch_state.of_process(batch.pid) or {}).get("pid") == batch.pid
        children = procs.children(batch.pid)
        free(go)
        assert batch.wait(PATIENCE) == 0
    assert not [pid for pid in children if procs.look(pid)]


def test_a_killed_batch_leaves_no_entry(lab: Lab, work: Path) -> None:
    with lab.popen(["xargs", "--cwd", str(work), *SH, WAITS, ":::", "1"], cwd=work) as process:
        jobs_up(work, 1)
        until(
            lambda: [one for one in objects(lab.run(["top", "--json"])) if one.get("running") == 1], "it runs"
        )
        process.kill()
        process.wait(PATIENCE)
    assert not [one for one in objects(lab.run(["top", "--json"])) if one["kind"] == "batch"]


def test_a_detached_batch_and_job(lab: Lab, work: Path, go: Path) -> None:
    job = detach(lab, "--", "sh", "-c", f"read x <{go}; : \x1b[31m")
    batch = detach_batch(lab, work, "-P1", *SH, WAITS, ":::", "1", "2")
    running(lab, batch, 1)
    found = {one["id"]: one for one in objects(lab.run(["top", "--json"]))}
    assert (found[job]["kind"], found[batch]["kind"], found[batch]["detached"]) == ("detached", "batch", True)
    assert found[batch]["command"].startswith("quine xargs --detach -P1 -- sh -c")
    text = lab.run(["top"]).stdout.decode()
    assert "\x1b" not in text and r"\x1b[31m" in text and ", detached  quine xargs" in text
    assert lab.run(["kill", "-STOP", batch]).returncode == 0
    until(lambda: b", detached, stopped  quine" in lab.run(["top"]).stdout, "it is shown as stopped")
    assert lab.run(["kill", "-CONT", batch]).returncode == 0


def test_agents_are_a_tree_with_its_totals(agents: Agents, go: Path) -> None:
    forks = {"children": [{"intent": "first \x1b[2J"}, {"intent": "second"}], "wait": True}
    usage = {"usage": {"input": 1000, "output": 10}}
    agents.script(
        {**says({"name": "fork", "arguments": forks}), "match": "^work", **usage},
        {**says(sh("touch up$PPID; read x <go")), "match": "first|second", **usage},
        says(OK),
    )
    with agents.start("work") as process:
        jobs_up(agents.directory, 2)
        out = agents.quine("top", env={"TERM": "dumb"}, check=True).stdout
        found = objects(agents.quine("top", "--json", check=True))
        free(go)
        assert process.wait(PATIENCE) == 0
    lines = out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.endswith("  work"))
    assert lines[at + 1] == "  3 agents so far, 3030 tokens"
    children = sorted(line.rpartition("    ")[2] for line in lines[at + 2 : at + 4])  # they begin at one time
    assert children == [r"first \x1b[2J", "second"]
    assert "\x1b" not in out
    (tree,) = [one for one in found if one["kind"] == "tree"]
    assert (tree["agents"], tree["tokens"]) == (3, 3030)
    assert tree["id"] in {one["id"] for one in found if one["kind"] == "agent"}


def test_hosts_are_asked_with_on(lab: Lab, work: Path, go: Path) -> None:
    job = detach(lab, "--on", "h1", "--", "sh", "-c", f"read x <{go}")
    script = f"cd {work}; exec quine xargs -P1 -- sh -c '{WAITS}' ::: 1 2"
    with lab.popen(["run", "--on", "h1", "--", "sh", "-c", script]):
        jobs_up(work, 1)
        batches: list[dict[str, Any]] = []

        def shown() -> bool:
            found = objects(lab.run(["top", "--json", "--on", "h1"], check=True))
            batches[:] = [one for one in found if one["kind"] == "batch" and one["host"] == "h1"]
            return job in {one["id"] for one in found} and bool(batches) and batches[0]["running"] > 0

        until(shown, "the job and the batch of the host are listed")
        assert job not in {one["id"] for one in objects(lab.run(["top", "--json"], check=True))}
        free(go)


def test_sessions_that_are_over_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = write_sessions(tmp_path, 60, lives=3)
    for session in ids[30:]:
        path = tmp_path / f"{session}.jsonl"
        path.write_text("".join(path.read_text().splitlines(True)[:-1]))  # without an end: they were killed
    read: list[str] = []
    ends = index.ends
    monkeypatch.setattr(index, "ends", lambda path: read.append(path) or ends(path))
    looker = Looker((str(tmp_path),), RunOptions())
    looker.look()
    assert len(read) >= 60
    read.clear()
    looker.look()
    assert not [path for path in read if path.startswith(str(tmp_path))]
    (new,) = write_sessions(tmp_path, 1)
    looker.look()
    assert [path for path in read if path.startswith(str(tmp_path))] == [str(tmp_path / f"{new}.jsonl")]


def test_what_is_refused(lab: Lab) -> None:
    for words, error in (
        (["x"], "top takes no such word: x"),
        (["-n", "0"], "--iterations 0: should be a whole number, 1 or more"),
        (["-d", "x"], "--delay x: should be a number of seconds"),
    ):
        done = lab.run(["top", *words])
        assert (done.returncode, done.stdout) == (2, b""), words
        assert done.stderr.decode().startswith(f"quine: error: {error}")


def test_text_as_often_as_is_asked(lab: Lab) -> None:
    done = lab.run(["top", "-b", "-n", "3", "-d", "0.1"], check=True)
    assert sum(line.startswith(b"quine top, ") for line in done.stdout.splitlines()) == 3


# -- on a terminal ---------------------------------------------------------------------------------


def test_it_fills_the_terminal_and_leaves_it_as_it_was(lab: Lab, go: Path) -> None:
    detach(lab, "--", "sh", "-c", f"read x <{go}; : {'x' * 300}")
    with Screen(rows=10, columns=80) as screen:
        process = screen.start(lab, ["top"], env=TERM)
        screen.wait(b"\x1b[?1049h\x1b[?7l\x1b[?25l\x1b[Hquine top, ")
        lines = screen.wait(b"\x1b[J").decode().split("\x1b[K\r\n")
        assert len(lines) <= 10 and all(len(line.removesuffix("\x1b[K")) <= 80 for line in lines)
        assert not any(" PID " in line for line in lines)
        screen.resize(10, 200)
        process.send_signal(signal.SIGWINCH)
        screen.wait(b" PID ")
        lines = screen.wait(b"\x1b[J").decode().split("\x1b[K\r\n")
        assert max(len(line.removesuffix("\x1b[K")) for line in lines) == 200
        assert screen.settings != screen.found
        screen.type(b"q")
        assert process.wait(PATIENCE) == 0
        screen.wait(b"\x1b[?25h\x1b[?7h\x1b[?1049l")
        assert screen.settings == screen.found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_and_the_terminal_is_as_it_was(lab: Lab, number: int) -> None:
    with Screen() as screen:
        process = screen.start(lab, ["top"], env=TERM)
        screen.wait(b"quine top, ")
        if number == signal.SIGINT:
            screen.type(b"\x03")
        else:
            process.send_signal(number)
        assert process.wait(PATIENCE) == -number
        screen.wait(b"\x1b[?1049l")
        assert screen.settings == screen.found


def test_it_is_stopped_and_goes_on(lab: Lab) -> None:
    with Screen() as screen:
        shell = screen.shell(lab)
        screen.wait(b"$ ")
        screen.type(b"TERM=xterm quine top\n")
        screen.wait(b"\x1b[?1049h")
        screen.wait(b"quine top, ")
        screen.type(b"\x1a")
        screen.wait(b"\x1b[?1049l")
        screen.wait(b"Stopped")
        screen.wait(b"$ ")  # else the shell's prompt may come between the echo and the output
        screen.type(b"stty -a | grep -o '[-]*icanon'; fg\n")
        screen.wait(b"\nicanon")
        screen.wait(b"\x1b[?1049h")
        screen.wait(b"quine top, ")
        screen.type(b"q")
        screen.wait(b"\x1b[?1049l")
        screen.wait(b"$ ")
        screen.type(b"exit\n")
        assert shell.wait(PATIENCE) == 0


def test_hosts_are_asked_beside_the_keys(lab: Lab, go: Path) -> None:
    job = detach(lab, "--on", "h1", "--", "sh", "-c", f"read x <{go}")
    near = detach(lab, "--", "sh", "-c", f"read x <{go}")
    with Screen(columns=200) as screen:
        process = screen.start(lab, ["top", "--on", "h1"], env=TERM)
        screen.wait(near[:13].encode() + b"  local ")
        screen.wait(b"asking the hosts")
        screen.wait(job[:13].encode() + b"  h1 ")
        screen.type(b"q")
        assert process.wait(PATIENCE) == 0


def test_a_silent_host_is_told_of(lab: Lab, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.toml"
    inventory.write_text('[hosts.gone]\ntransport = "command"\ncommand = ["false"]\n')
    done = lab.run(["top", "--on", "gone", "--inventory", str(inventory)])
    assert done.returncode == 69 and done.stdout.startswith(b"quine top, ") and b"gone" in done.stderr


# -- as text ---------------------------------------------------------------------------------------


def row(number: int, **more: Any) -> dict[str, Any]:
    """A row as of `quine ps --json`."""
    id = f"01a20150-{number:04}-7bab-bc94-25f5d212af43"
    plain = {
        "id": id,
        "session": id,
        "kind": "agent",
        "pid": 7,
        "host": "local",
        "state": "running",
        "seconds": 5.0,
    }
    none = {
        "turns": 1,
        "cost": None,
        "doing": "inference",
        "down": 0,
        "mission": "m",
        "parent": "",
        "root": id,
    }
    return {**plain, **none, **more}


def test_wide_characters_are_cut_by_their_columns() -> None:
    assert [columns(text) for text in ("abc", "漢字", "é", "e\u0301")] == [3, 4, 1, 1]
    assert [cut("漢字x", width) for width in (0, 1, 2, 3, 4, 5)] == ["", "", "漢", "漢", "漢字", "漢字x"]


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 24])
def test_it_never_is_larger_than_the_terminal(width: int, height: int) -> None:
    state = {**looking.batch_state.parsed(b"{}"), "id": "01a20150", "command": "漢" * 300}  # type: ignore[dict-item]
    state["hosts"] = [
        {**looking.batch_state.parsed(b'{"hosts":[{}]}')["hosts"][0], "host": f"h{n}"} for n in range(9)
    ]  # type: ignore[index]
    rows = [row(n, mission="字" * 100) for n in range(40)]
    lines = draw(Found([state] * 4, rows, {}, []), "12:00:00", width, height, ("a note",))
    assert len(lines) <= height and all(columns(line) <= width for line in lines)
    if height == 24:
        assert any(line.startswith("and ") and "more jobs"[:width] in line for line in lines)


def test_children_are_below_their_parents_whatever_is_told() -> None:
    a, b, c = row(1), row(3, root=row(1)["id"], parent=row(1)["id"], mission="child"), row(2)
    circle = [row(8, parent=row(9)["id"]), row(9, parent=row(8)["id"])]
    trees = {a["id"]: Tree(a["id"], 2, 120, 0.5)}
    lines = draw(Found([], [a, c, b, *circle], trees, []), "12:00:00", 80, 24)
    assert [line[9:13] for line in lines[3:] if line[0] != " "] == ["0001", "0003", "0002", "0008", "0009"]
    assert lines[4] == "  2 agents so far, 120 tokens, $0.50" and lines[5].endswith("    child")


def test_ids_are_longer_where_their_beginnings_are_alike() -> None:
    two = [row(1), {**row(1), "id": "01a20150-0001-7bac-bc94-25f5d212af43"}]
    assert drawing.draw(Found([], two, {}, []), "", None, None)[3].startswith("01a20150-0001-7bab ")
