"""--detach, ps, attach, logs, wait, kill: jobs that outlive who asked for them, found again from anywhere."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.inventory import _weight, load
from quine.base import procs
from quine.base.cli_options import RunOptions
from quine.base.sessions import is_session, new_session
from quine.cli import job_verbs
from quine.jobs import detach as detach_verb
from quine.jobs import foreign, job_files, logind
from quine.remote.placement import DETACHED_LEASE, settle
from quine.tape import registry
from tests.lab import Lab, processes
from tests.lab.host import Host
from tests.lab.lab import BUILDS
from tests.lab.machine import UNSHARE, can_mount
from tests.support.agents import PATIENCE
from tests.support.detached import detach, folder, record
from tests.support.detached import go as go
from tests.support.values import JSON
from tests.support.waiting import until
from transport import address, this_build
from transport.detached import spool
from transport.detached.order import Order
from transport.detached.start import start
from transport.errors import NoSuchHost
from transport.spawn import Spawn


def facts(lab: Lab, job: str, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = lab.run(["ps", "-a", "--json", *words], env=env, check=True)
    (fact,) = [fact for fact in map(json.loads, done.stdout.splitlines()) if fact["id"] == job]
    found: dict[str, Any] = fact
    return found


# -- here ------------------------------------------------------------------------------------------


def test_it_runs_on_and_is_found_by_its_id(lab: Lab, go: Path) -> None:
    job = detach(lab, "--", "sh", "-c", f"echo out; echo err >&2; read x <{go}; echo late; exit 7")
    fact = facts(lab, job)
    assert (fact["state"], fact["code"], fact["host"], fact["root"]) == ("running", None, "local", job)
    both = [folder(job, lab.home) / name for name in ("stdout", "stderr")]
    until(lambda: all(path.read_bytes() for path in both), "it has spoken")
    assert lab.run(["logs", job]).stdout == b"out\n"
    proxy = lab.popen(["attach", job[:20]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert proxy.stdout and proxy.stdout.readline() == b"out\n"
    go.write_text("\n")
    assert proxy.communicate(timeout=120) == (b"late\n", b"err\n")
    assert proxy.returncode == 7
    assert lab.run(["wait", job]).returncode == 7
    fact = facts(lab, job)
    assert (fact["state"], fact["code"]) == ("exited", 7)
    again = lab.run(["attach", job])
    assert (again.returncode, again.stdout, again.stderr) == (7, b"out\nlate\n", b"err\n")
    assert lab.run(["attach", "--from", "4", job]).stdout == b"late\n"
    assert lab.run(["attach", "--from=end", job]).stdout == b""
    done = lab.run(["attach", "--from", "4000,4", job])
    assert (done.stdout, done.stderr) == (
        b"",
        f"quine: note: stdout of {job} has 9 bytes, and --from left out 4000\n".encode(),
    )
    assert b"\n  " not in lab.run(["ps"]).stdout and job[:18].encode() not in lab.run(["ps"]).stdout


def test_who_asks_in_a_directory_that_was_removed(lab: Lab, tmp_path: Path) -> None:
    job = detach(lab, "--", "true")
    for verb in (f"wait {job}", "ps --all", f"logs {job}", f"attach {job}"):
        (tmp_path / "gone").mkdir()
        script = f"rmdir ../gone; exec quine {verb}"
        done = subprocess.run(["sh", "-c", script], cwd=tmp_path / "gone", env=lab.env, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b""), verb


@pytest.mark.parametrize(
    ("words", "code"), [("", 0), ("--joblog log", 2), ("--detach", 2)], ids=["plain", "log", "detached"]
)
def test_a_batch_in_a_directory_that_was_removed_runs_unless_it_needs_it(
    lab: Lab, tmp_path: Path, words: str, code: int
) -> None:
    (tmp_path / "gone").mkdir()
    script = f"rmdir ../gone; exec quine xargs {words} -- echo ::: a"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path / "gone", env=lab.env, capture_output=True)
    why = b"quine: error: the current directory has been removed\nquine: hint: cd to another one\n"
    assert (done.returncode, done.stdout, done.stderr) == ((2, b"", why) if code else (0, b"a\n", b""))


def test_it_leaves_as_the_job_left(lab: Lab) -> None:
    job = detach(lab, "--", "sh", "-c", "kill -SEGV $$")
    assert lab.run(["wait", job]).returncode == 139
    assert lab.run(["attach", job]).returncode == -signal.SIGSEGV
    assert facts(lab, job)["signal"] == "SEGV"


def test_what_does_not_start_leaves_nothing(lab: Lab) -> None:
    kept = lab.home / ".local/state/quine/jobs"
    before = set(kept.iterdir()) if kept.exists() else set()
    done = lab.run(["run", "--detach", "--", "no-such-command"])
    assert (done.returncode, done.stdout) == (127, b"")
    assert done.stderr == b"quine: error: command not found: no-such-command\n"
    assert lab.run(["run", "--detach", "--cwd", "/no/such", "--", "true"]).returncode == 69
    assert set(kept.iterdir()) <= before


@pytest.mark.long
def test_fifty_megabytes_byte_for_byte_to_two_at_once(lab: Lab) -> None:
    size = 50 << 20
    code = f"import sys,random; sys.stdout.buffer.write(random.Random(7).randbytes({size}))"
    expected = subprocess.run(["python3", "-c", code], capture_output=True, check=True).stdout
    job = detach(lab, "--", "python3", "-c", code)
    both = [lab.popen(["attach", job, *more], stdout=subprocess.PIPE) for more in ((), ("--from", "1000001"))]
    first, second = (proxy.communicate(timeout=120)[0] for proxy in both)
    assert [proxy.returncode for proxy in both] == [0, 0]
    assert hashlib.sha256(first).digest() == hashlib.sha256(expected).digest()
    assert second == expected[1000001:]


def test_an_attached_one_ends_and_the_job_does_not(lab: Lab, go: Path) -> None:
    job = detach(lab, "--", "sh", "-c", f"echo up; read x <{go}; echo done")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        proxy = lab.popen(["attach", job], stdout=subprocess.PIPE)
        assert proxy.stdout and proxy.stdout.readline() == b"up\n"
        proxy.send_signal(number)
        assert proxy.wait(120) == -number
        proxy.stdout.close()
    assert facts(lab, job)["state"] == "running"
    head = lab.sh(f"quine attach {job} | head -1")
    assert (head.stdout, head.stderr) == (b"up\n", b"")
    go.write_text("\n")
    assert lab.run(["attach", job]).stdout == b"up\ndone\n"


def test_signals_reach_the_whole_group(lab: Lab) -> None:
    job = detach(lab, "--", "sh", "-c", "sleep 8631 & trap 'echo usr' USR1; echo up; wait; wait; sleep 8632")
    until(lambda: (folder(job, lab.home) / "stdout").read_bytes() == b"up\n", "it is up")
    assert lab.run(["kill", "-0", job]).returncode == 0
    assert lab.run(["kill", "-STOP", job]).returncode == 0
    until(lambda: facts(lab, job)["state"] == "stopped", "it is stopped")
    assert lab.run(["kill", job]).returncode == 0
    assert lab.run(["wait", job]).returncode == 143
    done = lab.run(["kill", job])
    assert (done.returncode, done.stderr) == (1, f"quine: error: {job}: it has ended\n".encode())
    job = detach(lab, "--", "sleep", "8633")
    assert lab.run(["kill", "-s", "KILL", job]).returncode == 0
    assert lab.run(["wait", job]).returncode == 137


def test_its_stdin_is_ours_taken_whole(lab: Lab) -> None:
    data = os.urandom(3_000_000)
    job = detach(lab, "--", "cat", input=data)
    assert lab.run(["attach", job]).stdout == data
    job = detach(lab, "--", "sh", "-c", "readlink /proc/self/fd/0; cat")
    assert lab.run(["attach", job]).stdout == b"/dev/null\n"


def test_stdin_of_those_attached(lab: Lab) -> None:
    job = detach(lab, "--stdin", "--", "cat")
    assert lab.run(["wait", "--timeout=0", job]).returncode == 124
    proxy = lab.popen(["attach", job], stdout=subprocess.PIPE)  # stdin is /dev/null: left alone
    for text in (b"one\n", b"\0\xff\n"):
        feeder = lab.popen(
            ["attach", "--stdin", "--from=end", job], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert feeder.stdin and feeder.stdout
        feeder.stdin.write(text)
        feeder.stdin.flush()
        assert feeder.stdout.readline() == text
        feeder.kill()  # no end of file: its input may have had more
        feeder.communicate()
    done = lab.run(["attach", "-i", "--from", "end", job], input=b"last" * 100_000)
    assert (done.returncode, done.stdout) == (0, b"last" * 100_000)
    assert proxy.communicate(timeout=120)[0] == b"one\n\0\xff\n" + b"last" * 100_000
    job = detach(lab, "--", "true")
    done = lab.run(["attach", "--stdin", job])
    assert done.returncode == 2 and b"is not open" in done.stderr


def test_at_the_quota_it_waits_until_somebody_reads(lab: Lab, tmp_path: Path) -> None:
    over = tmp_path / "over"
    script = f"head -c 3000000 /dev/zero; echo end >&2; touch {over}"
    job = detach(lab, "--output-limit", "64k", "--", "sh", "-c", script)
    spool = folder(job, lab.home) / "stdout"
    until(lambda: spool.stat().st_size == 65536, "the quota is reached")
    assert lab.run(["wait", "--timeout=0.3", job]).returncode == 124
    assert lab.run(["logs", job]).stdout == bytes(65536)
    assert spool.stat().st_size == 65536 and not over.exists()
    done = lab.run(["attach", job])
    assert (done.returncode, done.stdout, done.stderr) == (0, bytes(3_000_000), b"end\n")
    assert over.exists()


def with_a_disk(lab: Lab, tmp_path: Path, script: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script that may mount one at "$1", in a mount namespace of its own."""
    (tmp_path / "disk").mkdir()
    return subprocess.run(
        [*UNSHARE, "-m", "sh", "-c", script, "sh", str(tmp_path / "disk")],
        env=lab.env,
        capture_output=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")
def test_a_full_disk_makes_it_wait(lab: Lab, tmp_path: Path) -> None:
    """A mount namespace of this test: its script enlarges the disk when the spool has stopped growing.

    --options-mode: in a user namespace the owner that the mount table gives is unknown.
    """
    script = """set -e
mount -t tmpfs -o size=1m lab "$1"
export XDG_STATE_HOME="$1"
job=$(quine run --detach -- sh -c 'head -c 3000000 /dev/zero; exit 5')
while [ "$(df --output=avail "$1" | tail -1)" -gt 0 ]; do sleep 0.02; done
quine wait --timeout=0.3 "$job" && exit 9 || [ $? -eq 124 ]
mount --options-mode ignore -o remount,size=8m "$1"
quine attach "$job"
"""
    done = with_a_disk(lab, tmp_path, script)
    assert (done.returncode, len(done.stdout), done.stderr) == (5, 3_000_000, b"")


@pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")
def test_a_full_disk_takes_the_record_all_the_same(lab: Lab, tmp_path: Path) -> None:
    script = """set -e
mount -t tmpfs -o size=1m lab "$1"
export XDG_STATE_HOME="$1"
job=$(quine run --detach -- sleep 8635)
cat /dev/zero >"$1/much" 2>/dev/null || :
quine kill "$job"
quine wait "$job" || exit
"""
    done = with_a_disk(lab, tmp_path, script)
    assert (done.returncode, done.stderr) == (143, b"")


@pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")
def test_a_job_that_is_killed_on_a_full_disk_ends(lab: Lab, tmp_path: Path) -> None:
    """Output from before the kill is kept, and the rest is counted in the record of its end."""
    script = """set -e
mount -t tmpfs -o size=1m lab "$1"
export XDG_STATE_HOME="$1"
job=$(quine run --detach -- sh -c 'head -c 30000000 /dev/zero; exit 5')
while [ "$(df --output=avail "$1" | tail -1)" -gt 0 ]; do sleep 0.02; done
quine kill "$job"
quine wait --timeout=60 "$job" || echo $?
quine ps --all | grep -o signaled
quine kill "$job" || echo $?
"""
    done = with_a_disk(lab, tmp_path, script)
    assert done.stdout == b"143\nsignaled\n1\n", done
    said = done.stderr.decode()
    assert re.search(r": the disk was full: the last \d{5,} bytes of its output are lost\n", said), said
    assert "hint: make room for ~/.local/state" in said and "it has ended" in said


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")
def test_a_job_that_has_ended_on_a_full_disk_waits_for_room_until_it_is_killed(
    lab: Lab, tmp_path: Path
) -> None:
    """The rest of its output fits its pipe, so it ends by itself."""
    script = """set -e
mount -t tmpfs -o size=1m lab "$1"
export XDG_STATE_HOME="$1"
mkfifo "$1/go"
job=$(quine run --detach -- sh -c 'cat <$XDG_STATE_HOME/go; head -c 50000 /dev/zero; exit 5')
cat /dev/zero >"$1/much" 2>/dev/null || :
pid=$(quine ps --json | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*')
: >"$1/go"
while kill -0 "$pid" 2>/dev/null; do :; done
quine wait --timeout=2 "$job" || echo $?
quine kill -USR1 "$job"
quine wait --timeout=2 "$job" || echo $?
quine kill -KILL "$job"
quine wait --timeout=60 "$job" || echo $?
"""
    done = with_a_disk(lab, tmp_path, script)
    assert done.stdout == b"124\n124\n5\n", done
    assert b"bytes of its output are lost" in done.stderr


@pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")
def test_a_full_disk_is_said_with_its_cure(lab: Lab, tmp_path: Path) -> None:
    script = """mount -t tmpfs -o size=1m lab "$1"
export XDG_STATE_HOME="$1" QUINE_NODE_NAME=h7
mkdir -p "$1/quine/jobs"
cat /dev/zero >"$1/much" 2>/dev/null
quine run --detach -- true
"""
    done = with_a_disk(lab, tmp_path, script)
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.startswith(
        b"quine: h7: error: cannot start: no space left on device\nquine: h7: hint: "
    )


def test_a_home_there_that_takes_no_record_is_named_with_its_host(
    lab: Lab, odd_host: Callable[..., Host]
) -> None:
    host = odd_host("closed")
    (host.home / ".local").write_text("in the way")
    done = lab.run(["run", "--detach", "--on", "closed", "--", "true"])
    assert (done.returncode, done.stdout) == (69, b"")
    error, hint = done.stderr.decode().splitlines()
    assert error == (
        f"quine: closed: error: the job cannot be put on record: {host.home}/.local: not a directory"
    )
    assert hint == "quine: closed: hint: set XDG_STATE_HOME"


@pytest.mark.skipif(not can_mount(), reason="needs mount namespaces")
def test_a_full_runtime_directory_is_named(lab: Lab, tmp_path: Path) -> None:
    place = lab.env["XDG_RUNTIME_DIR"]
    script = f"""mount -t tmpfs -o size=64k lab {place}
mkdir -m 700 "{place}/quine-$(id -u)"
cat /dev/zero >{place}/much 2>/dev/null
quine run --on h1 -- true
"""
    done = with_a_disk(lab, tmp_path, script)
    error, hint = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (69, b"")
    assert f"does not start: {place}/quine-" in error and "no space left on device" in error
    assert "make room there, or set XDG_RUNTIME_DIR" in hint


@pytest.mark.parametrize("how", ["no record", "killed"])
def test_a_job_that_was_launched_is_never_told_as_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A retry would run it twice."""
    record = spool.record

    def fails(name: str, value: dict[str, Any]) -> None:
        if value["pid"] and name == "job":
            until((tmp_path / "ran").exists)
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        record(name, value)

    monkeypatch.setattr(spool, "record", fails)
    (tmp_path / "job").mkdir()
    argv = ["sh", "-c", "touch ran; exec sleep 1000"]
    status = start(str(tmp_path / "job"), Order(argv, dict(os.environ), str(tmp_path), [], {}))
    assert status and (status.state, status.code) == ("lost", 74)


def test_its_supervisor_is_killed(lab: Lab, tmp_path: Path) -> None:
    """PIPE is ignored, because a shell says on stderr that its command was terminated, and nobody reads that."""
    told = tmp_path / "told"
    script = f"trap '' PIPE; trap 'echo TERM >{told}; exit 3' TERM; echo up; while :; do sleep 0.01; done"
    job = detach(lab, "--", "sh", "-c", script)
    until(lambda: (folder(job, lab.home) / "stdout").read_bytes() == b"up\n", "it is up")
    proxy = lab.popen(["attach", job], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert proxy.stdout and proxy.stdout.readline() == b"up\n"
    os.kill(record(job, lab.home)["supervisor"], signal.SIGKILL)
    until(told.exists, "the kernel has told the job")
    err = proxy.communicate(timeout=120)[1].decode()
    assert proxy.returncode == 74
    assert err.startswith(f"quine: error: {job}: process ") and "its supervisor was killed" in err
    assert lab.run(["wait", job]).returncode == 74, "also of a process that is not reaped yet"
    assert facts(lab, job)["state"] == "lost"
    assert lab.run(["logs", job]).stdout == b"up\n"
    followed = lab.run(["logs", "-f", job])
    # more may have been written than is kept
    assert (followed.returncode, followed.stdout) == (74, b"up\n"), followed.stderr
    assert b"its supervisor was killed" in followed.stderr
    assert lab.run(["kill", job]).returncode == 1


@pytest.mark.long
def test_what_it_left_behind_holds_its_output_for_a_second(lab: Lab) -> None:
    """Its process is gone and reaped, and nothing is written down yet: it is not over, and by no means lost."""
    job = detach(lab, "--", "sh", "-c", "sleep 3 & echo said; exit 3")
    state = until(lambda: (f := facts(lab, job)["state"]) != "running" and f, "it is over")
    assert state == "exited"
    done = lab.run(["attach", job])
    assert (done.returncode, done.stdout) == (3, b"said\n")


def test_what_is_meant_for_its_supervisor_is_told_to_the_job(lab: Lab) -> None:
    """A machine that shuts down sends TERM to every process: the record is still written."""
    job = detach(lab, "--", "sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done")
    until(lambda: (folder(job, lab.home) / "stdout").read_bytes(), "it is up")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM):
        os.kill(record(job, lab.home)["supervisor"], number)
    assert lab.run(["wait", job]).returncode == 9


def test_its_socket_takes_no_nonsense(lab: Lab, go: Path) -> None:
    from transport.wire.frames import GREETING, LIFE, Frame, Kind, encode

    job = detach(lab, "--", "sh", "-c", f"read x <{go}; echo whole")
    path = folder(job, lab.home) / "socket"
    noise = Frame(Kind.SIGNAL, stream=LIFE, payload=b'{"signal":"NOISE"}')
    frames = [Frame(Kind.ACK, stream=1, offset=1 << 63), noise]
    frames += [Frame(Kind.SPAWN, payload=b"{}"), Frame(Kind.DATA, stream=1, payload=b"x"), Frame(Kind.SIGNAL)]
    for data in [b"x" * 100_000, GREETING + b"\xff" * 18, *(GREETING + encode(frame) for frame in frames)]:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE)
            peer.connect(str(path))
            try:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
    idle = [socket.socket(socket.AF_UNIX) for _ in range(70)]
    for peer in idle:
        peer.setblocking(False)
        peer.connect_ex(str(path))
    for peer in idle:
        peer.close()
    go.write_text("\n")
    assert lab.run(["attach", job]).stdout == b"whole\n"


def test_the_same_id_starts_nothing_twice(lab: Lab, tmp_path: Path) -> None:
    job = new_session()
    words = ["run", "--detach", "--job", job, "--", "sh", "-c", f"echo x >>{tmp_path}/ran"]
    for _ in range(2):
        done = lab.run(words)
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"{job}\n", b"")
    assert lab.run(["wait", job]).returncode == 0
    assert (tmp_path / "ran").read_text() == "x\n"


def test_an_id_stays_on_its_host_whatever_where_means_by_then(lab: Lab, tmp_path: Path) -> None:
    """The inventory has grown by a host that the id would choose; or another host is named."""
    one, two = lab.alias("grown1", "h1", tags=["grown"]), "grown2"
    job = next(id for id in iter(new_session, "") if _weight(id, two) > _weight(id, one))
    script = ["--", "sh", "-c", f"echo x >>{tmp_path}/ran; exit 3"]
    words = ["run", "--detach", "--job", job, "--on"]
    nowhere = lab.run([*words, lab.by_command("grown0", "h1", command=["false"]), *script])
    assert nowhere.returncode == 69, "it can be started elsewhere"
    for _ in range(2):
        done = lab.run([*words, "@grown", *script])
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"{job}\n", b"")
        lab.alias(two, "h2", tags=["grown"])
    for where in ("h2", "@grown,!grown1", "local"):
        done = lab.run([*words, where, *script])
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode() == (
            f"quine: error: job {job} was sent to grown1, and an id starts one job\n"
            f"quine: hint: quine wait --on grown1 {job}; for another job leave out --job\n"
        )
    assert lab.run(["wait", job]).returncode == 3
    assert (tmp_path / "ran").read_text() == "x\n"
    here = detach(lab, "--job", new_session(), "--", "true")
    done = lab.run(["run", "--detach", "--job", here, "--on", "h1", "--", "true"])
    assert done.returncode == 2 and b"was started on this machine" in done.stderr


def test_an_id_that_is_none(lab: Lab) -> None:
    planted = lab.home / ".local/state/quine/x"
    planted.mkdir(parents=True, exist_ok=True)
    (planted / "job").write_text('{"pid":1}')
    for text in ("../x", "/etc", "", "0" * 36, "01a20150-5255-7bab-bc94-25f5d212af4/", "a\nb", "\x1b[2J"):
        for verb in ("attach", "logs", "wait", "kill"):
            done = lab.run([verb, "--on=local", text])
            assert done.returncode == 2 and b"no such job" in done.stderr, (verb, text, done.stderr)
        if text:
            done = lab.run(["run", "--detach", f"--job={text}", "--", "true"])
            assert done.returncode == 2 and b"is not a UUID" in done.stderr, text
    shutil.rmtree(planted)


def test_one_that_was_started_is_not_again_and_leaves_no_folder(lab: Lab) -> None:
    job = new_session()
    for _ in range(2):
        assert detach(lab, "--job", job, "--on", "h2", "--", "true") == job
        lab.run(["wait", "--on", "h2", job], check=True)
        # its folder goes with its supervisor, which may be a moment behind its word
        until(lambda: not (lab["h2"].home / "quine" / job).exists(), "its folder is gone")


def test_two_hundred_are_listed_at_once(lab: Lab, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for n in range(200):
        path = state / "quine/jobs" / new_session()
        path.mkdir(parents=True)
        facts = {"pid": os.getpid(), "started": 1, "boot_id": address.boot_id(), "node": os.uname().nodename}
        (path / "job").write_text(
            json.dumps({**facts, "supervisor": 1, "supervisor_started": 1, "intent": f"n{n}"})
        )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # With another secret it would take the lab's data directory for one without a mark.
    env = {"XDG_STATE_HOME": str(state), "QUINE_DATA_DIR": str(tmp_path / "data")}
    process = lab.popen(["ps", "-a"], env=env, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=PATIENCE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # of this process, whoever else works
    assert 0 < after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
    assert process.returncode == 0
    # an agent of another test may be about to end
    planted = [line for line in out.splitlines() if re.search(rb" n\d+$", line.rstrip())]
    assert len(planted) == 200
    assert all(b"  lost  " in line for line in planted), "recycled pids fool nobody"


def test_ended_ones_are_forgotten_after_a_month(lab: Lab, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "QUINE_DATA_DIR": str(tmp_path / "data")}
    job = detach(lab, "--", "true", env=env)
    assert lab.run(["wait", job], env=env).returncode == 0
    old = tmp_path / "quine/jobs" / ("0000" + job[4:])
    os.rename(tmp_path / "quine/jobs" / job, old)
    lab.run(["wait", detach(lab, "--", "true", env=env)], env=env, check=True)
    assert old.exists(), "an old id, but it ended now"
    os.utime(old / "status", (1, 1))
    lab.run(["wait", detach(lab, "--", "true", env=env)], env=env, check=True)
    assert not old.exists()


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=60)
    | st.dictionaries(st.sampled_from([*foreign._FIELDS, "host"]), JSON).map(json.dumps)
)
def test_what_a_host_lists_is_foreign(line: str | bytes) -> None:
    raw = line if isinstance(line, bytes) else line.encode()
    for data in (raw, raw.replace(b"{", b'{"id":"%s",' % new_session().encode(), 1)):
        fact = foreign.fact_of(data, "h1")
        assert not fact or (
            fact["host"] == "h1" and is_session(fact["id"]) and isinstance(fact["state"], str)
        )
        assert not fact or f"{fact['seconds']:.1f}{fact['mission'][:1]}{fact['root'][:1]}"


def test_options_that_need_it(lab: Lab) -> None:
    for words in (["run", "--stdin"], ["run", "--spool=1k"], ["--output-limit=1k"]):
        assert lab.run([*words, "--", "true"]).returncode == 2
    for words in (["--spool=0"], ["--spool=x"], ["--report=x"]):
        assert lab.run(["run", "--detach", *words, "--", "true"]).returncode == 2


# -- durable ---------------------------------------------------------------------------------------

LOGINCTL = """#!/bin/sh
case "$*" in
    *KillUserProcesses*) echo KillUserProcesses=$KILLS; echo KillExcludeUsers=; echo KillOnlyUsers= ;;
    *Linger*) echo Linger=no ;;
