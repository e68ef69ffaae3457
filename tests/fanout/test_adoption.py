"""Batches that are killed, with their nodes or without: the next `quine xargs` takes their jobs over."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.base.sessions import new_session
from quine.jobs import owner
from tests.fanout.test_chaos import age
from tests.fanout.test_xargs import SH, rows
from tests.lab import Lab
from tests.lab.processes import kill, marked
from tests.support.agents import PATIENCE
from tests.support.machine import only_node
from tests.support.waiting import read_until, until

# Each execution is a line. Items from 3 on wait for a file, with output before and after.
SCRIPT = (
    'echo "$0" >>"$1"; echo "a$0"; test "$0" -lt 3 || until test -e "$2"; do sleep 0.02; done; echo "b$0"'
)


class Killed:
    """A batch of 8 items that was killed when 3 had their ends and 2 were running."""

    def __init__(
        self,
        lab: Lab,
        tmp_path: Path,
        *options: str,
        script: str = SCRIPT,
        kept: bool = False,
        tree: str = "",
    ) -> None:
        """`kept`: it has some output of a running job when it is killed. `tree`: it is of that of an agent."""
        self.lab, self.path, self.env = lab, tmp_path, {"QUINE_ROOT_SESSION": tree}
        self.words = ["xargs", "-P2", "--joblog", "log", *options]
        self.items = [
            *SH,
            script,
            "{}",
            str(tmp_path / "ran"),
            str(tmp_path / "go"),
            ":::",
            *map(str, range(8)),
        ]
        shown = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe would hold up the batch
        words = [*self.words, *self.items]
        with shown, lab.popen(words, stdout=shown, cwd=tmp_path, env=self.env) as process:
            until(lambda: len(self.ran()) == 5, "5 items have begun")
            until(lambda: len(rows(tmp_path / "log")) == 3, "three lines in the log")
            if kept:
                until(lambda: [*tmp_path.glob("log.outputs/*")], "there is a file of its output")
            process.kill()
            process.wait(PATIENCE)
            shown.seek(0)
            self.shown = shown.read()

    def ran(self) -> list[str]:
        path = self.path / "ran"
        return sorted(path.read_text().split()) if path.exists() else []

    def go(self) -> None:
        (self.path / "go").touch()

    def resume(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        return self.lab.run([*self.words, "--resume", *options, *self.items], cwd=self.path, env=self.env)

    def states(self) -> list[str]:
        return [row[12] for row in rows(self.path / "log")]


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest) -> None:
    """A lease that outlasts the start of the next batch on a busy machine."""
    if "lab" in request.fixturenames:
        lab = request.getfixturevalue("lab")
        for name in ("h1", "h2"):
            lab.alias(name, name, lease=60)


def test_a_killed_batch_is_not_begun_anew_in_silence(lab: Lab, tmp_path: Path) -> None:
    """Without --resume its jobs went on, and their items ran twice."""
    killed = Killed(lab, tmp_path)
    for options in ([], ["--detach"]):
        again = lab.run([*killed.words, *options, *killed.items], cwd=tmp_path)
        log = tmp_path / "log"
        assert (again.returncode, again.stdout, again.stderr.decode().splitlines()) == (
            2,
            b"",
            [
                f"quine: error: {log}: 2 jobs of the batch before may still run, or have results that did not come",
                f"quine: hint: --resume goes on with them; without {log}.started they are forgotten, and "
                "their items run again",
            ],
        )
    killed.go()
    assert killed.resume().returncode == 0
    assert killed.ran() == [*"01234567"], "each ran once"
    assert lab.run([*killed.words, "-P4", *killed.items], cwd=tmp_path).returncode == 0, (
        "one that is over is begun anew"
    )


def lines(items: str) -> list[str]:
    return sorted(letter + item for letter in "ab" for item in items)


@pytest.mark.parametrize("where", ["local", "h1,h2"])
def test_after_a_kill_the_jobs_that_run_are_taken_over(lab: Lab, tmp_path: Path, where: str) -> None:
    batch = Killed(lab, tmp_path, "--on", where)
    batch.go()
    done = batch.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.decode().split()) == lines("34567")
    assert batch.ran() == [*"01234567"] and batch.states() == ["done"] * 8
    assert sorted(os.listdir(tmp_path)) == ["go", "log", "ran"]


def test_by_lines_no_line_is_missing(lab: Lab, tmp_path: Path) -> None:
    batch = Killed(lab, tmp_path, "--on", "h1,h2", "--line-buffer")
    batch.go()
    done = batch.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    assert set((batch.shown + done.stdout).decode().split()) == set(lines("01234567"))
    assert batch.ran() == [*"01234567"] and batch.states() == ["done"] * 8


def test_by_lines_the_files_of_results_have_each_line_once(lab: Lab, tmp_path: Path) -> None:
    batch = Killed(lab, tmp_path, "--on", "h1,h2", "--line-buffer", "--results", "out")
    batch.go()
    done = batch.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    for item in range(8):
        assert (tmp_path / "out/1" / str(item) / "stdout").read_text() == f"a{item}\nb{item}\n"


def test_a_link_in_the_way_of_results_loses_no_job_that_runs(lab: Lab, tmp_path: Path) -> None:
    """Their user has moved the results to another disk. Those that come stay on their host till the link is gone.

    In the tree of an agent the batch has a directory of its own there, which those who go on with it know.
    """
    script, tree = f'{SCRIPT}; mkdir -p out; echo whole >"out/$0"', new_session()
    batch = Killed(lab, tmp_path, "--on", "h1", "--returns", "out/{}", script=script, tree=tree)
    (tmp_path / "out").rename(tmp_path / "disk")
    (tmp_path / "out").symlink_to("disk")
    batch.go()
    assert batch.resume().returncode == 74
    assert sorted(batch.states()) == ["done"] * 3 + ["never-started"] * 3 + ["unreturned"] * 2
    assert batch.ran() == [*"01234"]
    (tmp_path / "out").unlink()
    (tmp_path / "disk").rename(tmp_path / "out")
    done = batch.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    assert batch.ran() == [*"01234567"] and batch.states() == ["done"] * 8
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == dict.fromkeys(
        "01234567", "whole\n"
    )
    assert not (lab["h1"].home / "quine" / tree).exists()


def test_what_has_ended_meanwhile_is_taken_over_too(lab: Lab, tmp_path: Path) -> None:
    batch = Killed(lab, tmp_path, "--on", "h1")
    batch.go()
    until(lambda: not [job for job in lab["h1"].jobs() if "echo" in str(job)], "the jobs have ended")
    done = batch.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.decode().split()) == lines("34567")
    assert batch.ran() == [*"01234567"]


@pytest.mark.parametrize("where", ["local", "h1,h2"])
def test_with_the_node_of_this_machine_its_own_jobs_are_lost_and_no_others(
    lab: Lab, tmp_path: Path, where: str
) -> None:
    batch = Killed(lab, tmp_path, "--on", where)
    kill(only_node(lab).pid)
    if where == "local":
        until(lambda: not lab.jobs(), "the jobs are ended")
    batch.go()
    done = batch.resume()
    if where == "local":
        assert (done.returncode, batch.states()) == (74, ["done"] * 3 + ["lost"] * 2 + ["done"] * 3)
        for item in (4, 5):
            assert b"item %d: it was sent before the batch ended, and no host has it" % item in done.stderr
    else:
        assert (done.returncode, done.stderr, batch.states()) == (0, b"", ["done"] * 8)
        assert sorted(done.stdout.decode().split()) == lines("34567")
    assert batch.ran() == [*"01234567"]


def test_with_the_node_of_a_host_its_jobs_are_lost_or_repeated(lab: Lab, tmp_path: Path) -> None:
    batch = Killed(lab, tmp_path, "--on", "h1")
    lab["h1"].kill_processes()
    until(lambda: not lab["h1"].jobs(), "the jobs are ended")
    batch.go()
    done = batch.resume("--idempotent")
    assert (done.returncode, done.stderr, batch.states()) == (0, b"", ["done"] * 8)
    assert batch.ran() == sorted("0123456734")


def test_a_batch_survives_the_node_of_its_machine(lab: Lab, tmp_path: Path) -> None:
    words = ["xargs", "-P2", "--joblog", "log", "--on", "h1,h2"]
    items = [*SH, SCRIPT, "{}", str(tmp_path / "ran"), str(tmp_path / "go"), ":::", *map(str, range(8))]
    with lab.popen([*words, *items], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        until(
            lambda: (tmp_path / "ran").exists() and len((tmp_path / "ran").read_text()) == 10, "5 have begun"
        )
        kill(only_node(lab).pid)
        (tmp_path / "go").touch()
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, b"")
    assert sorted(out.decode().split()) == lines("01234567")
    assert sorted((tmp_path / "ran").read_text().split()) == [*"01234567"]


def test_a_large_output_and_the_rest_of_the_input_are_taken_over(lab: Lab, tmp_path: Path) -> None:
    """More than a window, with the reader of stdin in the middle of it."""
    (tmp_path / "in").write_bytes(os.urandom(1 << 20))
    script = (
        'echo "$0" >>"$1"; head -c 600000; test "$0" -lt 3 || until test -e "$2"; do sleep 0.02; done; cat'
    )
    options = ("--stdin", str(tmp_path / "in"), "--on", "h1", "--results", "out")
    batch = Killed(lab, tmp_path, *options, script=script, kept=True)
    batch.go()
    done = batch.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    whole = (tmp_path / "in").read_bytes()
    assert done.stdout == whole * 5
    for item in range(8):
        assert (tmp_path / "out/1" / str(item) / "stdout").read_bytes() == whole
    assert batch.ran() == [*"01234567"]
    assert not (tmp_path / "log.outputs").exists()


def test_one_batch_at_a_time_has_a_log(lab: Lab, tmp_path: Path) -> None:
    """And none has a copy of it as long as that batch runs."""
    batch = Killed(lab, tmp_path, "--on", "h1")
    words = [*batch.words, "--resume", *batch.items]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        until(lambda: (tmp_path / "log.started").read_text().split()[3] == "2", "it has the log")
        done = lab.run(words, cwd=tmp_path)
        assert done.returncode == 2 and b"log is in use by another batch\n" in done.stderr
        for name in ("log", "log.started"):
            shutil.copy(tmp_path / name, tmp_path / name.replace("log", "copy"))
        copied = ["copy" if word == "log" else word for word in words]
        done = lab.run(copied, cwd=tmp_path)
        assert (
            done.returncode == 2
            and b"copy is in use by another batch, or is a copy of its log" in done.stderr
        )
        batch.go()
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, b"") and sorted(out.decode().split()) == lines("34567")
    assert batch.ran() == [*"01234567"]


def test_another_list_in_another_order(lab: Lab, tmp_path: Path) -> None:
    """4 is not in it any more, and 3 is in it twice."""
    batch = Killed(lab, tmp_path, "--on", "h1")
    batch.go()
    batch.items[batch.items.index(":::") + 1 :] = [*"9310738"]
    done = batch.resume()
    assert done.returncode == 0 and done.stderr.count(b"\n") == 1
    assert b"jobs of the run before go on, whose items are not among these" in done.stderr
    assert sorted(done.stdout.decode().split()) == sorted([*lines("3789"), "a3", "b3"])
    assert batch.ran() == sorted("012343789")
    batch.items[batch.items.index(":::") + 1 :] = ["4"]
    done = batch.resume()
    assert (done.returncode, done.stdout) == (0, b"a4\nb4\n"), "it had its end all the same"
    assert batch.ran() == sorted("012343789")


def test_other_hosts(lab: Lab, tmp_path: Path) -> None:
    """The batch goes on elsewhere; the hosts of before are asked all the same, also where nothing is known to run."""
    batch = Killed(lab, tmp_path, "--on", "h1")
    batch.words[batch.words.index("h1")] = "h2"
    journal = tmp_path / "log.started"
    whole = journal.read_text()
    assert "host h1 " in whole and "where h1\n" in whole
    journal.write_text("".join(line for line in whole.splitlines(True) if not line.startswith("host h1")))
    batch.go()
    done = batch.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.decode().split()) == lines("34567")
    assert batch.ran() == [*"01234567"]
    assert {row[9] for row in rows(tmp_path / "log")} == {"h1", "h2"}


def moved(journal: Path, **fields: object) -> None:
    """Let a journal have been written by another process, or on another machine."""
    head, _, rest = journal.read_text().partition("\n")
    *words, word, tree, folder = head.split(" ")
    was = owner.parsed(word)._replace(**fields)
    journal.write_text(" ".join([*words, was.word, tree, folder]) + "\n" + rest)


def test_a_log_of_another_machine_is_resumed_only_by_an_option(lab: Lab, tmp_path: Path) -> None:
    """Another machine, or another container of this one: whether its batch runs cannot be known."""
    batch = Killed(lab, tmp_path, "--on", "h1,h2")
    batch.go()
    log, journal = tmp_path / "log", tmp_path / "log.started"
    own = journal.read_text()
    for fields in ({"boot": "b", "machine": "m"}, {"space": "pid:[1]"}):
        journal.write_text(own)
        moved(journal, node="far", **fields)
        before = log.read_text(), journal.read_text()
        done = batch.resume()
        assert done.returncode == 2 and done.stdout == b"", fields
        assert done.stderr.decode() == (
            f"quine: error: {os.path.realpath(log)} is the log of a batch on far, which may still run there\n"
            "quine: hint: resume it there; or, if it has ended for certain, here with --resume-elsewhere\n"
        )
        assert before == (log.read_text(), journal.read_text())
    done = batch.resume("--resume-elsewhere")
    assert (done.returncode, done.stderr, batch.states()) == (0, b"", ["done"] * 8)
    assert batch.ran() == [*"01234567"]


def test_what_ran_on_the_other_machine_itself_is_lost(lab: Lab, tmp_path: Path) -> None:
    """The node here has known of all its jobs for long, and says nothing about those of another one."""
    until(lambda: age(lab, "local") > 1, "the node knows of all since before the batch")
    batch = Killed(lab, tmp_path, "--on", "local")
    batch.go()
    journal = tmp_path / "log.started"
    other = journal.read_text().splitlines()
    for number, line in enumerate(other):
        if len(words := line.split()) == 4 and number:
            other[number] = " ".join(["f" * 32 + words[0][32:] + str(number), *words[1:]])
    journal.write_text("\n".join(other) + "\n")
    moved(journal, space="pid:[1]")
    done = batch.resume("--resume-elsewhere")
    assert (done.returncode, batch.states().count("lost")) == (74, 2)
    assert len(batch.ran()) == 8


def test_after_a_boot_of_this_machine_no_option_is_needed(lab: Lab, tmp_path: Path) -> None:
    """Nor where a WHERE of before means no host any more."""
    batch = Killed(lab, tmp_path, "--on", "h1")
    moved(tmp_path / "log.started", boot="before")
    with (tmp_path / "log.started").open("a") as journal:
        journal.write("where @gone\n")
    batch.go()
    done = batch.resume()
    assert (done.returncode, done.stderr) == (0, b"")
    assert batch.ran() == [*"01234567"] and batch.states() == ["done"] * 8


def test_a_dry_run_shows_what_is_left(lab: Lab, tmp_path: Path) -> None:
    """Not what has its end, nor what is looked for first; and it leaves the log as it is."""
    batch = Killed(lab, tmp_path, "--on", "h1")
    before = (tmp_path / "log").read_text(), (tmp_path / "log.started").read_text()
    done = batch.resume("--dry-run")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [shlex.split(line)[3] for line in done.stdout.decode().splitlines()] == [*"567"]
    assert before == ((tmp_path / "log").read_text(), (tmp_path / "log.started").read_text())
    batch.go()
    assert batch.resume().returncode == 0
    assert batch.resume("--dry-run").stdout == b""
    assert batch.ran() == [*"01234567"]


# Item 0 ends when another one runs, which waits for a file. The last argument makes a line of the log long.
ENDS = (
    'echo "$0" >>"$1"; if test "$0" = 0; then until test "$(wc -l <"$1")" -ge 2; do sleep 0.02; done; '
    'else until test -e "$2"; do sleep 0.02; done; fi; echo "$0"'
)
RESUME = ["xargs", "-P2", "--joblog", "log", "--resume"]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("{} | head -1", "local"),
        ("{} --line-buffer | head -1", "h1,h2"),
        ("{} >/dev/full", "local"),
        ("{} --results full.csv", "h1,h2"),
        ("ulimit -f 4; {}", "local"),
    ],
)
def test_after_an_end_by_a_fault_the_jobs_that_run_are_taken_over(
    lab: Lab, tmp_path: Path, line: str, where: str
) -> None:
    """A reader of stdout that has gone; and disks that are full of stdout, of results, and of the log."""
    lab.run(["run", "--on", where.partition(",")[0], "--", "true"])  # nodes have no limit
    (tmp_path / "full.csv").symlink_to("/dev/full")
    items = [*SH, ENDS, "{}", str(tmp_path / "ran"), str(tmp_path / "go"), "x" * 4000, ":::", *"01234"]
    batch, _, outlet = line.partition("{}")
    options, sign, name = outlet.rpartition(next((sign for sign in "|>" if sign in outlet), "\0"))
    options, sign, name = (options, sign, name) if sign else (name, "", "")
    words = ["quine", "xargs", "-P2", "--joblog", "log", "--on", where, *options.split(), *items]
    first = lab.sh(
        f"{batch}{shlex.join(words)} {sign}{name}", cwd=tmp_path, env={"PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert b"quine: stopped: " in first.stderr
    assert "killed" not in (tmp_path / "log").read_text()
    (tmp_path / "go").touch()
    done = lab.run([*RESUME, "--on", where, *items], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted({*first.stdout.split(), *done.stdout.split()}) == [b"%d" % item for item in range(5)]
    assert sorted((tmp_path / "ran").read_text().split()) == [*"01234"]
    assert [row[12] for row in rows(tmp_path / "log")] == ["done"] * 5


@pytest.mark.parametrize("where", ["local", "h1"])
def test_what_a_signal_has_ended_does_not_go_on_and_is_run_again(
    lab: Lab, tmp_path: Path, where: str
) -> None:
    ran = tmp_path / "ran"
    job = [*SH, f'echo "$0" >>{ran}; test -e go || exec sleep 1000', ":::"]
    words = ["xargs", "-P2", "--joblog", "log", "--on", where, "--cwd", str(tmp_path), *job]
    with lab.popen([*words, *"12345"], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        until(lambda: ran.exists() and len(ran.read_text()) == 4, "two have begun")
        process.terminate()
        assert process.wait(PATIENCE) == -signal.SIGTERM
    assert [row[12] for row in rows(tmp_path / "log")] == ["stopped"] * 2
    (tmp_path / "go").touch()
    done = lab.run([*RESUME, "--on", where, "--cwd", str(tmp_path), *job, *"12"], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(ran.read_text().split()) == ["1", "1", "2", "2"]


@pytest.mark.long
def test_an_item_whose_end_is_not_heard_of_after_kill_is_named(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    name = through("h1")
    job = [*SH, "echo up; exec sleep 1000", ":::", "1"]
    words = ["xargs", "--line-buffer", "--joblog", "log", "--on", name, *job]
    pipe = subprocess.PIPE
    with lab.popen(words, cwd=tmp_path, stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        lab["h1"].proxy.blackhole()
        process.terminate()
        _, told = process.communicate(timeout=PATIENCE)
    assert b"quine: item 1: its end was not heard of; --resume asks its host for it\n" in told
    lab["h1"].proxy.heal()
    assert rows(tmp_path / "log") == []


def test_a_small_output_outlives_the_node_of_its_machine_and_then_the_batch(lab: Lab, tmp_path: Path) -> None:
    """It comes again to a batch that has it in memory alone."""
    ran, first = tmp_path / "ran", tmp_path / "out/1/0/stdout"
    script = (
        f'cd {tmp_path}; echo "$0" >>ran; echo "a$0"; case $0 in 0) for=go;; 1) for=on;; *) for=ran;; esac; '
        'until test -e $for; do sleep 0.02; done; echo "b$0"'
    )
    words = ["xargs", "-P2", "--joblog", "log", "--results", "out", "--on", "h1"]
    items = [*SH, script, ":::", *"012"]
    with lab.popen([*words, *items], stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        until(lambda: ran.exists() and len(ran.read_text()) == 4, "two have begun")
        until(lambda: first.read_text() == "a0\n", "the first output has come")
        kill(only_node(lab).pid)
        (tmp_path / "on").touch()
        until(lambda: len(ran.read_text()) == 6, "the third has begun, through the next node")
        process.kill()
        process.wait(PATIENCE)
    (tmp_path / "go").touch()
    done = lab.run([*words, "--resume", *items], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [row[12] for row in rows(tmp_path / "log")] == ["done"] * 3
    assert first.read_text() == "a0\nb0\n" and sorted(ran.read_text().split()) == [*"012"]


@pytest.mark.parametrize("options", [(), ("-P2",)], ids=["by processors", "two"])
def test_what_never_began_on_hosts_that_were_cold_runs_in_the_next_run(
    own_lab: Callable[..., Lab], tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Their nodes are younger than the first jobs. The node here, which is older, knows of no other ones."""
    lab = own_lab(("h1", "h2"))
    items = list(map(str, range(20)))
    places = [str(tmp_path / "ran"), str(tmp_path / "go")]
    words = ["xargs", *options, "--on", "any", "--joblog", "log", "--resume", *SH, SCRIPT, "{}", *places]
    with lab.popen([*words, ":::", *items], stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        until((tmp_path / "ran").exists, "one has begun")
        process.kill()
    (tmp_path / "go").touch()
    done = lab.run([*words, ":::", *items], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted((tmp_path / "ran").read_text().split()) == sorted(items)
    assert {row[12] for row in rows(tmp_path / "log")} == {"done"}


# Items 1 and 2 bring different files of one name, so the second waits for the first.
NAMED = ["--files", "{1}:{2}", "--colsep", " "]


def test_items_that_got_their_files_when_the_batch_was_killed_are_run(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    """Their host knows that they never began; an exit status of 69 alone does not say it."""
    host, proxy, size = through("h1", lease=60), lab["h1"].proxy, 16 << 20
    (tmp_path / "data").write_bytes(os.urandom(size))
    script = f'test -s data || exit 9; echo "$0" >>{tmp_path}/ran; exit 69'
    words = [
        "xargs",
        "--on",
        host,
        "--joblog",
        "log",
        "--resume",
        "--files",
        "data",
        *SH,
        script,
        "{}",
        ":::",
        "a",
    ]
    before = proxy.carried()
    with lab.popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        until(lambda: proxy.carried() - before > size // 16, "a part of the file was sent")
        proxy.blackhole()
        process.kill()
        process.wait(PATIENCE)
    proxy.heal()
    until(
        lambda: not [one for one in marked(lab["h1"].mark) if "--stage" in one.argv], "its staging has ended"
    )
    assert not (tmp_path / "ran").exists()
    done = lab.run(words, cwd=tmp_path)
    assert (done.returncode, (tmp_path / "ran").read_text()) == (123, "a\n"), done.stderr
    assert [row[12] for row in rows(tmp_path / "log")] == ["failed"]


WAITS = (
    'test "$0" = c || { echo "$0" >>ran; until test -e go; do sleep 0.02; done; exit 0; }; '
    "until test -e ran; do sleep 0.02; done; echo c >>ran"
)


def named_alike(tmp_path: Path) -> list[str]:
    for name in "abc":
        (tmp_path / name).touch()
    return [*NAMED, "--cwd", str(tmp_path), *SH, WAITS, "{1}", ":::", "a data", "b data", "c other"]


def test_items_that_wait_for_files_of_one_that_is_left_to_the_next_run(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "full.csv").symlink_to("/dev/full")
    words = ["xargs", "--on", "h1", "-P3", "--joblog", "log", *named_alike(tmp_path)]
    first = lab.run([*words[:1], "--results", "full.csv", *words[1:]], cwd=tmp_path, timeout=2 * PATIENCE)
    assert (first.returncode, first.stderr.count(b"quine: stopped: ")) == (74, 1)
    (tmp_path / "go").touch()
    done = lab.run([*words[:1], "--resume", *words[1:]], cwd=tmp_path, timeout=2 * PATIENCE)
    assert done.returncode == 0
    assert [*"abc"] == sorted({*(tmp_path / "ran").read_text().split()})
    assert (tmp_path / "ran").read_text().count("a") == 1


@pytest.mark.parametrize("waits", ["for its output", "for its stdin"])
def test_a_job_that_is_taken_over_needs_no_room_before_the_items_that_run_again(
    lab: Lab, tmp_path: Path, waits: str
) -> None:
    """It has the only slot, and waited for its item, which waited behind an item that waited for the slot."""
    lab.alias("one", "h1", slots=1, lease=60)
    for name in ("F", "A"):
        (tmp_path / name).write_bytes(b"x" * 300_000)
    out = {"for its output": "head -c 300000 /dev/zero", "for its stdin": "cat"}[waits]
    script = (
        f'echo "$0" >>"$1/ran"; test "$0" = A || exit 1; until test -e "$1/go"; do sleep 0.02; done; {out}'
    )
    words = [
        "xargs",
        "--on",
        "one",
        "-P1",
        "--joblog",
        "log",
        "--stdin",
        "{}",
        *SH,
        script,
        "{}",
        str(tmp_path),
    ]
    ran, items = tmp_path / "ran", [":::", "F", "A"]
    with lab.popen([*words, *items], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        until(lambda: ran.exists() and ran.read_text() == "F\nA\n", "A has begun")
        process.kill()
        process.wait(PATIENCE)
    (tmp_path / "go").touch()
    done = lab.run([words[0], "--resume-failed", *words[1:], *items], cwd=tmp_path)
    assert done.returncode == 123 and len(done.stdout) == 300_000
    assert sorted(row[12] for row in rows(tmp_path / "log")) == ["done", "failed"]
    assert ran.read_text() == "F\nA\nF\n"


# F fails at first. A has its file as long as nobody else gets one of that name.
TAKEN = """
    test "$0" != F || { echo F >>ran; test -e second || exit 1; }
    test "$0" != A || { echo A >>ran; until test -e go || ! grep -q A in; do sleep 0.02; done; }
    cat in >"$0.out"
"""


def test_a_job_that_is_taken_over_has_its_files_alone_before_its_item_is_read(
    lab: Lab, tmp_path: Path
) -> None:
    """F had the file of A replaced, and A ended well with the result of F. Now F waits, and A may not be there."""
    for name in "FA":
        (tmp_path / name).write_text(f"data of {name}\n")
    (there := tmp_path / "there").mkdir()
    words = ["xargs", "--on", "h1", "--cwd", str(there), "--joblog", "log", "--files", "{}:in"]
    command = ["--returns", "{}.out", *SH, TAKEN, "{}", ":::"]
    with lab.popen([*words, "-P1", *command, "F", "A"], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        ran = there / "ran"
        until(lambda: ran.exists() and ran.read_text() == "F\nA\n", "A has begun")
        process.kill()
        process.wait(PATIENCE)
    (there / "second").touch()
    words += ["--resume-failed", "-P2"]
    alone = lab.run([*words, *command, "F"], cwd=tmp_path)
    said = b"item 1: in, or a directory that it is in, is there for a job of the run before, whose item is not among"
    assert alone.returncode == 69 and said in alone.stderr
    waits = b"items whose --files have one name over there (in) wait for each other"
    with lab.popen([*words, *command, "F", "A"], cwd=tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stderr
        read_until(process.stderr.fileno(), waits)
        (there / "go").touch()
        assert process.wait(PATIENCE) == 0
    for name in "FA":
        assert (tmp_path / f"{name}.out").read_text() == f"data of {name}\n"
    assert ran.read_text() == "F\nA\nF\n"


@pytest.mark.long
def test_items_that_wait_for_files_of_one_that_is_not_heard_of(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    name = through("h1", lease=60)
    words = ["xargs", "--on", name, "-P3", "--joblog", "log", *named_alike(tmp_path)]
    ran = tmp_path / "ran"
    with lab.popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        until(lambda: ran.exists() and sorted(ran.read_text().split()) == ["a", "c"], "two have begun")
        lab["h1"].proxy.blackhole()
        process.terminate()
        assert process.wait(2 * PATIENCE) == -signal.SIGTERM
    lab["h1"].proxy.heal()
    (tmp_path / "go").touch()
    done = lab.run([*words[:1], "--resume", *words[1:]], cwd=tmp_path, timeout=2 * PATIENCE)
    assert done.returncode == 0
