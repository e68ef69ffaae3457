"""`quine run --on HOST`: the proxy of a local command. Against real sshd."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, Process, peak_rss, processes
from tests.lab.machine import FULL, readable
from tests.support.agents import PATIENCE, until
from tests.support.machine import nodes
from tests.support.waiting import read_until

MiB = 1 << 20


def most(node: Process) -> int:
    """Bytes of memory that a node may need at most: PyPy begins with 65 MB."""
    return (160 if "pypy" in os.readlink(f"/proc/{node.pid}/exe") else 80) * MiB


@pytest.fixture
def started(lab: Lab) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `quine run …` with pipes and wait until the command says `up`."""
    made: list[subprocess.Popen[bytes]] = []

    def start(script: str, where: str = "h1", **options: object) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = lab.popen(["run", "--on", where, "--", "sh", "-c", script], **pipes)  # type: ignore[arg-type]
        made.append(process)
        assert process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


# -- status ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 256, 64))
def test_every_exit_status(lab: Lab, first: int) -> None:
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    loop = f"n={first}; while [ $n -lt {first + 64} ]; do"
    loop += ' quine run --on h1 -- sh -c "exit $n" </dev/null; echo $?; n=$((n+1)); done'
    done = lab.sh(loop, timeout=140)
    assert done.stdout.split() == [str(n).encode() for n in range(first, first + 64)]
    assert done.stderr == b""


def test_death_by_signal_is_that_death(lab: Lab) -> None:
    for name in ("TERM", "KILL", "SEGV", "PIPE"):
        done = lab.run(["run", "--on", "h1", "--", "sh", "-c", f"kill -{name} $$"])
        assert (done.returncode, done.stderr) == (-getattr(signal, f"SIG{name}"), b""), name


