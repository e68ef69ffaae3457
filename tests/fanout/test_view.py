"""The view of a batch on a terminal, its lines elsewhere, and the numbers in them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.fanout.outcome import Tally
from quine.fanout.progress import Progress
from quine.fanout.view import View
from quine.jobs.batch_state import duration, number
from tests.cli.screen import Screen
from tests.lab import Lab
from tests.support.agents import OK, PATIENCE, says
from tests.support.waiting import read_until, until

SH = ["--", "sh", "-c"]


class Terminal:
    """As much of a terminal as the view uses: lines, carriage return, erasing below, moving up."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0
        self.shown: list[list[str]] = []  # the lines after each movement up

    def feed(self, data: bytes) -> None:
        for part in re.findall(r"\x1b\[\d*[A-Z]|[\r\n]|[^\r\n\x1b]+", data.decode()):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part == "\x1b[J":
                self.lines[self.row] = self.lines[self.row][: self.column]
                del self.lines[self.row + 1 :]
            elif part.endswith("A"):
                self.shown.append(list(self.lines))
                self.row -= int(part[2:-1])
            else:
                assert not part.startswith("\x1b"), part
                line = self.lines[self.row]
                self.lines[self.row] = line[: self.column] + part + line[self.column + len(part) :]
                self.column += len(part)


def test_on_a_terminal_the_view_is_below_the_output_and_is_gone_at_the_end(lab: Lab, tmp_path: Path) -> None:
    script = 'echo "out $0"; until test -e "$0"; do sleep 0.01; done; printf "more $0"; test "$0" != 2'
    with Screen(columns=80) as screen:
        words = ["xargs", "-P2", "-k", *SH, script, ":::", "1", "2", "3"]
        process = screen.start(lab, words, cwd=tmp_path, env={"TERM": "xterm"})
        screen.wait(b"0 of 3: 0 done, 2 running, 0.0/s\r\nlocal  2 running  0.0/s  load ")
        (tmp_path / "1").touch()
        screen.wait(b"1 of 3: 1 done, 2 running, ")
        (tmp_path / "2").touch()
        (tmp_path / "3").touch()
        assert process.wait(PATIENCE) == 123
        screen.wait(b"1 failed\r\n")
        seen = screen.seen
    terminal = Terminal()
    terminal.feed(seen)
    text = "".join(line + "\n" for line in terminal.lines)
    ends = "more 1out 2\nmore 2out 3\nmore 3"
    assert text.replace("more 1\n", "more 1").replace("more 2\n", "more 2").startswith(f"out 1\n{ends}")
    last = ["quine: error: 1 of 3 items are not done: 1 failed", "quine: hint: item 2 (2): status 1", ""]
    assert terminal.lines[-3:] == last
    for lines in terminal.shown:
        assert " running, " in lines[-2] and lines[-1].startswith("local ")
        assert not any(" running, " in line for line in lines[:-2]), "no view is left above"


def test_a_list_that_comes_by_a_pipe_is_counted_as_far_as_it_has_come(lab: Lab, tmp_path: Path) -> None:
    """Its end is known long before its last item is started."""
    read, write = os.pipe()
    with Screen(columns=80) as screen, open(write, "wb", 0) as lines:
        words = ["xargs", "-P1", *SH, 'until test -e "$0"; do sleep 0.01; done']
        process = screen.start(lab, words, stdin=read, cwd=tmp_path, env={"TERM": "xterm"})
        os.close(read)
        lines.write(b"1\n2\n3\n")
        screen.wait(b"0 done, 1 running, 0.0/s")
        lines.write(b"4\n5\n")
        lines.close()
        screen.wait(b"0 of 5: 0 done, 1 running, ")
        process.send_signal(signal.SIGINT)
        screen.wait(b"waiting for 1 jobs; ^C again ends them")
        (tmp_path / "1").touch()
        assert process.wait(PATIENCE) == -signal.SIGINT
        screen.wait(b"4 of 5 items were not started")


def test_on_a_terminal_messages_are_above_the_view_too(lab: Lab, tmp_path: Path) -> None:
    with Screen() as screen:
        script = "until test -e go; do sleep 0.01; done"
        process = screen.start(lab, ["xargs", *SH, script, ":::", "1"], cwd=tmp_path, env={"TERM": "xterm"})
        screen.wait(b"1 running")
        process.send_signal(signal.SIGINT)
        screen.wait(b"\r\x1b[Jquine: waiting for 1 jobs; ^C again ends them\r\n")
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE) == -signal.SIGINT


