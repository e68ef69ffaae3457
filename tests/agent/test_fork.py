"""fork: real processes with a cloned conversation, at the same time, waited for or not."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.agent import children
from quine.agent.child_start import Given, _be_proxy
from quine.agent.children import Job
from quine.agent.session import SessionSpec
from quine.agent.tools import fork as fork_tool
from quine.base.sessions import new_session
from quine.tape.lines import message_of
from tests.support.agents import OK, UNTIL_ENDED, Agents, call, left, says, section, sh
from tests.tape.tapes import read
from transport.status import Status


def fork(intent: str = "", **more: Any) -> dict[str, Any]:
    return call("fork", **({"intent": intent} if intent else {}), **more)


@pytest.mark.parametrize(
    ("word", "record", "end"),
    [
        (9, '{"code":0,"state":"exited","signal":"","detail":""}', Status("signaled", 137, "KILL")),
        (9, '{"code":74,"state":"lost","signal":"","detail":"x"}', Status("signaled", 137, "KILL")),
        (1 << 8, '{"code":0,"state":"exited","signal":"","detail":""}', Status("exited", 1)),
        (74 << 8, '{"code":74,"state":"lost","signal":"","detail":"x"}', Status("lost", 74, detail="x")),
        (
            143 << 8,
            '{"code":143,"state":"signaled","signal":"TERM","detail":""}',
            Status("signaled", 143, "TERM"),
        ),
        (1 << 8, "[" * 50_000, Status("exited", 1)),
        (1 << 8, "[]", Status("exited", 1)),
        (1 << 8, "", Status("exited", 1)),
    ],
)
def test_a_record_of_a_child_says_why_it_exited_and_replaces_no_death_and_no_code(
    word: int, record: str, end: Status
) -> None:
    assert children._end(word, record.encode(), began=True) == end


NEVER = '{"code":77,"state":"denied","signal":"","detail":"x"}'


@pytest.mark.parametrize(
    ("host", "code", "tape", "state"),
    [
        ("h1", 77, False, "denied"),
        ("h1", 77, True, "exited"),  # it had begun
        ("h1", 0, False, "exited"),
        ("local", 77, False, "exited"),
        ("local", 0, False, "exited"),
    ],
)
def test_a_record_of_a_child_that_has_begun_does_not_say_that_it_never_started(
    host: str, code: int, tape: bool, state: str, tmp_path: Path
) -> None:
    """Any command of this user can write it, and the guest would do the work twice."""
    session, read = new_session(), os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    job = Job(session, "work", host, str(tmp_path / "jobs" / session))
    os.makedirs(job.directory)
    (Path(job.directory) / "status").write_text(NEVER)
    if tape:
        (tmp_path / f"{session}.jsonl").touch()
    os.close(read[1])
    job.report = read[0]
    if (pid := os.fork()) == 0:
        os._exit(code)
    job.pid = pid
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    job.reap()
    assert job.status is not None
    assert (job.status.state, job.status.code) == (state, code)


def test_a_child_and_its_streams(agents: Agents) -> None:
    agents.run(
        says(fork("child", wait=True), match="^work"), says(OK, match="^work"),
        says(sh("echo out >&4; echo err >&5; echo hidden"), call("exit", status=4, stderr="why"), match="^child"),
    )  # fmt: skip
    assert agents.results()[0].startswith(
        "[EXIT CODE] 4\n[STDOUT]\nout\n\n[STDERR]\nerr\nwhy\n\n[TURNS LEFT] 20"
    )
    parent, child = agents.tape()[0]["data"], agents.tape("child")[0]["data"]
    assert child["parent_session_id"] == parent["session_id"]
    assert child["depth"] == 1
    assert child["pid"] != parent["pid"]
    assert child["born"] == "fork"


def test_children_run_at_the_same_time(agents: Agents) -> None:
    """Each waits for the other: one after the other they would wait for ever."""
    os.mkfifo(agents.directory / "a")
    os.mkfifo(agents.directory / "b")
    agents.run(
        says(fork(children=[{"intent": "one"}, {"intent": "two"}], wait=True), match="^work"),
        says(fork("one", wait=True), fork("two", wait=True), match="^work"),
        says(OK, match="^work"),
        says(sh("echo x >a; read y <b; echo one $y >&4"), OK, match="^one"),
        says(sh("read y <a; echo y >b; echo two $y >&4"), OK, match="^two"),
    )
    both, one, two = agents.results()
    assert "--- CHILD 1 of 2: pid " in both
    assert "\none y\n" in both
    assert "\ntwo x\n" in both
    assert section(one, "STDOUT") == "one y\n"
    assert section(two, "STDOUT") == "two x\n"


def test_results_stand_in_the_order_of_the_calls(agents: Agents) -> None:
    agents.run(
        says(
            sh("echo 1 >>log"),
            fork("child", wait=True),
            sh("echo 3 >>log"),
            fork("child", wait=True),
            match="^work",
        ),
        says(OK, match="^work"),
        says(sh("echo 2 >>log"), OK, match="^child"),
    )
    names = [e["data"]["name"] for e in agents.tape() if e["type"] == "tool_result"]
    assert names == ["sh", "fork", "sh", "fork"]
    assert (agents.directory / "log").read_text() == "1\n2\n2\n3\n"


def test_the_clone_shares_the_prefix_byte_for_byte(agents: Agents) -> None:
    agents.run(
        says(sh("echo known"), text="first", match="^work"),
        says(sh("true"), fork("child", wait=True), sh("true"), match="^work"),
        says(OK, match="^work"),
        says(OK, match="^child"),
    )
    parent, child = agents.tape(), agents.tape("child")
    cloned = child[0]["data"]["cloned"]
    assert cloned["session"] == parent[0]["data"]["session_id"]
    before = [m for e in parent[: cloned["lines"]] if (m := message_of(e))]
    (path,) = agents.data.glob(f"{cloned['session']}.jsonl")
    on_tape = [message_of(entry) for entry in read(str(path))[: cloned["lines"]]]
    assert list(filter(None, on_tape)) == before
    assert [m.role for m in before] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    # every call of the reply has its answer in the child, and its mission is the result of fork
    results = [m.result for e in child if (m := message_of(e)) and m.result]
    assert [r.call_id for r in results] == [c.id for c in before[4].tool_calls[1:]]
    assert "You are the child" in results[0].text
    assert "child" in results[0].text
    assert "your parent's" in results[1].text


def test_context_none_starts_fresh(agents: Agents) -> None:
    """And a child shows its own mission in ps."""
    agents.run(
        says(fork("child", wait=True, context="none"), match="^work"), says(OK, match="^work"),
        says(sh("tr '\\0' ' ' </proc/$PPID/cmdline >&4"), OK, match="^child"),
    )  # fmt: skip
    child = agents.tape("child")
    assert "cloned" not in child[0]["data"]
    assert [e["data"].get("role") for e in child[1:3]] == ["system", "user"]
    assert child[1]["data"]["content"].endswith("\n\nchild")
    assert section(agents.results()[0], "STDOUT").startswith("quine child ")


def test_where_the_child_is(agents: Agents) -> None:
    """Directory as the parent's shell, a shell and variables of its own, a process group of its own."""
    agents.run(
        says(sh("mkdir d; cd d; X=parent"), fork("child", wait=True), sh("echo $X; pwd"), match="^work"),
        says(OK, match="^work"),
        says(
            sh("pwd >&4; echo [$X] >&4; X=child; cut -d' ' -f5 /proc/$PPID/stat >&4; echo $PPID >&4"),
            OK,
            match="^child",
        ),
    )
    _, child, parent = agents.results()
    lines = section(child, "STDOUT").split()
    assert lines[:2] == [f"{agents.directory}/d", "[]"]
    assert lines[2] == lines[3]
    assert section(parent, "STDOUT") == f"parent\n{agents.directory}/d\n"


