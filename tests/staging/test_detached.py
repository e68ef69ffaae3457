"""Files of detached jobs: laid out before --detach returns, brought back by who waits. And files with a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from quine.base.sessions import new_session
from quine.staging import remote_main
from quine.tape import registry
from tests.cli.screen import Screen
from tests.lab import Lab
from tests.support.agents import OK, PATIENCE, says, sh
from tests.support.detached import detach, folder, go, record
from tests.support.remote_agents import environment
from tests.support.trees import there, work
from tests.support.waiting import until
from transport.status import Status

__all__ = ["go", "there", "work"]


def ended(lab: Lab, job: str, *words: str, cwd: Path) -> tuple[int, bytes]:
    """Run `quine wait`; return its exit status and its output."""
    done = lab.run(["wait", *words, job], cwd=cwd)
    assert done.stdout == b""
    return done.returncode, done.stderr


@pytest.mark.long
def test_it_has_its_files_and_who_waits_has_what_it_made(lab: Lab, work: Path, go: Path) -> None:
    """In a directory that was made for it: laid out by the verb over there, whose own is removed after it."""
    script = f"read x <{go}; cat src/a.c - >out; mkdir logs; echo 1 >logs/1; exit 3"
    job = detach(lab, "--on", "h1", "--files", "src", "--", "sh", "-c", script, cwd=work, input="typed")
    (work / "src" / "a.c").write_text("changed since")
    place = Path(record(job, lab["h1"].home)["cwd"])
    assert place.name == job
    assert {path.name for path in place.rglob("*")} == {"src", "a.c", "deep", "empty", "nothing", "link"}
    assert {path.name for path in place.parent.glob(f"{job}*")} == {job}
    go.write_text("\n")
    assert ended(lab, job, "--returns", "out", "--returns=logs", cwd=work) == (3, b"")
    assert (work / "out").read_text() == "int a;typed"
    assert (work / "logs" / "1").read_text() == "1\n"
    (work / "out").unlink()
    assert ended(lab, job, "--returns", "o*", cwd=work / "src") == (3, b""), "again, and anywhere"
    assert (work / "src" / "out").read_text() == "int a;typed"
    (work / "out").write_text("")
    assert ended(lab, job[:24], "--on", "h1", "--returns", "out", cwd=work) == (3, b""), "by its beginning"
    assert (work / "out").read_text() == "int a;typed"


@pytest.mark.long
def test_in_a_directory_that_is_there(lab: Lab, work: Path, there: Path) -> None:
    words = ["--on", "h1", "--cwd", there, "--files", "Makefile", "--files", "src/a.c:b.c"]
    job = detach(lab, *words, "--", "cp", "Makefile", "made", cwd=work)
    assert ended(lab, job, "--returns", "made", cwd=work) == (0, b"")
    assert (work / "made").read_text() == "all:"
    assert {path.name for path in there.iterdir()} == {"Makefile", "b.c", "made"}


@pytest.mark.long
def test_beside_the_other_jobs_of_its_tree(lab: Lab, work: Path) -> None:
    tree = new_session()
    words = ["--on", "h1", "--", "touch", "made"]
    job = detach(lab, *words, cwd=work, env={"QUINE_ROOT_SESSION": tree})
    assert Path(record(job, lab["h1"].home)["cwd"]).name == tree
    assert ended(lab, job, cwd=work) == (0, b"")


def test_a_lost_job_brings_no_part_of_a_result(lab: Lab, work: Path, go: Path) -> None:
    (work / "r").write_text("whole result of yesterday")
    job = detach(lab, "--on", "h1", "--", "sh", "-c", f"echo part >r; read x <{go}; echo whole >r", cwd=work)
    place = Path(record(job, lab["h1"].home)["cwd"])
    until(lambda: (place / "r").exists(), "it has begun")
    os.kill(record(job, lab["h1"].home)["supervisor"], signal.SIGKILL)
    status, said = ended(lab, job, "--returns", "r", cwd=work)
    assert status == 74 and f"{job} is lost, and may have made a part of them, in {place}".encode() in said
    assert (work / "r").read_text() == "whole result of yesterday"


@pytest.mark.parametrize(
    ("state", "stopped", "why"),
    [
        ("exited", False, ""),
        ("exited", True, "was stopped"),
        ("signaled", False, ""),
        ("signaled", True, "was stopped"),
        ("lost", False, "is lost"),
        ("denied", False, "is denied"),
        ("running", False, "has not ended"),
        ("stopped", False, "has not ended"),
    ],
)
def test_a_host_gives_results_of_a_job_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, stopped: bool, why: str
) -> None:
    """Its origin may be told of an end that is none: the link is lost while the job goes on."""
    job = SimpleNamespace(id="job", verdict=lambda: Status(state, 0), stopped=stopped)
    monkeypatch.setattr(registry, "find", lambda *_: [job])
    monkeypatch.setattr(registry, "record", lambda _: {"cwd": str(tmp_path)})
    monkeypatch.chdir("/")
    more = "" if stopped else f", and may have made a part of them, in {tmp_path}"
    assert remote_main._go("j") == (str(tmp_path), why and f"job {why}{more}", stopped)


@pytest.mark.parametrize("on", ["h1", "local"])
def test_a_job_that_was_stopped_brings_no_part_of_a_result(
    lab: Lab, work: Path, tmp_path: Path, on: str
) -> None:
    """As with `quine run`: by a signal of `quine kill`, whatever it makes of that, or by its --deadline."""
    result = work / "r"
    result.write_text("whole result of yesterday")
    words, home = (["--on", on], lab[on].home) if on != "local" else (["--cwd", str(tmp_path)], lab.home)
    for stop, options, code, said in (
        ("wait $!", [], 143, "it was not to finish"),
        ("trap 'exit 5' TERM; wait $!", [], 5, "it was not to finish"),
        ("wait $!", ["--deadline", "0.05"], 124, "it was ended after 0.05 s (--deadline)"),
        ("trap 'exit 0' TERM; wait $!", [], 143, "it was not to finish"),
        ("trap 'echo whole >r; exit 0' HUP; wait $!", [], 0, ""),
    ):
        script = f"trap 'kill $!' EXIT; echo part >r; sleep 600 & echo up; {stop}"
        job = detach(lab, *words, *options, "--", "sh", "-c", script, cwd=work)
        if not options:
            until(lambda job=job: (folder(job, home) / "stdout").read_bytes(), "it is up")  # type: ignore[misc]
            lab.run(["kill", "-s", "TERM" if code else "HUP", job], cwd=work, check=True)
        status, told = ended(lab, job, "--returns", "r", cwd=work)
        assert (status, said in told.decode()) == (code, True), told
        if code:
            place = record(job, home)["cwd"]
            assert f"{on}: error: it was not to finish, and nothing was brought back\n" in told.decode()
            assert f"{on}: hint: the results are still on the host, in {place}\n" in told.decode()
            assert result.read_text() == "whole result of yesterday"
    assert result.read_text() == "whole\n"


def test_here_in_another_directory(lab: Lab, work: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    words = ["--cwd", tmp_path / "other", "--files", "src", "--"]
    job = detach(lab, *words, "sh", "-c", "cat - src/a.c >out", cwd=work, input="its own stdin: ")
    assert ended(lab, job, "--returns", "out", cwd=work) == (0, b"")
    assert (work / "out").read_text() == "its own stdin: int a;"
    told = b"quine: local: error: --returns none: nothing there to be brought back\n"
    assert ended(lab, job, "--returns", "none", cwd=tmp_path / "other") == (1, told), "all of it is here"
    assert ended(lab, job, "--returns", "none", cwd=work)[0] == 1


@pytest.mark.long
def test_the_same_id_again_lays_nothing_under_its_feet(
    lab: Lab, work: Path, go: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    for place in (["--on", "h1"], ["--cwd", tmp_path / "other"]):
        (work / "Makefile").write_text("all:")
        words = [*place, "--job", new_session(), "--files", "Makefile", "--"]
        job = detach(lab, *words, "sh", "-c", f"read x <{go}; cat Makefile", cwd=work)
        (work / "Makefile").write_text("other")
        assert detach(lab, *words, "false", cwd=work) == job
        go.write_text("\n")
        assert ended(lab, job, cwd=work) == (0, b"")
        assert lab.run(["logs", job]).stdout == b"all:"


def test_what_cannot_be_laid_out_starts_nothing(lab: Lab, work: Path, there: Path, tmp_path: Path) -> None:
    (there / "Makefile").mkdir()
    other = tmp_path / "other"
    (other / "Makefile").mkdir(parents=True)
    for place in (["--on", "h1", "--cwd", there], ["--cwd", other]):
        job = new_session()
        words = ["run", "--detach", "--job", job, *place, "--files", "Makefile", "--", "true"]
        done = lab.run(words, cwd=work)
        assert (done.returncode, done.stdout) == (69, b"")
        assert done.stderr.count(b"\n") == 1 and b"Makefile: a directory stands" in done.stderr
        assert not folder(job, lab.home).exists() and not folder(job, lab["h1"].home).exists()
        assert lab.run([*words[:-3], "nope", "--", "true"], cwd=work).returncode == 2
    done = lab.run(["run", "--detach", "--on", "h1", "--returns", "x", "--", "true"], cwd=work)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"quine wait --returns" in done.stderr


def test_a_directory_that_nobody_could_fill_is_refused_before_the_start(lab: Lab, work: Path) -> None:
    job = new_session()
    done = lab.run(["run", "--detach", "--mount", "--on", "h1", "--job", job, "--", "true"], cwd=work)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--mount: a command that was detached has no origin" in done.stderr and b"direct" in done.stderr
    assert not folder(job, lab["h1"].home).exists()


@pytest.mark.long
def test_who_is_killed_while_files_are_under_way_has_started_nothing(lab: Lab, work: Path) -> None:
    """On a line on which the first of them cannot have come when the directory over there is made."""
    with open(work / "large", "wb") as file:
        file.truncate(64 << 20)
        for at in range(0, 64 << 20, 1 << 20):
            file.seek(at)
            file.write(os.urandom(1 << 12))
    slow = lab.slow("h1", 0.2)
    job = new_session()
    words = ["run", "--detach", "--on", slow, "--job", job, "--files", "large", "--", "true"]
    with lab.popen(words, cwd=work, stdout=subprocess.PIPE) as proxy:
        until(lambda: any(lab["h1"].home.rglob(f"*{job}*")) or proxy.poll() is not None, "it has begun")
        proxy.kill()
        assert proxy.stdout and proxy.stdout.read() == b""
    assert lab.wait_idle() == []
    assert not folder(job, lab["h1"].home).exists()
    until(lambda: not any((lab["h1"].home / "quine").glob(f"{job}*")), "no empty directory is left")


@pytest.mark.long
def test_two_who_detach_one_id_at_one_time_lay_out_once(lab: Lab, work: Path, tmp_path: Path) -> None:
    """Each caller has files of its own: the job that runs has the files of one of them."""
    (tmp_path / "other").mkdir()
    for place in (["--on", "h1"], ["--cwd", tmp_path / "other"]):
        job = new_session()
        proxies = []
        for name in ("one", "two"):
            (work / name).mkdir(exist_ok=True)
            for at in range(200):
                (work / name / f"f{at}").write_text(name + "\n")
            script = f"cat f* | sort | uniq -c; read x <{tmp_path}/again; cat f* | sort | uniq -c"
            words = ["run", "--detach", *place, "--job", job, "--files", "f*", "--", "sh", "-c", script]
            proxies.append((words, work / name))
        (tmp_path / "again").unlink(missing_ok=True)
        os.mkfifo(tmp_path / "again")
        started = [lab.popen(words, cwd=cwd, stdout=subprocess.PIPE) for words, cwd in proxies]
        for proxy in started:
            assert proxy.communicate()[0].decode().split() == [job]
        (tmp_path / "again").write_text("\n")
        assert ended(lab, job, cwd=work) == (0, b"")
        before, after = lab.run(["logs", job]).stdout.splitlines()
        assert before == after and before.split()[0] == b"200"


@pytest.mark.long
def test_who_waited_for_one_that_was_killed_starts_it(lab: Lab, work: Path, tmp_path: Path) -> None:
    """The other one is of another machine, which has no note of the host of this id."""
    (work / "large").write_bytes(os.urandom(64 << 20))
    slow = lab.slow("h1", 0.2)
    job = new_session()
    words = ["run", "--detach", "--job", job, "--files"]
    other = {"XDG_STATE_HOME": str(tmp_path / "state"), "QUINE_DATA_DIR": str(tmp_path / "data")}
    with lab.popen([*words, "large", "--on", slow, "--", "true"], cwd=work, env=other) as first:
        place = lab["h1"].home / "quine" / job
        until(lambda: any(place.glob(".quine-aside-*")) or first.poll() is not None, "it has begun")
        second = lab.popen([*words, "Makefile", "--on", "h1", "--", "ls"], cwd=work, stdout=subprocess.PIPE)
        until(lambda: _is_waited_for(lab["h1"].home) or second.poll() is not None, "the other one waits")
        first.kill()
        assert second.communicate()[0].decode().split() == [job]
    assert ended(lab, job, cwd=work) == (0, b"")
    assert lab.run(["logs", job]).stdout == b"Makefile\n"


def _is_waited_for(home: Path) -> bool:
    """Whether the kernel lists a process that waits for the lock."""
    inode = folder(".laying", home).stat().st_ino
    return any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.long
def test_who_ends_the_wait_while_files_come_ends_it(lab: Lab, work: Path) -> None:
    """By that signal, and for all ids: nothing of the next one is brought."""
    script = "dd if=/dev/urandom of=large bs=1M count=64 2>/dev/null"
    first = detach(lab, "--on", "h1", "--files", "Makefile", "--", "sh", "-c", script, cwd=work)
    second = detach(lab, "--on", "h1", "--files", "Makefile", "--", "touch", "large2", cwd=work)
    for job in (first, second):
        assert ended(lab, job, cwd=work) == (0, b"")
    slow = lab.slow("h1", 0.2)
    proxy = lab.popen(["wait", "--on", slow, "--returns", "large*", first, second], cwd=work)
    until(lambda: any(work.glob(".quine-aside-*")) or proxy.poll() is not None, "they come")
    proxy.send_signal(signal.SIGINT)
    assert proxy.wait(PATIENCE) == -signal.SIGINT
    assert not [*work.glob("large*"), *work.glob(".quine-*")]


@pytest.mark.long
def test_what_cannot_be_brought_back_is_said(lab: Lab, work: Path, tmp_path: Path) -> None:
    job = detach(lab, "--on", "h1", "--", "true", cwd=work)
    told = b"quine: h1: error: --returns none, a/*: nothing there to be brought back\n"
    words = ["--returns", "none", "--returns", "a/*"]
    assert ended(lab, job, *words, cwd=work) == (1, told), "its directory was left empty, and is removed"
    job = detach(lab, "--on", "h1", "--", "sh", "-c", "touch it; exit 9", cwd=work)
    told = b"quine: h1: error: --returns no*: nothing there to be brought back\n"
    assert ended(lab, job, "--returns", "it", "--returns", "no*", cwd=work) == (9, told)
    assert (work / "it").exists()
    code, told = ended(lab, job, "--returns", "../x", cwd=work)
    assert (code, b"leads out" in told) == (2, True)


def test_of_an_agent_that_is_not_detached_nothing_is_brought(lab: Lab, work: Path, tmp_path: Path) -> None:
    env = environment(lab, tmp_path / "data", says(OK))
    assert lab.run(["mission"], env=env, cwd=work).returncode == 0
    (tape,) = (tmp_path / "data").glob("*.jsonl")
    done = lab.run(["wait", "--returns", "x", tape.stem], env=env, cwd=work)
    assert done.returncode == 2 and b"is not detached" in done.stderr


def test_a_detached_agent_over_there_has_files_and_returns(lab: Lab, work: Path, tmp_path: Path) -> None:
    """The proxy of the agent is detached, and has files and returns as any proxy does."""
    env = environment(lab, tmp_path / "data", says(sh("cat src/a.c Makefile >out")), says(OK))
    words = ["--detach", "--on", "h1", "--files", "src", "--files", "Makefile", "--returns", "out"]
    job = lab.run([*words, "mission"], env=env, cwd=work, check=True).stdout.decode().strip()
    done = lab.run(["wait", job], env=env, cwd=work)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (work / "out").read_text() == "int a;all:"
    done = lab.run(["--detach", "--on", "h1", "--files", "nope", "mission"], env=env, cwd=work)
    assert done.returncode == 2, "an error is reported at once"


@pytest.mark.parametrize("key", [b"\r", b"\x03"])
def test_with_a_terminal(lab: Lab, work: Path, key: bytes) -> None:
    """Files go before it and returns come after it; typed keys go to the command."""
    script = "test -t 0 && cat src/a.c && stty size && echo made >out && echo up && read x && exit 5"
    words = ["run", "-t", "--on", "h1", "--files", "src", "--returns", "out", "--", "sh", "-c", script]
    with Screen() as screen:
        client = screen.start(lab, words, cwd=work)
        screen.wait(b"int a;24 80\r\nup\r\n")
        screen.type(key)
        assert client.wait(PATIENCE) == (5 if key == b"\r" else -signal.SIGINT)
        assert screen.settings == screen.found
    assert (work / "out").read_text() == "made\n"
