"""The verbs ps, wait, logs, kill and attach: agents that left a tape, jobs that left a directory, here and elsewhere.

Laws
1. Standard library only: these are called in loops. Options may stand before and after the ids.
2. Nothing is done to a pid: who is waited for or signalled is held by a pidfd (quine/roster.py), or by its supervisor.
3. All ids are known before anything is done, or nothing is done: an unknown or an ambiguous one is exit 2.
4. What is not here is looked for on the hosts of the inventory; the verb is then run over there (quine/elsewhere.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from quine import procs, roster
from quine.exits import DEADLINE, FAILED, LOST, OK, Failure, Misconfigured, complain
from quine.options import parse, usage
from quine.roster import Agent
from transport import quickjson
from transport.status import Status, signal_name, signal_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from quine.elsewhere import Remote

SHORT = 18  # characters of an id in a table: the time in it, and enough of what is random
MISSION = 60
WRITTEN = 0.5  # seconds for its parent to write down how a child ended, after it has reaped it
WAKING = (signal.SIGTERM, signal.SIGHUP)  # a stopped process takes them when it goes on, so it is let go on


def main(verb: str, words: list[str]) -> int:
    """One of the verbs; the exit status."""
    if verb == "kill":
        words = _signal_as_option(words)
    values, ids = _parse(verb, words)
    if values.get("help"):
        print(usage(verb))
        return OK
    folders = _folders(values)
    if verb == "ps":
        if ids:
            raise Misconfigured("ps takes no id", "quine ps --all")
        return _ps(folders, values)
    if verb == "kill" and values.get("list"):
        return _list_signals(ids)
    if not ids:
        raise Misconfigured("no id", f"quine ps --all; quine {verb} ID")
    if verb in ("logs", "attach"):
        if len(ids) > 1:
            raise Misconfigured(f"{verb} takes one id")
        return _face(verb, _one(folders, ids[0], values), values)
    jobs = [_one(folders, text, values) for text in ids]
    return _wait(jobs, values) if verb == "wait" else _kill(jobs, values)


def _folders(values: dict[str, object]) -> tuple[str, ...]:
    """Where tapes are, and where detached jobs are."""
    named = str(values.get("data_dir") or os.environ.get("QUINE_DATA_DIR") or ".quine")
    folder, state = os.path.expanduser(named), roster.state_directory()
    try:
        same = os.path.realpath(folder) == os.path.realpath(state)
    except OSError:
        same = False  # the current directory has been removed, and with it what was there
    return (folder,) if same else (folder, state)


def _face(verb: str, job: Agent | Remote, values: dict[str, object]) -> int:
    """logs or attach, here or over there."""
    if not isinstance(job, Agent):
        from quine import elsewhere

        words = [verb]
        for name in ("from", "offset", "follow", "stderr", "both", "stdin"):
            if name in values:
                words.append(f"--{name}" if values[name] is True else f"--{name}={values[name]}")
        return elsewhere.show(words, job, values)
    from quine import attach, run

    if verb == "logs":
        return attach.logs(job, values)
    return run.leave(attach.attach(job, values))


def _parse(verb: str, words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Options on either side of the ids: no id begins with a dash."""
    values, rest = parse(verb, words)
    ids = []
    while rest:
        ids.append(rest[0])
        more, rest = parse(verb, rest[1:])
        values |= more
    return values, ids


def _one(folders: tuple[str, ...], text: str, values: dict[str, object]) -> Agent | Remote:
    """The job that an id or its beginning means."""
    where = str(values.get("on", ""))
    found: list[Agent | Remote] = []
    away: Failure | None = None
    if where in ("", "local") and text:
        found += roster.find(text, *folders)
    if not found and where == "" and _may_be_an_id(text):
        from quine import keeping

        if keeping.wanted(os.environ):
            from quine import kept

            try:
                found += kept.find(text)
            except Failure as failure:
                away = failure  # it may be on a host all the same
    # One that is supervised on another machine with the same home lies here, too; that machine knows it better.
    strange = (
        len(found) == 1 and isinstance(found[0], Agent) and found[0].supervisor and not found[0].known_here
    )
    if (not found or strange) and _may_be_an_id(text) and where != "local":
        from quine import elsewhere

        found = [*elsewhere.find(text, where, values)] or found
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(job.id for job in found[:3])
        raise Misconfigured(
            f"{len(found)} jobs begin with {text}", f"{some}{', …' if len(found) > 3 else ''}"
        )
    if away:
        raise away
    near = sorted(
        roster.everyone(*folders), key=lambda agent: (_common(agent.id, text), agent.begun), reverse=True
    )
    hint = f"known are {', '.join(agent.id for agent in near[:3])}{', …' if len(near) > 3 else ''}"
    raise Misconfigured(f"no such job: {text}", hint if near else _nowhere(folders[0]))


