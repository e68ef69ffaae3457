"""The client's state machine without a process around it: frames in, frames out, a clock of the test's own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from transport.client.core import BLOCKED, Core
from transport.client.job_core import SILENT
from transport.client.output import Used
from transport.client.overtime import ENDING, GRACE
from transport.rpc.services import Services
from transport.spawn import Spawn
from transport.status import Status
from transport.wire.flow import INITIAL_WINDOW
from transport.wire.frames import CHUNK, Frame, Kind
from transport.wire.session import STDERR, STDIN, STDOUT, Session

DONE = Status("exited", 0)
TERMINAL = {"rows": 24, "columns": 80, "term": "xterm"}


class AtOnce:
    """A pool that has finished each call when it returns."""

    def submit(self, work: Callable[..., None], /, *args: Any) -> None:
        work(*args)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


class Job:
    """A core, a node's session at the other end of it, and a record of what the core asks of its driver."""

    def __init__(
        self,
        spawn: Spawn | None = None,
        used: Used | None = None,
        handlers: dict[str, Any] | None = None,
        left: Callable[[], float | None] | None = None,
    ) -> None:
        self.now = 100.0
        self.asked: list[tuple[Any, ...]] = []
        self.heard: list[Frame] = []
        self.written = {STDOUT: bytearray(), STDERR: bytearray()}
        self.reads = {STDOUT: True, STDERR: True}
        self.terminal_size = (24, 80)
        self._handlers = handlers or {}
        self.spawn = spawn or Spawn(["true"], capability="c")
        self.node = Session(opener=False, hello={})
        self.core = Core(self.spawn, {"build": "b"}, self, used, "/log", left)
        self.core.begin()

    # -- the driver

    def write(self, stream: int, data: bytes) -> None:
        self.written[stream] += data
        if self.reads[stream]:
            self.core.took(stream, len(self.written[stream]), self.now)

    def written(self, stream: int, count: int) -> None:
        self.asked.append(("written", stream, count))

    def close_stdin(self) -> None:
        self.asked.append(("close stdin",))

    def started(self, pid: int, host: str) -> None:
        self.asked.append(("started", pid))

    def noted(self, body: dict[str, Any]) -> None:
        self.asked.append(("noted", body.get("up", "silent")))

    def services(self, session: Session) -> Services:
        return Services(session, self._handlers, -1, "c", clock=lambda: self.now, pool=AtOnce())

    def stop(self) -> None:
        self.asked.append(("stop",))

    def suspend(self) -> None:
        self.asked.append(("suspend",))

    def take_terminal(self) -> None:
        self.asked.append(("take terminal",))

    def tell_size(self) -> None:
        self.core.resized(*self.terminal_size)

    def say_escapes(self) -> None:
        self.asked.append(("escapes",))

    # -- the wire, and what the node says

    def carry(self) -> Job:
        while chunks := self.core.session.pull(1 << 20):
            self.heard += self.node.receive(b"".join(chunks))
        while chunks := self.node.pull(1 << 20):
            self.core.receive(b"".join(chunks), self.now)
        self.core.tick(self.now)
        return self

    def start(self, pid: int = 7) -> Job:
        self.carry()
        self.node.tell(self.core.number, Kind.ATTACH, {"pid": pid})
        return self.carry()

    def print(self, data: bytes, stream: int = STDOUT) -> Job:
        self.node.data(self.core.number, stream, data)
        return self.carry()

    def exit(self, status: Status = DONE) -> Job:
        for stream in (STDOUT, STDERR):
            self.node.eof(self.core.number, stream)
        self.node.tell(self.core.number, Kind.EXIT, status.to_json())
        return self.carry()

    def said(self, kind: int) -> list[Frame]:
        self.carry()
        return [frame for frame in self.heard if frame.kind == kind]

    def later(self, seconds: float) -> Job:
        self.now += seconds
        return self.carry()

    def is_given_up(self) -> bool:
        """Whether the job is lost, and its node is told that nobody waits for it."""
        status = self.core.status
        return bool(status and (status.state, status.code) == ("lost", 74)) and not self.carry().node.channels

    def signals(self) -> list[Any]:
        return [frame.body()["signal"] for frame in self.said(Kind.SIGNAL)]


