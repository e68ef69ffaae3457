"""Caps that hold for agents over a server, whose starters have the key: of a batch, of a budget, of another tree."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from unittest import mock

import pytest

from quine.broker import connection, keeper_log
from quine.broker.admission import Denied, Register
from quine.broker.connection import Client
from quine.broker.keeper_log import LONGEST, Log
from quine.budget import purse
from quine.budget.caller import purses_around
from quine.budget.kept_records import KeptRecords
from quine.budget.pinned import pinned
from quine.budget.purse import Cap
from tests.broker.admitting import Greeted, Registers, forget_books
from tests.broker.serving import BYE, FIRST, Served, said
from tests.support.agents import PATIENCE, QUINE, Started
from tests.support.detached import go as go
from tests.support.waiting import wait_for
from tests.vendors.server import KEY, Said
from transport import inherit
from transport.errors import Unseen
from transport.this_build import build_hash

COST = (1500, 100, 0)
EACH = sum(COST)
CLOSE = "import os, sys; os.closerange(3, 1000); os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short, Served(tmp_path) as made:
        made.env["PYTHONFAULTHANDLER"] = "1"
        made.env["XDG_RUNTIME_DIR"] = short  # a batch has a node, whose socket has a longer name
        turn = Said(calls=said("true").calls, usage=COST)
        made.plan[FIRST] = [*[turn] * 8, Said(calls=BYE.calls, usage=COST)]
        yield made


def run(served: Served, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*QUINE, *words],
        env=served.env,
        cwd=served.directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


def test_a_cap_holds_for_agents_of_a_server(served: Served) -> None:
    """A batch has one; below that of a budget are a batch, and an agent that has closed all descriptors."""
    below = ("budget", "--max-tokens", "9000", "--")
    capped = {
        "a batch": ("xargs", "--max-tokens", "9000", "-P", "1", FIRST, ":::", *"abcd"),
        "a batch below a budget": (*below, *QUINE, "xargs", FIRST, ":::", *"abcd"),
        "no descriptors": (*below, sys.executable, "-c", CLOSE, *QUINE, FIRST),
    }
    for what, words in capped.items():
        done = run(served, *words)
        assert done.returncode == 77, (what, done.stderr)
        assert 2 * EACH <= len(served.provider.requests) * EACH <= 9000, what
        served.provider.requests.clear()


def test_the_command_of_a_budget_has_the_key_and_the_budget_no_longer(served: Served) -> None:
    look = "echo $QUINE_API_KEY; tr '\\0' '\\n' </proc/$PPID/environ | grep -c QUINE_API_KEY"
    done = run(served, "budget", "--", "sh", "-c", look)
    assert done.stdout == f"{KEY}\n0\n".encode(), done.stderr


def test_a_raise_from_outside_reaches_the_process_that_pays(served: Served, go: Path) -> None:
    turn = Said(calls=said(f"touch {served.directory}/there; read x <{go}").calls, usage=COST)
    served.plan[FIRST][0] = turn
    words = [*QUINE, "budget", "--max-tokens", "9000", "--", *QUINE, FIRST]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Started(words, env=served.env, cwd=served.directory, stdin=subprocess.DEVNULL, **pipes) as process:  # type: ignore[call-overload]
        wait_for(served.directory / "there")
        (found,) = map(json.loads, run(served, "budget", "show", "--json").stdout.splitlines())
        done = run(served, "budget", "raise", found["id"], "--max-tokens", "90k")
        assert (done.returncode, done.stderr) == (0, b"")
        go.write_text("\n")
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")
    assert len(served.provider.requests) * EACH > 9000


# Rewrites each ledger and purse that it holds or can open: no limit, and nothing spent.
REWRITE = """
import glob, os
from quine.broker import asking
from quine.budget import purse
from quine.budget.shared_counters import SharedCounters
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        name = os.readlink(path)
        ours = SERVED in open(path.partition("fd")[0] + "environ").read()
        if ours and name in ("/memfd:quine-ledger (deleted)", purse.LINK):
            fd = os.open(path, os.O_RDWR)
            if name == purse.LINK:
                purse.write(fd, purse.read(fd)._replace(tokens=0, cost=0.0, pid=1, raised=99, ledger=1))
                print(asking.raise_purse(os.fstat(fd).st_ino, (0, None, None)), flush=True)
                continue
            book = SharedCounters(fd)
            with book.changing() as facts:
                book.put(facts._replace(tokens=0, cost=0.0, limit_tokens=0, limit_cost=0.0, agents=0, paid=1))
            print("rewritten", end=" ", flush=True)
    except (OSError, AttributeError):
        pass