def _nowhere(folder: str) -> str:
    """Where was looked, for who has no job of his own here."""
    from quine import keeping

    if keeping.wanted(os.environ):
        return (
            f"{folder} has none, and the files tier not this one; one that has just begun is there in seconds"
        )
    return f"{folder} has none; see --data-dir, and QUINE_FS for what another machine has begun"


def _may_be_an_id(text: str) -> bool:
    """Nobody else is asked for what no id begins with."""
    return 0 < len(text) <= 36 and all(c in "0123456789abcdef-" for c in text)


def _common(one: str, other: str) -> int:
    """How many characters two ids share at their beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


# -- ps --------------------------------------------------------------------------------------------


def _ps(folders: tuple[str, ...], values: dict[str, object]) -> int:
    agents = roster.everyone(*folders)
    running = {agent.id for agent in agents if agent.alive}
    facts = [_facts(agent, running) for agent in agents]
    if values.get("on", "local") != "local":
        from quine import elsewhere

        facts = elsewhere.once(facts + elsewhere.listed(elsewhere.hosts(str(values["on"]), values), values))
    if not values.get("all"):
        facts = [fact for fact in facts if fact["state"] in ("running", "stopped")]
    if values.get("json"):
        print("".join(quickjson.dumps(fact) + "\n" for fact in facts), end="")
        return OK
    from quine.text import plain

    short = {fact["id"][:SHORT] for fact in facts}
    width = SHORT if len(short) == len(facts) else None
    rows = [("ID", "HOST", "PID", "STATE", "EXIT", "SECONDS", "TREE", "COMMAND")]
    for fact in facts:
        mission = plain(fact["mission"], newlines=False)
        mission = mission if len(mission) <= MISSION else mission[: MISSION - 1] + "…"
        code = "-" if fact["code"] is None else str(fact["code"])
        host = plain(fact["host"][:MISSION], newlines=False)
        pid = str(fact["pid"] or "-")
        state, root = (plain(fact[name], newlines=False) for name in ("state", "root"))
        seconds = f"{fact['seconds']:.1f}"
        rows.append((fact["id"][:width], host, pid, state, code, seconds, root[:width] or "-", mission))
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        cells = [
            c.rjust(w) if n in (2, 4, 5) else c.ljust(w)
            for n, (c, w) in enumerate(zip(row, widths, strict=False))
        ]
        print("  ".join([*cells, row[7]]).rstrip())
    return OK


def _facts(agent: Agent, running: set[str]) -> dict[str, Any]:
    state = agent.state()
    end: Status | None = None
    if state == "unknown" and agent.parent in running:
        state = "running"  # on another node, and its parent holds its face
    if state not in ("running", "stopped", "unknown"):
        end = agent.end()
        state = end.state
    alive = state in ("running", "stopped")
    last = agent.last if alive or not agent.supervisor else _written(agent)
    return {
        "id": agent.id,
        "session": agent.session,
        "pid": agent.pid,
        "host": agent.host,
        "state": state,
        "code": end.code if end else None,
        "signal": (end.signal or None) if end else None,
        "detail": end.detail if end else "",
        "started": agent.begun,
        "seconds": round(max(0.0, (time.time() if alive else last) - agent.begun), 3),
        "mission": agent.mission,
        "parent": agent.parent,
        "root": agent.root,
        "stdout": os.path.join(agent.directory, "stdout") if agent.directory else None,
        "stderr": os.path.join(agent.directory, "stderr") if agent.directory else None,
    }


def _written(agent: Agent) -> float:
    """When a detached job's supervisor wrote down its end, or else its last output."""
    for name in ("status", "stdout"):
        with contextlib.suppress(OSError):
            return os.stat(os.path.join(agent.directory, name)).st_mtime
    return agent.last


# -- wait ------------------------------------------------------------------------------------------


def _wait(jobs: list[Agent | Remote], values: dict[str, object]) -> int:
    """The exit status of the last, as the shell's wait."""
    deadline = time.monotonic() + _seconds(values)
    above = _ancestors()
    agents = [job for job in jobs if isinstance(job, Agent)]
    for agent in agents:
        if agent.alive and agent.pid in above:
            raise Misconfigured(f"{agent.id} waits for this command, so it cannot be waited for by it")
    bring = _bringer(agents, values)
    pidfds = [fd for agent in agents for fd in agent.holds()]
    try:
        if not procs.wait(pidfds, max(0.0, deadline - time.monotonic())):
            return DEADLINE
    finally:
        for fd in pidfds:
            os.close(fd)
    status = OK
    for job in jobs:
        if not isinstance(job, Agent):
            from quine import elsewhere

            left = max(0.0, deadline - time.monotonic())
            status = elsewhere.call(
                ["wait", f"--timeout={left}"] if left < procs.LONGEST else ["wait"], job, values
            )
            if status == DEADLINE and time.monotonic() >= deadline:
                return DEADLINE
            status = bring(job, status)
            continue
        if job.kept:
            from quine import kept

            try:
                over = kept.ended(job, deadline)
            except Failure as silent:
                complain(silent.detail, silent.hint)
                status = silent.status
                continue
            if over is None:
                return DEADLINE
            job = over
        end = _end(job)
        status = end.code
        if end.state not in ("exited", "signaled"):
            complain(f"{job.id}: {end.state}{': ' + end.detail if end.detail else ''}")
        status = bring(job, status)
    return status