def test_a_job_ends_as_its_exit_record_says_once_its_output_is_written() -> None:
    job = Job().start()
    job.reads[STDOUT] = False
    job.print(b"abc").exit(Status("exited", 3))
    assert not job.core.over
    job.core.took(STDOUT, 3, job.now)
    job.carry().carry()
    assert job.core.over and job.core.status == Status("exited", 3)
    assert job.written[STDOUT] == b"abc" and not job.core.session.channels and not job.node.channels


def test_output_that_nobody_takes_is_not_acknowledged() -> None:
    job = Job().start()
    job.reads[STDOUT] = False
    sent = 0
    while size := min(CHUNK, job.node.flow(job.core.number, STDOUT).credit):
        job.print(bytes(size))
        sent += size
    assert sent == INITIAL_WINDOW
    job.core.took(STDOUT, sent, job.now)
    assert job.carry().node.flow(job.core.number, STDOUT).credit > 0


@pytest.mark.parametrize("started", [False, True])
def test_a_node_that_ends_leaves_the_job_lost(started: bool) -> None:
    job = Job().start(7) if started else Job().carry()
    job.core.closed()
    assert job.core.status and job.core.status.state == "lost"
    known = "the command was started (pid 7), its outcome" if started else "was sent, whether it was started"
    assert known in job.core.status.detail and job.core.status.hint == "look at /log"


def test_a_node_that_ends_before_it_said_a_word_has_read_nothing() -> None:
    job = Job()
    job.core.closed()
    assert job.core.over and job.core.status is None


def test_what_is_no_protocol_ends_the_job_as_lost() -> None:
    job = Job().start()
    job.core.receive(b"\xff" * 64, job.now)
    assert job.core.over and job.core.status and job.core.status.state == "lost"


def test_a_job_that_ran_cannot_be_said_never_to_have_been_started() -> None:
    job = Job().start().exit(Status("unreachable", 69))
    assert job.core.status and job.core.status.state == "lost"


def test_a_job_that_was_never_started_cannot_be_said_to_have_ended() -> None:
    job = Job().carry().exit(DONE)
    assert job.core.status and (job.core.status.state, job.core.status.code) == ("lost", 74)
    job = Job().carry().exit(Status("exited", 127, detail="command not found: x"))
    assert job.core.status and job.core.status.code == 127


@pytest.mark.parametrize("state", ["lost", "unreachable", "denied"])
def test_no_state_but_exited_is_a_success(state: str) -> None:
    for job in (Job().start(), Job().carry()):
        job.exit(Status(state, 0))
        assert job.core.status and (job.core.status.state, job.core.status.code) == ("lost", 74)


def test_a_spawn_that_no_node_would_take_is_refused_unsent() -> None:
    job = Job(Spawn(["a\0b"], capability="c"))
    assert job.core.over and job.core.status and job.core.status.code == 2
    job = Job(Spawn(["x" * (5 << 20)], capability="c"))
    assert job.core.over and job.core.status and job.core.status.detail.startswith("argument list too long")
    assert job.carry().heard == []


def test_stdin_is_read_as_far_as_there_is_room() -> None:
    job = Job()
    assert job.core.room == 0  # the node may be ending
    job.carry()
    assert job.core.room == CHUNK
    job.core.typed(b"x" * 100, job.now)
    assert job.core.room == CHUNK - 100  # it may wait for a slot for hours
    job.start()
    sent = 100
    while room := job.core.room:
        job.core.typed(bytes(room), job.now)
        sent += room
    assert sent == INITIAL_WINDOW
    job.carry().node.ack(job.core.number, STDIN, sent)
    job.carry().core.typed(b"", job.now)
    assert job.core.room == 0 and len(job.said(Kind.EOF)) == 1


def test_stdin_of_a_job_that_may_be_tried_again_stays_until_it_runs() -> None:
    used = Used()
    job = Job(used=used).carry()
    assert job.core.room == 0
    job.start()
    assert job.core.room == CHUNK and not used.stdin
    job.core.typed(b"x", job.now)
    assert used.stdin and not used.stdout
    job.print(b"y")
    assert used.stdout


def test_stdin_that_nobody_reads_is_closed_here() -> None:
    job = Job().start()
    job.node.stop(job.core.number, STDIN)
    assert job.carry().asked == [("started", 7), ("close stdin",)] and job.core.room == 0


