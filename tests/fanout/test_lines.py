"""`quine xargs --line-buffer`: lines of any length do not mix, and what was shown is not shown again after a kill."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quine.fanout.output.lines import Lines
from quine.fanout.output.sinks import Sink
from quine.fanout.output.streams import Streams
from tests.fanout.test_xargs import SH
from tests.lab import Lab
from tests.support.agents import PATIENCE
from tests.support.waiting import read_until
from transport.client.batch import Batch

LONG = (
    40 << 10
)  # bytes of a line: more than are kept of one, and less than a node sends without being answered

# Prints half of a line, and the rest once the other job has printed half of its own.
HALVES = f"""
half() {{ head -c {LONG} /dev/zero | tr '\\0' "$0"; }}
half; touch "$1/$0"; until test -e "$1/$2"; do sleep 0.02; done; half; echo; half; half; echo
"""
# Shows progress, which returns to the begin of its line, and waits.
PROGRESS = """
if test "$0" = b; then until test -e "$1/b"; do sleep 0.02; done; echo b
else for n in $(seq 3000); do printf 'progress %050d\\r' "$n"; done; until test -e "$1/go"; do sleep 0.02; done; fi
"""
# A line before it waits, and one after.
WAITS = 'echo "a$0"; until test -e "$1"; do sleep 0.02; done; echo "b$0"'


def test_lines_that_are_longer_than_can_be_kept_do_not_mix(lab: Lab, tmp_path: Path) -> None:
    words = ["xargs", "-P2", "--line-buffer", "--tag", "--joblog", "log", "--on", "h1", "--colsep", " "]
    items = ["{1}", str(tmp_path), "{2}", ":::", "a b", "b a"]
    done = lab.run([*words, *SH, HALVES, *items], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = [f"{name} {other}\t{name * 2 * LONG}" for name, other in ("ab", "ba") for _ in range(2)]
    assert sorted(done.stdout.decode().splitlines()) == lines


def test_progress_in_one_line_does_not_hold_up_the_lines_of_others(lab: Lab, tmp_path: Path) -> None:
    words = ["xargs", "-P2", "--line-buffer", "--joblog", "log", "--on", "h1", *SH, PROGRESS]
    with lab.popen(
        [*words, "{}", str(tmp_path), ":::", "a", "b"], stdout=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"%050d\r" % 1000)
        (tmp_path / "b").touch()
        read_until(process.stdout.fileno(), b"b\n")
        (tmp_path / "go").touch()
        process.stdout.read()
        assert process.wait(PATIENCE) == 0


def test_a_line_that_was_shown_before_a_kill_is_not_shown_again(lab: Lab, tmp_path: Path) -> None:
    """The second job is sent after the first line was shown: its start says that all that was sent before is there."""
    lab.alias("h1", "h1", lease=60)
    words = [
        "xargs",
        "-P2",
        "--line-buffer",
        "--joblog",
        "log",
        "--on",
        "h1",
        *SH,
        WAITS,
        "{}",
        f"{tmp_path}/go",
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with lab.popen(words, cwd=tmp_path, **pipes) as process:
        assert process.stdin and process.stdout
        for item in (b"0", b"1"):
            process.stdin.write(item + b"\n")
            process.stdin.flush()
            read_until(process.stdout.fileno(), b"a" + item + b"\n")
        process.kill()
        process.wait(PATIENCE)
    (tmp_path / "go").touch()
    done = lab.run([*words[:1], "--resume", *words[1:]], input=b"0\n1\n", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode().split()
    assert {"b0", "b1"} <= set(shown) <= {"b0", "a1", "b1"} and len(shown) == len(set(shown))


def test_what_was_shown_by_lines_may_be_gone_on_with_as_a_whole(lab: Lab, tmp_path: Path) -> None:
    """Without --line-buffer the rest comes at the end, and below --results the whole."""
    lab.alias("h1", "h1", lease=60)
    words = ["xargs", "--joblog", "log", "--results", "out", "--on", "h1"]
    job = [*SH, WAITS, "{}", f"{tmp_path}/go", ":::", "0"]
    with lab.popen([*words, "--line-buffer", *job], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"a0\n")
        process.kill()
        process.wait(PATIENCE)
    (tmp_path / "go").touch()
    done = lab.run([*words, "--resume", *job], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout in (b"b0\n", b"a0\nb0\n")
    assert (tmp_path / "out/1/0/stdout").read_text() == "a0\nb0\n"


@pytest.mark.parametrize("end", ["drop", "leave"])
def test_what_was_not_taken_of_an_item_that_is_given_up_begins_no_line(end: str) -> None:
    """It came behind the end of the item, and all others waited for the end of its line."""
    batch = Batch()
    sink = Sink(streams := Streams(batch), False)
    try:
        lines = Lines(sink, 1, None)
        lines._left.append((1, memoryview(bytes(1 << 20))))
        sink.stopped[lines] = None
        getattr(lines, end)()
        assert lines not in sink.stopped
        lines.go_on()
        assert not sink.stops(Lines(sink, 2, None))
    finally:
        streams.close()
        batch.close()
