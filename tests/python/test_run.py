"""`quine.run` beside `subprocess.run`: the same arguments have the same end, here and on a host."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import quine
from tests.lab import Lab
from tests.support.agents import PATIENCE
from tests.support.waiting import until
from tests.transport.client.test_batch import origin

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def there(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    monkeypatch.chdir(tmp_path)
    return origin(lab, monkeypatch)


SCRIPT = "cat; echo to stderr >&2; echo $A; exit $1"
CASES: list[dict[str, Any]] = [
    {"capture_output": True, "input": b"in\0\xff"},
    {"capture_output": True, "input": "t\u00e4xt\r\n", "text": True, "encoding": "utf-8"},
    {"capture_output": True, "input": "t\u00e4xt", "encoding": "latin-1"},
    {"capture_output": True, "input": b"\xff", "check": True},
    {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL},
    {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL},
    {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL},
]


def outcome(run: Any, *args: Any, **options: Any) -> tuple[object, ...]:
    try:
        done = run(*args, **options)
    except subprocess.CalledProcessError as error:
        return ("error", error.cmd, error.returncode, error.stdout, error.stderr, str(error))
    return (done.args, done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("where", ["", "local", "h1"])
def test_the_same_as_subprocess(there: Lab, where: str) -> None:
    env = {"A": "b c"} if where == "h1" else {**os.environ, "A": "b c"}
    for options in CASES:
        for status in ("0", "3") if "check" in options else ("3",):
            words = ["sh", "-c", SCRIPT, "sh", status]
            expected = outcome(subprocess.run, words, env={**os.environ, "A": "b c"}, **options)
            assert outcome(quine.run, words, env=env, on=where, **options) == expected, options


def test_the_environment_here_is_the_one_that_is_given_and_no_other(there: Lab) -> None:
    for env in ({"PATH": os.environ["PATH"], "ONLY": "1"}, None):
        words = [sys.executable, "-c", "import os; print(sorted(os.environ))"]
        ours = quine.run(words, capture_output=True, text=True, env=env).stdout
        theirs = subprocess.run(words, capture_output=True, text=True, env=env).stdout
        mine = set(eval(ours)) - {name for name in eval(ours) if name.startswith("QUINE_")}
        assert mine == {name for name in eval(theirs) if not name.startswith("QUINE_")}


def test_files_are_a_list_of_paths(there: Lab, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("text")
    done = quine.run(["cat", "data"], on="h1", files=[path], capture_output=True)
    assert done.stdout == b"text"
    with pytest.raises(TypeError, match="files is a list of paths"):
        quine.run(["cat"], on="h1", files=str(path))


def test_a_signal_a_directory_and_files_as_streams(there: Lab, tmp_path: Path) -> None:
    assert quine.run(["sh", "-c", "kill -INT $$"], on="h1").returncode == -2
    (tmp_path / "sub").mkdir()
    assert (
        quine.run(["pwd"], cwd="sub", capture_output=True, text=True).stdout == f"{Path('sub').resolve()}\n"
    )
    with tempfile.TemporaryFile() as out, open("errors", "w") as errors:
        out.write(b"before ")
        script = "cat; cat /no/such/file"
        done = (
            quine.run(["sh", "-c", script], on="h1", stdin=Path("input"), stdout=out, stderr=errors.fileno())
            if (tmp_path / "input").write_bytes(b"material")
            else None
        )
        out.seek(0)
        assert out.read() == b"before material" and done and done.returncode == 1
        assert (done.stdout, done.stderr) == (None, None) and "No such file" in Path("errors").read_text()


def test_arguments_that_contradict_each_other(there: Lab) -> None:
    for options in (
        {"input": b"", "stdin": 0},
        {"capture_output": True, "stdout": subprocess.PIPE},
        {"capture_output": True, "stderr": 2},
    ):
        with pytest.raises(ValueError, match="may not") as ours:
            quine.run(["true"], **options)
        with pytest.raises(ValueError, match="may not") as theirs:
            subprocess.run(["true"], **options)
        assert str(ours.value) == str(theirs.value)
    for wrong in ({"A": None}, {"A": 1}, {1: "a"}):
        with pytest.raises(TypeError, match="env has texts"):
            quine.run(["true"], on="h1", env=wrong)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="env has texts"):
            quine.run(["true"], env=wrong)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="is text or a path, not 7"):
        quine.run(["echo", 7])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="no function"):
        quine.run(print)  # type: ignore[call-overload]


@pytest.mark.clock
@pytest.mark.parametrize("where", ["", "h1"])
def test_a_timeout_counts_from_the_call_and_the_job_is_killed(there: Lab, where: str) -> None:
    words = ["sh", "-c", "trap '' TERM; echo begun; sleep 600"]
    quine.run(["true"], on=where)  # the link is there: the time is for the command
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        quine.run(words, on=where, timeout=0.5, capture_output=True)
    assert (caught.value.cmd, caught.value.timeout, caught.value.stdout) == (words, 0.5, b"begun\n")


def test_a_timeout_of_one_that_could_not_start(there: Lab) -> None:
    there.alias("narrow", "h1", slots=1)
    with quine.Executor("narrow") as executor:
        holds = executor.submit(["sleep", "600"])
        until(holds.running, "it runs")
        with pytest.raises(subprocess.TimeoutExpired):
            quine.run(["true"], on="narrow", timeout=0.2)
        holds.cancel()


INHERIT = """
import quine, subprocess
run = getattr({module}, "run")
print("first", flush=True)
print(run(["sh", "-c", "read a; echo got $a; echo error >&2"]).stdout, flush=True)
"""


def program(text: str, **options: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", text], env=env, text=True, capture_output=True, timeout=PATIENCE, **options
    )


def test_streams_that_are_not_named_are_those_of_this_process(there: Lab) -> None:
    ours, theirs = (
        program(INHERIT.format(module=name), input="a line\n") for name in ("quine", "subprocess")
    )
    assert (
        (ours.stdout, ours.stderr)
        == (theirs.stdout, theirs.stderr)
        == ("first\ngot a line\nNone\n", "error\n")
    )
    closed = program("import os; os.close(0)\n" + INHERIT.format(module="quine"), stdin=subprocess.DEVNULL)
    assert closed.stdout == "first\ngot\nNone\n"


def test_a_reader_that_goes_ends_the_command_by_sigpipe(there: Lab) -> None:
    near, far = os.pipe()
    os.close(near)
    try:
        with pytest.raises(quine.Lost, match="broken pipe"):
            quine.run(["sh", "-c", "trap '' PIPE; yes || true"], on="h1", stdout=far)
    finally:
        os.close(far)


def test_an_interrupt_ends_the_command_too(there: Lab, tmp_path: Path) -> None:
    """In a process of its own: the signal is the main thread's."""
    text = (
        "import os, signal, threading, time, quine\n"
        "def look():\n"
        "    while not os.path.exists('begun'): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=look).start()\n"
        "try: quine.run(['sh', '-c', 'echo $$ >begun.new; mv begun.new begun; sleep 600'])\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    assert program(text).stdout == "interrupted\n"
    pid = int((tmp_path / "begun").read_text())
    until(lambda: not os.path.exists(f"/proc/{pid}"), "the command ends")


def test_it_starts_no_thread_and_leaves_no_descriptor(there: Lab) -> None:
    before, fds = threading.active_count(), len(os.listdir("/proc/self/fd"))
    counts = []
    done = quine.run(["sh", "-c", "echo x"], on="h1", capture_output=True)
    counts.append(threading.active_count())
    assert done.stdout == b"x\n" and counts == [before] and len(os.listdir("/proc/self/fd")) == fds


def test_importing_quine_costs_what_it_did() -> None:
    """Its names for programs are loaded at their first use."""
    show = "import sys; before = set(sys.modules); import quine; print(sorted(set(sys.modules) - before))"
    done = program(
        f"{show}; quine.Executor, quine.run, quine.Result; print('concurrent.futures' in sys.modules)"
    )
    assert done.stdout == "['quine', 'transport']\nTrue\n", done.stderr
    assert {"Executor", "JobError", "Lost", "NeverStarted", "Result", "run"} <= set(dir(quine))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        quine.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("words", "returns", "status", "detail"),
    [
        (["true"], ["zz"], 1, "--returns zz: nothing there to be brought back"),
        (["no-such-command"], [], 127, "command not found: no-such-command"),
    ],
)
def test_the_reason_of_an_error_is_told(
    there: Lab, words: list[str], returns: list[str], status: int, detail: str
) -> None:
    """The command itself may have succeeded."""
    result = quine.run(words, on="h1", returns=returns)
    assert (result.returncode, result.report["detail"]) == (status, detail)
    with pytest.raises(subprocess.CalledProcessError) as raised:
        quine.run(words, on="h1", returns=returns, check=True)
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        assert str(error) == f"Command {words!r}: {detail} (status {status})"
        assert (error.returncode, error.cmd, error.detail) == (status, words, detail)