"""


@pytest.mark.parametrize(
    "around", [(), ("budget", "--max-tokens", "9000", "--", *QUINE)], ids=["tree", "budget"]
)
def test_a_ledger_that_a_command_rewrites(served: Served, around: tuple[str, ...]) -> None:
    """After an inference, and before that of another agent. The broker pays within what it has seen first."""
    rewrite = served.directory / "rewrite.py"
    rewrite.write_text(REWRITE.replace("SERVED", repr(served.mark)))
    nested = f"{sys.executable} -P {rewrite} >&4; {' '.join(QUINE)} inner-errand"
    served.plan[FIRST] = [Said(calls=said(nested).calls, usage=COST)] * 8
    served.plan["inner-errand"] = [Said(calls=said("true").calls, usage=COST)] * 8
    done = run(served, *around, *([] if around else ["--max-tokens", "9000"]), FIRST)
    assert b"rewritten" in done.stdout
    assert (b"a budget cannot be raised from inside" in done.stdout) is bool(around)
    assert done.returncode == 77, done.stderr
    assert 2 * EACH <= len(served.provider.requests) * EACH <= 9000


# Writes a file of prices where there was none, by which all is free, and has the next worker made.
FREE = """
import os
from quine.broker import asking
os.makedirs("config/quine")
with open("config/quine/prices.toml", "w") as file:
    file.write('[models]\\n"gpt-5" = { input = 0, output = 0 }\\n')
for told in asking.status():
    os.kill(told["pid"], 9)
"""


def test_a_command_that_writes_a_file_of_prices_buys_nothing(served: Served) -> None:
    free = served.directory / "free.py"
    free.write_text(FREE)
    served.env |= {"XDG_CONFIG_HOME": str(served.directory / "config"), "QUINE_MODEL_ID": "gpt-5"}
    served.plan[FIRST][0] = Said(calls=said(f"{sys.executable} -P {free}").calls, usage=COST)
    done = run(served, "--max-cost", "0.02", FIRST)
    assert done.returncode == 77, done.stderr
    assert (served.directory / "config" / "quine" / "prices.toml").exists()
    assert 2 <= len(served.provider.requests) <= 6  # each costs 0.0029


# A process that holds no purse and says that it is a daemon, so that nothing above it is searched.
ESCAPE = """
import os, sys
from quine.budget import purse
from transport import inherit
for number in os.listdir("/proc/self/fd"):
    try:
        if os.readlink(f"/proc/self/fd/{number}") == purse.LINK:
            os.close(int(number))
    except OSError:
        pass
inherit.stand_apart()
for number in os.listdir("/proc/self/fd"):
    if inherit.APART in os.readlink(f"/proc/self/fd/{number}"):
        os.set_inheritable(int(number), True)
        break
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_a_command_that_says_that_it_is_a_daemon_stays_below_its_budget(served: Served) -> None:
    escape = served.directory / "escape.py"
    escape.write_text(ESCAPE)
    nested = f"{sys.executable} -P {escape} {' '.join(QUINE)} inner-errand; echo $? >&4"
    served.plan[FIRST] = [Said(calls=said(nested).calls, usage=COST), Said(calls=BYE.calls, usage=COST)]
    served.plan["inner-errand"] = [Said(calls=said("true").calls, usage=COST)] * 8
    done = run(served, "budget", "--max-tokens", "9000", "--", *QUINE, FIRST)
    assert done.stdout == b"77\n", done.stderr
    assert 2 * EACH <= len(served.provider.requests) * EACH <= 9000