def test_not_found_and_not_executable(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", "no-such-command"])
    assert (done.returncode, done.stderr) == (127, b"quine: h1: error: command not found: no-such-command\n")
    done = lab.run(["run", "--on", "h1", "--", "/etc/passwd"])
    assert done.returncode == 126 and b"cannot execute /etc/passwd" in done.stderr


def test_a_directory_that_is_not_there(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--cwd", "/no/such", "--", "pwd"])
    assert done.returncode == 69
    assert done.stderr.startswith(
        b"quine: h1: error: no such directory: /no/such; not run: pwd\nquine: h1: hint: "
    )


def test_the_report(lab: Lab, tmp_path: Path) -> None:
    lab.run(["run", "--on", "h1", "--report", tmp_path / "r", "--", "sh", "-c", "kill -USR1 $$"])
    report = json.loads((tmp_path / "r").read_text())
    ended = [report[name] for name in ("state", "code", "signal", "host")]
    assert ended == ["signaled", 138, "USR1", "h1"]
    assert report["pid"] > 1 and report["seconds"] > 0 and report["rusage"]["maxrss"] > 0


def test_a_report_goes_to_a_descriptor_and_never_replaces_a_device(lab: Lab, tmp_path: Path) -> None:
    done = lab.sh("quine run --on h1 --report 3 -- true 3>&1 >/dev/null")
    assert b'"state":"exited"' in done.stdout
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    lab.run(["run", "--on", "h1", "--report", tmp_path / "pipe", "--", "true"], check=True)
    assert b'"state":"exited"' in reader.communicate(timeout=PATIENCE)[0]
    assert (tmp_path / "pipe").is_fifo()


def test_a_report_goes_where_a_link_leads_and_the_link_stays(lab: Lab, tmp_path: Path) -> None:
    """To a file, to a name that is not there yet, to a descriptor of ours, as behind the > of a shell."""
    (tmp_path / "file").write_bytes(b"old")
    for link, target in (("l1", "file"), ("l2", "new"), ("l3", "/dev/stderr")):
        (tmp_path / link).symlink_to(target)
        done = lab.run(["run", "--on", "local", "--report", tmp_path / link, "--", "true"], check=True)
        assert os.readlink(tmp_path / link) == target
        report = done.stderr if target.startswith("/dev") else (tmp_path / target).read_bytes()
        assert report.count(b'"state":"exited"') == 1
    assert sorted(os.listdir(tmp_path)) == ["file", "l1", "l2", "l3", "new"]


def test_argv_environment_and_directory_cross_unchanged(lab: Lab) -> None:
    words = ["", " ", "a b", "'", '"', "\\", "*", "$HOME", "\n", "ü", "-x", "--", ";true", "x" * 100_000]
    done = lab.run(["run", "--on", "h1", "--", "printf", "%s\\0", *words])
    assert done.stdout.split(b"\0")[:-1] == [word.encode() for word in words]
    raw = os.fsdecode(b"caf\xe9")
    assert lab.run(["run", "--on", "h1", "--", "printf", "%s", raw]).stdout == b"caf\xe9"
    words = ["--env", "A=1 2", "--env", "LANG", "--cwd", "/usr", "--", "sh", "-c", 'pwd; echo "$A $LANG"']
    done = lab.run(["run", "--on", "h1", *words])
    assert done.stdout == b"/usr\n1 2 C.UTF-8\n"


def test_an_empty_value_never_means_here(lab: Lab) -> None:
    for words in (["--on", ""], ["--on="], ["--on", "h1", "--cwd", ""], ["--report", ""]):
        done = lab.run(["run", *words, "--", "echo", "HERE"])
        assert (done.returncode, done.stdout) == (2, b"") and b"is empty" in done.stderr, words


def test_the_umask_is_that_of_a_login(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", "sh", "-c", "umask"])
    there = subprocess.run([*lab.ssh("h1"), "umask"], capture_output=True, check=True, env=lab.env)
    assert done.stdout == there.stdout


def test_a_bad_job_disturbs_no_other(lab: Lab, started: Callable[..., subprocess.Popen[bytes]]) -> None:
    """One link carries all jobs: an invalid request ends its own job and no other."""
    good = started("echo up; read line; echo $line")
    bad = [
        ["--", "x" * 70_000],
        ["--", os.fsdecode(b"\xff" * 12_000)],
        ["--cwd", "/" + "x" * 70_000, "--", "true"],
        ["--limit", "as=" + "9" * 5000, "--", "true"],
        ["--env", "A=" + "\ud83d".encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "--", "true"],
    ]
    for words in bad:
        done = lab.run(["run", "--on", "h1", *words])
        assert done.returncode in (0, 2, 69, 77, 126, 127), done
        assert len(done.stderr) < 3000
    out, err = good.communicate(b"still here\n", timeout=PATIENCE)
    assert (out, err, good.returncode) == (b"still here\n", b"", 0)


def test_jobs_of_one_tree_share_their_directory_to_the_last(lab: Lab) -> None:
    env = {"QUINE_ROOT_SESSION": "tree-1"}
    script = "echo up; read line; echo kept > file; cat file; rm file"
    first = lab.popen(
        ["run", "--on", "h1", "--", "sh", "-c", script],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert first.stdout
    read_until(first.stdout.fileno(), b"up\n")
    lab.run(["run", "--on", "h1", "--", "true"], env=env, check=True)
    assert first.communicate(b"go\n", timeout=PATIENCE)[0] == b"kept\n"
    assert lab.run(["run", "--on", "h1", "--", "sh", "-c", "ls ~/quine"]).stdout.split() != [b"tree-1"]


def test_mistakes_of_the_caller(lab: Lab, tmp_path: Path) -> None:
    done = lab.run(["run", "--on", "h1", "--", "true"], env={"QUINE_ROOT_SESSION": "a b"})
    assert done.returncode == 2 and b"QUINE_ROOT_SESSION" in done.stderr
    gone = tmp_path / "gone"
    done = lab.sh(f"mkdir {gone}; cd {gone}; rmdir {gone}; quine run --on h1 -- echo fine")
    assert (done.returncode, done.stdout) == (0, b"fine\n")
    lab.run(["fs", "put", "-", "kept"], input="good", check=True)
    for words in ("-f -", "fs put - kept", "each --stdin all any -- cat"):
        done = lab.sh(f"quine {words} <&-")
        assert done.returncode == 2 and done.stderr.endswith(b"stdin is closed\n"), "it is not an empty one"
    assert lab.run(["fs", "cat", "kept"]).stdout == b"good"
    assert lab.run(["run", "--", ""]).returncode == 2
    done = lab.sh("quine --on h1 \"$(printf '\\377')\"")
    assert done.returncode == 2 and b"not UTF-8" in done.stderr
    assert b"command not found" in lab.run(["run", "-q", "--on", "h1", "--", "nosuch"]).stderr
    assert lab.sh("quine hosts >/dev/full").returncode == 74
    assert b"quine 0." in lab.run(["run", "--version"]).stdout


def test_no_secret_of_the_origin_is_in_the_job(lab: Lab) -> None:
    canary = {"OPENAI_API_KEY": "canary-in-the-mine", "GITHUB_TOKEN": "canary-in-the-mine"}
    for where in ("h1", "local"):
        done = lab.run(["run", "--on", where, "--", "env"], env=canary)
        assert done.returncode == 0 and b"canary" not in done.stdout
        assert b"PYPY_" not in done.stdout  # a node has a variable of its own there


def test_limits_hold_over_there(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--limit", "nofile=64", "--", "sh", "-c", "ulimit -n"])
    assert done.stdout == b"64\n"
    done = lab.run(["run", "--on", "h1", "--limit", "nonsense=1", "--", "true"])
    assert done.returncode == 2 and b"unknown limit" in done.stderr
    assert done.stderr.rstrip().endswith(b"known are as, core, cpu, data, fsize, nofile, nproc, stack")
    lab.alias("limited", "h1", limits={"nofile": 77})
    lab.alias("unbuilt", "h1", limits={"mem": "1G"})
    assert lab.run(["run", "--on", "limited", "--", "sh", "-c", "ulimit -n"]).stdout == b"77\n"
    done = lab.run(["run", "--on", "unbuilt", "--", "true"])
    assert done.returncode == 2 and b"unbuilt: error: limit mem needs a cgroup: not built yet" in done.stderr
    lab.alias("sized", "h1", limits={"fsize": "1.5KiB", "core": 0})
    assert lab.run(["run", "--on", "sized", "--", "sh", "-c", "ulimit -f"]).stdout == b"3\n"


def test_a_relative_directory_is_below_the_jobs_own(lab: Lab) -> None:
    there = lab["h1"].home
    (there / "quine" / "tree-2" / "sub").mkdir(parents=True)
    done = lab.run(["run", "--on", "h1", "--cwd", "sub", "--", "pwd"], env={"QUINE_ROOT_SESSION": "tree-2"})
    assert done.stdout == f"{there}/quine/tree-2/sub\n".encode()
    done = lab.run(["run", "--on", "h1", "--cwd", "nope", "--", "pwd"])
    assert done.returncode == 69 and b"no such directory" in done.stderr
    done = lab.run(["run", "--on", "local", "--cwd", "..", "--", "pwd"])
    assert done.stdout == f"{lab.work.parent}\n".encode()


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_256_megabytes_both_ways(lab: Lab, tmp_path: Path) -> None:
    """The bytes arrive unchanged, and no process on the way needs more than it may."""
    lab.stop_nodes()  # memory that earlier tests made the nodes keep is not counted
    material = tmp_path / "material"
    with material.open("wb") as file:
        for seed in range(256):
            file.write(random.Random(seed).randbytes(MiB))
    want = hashlib.sha256(material.read_bytes()).hexdigest()
    # Started from a small process: a child's peak counts the memory of who forked it.
    measure = (
        "import os, subprocess, sys; child = subprocess.Popen(sys.argv[1:]);"
        "_, status, usage = os.wait4(child.pid, 0); print(usage.ru_maxrss, file=sys.stderr);"
        "os._exit(os.waitstatus_to_exitcode(status))"
    )
    with material.open("rb") as source, (tmp_path / "out").open("wb") as sink:
        done = subprocess.run(
            [sys.executable, "-c", measure, lab.quine, "run", "--on", "h1", "--", "cat"],
            stdin=source,
            stdout=sink,
            stderr=subprocess.PIPE,
            env=lab.env,
            check=False,
        )
    assert done.returncode == 0
    assert hashlib.sha256((tmp_path / "out").read_bytes()).hexdigest() == want
    assert int(done.stderr) * 1024 < 80 * MiB
    both = nodes(lab.processes()) + nodes(lab["h1"].processes())
    assert len(both) >= 2
    for node in both:
        assert peak_rss(node.pid) < most(node), str(node)


@pytest.mark.long
def test_a_reader_that_sleeps_stops_the_producer(lab: Lab) -> None:
    """The producer on the host blocks on its pipe, memory stays the same, and afterwards no byte is missing."""
    lab.stop_nodes()  # as above
    count = 160 * MiB
    script = f"head -c {count} /dev/zero | tr '\\0' x; echo done >&2"
    process = lab.popen(
        ["run", "--on", "h1", "--", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout and process.stderr
    got = read_until(process.stdout.fileno(), b"x")
    # A small command gets through meanwhile, and the producer has not finished: it is held back.
    assert lab.run(["run", "--on", "h1", "--", "echo", "alive"]).stdout == b"alive\n"
    assert not readable(process.stderr, 0.5)
    for node in nodes(lab.processes()) + nodes(lab["h1"].processes()):
        assert peak_rss(node.pid) < most(node), str(node)
    out, err = process.communicate(timeout=120)
    assert len(got) + len(out) == count and err == b"done\n" and process.returncode == 0


def test_head_ends_the_producer_on_both_machines(lab: Lab) -> None:
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    done = lab.sh("quine run --on h1 -- yes | head -1")
    assert done.stdout == b"y\n" and done.stderr == b""
    assert lab.wait_idle() == []
    done = lab.sh("{ quine run --on h1 -- yes; echo $? >&2; } | head -1")
    assert done.stderr.split()[-1] == b"141"


def test_a_producer_here_is_ended_by_a_command_there(lab: Lab) -> None:
    """The other direction: the far command closes its stdin and lives on."""
    done = lab.sh(
        "{ yes; echo $? >&2; } | quine run --on h1 -- sh -c 'head -1; exec <&-; echo closed; sleep 0.3'"
    )
    assert done.stdout == b"y\nclosed\n"
    assert done.stderr.split() == [b"141"]


def test_any_stdin(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"material")
    for line, want in (
        ("printf '' | quine run --on h1 -- cat", b""),
        ("quine run --on h1 -- cat <&-", b""),
        ("quine run --on h1 -- cat </dev/null", b""),
        ("quine run --on h1 -- cat 0>/dev/null", b""),  # as nohup gives it
        (f"quine run --on h1 -- cat <{tmp_path}/file", b"material"),
        ("printf material | quine run --on h1 -- cat", b"material"),
    ):
        done = lab.sh(line)
        assert (done.returncode, done.stdout, done.stderr) == (0, want, b""), line
    done = lab.sh("quine run --on h1 -- cat </proc/self/mem")  # as a file of a server that is gone
    assert (done.returncode, b"cannot read stdin: input/output error" in done.stderr) == (74, True)
    here, there = socket.socketpair()
    with here, there:
        process = lab.popen(["run", "--on", "h1", "--", "cat"], stdin=there.fileno(), stdout=there.fileno())
        here.sendall(b"material")
        here.shutdown(socket.SHUT_WR)
        assert here.recv(100) == b"material" and process.wait(PATIENCE) == 0


def test_stdin_from_a_terminal(lab: Lab) -> None:
    master, slave = pty.openpty()
    try:
        process = lab.popen(
            ["run", "--on", "h1", "--", "sh", "-c", "echo up; read line; echo got $line"],
            stdin=slave,
            stdout=subprocess.PIPE,
        )
        assert process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        os.write(master, b"typed\n")
        out, _ = process.communicate(timeout=PATIENCE)
        assert out == b"got typed\n" and process.returncode == 0
    finally:
        os.close(master)
        os.close(slave)


def test_closed_outputs(lab: Lab) -> None:
    assert lab.sh("quine run --on h1 -- sh -c 'echo x; exit 4' >&-").returncode in (4, 141)
    done = lab.sh("quine run --on h1 -- sh -c 'exit 5' >&- 2>&-")
    assert done.returncode == 5


def test_a_full_device_is_not_success(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", "yes"], stdout=FULL)
    assert done.returncode != 0
    assert b"cannot write stdout: no space left on device" in done.stderr
    assert lab.wait_idle() == []


def test_a_socket_whose_reader_has_gone_ends_the_producer(lab: Lab) -> None:
    here, there = socket.socketpair()
    with here:
        process = lab.popen(["run", "--on", "h1", "--", "yes"], stdout=there.fileno())
        there.close()
        assert here.recv(2) == b"y\n"
    assert process.wait(PATIENCE) == -signal.SIGPIPE
    assert lab.wait_idle() == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_a_signal_gets_through_when_only_our_reader_is_slow(lab: Lab, name: str) -> None:
    """The job on the host has ended; its output waits for a local reader that does not read."""
    process = lab.popen(
        ["run", "--on", "h1", "--", "head", "-c", "200000", "/dev/zero"], stdout=subprocess.PIPE
    )
    assert process.stdout
    os.read(process.stdout.fileno(), 1)
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.wait(PATIENCE) == -getattr(signal, f"SIG{name}")
    process.stdout.close()


def test_a_command_that_does_not_read_its_stdin_does_not_hang(lab: Lab) -> None:
    done = lab.sh("yes | quine run --on h1 -- sh -c 'echo mine; exit 3'")
    assert (done.returncode, done.stdout) == (3, b"mine\n")
    # A writer that stays open and silent does not hold the client either.
    done = lab.sh("{ quine run --on h1 -- true; echo $? >&2; kill $$; } </dev/zero")
    assert b"0\n" in done.stderr


def test_the_callers_descriptors_stay_blocking(lab: Lab) -> None:
    here, there = os.pipe()
    try:
        process = lab.popen(["run", "--on", "h1", "--", "echo", "x"], stdout=there)
        assert process.wait(PATIENCE) == 0
        assert os.get_blocking(there)
    finally:
        os.close(here)
        os.close(there)


def test_a_grandchild_that_holds_stdout_does_not_hold_the_client(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", "sh", "-c", "sleep 1060 & echo $!; exit 6"])
    assert done.returncode == 6
    (left,) = lab.jobs()  # as with a local shell it lives on
    assert left.pid == int(done.stdout)
    until(lambda: (now := processes.find(left.pid)) and now.argv == ("sleep", "1060"))
    os.kill(left.pid, signal.SIGKILL)


def test_output_written_after_the_exit_of_the_leader_is_not_lost(lab: Lab) -> None:
    script = "(while kill -0 $$; do :; done 2>/dev/null; echo late) & exit 0"  # $$ is the leader
    done = lab.run(["run", "--on", "h1", "--", "bash", "-c", script])
    assert done.stdout == b"late\n"


# -- signals and deaths ----------------------------------------------------------------------------


TELLS = """
import os, signal
ready, told = os.pipe()
who = "leader" if os.fork() else "member"
def tell(number, _):
    os.write(1, f"{who} {signal.Signals(number).name}\\n".encode())
    if number == signal.SIGQUIT:
        os._exit(9)
for name in "INT TERM HUP USR1 ALRM WINCH QUIT".split():
    signal.signal(getattr(signal, "SIG" + name), tell)
if who == "member":
    os.write(told, b"x")
else:
    os.read(ready, 1)
    os.write(1, b"up\\n")
while True:
    signal.pause()
"""


def test_signals_reach_the_group_over_there(
    lab: Lab, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A child of the command, in its group, gets each as well."""
    process = started(f"exec python3 -c '{TELLS}'")
    assert process.stdout
    for name in ("INT", "TERM", "HUP", "USR1", "ALRM", "WINCH", "QUIT"):
        process.send_signal(getattr(signal, f"SIG{name}"))
        said = b""
        while said.count(b"\n") < 2:
            said += read_until(process.stdout.fileno(), b"\n")
        assert sorted(said.decode().split()) == sorted(["leader", "member", f"SIG{name}", f"SIG{name}"])
    assert process.wait(PATIENCE) == 9


@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_a_command_that_dies_of_the_forwarded_signal(lab: Lab, name: str) -> None:
    # cat, not a shell: dash catches SIGINT itself and can lose it between fork and exec
    process = lab.popen(["run", "--on", "h1", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    process.stdin.write(b"up\n")
    process.stdin.flush()
    read_until(process.stdout.fileno(), b"up\n")
    process.send_signal(getattr(signal, f"SIG{name}"))
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -getattr(signal, f"SIG{name}")
    assert lab.wait_idle() == []


def test_three_interrupts_leave_a_command_that_ignores_them(
    lab: Lab, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = started("trap 'echo int' INT; echo up; while :; do sleep 0.05; done")
    assert process.stdout
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        read_until(process.stdout.fileno(), b"int\n")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT or b"int" in err
    assert lab.wait_idle() == []


@pytest.mark.long
def test_kill_9_of_the_client(lab: Lab, started: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Processes that moved into groups of their own, or that ignore TERM, end too."""
    # a session of its own is outside the job, as with any job control
    outside = "echo $$ >~/outside; echo up; exec sleep 1061"
    process = started(f"trap '' TERM; bash -mc 'sleep 1062 & wait' & setsid sh -c '{outside}'")
    process.kill()
    process.communicate()
    path = lab["h1"].home / "outside"
    pid = int(path.read_text())
    path.unlink()
    until(lambda: [job.pid for job in lab.jobs()] == [pid])
    until(lambda: (now := processes.find(pid)) and now.argv == ("sleep", "1061"))
    os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_kill_9_of_the_node_here(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab(["h1"], lease=1)
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    process = lab.popen(
        ["run", "--on", "h1", "--", "sh", "-c", "echo up; exec sleep 1060"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    read_until(process.stdout.fileno(), b"up\n")
    for node in nodes(lab.processes()):
        processes.kill(node.pid)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 74
    assert err.startswith(b"quine: error: the node of this machine ended; the command was started (pid ")
    assert b"its outcome is not known" in err
    assert lab.wait_idle(90) == []
    assert lab.run(["run", "--on", "h1", "--", "echo", "again"]).stdout == b"again\n"


def test_kill_9_of_the_sshd_session_is_survived(lab: Lab) -> None:
    process = lab.popen(
        [
            "run",
            "--on",
            lab.alias("held", "h1", lease=600),
            "--",
            "sh",
            "-c",
            "echo up; read line; echo $line; exit 5",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stdin
    read_until(process.stdout.fileno(), b"up\n")
    lab["h1"].kill_sessions()
    out, err = process.communicate(b"after\n", timeout=PATIENCE)
    assert (process.returncode, out, err) == (5, b"after\n", b"")
    assert lab.wait_idle(90) == []


@pytest.mark.long
def test_a_link_that_stays_down_longer_than_the_lease(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab(["h1"], lease=1)
    process = lab.popen(
        ["run", "--on", "h1", "--", "sh", "-c", "echo up; exec sleep 1060"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    read_until(process.stdout.fileno(), b"up\n")
    lab["h1"].stop()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 74
    assert err.startswith(b"quine: h1: error: connection lost: ") and b"was started (pid " in err
    assert b"for longer than the lease of 1 s" in err
    assert lab.wait_idle(90) == []
    lab["h1"].start()
    assert lab.run(["run", "--on", "h1", "--", "echo", "again"]).stdout == b"again\n"


@pytest.mark.long
@pytest.mark.parametrize("death", ["client", "link"])
def test_a_lost_origin_is_no_end_of_file(own_lab: Callable[..., Lab], death: str) -> None:
    """A command that reads its stdin to the end must not take a lost link for the end of its input."""
    lab = own_lab(["h1"], lease=1)
    done = lab["h1"].home / "done"
    process = lab.popen(
        ["run", "--on", "h1", "--", "sh", "-c", "cat; : >~/done"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    process.stdin.write(b"half\n")
    process.stdin.flush()
    read_until(process.stdout.fileno(), b"half\n")
    if death == "client":
        process.kill()
    else:
        lab["h1"].stop()
    process.communicate()
    assert lab.wait_idle(90) == []
    assert not done.exists()


# -- many ------------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.long
def test_300_at_once_over_one_connection(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab(["h1"])
    done = lab.sh(
        'for n in $(seq 300); do { quine run --on h1 -- sh -c "echo $n; exit $((n % 7))" </dev/null;'
        ' echo "$n $?" >&2; } & done; wait',
        timeout=120,
    )
    wrong = set(done.stderr.decode().splitlines()) ^ {f"{n} {n % 7}" for n in range(1, 301)}
    assert not wrong, sorted(wrong)[:9]
    assert sorted(map(int, done.stdout.split())) == list(range(1, 301))
    assert lab["h1"].connections() == 1


def test_slots_make_the_rest_wait(lab: Lab, tmp_path: Path) -> None:
    """Four jobs, two slots: never more than two hold the directory's lock files at one time, and two do."""
    lab.alias("narrow", "h1", slots=2)
    script = f"""
cd {tmp_path}; mkdir -p held; : >held/$$; set -- held/*
while [ $# -lt 2 ] && ! [ -e met ]; do sleep 0.01; set -- held/*; done
: >met; echo $#; sleep 0.1; set -- held/*; echo $#; rm held/$$
"""
    process = [
        lab.popen(["run", "--on", "narrow", "--", "sh", "-c", script], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    counts = [int(n) for one in process for n in one.communicate(timeout=PATIENCE)[0].split()]
    assert len(counts) == 8 and max(counts) == 2


def test_a_where_of_tags_and_names_chooses_the_host(lab: Lab) -> None:
    lab.alias("t1", "h1", tags=["gpu"])
    lab.alias("t2", "h2", tags=["gpu", "bad"])
    name = ["--", "sh", "-c", "echo $QUINE_NODE_NAME"]
    assert lab.run(["run", "--on", "@gpu!@bad", *name]).stdout == b"t1\n"
    assert lab.run(["run", "--on", "t2,h9x", *name]).returncode == 69
    done = lab.run(["run", "--on", "h9", *name])
    assert done.returncode == 69 and b"no such host: 'h9'; known: h1, h2, h3, t1, t2" in done.stderr


def test_on_never_falls_back_to_this_machine(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", "true"], env={"QUINE_INVENTORY": None})
    assert done.returncode == 69 and b"there is no inventory" in done.stderr
    done = lab.run(["run", "--on", "h1", "--", "true"], env={"QUINE_INVENTORY": "/no/such.toml"})
    assert done.returncode == 2 and b"/no/such.toml" in done.stderr