def test_a_reader_that_has_gone_stops_the_stream_over_there() -> None:
    job = Job().start()
    job.reads[STDOUT] = False
    job.print(b"abc")
    job.core.took(STDOUT, 1, job.now, alive=False)
    assert [frame.stream for frame in job.said(Kind.STOP)] == [STDOUT]
    job.exit(Status("signaled", 141, "PIPE"))
    assert job.core.status == Status("signaled", 141, "PIPE") and not job.core.status.detail


def test_signals_go_across_in_order_and_a_stop_stops_both_ends() -> None:
    job = Job().start()
    for number in (signal.SIGUSR1, signal.SIGTSTP, signal.SIGCONT):
        job.core.signalled(number, job.now)
    assert job.signals() == ["USR1", "STOP", "CONT"]
    assert [frame.offset for frame in job.said(Kind.SIGNAL)] == [1, 2, 3]
    assert ("stop",) in job.asked and not job.core.over


def test_a_fatal_signal_before_the_start_ends_the_client() -> None:
    job = Job().carry()
    job.core.signalled(signal.SIGTERM, job.now)
    assert job.core.over and job.core.status == Status("signaled", 143, "TERM")
    job.carry()
    assert not job.node.channels


@pytest.mark.parametrize("known", [True, False])
def test_a_verb_that_only_asks_is_not_kept_by_its_link(known: bool) -> None:
    """That may be down for as long as a lease, and nothing over there has to be ended. `known`: that it is down."""
    job = Job(Spawn(["wait"], capability="c", context={"asks": True})).start()
    if known:
        job.core.on_note({"up": False})
    job.core.signalled(signal.SIGTERM, job.now)
    if not known:
        assert not job.core.over and job.core.due == job.now + BLOCKED
        job.now += BLOCKED + 1
        job.carry()
    assert job.core.over and job.core.status and job.core.status.code == 143


def test_a_death_by_a_signal_that_this_process_got_is_known_from_one_by_another() -> None:
    for number in (signal.SIGUSR1, signal.SIGKILL):
        job = Job().start()
        job.core.signalled(signal.SIGUSR1, job.now)
        job.exit(Status.from_wait(number))
        assert job.core.status and job.core.status.here == (number == signal.SIGUSR1)


@pytest.mark.parametrize("left", [True, False])
def test_a_death_by_a_pipe_whose_reader_left_here_is_known(left: bool) -> None:
    job = Job().start()
    job.reads[STDOUT] = False
    job.print(b"abc")
    job.core.took(STDOUT, 3, job.now, alive=not left)
    job.exit(Status.from_wait(signal.SIGPIPE))
    assert job.core.status and (job.core.status.signal, job.core.status.here) == ("PIPE", left)


def test_a_stdin_that_cannot_be_read_is_no_success() -> None:
    for code, end in ((0, 74), (5, 5)):
        job = Job().start()
        job.core.unread("Input/output error", job.now)
        assert job.carry().said(Kind.EOF)
        job.exit(Status("exited", code))
        assert job.core.status and job.core.status.code == end
        assert job.core.status.detail == "cannot read stdin: input/output error"


def test_after_a_fatal_signal_a_reader_that_takes_nothing_is_waited_for_so_long_and_no_longer() -> None:
    job = Job().start()
    job.reads[STDOUT] = False
    job.print(b"abc")
    assert job.core.due is None
    job.core.signalled(signal.SIGTERM, job.now)
    assert job.core.due == job.now + BLOCKED
    job.now += BLOCKED - 1
    job.core.took(STDOUT, 1, job.now)  # it moves: it is waited for anew
    job.now += BLOCKED - 1
    assert not job.carry().core.over
    job.now += 2
    assert job.carry().core.over and job.core.status == Status("signaled", 143, "TERM", pid=7)


def test_the_third_interrupt_within_a_second_leaves() -> None:
    job = Job().start()
    for at in (0.0, 1.5, 1.9):
        job.core.signalled(signal.SIGINT, job.now + at)
    assert not job.core.over and job.signals() == ["INT"] * 3
    job.core.signalled(signal.SIGINT, job.now + 2.2)
    assert job.core.over and job.core.status and job.core.status.code == 130


