"""The verbs on jobs of other machines: each is run over there, by the same program, with its face here.

Laws
1. All hosts are asked at the same time, each in a process of its own and for so long and no longer: one that hangs
   hides nobody, and is told on stderr, once.
2. What a host answers is foreign: only known fields of the known types are taken, and so many bytes.
3. A host is asked for an id only where nobody here has it; one that two hosts claim is nobody's until --on says whose.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any, NamedTuple

from quine.detach import verb_there
from quine.exits import NOT_STARTED, Misconfigured, complain
from quine.life import SHOWN, is_session
from quine.options import find_inventory
from quine.tapes import HUGE
from quine.text import plain
from transport import client, quickjson, starter
from transport.errors import Refused
from transport.status import LONGEST, Status

ASK = 45.0  # seconds for all hosts to answer; the first dial of a host may have to send the binary
MOST = 16 << 20  # bytes of one answer
STOPS = 2.0  # seconds for who was asked too long to let go

_FIELDS: dict[str, tuple[tuple[type, ...], object]] = {
    "id": ((str,), ""),
    "session": ((str,), ""),
    "pid": ((int,), 0),
    "state": ((str,), "unknown"),
    "code": ((int,), None),
    "signal": ((str,), None),
    "detail": ((str,), ""),
    "started": ((int, float), 0.0),
    "seconds": ((int, float), 0.0),
    "mission": ((str,), ""),
    "parent": ((str,), ""),
    "root": ((str,), ""),
    "stdout": ((str,), None),
    "stderr": ((str,), None),
}


class Remote(NamedTuple):
    """A job of another machine."""

    host: str
    id: str


class Answer(NamedTuple):
    status: Status
    out: bytes
    err: bytes


def hosts(where: str, values: dict[str, object]) -> list[str]:
    """The names that WHERE means; all where it is empty, none where there is no inventory then."""
    from pathlib import Path

    from deploy.inventory import ConfigError, load

    path = find_inventory(values, os.environ)
    if path is None and not where:
        return []
    try:
        known = load(Path(path) if path else None, {})
    except ConfigError as error:
        raise Misconfigured(error.detail, error.hint) from None
    return [host.name for host in known.matching(where)] if where else list(known.hosts)


def listed(names: list[str], values: dict[str, object], tell: bool = True) -> list[dict[str, Any]]:
    """The agents and jobs of these hosts, as `quine ps --json` over there has them. Who does not answer is told of."""
    facts = []
    for host, answer in ask(["ps", "--all", "--json"], names, values).items():
        if answer.status.state != "exited" or answer.status.code:
            if tell:
                said = answer.err.decode(errors="replace").partition("\n")[0].removeprefix("quine: error: ")
                complain(
                    answer.status.detail or plain(said[:LONGEST]) or "no answer", answer.status.hint, host
                )
            continue
        for line in answer.out.splitlines():
            if fact := _fact(line, host):
                facts.append(fact)
    return facts


def find(text: str, where: str, values: dict[str, object]) -> list[Remote]:
    """Where a job is whose id is this or begins so."""
    names = hosts(where, values)
    if where and len(names) == 1:
        return [Remote(names[0], text)]  # it knows better than a list of its
    facts = [fact for fact in listed(names, values) if fact["id"].startswith(text)] if names else []
    for fact in (best := once(facts)):
        rival = next((other for other in facts if _rivals(fact, other)), None)
        if rival:  # one of them lies, and what we would send it (stdin, a signal) is meant for the other
            both = f"{fact['id']} is on {fact['host']} and on {rival['host']}"
            raise Misconfigured(f"{both}, and they tell different things of it", "say which one with --on")
    return [Remote(fact["host"], fact["id"]) for fact in best]


def once(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each id once: where machines share a home, all of them list a job, and one of them knows it."""
    best: dict[str, dict[str, Any]] = {}
    for fact in facts:
        known = best.setdefault(fact["id"], fact)
        if known["state"] == "unknown":
            best[fact["id"]] = fact
    return list(best.values())