def test_a_host_whose_link_is_down_tells_how_long_its_jobs_have(
    lab: Lab, tmp_path: Path, through: Callable[..., str]
) -> None:
    """A batch with a dead host stood at "4 running 0.0/s"."""
    name, proxy = through("h1", lease=500), lab["h1"].proxy
    with Screen(columns=100) as screen:
        words = ["xargs", "--on", name, *SH, f"until test -e {tmp_path}/go; do sleep 0.01; done", ":::", "1"]
        process = screen.start(lab, words, cwd=tmp_path, env={"TERM": "xterm"})
        screen.wait(b"  1 running  0.0/s  load ")
        proxy.refuse()
        proxy.cut()
        screen.wait(b"  1 running  0.0/s  link down, 8:")
        proxy.heal()
        screen.wait(b"  1 running  0.0/s  load ")
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE) == 0


def test_it_is_stopped_and_goes_on(lab: Lab, tmp_path: Path) -> None:
    """The terminal is clean while the shell has it, and the view is back afterwards."""
    with Screen() as screen:
        shell = screen.shell(lab)
        screen.wait(b"$ ")
        script = f"until test -e {tmp_path}/go; do sleep 0.01; done; echo over"
        screen.type(f"TERM=xterm quine xargs -- sh -c '{script}' ::: 1\n".encode())
        screen.wait(b" 1 running, 0.0/s\r\n")
        screen.type(b"\x1a")
        screen.wait(b"\r\x1b[J")
        assert b"running" not in screen.wait(b"Stopped")
        screen.wait(b"$ ")
        screen.type(b"fg\n")
        screen.wait(b" 1 running, 0.0/s\r\n")
        (tmp_path / "go").touch()
        screen.wait(b"\r\x1b[J")
        screen.wait(b"over\r\n")
        screen.wait(b"$ ")
        screen.type(b"exit\n")
        assert shell.wait(PATIENCE) == 0


def test_it_says_that_it_waits_for_its_reader(lab: Lab, tmp_path: Path) -> None:
    """The consumer of stdout does not read, and no job runs."""
    with Screen(columns=120) as screen:
        read, write = os.pipe()
        words = ["xargs", "-P1", *SH, "head -c 1000000 /dev/zero", ":::", *map(str, range(20))]
        process = screen.start(lab, words, cwd=tmp_path, env={"TERM": "xterm"}, stdout=write)
        os.close(write)
        try:
            screen.wait(b"waiting for the reader of its output")
        finally:
            os.close(read)
        assert process.wait(PATIENCE) == -signal.SIGPIPE


def test_it_says_that_it_waits_for_a_slot(lab: Lab, tmp_path: Path) -> None:
    lab.alias("busy", "h1", slots=1)
    wait = f"touch {tmp_path}/up; until test -e {tmp_path}/go; do sleep 0.01; done"
    with lab.popen(["run", "--on", "busy", "--", "sh", "-c", wait]) as other, Screen(columns=120) as screen:
        until(lambda: (tmp_path / "up").exists(), "the slot is taken")
        words = ["xargs", "--on", "busy", "--", "true", ":::", "1"]
        process = screen.start(lab, words, env={"TERM": "xterm"})
        screen.wait(b"0 running, 0.0/s, waiting for a free slot")
        (tmp_path / "go").touch()
        assert (process.wait(PATIENCE), other.wait(PATIENCE)) == (0, 0)


@pytest.mark.parametrize("given", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_that_cannot_move_has_no_view(lab: Lab, tmp_path: Path, given: dict[str, str]) -> None:
    with Screen() as screen:
        words = ["xargs", *SH, "echo out; until test -e go; do sleep 0.01; done", ":::", "1"]
        process = screen.start(lab, words, cwd=tmp_path, env=given)
        until(lambda: lab.jobs(), "the job runs")
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE) == 0
        screen.wait(b"out\r\n")
        assert b"\x1b" not in screen.seen


def test_a_signal_prints_the_state_with_its_hosts(lab: Lab, tmp_path: Path) -> None:
    script = "echo up; until test -e go; do sleep 0.01; done"
    words = ["xargs", "--on", "h1", "--line-buffer", *SH, script, ":::", "1", "2"]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout and process.stderr
        read_until(process.stdout.fileno(), b"up\nup\n")
        process.send_signal(signal.SIGUSR1)
        said = read_until(process.stderr.fileno(), b"0 failed\n").decode().splitlines()
        (tmp_path / "go").touch()
        process.terminate()
        process.wait(PATIENCE)
    assert said[0].startswith("quine: 0 of 2: 0 done, 2 running, ")
    assert re.fullmatch(r"quine: h1  2(/\d+ slots| running)  0\.0/s  load -  0 failed", said[1])