def test_stdin_modes(agents: Agents) -> None:
    (agents.directory / "file").write_text("from the file\n")
    agents.run(
        says(fork(children=[{"intent": "c1"}, {"intent": "c2", "stdin": "file"}], wait=True), match="^work"),
        says(sh("read x <&3"), fork("c3", stdin="inherit", wait=True), sh("cat <&3"), match="^work"),
        says(OK, match="^work"),
        says(sh("cat <&3 >&4"), OK, match="^c[12]"),
        says(sh("read x <&3; echo $x >&4"), OK, match="^c3"),
        input=b"one\ntwo\nthree\n",
    )
    first, _, third, rest = agents.results()
    assert "[STDOUT]\n\n[STDERR]" in first.split("--- CHILD 2")[0]
    assert "[STDOUT]\nfrom the file\n" in first.split("--- CHILD 2")[1]
    assert section(third, "STDOUT") == "two\n"
    assert section(rest, "STDOUT") == "three\n"


def test_much_output_of_a_child(agents: Agents) -> None:
    agents.run(
        says(fork("child", wait=True), match="^work"), says(OK, match="^work"),
        says(sh("seq 1 300000 >&4; seq 1 300000 >&5"), OK, match="^child"),
    )  # fmt: skip
    result = agents.results()[0]
    kept = sorted((agents.data / "outputs").rglob("*.std*"))
    assert [path.read_text().count("\n") for path in kept] == [300000, 300000]
    assert all(str(path) in result for path in kept)
    assert len(result) < 43_000