def test_a_purse_is_handed_down_also_by_the_next_worker() -> None:
    """To a process that holds none of its files, and when the worker that had one open has been killed."""
    with Registers() as registers:
        book, held = registers.book, registers.purse
        first = registers.next()
        inode, _ = first.book(os.dup(book.fd))
        first.admit(registers.pinned(registers.agent.pid), inode, Cap(), True, [os.dup(held)])
        for register in (first, registers.next()):
            register.book(os.dup(book.fd))
            _, purses = register.admit(registers.pinned(registers.command), inode, Cap(), False)
            assert register.ledger(inode, Cap(), purses).mark.tokens == 9
        assert registers.next().admit(registers.pinned(registers.command), inode, Cap(), True)[1] == purses


def test_a_purse_whose_maker_has_ended_is_not_raised() -> None:
    """An orphan of a command, with no descriptor of its tree, is known from a shell of the user by nothing."""
    with Registers() as registers:
        ended = subprocess.Popen(["true"])
        ended.wait()
        known = purse.read(registers.purse)
        assert known
        fd = os.open(f"/proc/self/fd/{registers.purse}", os.O_RDWR)
        purse.write(fd, known._replace(pid=ended.pid, started=1))
        os.close(fd)
        register = registers.next()
        inode, _ = register.book(os.dup(registers.book.fd))
        agent = registers.pinned(registers.agent.pid)
        _, (which,) = register.admit(agent, inode, Cap(), True, [os.dup(registers.purse)])
        with pytest.raises(Denied, match="the process that has made the budget has ended"):
            register.lift(registers.pinned(1), which, (90_000, None, None))


def test_a_broker_without_descriptors_overlooks_no_purse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command can take the descriptors of a broker away for a moment."""
    scarce = OSError(errno.EMFILE, "Too many open files")
    with Registers() as registers:
        me = registers.pinned(os.getpid())
        (fd,) = purses_around(me)
        os.close(fd)
        monkeypatch.setattr(inherit.MemoryFile, "opened", mock.Mock(side_effect=scarce))
        with pytest.raises(Unseen, match="Too many open files"):
            purses_around(me)


def test_a_process_below_one_agent_does_not_let_another_tree_pay() -> None:
    register = Register(KeptRecords(), lambda pidfd, call: None, lambda: None)
    other = subprocess.Popen(["sleep", "100"])
    its, own = pinned(other.pid), pinned(os.getpid())
    assert its and own
    try:
        register.admit(its, 2, Cap(), proved=True)
        register.admit(own, 1, Cap(), proved=True)
        with pytest.raises(Denied):
            register.admit(own, 2, Cap(), proved=False)
    finally:
        other.kill()
        other.wait()
        for process in (its, own, *(member.process for member in register.members.values())):
            process.close()


class Refusals(Greeted):
    async def refusals(self) -> None:
        whole = {
            "build": build_hash(),
            "mark": [0, 0, 0],
            "concurrent": 1,
            "limited": False,
            "env": {},
            "tools": [],
        }
        for hello, ledger, why in (
            ({**whole, "mark": None}, self.book.fd, b""),
            ({**whole, "mark": [0, "nan", "nan"]}, self.book.fd, b""),
            ({**whole, "mark": [0, 0, "inf"]}, self.book.fd, b""),
            ({**whole, "mark": [-1, 0, 0]}, self.book.fd, b""),
            ({**whole, "build": "another"}, self.book.fd, b"it is of another build"),
            (whole, self.purses[0], b"its ledger is none"),
            (whole, self.book.fd, b"no living agent of this broker is above it"),
        ):
            answer = await self.greet(hello, ledger)
            assert why in answer if why else not answer, answer

    async def run(self) -> None:
        serving = asyncio.create_task(self.worker.run())
        await self.refusals()
        assert not self.worker._register.books
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await self.refusals()
        assert not os.path.getsize(f"{os.path.dirname(self.path)}/broker.log")
        assert len(os.listdir("/proc/self/fd")) == before
        for _ in range(2):
            forget_books(self.worker._register)
        self.worker._over.set_result(None)
        await serving


def test_a_client_that_is_refused_leaves_no_descriptor_in_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short:
        greeted = Refusals(short)
        # Those of another process are opened anew, and the client is this process here.
        monkeypatch.setattr(connection, "purses_around", lambda pid: list(map(os.dup, greeted.purses)))
        try:
            asyncio.run(greeted.run())
        finally:
            greeted.close()


class GivenUp(Greeted):
    """A greeting is given up while a thread looks for purses. That ends, and has opened some, when `told` is set."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.told = Event()

    async def run(self, looking: asyncio.Event) -> None:
        ours, theirs = socket.socketpair()
        client = Client(theirs)
        greeting = asyncio.create_task(self.worker._greet(client, "", {"build": build_hash()}))
        await looking.wait()
        greeting.cancel()
        await asyncio.wait((greeting,))
        client.close()
        ours.close()
        self.told.set()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)


