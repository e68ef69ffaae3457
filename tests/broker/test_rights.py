"""The right to infer and to raise ends with its process; a broker keeps limits as long as they are needed."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any
from unittest import mock

import pytest

from quine.base.errors import Failure
from quine.broker import admission, connection, keeper, server, wire
from quine.broker.admission import Denied
from quine.broker.client import connected
from quine.broker.connection import Client
from quine.budget import caller, makers, pinned, purse
from quine.budget.kept_records import KeptRecords
from quine.budget.purse import Cap
from tests.broker.admitting import Greeted, Registers, end_makers, forget_all, forget_books
from tests.broker.serving import BYE, FIRST, Served, said
from tests.support.agents import PATIENCE
from tests.support.named_files import NamedFile
from tests.support.waiting import until
from transport import inherit
from transport.address import start_time
from transport.errors import Unseen
from transport.inherit import ancestors

NO_LIMIT = (0, None, None)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


class Asked(Greeted):
    """A worker that keeps a purse which this process has made, and questions to it."""

    def ask(self, question: dict[str, object], ended: bool) -> dict[str, Any]:
        """Return the answer. If `ended`, a process has connected that has ended since, and left its connection here."""
        if not ended:
            line, _ = connected(self.path)
        else:
            line = socket.socket(socket.AF_UNIX)
            if not (pid := os.fork()):
                try:
                    line.connect(self.path)
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
        try:
            if ended and "error" in (first := wire.receive_json(line)):
                return first
            wire.send(line, wire.packed(question))
            return wire.receive_json(line)
        finally:
            line.close()

    async def run(self) -> dict[tuple[str, bool], dict[str, Any]]:
        serving = asyncio.create_task(self.worker.run())
        await asyncio.sleep(0)
        register, me = self.worker._register, pinned.pinned(os.getpid())
        assert me
        inode, _ = register.book(os.dup(self.book.fd))
        _, (which, *_) = register.admit(me, inode, Cap(), True, list(map(os.dup, self.purses)))
        raising = {"ask": "raise", "purse": which, "limits": NO_LIMIT}
        detaching = {"ask": "detach", "supervisor": os.getpid()}
        answers = {
            (str(question["ask"]), ended): await asyncio.to_thread(self.ask, question, ended)
            for question in (raising, detaching)
            for ended in (False, True)
        }
        assert all(kept.tokens == 9 for kept in register._kept.values())
        self.worker._tidy()
        while self.worker._tasks:
            await asyncio.sleep(0)
        register._gone(register.members[me.pid])
        assert self.worker._timer is None and not register.members  # the maker of the purses lives
        register.makers.popitem()[1].close()
        self.worker._left()
        assert self.worker._timer
        self.worker._over.set_result(None)
        await serving
        self.end(me)
        return answers

    def end(self, me: pinned.PinnedProcess) -> None:
        me.close()
        forget_all(self.worker._register)


def test_a_process_that_has_ended_raises_and_detaches_nothing() -> None:
    """Its number is all that its connection tells, and nothing is above it any more."""
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short:
        asked = Asked(short)
        try:
            answers = asyncio.run(asked.run())
        finally:
            asked.close()
    assert answers["raise", False]["detail"] == "a budget cannot be raised from inside"
    assert answers["detach", False] == {"detached": True}
    for what in ("raise", "detach"):
        assert answers[what, True]["detail"] == "it has ended", answers


def another_with(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that gets this number, as one outside of the tree may."""
    for _ in range(1000):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError:
            pytest.skip("chooses the number of a process")
        process = subprocess.Popen(["sleep", "100"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise AssertionError(f"no process gets the number {pid}")


@pytest.mark.parametrize("early", [False, True], ids=["later", "early"])
def test_a_process_with_the_number_of_a_client_that_has_ended_is_not_the_client(early: bool) -> None:
    """The client has left its connection to another process. It may have sent its request before it ended."""
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short, ExitStack() as stack:
        listener, line = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        listener.bind(f"{short}/x")
        listener.listen()
        request = wire.packed({"ask": "raise"})
        if not (pid := os.fork()):
            try:
                line.connect(f"{short}/x")
                wire.send(line, request if early else b"")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        stack.callback((other := stack.enter_context(another_with(pid))).kill)
        client = Client(listener.accept()[0])
        stack.callback(client.close)
        wire.send(line, b"" if early else request)
        assert asyncio.run(client.receive_json()) == {"ask": "raise"}
        assert client.pid == other.pid
        with pytest.raises(Denied, match="another process has sent its request"):
            print(client.process)


def test_a_descriptor_that_is_no_memory_file_is_not_taken() -> None:
    """A file of FUSE would hold the broker with the first look at it, or with its close."""
    ours, theirs = socket.socketpair()
    client = Client(theirs)
    ends, kept = os.pipe()
    with ours, open(os.memfd_create("x"), "rb") as given, open(ends, "rb") as file:
        wire.send(ours, wire.packed({"build": ""}), [given.fileno(), kept])
        os.close(kept)
        with pytest.raises(OSError, match="no memory file"):
            asyncio.run(client.receive_json())
        assert [os.fstat(fd).st_ino for fd in client.fds] == [os.fstat(given.fileno()).st_ino]
        assert file.read() == b""  # it was closed
    client.close()


@pytest.mark.parametrize("kind", ["tmpfs", "huge pages"])
def test_a_file_that_is_numbered_apart_from_memory_files_is_not_taken(kind: str) -> None:
    """It has seals, and a command can choose its number: that of a budget which is made later."""
    if kind == "tmpfs":
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("no tmpfs here")
        made, path = tempfile.mkstemp(dir="/dev/shm")
        os.unlink(path)
    else:
        try:
            made = os.memfd_create(purse.NAME, os.MFD_HUGETLB | os.MFD_ALLOW_SEALING)
        except OSError:
            pytest.skip("this kernel has no huge pages")
    ours, theirs = socket.socketpair()
    client = Client(theirs)
    with ours, open(made, "rb") as file:
        try:
            assert fcntl.fcntl(file, fcntl.F_GET_SEALS) >= 0
        except OSError:
            pytest.skip("a file without seals")
        wire.send(ours, wire.packed({"build": ""}), [file.fileno()])
        with pytest.raises(OSError, match="no memory file"):
            asyncio.run(client.receive_json())
        assert client.fds == []
    client.close()


@pytest.mark.parametrize("how", ["behind many", "out of band"])
def test_all_descriptors_that_come_are_taken(how: str) -> None:
    """Else the kernel closes them at once: a socket with SO_LINGER would hold the broker as long as a command likes."""
    ours, theirs = socket.socketpair()
    client, frame = Client(theirs), wire.packed({"build": ""})
    ends, kept = os.pipe()
    with ours, open(os.memfd_create("x"), "rb") as given, open(ends, "rb") as file:
        if how == "behind many":
            wire.send(ours, frame, [*[given.fileno()] * 252, kept])
        else:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", kept))
            try:
                ours.sendmsg([frame[:1]], [rights], socket.MSG_OOB)
            except OSError:
                pytest.skip("this kernel sends nothing out of band")
            wire.send(ours, frame[1:])
        ours.shutdown(socket.SHUT_WR)
        os.close(kept)
        with pytest.raises(OSError, match="no memory file"):
            asyncio.run(client.receive_json())
        assert file.read() == b""
    client.close()


def test_what_a_client_leaves_in_its_line_is_closed_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = mock.Mock(side_effect=[RuntimeError("can't start new thread"), mock.Mock()])
    monkeypatch.setattr(connection, "Thread", threads)
    for _ in range(2):
        ours, theirs = socket.socketpair()
        client = Client(theirs)
        ends, kept = os.pipe()
        os.set_blocking(ends, False)
        with ours, open(ends, "rb", buffering=0) as file:
            wire.send(ours, b"x", [kept])
            os.close(kept)
            client.close()
            with pytest.raises(BrokenPipeError):
                ours.send(b"x")
            assert file.read() is None  # it is still open
            if threads.call_count == 2:
                threads.call_args.kwargs["target"]()
                assert file.read() == b"" and not connection._waiting


def test_nothing_is_raised_for_a_process_whose_ancestors_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process above that ends in the middle of a walk hides all that is above it."""
    with Registers() as registers:
        kept, command = purse.read(registers.purse), registers.pinned(registers.command)
        assert kept
        assert caller.may_not_raise(kept, 1, command) == "a budget cannot be raised from inside"
        monkeypatch.setattr(pinned, "ancestors", lambda pid: islice(ancestors(pid), 1))
        assert caller.may_not_raise(kept, 1, command) == caller.UNKNOWN
        assert caller.may_not_raise(kept, 1, None) == caller.UNKNOWN


def test_the_walks_above_a_process_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command can start shells in each other, and greet from the lowest again and again."""
    walks = []

    def walked(pid: int) -> Iterator[tuple[int, int]]:
        walks.append(pid)
        return ancestors(pid)

    monkeypatch.setattr(pinned, "ancestors", walked)
    with Registers() as registers:
        command = registers.pinned(registers.command)
        chain = command.chain()
        assert chain[0][0] == command.pid and len(walks) == 2
        monkeypatch.setattr(pinned, "HIGHEST", len(chain))
        assert command.chain() == chain
        monkeypatch.setattr(pinned, "HIGHEST", len(chain) - 1)
        walks.clear()
        assert command.chain() == [] and len(walks) == 1
        monkeypatch.setattr(pinned, "HIGHEST", len(chain))
        monkeypatch.setattr(pinned, "MOST", 4 * len(chain))
        monkeypatch.setattr(pinned, "_is_top", lambda pid: False)  # as if all differed
        walks.clear()
        assert command.chain() == [] and len(walks) == 4


def test_a_broker_that_an_agent_in_a_job_has_made_sees_the_node_above_it() -> None:
    """So that no command of that job raises a budget. The agent itself ends its walks at the job."""
    mark, (ends, told) = os.memfd_create(inherit.APART), os.pipe()
    try:
        if not (pid := os.fork()):
            try:
                inherit.stand_first()
                keeper._let_go({told})
                held = inherit.held_above(inherit.APART, pid=os.getpid(), whole=True)[inherit.APART]
                os.write(told, b"%d" % len(held))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(ends, 9) == b"1"
    finally:
        for fd in (mark, ends, told):
            os.close(fd)


# Two daemons with a connection each: that of a process that has ended, and one of its own. They ask late.
DAEMONS = """
import os, time
from quine.broker import finding, wire
from quine.broker.client import Broker
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from transport import inherit

def admitted():
    memo = inherit.read()
    broker = Broker(memo[finding.VARIABLE][0], Ledger.join(None, Limits()), 1, [])
    return broker._free[0][1]

def daemon(name, line):
    os.setsid()
    for fd in (3, 4, 5):
        os.close(fd)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    line = line or admitted()
    open(f"{name}.ready", "w").close()
    while not os.path.exists("over"):
        time.sleep(0.02)
    try:
        wire.send(line, wire.frame(b"{}"))
        answer = wire.receive(line).decode()
    except OSError:
        answer = "gone"
    with open(f"{name}.new", "w") as file:
        file.write(answer)
    os.rename(f"{name}.new", name)
    os._exit(0)

if not os.fork():
    line = admitted()
    if os.fork():
        os._exit(0)
    daemon("of another", line)
if not os.fork():
    daemon("own", None)
os.wait()
while not (os.path.exists("own.ready") and os.path.exists("of another.ready")):
    time.sleep(0.02)
"""


def test_a_connection_ends_with_its_process_and_its_agent(served: Served) -> None:
    (served.directory / "daemons.py").write_text(DAEMONS)
    served.plan[FIRST] = [said(f"{sys.executable} -P {served.directory}/daemons.py; echo $? >&4"), BYE]
    done = served.run(mission=FIRST)
    assert (done.returncode, done.stdout) == (0, b"0\n"), done
    (served.directory / "over").touch()
    for name in ("of another", "own"):
        path = served.directory / name
        until(path.exists, f"the answer to {name}")
        assert path.read_text() == "gone"


def test_a_member_outlives_the_one_that_admitted_it_below_another() -> None:
    """Also for the next worker, which knows no more than that it was admitted by one above it."""
    with Registers() as registers:
        register, first = registers.next(), registers.watched
        me, agent, command = map(registers.pinned, (os.getpid(), registers.agent.pid, registers.command))
        inode, _ = register.book(os.dup(registers.book.fd))
        ended: list[int] = []
        closed = []
        for process, proved in ((me, True), (agent, False), (command, False)):
            register.admit(process, inode, Cap(), proved)
            closed.append(register.connected(process, inode, partial(ended.append, process.pid)))
        register._gone(register.members[agent.pid])
        assert ended == [agent.pid] and command.pid in register.members
        assert registers.next().members.keys() == {me.pid, agent.pid, command.pid}
        register._gone(register.members[me.pid])
        assert ended == [agent.pid, me.pid, command.pid] and not register.members
        for call in (*first.values(), *closed):
            call()


def test_a_member_keeps_the_cap_of_the_one_that_admitted_it() -> None:
    """A daemon of a child with a narrower budget, when the agent above the child has adopted it."""
    with Registers() as registers:
        register = registers.next()
        me, agent, command = map(registers.pinned, (os.getpid(), registers.agent.pid, registers.command))
        inode, _ = register.book(os.dup(registers.book.fd))
        for process, cap in ((me, Cap(90)), (agent, Cap(50)), (command, Cap())):
            register.admit(process, inode, cap, process is me)
        register._gone(register.members[agent.pid])
        for each in (register, registers.next()):
            assert each.admit(command, inode, Cap(), False)[0] == Cap(50)


def test_a_ledger_is_open_as_long_as_a_connection_may_pay_from_it() -> None:
    with Registers() as registers:
        register, agent = registers.next(), registers.pinned(registers.agent.pid)
        inode, book = register.book(os.dup(registers.book.fd))
        _, purses = register.admit(agent, inode, Cap(), True, [os.dup(registers.purse)])
        closed = register.connected(agent, inode, lambda: None)
        ledger = register.ledger(inode, Cap(), purses)
        register._gone(register.members[agent.pid])
        end_makers(register)
        for busy in ((), (inode,)):
            for _ in range(2):
                forget_books(register, busy)
            assert register.books == {inode: book} and ledger.mark.tokens == 9
            closed()
        for _ in range(2):
            forget_books(register)
        assert not register.books
        with pytest.raises(Failure, match="the broker has forgotten its budget"):
            ledger.around()


def test_the_first_limits_hold_while_the_maker_of_the_budget_lives() -> None:
    """A command of one agent waits until no agent is there, rewrites both files, and another agent comes."""
    with Registers() as registers, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as later:
        register = registers.next()
        inode, book = register.book(os.dup(registers.book.fd))
        _, purses = register.admit(
            registers.pinned(registers.agent.pid), inode, Cap(), True, [os.dup(registers.purse)]
        )
        with book.changing() as facts:
            book.put(facts._replace(tokens=5))
        with book.changing():
            pass  # read again, and so kept
        registers.agent.kill()
        registers.agent.wait()
        register._gone(register.members[registers.agent.pid])
        next_one = registers.next()
        for each in (register, next_one):
            for _ in range(3):
                forget_books(each)
            assert each.makers and not each.members  # so its worker does not end
        register = next_one
        fd = os.open(f"/proc/self/fd/{registers.purse}", os.O_RDWR)
        known = purse.read(fd)
        assert known
        purse.write(fd, known._replace(tokens=0))
        os.close(fd)
        with registers.book.changing() as facts:
            registers.book.put(facts._replace(tokens=0))
        _, again = register.book(os.dup(registers.book.fd))
        _, purses = register.admit(registers.pinned(later.pid), inode, Cap(), True, [os.dup(registers.purse)])
        with again.changing() as facts:
            assert facts.tokens == 5
        assert register.ledger(inode, Cap(), purses).mark.tokens == 9
        registers.watched[next(iter(register.makers.values())).pidfd]()
        assert not register.makers
        later.kill()


def test_a_tree_that_notes_much_leaves_room_for_others() -> None:
    """A command can make purses whose commands are long, and let each process below it be admitted with all of them."""
    with Registers() as registers:
        registers.records.close()
        registers.records = KeptRecords(size=1 << 14)
        register = registers.next()
        me, agent, command = map(registers.pinned, (os.getpid(), registers.agent.pid, registers.command))
        inode, _ = register.book(os.dup(registers.book.fd))
        known = purse.read(registers.purse)
        assert known
        admitted = 0
        with pytest.raises(Denied, match="the broker has no room for more agents of this tree"):
            for admitted in range(100):
                fd = os.memfd_create(purse.NAME)
                purse.write(fd, known._replace(command="\1" * 3000))
                register.admit((agent, command)[admitted % 2], inode, Cap(), True, [fd])
        assert admitted > 4
        assert register.admit(me, 1, Cap(), True) == (Cap(), ())
        registers.next()


def test_a_purse_that_names_a_process_which_does_not_hold_it_keeps_no_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command can make any number of files that look like purses. Its tree may have some, and no other tree less."""
    monkeypatch.setattr(admission, "MOST_PURSES", 8)
    with Registers() as registers:
        register, agent = registers.next(), registers.pinned(registers.agent.pid)
        inode, _ = register.book(os.dup(registers.book.fd))
        known = purse.read(registers.purse)
        assert known
        forged = []
        for number in range(8):
            fd = os.memfd_create(purse.NAME)
            maker = (1, start_time(1)) if number % 2 else (agent.pid, agent.start)
            purse.write(fd, known._replace(pid=maker[0], started=maker[1]))
            forged.append(fd)
        register.admit(agent, inode, Cap(), True, forged)
        forget_books(register)
        assert not register.makers
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(Denied, match="budgets in its tree already"):
            register.admit(agent, inode, Cap(), True, [os.dup(registers.purse)])
        assert len(os.listdir("/proc/self/fd")) == before
        register._gone(register.members[agent.pid])
        for _ in range(2):
            forget_books(register)
        assert not register._kept and len(os.listdir("/proc/self/fd")) < before - 8


def test_a_purse_is_forgotten_before_its_ledger() -> None:
    """A tree may make one budget after the other. One is kept for a member, a connection, and its living maker."""
    with Registers() as registers:
        register = registers.next()
        agent, command = map(registers.pinned, (registers.agent.pid, registers.command))
        inode, book = register.book(os.dup(registers.book.fd))
        register.admit(agent, inode, Cap(), True)
        register.admit(command, inode, Cap(), False, [os.dup(registers.purse)])
        closed = register.connected(command, inode, lambda: None)
        register._gone(register.members[command.pid])
        for kept, needless in ((1, lambda: end_makers(register)), (1, closed), (0, None)):
            for _ in range(2):
                forget_books(register)
            assert (len(register._kept), register.books) == (kept, {inode: book})
            if needless:
                needless()


def test_a_maker_that_is_closed_to_others_is_looked_at_again() -> None:
    """As `quine budget` is while it has a key."""
    with Registers() as registers:
        register, agent = registers.next(), registers.pinned(registers.agent.pid)
        inode, _ = register.book(os.dup(registers.book.fd))
        register.admit(agent, inode, Cap(), True, [os.dup(registers.purse)])
        with mock.patch.object(os, "scandir", side_effect=PermissionError):
            forget_books(register)
        assert not register.makers
        forget_books(register)
        assert register.makers


def test_the_server_of_a_file_is_not_asked_for_a_maker() -> None:
    """One of FUSE with the name of a purse held the broker, and all trees, for ever."""
    with NamedFile(purse.NAME) as named, Registers() as registers:
        me = (os.getpid(), start_time(os.getpid()))
        os.fchmod(registers.purse, 0)  # by a command
        with named.unasked():
            assert makers.living({me: {named.inode}}) == set()
            assert makers.living({me: {os.fstat(registers.purse).st_ino}}) == {me}


def test_as_many_descriptors_of_a_maker_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command can name a process of its own as the maker, with any number of them."""
    with Registers() as registers:
        named = {(os.getpid(), start_time(os.getpid())): {os.fstat(registers.purse).st_ino}}
        assert makers.living(named) == named.keys()
        monkeypatch.setattr(makers, "MOST", 3)
        assert makers.living(named) == set()


class Answering(Greeted):
    """A worker that looks for makers, which takes until it has answered a client meanwhile."""

    async def run(self) -> None:
        looking, answered, missing = asyncio.Event(), Event(), [OSError(errno.EMFILE, "")]
        loop = asyncio.get_running_loop()

        def look(named: dict[tuple[int, int], set[int]]) -> set[tuple[int, int]]:
            loop.call_soon_threadsafe(looking.set)
            assert answered.wait(PATIENCE)
            for error in missing:
                missing.clear()
                raise error
            return makers_of(named)

        makers_of = makers.living
        with mock.patch.object(makers, "living", look), mock.patch.object(server, "FULL", 0):
            serving = asyncio.create_task(self.worker.run())
            await looking.wait()
            line, _ = await asyncio.to_thread(connected, self.path)
            with closing(line):
                await asyncio.to_thread(wire.send, line, wire.packed({"ask": "status"}))
                assert (await asyncio.to_thread(wire.receive_json, line))["pid"] == os.getpid()
            self.worker._left()
            assert self.worker._timer is None  # it does not end while makers are not known
            answered.set()
            while self.worker._tasks:
                await asyncio.sleep(0)
        assert not missing and self.worker._timer
        self.worker._over.set_result(None)
        await serving


def test_all_are_answered_while_makers_are_looked_for() -> None:
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short:
        answering = Answering(short)
        try:
            asyncio.run(answering.run())
        finally:
            answering.close()


def test_a_process_below_too_many_purses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with Registers() as registers:
        monkeypatch.setattr(caller, "MOST_AROUND", 0)
        with pytest.raises(Unseen, match="more than 0 budgets"):
            caller.purses_around(registers.pinned(os.getpid()))