def test_what_a_child_left_behind_does_not_hold_its_end(agents: Agents) -> None:
    away = ": >away; exec sleep 1000"  # before it has a session of its own it would be ended
    agents.run(
        says(fork("child", wait=True), sh("kill $(cat pid)"), match="^work"), says(OK, match="^work"),
        says(sh(f"setsid sh -c '{away}' >&4 & echo $! >pid; while ! [ -e away ]; do sleep 0.01; done"), OK,
             match="^child"),
    )  # fmt: skip
    child, killed = agents.results()
    assert child.startswith("[EXIT CODE] 0")
    assert killed.startswith("[EXIT CODE] 0")  # the process that the child left behind was still there
    assert (agents.directory / "away").exists()


def test_what_a_childs_child_holds_does_not_hold_its_end(agents: Agents) -> None:
    """The grandchild, which is not waited for, lives until the parent has the result of its child."""
    os.mkfifo(agents.directory / "go")
    agents.run(
        says(
            fork("child", wait=True), sh("echo x >go; quine wait $(ls $QUINE_DATA_DIR/jobs)"), match="^work"
        ),
        says(OK, match="^work"),
        says(fork("grand"), OK, match="^child"),
        says(sh("read x <go; ls -l /proc/$PPID/fd >&4"), OK, match="^grand"),
    )
    first, second = agents.results()
    assert first.startswith("[EXIT CODE] 0")
    assert second.startswith("[EXIT CODE] 0")


def test_not_waiting(agents: Agents) -> None:
    os.mkfifo(agents.directory / "go")
    agents.run(
        says(fork("child"), match="^work"),
        says(sh("echo x >go\n" + UNTIL_ENDED), match="^work"),
        says(OK, match="^work"),
        says(
            sh("read x <go; echo out >&4; echo err >&5"),
            call("exit", status=5, stderr="five"),
            match="^child",
        ),
    )
    begun, after = agents.results()
    session = agents.tape("child")[0]["data"]["session_id"]
    directory = agents.data / "jobs" / session
    assert f"[FORK] job {session} pid " in begun
    assert f"[FORK ENDED] job {session} exit code 5" in after
    assert (directory / "stdout").read_text() == "out\n"
    assert (directory / "stderr").read_text() == "err\nfive\n"
    assert json.loads((directory / "status").read_text())["code"] == 5
    assert json.loads((directory / "job").read_text())["intent"] == "child"


def test_race(agents: Agents) -> None:
    ready = "while ! [ -e up -a -s bad ]; do sleep 0.01; done; pid=$(cat bad)"
    ready += "; while [ -e /proc/$pid ] && ! grep -qs ') Z ' /proc/$pid/stat; do sleep 0.01; done"
    done = agents.run(
        says(
            fork(children=[{"intent": "slow"}, {"intent": "bad"}, {"intent": "good"}], mode="race"),
            match="^work",
        ),
        says(OK, match="^work"),
        says(sh(": >up; sleep 1234.5"), OK, match="^slow"),
        says(sh("echo $PPID >bad"), call("exit", status=1, stderr="bad"), match="^bad"),
        says(sh(ready + "; echo won >&4"), OK, match="^good"),
    )
    assert done.returncode == 0
    result = agents.results()[0]
    slow, bad, good = result.split("--- CHILD ")[1:]
    assert "not the winner" in slow
    assert "[SIGNAL] TERM" in slow
    assert "[EXIT CODE] 1" in bad
    assert "[WINNER]" in good
    assert "won" in good
    assert not left("sleep", "1234.5")
    assert agents.outcome("slow")["termination_mode"] == "signal"


def test_depth_cannot_be_bought(agents: Agents) -> None:
    """A fork is refused, and so is a nested agent, whatever its variables say."""
    done = agents.run(
        says(fork("child", wait=True), match="^work"),
        says(sh("QUINE_DEPTH=0 QUINE_MAX_DEPTH=9 quine inner; echo $? >&4"), match="^work"), says(OK, match="^work"),
        says(OK, match="^(child|inner)"), env={"QUINE_MAX_DEPTH": "1"},
    )  # fmt: skip
    assert done.stdout == b"77\n"
    refused, nested = agents.results()
    assert "[FORK ERROR] too deep" in refused
    assert "quine: error: too deep" in nested
    assert len(agents.tapes()) == 1


