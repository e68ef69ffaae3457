"""Tapes and results in the files tier: kept while a tree runs and after it, and found there from another machine.

"Another machine" is another home and another data directory. A tape names its machine, and stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from quine.archive import daemon, policy, upload
from quine.archive import local_mirror as kept
from quine.base.cli_options import RunOptions
from quine.base.errors import Failure
from quine.base.log import Log
from quine.base.sessions import new_session
from quine.files.layers.reserved import Unreserved
from quine.files.stores.local.store import Local
from quine.jobs import attach_logs
from tests.files.commands import Shelf
from tests.lab import Lab, processes
from tests.support.agents import OK, QUINE, Agents, Started, call, left, running, says, sh, until
from transport.address import boot_id, start_time

PLACE = policy.PLACE

pytestmark = pytest.mark.timeout(300)  # a dozen commands in one test


class Kept(Agents):
    """Agents whose tier is a directory that others can reach."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.tier = directory / "shared"
        self.took = 0.0  # seconds
        self.env |= {"QUINE_FS": f"file://{self.tier}", "HOME": str(directory / "home")}

    def elsewhere(self, *words: str, **more: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command of a user with the same QUINE_FS and nothing else in common."""
        other = self.directory / "other"
        other.mkdir(exist_ok=True)
        env = self.env | {"HOME": str(other), "XDG_STATE_HOME": str(other / "state"), **more}
        env["QUINE_DATA_DIR"] = str(other / "data")
        return subprocess.run([*QUINE, *words], cwd=other, env=env, capture_output=True, timeout=200)

    def kept(self, name: str = "") -> Path:
        return self.tier / PLACE / name

    def same(self) -> bool:
        """Is every tape here in the tier, byte for byte?"""
        here = {path.name: path.read_bytes() for path in self.data.glob("*.jsonl")}
        there = {path.name: path.read_bytes() for path in self.kept().glob("*.jsonl")}
        return bool(here) and here == there

    def run(self, *lines: dict[str, Any], **more: Any) -> subprocess.CompletedProcess[bytes]:
        begun = time.monotonic()
        done = super().run(*lines, **more)
        self.took = time.monotonic() - begun
        return done

    def settled(self) -> bool:
        """The same once a tree that `run` ran is over: its end waits for that, though not for ever."""
        if self.took >= policy.PATIENCE:
            until(self.same)
        return self.same()


@pytest.fixture
def agents(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def session_of(agents: Agents, mission: str = "work") -> str:
    return str(agents.tape(mission)[0]["data"]["session_id"])


def fork(intent: str, **more: Any) -> dict[str, Any]:
    return call("fork", intent=intent, **more)


def family(agents: Kept, **more: Any) -> str:
    """A root that leaves with 3, a child it waits for and one it does not, both with output; the root's session."""
    done = agents.run(
        says(fork("waited", wait=True), fork("alone", wait=False), match="^work"),
        says(sh("quine wait $(ls $QUINE_DATA_DIR/jobs)"), match="^work"),
        says(call("exit", status=3, stderr="because"), match="^work"),
        says(sh("echo out >&4; exit 0"), OK, match="^(waited|alone)"),
        **more,
    )
    assert done.returncode == 3, done.stderr.decode()
    return session_of(agents)


# ------------------------------------------------------------------------------------------------ kept


def test_a_tree_is_kept_whole_when_it_ends(agents: Kept) -> None:
    root = family(agents)
    assert agents.settled() and len(list(agents.kept().glob("*.jsonl"))) == 3
    alone = session_of(agents, "alone")
    until(lambda: agents.kept(f"jobs/{alone}/status").exists())
    assert agents.kept(f"jobs/{alone}/stdout").read_bytes() == b"out\n"
    assert json.loads(agents.kept(f"jobs/{alone}/status").read_bytes())["code"] == 0
    assert not left("--keep", root)
    # A tape that is here comes first, and is said to be here.
    for path in agents.kept().glob("*.jsonl"):
        path.write_bytes(b"spoiled\n")
    env = agents.env | {"QUINE_FS_TAPES": "on"}
    shown = subprocess.run(
        [*QUINE, "tape", "show", root], cwd=agents.directory, env=env, capture_output=True, timeout=200
    )
    assert shown.returncode == 0 and b"because" in shown.stdout and not shown.stderr


@pytest.mark.long
def test_it_is_found_from_another_machine(agents: Kept) -> None:
    root = family(agents)
    assert agents.settled()
    until(lambda: agents.kept(f"jobs/{session_of(agents, 'alone')}/status").exists())
    listed = [json.loads(line) for line in agents.elsewhere("tape", "ls", "--json").stdout.splitlines()]
    assert {one["session"] for one in listed} == {path.stem for path in agents.data.glob("*.jsonl")}
    assert all(one["kept"] for one in listed)
    table = agents.elsewhere("tape", "ls").stdout.decode().splitlines()
    assert "WHERE" in table[0] and all(" fs " in line for line in table[1:]) and len(table) == 4
    shown = agents.elsewhere("tape", "show", root)
    assert shown.returncode == 0 and b"because" in shown.stdout
    assert agents.elsewhere("tape", "tree").stdout.count(b"\n") == 4
    assert agents.elsewhere("tape", "cost", root).returncode == 0
    verified = agents.elsewhere("tape", "verify", root)
    assert verified.returncode == 0 and b"whole" in verified.stdout
    assert agents.elsewhere("wait", root).returncode == 3
    # Its children begin so, if they were quick.
    assert agents.elsewhere("wait", root[:20]).returncode in (2, 3)
    assert agents.elsewhere("wait", session_of(agents, "alone")).returncode == 0
    assert agents.elsewhere("logs", session_of(agents, "alone")).stdout == b"out\n"
    unknown = agents.elsewhere("tape", "show", "ffff")
    assert unknown.returncode == 2 and b"no session" in unknown.stderr


@pytest.mark.long
def test_a_tape_is_there_while_its_agent_lives_and_its_end_is_waited_for(agents: Kept) -> None:
    fifo = agents.directory / "go"
    os.mkfifo(fifo)
    agents.script(says(sh(f"read x <{fifo}")), says(call("exit", status=5, stderr="so")))
    with agents.start("work") as process:
        until(lambda: list(agents.kept().glob("*.jsonl")))
        (tape,) = agents.kept().glob("*.jsonl")
        assert tape.read_bytes().endswith(b"\n")
        env = {
            **agents.env,
            "QUINE_DATA_DIR": str(agents.directory / "o"),
            "HOME": str(agents.directory / "o"),
        }
        with Started([*QUINE, "wait", tape.stem], cwd=agents.directory, env=env) as waiting:
            late = agents.elsewhere("wait", "--timeout", "0.1", tape.stem)
            fifo.write_text("\n")
            assert process.wait(120) == 5
            assert waiting.wait(120) == 5
            assert late.returncode == 124
    until(agents.same)


def test_what_a_killed_root_has_written_is_kept(agents: Kept) -> None:
    agents.script(says(sh("sleep 600")))
    with agents.start("work") as process:
        until(lambda: agents.data.is_dir() and agents.tapes() and len(agents.tapes()[0]) > 2)
        root = session_of(agents)
        process.kill()
        process.wait()
    until(lambda: agents.same())
    assert not left("--keep", root)


@pytest.mark.long
def test_a_detached_agent_can_be_waited_for_elsewhere(agents: Kept) -> None:
    agents.script(says(sh("echo deliverable >&4")), says(call("exit", status=4, stderr="no")))
    with agents.start("work", "--detach") as process:
        job = process.communicate(timeout=120)[0].decode().strip()
    until(lambda: agents.kept(f"{job}.jsonl").exists())
    assert agents.elsewhere("wait", job).returncode == 4
    assert agents.elsewhere("logs", job).stdout == b"deliverable\n"
    assert agents.same()
    assert not left("--keep", job)


def test_exec_is_one_tree(agents: Kept) -> None:
    agents.run(
        says(call("exec", wisdom={"k": "v"}, reason="again"), wisdom="{}"), says(OK, wisdom="k"),
    )  # fmt: skip
    assert agents.settled() and len(list(agents.kept().glob("*.jsonl"))) == 2
    first = min(path.stem for path in agents.data.glob("*.jsonl"))
    assert agents.elsewhere("wait", first).returncode == 0


# ------------------------------------------------------------------------------------- whose it is, and when


def test_by_default_nothing_is_kept(agents: Kept) -> None:
    for url in ("", "origin:"):
        agents.env["QUINE_FS"] = url
        agents.run(says(sh("true")), says(OK))
    assert not (agents.data / "fs").exists()


def test_the_default_tier_keeps_when_it_is_told_to(agents: Kept) -> None:
    agents.env |= {"QUINE_FS": "origin:", "QUINE_FS_TAPES": "on"}
    agents.tier = agents.data / "fs"
    agents.run(says(OK))
    assert agents.settled() and len(list(agents.kept().glob("*.jsonl"))) == 1


def test_keeping_can_be_switched_off_and_done_by_hand(agents: Kept) -> None:
    agents.env["QUINE_FS_TAPES"] = "off"
    root = family(agents)
    assert not agents.tier.exists()
    env = agents.env | {"QUINE_FS_TAPES": ""}
    saved = subprocess.run(
        [*QUINE, "tape", "archive", root], cwd=agents.directory, env=env, capture_output=True, timeout=200
    )
    assert saved.returncode == 0 and saved.stdout.startswith(b"7 files copied to file://")
    assert agents.same()


def test_a_wrong_switch_is_a_usage_error(agents: Kept) -> None:
    agents.env["QUINE_FS_TAPES"] = "yes"
    done = agents.run(says(OK))
    assert done.returncode == 2 and b"QUINE_FS_TAPES" in done.stderr


def test_a_tree_whose_archive_cannot_be_started_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    full = mock.Mock(side_effect=BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(Failure, match=r"archive .* resource temporarily unavailable") as caught:
        policy.begin(new_session(), {}, {})
    assert caught.value.status == 69


@pytest.mark.long
def test_a_store_that_is_away_fails_nobody_and_is_noted(agents: Kept) -> None:
    (agents.directory / "file").write_text("")
    agents.env["QUINE_FS"] = f"file://{agents.directory}/file/below"
    done = agents.run(says(sh("echo fine >&4")), says(OK))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"fine\n", b"")
    log = agents.data / f"{session_of(agents)}.log"
    until(lambda: log.exists() and b"the files tier takes no tapes" in log.read_bytes())
    for pid in running("--keep", session_of(agents)):
        processes.kill(pid)


@pytest.mark.long
def test_a_store_that_comes_back_is_given_all(agents: Kept) -> None:
    gate = agents.directory / "gate"
    gate.write_text("")
    agents.tier = gate / "tier"
    agents.env["QUINE_FS"] = f"file://{agents.tier}"
    agents.run(says(OK))
    until(lambda: running("--keep", session_of(agents)))
    gate.unlink()
    until(lambda: agents.kept().is_dir() and agents.same(), 120)
    assert not left("--keep", session_of(agents))


def test_a_keeper_holds_no_key_of_a_guest_and_shows_none_of_the_store(agents: Kept) -> None:
    fifo = agents.directory / "go"
    os.mkfifo(fifo)
    agents.script(says(sh(f"read x <{fifo}; env >&4")), says(OK))
    secrets = {"AWS_SECRET_ACCESS_KEY": "canary-of-the-store", "OPENAI_API_KEY": "canary-of-the-guest"}
    with agents.start("work", env=secrets) as process:
        until(lambda: list(agents.kept().glob("*.jsonl")))
        until(lambda: len(running("--keep", session_of(agents))) == 1)
        (pid,) = running("--keep", session_of(agents))
        for name in ("environ", "cmdline"):
            assert b"canary" not in Path(f"/proc/{pid}/{name}").read_bytes()
        memos = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # a file that it has copied meanwhile
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/memfd:"):
                    memos.append(Path(f"/proc/{pid}/fd/{name}").read_bytes())
        assert memos and not any(b"canary-of-the-guest" in memo for memo in memos)
        fifo.write_text("\n")
        out, _ = process.communicate(timeout=120)
    assert b"canary" not in out
    assert not any(b"canary" in path.read_bytes() for path in agents.tier.rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------ signs of life


def begun(tier: Path, session: str) -> None:
    """Write a tape into the tier, of a life that another process began."""
    meta = {"session_id": session, "root_session_id": session, "mission": "work", "timestamp": 1e9}
    (tier / PLACE).mkdir(parents=True)
    (tier / PLACE / f"{session}.jsonl").write_text(json.dumps({"type": "meta", "data": meta}) + "\n")


@pytest.mark.long
def test_who_waits_for_a_tree_that_is_silent_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = new_session()
    begun(tmp_path / "tier", session)
    monkeypatch.setenv("QUINE_FS", f"file://{tmp_path}/tier")
    monkeypatch.setenv("HOME", str(tmp_path))
    (agent,) = kept.find(session)
    clock = 0.0

    def pass_(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    # A clock of its own: that who signs on is late once is no silence.
    monkeypatch.setattr(kept, "time", SimpleNamespace(monotonic=lambda: clock, sleep=pass_))
    mirror, beats = kept.mirror, 0

    def alive() -> Path | None:
        nonlocal beats
        beats += 1
        (tmp_path / "tier" / PLACE / f"{session}{policy.BEAT}").write_text("x" * beats)
        return mirror()

    with monkeypatch.context() as patched:
        patched.setattr(kept, "mirror", alive)
        assert kept.ended(agent, 3 * kept.SILENCE) is None, "it lives, and is waited for"
        assert beats
    with pytest.raises(Failure, match="nothing has been heard of its tree") as caught:
        kept.ended(agent, float("inf"))
    assert caught.value.status == 74


def test_who_waits_for_a_job_waits_for_its_output_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quine wait ID && quine logs ID`: the tape tells the end before the output has come."""
    session = new_session()
    begun(tmp_path / "tier", session)
    place = tmp_path / "tier" / PLACE
    with open(place / f"{session}.jsonl", "a") as tape:
        tape.write(json.dumps({"type": "outcome", "data": {"exit_code": 3}}) + "\n")
    (place / "jobs" / session).mkdir(parents=True)
    (place / "jobs" / session / "job").write_text("{}")
    monkeypatch.setenv("QUINE_FS", f"file://{tmp_path}/tier")
    monkeypatch.setenv("HOME", str(tmp_path))
    (agent,) = kept.find(session)
    with pytest.raises(Failure, match="not in the files tier yet"):
        attach_logs.logs(agent, RunOptions())
    clock = 0.0

    def pass_(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    monkeypatch.setattr(kept, "time", SimpleNamespace(monotonic=lambda: clock, sleep=pass_))
    assert kept.ended(agent, 5.0) is None, "its status is to come"
    late = kept.ended(agent, float("inf"))  # the process that writes the status may have been killed
    assert late and late.end().code == 3 and kept.LATE <= clock < 2 * kept.LATE
    (place / "jobs" / session / "stdout").write_text("made\n")
    (place / "jobs" / session / "status").write_text(json.dumps({"state": "exited", "code": 3}))
    begun_at = clock
    over = kept.ended(agent, float("inf"))
    assert over and (Path(over.directory) / "stdout").read_text() == "made\n" and clock < begun_at + kept.LATE


def test_a_keeper_gives_signs_of_life_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = new_session()
    monkeypatch.setenv("QUINE_FS", f"file://{tmp_path}/tier")
    monkeypatch.setenv("QUINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(daemon, "BEAT", 0.05)
    beat = tmp_path / "tier" / PLACE / f"{session}{policy.BEAT}"
    with socket.socket(socket.AF_UNIX) as listener, subprocess.Popen(["sleep", "1000"]) as root:
        listener.bind(f"\0quine-test-{session}")
        listener.listen()
        log = Log(str(tmp_path / "log"))
        one = daemon.Keeper(session, os.pidfd_open(root.pid), listener, str(tmp_path / "data"), log)
        running = threading.Thread(target=one.run)
        running.start()
        try:
            until(beat.exists)
            first = beat.read_bytes()
            until(lambda: beat.read_bytes() != first)
        finally:
            root.kill()
            running.join(60)
    assert not running.is_alive() and not beat.exists()


# ------------------------------------------------------------------------------------------ in what order


def test_a_status_is_never_there_before_what_it_vouches_for(tmp_path: Path) -> None:
    """The store fails at every single operation in turn; after each, what is there is whole in its order."""
    data, state = tmp_path / "data", tmp_path / "state"
    session = new_session()
    (data / "jobs" / session).mkdir(parents=True)
    line = json.dumps({"type": "meta", "data": {"session_id": session, "root_session_id": session}})
    (data / f"{session}.jsonl").write_text(line + "\n" + line + "\n" + line[:10])
    for name in upload.RESULTS:
        (data / "jobs" / session / name).write_text(name)

    class Failing(Local):
        left = 0

        def create(self, path: str, **options: Any) -> Any:
            if self.left <= 0:
                raise OSError(errno.EIO, "away", path)
            self.left -= 1
            return super().create(path, **options)

    assert upload.RESULTS[-1] == "status"
    record, *results = (f"jobs/{session}/{name}" for name in upload.RESULTS)
    order = [record, f"{session}.jsonl", *results]
    for count in range(len(order) + 1):
        tier = Failing(str(tmp_path / f"tier{count}"))
        tier.left = count
        made = upload.Copies(tier, str(data), str(state), session)
        if count < len(order):
            with pytest.raises(OSError, match="away"):
                made.round()
        else:
            assert made.round() == len(order)
        there = [name for name in order if (tmp_path / f"tier{count}" / PLACE / name).exists()]
        assert there == order[:count]
        tier.left = 100
        assert made.round() == len(order) - count and made.round() == 0
        assert (tmp_path / f"tier{count}" / PLACE / order[1]).read_text() == line + "\n" + line + "\n"


# -------------------------------------------------------------------------------------- what is reserved


def test_who_only_uses_the_tier_neither_sees_nor_changes_the_record(tmp_path: Path) -> None:
    whole = Local(str(tmp_path / "store"))
    for path in (".quine/sessions/x.jsonl", "a/b", ".quiner"):
        with whole.create(path) as writer:
            writer.write(b"1")
            writer.commit()
    tier = Unreserved(whole)
    assert [entry.path for entry in tier.list("")] == [".quiner", "a"]
    assert [entry.path for entry in tier.walk("")] == [".quiner", "a", "a/b"]
    for path in (".quine", ".quine/sessions", ".quine/sessions/x.jsonl"):
        for look in (
            tier.stat,
            tier.open,
            lambda path: list(tier.list(path)),
            lambda path: tier.copy(path, "c"),
        ):
            with pytest.raises(FileNotFoundError):
                look(path)
        for change in (
            tier.create,
            tier.mkdir,
            tier.remove,
            lambda path: tier.rename(path, "c"),
            lambda path: tier.rename("a/b", path),
            lambda path: tier.copy("a/b", path),
        ):
            with pytest.raises(PermissionError, match="reserved"):
                change(path)
    assert whole.stat(".quine/sessions/x.jsonl").size == 1
    assert tier.stat(".quiner").is_file


def test_no_command_removes_the_record(agents: Kept) -> None:
    agents.run(
        says(sh("echo 1 | quine fs put - a; quine fs rm -r '*'; quine fs rm -r .quine; quine fs ls")),
        says(OK),
    )
    assert agents.settled()
    kept = sorted(path.name for path in agents.kept().glob("*.jsonl"))
    assert kept
    (agents.directory / "empty").mkdir()
    shelf = Shelf(agents.directory)
    shelf.env = agents.env
    for words in (
        ["sync", "--delete", "empty", "tier:"],
        ["rm", "-r", ".quine"],
        ["mv", ".quine", "x"],
        ["ls", "-a"],
    ):
        assert b"sessions" not in shelf.run(*words).stdout
        assert sorted(path.name for path in agents.kept().glob("*.jsonl")) == kept


def test_a_child_that_was_never_started_has_its_record_there(agents: Kept, lab: Lab) -> None:
    """It has no tape, so it is known by its parent."""
    # All that makes a node one of the lab, which ends it. With a HOME of its own it was a second one for some minutes,
    # and with another PATH the one of the tests that follow had another ssh.
    agents.env |= lab.env
    agents.run(
        says(fork("alone", wait=False, host="nowhere"), match="^work"),
        says(sh("quine wait $(ls $QUINE_DATA_DIR/jobs)"), match="^work"),
        says(OK, match="^work"),
    )
    (job,) = (agents.data / "jobs").iterdir()
    until(lambda: agents.kept(f"jobs/{job.name}/status").exists())
    assert agents.elsewhere("wait", job.name).returncode == 69


def test_a_store_that_is_away_hides_nothing_that_is_here(agents: Kept) -> None:
    agents.run(says(OK))
    (agents.directory / "file").write_text("")
    env = agents.env | {"QUINE_FS": f"file://{agents.directory}/file/below"}

    def here(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*QUINE, *words], cwd=agents.directory, env=env, capture_output=True, timeout=200
        )

    listed = here("tape", "ls")
    assert listed.stdout.count(b"\n") == 2 and b"the files tier" in listed.stderr and listed.returncode == 1
    assert here("tape", "show").returncode == 0 and here("wait", session_of(agents)).returncode == 0
    missing = here("wait", "ffffffff")
    assert missing.returncode == 1 and b"the files tier" in missing.stderr


@pytest.mark.long
def test_what_a_store_holds_becomes_no_path_and_means_no_process(agents: Kept) -> None:
    agents.run(says(OK))
    assert agents.settled()
    session = session_of(agents)
    assert not left("--keep", session)
    for name in (
        f"jobs/{session}/evil",
        "jobs/evil/status",
        "evil.jsonl",
        f"{session}.jsonl.evil",
        f"jobs/{session}/job",
    ):
        path = agents.kept(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = {"session": session, "pid": os.getpid(), "supervisor": os.getpid(), "boot_id": boot_id()}
        started = start_time(os.getpid())
        path.write_text(json.dumps({**facts, "started": started, "supervisor_started": started}))
    assert agents.elsewhere("tape", "ls").stdout.count(b"\n") == 2
    cache = agents.directory / "other" / ".cache" / "quine" / "tier"
    found = {str(path.relative_to(cache)).split("/", 1)[1] for path in cache.rglob("*") if path.is_file()}
    assert found == {f"{session}.jsonl", f"jobs/{session}/job", "versions"}
    killed = agents.elsewhere("kill", "-s", "KILL", session)
    assert killed.returncode == 1 and b"not known here" in killed.stderr
    # With the status that belongs to the record of a job: the verb would wait for it, as the tape says the end.
    agents.kept(f"jobs/{session}/status").write_text(json.dumps({"state": "exited", "code": 0}))
    assert agents.elsewhere("wait", session).returncode == 0