@pytest.mark.parametrize("third", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_third_signal_that_is_to_end_the_job_leaves(third: int) -> None:
    job = Job().start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        job.core.signalled(number, job.now)  # timeout(1) sends its signal twice
    job.later(20)
    assert not job.core.over and job.signals() == ["INT", "TERM", "TERM", "HUP", "QUIT"]
    job.core.signalled(third, job.now)
    status = job.core.status
    assert job.core.over and status and (status.state, status.code) == ("signaled", 128 + third)
    assert "may still run there (pid 7)" in status.detail and not job.carry().node.channels


def test_signals_that_a_command_uses_end_nobodys_patience() -> None:
    """Its first ^C may mean little to it, and a HUP now and then has it read its configuration."""
    job = Job().start()
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP) * 10:
        job.core.signalled(number, job.now)
        job.later(31)
    assert not job.core.over and len(job.signals()) == 30


def test_a_command_may_take_its_time_for_a_signal() -> None:
    job = Job().start()
    job.core.signalled(signal.SIGTERM, job.now)
    assert not job.later(10_000).core.over
    assert job.exit(Status("exited", 3)).core.status == Status("exited", 3)


def test_an_agent_that_does_not_end_by_a_signal_is_killed_and_given_up() -> None:
    job = Job(left=lambda: None).start()
    assert job.core.due is None
    job.core.signalled(signal.SIGTERM, job.now)
    assert not job.later(ENDING + GRACE - 1).core.over and job.signals() == ["TERM"]
    assert not job.later(1).core.over and job.signals() == ["TERM", "KILL"]
    assert job.later(GRACE).is_given_up()


def test_a_host_that_does_not_keep_the_deadline_is_not_waited_for() -> None:
    job = Job(Spawn(["true"], capability="c", deadline=30)).carry()
    assert not job.later(1000).core.over and job.core.due is None  # it may wait for a slot
    job.start()
    assert not job.later(30 + GRACE - 1).core.over and job.signals() == []
    assert not job.later(1).core.over and job.signals() == ["KILL"]
    assert job.core.due == job.now + GRACE
    assert job.later(GRACE).is_given_up()
    assert job.core.status and "may still run there (pid 7)" in job.core.status.detail


def test_a_deadline_that_the_host_keeps_is_its_own() -> None:
    job = Job(Spawn(["true"], capability="c", deadline=30)).start().later(30 + GRACE + 1)
    late = Status("exited", 124, detail="it was ended after 30 s (--deadline)")
    assert job.exit(late).core.status == late


def late() -> Job:
    return Job(Spawn(["true"], capability="c", deadline=30, lease=600)).start().later(30 + GRACE)


def test_a_link_that_is_down_and_output_on_its_way_are_waited_for_as_long_as_the_lease() -> None:
    down, bulk, trickle = late(), late(), late()
    down.node.tell(down.core.number, Kind.NOTE, {"up": False, "seconds": 1, "why": "", "host": "h"})
    assert trickle.print(b"x").later(GRACE).is_given_up()
    for _ in range(int(600 / GRACE)):
        assert not down.carry().core.over and not bulk.print(bytes(CHUNK)).core.over
        down.later(GRACE)
        bulk.later(GRACE)
    assert down.later(GRACE).is_given_up() and bulk.later(GRACE).is_given_up()


def test_a_reader_here_that_takes_nothing_is_no_fault_of_the_host() -> None:
    job = late()
    job.reads[STDOUT] = False
    job.print(b"abc")
    for _ in range(1000):
        job.later(GRACE)
    job.exit(DONE)
    job.core.took(STDOUT, 3, job.now)
    assert job.carry().core.status == DONE


def test_a_link_that_comes_back_brings_the_end_of_the_job() -> None:
    job = late()
    job.node.tell(job.core.number, Kind.NOTE, {"up": False, "seconds": 1, "why": "", "host": "h"})
    assert not job.carry().later(100).core.over
    job.node.tell(job.core.number, Kind.NOTE, {"up": True, "seconds": 1, "why": "", "host": "h"})
    assert not job.carry().later(GRACE - 1).core.over
    assert job.exit(DONE).core.status == DONE


def test_a_process_that_was_stopped_reads_the_end_of_its_job_first() -> None:
    job = late()
    job.now += 1000
    job.core.signalled(signal.SIGCONT, job.now)
    job.core.tick(job.now)
    assert not job.core.over and job.exit(DONE).core.status == DONE


