"""`quine each` as a process: every host at the same time, the outputs together, and what is said of hosts that fail."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quine.base.errors import Misconfigured
from quine.fanout.each.options import parse, spread
from tests.lab import Lab
from tests.lab.host import Host
from tests.support.agents import PATIENCE
from tests.support.imports import HEAVY, imported_by
from tests.support.waiting import read_until

SH = ["--", "sh", "-c"]
ALL = "h1,h2,h3"


def on(host: str, script: str) -> str:
    """A script for one host alone."""
    return f'if [ "$QUINE_NODE_NAME" = {host} ]; then {script}; fi'


def groups(out: bytes) -> dict[str, str]:
    """The outputs below the lines that name their hosts."""
    found = {}
    for part in out.decode().split("==> ")[1:]:
        names, _, text = part.partition(" <==\n")
        found[names] = text
    return found


@contextmanager
def running(lab: Lab, *words: object, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    with lab.popen(["each", *map(str, words)], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def fifos(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        os.mkfifo(tmp_path / name)
    return tmp_path


# -- the command -----------------------------------------------------------------------------------


def test_every_host_runs_it_once_in_its_home(lab: Lab, tmp_path: Path) -> None:
    done = lab.run(["each", ALL, *SH, f'pwd; echo $QUINE_NODE_NAME >>{tmp_path}/ran; printf %s "$0"', "a  b"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert groups(done.stdout) == {name: f"{lab[name].home}\na  b\n" for name in ("h1", "h2", "h3")}
    assert sorted((tmp_path / "ran").read_text().split()) == ["h1", "h2", "h3"]


def test_surroundings_are_those_of_the_options(lab: Lab) -> None:
    words = ["--cwd", "/usr", "--env", "A=b c", "--limit", "nofile=77"]
    done = lab.run(["each", *words, "h1", *SH, 'pwd; echo "$A"; ulimit -n'])
    assert (done.stdout, done.stderr) == (b"==> h1 <==\n/usr\nb c\n77\n", b"")


def test_all_run_at_the_same_time(lab: Lab, fifos: Path) -> None:
    """Each of the two waits for the other."""
    here = f"cd {fifos}; {on('h1', 'echo 1 >a; read x <b')}; {on('h2', 'read x <a; echo 2 >b')}; echo $x"
    done = lab.run(["each", "h1,h2", *SH, here])
    assert (done.returncode, groups(done.stdout)) == (0, {"h1": "2\n", "h2": "1\n"})


def test_so_many_at_a_time_in_the_order_of_the_inventory(lab: Lab, tmp_path: Path) -> None:
    script = f"echo $QUINE_NODE_NAME >>{tmp_path}/log; echo end >>{tmp_path}/log"
    lab.run(["each", "-P1", "h3,h1,h2", *SH, script], check=True)
    assert (tmp_path / "log").read_text().split() == ["h1", "end", "h2", "end", "h3", "end"]


@pytest.mark.parametrize(
    ("where", "spread_out"),
    [
        ("h1", "h1"),
        ("h[1-2]", "h1,h2"),
        ("@rack[01-02],db", "@rack01,@rack02,db"),
        ("any!h[1,3]!db", "any!h1!h3!db"),
        ("n[1-2]-[a]", None),
        ("h[2-1]", None),
    ],
)
def test_a_folded_list_is_a_where(where: str, spread_out: str | None) -> None:
    if spread_out is None:
        with pytest.raises(Misconfigured, match=r"^WHERE: "):
            spread(where)
    else:
        assert spread(where) == spread_out


def test_hosts_are_chosen_as_where_says(lab: Lab) -> None:
    done = lab.run(["each", "any!h[1,3]", "hostname"])
    assert list(groups(done.stdout)) == ["h2"]
    done = lab.run(["each", "h[1-2],h9", "touch", "ran"])
    assert done.returncode == 69 and b"no such host: 'h9'" in done.stderr
    assert not (lab["h1"].home / "ran").exists()


def test_this_machine_is_none_of_the_hosts(lab: Lab) -> None:
    for where in ("local", "any,local", "h1!local"):
        done = lab.run(["each", where, "true"])
        assert (done.returncode, done.stderr.decode()) == (
            69,
            "quine: error: local is this machine, and no host of the inventory\n"
            "quine: hint: leave it out; here the command needs no quine\n",
        ), where


def test_stdin_is_empty_or_a_copy_for_each(lab: Lab, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "file").write_bytes(data)
    both = ["each", "--json", "h1,h2", *SH, "cksum"]
    none = {json.loads(line)["stdout"] for line in lab.run(both, input=data).stdout.splitlines()}
    assert none == {"4294967295 0\n"}
    given = subprocess.run(["cksum"], input=data, stdout=subprocess.PIPE, check=True).stdout.decode()
    both[1:1] = ["--stdin", "all"]
    with (tmp_path / "file").open("rb") as file:
        pipe, seekable = lab.run(both, input=data), running(lab, *both[1:], stdin=file)
        with seekable as process:
            outputs = [pipe.stdout, process.communicate(timeout=PATIENCE)[0]]
    both[2] = str(tmp_path / "file")
    outputs.append(lab.run(both).stdout)
    for out in outputs:
        assert [json.loads(line)["stdout"] for line in out.splitlines()] == [given, given]
    done = lab.run(["each", "--stdin", "/no/such", "any", "cat"])
    assert (done.returncode, done.stderr) == (
        2,
        b"quine: error: --stdin /no/such: cannot be read: no such file or directory\n",
    )


# -- outputs ---------------------------------------------------------------------------------------


def test_stderr_is_tagged_and_a_missing_newline_is_added(lab: Lab) -> None:
    done = lab.run(["each", "-k", "h1,h2", *SH, "printf 'a\nb'; printf 'e\nf' >&2"])
    assert done.stdout == b"==> h1 <==\na\nb\n==> h2 <==\na\nb\n"
    assert done.stderr == b"h1\te\nh1\tf\nh2\te\nh2\tf\n"


def test_no_output_is_nothing(lab: Lab) -> None:
    done = lab.run(["each", "any", "true"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_lines_are_tagged(lab: Lab) -> None:
    done = lab.run(["each", "-k", "--tag", "h1,h2", *SH, "printf 'a\nb'"])
    assert done.stdout == b"h1\ta\nh1\tb\nh2\ta\nh2\tb\n"


def test_the_order_of_the_inventory(lab: Lab, fifos: Path) -> None:
    """h1 ends after h2 has begun its end."""
    script = f"cd {fifos}; {on('h1', 'read x <a')}; {on('h2', 'echo >a')}; echo $QUINE_NODE_NAME"
    done = lab.run(["each", "-k", "--tag", "h2,h1", *SH, script])
    assert done.stdout == b"h1\th1\nh2\th2\n"


def test_lines_are_passed_on_at_once(lab: Lab, fifos: Path) -> None:
    with running(lab, "--line-buffer", "h1", *SH, f"echo up; read x <{fifos}/a; printf end") as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"h1\tup\n")
        (fifos / "a").write_text("go\n")
        assert process.communicate(timeout=PATIENCE) == (b"h1\tend\n", b"")


def test_identical_outputs_are_shown_once(lab: Lab) -> None:
    """They come in other pieces, and one of them is longer than memory holds; stderr counts, too."""
    script = f"seq 1 9; {on('h2', 'sync')}; seq 10 20000; {on('h3', 'echo other >&2')}; exit 0"
    done = lab.run(["each", "--fold", ALL, *SH, script])
    text = "".join(f"{n}\n" for n in range(1, 20001))
    assert list(groups(done.stdout).items()) == [("h[1-2] (2)", text), ("h3", text)]
    assert (done.returncode, done.stderr) == (0, b"h3\tother\n")


def test_folded_stderr_has_the_folded_list(lab: Lab) -> None:
    done = lab.run(["each", "--fold", ALL, *SH, "echo no >&2; exit 3"])
    assert done.stderr == b"h[1-3]\tno\nquine: h[1-3]: error: exit status 3\n"


def test_one_object_a_host(lab: Lab) -> None:
    lab["h3"].stop()
    script = f"{on('h1', 'echo a; exit 3')}; {on('h2', chr(39).join(['printf ', chr(92) + '377', '']))}"
    done = lab.run(["each", "-k", "--json", ALL, *SH, script])
    one, two, three = (json.loads(line) for line in done.stdout.splitlines())
    assert one.pop("seconds") >= 0
    assert one == {
        **{"host": "h1", "state": "failed", "code": 3, "signal": None, "detail": ""},
        **{"stdout": "a\n", "stderr": ""},
    }
    assert (two["state"], two["stdout_base64"], two["stderr"]) == ("done", "/w==", "")
    assert (three["state"], three["code"]) == ("never started", 69)
    assert three["detail"] and three["stdout"] == three["stderr"] == ""
    done = lab.run(["each", "--json", "--json-limit", "5", "h1", *SH, "echo long; echo no >&2"])
    one = json.loads(done.stdout)
    assert (one["stdout"], one["stderr"], "cut" in one, done.returncode) == ("long\n", "no\n", False, 0)
    done = lab.run(["each", "--json", "--json-limit", "4", "h1", *SH, "echo long; echo no >&2"])
    one = json.loads(done.stdout)
    assert (one["stdout"], one["stderr"], one["cut"]) == ("long", "no\n", {"stdout": 5})
    assert done.returncode == 74 and done.stderr == (
        b"quine: error: stdout of h1 has 5 bytes, and was cut at 4\n"
        b"quine: hint: --json-limit SIZE, 0 = no limit\n"
    )


def test_options_that_make_no_sense_are_refused(lab: Lab) -> None:
    for words in (
        "--fold --tag",
        "--json --fold",
        "--json --line-buffer",
        "-k --line-buffer",
        "-k --fold",
        "-P0",
        "-Px",
        "--timeout soon",
        "--limit nofile",
        "--foldd",
    ):
        assert lab.run(["each", *words.split(), "h1", "touch", "ran"]).returncode == 2, words
    assert not (lab["h1"].home / "ran").exists()


def test_where_and_command_are_needed(lab: Lab) -> None:
    for words, lacking in (
        (["each"], b"WHERE"),
        (["each", "--", "x"], b"WHERE"),
        (["each", "h1"], b"command"),
    ):
        done = lab.run(words)
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, b"quine: error: no " + lacking)
    options, where, command = parse(["--fold", "h1", "-q", "cmd", "-q", "--", "x"])
    assert (options.fold, options.spawn.quiet, where, command) == (True, True, "h1", ["cmd", "-q", "--", "x"])


# -- ends ------------------------------------------------------------------------------------------


def test_the_largest_status_counts_and_faults_are_folded(lab: Lab) -> None:
    script = f"{on('h2', 'exit 7')}; exit 3"
    done = lab.run(["each", ALL, *SH, script])
    assert done.returncode == 7
    assert sorted(done.stderr.decode().splitlines()) == [
        "quine: h2: error: exit status 7",
        "quine: h[1,3]: error: exit status 3",
    ]
    done = lab.run(["each", "h1,h2", *SH, f"{on('h1', 'kill -KILL $$')}; exit 9"])
    assert done.returncode == 137 and b"quine: h1: error: killed by KILL\n" in done.stderr


def test_hosts_that_are_down_or_unfit_are_named_and_hold_up_no_other(
    lab: Lab, odd_host: Callable[..., Host]
) -> None:
    odd_host("bare", python=False)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else's
        lab.alias("dead", "h1", port=held.getsockname()[1])
        done = lab.run(["each", "h1,dead,bare", *SH, "echo ok; exit 100"])
    assert (done.returncode, groups(done.stdout)) == (69, {"h1": "ok\n"})
    errors = [line for line in done.stderr.decode().splitlines() if ": error: " in line]
    assert len(errors) == 3
    assert {line.split(": ")[1] for line in errors} == {"dead", "bare", "h1"}


def test_a_command_that_is_lost_somewhere_is_the_exit_status(lab: Lab, fifos: Path) -> None:
    lab["h3"].stop()
    script = f"echo up; {on('h1', f'read x <{fifos}/a')}; exit 200"
    with running(lab, "--line-buffer", ALL, *SH, script) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"h1\tup\n")
        lab["h1"].kill_processes()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 74
    errors = [line for line in said.decode().splitlines() if ": error: " in line]
    assert {line.split(": ")[1] for line in errors} == {"h1", "h2", "h3"}


@pytest.mark.parametrize("seconds", ["inf", "1e8"])
def test_a_time_may_be_longer_than_one_wait_for_events(lab: Lab, seconds: str) -> None:
    done = lab.run(["each", "--timeout", seconds, "h1", *SH, "echo done"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"==> h1 <==\ndone\n", b"")


@pytest.mark.clock
def test_the_time_of_a_command_is_bounded(lab: Lab) -> None:
    script = f"echo up; {on('h1', 'exec tail -f /dev/null')}; exit 3"
    done = lab.run(["each", "--timeout", "1.5", "h1,h2", *SH, script])
    assert (done.returncode, groups(done.stdout)) == (124, {"h1": "up\n", "h2": "up\n"})
    assert b"quine: h1: error: not done after 1.5 s\n" in done.stderr
    assert b"quine: h2: error: exit status 3\n" in done.stderr


@pytest.mark.parametrize(
    "words", [["each", "--timeout", "0", "h1"], ["xargs", "--timeout", "0", "--on", "h1"]]
)
def test_a_time_of_0_is_no_limit(lab: Lab, words: list[str]) -> None:
    done = lab.run([*words, "--", "echo", "done"], input=b"item\n")
    assert (done.returncode, done.stderr) == (0, b"") and b"done" in done.stdout


@pytest.mark.parametrize(("text", "seconds"), [("", 0), ("0", 0), ("1.5", 1.5), ("2m", 120)])
def test_times_are_written_as_for_xargs(text: str, seconds: float) -> None:
    options, _, _ = parse(["--timeout", text] if text else [])
    assert options.seconds == seconds


def up(process: subprocess.Popen[bytes], count: int) -> None:
    assert process.stdout
    for _ in range(count):
        assert process.stdout.readline().endswith(b"\tup\n")


TOLD = """\
import os, signal, sys
numbers = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("up", flush=True)
while signal.sigwait(numbers):
    print("got it", flush=True)
    if os.environ["QUINE_NODE_NAME"] not in sys.argv[1:]:
        break
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_of_them(lab: Lab, number: int) -> None:
    """The commands get it, and what they print at their end is passed on."""
    with running(lab, "--line-buffer", ALL, "python3", "-c", TOLD) as process:
        up(process, 3)
        process.send_signal(number)
        out, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == -number
    assert sorted(out.splitlines()) == [b"h1\tgot it", b"h2\tgot it", b"h3\tgot it"] and said == b""


