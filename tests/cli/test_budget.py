"""`quine budget`: a command with one budget for all agents below it. Real processes, shells and terminals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quine.budget import purse, shared_counters
from quine.budget.ledger import Ledger
from quine.budget.shared_counters import SharedCounters
from quine.cli.budget import running
from tests.lab import processes
from tests.lab.machine import RUN
from tests.support.agents import OK, QUINE, Agents, Started, says, sh, until
from tests.support.detached import go as go
from tests.support.waiting import read_until, wait_for
from tests.vendors import chat
from tests.vendors.server import KEY, Provider, Said, Seen, Silent, Turn
from transport import inherit

BUDGET = [*QUINE, "budget"]
AGENT = f"{sys.executable} -P -m quine"
DONE = {**says(OK), "usage": {"input": 1000, "output": 100}}
ALIVE = {
    **says(sh('touch "began-$QUINE_SESSION_ID"; read x <go')),
    **{"match": "^work", "usage": {"input": 10, "output": 1}},
}


@pytest.fixture
def agents(agents: Agents) -> Agents:
    agents.env["AGENT"] = AGENT
    agents.script(DONE)
    return agents


def budget(agents: Agents, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return agents.quine("budget", *words, **more)


def start(agents: Agents, *words: str, **more: Any) -> Started:
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Started([*BUDGET, *words], cwd=agents.directory, env=agents.env, **{**streams, **more})


def shown(agents: Agents, *ids: str) -> list[dict[str, Any]]:
    done = budget(agents, "show", "--json", *ids)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(agents: Agents, pid: int) -> dict[str, Any]:
    """The budget that the process `pid` has made; other tests have theirs at the same time."""
    (found,) = [row for row in shown(agents) if row["pid"] == pid]
    return found


def opened(pid: int) -> Ledger:
    """The ledger and the purse of a running process, held by this one from now on."""
    fds: dict[str, int] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        target = os.readlink(path)
        for wanted in (shared_counters.NAME, purse.NAME):
            if target == f"/memfd:{wanted} (deleted)" and wanted not in fds:
                fds[wanted] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return Ledger(SharedCounters(fds[shared_counters.NAME]), None, (fds[purse.NAME],))


def close(ledger: Ledger) -> None:
    for fd in (ledger.fd, *ledger.purses):
        os.close(fd)


# -- the command -------------------------------------------------------------------------------------


def test_it_leaves_as_the_command_left(agents: Agents) -> None:
    for command, status in (
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM),
        (["sh", "-c", "kill -PIPE $$"], -signal.SIGPIPE),
        (["no-such-command"], 127),
        (["/etc/passwd"], 126),
    ):
        assert budget(agents, "--", *command).returncode == status, command
    done = budget(agents, "--", "sh", "-c", "cat; echo no >&2", input="one\ntwo\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwo\n", "no\n")


def test_signals_are_as_without_it(agents: Agents) -> None:
    """An ignored one stays ignored, Python's own dispositions and this process's mask are not passed on.

    The last 31 bits: glibc lets a spawned program ignore two signals of its own.
    """
    look = ["sh", "-c", "sed -En 's/^Sig(Blk|Ign):.*(.{8})$/0x\\2/p' /proc/self/status"]
    nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "-"]
    plain = subprocess.run([*nohup, *look], env=agents.env, capture_output=True, text=True, check=True)
    below = subprocess.run(
        [*nohup, *BUDGET, "--", *look], env=agents.env, capture_output=True, text=True, check=True
    )
    masks = [[int(mask, 16) & 0x7FFFFFFF for mask in done.stdout.split()] for done in (plain, below)]
    assert masks[0] == masks[1] == [0, 1]


def test_wrong_words_start_nothing(agents: Agents) -> None:
    for words in (
        ["--max-cost", "x"],
        ["--max-tokens", "1.5"],
        ["--max-cost", "0"],
        ["--json"],
        ["--on", "h1"],
        [],
    ):
        done = budget(agents, *words, *(["--", "touch", "started"] if words else []))
        assert done.returncode == 2 and done.stderr.startswith("quine: error: "), words
    assert not (agents.directory / "started").exists()


def test_a_signal_is_passed_on(agents: Agents) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(9)); print('ready', flush=True); signal.pause()"
    with start(agents, "--", sys.executable, "-c", code) as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), b"ready")
        process.terminate()
        assert process.wait(60) == 9


# -- a terminal --------------------------------------------------------------------------------------


@pytest.fixture
def terminal(agents: Agents) -> Iterator[int]:
    """An interactive bash on a terminal of its own; the other end of that."""
    pid, fd = pty.fork()
    if not pid:
        env = {**agents.env, "PS1": "> ", "TERM": "dumb", "BUDGET": " ".join(BUDGET)}
        os.chdir(agents.directory)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
    read_until(fd, b"> ")
    yield fd
    os.close(fd)  # hangs up
    os.waitpid(pid, 0)


# A signal that comes just before a read(2) that blocks is heard after it: so this waits for its own handler, too.
COUNTS = """
import os, select, signal
got, (heard, told) = [], os.pipe()
os.set_blocking(told, False)
signal.set_wakeup_fd(told)
signal.signal(signal.SIGINT, lambda *_: (got.append(1), os.write(1, b"caught\\n")))
os.write(1, b"ready\\n")
while 0 not in select.select([0, heard], [], [])[0]:
    os.read(heard, 100)
