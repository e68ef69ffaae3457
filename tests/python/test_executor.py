"""`quine.Executor` in this process, with the node of a lab's origin and its hosts."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

import quine
from quine.base.errors import Misconfigured
from quine.fanout.timers import Timers
from quine.python import crew, outputs
from tests.lab import Lab
from tests.lab.machine import readable
from tests.support.agents import OK, PATIENCE, call, says
from tests.support.machine import only_node
from tests.support.waiting import until
from tests.transport.client.test_batch import origin
from transport.client.batch import Batch

ROOT = Path(__file__).resolve().parents[2]
HELD = 'touch "$0.here"; until test -e "$0"; do sleep 0.01; done; echo "$1"'  # until a file is there
# Says at which host it is, and waits until it is said of both.
BOTH = 'home=${HOME%/home}; touch "$0${home##*/}"; until test -e "$0"h1 && test -e "$0"h2; do sleep 0.01; done; cat'


@pytest.fixture
def there(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    """This process is one of the origin, in a directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    return origin(lab, monkeypatch)


@pytest.fixture
def dead(there: Lab) -> Iterator[str]:
    """A host whose port is closed."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else's
        there.alias("dead", "h1", port=held.getsockname()[1])
        yield "dead"


def test_a_signal_in_the_middle_of_submit_may_shut_it_down(
    there: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler holds up the thread that holds the locks: it waits for nothing, and the job has its end."""
    executor, start = quine.Executor(), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        signal.raise_signal(signal.SIGUSR1)
        start(thread)

    before = signal.signal(signal.SIGUSR1, lambda *_: executor.shutdown())
    try:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            future = executor.submit(["echo", "x"])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert future.result(PATIENCE).stdout == b"x\n"
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(["true"])
    executor.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("quine.Executor")]


def running(future: Future[Any]) -> None:
    until(future.running, "it runs")


# -- results ---------------------------------------------------------------------------------------


def test_a_result_has_status_outputs_host_and_report(there: Lab) -> None:
    with quine.Executor("h1") as executor:
        result = executor.submit(["sh", "-c", "cat; echo bad >&2; exit 3"], stdin=b"a\0\xff").result(PATIENCE)
        killed = executor.submit(["sh", "-c", "kill -9 $$"]).result(PATIENCE)
        unknown = executor.submit(["no-such-command"]).result(PATIENCE)
    assert (result.stdout, result.stderr) == (b"a\0\xff", b"bad\n")
    assert (result.status, result.returncode, result.host) == (3, 3, "h1")
    assert (killed.status, killed.returncode, killed.report["signal"]) == (137, -9, "KILL")
    assert unknown.status == 127 and "no-such-command" in unknown.report["detail"]
    assert result.report["state"] == "exited" and result.report["pid"] > 0 and result.report["seconds"] > 0
    assert isinstance(result, subprocess.CompletedProcess) and result.args == ["sh", "-c", result.args[2]]
    with pytest.raises(subprocess.CalledProcessError):
        result.check_returncode()


def test_the_functions_of_concurrent_futures_work_on_many_jobs_over_two_hosts(
    there: Lab, tmp_path: Path
) -> None:
    # No job ends before both hosts have started one. Places are few, for the first host that is reached would take
    # all jobs, and the other one would find nothing left to do.
    for host in ("h1", "h2"):
        there.alias(f"{host}-few", host, slots=4)
    command = ["sh", "-c", BOTH, str(tmp_path / "started.")]
    with quine.Executor("h1-few,h2-few") as executor:
        jobs = {executor.submit(command, stdin=b"%d" % index): b"%d" % index for index in range(30)}
        first = wait(jobs, PATIENCE, FIRST_COMPLETED)
        assert first.done
        found = {job: job.result() for job in as_completed(jobs, PATIENCE)}
    assert {job: result.stdout for job, result in found.items()} == jobs
    assert {result.host for result in found.values()} == {"h1-few", "h2-few"}
    assert wait(jobs).not_done == set()