def test_an_agent_has_the_time_of_its_tree_which_may_be_raised() -> None:
    ends = [200.0]
    job = Job(left=lambda: ends[0] - job.now)

    def at(now: float) -> Job:
        job.now = now
        return job.carry()

    at(100.0).start()
    ends[0] = 300.0
    assert not at(200.0 + GRACE).core.over and job.core.due == 300.0 + GRACE
    assert not at(300.0 + GRACE).core.over and job.signals() == ["TERM"]
    assert not at(300.0 + 2 * GRACE).core.over and job.signals() == ["TERM", "KILL"]
    assert at(300.0 + 3 * GRACE).is_given_up()


@pytest.mark.parametrize("is_given_back", [True, False])
def test_an_agent_that_has_not_begun_in_its_time_is_taken_back(is_given_back: bool) -> None:
    job = Job(left=lambda: 100.0 - job.now)
    job.carry().later(GRACE)
    assert [frame.body() for frame in job.said(Kind.NOTE)] == [{"withdraw": True}]
    if is_given_back:
        job.exit(Status("unreachable", 69, host="h", detail="withdrawn before it was sent"))
        status = job.core.status
        assert status and (status.state, status.code, status.host) == ("unreachable", 124, "")
    else:
        assert job.later(GRACE).later(GRACE).is_given_up() and not job.signals()
        assert job.core.status and "is not known" in job.core.status.detail


def test_a_request_is_answered_by_the_drivers_services() -> None:
    job = Job(handlers={"turn": lambda body: body[::-1]}).start()
    number = job.node.open(Kind.REQUEST, {"name": "turn", "capability": "c"})
    job.node.data(number, STDIN, b"abc")
    job.node.eof(number, STDIN)
    job.carry().core.answered()
    job.carry()
    answers = [frame.payload for frame in job.heard if frame.channel == number and frame.kind == Kind.DATA]
    assert answers == [b"cba"] and job.said(Kind.REPLY)[0].body() == {"error": None}


def test_keys_of_a_terminal_go_across_as_bytes_and_escapes_do_not() -> None:
    job = Job(Spawn(["sh"], capability="c", terminal=TERMINAL)).carry()
    assert job.core.room == 0  # keys typed before the start stay with the local terminal
    job.start()
    assert job.asked == [("started", 7), ("take terminal",)]
    job.core.typed(b"\x03\r~?", job.now)
    assert job.asked[-1] == ("escapes",)
    assert [frame.payload for frame in job.said(Kind.DATA)] == [b"\x03\r"]
    job.core.typed(b"\r~.", job.now)
    assert job.core.over and job.core.status and job.core.status.state == "lost"


def test_a_terminal_that_is_suspended_is_taken_again_and_its_size_told() -> None:
    job = Job(Spawn(["sh"], capability="c", terminal=TERMINAL)).start()
    job.asked.clear()
    job.core.typed(b"~\x1a", job.now)
    assert job.asked == [("suspend",), ("take terminal",)]
    job.terminal_size = (5, 6)
    job.core.signalled(signal.SIGWINCH, job.now)
    assert [(f.body()["rows"], f.body()["columns"]) for f in job.said(Kind.WINCH)] == [(24, 80), (5, 6)]
    job.core.signalled(signal.SIGTERM, job.now)  # with a terminal it is meant for this process
    assert job.core.over and job.core.status and job.core.status.signal == "TERM"


def test_where_nobody_reads_the_terminal_any_more_an_escape_still_leads_out() -> None:
    job = Job(Spawn(["sh"], capability="c", terminal=TERMINAL)).start()
    job.node.stop(job.core.number, STDIN)
    assert job.carry().core.room == CHUNK
    job.core.typed(b"lost\r~.", job.now)
    assert job.core.over and not job.said(Kind.DATA)


def test_a_node_that_says_nothing_is_told_of_once_and_waited_for() -> None:
    job = Job()
    job.core.tick(job.now)
    assert job.core.due == job.now + SILENT
    job.core.tick(job.now + SILENT)
    assert not job.asked
    for seconds in (0.1, 1, 100):
        job.core.tick(job.now + SILENT + seconds)
    assert job.asked == [("noted", "silent")]
    assert job.core.due is None and not job.core.over


def test_of_a_node_that_has_greeted_no_silence_is_told() -> None:
    job = Job().start()
    job.core.tick(job.now + 100 * SILENT)
    assert job.core.due is None and job.asked == [("started", 7)]