esac
"""


@pytest.mark.parametrize("kills", ["yes", "no"])
def test_where_it_is_not_durable_that_is_said(lab: Lab, tmp_path: Path, kills: str) -> None:
    (tmp_path / "loginctl").write_text(LOGINCTL)
    (tmp_path / "loginctl").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{lab.env['PATH']}", "XDG_SESSION_ID": "1", "KILLS": kills}
    done = lab.run(["run", "--detach", "--", "true"], env=env)
    assert done.returncode == 0
    said = b"quine: warning: not durable here: the system ends it when you log out (KillUserProcesses=yes)\n"
    hint = b"quine: hint: loginctl enable-linger, then start it again\n"
    assert done.stderr == (said + hint if kills == "yes" else b"")
    lab.run(["wait", done.stdout.decode().strip()], check=True)


SYSTEMD_RUN = """#!/bin/sh
[ "$*" = "--user --scope -q true" ] && exit 0
shift 4
echo moved >>"$MOVES"
exec "$@"
"""


def test_where_it_lingers_it_is_moved_out_of_the_session(lab: Lab, tmp_path: Path) -> None:
    for name, text in (
        ("loginctl", LOGINCTL.replace("Linger=no", "Linger=yes")),
        ("systemd-run", SYSTEMD_RUN),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path, moves = f"{tmp_path}:{lab.env['PATH']}", f"{tmp_path}/moves"
    env = {"PATH": path, "XDG_SESSION_ID": "1", "KILLS": "yes", "MOVES": moves}
    job = detach(lab, "--", "sh", "-c", 'cat; echo "$QUINE_MOVED."', env=env, input="in\n")
    assert (tmp_path / "moves").read_text() == "moved\n"
    assert lab.run(["attach", job]).stdout == b"in\n.\n"


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        ("0::/user.slice/user-7.slice/session-3.scope\n", "session"),
        ("1:name=systemd:/user.slice/user-7.slice/session-c1.scope\n0::/\n", "session"),
        ("0::/user.slice/user-7.slice/user@7.service/app.slice/x.scope\n", "manager"),
        ("0::/system.slice/ssh.service\n", ""),
        ("0::/\n", "session"),
    ],
)
def test_whose_scope_it_is(cgroup: str, place: str) -> None:
    assert logind.scope(cgroup, {"XDG_SESSION_ID": "3"}, 7) == place
    assert logind.scope("0::/\n", {}, 7) == ""


# -- over there ------------------------------------------------------------------------------------


@pytest.fixture
def other(lab: Lab) -> Iterator[dict[str, str]]:
    """The environment of another origin: another home and runtime directory, the same right to log in."""
    home, run = lab.directory / "other", lab.home.parent.parent / "o2"
    run.mkdir(mode=0o700, exist_ok=True)
    (home / ".cache/quine").mkdir(parents=True, exist_ok=True)
    if not (home / ".cache/quine/build").exists():
        (home / ".cache/quine/build").symlink_to(BUILDS)
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(run)}
    yield env
    lab.run(
        ["node", "--stop", "--force"], env=env
    )  # it is one of this lab's, and not the one that others look for


@pytest.mark.long
def test_it_outlives_both_nodes_and_another_origin_finds_it(
    lab: Lab, other: dict[str, str], go: Path
) -> None:
    job = detach(lab, "--on", "h1", "--", "sh", "-c", f"echo out; echo err >&2; read x <{go}; pwd; exit 7")
    home = lab["h1"].home
    assert record(job, home)["pid"] and not folder(job, lab.home).exists()
    for there in (lab["h1"], lab):
        daemons = [process for process in there.processes() if process.stays]
        for process in daemons:
            if process.daemon and "--dial" not in process.argv:  # the guard then ends what is the node's
                processes.kill(process.pid)
        assert processes.wait_gone(daemons, 30) == []
    assert processes.find(record(job, home)["pid"]) and processes.find(record(job, home)["supervisor"])
    fact = facts(lab, job, "--on", "any", env=other)
    assert (fact["state"], fact["host"], fact["pid"]) == ("running", "h1", record(job, home)["pid"])
    until(lambda: (folder(job, home) / "stderr").read_bytes(), "it has spoken")
    assert lab.run(["logs", "--both", "--on=h1", job], env=other).stderr == b"err\n"
    proxy = lab.popen(
        ["attach", "--from", "1", job], env=other, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert proxy.stdout and proxy.stdout.readline() == b"ut\n"
    go.write_text("\n")
    out, err = proxy.communicate(timeout=120)
    assert (proxy.returncode, out.decode(), err) == (7, f"{home}/quine/{job}\n", b"err\n")
    assert lab.run(["wait", job]).returncode == 7
    assert not (home / "quine" / job).exists(), "an empty directory is not left behind"
    assert lab.run(["kill", "--on", "h1", job], env=other).returncode == 1
    assert lab.run(["wait", "--on", "h2", job]).returncode == 2


@pytest.mark.skipif(os.getuid() != 0, reason="gives directories to another user")
def test_its_directory_is_judged_as_that_of_any_job(lab: Lab, tmp_path: Path) -> None:
    """In a directory where others can make names, and the name is told before."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    host = lab.alias("scratch", of="h1", workdir=str(scratch))
    (lab.work / "mine").write_text("mine\n")
    job = detach(lab, "--on", host, "--files=mine", "--", "sh", "-c", "stat -c %a . mine; cat mine")
    assert lab.run(["attach", job]).stdout.split()[0::2] == [b"700", b"mine"]
    theirs = tmp_path / "theirs"
    for files in ([], ["--files=mine"]):
        for link in (False, True):
            job = new_session()
            theirs.mkdir(exist_ok=True)
            (theirs / "run.sh").write_text("echo theirs")
            place = scratch / job
            place.symlink_to(theirs) if link else shutil.copytree(theirs, place)
            os.chown(place, 65534, 65534, follow_symlinks=False)
            words = ["run", "--detach", f"--job={job}", "--on", host, *files, "--", "sh", "./run.sh"]
            done = lab.run(words)
            assert (done.returncode, done.stdout) == (69, b""), (files, link, done.stderr)
            assert f"{host}: error: cannot make {place}: " in done.stderr.decode()
            assert not folder(job, lab["h1"].home).exists() and not (theirs / "mine").exists()