print("times", len(got))
"""


def test_the_interrupt_of_a_terminal_reaches_the_command_once(agents: Agents, terminal: int) -> None:
    (agents.directory / "counts.py").write_text(COUNTS)
    os.write(terminal, b"$BUDGET -- %s counts.py; echo status $?\n" % sys.executable.encode())
    read_until(terminal, b"ready\r\n")
    os.write(terminal, b"\x03")
    read_until(terminal, b"caught")
    os.write(terminal, b"\n")
    assert b"times 1\r\nstatus 0" in read_until(terminal, b"status 0")


def test_the_interrupt_of_a_terminal_ends_both(terminal: int) -> None:
    os.write(terminal, b"$BUDGET -- sh -c 'echo rea''dy; exec sleep 1000'\n")
    read_until(terminal, b"ready\r\n")
    os.write(terminal, b"\x03")
    read_until(terminal, b"^C")
    os.write(terminal, b"echo status $?\n")
    read_until(terminal, b"status 130")


def test_it_stops_and_goes_on_with_the_command(terminal: int) -> None:
    os.write(terminal, b"$BUDGET -- sh -c 'echo rea''dy; exec cat'; echo status $?\n")
    read_until(terminal, b"ready\r\n")
    os.write(terminal, b"\x1a")
    read_until(terminal, b"Stopped")
    os.write(terminal, b"fg\n")
    read_until(terminal, b"exec cat")
    os.write(terminal, b"once more\n")
    read_until(terminal, b"once more\r\nonce more")
    os.write(terminal, b"\x04")


# -- one budget --------------------------------------------------------------------------------------


def test_a_pipeline_of_agents(agents: Agents) -> None:
    line = "seq 14 | xargs -P 4 -I{} sh -c '$AGENT {} 2>/dev/null; echo $?'"
    with start(
        agents, "--max-tokens", "12k", "--", "sh", "-c", f"{line}; read wait", stdin=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        ends = [process.stdout.readline() for _ in range(14)]
        found = ours(agents, process.pid)
        process.communicate()
    # The reservation of the tenth does not fit: about 1800 tokens, and 256 at least of a reply.
    assert set(ends) == {b"0\n", b"77\n"} and ends.count(b"0\n") >= 8
    assert found["tokens"] == 1100 * ends.count(b"0\n") <= found["max_tokens"] == 12_000
    assert (found["running"], found["inferring"]) == (0, 0) and found["agents"] == 14
    roots = [tape[0]["data"] for tape in agents.tapes()]
    assert all(meta["depth"] == 0 and meta["root_session_id"] == meta["session_id"] for meta in roots)


CLOSING = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], close_fds=True, env={}).returncode)"
DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(3, 1024)
os.execv(sys.argv[1], sys.argv[1:])
"""
ESCAPES = {
    "no environment": "env -i {keep} $AGENT nested",
    "no descriptors": f"{sys.executable} -c '{CLOSING}' /bin/sh ./inner",
    "a session of its own": "setsid -w $AGENT nested",
    "a daemon": f"{sys.executable} -c '{DAEMON}' /bin/sh ./inner; while [ ! -e ended ]; do sleep 0.02; done",
    "its own limits": "QUINE_MAX_TOKENS=900000 QUINE_MAX_AGENTS=99 $AGENT nested",
}