def descriptors(listing: str) -> list[str]:
    """Return the targets of descriptors in the output of `ls -l /proc/PID/fd`, without those of every process."""
    names = [line.split(" -> ")[1] for line in listing.splitlines() if " -> " in line]
    books = [name for name in names if "quine-ledger" in name]
    return books + [name for name in names if name.endswith(".txt")]


def test_a_child_holds_nothing_of_its_siblings(agents: Agents) -> None:
    """A child inherits neither the slots of its siblings, which it would keep in use, nor their stdin."""
    for name in "abc":
        (agents.directory / f"{name}.txt").write_text(name)
    children = [{"intent": f"child {name}", "stdin": f"{name}.txt"} for name in "abc"]
    again = fork("child c", stdin="c.txt", wait=True)
    agents.run(
        says(fork(children=children[:2], wait=True), again, match="^work"),
        says(OK, match="^work"),
        {**says(sh("ls -l /proc/$PPID/fd"), OK, match="^child"), "repeat": True},
    )
    for name in "abc":
        listing = agents.results(f"child {name}")[-1]
        book, place, material = descriptors(listing)
        assert "quine-ledger" in book and book == place
        assert material == str(agents.directory / f"{name}.txt")


def test_a_fork_whose_material_cannot_be_opened_costs_neither_place_nor_descriptor(agents: Agents) -> None:
    (agents.directory / "a.txt").write_text("a")
    children = [{"intent": "child", "stdin": "a.txt"}, {"intent": "child", "stdin": "no such file"}]
    count = sh("ls /proc/$PPID/fd | wc -l")
    agents.run(
        says(count, *[fork(children=children)] * 4, count, match="^work"),
        says(fork(children=[{"intent": "child"}] * 2, wait=True), OK, match="^work"),
        {**says(OK, match="^child"), "repeat": True},
        env={"QUINE_MAX_AGENTS": "3"},
    )
    before, *refused, after, both = agents.results()
    assert len(refused) == 4
    assert all("no such file or directory, nothing was started" in result for result in refused)
    # each of the four would have left one; one more or less is a file that was being read
    assert int(section(after, "STDOUT")) - int(section(before, "STDOUT")) < 4
    assert both.count("[EXIT CODE] 0") == 2


def test_a_child_elsewhere_is_named_by_its_host(agents: Agents) -> None:
    """The result names the host, for the local process is only the proxy of a child on another machine."""
    children = [{"intent": "far", "host": "nowhere"}, {"intent": "near"}]
    agents.run(
        says(fork(children=children, wait=True), OK, match="^work"),
        says(OK, match="^near"),
    )
    far, near = (line for line in agents.results()[0].splitlines() if line.startswith("--- CHILD"))
    assert re.fullmatch(r"--- CHILD 1 of 2: on nowhere, by way of pid [0-9]+ here", far)
    assert re.fullmatch(r"--- CHILD 2 of 2: pid [0-9]+", near)


def test_too_many_agents(agents: Agents) -> None:
    agents.run(
        says(fork(children=[{"intent": "child"}] * 3, wait=True), match="^work"),
        says(fork(children=[{"intent": "child"}] * 2, wait=True), match="^work"),
        says(sh("quine grand"), match="^work"),
        says(OK, match="^work"),
        says(sh("quine grand; echo $? >&4"), OK, match="^child"),
        says(OK, match="^grand"),
        env={"QUINE_MAX_AGENTS": "3"},
    )
    refused, two, alone = agents.results()
    words = "3 more were asked for, and the limit of the tree is 3 (--max-agents), nothing was started"
    assert f"[FORK ERROR] too many agents: {words}" in refused
    assert two.count("[STDOUT]\n77\n") >= 1  # both children live: a third has no place while they do
    assert alone.startswith("[EXIT CODE] 0")


def test_a_killed_child_is_reported_and_gives_its_slot_back(agents: Agents) -> None:
    agents.run(
        says(fork("child", wait=True), match="^work"), says(fork("child", wait=True), match="^work"),
        says(OK, match="^work"), says(sh("kill -KILL $PPID"), match="^child"), env={"QUINE_MAX_AGENTS": "2"},
    )  # fmt: skip
    results = agents.results()
    assert len(results) == 2
    for result in results:
        assert result.startswith("[EXIT CODE] 137\n")
        assert "[SIGNAL] KILL" in result