@pytest.mark.long
def test_signals_and_stdin_cross(lab: Lab) -> None:
    data = os.urandom(300_000)
    job = detach(lab, "--on", "h1", "--env", "A=b c", "--", "sh", "-c", 'cat; echo "$A"', input=data)
    assert lab.run(["attach", job]).stdout == data + b"b c\n"
    job = detach(lab, "--on", "h1", "--stdin", "--", "cat")
    done = lab.run(["attach", "--stdin", "--on", "h1", job], input=data)
    assert (done.returncode, done.stdout) == (0, data)
    job = detach(lab, "--on", "h1", "--", "sleep", "8634")
    proxy = lab.popen(["attach", "--on", "h1", job])
    assert lab.run(["kill", "-s", "USR1", job]).returncode == 0
    assert proxy.wait(120) == -signal.SIGUSR1
    job, more = (detach(lab, "--on", host, "--", "sh", "-c", "exit 4") for host in ("h1", "h2"))
    assert lab.run(["wait", job, more]).returncode == 4


def test_an_attach_names_the_host_that_was_asked(lab: Lab) -> None:
    """The host of a record is a word of its writer, who could speak in the name of another host."""
    job = detach(lab, "--on", "h1", "--", "sh", "-c", "exit 4")
    assert lab.run(["wait", job]).returncode == 4
    status = folder(job, lab["h1"].home) / "status"
    status.write_text(json.dumps({**json.loads(status.read_text()), "host": "h2", "detail": "disk full"}))
    done = lab.run(["attach", job])
    assert (done.returncode, done.stderr) == (4, b"quine: h1: error: disk full\n")