def test_tokens_and_cost_of_agents(lab: Lab, tmp_path: Path) -> None:
    env = {**lab.script([{**says(OK), "usage": {"input": 1200, "output": 60}}], "view.jsonl")}
    words = ["xargs", "--report", "r", "say {}", ":::", "a", "b"]
    done = lab.run(words, env={**env, "QUINE_DATA_DIR": str(tmp_path / "data")}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"agents":2,"tokens":2520,"cost":0.0' in (tmp_path / "r").read_text()


# -- numbers ---------------------------------------------------------------------------------------


class Quiet:
    """Streams without a terminal."""

    terminal = painted = False

    def __init__(self) -> None:
        self.text = b""

    def tell(self, text: bytes) -> None:
        self.text += text


def view_of(lab: Lab, streams: Quiet, total: int | None = 1000) -> View:
    from quine.fanout.options import parse

    class Counted:
        pass

    options, _, _ = parse(["--on", "any"])
    Counted.total = total  # type: ignore[attr-defined]
    return View(streams, Progress(Tally(), 0.0), Counted(), options, None, 0.0, {})  # type: ignore[arg-type]


def run_some(view: View, hosts: int, each: int) -> None:
    for host in range(hosts):
        for at in range(each):
            view.progress.started(f"host{host}", at)
            view.progress.stopped(f"host{host}")
            view.progress.ended(f"host{host}", "failed" if at == 0 else "done", at, at + 2.0)
            view.progress.tally.add("failed" if at == 0 else "done")
            view.progress.final(at + 2.0)
    view.progress.read, view.progress.under_way = hosts * each + 4, 4
    for _ in range(4):
        view.progress.started("host0", 9.0)


def test_agents_that_wait_for_their_provider(lab: Lab) -> None:
    """A batch whose provider had no quota left said "8 running, 0.0/s", and nothing of the reason."""
    streams = Quiet()
    view = view_of(lab, streams)
    view.provider = lambda: ("4 wait for the provider, 30 s", "")
    assert ", 0 running, 4 wait for the provider, 30 s, 0.0/s" in view.line(1.0)
    view.tick(1.0)
    assert not streams.text
    view.provider = lambda: ("4 wait for the quota of the provider", "buy\x1b more")
    for now in (2.0, 3.0, 4.0):
        view.tick(now)
    view.close()
    told, hint = streams.text.decode().splitlines()
    assert told.startswith("quine: note: the quota of the provider is used up, and the batch waits: buy")
    assert "\x1b" not in told and "--resume" in hint


def test_a_line_every_half_a_minute(lab: Lab) -> None:
    streams = Quiet()
    view = view_of(lab, streams)
    run_some(view, 2, 8)
    for now in range(61):
        view.tick(float(now))
    view.close()
    first, second = streams.text.decode().splitlines()
    assert first == "quine: 16 of 1000: 14 done, 2 failed, 4 running, 0.0/s, ETA 8:12"
    assert second.startswith("quine: 16 of 1000: ")


# Lines follow each other at once, so one is due before any job has ended.
PROGRESS = """
import sys
from quine.fanout import view
view.LINE = 0.0001
from quine.__main__ import main
sys.argv[1:] = ["xargs", "-P1", "--joblog", "log", "--", "echo", ":::", "a", "b"]
sys.exit(main())
"""


@pytest.mark.parametrize("closed", ["/dev/full", ""])
def test_a_line_that_cannot_be_written_ends_no_batch(lab: Lab, tmp_path: Path, closed: str) -> None:
    def close() -> None:
        os.dup2(os.open(closed, os.O_WRONLY), 2) if closed else os.close(2)

    words = [sys.executable, "-c", PROGRESS]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, env=lab.env, cwd=tmp_path, preexec_fn=close, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (0, b"a\nb\n")


def test_an_input_whose_end_is_not_known_has_no_eta(lab: Lab) -> None:
    view = view_of(lab, Quiet(), None)
    run_some(view, 1, 8)
    assert view.line(10.0) == "7 done, 1 failed, 4 running, 0.9/s"


def test_hosts_keep_the_places_that_they_have_in_the_inventory(lab: Lab) -> None:
    view = view_of(lab, Quiet())
    for name in ("gone", "h3", "h1", "h2"):
        view.progress.started(name, 1.0)
    view.loads._known = ["h1", "h2", "h3"]
    assert [line.split()[0] for line in view.lines(10.0, 79, 24)[1:]] == ["h1", "h2", "h3", "gone"]


@pytest.mark.parametrize(("columns", "beside"), [(80, 1), (200, 4)])
def test_hosts_stand_beside_each_other_where_there_is_room(lab: Lab, columns: int, beside: int) -> None:
    view = view_of(lab, Quiet())
    run_some(view, 12, 8)
    for state in view.progress.hosts.values():
        state.load, state.slots = 1.5, 8
    lines = view.lines(10.0, columns - 1, 24)
    assert len(lines) == 1 + -(-12 // beside) and all(len(line) < columns for line in lines)
    assert "host0   4/8 slots  0.9/s  load 1.50  1 failed" in lines[1]
    few = view.lines(10.0, columns - 1, 3)
    assert len(few) == 3 and few[-1] == f"and {12 - beside} more hosts"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1:01"), (3723, "1:02:03"), (360000, "100:00:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers() -> None:
    assert [number(value) for value in (0, 1.26, 99.94, 99.96, 12345.6)] == [
        "0.0",
        "1.3",
        "99.9",
        "100",
        "12346",
    ]
