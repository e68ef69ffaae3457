"""A signal that no system call was ended by: whoever waits in code that is not ours does not sleep through it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BEGIN = """
import _thread, os, select, signal, socket, time
from quine.agent.signals import KICK, Signals, Terminated

signals = Signals()
signals.install()
waits, gives = os.pipe()
told, tells = os.pipe()
near, far = socket.socketpair()


def sleep_through(number):
    '''It is delivered to a thread that does not wait: to the main thread it is as if it had come just before that.'''
    with signals.block_signals():
        _thread.start_new_thread(in_thread, (number,))


def wait():
    signals.until_ready(near, select.POLLIN)


def main_waits():
    while True:
        number, *words = open(f"/proc/self/task/{os.getpid()}/syscall").read().split()
        if words[:1] == [hex(waits)] or number in ("7", "73"):  # poll, ppoll
            break
        time.sleep(0.001)


def in_thread(number):
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    main_waits()
    signal.pthread_kill(_thread.get_ident(), number)
    os.write(tells, b"x")
"""


def outcome(code: str, cwd: Path | None = None) -> str:
    whole = BEGIN + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


READ = "os.read(waits, 1)"


@pytest.mark.parametrize(
    ("around", "call", "threads"),
    [
        ("wake_if_stuck()", READ, 3),
        ("calling_out()", READ, 3),
        ("calling_out(elsewhere=True)", "wait()", 2),  # the main one, and that of this test
    ],
)
def test_a_call_that_sleeps_through_a_signal_is_woken(around: str, call: str, threads: int) -> None:
    code = f"""
    sleep_through(signal.SIGTERM)
    try:
        with signals.{around}:
            {call}
    except Terminated as terminated:
        print(terminated.number, os.read(told, 1))
    print(len(os.listdir("/proc/self/task")) <= {threads})
    """
    assert outcome(code) == "15 b'x'\nTrue"


@pytest.mark.parametrize(
    ("around", "call"), [("wake_if_stuck()", READ), ("calling_out(elsewhere=True)", "wait()")]
)
def test_what_a_destructor_has_dropped_is_raised_again(around: str, call: str) -> None:
    code = f"""
    class Dropped:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):
                pass

    try:
        with signals.{around}:
            Dropped()
            {call}
    except Terminated as terminated:
        print(terminated.number)
    """
    assert outcome(code) == "15"


def test_a_call_is_not_disturbed_by_a_signal_that_means_nothing_to_it() -> None:
    code = """
    sleep_through(signal.SIGCONT)
    signal.signal(KICK, lambda *_: os.write(gives, b"answer"))
    with signals.calling_out():
        print(os.read(waits, 10), signals.fatal)
    """
    assert outcome(code) == "b'answer' 0"


@pytest.mark.parametrize("number", ["SIGCONT", "SIGTERM"])
def test_a_wait_for_the_origin_goes_on_where_a_signal_may_not_end_it(number: str) -> None:
    code = f"""
    def answer():
        in_thread(signal.{number})
        far.send(b"answer")

    with signals.block_signals():
        _thread.start_new_thread(answer, ())
    wait()
    print(near.recv(10), signals.fatal, os.read(told, 1))
    """
    fatal = 15 if number == "SIGTERM" else 0
    assert outcome(code) == f"b'answer' {fatal} b'x'"


@pytest.mark.parametrize("signalled", [False, True])
def test_a_wait_for_the_origin_has_an_end(signalled: bool) -> None:
    code = f"""
    near.settimeout(0.05)
    if {signalled}:
        os.kill(os.getpid(), signal.SIGCONT)
    try:
        with signals.calling_out(elsewhere=True):
            wait()
    except TimeoutError as error:
        print(error)
    signals.remove()
    far.send(b"x")
    wait()
    """
    assert outcome(code) == "timed out"


def test_insistence_leaves_no_descriptor_no_mask_and_no_handler() -> None:
    code = """
    before = os.listdir("/proc/self/fd")
    for _ in range(50):
        with signals.wake_if_stuck():
            pass
    while len(os.listdir("/proc/self/task")) > 1:
        time.sleep(0.001)
    print(os.listdir("/proc/self/fd") == before, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    os.kill(os.getpid(), KICK)
    signals.remove()
    print(signal.getsignal(KICK) == signal.SIG_DFL)
    """
    assert outcome(code).split() == ["True", "set()", "True"]


def test_a_peer_that_has_gone_is_no_signal_to_us() -> None:
    """The kernel sends SIGPIPE for our own write, and says that it is ours."""
    code = """
    os.close(waits)
    with signals.block_sigpipe():
        try:
            os.write(gives, b"x")
        except BrokenPipeError:
            print("broken", signal.SIGPIPE in signal.sigpending())
    print(signals.fatal, signal.SIGPIPE in signal.sigpending())
    """
    assert outcome(code) == "broken True\n0 False"


def test_a_sigpipe_that_somebody_sent_counts_while_we_write() -> None:
    code = """
    import subprocess
    with signals.block_sigpipe():
        subprocess.run(["kill", "-PIPE", str(os.getpid())], check=True)
    print(signals.fatal)
    """
    assert outcome(code) == "13"


SILENT = """
import select, socket
from quine.agent import signals as module
from transport.errors import RequestError
from transport.rpc.call import Relay

module.HURRY, module.STEP = 0.2, 0.01
node = socket.socket(socket.AF_UNIX)
node.bind("node")
node.listen()


def ask(size):
    try:
        Relay("node", "token", "capability").request("tape", bytes(size), signals.ready)
    except RequestError as error:
        print(signals.fatal, error)
"""
GIVEN_UP = "15 the origin cannot be reached: no answer for 0.2 s"


@pytest.mark.parametrize("size", [10, 1 << 24])
def test_a_request_without_an_answer_is_given_up_after_a_signal_that_came_before_it(
    tmp_path: Path, size: int
) -> None:
    code = f"os.kill(os.getpid(), signal.SIGTERM)\nask({size})"
    assert outcome(SILENT + code, tmp_path) == GIVEN_UP


def test_a_request_that_waits_is_given_up_after_a_signal(tmp_path: Path) -> None:
    code = """
def reads():
    peer = node.accept()[0]
    seen = b""
    while b"tape" not in seen:
        seen += peer.recv(1 << 16)
    os.kill(os.getpid(), signal.SIGTERM)
    told = os.read(waits, 1)

_thread.start_new_thread(reads, ())
ask(10)
"""
    assert outcome(SILENT + code, tmp_path) == GIVEN_UP