@pytest.mark.long
@pytest.mark.parametrize("clear", ["", "env -i HOME=$HOME PATH=$PATH LAB_HOST=$LAB_HOST "])
def test_it_holds_nothing_of_the_job_that_started_it(lab: Lab, go: Path, clear: str) -> None:
    """A process that holds the credentials of a job belongs to that job and ends with it."""
    line = (
        f"{clear}quine run --detach -- sh -c 'readlink /proc/self/fd/* /proc/$PPID/fd/*; env; read x <{go}'"
    )
    job = lab.run(["run", "--on", "h1", "--", "sh", "-c", line], check=True).stdout.decode().strip()
    assert record(job, lab["h1"].home)["pid"]
    go.write_text("\n")
    said = lab.run(["attach", "--on", "h1", job]).stdout
    assert b"LAB_HOST=" in said and b"pipe:[" in said
    assert b"memfd" not in said and b"QUINE_CREDENTIALS_FD" not in said


@pytest.mark.long
def test_a_home_that_machines_share(lab: Lab, go: Path) -> None:
    """All machines see the directory of a job; only the one that runs it knows its state."""
    job = detach(lab, "--on", "h1", "--", "sh", "-c", f"echo up; read x <{go}; exit 6")
    home, facts_there = lab["h1"].home, record(job, lab["h1"].home)
    for here in (lab.home, lab["h2"].home):
        folder(job, here).mkdir(parents=True)
        (folder(job, here) / "job").write_text(
            json.dumps({**facts_there, "node": "h1", "boot_id": "another"})
        )
        (folder(job, here) / "stdout").symlink_to(folder(job, home) / "stdout")
    try:
        fact = facts(lab, job, "--on", "h2,h1")
        assert (fact["state"], fact["host"]) == ("running", "h1")
        assert facts(lab, job)["state"] == "unknown"
        proxy = lab.popen(["attach", job], stdout=subprocess.PIPE)
        assert proxy.stdout and proxy.stdout.readline() == b"up\n"
        go.write_text("\n")
        proxy.communicate(timeout=120)
        assert proxy.returncode == 6
    finally:
        for here in (lab.home, lab["h2"].home):
            shutil.rmtree(folder(job, here))