def test_stdin_is_bytes_text_a_path_or_an_open_file_and_text_comes_back(there: Lab, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes("ä\r\n".encode("latin-1"))
    fds = len(os.listdir("/proc/self/fd"))
    with quine.Executor() as executor, open("input", "rb") as file:
        assert executor.submit(["cat"]).result(PATIENCE).stdout == b""
        assert executor.submit(["cat"], stdin="ä", text=True, encoding="utf-8").result().stdout == "ä"
        assert executor.submit(["cat"], stdin=memoryview(b"view")).result(PATIENCE).stdout == b"view"
        assert executor.submit(["cat"], stdin=Path("input")).result(PATIENCE).stdout == b"\xe4\r\n"
        job = executor.submit(["cat"], stdin=file, text=True, encoding="latin-1")
        assert job.result(PATIENCE).stdout == "ä\n", "as subprocess has it"
        with pytest.raises(FileNotFoundError):
            executor.submit(["cat"], stdin=Path("missing")).result(PATIENCE)
        with pytest.raises(TypeError, match="stdin is"):
            executor.submit(["cat"], stdin=3.5)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == fds


def test_directory_environment_and_limits_are_the_executors_and_the_jobs(there: Lab, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    show = ["sh", "-c", "pwd; echo $A$B; ulimit -n"]
    with quine.Executor(cwd="sub", env={"A": "1", "B": "2"}, limits={"nofile": 33}) as executor:
        both = executor.submit(show, text=True).result(PATIENCE)
        own = executor.submit(show, cwd=tmp_path, env={"B": "="}, limits={"nofile": 34}, text=True)
        assert both.stdout.split() == [os.path.realpath("sub"), "12", "33"]
        assert own.result(PATIENCE).stdout.split() == [os.path.realpath(tmp_path), "1=", "34"]
        with pytest.raises(Misconfigured, match="unknown limit"):
            executor.submit(show, limits={"files": 1})


def test_files_go_along_and_results_come_back_each_job_in_a_directory_of_its_own(there: Lab) -> None:
    with quine.Executor("h1") as executor:
        jobs = []
        for name in ("a", "b"):
            Path(name).write_text(name)
            script = f"tr a-z A-Z <in >{name}.out; ls; exit 5"
            jobs.append(executor.submit(["sh", "-c", script], files=[f"{name}:in"], returns=["*.out"]))
        listed = [job.result(PATIENCE).stdout for job in jobs]
        with pytest.raises(Misconfigured, match="no such file"):
            executor.submit(["true"], files=["missing"])
        gone = executor.submit(["true"], files=["a"])
        os.unlink("a")
        never = gone.exception(PATIENCE)
    assert listed == [b"a.out\nin\n", b"b.out\nin\n"]
    assert (Path("a.out").read_text(), Path("b.out").read_text()) == ("A", "B")
    assert never is None or isinstance(never, quine.NeverStarted)


def test_a_job_that_was_ended_brings_nothing_and_one_whose_results_do_not_come_is_lost(there: Lab) -> None:
    Path("out").write_text("whole")
    Path("full").mkdir()
    slow = "trap 'kill $!; exit 0' TERM; echo part >out; sleep 1000 & wait"
    with quine.Executor("h1") as executor:
        late = executor.submit(["sh", "-c", slow], returns=["out"], timeout=1)
        lost = executor.submit(["touch", "full"], returns=["full"])
        with pytest.raises(subprocess.TimeoutExpired):
            late.result(PATIENCE)
        with pytest.raises(quine.Lost, match="the files cannot be brought back: full: ") as caught:
            lost.result(PATIENCE)
    assert caught.value.status == 74 and "the results are still on the host, in" in caught.value.hint
    assert Path("out").read_text() == "whole"


def test_a_large_output_is_in_a_file_that_goes_with_the_result(there: Lab) -> None:
    def files() -> list[str]:
        return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("quine-output-")]

    script = f"head -c {outputs.MEMORY * 8} /dev/zero; echo end; echo small >&2"
    with quine.Executor("h1") as executor:
        result = executor.submit(["sh", "-c", script]).result(PATIENCE)
    fds = len(os.listdir("/proc/self/fd"))
    assert len(files()) == 1 and not [link for link in _links() if "quine-output-" in link]
    assert result.stdout == bytes(outputs.MEMORY * 8) + b"end\n" and result.stderr == b"small\n"
    with result.open() as file, result.open("stderr") as errors:
        assert file.seek(outputs.MEMORY * 8) and file.read() == b"end\n" and errors.read() == b"small\n"
    assert len(os.listdir("/proc/self/fd")) == fds
    del result
    gc.collect()
    assert files() == []


def _links() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found


def test_output_that_cannot_be_kept_is_no_success(there: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(Path("missing").resolve()))
    with quine.Executor("h1") as executor:
        for words in (["cat", "/dev/zero"], ["sh", "-c", "trap '' PIPE; cat /dev/zero 2>&-; exit 3"]):
            with pytest.raises(quine.Lost, match="no such file") as caught:
                executor.submit(words).result(PATIENCE)
            assert (caught.value.status, caught.value.host) == (74, "h1")


def test_output_that_is_no_text_is_an_error_of_its_own_job(there: Lab, tmp_path: Path) -> None:
    no_text = r"printf '\377'; exit $0"
    with quine.Executor(slots=2) as executor:
        other = executor.submit(["sh", "-c", HELD, str(tmp_path / "go"), "1"])
        failed = executor.submit(["sh", "-c", no_text, "1"], text=True, encoding="utf-8", check=True)
        with pytest.raises(UnicodeDecodeError):
            failed.result(PATIENCE)
        (tmp_path / "go").touch()
        assert other.result(PATIENCE).stdout == b"1\n"
        done = executor.submit(["sh", "-c", no_text, "0"], text=True, encoding="utf-8", check=True)
        with pytest.raises(UnicodeDecodeError):
            print(done.result(PATIENCE).stdout)


# -- what is refused -------------------------------------------------------------------------------


def test_a_function_is_refused_since_nothing_is_pickled(there: Lab) -> None:
    with quine.Executor() as executor:
        for refused in (print, lambda: None, Path):
            with pytest.raises(TypeError, match="no function is sent"):
                executor.submit(refused)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="no function is sent"):
            executor.submit(print, "text")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="no function is sent"):
            executor.map(print, ["text"])
        with pytest.raises(TypeError, match="list of words: no shell"):
            executor.submit("ls -l")
        for wrong in ([], [""]):
            with pytest.raises(ValueError, match="no command"):
                executor.submit(wrong)
        with pytest.raises(TypeError):
            executor.submit(["sleep", 1])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="either a command or a mission"):
            executor.submit(["true"], mission="do it")
    with pytest.raises(ValueError, match="slots"):
        quine.Executor(slots=0)


