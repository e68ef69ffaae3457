"""Verbs on jobs of other machines: each runs on that machine, by the same program, with a proxy here.

Laws
1. All hosts are asked at the same time, each by a process of its own and for a bounded time: a host that hangs hides no
   other. If the answer may be incomplete without it, stderr and the exit status say so. If one answer is enough, the
   others have MORE seconds.
2. The answer of a host is foreign (`foreign.py`), and at most MOST bytes of it are read.
3. A host is asked for an id only if no local job has it. An id that two hosts claim is refused until --on names one.
   No host is told the id that is sought, and a whole one cannot be guessed: its first claim is enough, and the others
   have MORE seconds to dispute it. The part that `ps` shows has 12 random bits, so a host that lies could claim it: a
   verb that sends something to the job (attach, kill) by less than a whole id needs the answers of all hosts.
4. A host that has nothing of ours is left so, and is an answer: no job of ours is there.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

from quine.base.cli_options import RunOptions, find_inventory
from quine.base.errors import DEFECT, NOT_STARTED, OK, USAGE, Failure, Misconfigured, complain
from quine.base.sessions import SHORT
from quine.base.text import plain
from quine.jobs import foreign
from quine.jobs.detach import verb_there
from quine.tape.registry import ALIVE
from transport import quickjson
from transport.client import client
from transport.errors import NothingThere, Refused
from transport.lean import Any, NamedTuple, NoReturn
from transport.node import rendezvous
from transport.status import LONGEST, Status
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.spawn import Spawn

ASK = 45.0  # seconds for all hosts to answer; a dial may have to send this build to a host that has another
MORE = 1.0  # seconds for the other hosts, if one answer is enough
MOST = 16 << 20  # bytes of one answer
REPORT = "please report it"
STOPS = 2.0  # seconds for an asking process to end


class Remote(NamedTuple):
    """A job of another machine."""

    host: str
    id: str


class Silent(NamedTuple):
    """A host that gave no list of its jobs, with the reason and the cure."""

    host: str
    detail: str
    hint: str


class NotAsked(Failure):
    """A job is on no host that answered, and may be on one that did not: exit 69."""


class Answer(NamedTuple):
    status: Status
    out: bytes
    err: bytes

    @property
    def whole(self) -> bool:
        """Whether it says all that the host knows. One that has nothing of ours knows nothing."""
        return (self.status.state == "exited" and not self.status.code) or has_nothing(self.status)


def has_nothing(status: Status) -> bool:
    """Return whether a host was not asked because it has nothing of ours: no job of ours is there."""
    return status.state == "unreachable" and status.detail == NothingThere.DETAIL


def hosts(where: str, options: RunOptions) -> list[str]:
    """The host names that `where` means. If it is empty: all, or none if there is no inventory."""
    from pathlib import Path

    path = find_inventory(options, os.environ)
    if path is None and not where:
        return []
    from deploy.inventory import ConfigError, load

    try:
        known = load(Path(path) if path else None, {})
    except ModuleNotFoundError:  # a host whose Python reads no TOML dials nobody
        if where:
            raise
        return []
    except ConfigError as error:
        raise Misconfigured(error.detail, error.hint) from None
    return [host.name for host in known.matching(where)] if where else list(known.hosts)


def listed(names: list[str], options: RunOptions, job: str = "") -> tuple[list[dict[str, Any]], list[Silent]]:
    """Return the agents and jobs of these hosts, as `quine ps --json` there lists them, and the hosts without a list.

    If `job` is given, the list of a host that knows a job whose id begins so is enough.
    """
    facts, silent = [], []

    def enough(host: str, out: bytes) -> bool:
        return any(fact["id"].startswith(job) and _knows(fact) for fact in foreign.parsed(out, host))

    words = ["ps", "--all", "--json"]
    for host, answer in ask(words, names, options, enough=enough if job else None).items():
        if not answer.whole:
            silent.append(silence(host, answer))
        facts += foreign.parsed(answer.out, host)  # incomplete if a node there does not answer
    return facts, silent


def silence(host: str, answer: Answer) -> Silent:
    """Return why a host has given no list."""
    line = answer.err.decode(errors="replace").partition("\n")[0].removeprefix("quine: error: ")
    detail = answer.status.detail or plain(line[:LONGEST]) or "no answer"
    return Silent(host, detail, answer.status.hint)


def tell(silent: list[Silent]) -> None:
    """Say on stderr which hosts gave no list."""
    for one in silent:
        complain(one.detail, one.hint, one.host)


def running(job: str, where: str, options: RunOptions) -> Remote | None:
    """Return the job with this id if it runs now, else None. Raises NotAsked if a silent host may have it."""
    facts, silent = listed(hosts(where, options), options, job)
    for fact in facts:
        if fact["id"] == job and fact["state"] in ALIVE:
            return Remote(fact["host"], job)
    if silent:
        tell(silent)
        raise NotAsked(NOT_STARTED, f"{job} may still run on {', '.join(one.host for one in silent)}")
    return None


def find(text: str, where: str, options: RunOptions, reads: bool = False) -> list[Remote]:
    """Return the jobs whose id begins with `text`. Raises NotAsked if only a silent host may have one.

    `reads`: nothing is sent to the job, so a host that knows one is enough for any beginning of its id. Otherwise
    NotAsked is raised, too, if a silent host may have another one that begins so.
    """
    names = hosts(where, options)
    if where and len(names) == 1:
        return [Remote(names[0], text)]  # that host resolves the id itself
    enough = reads or foreign.is_job(text)
    everything, silent = listed(names, options, text if enough else "") if names else ([], [])
    facts = [fact for fact in everything if fact["id"].startswith(text)]
    if not (facts and enough and len(text) >= SHORT):
        tell(silent)
    if silent and not (facts and enough):
        where = "may begin a job of another host, too" if facts else "is on no host that answered"
        away = ", ".join(one.host for one in silent)
        raise NotAsked(NOT_STARTED, f"{text} {where}; not asked: {away}")
    for fact in (best := once(facts)):
        rival = next((other for other in facts if _rivals(fact, other)), None)
        if rival:  # one of them lies, and our stdin or signal is meant for the other
            both = f"{fact['id']} is on {fact['host']} and on {rival['host']}"
            raise Misconfigured(f"{both}, and they tell different things of it", "say which one with --on")
    return [Remote(fact["host"], fact["id"]) for fact in best]


def once(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep each id once: machines that share a home all list a job, and one of them knows it."""
    best: dict[str, dict[str, Any]] = {}
    for fact in facts:
        known = best.setdefault(fact["id"], fact)
        if not _knows(known):
            best[fact["id"]] = fact
    return list(best.values())