def test_who_removes_its_directory_gets_no_record(lab: Lab, go: Path) -> None:
    job = detach(lab, "--", "sh", "-c", f"read x <{go}")
    supervisor = record(job, lab.home)["supervisor"]
    shutil.rmtree(folder(job, lab.home))
    go.write_text("\n")
    until(lambda: processes.find(supervisor) is None, "its supervisor has gone")


@pytest.mark.long
def test_who_cannot_be_asked_is_told_of_once(lab: Lab, go: Path) -> None:
    job = detach(lab, "--on", "h1", "--", "sh", "-c", f"read x <{go}")
    lab.alias("gone", "h2", 1)
    done = lab.run(["ps", "--on", "h1,gone"])
    assert job[:18].encode() in done.stdout
    assert done.stderr.count(b"quine: gone: error: ") == 1 and done.stderr.count(b"error") == 1
    done = lab.run(["wait", "--timeout=0", job])
    assert done.returncode == 124
    go.write_text("\n")
    assert lab.run(["wait", job]).returncode == 0
    assert lab.run(["ps", "--on", "nobody"]).returncode == 69


@pytest.mark.long
def test_a_host_without_a_free_slot_answers(lab: Lab, go: Path) -> None:
    one = lab.alias("one", "h1", slots=1)
    busy = lab.popen(["run", "--on", one, "--", "sh", "-c", f"echo up; read x <{go}"], stdout=subprocess.PIPE)
    try:
        assert busy.stdout and busy.stdout.readline() == b"up\n"
        assert lab.run(["ps", "--on", one], timeout=120).returncode == 0
    finally:
        go.write_text("\n")
        busy.communicate(timeout=120)