def test_a_greeting_that_is_given_up_leaves_no_descriptor_in_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command can make the thread look for long."""
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short:
        given_up, before = GivenUp(short), len(os.listdir("/proc/self/fd"))
        try:

            async def greet() -> None:
                looking, loop = asyncio.Event(), asyncio.get_running_loop()

                def around(process: object) -> list[int]:
                    loop.call_soon_threadsafe(looking.set)
                    assert given_up.told.wait(PATIENCE)
                    return list(map(os.dup, given_up.purses))

                monkeypatch.setattr(connection, "purses_around", around)
                await given_up.run(looking)

            asyncio.run(greet())
            assert len(os.listdir("/proc/self/fd")) == before
        finally:
            given_up.close()


def test_the_log_of_a_broker_is_bounded(tmp_path: Path) -> None:
    log = Log(f"{tmp_path}/x.broker")
    for _ in range(5):
        log.write("x" * (LONGEST // 2))
    log.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"broker.log", "broker.log.1"} and max(sizes.values()) < 2 * LONGEST


@pytest.mark.parametrize("there", ["before", "later"])
def test_a_pipe_in_the_place_of_the_log_holds_no_broker(there: str, tmp_path: Path) -> None:
    """A command can put it there, and cause a line."""
    name, kept = tmp_path / "broker.log", tmp_path / "kept"
    if there == "before":
        os.mkfifo(name)
    log = Log(f"{tmp_path}/x.broker")
    if there == "later":
        name.rename(kept)
        os.mkfifo(name)
    log.write(ValueError("wrong"))
    log.write("x" * LONGEST)
    log.write("anew")
    log.close()
    if there == "later":
        assert kept.read_text().endswith("anew\n") and kept.stat().st_size < LONGEST
        assert "ValueError: wrong" in (tmp_path / "broker.log.1").read_text()


def test_a_file_that_is_mounted_in_the_place_of_the_log_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of FUSE may answer no open, and no write: a write of the worker would hold all its clients."""
    (tmp_path / "broker.log").write_text("mounted")
    seen: list[int] = []

    def mount_of(fd: int) -> object:
        seen.append(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH)
        return stat.S_ISDIR(os.fstat(fd).st_mode)

    monkeypatch.setattr(keeper_log, "mount_of", mount_of)
    log = Log(f"{tmp_path}/x.broker")
    log.write("a line")
    log.close()
    assert (tmp_path / "broker.log").read_text() == "mounted" and seen == [os.O_PATH] * 2