def _knows(fact: dict[str, Any]) -> bool:
    """Return whether this host runs or ran the job, and does not merely share its home or pass it on."""
    return fact["state"] not in ("unknown", "lost") and fact["kind"] != "proxy"


def _rivals(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two hosts both know a job of this id, and not from one record in a shared home."""
    if (one["kind"] == "proxy") != (other["kind"] == "proxy"):
        return False  # one is a proxy of the job on another host: `once` takes that host
    known = one["id"] == other["id"] and "unknown" not in (one["state"], other["state"])
    return known and any(one[name] != other[name] for name in ("pid", "started", "mission", "root"))


def show(words: list[str], job: Remote, options: RunOptions, env: dict[str, str] | None = None) -> int:
    """Run a verb on the job's host, with these variables, act as its proxy, and return its exit status."""
    from quine.jobs.client import show as run_as_proxy

    spawn = _asking([*words, job.id], job.host, options)
    spawn.env = env or {}
    return run_as_proxy(spawn, RunOptions(), ended=lambda status: _judged(status, job))


def call(words: list[str], job: Remote, options: RunOptions) -> int:
    """Run a verb on the job's host with its messages here. Return its exit status."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        status = _judged(client.run(_asking([*words, job.id], job.host, options), null), job)
    finally:
        os.close(null)
    if status.detail:
        complain(status.detail, status.hint, job.host)
    if status.state == "signaled" and status.signal:
        from transport.status import die_of

        die_of(status.signal)  # our own signal, passed on: the verb itself dies of none
    return status.code


def _judged(status: Status, job: Remote) -> Status:
    """Return how a verb about a job has ended. Where nothing of ours is, there is no such job."""
    if not has_nothing(status):
        return status
    return Status(
        "unreachable", USAGE, host=job.host, detail=f"no such job: {job.id}", hint=NothingThere.DETAIL
    )


def _asking(words: list[str], host: str, options: RunOptions) -> Spawn:
    """Return the spawn of a verb that asks about jobs of a host, or does something to one: it brings nothing there."""
    spawn = verb_there(words, host, options)
    spawn.context["asks"] = True
    return spawn


# -- asking ----------------------------------------------------------------------------------------


def ask(
    words: list[str],
    names: list[str],
    options: RunOptions,
    seconds: float = ASK,
    enough: Callable[[str, bytes], bool] | None = None,
) -> dict[str, Answer]:
    """Run the same verb on all hosts, and return their answers in order.

    `enough` gets a host and its stdout, and returns whether the others need not be waited for.
    """
    rendezvous.connect().close()  # start one node here, not one by each asking process
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        asked = [_Asked(words, name, options, null) for name in names]
    finally:
        os.close(null)
    begun = time.monotonic()
    deadline = begun + seconds
    open_ones = {fd: one for one in asked for fd in one.pipes}
    poll = select.poll()
    for fd in open_ones:
        poll.register(fd, select.POLLIN)
    while open_ones and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            if fd in open_ones and not (one := open_ones[fd]).read(fd):
                for over in one.pipes if one.wrong else (fd,):
                    if open_ones.pop(over, None):
                        poll.unregister(over)
                if enough and enough(one.host, one.answer):
                    deadline, enough = min(deadline, time.monotonic() + MORE), None
    seconds = time.monotonic() - begun
    for one in asked:
        one.hurry()
    return {one.host: one.end(seconds) for one in asked}


class _Asked:
    """One host, asked by a child process."""

    def __init__(self, words: list[str], host: str, options: RunOptions, null: int) -> None:
        self.host = host
        self.pid, self._pidfd = 0, -1
        self.pipes: dict[int, bytearray] = {}
        self._open = 3
        self.wrong = ""  # why there is no answer, but for a time-out
        ends: list[tuple[int, int]] = []
        try:
            for _ in range(3):  # stdout, stderr, status
                ends.append(os.pipe())
            self.pid = os.fork()
            if not self.pid:
                _answer_to(ends, words, host, options, null)
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            self.wrong = f"no process of this machine can ask: {(error.strerror or '').lower()}"
            for read, _ in ends:
                os.close(read)
        else:
            self.pipes = {read: bytearray() for read, _ in ends}
        for _, write in ends:
            os.close(write)

    def read(self, fd: int) -> bool:
        data = os.read(fd, 1 << 16)
        self.pipes[fd] += data
        if len(self.pipes[fd]) > MOST:
            self.wrong = self.wrong or f"an answer of more than {MOST >> 20} MiB"
            return False
        self._open -= not data
        return bool(data)

    @property
    def answer(self) -> bytes:
        """All of its stdout; empty before its end."""
        return b"" if self._open or self.wrong else bytes(next(iter(self.pipes.values())))

    def hurry(self) -> None:
        """Send TERM to the asking process if it has no answer; called for all hosts first, so that all end at once."""
        if self._open and self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def end(self, seconds: float) -> Answer:
        """Return the answer, or the reason why there is none."""
        out, err, report = (bytes(data) for data in self.pipes.values()) if self.pipes else (b"", b"", b"")
        for fd in self.pipes:
            os.close(fd)
        how = self._reap()
        if not self.wrong:
            with contextlib.suppress(ValueError):
                return Answer(Status.from_json(quickjson.loads(report)), out, err)
        why = self.wrong or how or f"no answer within {seconds:.0f} s"
        hint = "" if self.wrong or how else "try again later"
        return Answer(Status("unreachable", NOT_STARTED, detail=why, hint=hint), b"", b"")

    def _reap(self) -> str:
        """Wait for the child after `hurry`, or kill it. Return how it ended by itself, "" if it did not."""
        if not self.pid:
            return ""
        ended = False
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            ended = not self._open and bool(poll.poll(STOPS * 1000))
            if not ended and not poll.poll(STOPS * 1000):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                poll.poll(STOPS * 1000)
            os.close(self._pidfd)
        else:
            os.kill(self.pid, signal.SIGKILL)
        word = os.waitpid(self.pid, 0)[1]
        if not ended:
            return ""
        how = Status.from_wait(word)
        return (
            f"the process that asked ended: {f'signal {how.signal}' if how.signal else f'status {how.code}'}"
        )


def _answer_to(
    ends: list[tuple[int, int]], words: list[str], host: str, options: RunOptions, null: int
) -> NoReturn:
    """In the child: run the verb, and report its status, whatever goes wrong."""
    try:
        for read, _ in ends:
            os.close(read)
        out, err, report = (write for _, write in ends)
        try:
            status = client.run(_asking(words, host, options), null, out, err)
        except Refused as refused:
            status = Status("unreachable", refused.status, detail=refused.detail, hint=refused.hint)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            status = Status("unreachable", DEFECT, detail=f"a defect in quine: {what}", hint=REPORT)
        write_all(report, quickjson.dumps(status.to_json()).encode())
        os._exit(OK)
    finally:
        os._exit(DEFECT)