def test_a_second_signal_waits_for_nothing(lab: Lab) -> None:
    """And a host whose turn has not come is not begun, although another one has ended."""
    with running(lab, "-v", "--line-buffer", "-P2", ALL, "python3", "-c", TOLD, "h2") as process:
        assert process.stdout and process.stderr
        up(process, 2)
        process.send_signal(signal.SIGINT)
        assert sorted(process.stdout.readline() for _ in "12") == [b"h1\tgot it\n", b"h2\tgot it\n"]
        read_until(process.stderr.fileno(), b"quine: h1: done")
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (-signal.SIGINT, b"")
    assert b"quine: h2: error: not waited for any longer" in said and b"h3" not in said


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT, signal.SIGINT]])
def test_a_reader_that_has_stalled_holds_up_no_end(lab: Lab, numbers: list[int]) -> None:
    """More than a pipe holds waits for it, and nothing runs any more."""
    with running(lab, "-v", "h1", "--", "seq", "100000") as process:
        assert process.stderr
        read_until(process.stderr.fileno(), b"quine: h1: done")
        for number in numbers[:-1]:
            process.send_signal(number)
            process.send_signal(signal.SIGUSR1)  # its answer: the one before was taken
            read_until(process.stderr.fileno(), b"1 hosts have ended")
        process.send_signal(numbers[-1])
        assert process.wait(PATIENCE) == -numbers[-1]