# -- agents ----------------------------------------------------------------------------------------


def says(name: str, **arguments: Any) -> dict[str, Any]:
    return {"reply": {"tool_calls": [{"name": name, "arguments": arguments}]}}


@pytest.mark.parametrize("where", [(), ("--on", "h1")])
def test_an_agent(lab: Lab, tmp_path: Path, go: Path, where: tuple[str, ...]) -> None:
    replies = [
        says("sh", command=f"cat <&3 >&4; read x <{go}; echo $QUINE_NODE_NAME >&5"),
        says("exit", status=3, stderr="so"),
    ]
    env = {**lab.script(replies, f"{tmp_path.name}.jsonl"), "QUINE_DATA_DIR": str(tmp_path / "data")}
    done = lab.run(["--detach", "--output-limit=1M", *where, "shout"], env=env, input="material\n")
    assert (done.returncode, done.stderr) == (0, b"")
    job = done.stdout.decode().strip()
    until(lambda: (tmp_path / "data" / f"{job}.jsonl").exists(), "it has a tape under its id")
    fact = until(lambda: (f := facts(lab, job, env=env))["mission"] == "shout" and f, "it is listed")
    assert (fact["state"], fact["host"]) == ("running", where[1] if where else "local")
    again = ["--detach", "--job", job]
    assert lab.run([*again, *where, "shout"], env=env).stdout == done.stdout
    place = "sent to h1" if where else "started on this machine"
    for words in ([*again, "--on", "h2", "shout"], ["run", *again, *where, "--", "true"]):
        refused = lab.run(words, env=env)
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert f"error: job {job} was {place} as an agent, and an id starts" in refused.stderr.decode()
    go.write_text("\n")
    done = lab.run(["attach", job], env=env)
    name = where[1].encode() if where else b""
    assert (done.returncode, done.stdout, done.stderr) == (3, b"material\n", name + b"\nso\n")
    assert lab.run(["wait", job], env={"QUINE_DATA_DIR": str(tmp_path / "none")}).returncode == 3


