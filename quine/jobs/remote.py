"""Verbs on jobs of other machines: each runs on that machine, by the same program, with a proxy here.

Laws
1. All hosts are asked at the same time, over one connection to the node here and for a bounded time: a host that hangs
   hides no other. If the answer may be incomplete without it, stderr and the exit status say so. If one answer is
   enough, the others have MORE seconds.
2. The answer of a host is foreign (`foreign.py`), and at most MOST bytes and MOST_LINES lines of it are read.
3. A host is asked for an id only if no local job has it. An id that two hosts claim is refused until --on names one.
   No host is told the id that is sought, and a whole one cannot be guessed: its first claim is enough, and the others
   have MORE seconds to dispute it. The part that `ps` shows has 12 random bits, so a host that lies could claim it: a
   verb that sends something to the job (attach, kill) by less than a whole id needs the answers of all hosts.
4. A host that has nothing of ours is left so, and is an answer: no job of ours is there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from quine.base import sizes
from quine.base.cli_options import RunOptions
from quine.base.errors import DEADLINE, LOST, NOT_STARTED, USAGE, Failure, Misconfigured, complain
from quine.base.procs import LONGEST as LONGEST_WAIT
from quine.base.sessions import SHORT
from quine.base.text import plain
from quine.jobs import foreign
from quine.jobs.asking import ASK, LATE_ANSWER, Answer, ask, asking, has_nothing
from quine.tape.registry import ALIVE
from transport.errors import NoSuchHost, NothingThere, Refused
from transport.lean import Any, NamedTuple
from transport.status import LONGEST, NO_ANSWER, Status
from transport.writes import write_all

LATE = 120.0  # seconds for a verb that does something there, with a dial before it
NEVER = float("inf")
GRACE = 1.0  # seconds for an answer at the deadline to arrive,
FIRST = 10.0  # and at least for the first one of a host, which may have to be dialled
PAUSE = 0.05  # seconds until a verb that was cut is asked again: twice as many each time,
LONGEST_PAUSE = 30.0  # up to these,
ROUNDS = 12  # and so often, if none of them lasted so long


class Remote(NamedTuple):
    """A job of another machine. `noted`: it was detached there from here, so its user has named the host."""

    host: str
    id: str
    noted: bool = False

    def asked(self, options: RunOptions) -> RunOptions:
        """Return the options with which its host is asked: as if --on had named it, if it was named before."""
        return options.replace(on=self.host) if self.noted else options


class Silent(NamedTuple):
    """A host that gave no list of its jobs, or a part of it, with the reason and the cure."""

    host: str
    detail: str
    hint: str


class NotAsked(Failure):
    """A job is on no host that answered, and may be on one that did not: exit 69."""


def hosts(where: str, options: RunOptions) -> list[str]:
    """The host names that `where` means. If it is empty: all, or none if there is no inventory."""
    from quine.base import allowed_hosts

    found = allowed_hosts.find(options, os.environ)
    if found.path is None and not where:
        return []
    from deploy.inventory import ConfigError, opened

    try:
        known = allowed_hosts.naming(opened(found), where)
    except ModuleNotFoundError:  # a host whose Python reads no TOML dials nobody
        if where:
            raise
        return []
    except ConfigError as error:
        raise Misconfigured(error.detail, error.hint) from None
    try:
        return [host.name for host in known.matching(where)] if where else list(known.hosts)
    except NoSuchHost as error:
        raise allowed_hosts.cured(error, where, not allowed_hosts.in_tree()) from None


def listed(names: list[str], options: RunOptions, job: str = "") -> tuple[list[dict[str, Any]], list[Silent]]:
    """Return the agents and jobs of these hosts, as `quine ps --json` there lists them; and hosts without a whole list.

    If `job` is given, the list of a host that knows a job whose id begins so is enough.
    """
    facts, silent = [], []

    def enough(host: str, out: bytes) -> bool:
        return any(fact["id"].startswith(job) and foreign.knows(fact) for fact in foreign.parsed(out, host))

    words = ["ps", "--all", "--json"]
    limit = sizes.seconds(options.timeout or "inf", "--timeout")  # of `wait`, which looks for its job first
    seconds = min(ASK, max(FIRST, limit + GRACE))
    for host, answer in ask(words, names, options, seconds, enough if job else None).items():
        known = foreign.parsed(answer.out, host)
        facts += known  # incomplete if a node there does not answer
        if not answer.whole:
            silent.append(silence(host, answer))
        elif left_out := sum(map(bool, answer.out.split(b"\n"))) - len(known):
            lines = "a malformed line" if left_out == 1 else f"{left_out} malformed lines"
            silent.append(Silent(host, f"its list of jobs has {lines}, left out here", ""))
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
    same: dict[str, list[dict[str, Any]]] = {}
    for fact in facts:
        same.setdefault(fact["id"], []).append(fact)
    for fact in (best := foreign.once(facts)):
        rival = next((other for other in same[fact["id"]] if foreign.rivals(fact, other)), None)
        if rival:  # one of them lies, and our stdin or signal is meant for the other
            both = f"{fact['id']} is on {fact['host']} and on {rival['host']}"
            raise Misconfigured(f"{both}, and they tell different things of it", "say which one with --on")
    return [Remote(fact["host"], fact["id"]) for fact in best]


def show(words: list[str], job: Remote, options: RunOptions, env: dict[str, str] | None = None) -> int:
    """Run a verb on the job's host, with these variables, act as its proxy, and return its exit status."""
    from quine.jobs.client import show as run_as_proxy

    def ended(status: Status) -> Status:
        if status.state == "signaled" and words[0] == "attach" and not status.here:
            # An attach over there dies as its job did; or it was killed itself.
            with contextlib.suppress(Refused):  # there is no node here any more
                asked = ask(["wait", "--timeout=0", job.id], [job.host], job.asked(options))[job.host].status
                status.here = (asked.state, asked.code) == ("exited", status.code)
        elif status.here and words[0] == "attach" and status.detail.startswith("cannot write stdout"):
            # As of a job here, whatever its own end.
            status.state, status.code, status.signal = "lost", LOST, None
        return _judged(status, job)

    spawn = asking([*words, job.id], job.host, job.asked(options))
    spawn.env = env or {}
    return run_as_proxy(spawn, RunOptions(), ended=ended)