@pytest.mark.parametrize("way", ESCAPES)
def test_no_agent_escapes(agents: Agents, way: str) -> None:
    """The first agent takes what there is; then no other one infers, however it is started."""
    keep = " ".join(f"{name}={value}" for name, value in agents.env.items() if name.startswith("QUINE_"))
    (agents.directory / "inner").write_text(
        f'export {keep} HOME="$PWD"\n{AGENT} nested 2>err; status=$?\necho $status >ended; exit $status\n'
    )
    agents.script(says(OK, match="^nested"), {**DONE, "usage": {"input": 4000, "output": 100}})
    way = ESCAPES[way].replace("{keep}", keep)
    done = budget(agents, "--max-tokens", "5000", "--", "sh", "-c", f"$AGENT first && ({way})")
    ended = agents.directory / "ended"
    assert (ended.read_text() if ended.exists() else f"{done.returncode}\n") == "77\n"
    said = (agents.directory / "err").read_text() if ended.exists() else done.stderr
    assert "4100 of 5000 tokens are used" in said


def test_live_agents_are_counted_over_all(agents: Agents, go: Path) -> None:
    """Eleven are more than the default of a tree; the limit of the budget is the one that holds."""
    agents.script(ALIVE, says(OK))
    line = "for n in $(seq 11); do $AGENT work & done; while [ $(ls began-* | wc -l) -lt 11 ]; do sleep 0.1; done"
    last = "env -i {} $AGENT more; echo $?; seq 64 >go; wait"
    keep = " ".join(f"{name}={value}" for name, value in agents.env.items() if name.startswith("QUINE_"))
    done = budget(agents, "--max-agents", "11", "--", "sh", "-c", f"{line} 2>/dev/null; {last.format(keep)}")
    assert done.stdout == "77\n"
    assert "too many agents: the limit of the tree is 11" in done.stderr
    done = budget(agents, "--", "sh", "-c", "$AGENT work")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "secret",
    ["MY_TOKEN=t-1234567", "DATABASE_URL=postgres://ada:pw@db/x", "https_proxy=http://ada:pw@p:3128", ""],
)
def test_the_process_of_a_budget_begins_anew_without_any_secret(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """A process with one is closed to others, which see no descriptor of it: agents found no budget above."""
    name, _, value = secret.partition("=")
    anew: list[object] = []
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", **({name: value} if name else {})})
    monkeypatch.setattr(inherit, "renew", lambda *words: anew.append(words))
    running._leave_secrets(7)
    assert anew == ([({"PATH": "/bin"}, {"command": 7})] if name else [])


@pytest.mark.clock  # two seconds are enough for an agent to start its command
def test_the_deadline_is_for_the_whole(agents: Agents) -> None:
    agents.script(says(sh("sleep 1000"), match="^work"), says(OK))
    done = budget(agents, "--deadline", "2", "--", "sh", "-c", "$AGENT work; echo $?; $AGENT late; echo $?")
    assert done.stdout.splitlines()[1] == "124"
    assert "the time of the tree is over" in done.stderr


def test_a_budget_inside_another_one_is_a_part_of_it(agents: Agents) -> None:
    inner = f"{' '.join(BUDGET)} --max-tokens 3000 -- sh -c '$AGENT a; echo $?; $AGENT b; echo $?'"
    done = budget(agents, "--max-tokens", "6000", "--", "sh", "-c", f"{inner}; $AGENT c; $AGENT d; echo $?")
    # Inside, 1100 of 3000 leave too little for a second one; outside, 1100 of 6000 leave enough for two more.
    assert done.stdout == "0\n77\n0\n"
    agents.script(says(sh(f"{inner}; $AGENT c >/dev/null; echo c $?"), match="^outer"), DONE)
    agents.run(mission="outer", options=("--max-tokens", "900000"))
    assert "0\n77\nc 0" in agents.results("outer")[0]


def test_a_budget_inside_an_agent_cannot_be_wider(agents: Agents) -> None:
    inner = f"{' '.join(BUDGET)} --max-tokens 900000 --max-agents 99 -- $AGENT nested; echo $?"
    agents.script({**says(sh(inner), match="^work"), "usage": {"input": 4000, "output": 10}}, DONE)
    agents.run(options=("--max-tokens", "5000", "--max-agents", "2"))
    assert "\n77\n" in agents.results()[0] and "4010 of 5000 tokens are used" in agents.results()[0]


# -- show and raise ----------------------------------------------------------------------------------


def test_it_is_shown_while_it_lives(agents: Agents, go: Path) -> None:
    agents.script(ALIVE, {**DONE, "match": "^work"})
    words = ["--max-tokens=2M", "--max-cost=5", "--max-agents=7", "--concurrent=3", "--deadline=1h"]
    agents.env["QUINE_PRICES"] = str(agents.directory / "prices.toml")
    (agents.directory / "prices.toml").write_text("[models.script]\ninput = 1\noutput = 1\n")
    with start(agents, *words, "--", "sh", "-c", "$AGENT work; $AGENT work") as process:
        until(lambda: list(agents.directory.glob("began-*")))
        found = ours(agents, process.pid)
        figures = [found[name] for name in ("agents", "running", "tokens", "cost")]
        assert figures == [1, 1, 11, pytest.approx(11e-6)]
        limits = [found[name] for name in ("max_tokens", "max_cost", "max_agents", "concurrent", "deadline")]
        assert limits == [2_000_000, 5.0, 7, 3, 3600]
        assert found["command"] == "sh -c '$AGENT work; $AGENT work'"
        assert 0 <= found["seconds"] < 300 and abs(found["since"] - time.time()) < 300
        done = budget(agents, "show", found["id"][:23])
        head, row = done.stdout.splitlines()
        assert head.split()[0] == "ID" and row.split()[0] == found["id"][:18]
        go.write_text("\n" * 64)
        assert process.wait(60) == 0
    assert budget(agents, "show", found["id"]).stderr.startswith("quine: error: no such budget")


FORGE = """
import fcntl, os, struct, sys
from quine.base.sessions import new_session
from quine.budget import purse
from quine.budget.shared_counters import AGENT, MUTEX, NAME, Numbers, SharedCounters, lock
book = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0))
def made(ledger, ident, **more):
    fd = purse.create(book, ident, "forged", (9, 0.0, 0.0), (1, 1))
    writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    purse.write(writable, purse.read(fd)._replace(ledger=os.fstat(ledger).st_ino, **more))
small = os.memfd_create(NAME)
made(book.fd, chr(27) + "]52;c;eA==" + chr(7) + "x" * 24)
made(small, new_session())
made(book.fd, new_session())
made(book.fd, new_session(), cost=float("nan"), command="odd")
print("there", flush=True)
made(book.fd, sys.stdin.readline().strip())
held = book.again()
assert lock(held, MUTEX.first)
for at, size in ((AGENT.first, AGENT.most), (AGENT.first + 1, 1)):
    fcntl.fcntl(book.again(), fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, at, size, 0))
print("made", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("older", [False, True], ids=["a later process", "an older process"])
def test_forged_budgets_are_left_out_and_keep_nobody(agents: Agents, go: Path, older: bool) -> None:
    """Any process of the user can make such files, with the id of a true one, and hold the locks of a ledger."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    words = [sys.executable, "-P", "-c", FORGE]
    forging = partial(Started, words, env=agents.env, cwd=Path(__file__).parents[2], **pipes)
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(forging()) if older else None
        if before and before.stdout:
            assert before.stdout.readline() == b"there\n"
        budgeted = start(agents, "--max-tokens", "7000", "--", "sh", "-c", "touch began-x; read x <go")
        process = stack.enter_context(budgeted)
        until(lambda: list(agents.directory.glob("began-*")))
        ident = ours(agents, process.pid)["id"]
        with contextlib.nullcontext(before) if before else forging() as forger:
            assert forger.stdin and forger.stdout
            forger.stdin.write(f"{ident}\n".encode())
            forger.stdin.flush()
            assert forger.stdout.read(5 + (not older) * 6)[-5:] == b"made\n"
            done = budget(agents, "show")
            assert (done.returncode, done.stdout.count("forged"), "\033" in done.stdout) == (0, 1, False), (
                done
            )
            assert [row["running"] for row in shown(agents) if row["command"] == "forged"] == [
                shared_counters.AGENT.most
            ]
            done = budget(agents, "raise", ident, "--max-tokens", "8000")
            assert (done.returncode, done.stderr) == (0, "")
            assert ours(agents, process.pid)["max_tokens"] == 8000
            forger.communicate()
        go.write_text("\n")
        assert process.wait(60) == 0


def test_agents_that_run_already_have_what_was_raised(agents: Agents, go: Path) -> None:
    """One waits in a command, on its last reply but one; with the first limit it could say no more."""
    agents.script(
        {**ALIVE, "usage": {"input": 4000, "output": 100}},
        *[{**says(sh("true"), match="^work"), "usage": {"input": 4000, "output": 100}}] * 3,
        {**DONE, "match": "^work"},
    )
    with start(agents, "--max-tokens", "7000", "--", "sh", "-c", "$AGENT work") as process:
        until(lambda: list(agents.directory.glob("began-*")))
        found = ours(agents, process.pid)
        for words, status, said in (
            (["--max-tokens", "6000"], 2, "--max-tokens 6000 is less than now, which is 7000"),
            (["--max-cost", "5"], 2, "--max-cost 5 is less than now, which is no limit"),
            (["--max-agents", "5"], 2, "budget raise takes no --max-agents"),
            ([], 2, "nothing to raise"),
        ):
            done = budget(agents, "raise", *words, found["id"])
            assert (done.returncode, said in done.stderr) == (status, True), done.stderr
        done = budget(agents, "raise", found["id"][:23], "--max-tokens", "90k")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert ours(agents, process.pid)["max_tokens"] == 90_000
        go.write_text("\n" * 64)
        assert process.wait(60) == 0
    assert "[TOKENS LEFT] 85900" in agents.results()[0]


def test_nothing_is_raised_from_inside(agents: Agents) -> None:
    script = f"id=$({' '.join(BUDGET)} show | awk -v p=$PPID '$2 == p {{ print $1 }}');"
    script += f" setsid -w {' '.join(BUDGET)} raise $id --max-tokens 90k; echo $?"
    done = budget(agents, "--max-tokens", "9k", "--", "sh", "-c", script)
    assert done.stdout == "77\n" and "cannot be raised from inside" in done.stderr


def test_a_deadline_that_was_raised_reaches_agents_that_run(agents: Agents, go: Path) -> None:
    agents.script(ALIVE, {**DONE, "match": "^work"})
    with start(agents, "--deadline", "1h", "--", "sh", "-c", "$AGENT work") as process:
        until(lambda: list(agents.directory.glob("began-*")))
        found = ours(agents, process.pid)
        assert budget(agents, "raise", found["id"], "--deadline", "9h").returncode == 0
        go.write_text("\n" * 64)
        assert process.wait(60) == 0
    left = re.search(r"\[TIME LEFT\] (\d+) s", agents.results()[0])
    assert left and int(left.group(1)) > 8 * 3600


# -- killed ------------------------------------------------------------------------------------------


def test_agents_go_on_within_the_caps_when_it_is_killed(agents: Agents, go: Path) -> None:
    agents.script(ALIVE, {**DONE, "usage": {"input": 3000, "output": 100}, "match": "^work"}, says(OK))
    line = "$AGENT work; touch first; $AGENT late 2>err; echo $? >status; touch over"
    with start(agents, "--max-tokens", "5000", "--", "sh", "-c", line) as process:
        until(lambda: list(agents.directory.glob("began-*")))
        found = ours(agents, process.pid)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        assert ours(agents, process.pid)["id"] == found["id"]  # its agents hold it
        done = budget(agents, "raise", found["id"], "--max-tokens", "90k")
        assert (done.returncode, "has ended, so its limits stay" in done.stderr) == (77, True), done.stderr
        go.write_text("\n" * 64)
        wait_for(agents.directory / "over")
    assert (agents.directory / "status").read_text() == "77\n"
    assert "3111 of 5000 tokens are used" in (agents.directory / "err").read_text()
    until(lambda: not [row for row in shown(agents) if row["id"] == found["id"]])


def _kill(name: str) -> None:
    """Kill the agent with this mission, and the shell above it, but not the one that xargs waits for."""
    for process in processes.marked(RUN):
        words = " ".join(process.argv)
        if name in words and "; true" not in words:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def test_the_sum_holds_whatever_is_killed(agents: Agents) -> None:
    """Agents are killed in the middle of an inference, with the shells above them, and the budget's process, too.

    The broker cancels what a killed agent has asked for, and charges the prompt, which the provider has read.
    """
    cap, cost = 14_000, (1500, 100, 0)

    def choose(seen: Seen) -> Turn:
        reply = Said(calls=(OK,), usage=cost)
        return Silent(reply) if b"dies-" in json.dumps(seen.body["messages"]).encode() else reply

    with Provider(chat, choose=choose) as provider:
        agents.env |= {
            "QUINE_API_TYPE": "openai",
            "QUINE_API_BASE": provider.base + "/v1",
            "QUINE_API_KEY": KEY,
            "QUINE_MODEL_ID": "m",
        }
        line = "for n in $(seq 10); do [ $((n % 5)) = 0 ] && echo dies-$n || echo ends-$n; done"
        line += " | xargs -P 5 -I{} sh -c 'sh -c \"$AGENT {}\"; true' 2>err; touch over"
        with start(
            agents, "--max-tokens", str(cap), "--", "sh", "-c", line, stderr=subprocess.DEVNULL
        ) as process:
            until(lambda: any(row["pid"] == process.pid for row in shown(agents)))
            ledger = opened(process.pid)
            killed: set[str] = set()
            while not (agents.directory / "over").exists():
                for name in {f"dies-{n}" for n in (5, 10)} - killed:
                    if any(name in json.dumps(body["messages"]) for body in provider.bodies):
                        _kill(name)
                        killed.add(name)
                if killed and process.poll() is None:
                    process.kill()
                time.sleep(0.02)
            process.wait(60)
        cut = sum("dies-" in json.dumps(body["messages"]) for body in provider.bodies)
        sent = len(provider.requests) * sum(cost[:2]) - cut * cost[1]
    try:
        ledger.collect()
        used = ledger.totals()[1]
    finally:
        close(ledger)
    assert cut and killed
    assert sent <= used <= cap
    assert b"tokens are used" in (agents.directory / "err").read_bytes()
