"""quine xargs --detach: a batch that goes on without its terminal, found again by its id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.inventory import load
from quine.base.sessions import new_session
from quine.fanout.input.items import Item
from quine.fanout.input.rows import Row
from quine.fanout.main import template
from quine.fanout.options import parse
from quine.fanout.starter import Starter
from quine.fanout.tasks import Work
from quine.jobs import batch_state, job_files
from quine.remote.placement import DETACHED_LEASE, settle
from tests.cli.screen import Screen
from tests.fanout.test_xargs import SH, rows
from tests.lab import Lab
from tests.support.agents import OK, PATIENCE, says
from tests.support.detached import folder, record
from tests.support.waiting import until

WAIT = 'echo "a$0"; until test -e go; do sleep 0.02; done; echo "b$0"'


@pytest.fixture
def work(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """The directory of a batch; at the end its jobs go on."""
    yield tmp_path
    (tmp_path / "go").touch()
    until(lambda: not lab.jobs(), "all jobs have ended")


def detach(lab: Lab, work: Path, *words: str, **more: Any) -> str:
    done = lab.run(["xargs", "--detach", *words], cwd=work, **more)
    assert (done.returncode, done.stderr) == (0, b"")
    (line,) = done.stdout.decode().splitlines()
    return line


def state(lab: Lab, job: str) -> dict[str, Any]:
    """The state that the batch publishes, {} as long as there is none."""
    return batch_state.of_process(record(job, lab.home)["pid"]) or {}


def running(lab: Lab, job: str, count: int) -> None:
    until(lambda: state(lab, job).get("running") == count, f"{count} jobs run")


@pytest.mark.parametrize("where", ["local", "h1,h2"])
def test_it_runs_on_and_ends_as_a_batch_ends(lab: Lab, work: Path, where: str) -> None:
    script = "echo out $0; echo err $0 >&2; test $0 != 3"
    job = detach(lab, work, "-k", "--on", where, *SH, script, input=b"1\n2\n3\n")
    assert lab.run(["wait", job]).returncode == 123
    assert lab.run(["logs", job]).stdout == b"out 1\nout 2\nout 3\n"
    told = b"err 1\nerr 2\nerr 3\nquine: error: 1 of 3 items are not done: 1 failed\n"
    told += b"quine: hint: item 3 (3): status 1\n"
    assert lab.run(["logs", "--stderr", job]).stdout == told
    attached = lab.run(["attach", job])
    assert (attached.returncode, attached.stdout, attached.stderr) == (123, b"out 1\nout 2\nout 3\n", told)
    found = [json.loads(line) for line in lab.run(["ps", "-a", "--json"]).stdout.splitlines()]
    (fact,) = [fact for fact in found if fact["id"] == job]
    assert (fact["state"], fact["code"], fact["root"]) == ("exited", 123, job)
    assert fact["mission"].startswith("quine xargs --detach -k --on ")


def test_its_input_is_taken_whole(lab: Lab, work: Path) -> None:
    """Lists that are pipes, and files that are gone afterwards; stdin in the middle of several sources."""
    (work / "list").write_text("x\ny\n")
    script = (
        "printf '1\\n2\\n' | quine xargs --detach -k -a list -a <(printf 'p\\nq\\n') "
        "-- echo {1}{2}{3} :::: - && rm list"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=work, env=lab.env, capture_output=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, b"")
    job = done.stdout.decode().strip()
    assert lab.run(["wait", job]).returncode == 0
    expected = "".join(f"{a}{b}{c}\n" for a in "xy" for b in "pq" for c in "12")
    assert lab.run(["logs", job]).stdout.decode() == expected


def test_blocks_of_a_pipe(lab: Lab, work: Path) -> None:
    data = "".join(f"{number}\n" for number in range(100_000)).encode()
    job = detach(lab, work, "-k", "--pipe", "--block", "100K", "--", "cat", input=data)
    assert lab.run(["attach", job]).stdout == data


def test_items_that_are_typed(lab: Lab, work: Path) -> None:
    with Screen() as screen:
        process = screen.start(lab, ["xargs", "--detach", "-k", "--", "echo", "got"], cwd=work)
        screen.type(b"one\ntwo\n\x04")
        assert process.wait(PATIENCE) == 0
        screen.wait(b"two\r\n")
        job = screen.wait(b"\r\n").decode().strip()
    assert lab.run(["attach", job]).stdout == b"got one\ngot two\n"


def test_input_without_an_end_is_refused(lab: Lab, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = lab.run(["xargs", "--detach", "-a", "/dev/zero", "--", "echo"], cwd=work)
    told = b"quine: error: /dev/zero has no end, and --detach takes its input over whole\n"
    assert (done.returncode, done.stdout) == (2, b"") and done.stderr.startswith(told)
    monkeypatch.setattr(job_files, "ENDLESS", 3 << 20)
    read, write = os.pipe()
    with subprocess.Popen(["yes"], stdout=write, stderr=subprocess.DEVNULL):
        os.close(write)
        with pytest.raises(Exception, match="takes it over whole"):
            job_files.taken_whole(str(work), f"/dev/fd/{read}")
        os.close(read)
    assert os.listdir(work) == []


REFUSED = [
    (["--detach", "--report", "1"], "--report FD does not go with --detach: nothing waits"),
    (["--detach", "--job", "7"], "--job '7' is not a UUID in lower case"),
    (["--detach", "--output-limit", "0"], "--output-limit must not be 0: its job could write nothing"),
    (["--detach", "-a", "no-such"], "no-such: no such file or directory"),
    (["--detach", "-a", "."], ".: is a directory"),
    (["--detach", "--halt", "x"], "--halt x: "),
    (["--detach", "-k", "--line-buffer"], "-k passes outputs on as a whole"),
    (["--detach", "--resume"], "--resume and --resume-failed need --joblog FILE"),
    (["--detach", "--retries", "x"], "--retries x: "),
    (["--detach", "--limit", "x"], "--limit x: "),
    (["--detach", "--colsep", "["], "--colsep [: unterminated character set"),
    (["--detach", "--pipe", "--block", "0"], "--block 0: should be 1 or more"),
    (["--detach", "--resume-elsewhere"], "--resume-elsewhere is about --resume"),
    (["--detach", "--joblog", "no/log"], "--joblog no/log: no such directory"),
    (["--detach", "--results", "no/r.csv"], "--results no/r.csv: no such directory"),
    (["--job", new_session()], "--job goes with --detach"),
    (["--output-limit", "1M"], "--output-limit goes with --detach"),
    (["--from", "h1"], "--from goes with --detach"),
]


def test_what_is_refused_starts_nothing(lab: Lab, work: Path) -> None:
    kept = lab.home / ".local/state/quine/jobs"
    before = set(kept.iterdir()) if kept.exists() else set()
    for words, error in REFUSED:
        done = lab.run(["xargs", *words, "--", "echo"], cwd=work)
        assert (done.returncode, done.stdout) == (2, b""), words
        assert done.stderr.decode().startswith(f"quine: error: {error}"), words
    assert (set(kept.iterdir()) if kept.exists() else set()) <= before


def test_a_second_start_of_a_job_starts_nothing(lab: Lab, work: Path) -> None:
    """Its log and its report are left alone; a host and another kind are refused."""
    job = new_session()
    words = ["--job", job, "--joblog", "log", "--report", "report", *SH, f"echo $0 >>ran; {WAIT}", ":::", "1"]
    assert detach(lab, work, *words) == detach(lab, work, *words) == job
    (work / "go").touch()
    assert lab.run(["wait", job]).returncode == 0
    report = (work / "report").read_bytes()
    assert detach(lab, work, *words) == job
    assert ((work / "report").read_bytes(), (work / "ran").read_text()) == (report, "1\n")
    for start in (
        ["xargs", "--from", "h1", *words[:2]],
        ["run", *words[:2]],
        ["run", "--on", "h1", *words[:2]],
    ):
        done = lab.run([*start, "--detach", "--", "true"], cwd=work)
        assert (done.returncode, done.stdout) == (2, b""), start
        assert f"error: job {job} was started on this machine as a batch, and an id" in done.stderr.decode()


def test_a_kill_ends_the_jobs_and_int_waits_for_them(lab: Lab, work: Path) -> None:
    words = ["-P2", "-k", "--on", "h1", "--cwd", str(work), *SH, WAIT, ":::", "1", "2", "3"]
    job = detach(lab, work, *words)
    running(lab, job, 2)
    assert lab.run(["kill", job]).returncode == 0
    assert lab.run(["wait", job]).returncode == 128 + signal.SIGTERM
    assert not lab.jobs()
    job = detach(lab, work, *words)
    running(lab, job, 2)
    assert lab.run(["kill", "-INT", job]).returncode == 0
    told = folder(job, lab.home) / "stderr"
    until(lambda: b"waiting for 2 jobs" in told.read_bytes(), "it has the signal")
    (work / "go").touch()
    assert lab.run(["wait", job]).returncode == 128 + signal.SIGINT
    assert lab.run(["logs", job]).stdout == b"a1\nb1\na2\nb2\n"


def test_attached_on_a_terminal_its_view_is_below_its_output(lab: Lab, work: Path) -> None:
    job = detach(lab, work, "-P2", "--line-buffer", *SH, WAIT, ":::", "1", "2", "3")
    running(lab, job, 2)
    with Screen(columns=80) as screen, Screen(columns=80) as second:
        both = [each.start(lab, ["attach", job], env={"TERM": "xterm"}) for each in (screen, second)]
        for each in (screen, second):
            each.wait(b"a1\r\n")
            each.wait(b"\x1b[J0 of 3: 0 done, 2 running, 0.0/s\r\nlocal  2 running")
        both[1].terminate()
        assert both[1].wait(PATIENCE) == -signal.SIGTERM
        second.wait(b"\r\x1b[J")
        (work / "go").touch()
        screen.wait(b"\r\x1b[J")
        screen.wait(b"b3\r\n")
        assert both[0].wait(PATIENCE) == 0
    lines = lab.run(["attach", job]).stdout.split()
    assert sorted(lines) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3"]


def test_it_is_killed_and_the_next_one_takes_its_jobs_over(lab: Lab, work: Path) -> None:
    script = 'echo "$0" >>"$1/ran"; cd "$1"; ' + WAIT
    words = ["-P2", "--joblog", "log", "--on", "h1", *SH, script, "{}", str(work), ":::", "1", "2", "3"]
    job = detach(lab, work, *words)
    until(lambda: (work / "ran").exists() and len((work / "ran").read_text().split()) == 2, "two have begun")
    done = lab.run(["xargs", "--detach", "--resume", *words], cwd=work)
    assert (done.returncode, done.stderr) == (2, b"quine: error: log is in use by another batch\n")
    assert lab.run(["kill", "-KILL", job]).returncode == 0
    assert lab.run(["wait", job]).returncode == 128 + signal.SIGKILL
    again = detach(lab, work, "--resume", *words)
    (work / "go").touch()
    assert lab.run(["wait", again]).returncode == 0
    assert sorted(lab.run(["logs", again]).stdout.split()) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3"]
    assert sorted((work / "ran").read_text().split()) == ["1", "2", "3"]
    assert [row[12] for row in rows(work / "log")] == ["done"] * 3


def test_output_that_nobody_reads_holds_it_up(lab: Lab, work: Path) -> None:
    script = "head -c 300000 /dev/zero; echo $0 >>ran"
    job = detach(lab, work, "-P1", "-k", "--output-limit", "1M", *SH, script, ":::", *map(str, range(20)))
    spool = folder(job, lab.home) / "stdout"
    until(lambda: spool.stat().st_size == 1 << 20, "the spool is full")
    assert lab.run(["wait", "--timeout", "0", job]).returncode == 124
    with lab.popen(["attach", job], stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout
        size = 0
        while data := proxy.stdout.read(1 << 20):
            size += len(data)
        assert (proxy.wait(PATIENCE), size) == (0, 20 * 300_000)


def test_a_full_one_can_be_ended(lab: Lab, work: Path) -> None:
    job = detach(lab, work, "-P1", "--output-limit", "1K", "--", "cat", "/dev/zero", ":::", "1")
    until(lambda: (folder(job, lab.home) / "stdout").stat().st_size <= 1024, "it has begun")
    running(lab, job, 1)
    assert lab.run(["kill", job]).returncode == 0
    assert lab.run(["wait", job]).returncode == 128 + signal.SIGTERM


def test_agents_are_the_tree_of_the_job(lab: Lab, work: Path) -> None:
    env = lab.script([{**says(OK), "usage": {"input": 1200, "output": 60}}], "detached.jsonl")
    env |= {"QUINE_DATA_DIR": str(work / "data")}
    job = detach(lab, work, "--report", "report", "say {}", ":::", "a", "b", env=env)
    assert lab.run(["wait", job], env=env, cwd=work).returncode == 0
    report = json.loads((work / "report").read_text())
    assert (report["done"], report["agents"], report["tokens"]) == (2, 2, 2520)
    found = [json.loads(line) for line in lab.run(["ps", "-a", "--json"], env=env).stdout.splitlines()]
    assert {fact["root"] for fact in found if fact["mission"] in ("say a", "say b")} == {job}
    for words in ([job], ["--tree", job]):
        told = lab.run(["tape", "cost", "--json", *words], env=env, check=True, cwd=work).stdout.splitlines()
        (row,) = map(json.loads, told)
        assert (row["inferences"], row["tokens_in"], row["tokens_out"]) == (2, 2400, 120)
    unknown = lab.run(["tape", "cost", new_session()], env=env, cwd=work)
    assert unknown.returncode == 2 and b"no session in " in unknown.stderr


def test_agents_without_a_guest_are_refused_at_once(lab: Lab, work: Path) -> None:
    done = lab.run(["xargs", "--detach", "say {}", ":::", "a"], env={"QUINE_API_TYPE": "no-such"}, cwd=work)
    assert done.returncode == 2 and done.stdout == b"" and b"no-such" in done.stderr


def test_no_variable_is_in_the_command_line_that_is_shown(lab: Lab, work: Path) -> None:
    words = ["--env", "A=secret-1", "--env=B=secret-2", "--env", "C", "--fs", "s3://b?key=secret-3"]
    shown = batch_state.shown([*words, "--fs=origin:", "--", "echo", "a b", ":::", "item"])
    hidden = "quine xargs --env 'A=…' '--env=B=…' --env C --fs 's3://…' --fs=origin: -- echo 'a b' ::: …"
    assert shown == hidden
    job = detach(lab, work, "--env", "A=secret-1", *SH, "echo $A", ":::", "1")
    assert lab.run(["attach", job]).stdout == b"secret-1\n"
    assert b"secret" not in (folder(job, lab.home) / "job").read_bytes()


@pytest.mark.parametrize("detached", [False, True])
def test_its_jobs_wait_for_this_machine_as_those_of_a_detached_agent(lab: Lab, detached: bool) -> None:
    options, words, _ = parse(["--on", "h1", "--", "echo"])
    options.spawn = options.spawn.replace(job=new_session() if detached else "")
    work = Work(options, template(options, words), words)
    starter = Starter(options, None, work, SimpleNamespace(say=print), None)  # type: ignore[arg-type]
    spawn, services, _ = starter.make(work.task(Item(Row(("a",)), 1)), [])
    services.close()
    host = load(lab.inventory, {}).hosts["h1"]
    settle(spawn, host)
    assert spawn.lease == (DETACHED_LEASE if detached else host.lease)


# -- the state that a batch publishes --------------------------------------------------------------


def test_a_state_with_two_numbers_is_none(tmp_path: Path) -> None:
    for text, whole in ((b'1\n{"pid":7}\n1', True), (b'2\n{"pid":7}\n1', False), (b"", False), (b"1", False)):
        with open(os.memfd_create(batch_state.NAME), "wb", buffering=0) as file:
            file.write(text)
            assert (batch_state.read(f"/proc/self/fd/{file.fileno()}", 7) is not None) == whole
    path = tmp_path / "state"
    path.write_bytes(b'1\n{"pid":7}\n1')
    assert batch_state.read(str(path), 7) is None


def test_a_state_that_cannot_be_written_as_json_costs_the_batch_nothing() -> None:
    published = batch_state.Published()
    published.put({"pid": os.getpid(), "items": 1})
    published.put({"pid": os.getpid(), "items": 2, "hosts": [{"load": float("inf")}]})
    found = batch_state.read(f"/proc/{os.getpid()}/fd/{published._fd}", os.getpid())
    assert found and found["items"] == 1, "the last one that could be written"
    published.close()


def test_a_reader_never_sees_half_of_a_state() -> None:
    """A writer and a reader in two processes; each state has one number in all of its fields."""
    published = batch_state.Published()
    published.put({"pid": os.getpid()})
    path = f"/proc/{os.getpid()}/fd/{published._fd}"
    pid = os.fork()
    if not pid:
        code = 1
        try:
            for number in range(3000):
                text = str(number) * (1 + number % 500)
                published.put({"pid": os.getppid(), "items": number, "running": number, "command": text})
            code = 0
        finally:
            os._exit(code)
    seen = set()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        found = batch_state.read(path, os.getpid())
        if found and found["items"] is not None:
            number = found["items"]
            whole = (str(number) * (1 + number % 500))[: batch_state.TEXT]
            assert (found["running"], found["command"]) == (number, whole)
            seen.add(number)
    assert batch_state.read(path, os.getpid() + 1) is None
    published.close()
    assert batch_state.read(path, os.getpid()) is None
    assert seen


@pytest.mark.parametrize(
    "text", [b"", b"[1]", b"{", b'{"pid":"x","items":true,"hosts":[7,{"host":5}],"rate":1e300}']
)
def test_a_foreign_state_has_no_other_types(text: bytes) -> None:
    found = batch_state.parsed(text)
    if found is not None:
        assert (found["pid"], found["items"], found["rate"]) == (0, None, 0.0)
        assert found["hosts"] == [
            {
                "host": "",
                "running": 0,
                "slots": 0,
                "rate": 0.0,
                "load": None,
                "ended": 0,
                "failed": 0,
                "down": None,
            }
        ]
        assert batch_state.lines(found, 79, 10)[0] == "0 done, 0 running, 0.0/s"


def test_a_long_line_is_broken_behind_commas() -> None:
    found = batch_state.parsed(b'{"items":10,"done":3,"failed":1,"ended":4,"eta":60,"tokens":120,"cost":0.5}')
    assert found is not None
    assert batch_state.lines(found, 200, 10) == [
        "4 of 10: 3 done, 1 failed, 0 running, 0.0/s, ETA 1:00, 120 tokens, $0.50"
    ]
    assert batch_state.lines(found, 40, 10) == [
        "4 of 10: 3 done, 1 failed, 0 running,",
        "0.0/s, ETA 1:00, 120 tokens, $0.50",
    ]


def test_an_item_on_a_host_is_killed_by_its_id_and_the_batch_goes_on(lab: Lab, work: Path) -> None:
    """Its process here is that of the batch, which stands for all of its items."""
    job = detach(
        lab, work, "--on", "h1", "-P2", "--joblog", "log", *SH, f"cd {work}; {WAIT}", input=b"1\n2\n"
    )
    running(lab, job, 2)
    found = [json.loads(line) for line in lab.run(["ps", "--json"], check=True).stdout.splitlines()]
    one = next(fact["id"] for fact in found if fact["host"] == "h1")
    killed = lab.run(["kill", one])
    assert (killed.returncode, killed.stderr) == (0, b"")
    running(lab, job, 1)
    (work / "go").touch()
    assert lab.run(["wait", job]).returncode == 123
    assert sorted((row[6], row[7]) for row in rows(work / "log")) == [("0", "0"), ("0", "15")]


def test_an_interrupt_starts_no_item_that_waits_on_its_host(lab: Lab, work: Path) -> None:
    lab.alias("slow", "h1", slots=1)
    job = detach(
        lab, work, "--on", "slow", "--joblog", "log", *SH, f"cd {work}; {WAIT}", input=b"1\n2\n3\n4\n"
    )
    running(lab, job, 1)
    lab.run(["kill", "-s", "INT", job], check=True)
    until(lambda: b"waiting for 1 jobs" in lab.run(["logs", "--stderr", job]).stdout, "it was told")
    (work / "go").touch()
    assert lab.run(["wait", job]).returncode == 130
    assert [(row[0], row[12]) for row in rows(work / "log")] == [("1", "done")]
    resumed = lab.run(
        ["xargs", "-k", "--on", "slow", "--joblog", "log", "--resume", *SH, f"cd {work}; {WAIT}"],
        input=b"1\n2\n3\n4\n",
        cwd=work,
    )
    assert (resumed.returncode, resumed.stdout) == (0, b"a2\nb2\na3\nb3\na4\nb4\n"), resumed.stderr