def _rivals(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Do two hosts both know a job of this id, and not from the same record in a home that they share?"""
    known = one["id"] == other["id"] and "unknown" not in (one["state"], other["state"])
    return known and any(one[name] != other[name] for name in ("pid", "started", "mission", "root"))


def show(words: list[str], job: Remote, values: dict[str, object]) -> int:
    """Be the face of a verb over there, and leave as it leaves."""
    from quine import run

    return run.show(verb_there([*words, job.id], job.host, values), {})


def call(words: list[str], job: Remote, values: dict[str, object]) -> int:
    """A verb over there, its messages here; its exit status."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        status = client.run(verb_there([*words, job.id], job.host, values), null)
    finally:
        os.close(null)
    if status.detail:
        complain(status.detail, status.hint, job.host)
    if status.state == "signaled" and status.signal:
        from transport.status import die_of

        die_of(status.signal)  # of ours, which was passed on: the verb itself dies of none
    return status.code


# -- asking ----------------------------------------------------------------------------------------


def ask(
    words: list[str], names: list[str], values: dict[str, object], seconds: float = ASK
) -> dict[str, Answer]:
    """The same question to all; each one's answer, in order."""
    starter.connect().close()  # one node, not one try to start it by each of them
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        asked = [_Asked(words, name, values, null) for name in names]
    finally:
        os.close(null)
    deadline = time.monotonic() + seconds
    open_ones = {fd: one for one in asked for fd in one.pipes}
    poll = select.poll()
    for fd in open_ones:
        poll.register(fd, select.POLLIN)
    while open_ones and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            if not open_ones[fd].read(fd):
                poll.unregister(fd)
                del open_ones[fd]
    return {one.host: one.end(seconds) for one in asked}


class _Asked:
    """One host, asked by a child of ours."""

    def __init__(self, words: list[str], host: str, values: dict[str, object], null: int) -> None:
        self.host = host
        ends = [os.pipe() for _ in range(3)]  # what it says, what it complains of, how it ended
        self.pid = os.fork()
        if not self.pid:
            try:
                for read, _ in ends:
                    os.close(read)
                writes = [write for _, write in ends]
                try:
                    status = client.run(verb_there(words, host, values), null, writes[0], writes[1])
                except Refused as refused:
                    status = Status("unreachable", refused.status, detail=refused.detail, hint=refused.hint)
                with open(writes[2], "wb", closefd=False) as file:
                    file.write(quickjson.dumps(status.to_json()).encode())
            finally:
                os._exit(0)
        for _, write in ends:
            os.close(write)
        self._pidfd = os.pidfd_open(self.pid)
        self.pipes = {read: bytearray() for read, _ in ends}

    def read(self, fd: int) -> bool:
        data = os.read(fd, 1 << 16)
        self.pipes[fd] += data
        return bool(data) and len(self.pipes[fd]) <= MOST

    def end(self, seconds: float) -> Answer:
        """What it has answered; who has not is let go."""
        out, err, told = (bytes(data) for data in self.pipes.values())
        for fd in self.pipes:
            os.close(fd)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if poll.poll(0 if not told else STOPS * 1000):
                break
            signal.pidfd_send_signal(self._pidfd, number)
            poll.poll(STOPS * 1000)
        os.close(self._pidfd)
        os.waitpid(self.pid, 0)
        with contextlib.suppress(ValueError):
            return Answer(Status.from_json(quickjson.loads(told)), out, err)
        late = Status(
            "unreachable", NOT_STARTED, detail=f"no answer within {seconds:.0f} s", hint="try again later"
        )
        return Answer(late, b"", b"")


def _fact(line: bytes, host: str) -> dict[str, Any]:
    """One line of its list, {} for what is none."""
    try:
        told = quickjson.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict) or not is_session(told.get("id")):
        return {}
    fact = {name: _taken(told.get(name), types, default) for name, (types, default) in _FIELDS.items()}
    return {**fact, "host": host}


def _taken(value: object, types: tuple[type, ...], default: object) -> object:
    """A value of the right type and of a size that a table can show."""
    if not isinstance(value, types) or isinstance(value, bool):
        return default
    if isinstance(value, str):
        return value[:SHOWN]
    return value if isinstance(value, int | float) and abs(value) <= HUGE else default