# -- map -------------------------------------------------------------------------------------------


def test_map_has_one_job_for_each_item_and_results_in_their_order(there: Lab) -> None:
    with quine.Executor("h1,h2") as executor:
        found = executor.map(["sh", "-c", "echo $1-$2", "sh"], ["a b", "$c"], "12", text=True)
        assert [result.stdout for result in found] == ["a b-1\n", "$c-2\n"]
        endless = executor.map(["echo"], iter(lambda: "y", "n"), buffersize=3, text=True)
        assert [next(endless).stdout for _ in range(5)] == ["y\n"] * 5
        endless.close()  # type: ignore[attr-defined]


def test_map_that_is_given_up_ends_its_jobs(there: Lab) -> None:
    with quine.Executor(slots=2) as executor:
        found = executor.map(["sh", "-c", 'test "$0" = 0 || sleep 600; exit 7'], "012", check=True)
        with pytest.raises(subprocess.CalledProcessError):
            next(found)
        slow = executor.map(["sleep"], ["600"], timeout=0.01)
        with pytest.raises(TimeoutError):
            next(slow)


# -- ends before their time ------------------------------------------------------------------------


def test_one_that_waits_is_withdrawn_and_one_that_runs_is_ended(there: Lab, tmp_path: Path) -> None:
    with quine.Executor("h1", slots=1) as executor:
        runs = executor.submit(["sleep", "600"])
        waits = executor.submit(["touch", str(tmp_path / "ran")])
        running(runs)
        assert waits.cancel() is True and waits.cancel() is True and waits.cancelled()
        assert wait([waits], PATIENCE).done == {waits}
        with pytest.raises(CancelledError):
            waits.result()
        assert runs.cancel() is False and not runs.cancelled()
        result = runs.result(PATIENCE)
        assert (result.returncode, result.report["signal"]) == (-15, "TERM")
        assert runs.cancel() is False
    assert not (tmp_path / "ran").exists()