def test_a_command_that_is_stopped_by_its_reader_is_ended(lab: Lab) -> None:
    with running(lab, "--line-buffer", "h1", "--", "yes") as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"h1\ty\n")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (
            -signal.SIGTERM,
            -signal.SIGINT,
        )  # they may be taken in either order


def test_after_the_first_interrupt_outputs_are_waited_for(lab: Lab) -> None:
    with running(lab, "-v", "h1", "--", "seq", "100000") as process:
        assert process.stdout and process.stderr
        read_until(process.stderr.fileno(), b"quine: h1: done")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGUSR1)
        read_until(process.stderr.fileno(), b"1 hosts have ended")
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT and out.endswith(b"\n100000\n")


@pytest.mark.parametrize("stderr", ["&-", "/dev/full"])
@pytest.mark.parametrize("words", ["-k", "--line-buffer", "--fold"])
def test_a_stderr_that_cannot_be_written_ends_no_other_host(lab: Lab, stderr: str, words: str) -> None:
    """Also where the stderr of a host comes before its stdout, which is in two pipes."""
    for script in ("echo x; echo y >&2", "echo y >&2; echo x"):
        done = lab.sh(f"quine each {words} {ALL} -- sh -c '{script}' 2>{stderr}")
        check_without_stderr(done, words)