def call(words: list[str], job: Remote, options: RunOptions) -> int:
    """Run a verb on the job's host with its messages here. Return its exit status: 74 if it is not over in LATE."""
    status = _judged(_called(words, job, options, LATE), job)
    if status.detail.startswith(LATE_ANSWER):  # it may have done there what it was to do
        status = _lost(job, status.detail)
    return _told(status, job).code


def wait(job: Remote, options: RunOptions, deadline: float) -> Status:
    """As `call` of wait. Only if the state is `exited`, its code is an answer of the host, or 124 after the deadline.

    It changes nothing, so after a cut it is asked again, until the host cannot be reached or cuts it ROUNDS times in
    a row. A host that does not answer is not asked again.
    """
    rounds = 0
    dialled = deadline - sizes.seconds(options.timeout, "--timeout") + FIRST if options.timeout else NEVER
    while True:
        asked = time.monotonic()
        left = max(0.0, deadline - asked)
        limit = [f"--timeout={left}"] if left < LONGEST_WAIT else []
        try:
            least = min(FIRST, max(0.0, dialled - asked))
            status = _called(["wait", *limit], job, options, left + GRACE, least)
        except Refused as refused:  # the node of this machine has ended, and there is no other
            if not rounds:
                raise
            status = Status("unreachable", NOT_STARTED, detail=refused.detail)
        if status.state == "unreachable" and not has_nothing(status):
            if time.monotonic() >= deadline:
                break
            if rounds:
                return _told(_lost(job, f"it cannot be reached any more: {status.detail}"), job)
        silent = bool(_silence_of(status))
        status = _judged(status, job)
        rounds = rounds + 1 if time.monotonic() - asked < LONGEST_PAUSE else 1
        if status.state != "lost" or status.here or silent or rounds == ROUNDS:
            return _told(status, job)
        time.sleep(max(0.0, min(PAUSE * 2**rounds, LONGEST_PAUSE, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            break
    return Status("exited", DEADLINE)


def _called(
    words: list[str], job: Remote, options: RunOptions, seconds: float = NEVER, least: float = FIRST
) -> Status:
    """Run a verb on the job's host, and pass on what it says. It is `unreachable` if it takes longer than `seconds`.

    `least` as for `ask`. A signal ends this process at once, and its node then ends the verb.
    """
    answer = ask([*words, job.id], [job.host], job.asked(options), seconds, least=least)[job.host]
    for fd, name, data in ((1, "stdout", answer.out), (2, "stderr", answer.err)):
        try:
            write_all(fd, data)
        except OSError as error:
            if error.errno != errno.EPIPE:
                answer.status.stream_failed(f"write {name}", error.strerror or "failed")
    return answer.status


def _told(status: Status, job: Remote) -> Status:
    """Say what there is to say of a verb that has ended, and return its status."""
    if status.detail:
        complain(status.detail, status.hint, job.host)
    return status


def _judged(status: Status, job: Remote) -> Status:
    """Return how a verb about a job has ended. Where nothing of ours is, there is no such job.

    A verb that is lost says nothing of the job: the link to its host was cut, or a node has ended. So does one that
    was killed over there. The status of one that has failed `here` is not changed.
    """
    if status.state == "lost" and not status.here:
        return _lost(job, _silence_of(status) or "the link to it was lost")
    if status.state == "signaled" and not status.here:
        return _lost(job, f"its quine was killed by {status.signal}")
    if not has_nothing(status):
        return status
    return Status(
        "unreachable", USAGE, host=job.host, detail=f"no such job: {job.id}", hint=NothingThere.DETAIL
    )


def _silence_of(status: Status) -> str:
    """Return what a verb was told of a host that has not answered its start; "" if that is not why it is lost."""
    return status.detail.partition(";")[0] if status.detail.startswith(NO_ANSWER) else ""


def _lost(job: Remote, why: str) -> Status:
    """Return the status of a verb without an answer."""
    detail, hint = f"{why}; {job.id} goes on, as far as is known", f"quine wait --on {job.host} {job.id}"
    return Status("lost", LOST, host=job.host, detail=detail, hint=hint)