def test_one_that_was_sent_and_waits_for_a_slot_there_is_withdrawn(there: Lab, tmp_path: Path) -> None:
    there.alias("narrow", "h1", slots=1)
    with quine.Executor("narrow") as executor:
        runs = executor.submit(["sh", "-c", HELD, str(tmp_path / "go"), "1"])
        running(runs)
        waits = [executor.submit(["touch", str(tmp_path / f"ran{index}")]) for index in range(5)]
        assert all(job.cancel() for job in waits)
        assert wait(waits, PATIENCE).not_done == set()
        (tmp_path / "go").touch()
        assert runs.result(PATIENCE).stdout == b"1\n"
    assert not list(tmp_path.glob("ran*"))


def test_one_that_ignores_term_gets_kill(there: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(crew, "GRACE", 0.05)
    with quine.Executor() as executor:
        job = executor.submit(["sh", "-c", "trap '' TERM; " + HELD, str(tmp_path / "go"), "1"])
        until((tmp_path / "go.here").exists, "it ignores TERM")
        running(job)
        assert job.cancel() is False
        assert job.result(PATIENCE).returncode == -9


def test_one_that_is_cancelled_as_it_starts_is_ended_and_its_executor_goes_on(
    there: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = crew.Crew._started

    def late(self: crew.Crew, task: Any, number: int) -> None:
        if task.args[0] == "sleep":
            assert task.future.cancel() is True
        started(self, task, number)

    monkeypatch.setattr(crew.Crew, "_started", late)
    with quine.Executor() as executor:
        job = executor.submit(["sleep", "600"])
        assert wait([job], PATIENCE).not_done == set() and job.cancelled()
        assert executor.submit(["echo", "next"]).result(PATIENCE).stdout == b"next\n"


@pytest.mark.clock
def test_the_time_of_a_job_is_its_own_and_what_it_wrote_is_there(there: Lab) -> None:
    with quine.Executor("h1", slots=1) as executor:
        late = executor.submit(["sh", "-c", "echo begun; sleep 600"], timeout=0.5)
        waits = executor.submit(["echo", "in time"], timeout=30.0)
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            late.result(PATIENCE)
        assert caught.value.output == b"begun\n" and caught.value.timeout == 0.5
        assert waits.result(PATIENCE).stdout == b"in time\n"


def test_shutdown_takes_no_more_and_waits_or_withdraws(there: Lab, tmp_path: Path) -> None:
    executor = quine.Executor(slots=1)
    runs = executor.submit(["sh", "-c", HELD, str(tmp_path / "go"), "1"])
    running(runs)
    waits = [executor.submit(["true"]) for _ in range(3)]
    executor.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(["true"])
    assert not waits[0].done()
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(job.cancelled() for job in waits) and runs.running()
    (tmp_path / "go").touch()
    executor.shutdown()
    assert runs.done() and runs.result().stdout == b"1\n"


# -- what was never started, and what is lost ------------------------------------------------------


def test_what_no_host_could_start_is_never_started(there: Lab, dead: str) -> None:
    with quine.Executor("nowhere") as executor:
        with pytest.raises(quine.NeverStarted, match="no such host") as caught:
            executor.submit(["true"]).result(PATIENCE)
        assert isinstance(caught.value, quine.JobError) and caught.value.status == 69
        assert caught.value.report["state"] == "unreachable" and "inventory" in str(caught.value)
    with pytest.raises(quine.NeverStarted, match="dead: ") as caught:
        quine.run(["true"], on=dead)
    assert caught.value.host == "dead"


def test_a_wrong_inventory_is_an_error_of_its_own(there: Lab, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("[hosts.h1]\nslots = 'x'\n")
    with pytest.raises(Misconfigured, match="slots: not a whole number"):
        quine.run(["true"], on="h1", inventory=str(tmp_path / "wrong"))


def test_results_and_errors_go_through_a_process_pool(there: Lab, dead: str) -> None:
    result = pickle.loads(pickle.dumps(quine.run(["echo", "é"], on="h1", capture_output=True, text=True)))
    assert (result.stdout, result.returncode, result.host) == ("é\n", 0, "h1")
    with pytest.raises(quine.NeverStarted) as caught:
        quine.run(["true"], on=dead)
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is quine.NeverStarted and str(error) == str(caught.value)
    assert (error.status, error.host, error.report) == (69, "dead", caught.value.report)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        quine.run(["no-such-program"], on="h1", check=True)
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)


def test_another_host_gets_what_one_could_not_start(there: Lab, dead: str) -> None:
    with quine.Executor(f"{dead},h1") as executor:
        jobs = [executor.submit(["true"]) for _ in range(30)]
        assert {job.result(PATIENCE).host for job in jobs} == {"h1"}


def test_a_host_that_is_set_aside_gets_no_job(there: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew.Hosts, "aside", lambda self, now: ["h1"])
    with quine.Executor("h1,h2") as executor:
        assert {result.host for result in executor.map(["echo"], map(str, range(20)))} == {"h2"}


def test_what_ran_when_the_node_was_killed_is_lost_and_the_next_job_runs(
    own_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the next one after a node that was killed while nothing was under way."""
    lab = origin(own_lab(["h1"]), monkeypatch)
    with quine.Executor("h1") as executor:
        job = executor.submit(["sleep", "600"])
        running(job)
        os.kill(only_node(lab).pid, signal.SIGKILL)
        with pytest.raises(quine.Lost, match="started") as caught:
            job.result(PATIENCE)
        assert (caught.value.status, caught.value.report["state"]) == (74, "lost")
        assert executor.submit(["true"]).result(PATIENCE).status == 0
        _alone()
        node = only_node(lab).pid
        gone = os.pidfd_open(node)
        os.kill(node, signal.SIGKILL)
        assert readable(gone, PATIENCE)
        os.close(gone)
        assert executor.submit(["true"]).result(PATIENCE).status == 0


def _alone() -> None:
    """Until no thread of an executor is left."""
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("quine.")], "threads end")


@pytest.mark.parametrize("other", ["turn", "__init__", "close"])
def test_a_defect_is_the_end_of_the_jobs_under_way_and_not_of_the_executor(
    there: Lab, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Also where the next turn can have no connection, for which descriptors are lacking, say, or this one stays."""
    left: list[Batch] = []

    def defect(batch: Batch, *_: Any, **__: Any) -> None:
        if other == "close":
            left.append(batch)
        raise ZeroDivisionError

    with quine.Executor() as executor:
        assert executor.submit(["true"]).result(PATIENCE).status == 0
        _alone()
        with monkeypatch.context() as broken:
            for name in ("turn", other):
                broken.setattr(Batch, name, defect)
            for _ in range(2):
                job = executor.submit(["true"])
                with pytest.raises(ZeroDivisionError):
                    job.result(PATIENCE)
                _alone()
        for batch in set(left):
            batch.close()
        assert executor.submit(["true"]).result(PATIENCE).status == 0


# -- threads, callbacks, processes -----------------------------------------------------------------


def test_functions_of_futures_hold_up_no_job(
    there: Lab, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    heard: list[object] = []
    with quine.Executor("h1") as executor:

        def look(job: Future[Any]) -> None:
            heard.append(executor.submit(["echo", "from a function"]).result(PATIENCE).stdout)

        def fail(job: Future[Any]) -> None:
            raise ValueError("a function's own")

        job = executor.submit(["sh", "-c", HELD, str(tmp_path / "go"), "0"])
        for function in (look, fail, lambda job: heard.append(job.result().status)):
            job.add_done_callback(function)
        (tmp_path / "go").touch()  # one that is given later is called in this thread, before `look` has heard
        assert job.result(PATIENCE).status == 0
        late: list[Future[Any]] = []
        with caplog.at_level(logging.CRITICAL):
            until(lambda: len(heard) == 2, "all were called")
        job.add_done_callback(late.append)
        assert late == [job], "here and now"
    assert heard == [b"from a function\n", 0]


def test_the_thread_for_functions_is_there_before_the_interpreter_exits(there: Lab, tmp_path: Path) -> None:
    """Python 3.12 starts none then."""
    with quine.Executor() as executor:
        job = executor.submit(["sh", "-c", HELD, str(tmp_path / "go"), "1"])
        running(job)
        job.add_done_callback(lambda job: None)
        assert [thread for thread in threading.enumerate() if thread.name == "quine.Executor callbacks"]
        (tmp_path / "go").touch()


def test_many_threads_submit(there: Lab) -> None:
    found: list[bytes] = []
    with quine.Executor() as executor:

        def work(name: int) -> None:
            jobs = [executor.submit(["echo", f"{name}.{index}"]) for index in range(8)]
            found.extend(job.result(PATIENCE).stdout for job in jobs)

        threads = [threading.Thread(target=work, args=[index]) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(found) == sorted(b"%d.%d\n" % (name, index) for name in range(8) for index in range(8))


def test_asyncio_waits_for_jobs_and_cancels_them(there: Lab) -> None:
    async def main() -> None:
        with quine.Executor() as executor:
            done = await asyncio.wait_for(asyncio.wrap_future(executor.submit(["echo", "hi"])), PATIENCE)
            assert done.stdout == b"hi\n"
            job = executor.submit(["sleep", "600"])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(job), 0.1)

    asyncio.run(main())


def test_so_many_at_a_time(there: Lab, tmp_path: Path) -> None:
    """Each waits for the other of its pair: with fewer than two at a time it would never end."""
    script = (
        'mkdir s$(($0 % 2)) || exit 9; touch "$0"; until test -e $(($0 / 2 * 2)) -a -e $(($0 / 2 * 2 + 1)); '
        "do sleep 0.01; done; ls -d s* | wc -l; rmdir s$(($0 % 2))"
    )
    with quine.Executor(slots=2) as executor:
        counts = {result.stdout.strip() for result in executor.map(["sh", "-c", script], "01", text=True)}
    assert counts <= {"1", "2"}


def test_an_executor_that_is_forgotten_ends_its_jobs_and_closes_its_connection(there: Lab) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    job = quine.Executor().submit(["sh", "-c", "sleep 0.1; echo done"])
    gc.collect()
    assert job.result(PATIENCE).stdout == b"done\n"
    del job
    _alone()
    gc.collect()
    until(lambda: len(os.listdir("/proc/self/fd")) == fds, "its descriptors are closed")


EXIT = """
import os, sys, quine
executor = quine.Executor(slots=1)
jobs = [executor.submit(["sh", "-c", "sleep 0.1; echo $0", str(index)]) for index in range(3)]
for job in jobs:
    job.add_done_callback(lambda job: os.write(1, job.result().stdout))
print("main ends", flush=True)
"""

FORK = """
import os, quine
executor = quine.Executor()
large = executor.submit(["head", "-c", "1000000", "/dev/zero"]).result()
job = executor.submit(["sh", "-c", "sleep 0.2; echo parent"])
pid = os.fork()
if not pid:
    try:
        executor.submit(["true"])
    except RuntimeError as error:
        print(error, flush=True)
    executor.shutdown(wait=False)
    raise SystemExit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
print(job.result().stdout, executor.submit(["true"]).result().status, len(large.stdout))
"""


def program(lab: Lab, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_the_interpreter_waits_for_all_that_was_submitted(there: Lab) -> None:
    done = program(there, EXIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "main ends\n0\n1\n2\n", "")


def test_a_fork_has_no_part_in_the_executor_of_its_parent(there: Lab) -> None:
    done = program(there, FORK)
    assert done.stdout.splitlines() == [
        "this executor belongs to the process that this one was forked from",
        "3",
        r"b'parent\n' 0 1000000",
    ], done.stderr


# -- agents ----------------------------------------------------------------------------------------

UPPER = [says(call("sh", command="tr a-z A-Z <&3 >&4; echo $QUINE_NODE_NAME >&4")), says(OK)]


@pytest.fixture
def guest(there: Lab, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], None]:
    def give(lines: list[Any]) -> None:
        for name, value in there.script(lines, "python.jsonl").items():
            monkeypatch.setenv(name, value)

    return give


@pytest.mark.parametrize("where", ["", "h1"])
def test_a_mission_is_an_agents(guest: Callable[[list[Any]], None], where: str) -> None:
    guest(UPPER)
    with quine.Executor(where) as executor:
        job = executor.submit(mission="shout", stdin="hello\n", text=True)
        command = executor.submit(["echo", "a command"], text=True)
        many = executor.map(None, ["a", "b"], mission="shout", text=True)
        assert [result.stdout for result in many] == [f"A{where}\n", f"B{where}\n"]
        result = job.result(PATIENCE)
        assert command.result(PATIENCE).stdout == "a command\n"
    assert (result.status, result.stdout, result.args) == (0, f"HELLO\n{where}\n", "shout")
    assert result.report["session"] and Path(f".quine/{result.report['session']}.jsonl").exists()


def test_an_agent_here_is_given_no_secret_and_a_command_is(
    guest: Callable[[list[Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    guest([says(OK)])
    monkeypatch.setenv("SOME_TOKEN", "secret")
    given: list[str | None] = []
    start = Batch.start

    def noted(self: Batch, spawn: Any, *rest: Any, **more: Any) -> Any:
        given.append(spawn.env.get("SOME_TOKEN"))
        return start(self, spawn, *rest, **more)

    monkeypatch.setattr(Batch, "start", noted)
    with quine.Executor() as executor:
        assert executor.submit(mission="do it").result(PATIENCE).status == 0
        assert executor.submit(["true"]).result(PATIENCE).status == 0
    assert given == [None, "secret"]


def test_agents_share_a_budget_and_one_without_it_is_never_started(
    guest: Callable[[list[Any]], None],
) -> None:
    guest([{**line, "usage": {"input": 1200, "output": 60}} for line in UPPER])
    with quine.Executor(slots=1, max_tokens=5000) as executor:
        jobs = [executor.submit(mission="shout", stdin=b"x") for _ in range(4)]
        wait(jobs, PATIENCE)
    assert jobs[0].result().status == 0
    with pytest.raises(quine.NeverStarted, match="budget") as caught:
        jobs[3].result()
    assert caught.value.status == 77
    with quine.Executor(max_tokens=5000) as executor:
        assert executor.submit(mission="shout", stdin=b"x").result(PATIENCE).status == 0, "another tree"


def test_without_a_guest_a_mission_has_that_error_and_a_command_runs(there: Lab) -> None:
    with quine.Executor() as executor:
        job = executor.submit(mission="anything")
        with pytest.raises(Misconfigured):
            job.result(PATIENCE)
        assert executor.submit(["true"]).result(PATIENCE).status == 0


def test_a_map_whose_arguments_mean_nothing_is_refused(there: Lab) -> None:
    with quine.Executor() as executor:
        with pytest.raises(ValueError, match="buffersize"):
            executor.map(["echo"], "ab", buffersize=0)
        with pytest.raises(TypeError, match="one iterable"):
            executor.map(None, "ab", "cd", mission="read it")


def test_turns_without_a_place_for_an_agent_leave_one_timer() -> None:
    waits: Any = object.__new__(crew.Crew)
    waits._timers, waits._next_look = Timers(), 0.0
    for _ in range(100):
        waits._look_later()
    assert len(waits._timers) == 1