def test_a_detached_proxy_is_waited_for_over_there() -> None:
    host = load(Path(__file__).parents[2] / "inventory.example.toml", {}).hosts["gpu1"]
    leases = []
    for context in ({}, {"detached": False}, {"detached": True}):
        spawn = Spawn(["x"], context=context)
        settle(spawn, host)
        leases.append(spawn.lease)
    assert leases == [host.lease, host.lease, DETACHED_LEASE] and host.lease < 3600 < DETACHED_LEASE


@pytest.mark.parametrize("where", ["nope", "@nope"])
def test_an_agent_for_a_host_that_nothing_means_is_refused_at_once(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the foreground, and before its id is printed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("QUINE_MODEL_ID", raising=False)
    hosts = tmp_path / "hosts.toml"
    hosts.write_text("[hosts.h1]\n")
    with pytest.raises(NoSuchHost):
        detach_verb.agent("a mission", RunOptions(on=where, inventory=str(hosts)))
    assert list(tmp_path.iterdir()) == [hosts]


def test_an_agent_without_a_guest_is_refused_at_once(lab: Lab) -> None:
    done = lab.run(["--detach", "mission"])
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"quine: hint: " in done.stderr


@pytest.mark.parametrize("hint", ["the results are still on the host, in ~/x", ""])
def test_a_lost_agent_is_told_with_the_cure_of_its_record(
    hint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A record of an earlier build has none."""
    job = new_session()
    place = tmp_path / "jobs" / job
    place.mkdir(parents=True)
    (place / "job").write_text(json.dumps({"session": job, "pid": 1, "on": "gpu1"}))
    (place / "status").write_text('{"state":"exited","code":74}')
    report = {"state": "lost", "code": 74, "host": "gpu1", "detail": "connection lost"}
    (place / "report").write_text(json.dumps({**report, "hint": hint} if hint else report))
    assert job_verbs.main("wait", ["--data-dir", str(tmp_path), job]) == 74
    said = hint or f"it may still run there: quine ps --on gpu1; quine kill {job}"
    assert capfd.readouterr().err == f"quine: error: {job}: lost: connection lost\nquine: hint: {said}\n"


# -- the record ------------------------------------------------------------------------------------


def test_a_job_that_is_being_started_runs(tmp_path: Path) -> None:
    """Its record is there before its process: it is no job of before the last boot."""
    job, me = new_session(), os.getpid()
    (tmp_path / "jobs" / job).mkdir(parents=True)
    facts = {"pid": 0, "started": 0, "boot_id": address.boot_id(), "node": os.uname().nodename}
    facts |= {"supervisor": me, "supervisor_started": address.start_time(me), "session": job}
    (tmp_path / "jobs" / job / "job").write_text(json.dumps(facts))
    (agent,) = registry.find(job, str(tmp_path))
    held = agent.holds()
    assert (agent.verdict().state, len(held), agent.known_here) == ("running", 1, True)
    os.close(held[0])


def test_a_job_that_runs_is_no_lost_one_to_a_machine_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: Path
) -> None:
    """As one with the same home: it sees no process of the job, and takes it for one of before its last boot."""
    begun = int((time.time() - 40 * 86400) * 1000)
    job = f"{begun >> 16:08x}-{begun & 0xFFFF:04x}-7000-8000-000000000000"
    directory = tmp_path / job
    directory.mkdir()
    monkeypatch.setattr(this_build, "NOTE_SECONDS", 0.02)
    assert start(str(directory), Order(["sh", "-c", f"read x <{go}"], dict(os.environ), "/", [], {})) is None
    late = time.time() - 40 * 86400
    for name in ("stdout", "stderr", "job"):
        os.utime(directory / name, (late, late))
    until(lambda: (directory / "job").stat().st_mtime > late + 1, "a sign of life")
    with monkeypatch.context() as patch:
        patch.setattr(job_files, "lives", lambda pid, started: False)
        job_files.collect(str(tmp_path))
    assert directory.exists()
    (agent,) = [json.loads((directory / "job").read_text())]
    held = registry.held(agent["supervisor"], agent["supervisor_started"])
    go.write_text("\n")
    procs.wait([held], PATIENCE)
    os.close(held)


def test_which_jobs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest ends beyond the number that is kept, not of today; those of a month ago; never one that may run."""
    monkeypatch.setattr(job_files, "KEPT", 2)
    days = {"running": None, "today": 0.5, "3": 3, "4": 4, "5": 5, "today too": 0.9, "40": 40}
    made: dict[str, str] = {}

    def make(name: str, begun: float, ended: float | None) -> None:
        begin = int((time.time() - begun * 86400) * 1000)
        made[name] = f"{begin >> 16:08x}-{begin & 0xFFFF:04x}-7{len(made):03x}-8000-000000000000"
        assert is_session(made[name])
        folder = tmp_path / made[name]
        folder.mkdir()
        node = {"node": os.uname().nodename, "supervisor": 0, "supervisor_started": 0}
        (folder / "job").write_text(json.dumps(node))
        for file in ("job", "stdout", "stderr", *(["status"] if ended is not None else [])):
            (folder / file).touch()
            os.utime(folder / file, (then := time.time() - (ended or begun) * 86400, then))

    for name, ended in days.items():
        make(name, (ended or 0) + 1, ended)
    make("lost", 40, None)
    make("of another machine", 41, None)
    (tmp_path / made["of another machine"] / "job").write_text(json.dumps({"node": "another"}))
    job_files.collect(str(tmp_path))
    left = {name for name, job in made.items() if (tmp_path / job).exists()}
    assert left == {"running", "today", "today too", "3", "4", "of another machine"}


def test_an_id_whose_start_failed_can_be_used_again(lab: Lab, tmp_path: Path) -> None:
    job = new_session()
    (jobs := folder(job, lab.home).parent).mkdir(parents=True, exist_ok=True)
    for stdin, code in (("/proc/self/mem", 69), ("/dev/null", 0)):
        done = lab.sh(f"quine run --detach --job {job} -- true <{stdin}", cwd=tmp_path)
        assert done.returncode == code, done
        assert (jobs / job).exists() == (code == 0)
        if code:
            assert b"cannot read stdin: input/output error" in done.stderr


def test_an_id_that_cannot_be_printed_is_told(lab: Lab, tmp_path: Path) -> None:
    done = lab.sh("quine run --detach -- true >/dev/full", cwd=tmp_path)
    assert done.returncode == 74
    (job,) = re.findall(rb"hint: the job runs, and its id is (\S+)", done.stderr)
    assert lab.run(["wait", job.decode()]).returncode == 0