def _bringer(agents: list[Agent], values: dict[str, object]) -> Callable[[Agent | Remote, int], int]:
    """What brings --returns of a job that has ended with a status, and makes it 1 where it was 0 and that failed."""
    returns = values.get("returns")
    if not isinstance(returns, list):
        return lambda _, code: code
    for agent in agents:
        if not agent.supervisor:
            raise Misconfigured(f"--returns: {agent.id} is not detached", "an agent has --returns of its own")
    from quine.detach import verb_there
    from quine.run import mover

    stage = mover([], returns)

    def bring(job: Agent | Remote, code: int) -> int:
        status = Status("exited", code)
        if isinstance(job, Agent):
            host, out = "local", verb_there(stage.out, "local", values)
            out.cwd = str(roster.record(job.directory).get("cwd"))
            if os.path.realpath(out.cwd) == os.path.realpath(os.getcwd()):
                return code  # all of it is here
        else:
            host, out = job.host, verb_there([*stage.out, job.id], job.host, values)
        ended = stage.bring(out, status)
        if status.detail:
            complain(status.detail, status.hint, host)
        if ended in ("INT", "TERM", "HUP"):
            from transport.status import die_of

            die_of(ended)  # of ours, which was passed on: who ends us wants none of the other jobs
        return status.code

    return bring


def _end(agent: Agent) -> Status:
    """How it ended; its parent may be about to write that down."""
    deadline = time.monotonic() + WRITTEN
    while (end := agent.end()).code == LOST and agent.known_here and time.monotonic() < deadline:
        time.sleep(0.01)
    return end


def _seconds(values: dict[str, object]) -> float:
    text = str(values.get("timeout", "inf"))
    try:
        seconds = float(text)
        if seconds >= 0:
            return seconds
    except ValueError:
        pass
    raise Misconfigured(f"--timeout must be a number of seconds, not {text}")


def _ancestors() -> set[int]:
    pids: set[int] = set()
    process = procs.look(os.getpid())
    while process and process.ppid not in pids:
        pids.add(process.ppid)
        process = procs.look(process.ppid)
    return pids


# -- kill ------------------------------------------------------------------------------------------


def _signal_as_option(words: list[str]) -> list[str]:
    """`-TERM` and `-9` as kill(1) has them."""
    word = words[0] if words else ""
    if word.startswith("-") and (word == "-0" or _known(word[1:])):
        return ["-s", word[1:], *words[1:]]
    return words


def _known(name: str) -> bool:
    try:
        return bool(signal_number(name))
    except ValueError:
        return False


def _kill(jobs: list[Agent | Remote], values: dict[str, object]) -> int:
    name = str(values.get("signal", "TERM"))
    try:
        number = 0 if name == "0" else signal_number(name)
    except ValueError as error:
        raise Misconfigured(str(error), "quine kill -l") from None
    status = OK
    for agent in jobs:
        if not isinstance(agent, Agent):
            from quine import elsewhere

            status = elsewhere.call(["kill", "-s", name], agent, values) or status
            continue
        fd = agent.hold()
        if fd >= 0 and agent.supervised and number:
            from quine import attach

            os.close(fd)
            if attach.send_signal(agent, number):
                continue
            fd = agent.hold()
        if fd < 0:
            complain(f"{agent.id}: {'it has ended' if agent.known_here else 'its process is not known here'}")
            status = FAILED
            continue
        try:
            stopped = agent.state() == "stopped"
            signal.pidfd_send_signal(fd, number)
            if number in WAKING and stopped:
                signal.pidfd_send_signal(fd, signal.SIGCONT)
        except OSError as error:
            complain(f"{agent.id}: {(error.strerror or '').lower()}")
            status = FAILED
        finally:
            os.close(fd)
    return status


def _list_signals(names: list[str]) -> int:
    """All names, or for each number (an exit status over 128, too) its name and for each name its number."""
    if not names:
        print(" ".join(signal_name(number) for number in sorted(signal.valid_signals()) if number < 32))
        return OK
    for name in names:
        try:
            if name.isdigit():
                print(signal_name(signal_number(str(int(name) - 128 if int(name) > 128 else int(name)))))
            else:
                print(signal_number(name))
        except ValueError as error:
            raise Misconfigured(str(error), "quine kill -l") from None
    return OK