def check_without_stderr(done: subprocess.CompletedProcess[bytes], words: str) -> None:
    assert done.returncode == 74
    if words == "-k":
        assert groups(done.stdout) == {"h1": "x\n", "h2": "x\n", "h3": "x\n"}
    elif words == "--fold":
        assert groups(done.stdout) == {"h[1-3] (3)": "x\n"}
    else:
        assert sorted(done.stdout.splitlines()) == [b"h1\tx", b"h2\tx", b"h3\tx"]


@pytest.mark.parametrize("words", ["-k", "--fold", "--json"])
def test_an_output_that_cannot_be_kept_ends_no_other_host(lab: Lab, words: str) -> None:
    """No file may have more than 100 KiB, as on a disk that is almost full; h1 is the first of all."""
    lab.run(["run", "--on", ALL, "--", "true"])  # the node of this machine has no such limit
    script = f"{on('h1', 'seq 100000')}; echo x"
    line = f"ulimit -f 200; exec quine each -P1 {words} {ALL} -- sh -c '{script}'"
    done = lab.sh(line, env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 74
    why = b"error: an output cannot be kept in a temporary file: file too large\n"
    assert done.stderr.endswith(why) and done.stderr.count(why) == 1
    if words == "--json":
        states = {(entry := json.loads(line))["host"]: entry["state"] for line in done.stdout.splitlines()}
        assert (states["h2"], states["h3"]) == ("done", "done") and states["h1"] != "done"
    else:
        found = groups(done.stdout)
        assert found.get("h2") == found.get("h3") == "x\n" or found["h[2-3] (2)"] == "x\n"


def test_it_tells_which_hosts_are_at_work(lab: Lab, fifos: Path) -> None:
    script = f"echo up; {on('h2', f'read x <{fifos}/a')}; exit 0"
    with running(lab, "-v", "--line-buffer", ALL, *SH, script) as process:
        assert process.stdout and process.stderr
        up(process, 3)
        said = b""
        while said.count(b": done, 0 after ") < 2:
            said += process.stderr.readline()
        process.send_signal(signal.SIGUSR1)
        assert process.stderr.readline() == b"quine: 2 hosts have ended, 0 wait; at work: h2\n"
        (fifos / "a").write_text("go\n")
        assert process.wait(PATIENCE) == 0


def test_a_reader_that_leaves_ends_them(lab: Lab) -> None:
    done = lab.sh("quine each --line-buffer h1,h2 yes | head -n 3")
    assert (done.stdout.count(b"\ty\n"), done.stderr) == (3, b"")


def test_a_job_is_told_where_the_inventory_is(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", lab.quine, "each", "any", "--", "true"])
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        b"quine: error: quine each chooses its hosts where the inventory is",
    )


@pytest.mark.long
def test_fifty_hosts(lab: Lab) -> None:
    """Of one machine, by commands that are shells; a list of them names them, and one is dead."""
    for number in range(50):
        lab.by_command(f"n{number:02}", "h1")
    lab.by_command("n50", "h1", command=["false"])
    done = lab.run(["each", "--fold", "n[00-50]", "echo", "same"])
    failed = [line.split(b": ")[1] for line in done.stderr.splitlines() if b": error: " in line]
    assert failed == [b"n50"], done.stderr
    assert (done.returncode, done.stdout) == (69, b"==> n[00-49] (50) <==\nsame\n")


def test_it_imports_the_standard_library_only(lab: Lab) -> None:
    assert not imported_by(lab, "each", "h1", "true") & (HEAVY | {"asyncio", "argparse"})