def test_grandchildren(agents: Agents) -> None:
    agents.run(
        says(fork("child", wait=True), match="^work"), says(OK, match="^work"),
        says(fork("grand", wait=True), sh("echo child >&4"), OK, match="^child"),
        says(sh("echo grand >&4; echo $QUINE_DEPTH >&5"), OK, match="^grand"),
    )  # fmt: skip
    assert agents.tape("grand")[0]["data"]["depth"] == 2
    assert section(agents.results("child")[1], "STDOUT") == "grand\n"
    root = agents.tape()[0]["data"]["session_id"]
    assert {tape[0]["data"]["root_session_id"] for tape in agents.tapes()} == {root}


def test_children_of_one_call_may_wait_for_those_of_another(agents: Agents) -> None:
    """The second prints more than a pipe takes before the first, which is waited for first, can end."""
    agents.run(
        says(fork("one", wait=True), fork("two", wait=True), match="^work"),
        says(OK, match="^work"),
        says(sh("while ! [ -e done ]; do sleep 0.01; done"), OK, match="^one"),
        says(sh("seq 1 100000 >&4; touch done"), OK, match="^two"),
    )
    assert [result[:11] for result in agents.results()] == ["[EXIT CODE]"] * 2


def test_a_directory_or_a_named_pipe_as_stdin_is_refused(agents: Agents) -> None:
    os.mkfifo(agents.directory / "p")
    agents.run(says(*(fork("child", wait=True, stdin=path) for path in ("/", "p")), match="^work"), says(OK))
    directory, pipe = agents.results()
    assert directory.startswith("[FORK ERROR] stdin /: a directory, nothing was started")
    assert "a named pipe" in pipe


def test_a_named_pipe_that_takes_the_place_of_a_stdin_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, look = tmp_path / "material", os.stat
    path.write_text("text")
    loop: Any = SimpleNamespace(shell=SimpleNamespace(cwd=str(tmp_path)))
    fd = fork_tool._open_stdin(loop, "material")
    assert os.get_blocking(fd)
    os.close(fd)

    def replaced(given: Any, **more: Any) -> os.stat_result:
        facts = look(given, **more)
        path.unlink()
        os.mkfifo(path)
        return facts

    monkeypatch.setattr(os, "stat", replaced)
    with pytest.raises(OSError, match="a named pipe"):
        fork_tool._open_stdin(loop, "material")


def test_a_proxy_leaves_its_status_where_nobody_reads(tmp_path: Path) -> None:
    """Its parent has ended, or is another image by now."""
    spec = SessionSpec(new_session(), new_session(), "m")
    job = Job(spec.session, "m", "h1", str(tmp_path))
    read_end, report = os.pipe()
    os.close(read_end)
    proxy = lambda *_, **__: Status("exited", 3)  # noqa: E731
    told_end, tells = os.pipe()
    place_end, place = os.pipe()
    ledger: Any = SimpleNamespace(beyond=SimpleNamespace(give_back=lambda: os.write(tells, b"given back")))
    signals = SimpleNamespace(remove=lambda: None)
    loop: Any = SimpleNamespace(
        proxy=proxy, ledger=ledger, signals=signals, settings=SimpleNamespace(masked=())
    )
    job.pid = os.fork()
    if job.pid == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        _be_proxy(loop, Given(spec, ledger, 0, [place], -1, "", frozenset(), {}), job, report)
    os.close(report)
    job.reap()
    os.close(tells)
    assert os.read(told_end, 100) == b"given back"
    for fd in (told_end, place_end, place):
        os.close(fd)
    assert job.status == Status("exited", 3)
    told = json.loads((tmp_path / "status").read_text())
    assert (told["code"], told["state"]) == (3, "exited")


def test_the_status_that_a_child_left_counts(tmp_path: Path) -> None:
    """The report of a remote child is lost with the image that held it."""
    job = Job(new_session(), "m", "h1", str(tmp_path))
    (tmp_path / "status").write_text('{"code": 74, "state": "lost", "signal": "", "detail": "gone"}')
    job.pid = os.fork()
    if job.pid == 0:
        os._exit(1)
    job.reap()
    assert job.status == Status("lost", 74, "", detail="gone")


def test_out_of_descriptors(agents: Agents) -> None:
    limit: Any = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))  # noqa: E731
    children = [{"intent": "child"} for _ in range(30)]
    agents.script(says(fork(children=children, wait=True)), says(sh("echo alive >&4")), says(OK))
    with agents.start("work", preexec_fn=limit, env={"QUINE_MAX_AGENTS": "64"}) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, b"alive\n", b"")
    assert agents.results()[0].startswith("[FORK ERROR]")
    assert "too many open files" in agents.results()[0].lower()
