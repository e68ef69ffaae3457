"""The verbs ps, wait, logs and kill: the agents of this machine that left a tape or a job directory.

Laws
1. Standard library only: these are called in loops. Options may stand before and after the ids.
2. Nothing is done to a pid: who is waited for or signalled is held by a pidfd (quine/roster.py).
3. All ids are known before anything is done, or nothing is done: an unknown or an ambiguous one is exit 2.
"""

from __future__ import annotations

import contextlib
import os
import select
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
    from typing import Any

SHORT = 18  # characters of an id in a table: the time in it, and enough of what is random
MISSION = 60
INTERVAL = 200  # milliseconds between two looks at a growing file
WRITTEN = 0.5  # seconds for its parent to write down how a child ended, after it has reaped it
CHUNK = 1 << 18
WAKING = (signal.SIGTERM, signal.SIGHUP)  # a stopped process takes them when it goes on, so it is let go on


def main(verb: str, words: list[str]) -> int:
    """One of the verbs; the exit status."""
    if verb == "kill":
        words = _signal_as_option(words)
    values, ids = _parse(verb, words)
    if values.get("help"):
        print(usage(verb))
        return OK
    folder = os.path.expanduser(str(values.get("data_dir") or os.environ.get("QUINE_DATA_DIR") or ".quine"))
    if verb == "ps":
        if ids:
            raise Misconfigured("ps takes no id", "quine ps --all")
        return _ps(folder, values)
    if verb == "kill" and values.get("list"):
        return _list_signals(ids)
    if not ids:
        raise Misconfigured("no id", f"quine ps --all; quine {verb} ID")
    if verb == "logs":
        if len(ids) > 1:
            raise Misconfigured("logs takes one id")
        return _logs(_one(folder, ids[0]), values)
    agents = [_one(folder, text) for text in ids]
    return _wait(agents, values) if verb == "wait" else _kill(agents, str(values.get("signal", "TERM")))


def _parse(verb: str, words: list[str]) -> tuple[dict[str, object], list[str]]:
    """Options on either side of the ids: no id begins with a dash."""
    values, rest = parse(verb, words)
    ids = []
    while rest:
        ids.append(rest[0])
        more, rest = parse(verb, rest[1:])
        values |= more
    return values, ids


def _one(folder: str, text: str) -> Agent:
    """The agent that an id or its beginning means."""
    found = roster.find(folder, text) if text else []
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(agent.id for agent in found[:3])
        raise Misconfigured(
            f"{len(found)} jobs begin with {text}", f"{some}{', …' if len(found) > 3 else ''}"
        )
    near = sorted(
        roster.everyone(folder), key=lambda agent: (_common(agent.id, text), agent.begun), reverse=True
    )
    hint = f"known are {', '.join(agent.id for agent in near[:3])}{', …' if len(near) > 3 else ''}"
    raise Misconfigured(f"no such job: {text}", hint if near else f"{folder} has none; see --data-dir")


def _common(one: str, other: str) -> int:
    """How many characters two ids share at their beginning."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


# -- ps --------------------------------------------------------------------------------------------


def _ps(folder: str, values: dict[str, object]) -> int:
    agents = roster.everyone(folder)
    running = {agent.id for agent in agents if agent.alive}
    facts = [_facts(agent, running) for agent in agents]
    if not values.get("all"):
        facts = [fact for fact in facts if fact["state"] in ("running", "stopped")]
    if values.get("json"):
        print("".join(quickjson.dumps(fact) + "\n" for fact in facts), end="")
        return OK
    from quine.text import plain

    short = {fact["id"][:SHORT] for fact in facts}
    width = SHORT if len(short) == len(facts) else None
    rows = [("ID", "HOST", "PID", "STATE", "EXIT", "SECONDS", "MISSION")]
    for fact in facts:
        mission = plain(fact["mission"], newlines=False)
        mission = mission if len(mission) <= MISSION else mission[: MISSION - 1] + "…"
        code = "-" if fact["code"] is None else str(fact["code"])
        host = plain(fact["host"][:MISSION], newlines=False)
        pid = str(fact["pid"] or "-")
        rows.append((fact["id"][:width], host, pid, fact["state"], code, f"{fact['seconds']:.1f}", mission))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        cells = [
            c.rjust(w) if n in (2, 4, 5) else c.ljust(w)
            for n, (c, w) in enumerate(zip(row, widths, strict=False))
        ]
        print("  ".join([*cells, row[6]]).rstrip())
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
        "seconds": round(max(0.0, (time.time() if alive else agent.last) - agent.begun), 3),
        "mission": agent.mission,
        "parent": agent.parent,
        "root": agent.root,
        "stdout": os.path.join(agent.directory, "stdout") if agent.directory else None,
        "stderr": os.path.join(agent.directory, "stderr") if agent.directory else None,
    }


# -- wait ------------------------------------------------------------------------------------------


def _wait(agents: list[Agent], values: dict[str, object]) -> int:
    """The exit status of the last, as the shell's wait."""
    seconds = _seconds(values)
    above = _ancestors()
    for agent in agents:
        if agent.alive and agent.pid in above:
            raise Misconfigured(f"{agent.id} waits for this command, so it cannot be waited for by it")
    pidfds = [fd for agent in agents if (fd := agent.hold()) >= 0]
    try:
        if not procs.wait(pidfds, seconds):
            return DEADLINE
    finally:
        for fd in pidfds:
            os.close(fd)
    status = OK
    for agent in agents:
        end = _end(agent)
        status = end.code
        if end.state not in ("exited", "signaled"):
            complain(f"{agent.id}: {end.state}{': ' + end.detail if end.detail else ''}")
    return status


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


# -- logs ------------------------------------------------------------------------------------------


def _logs(agent: Agent, values: dict[str, object]) -> int:
    """What a job printed, from an offset on; with --follow to the job's end."""
    if not agent.directory:
        raise Failure(
            FAILED, f"the output of {agent.id} is not kept", "only that of children nobody waits for is"
        )
    offset = _offset(values)
    both, err = bool(values.get("both")), bool(values.get("stderr"))
    if both and (err or offset):
        raise Misconfigured("--both goes with neither --stderr nor --offset")
    wanted = [("stdout", 1), ("stderr", 2)] if both else [("stderr" if err else "stdout", 1)]
    with contextlib.ExitStack() as stack:
        opened = []
        for name, target in wanted:
            try:
                file = stack.enter_context(open(os.path.join(agent.directory, name), "rb", 0))
            except OSError as error:
                raise Failure(FAILED, f"{name} of {agent.id}: {(error.strerror or '').lower()}") from None
            file.seek(offset)
            opened.append((file.fileno(), target))
        pidfd = agent.hold() if values.get("follow") else -1
        if pidfd >= 0:
            stack.callback(os.close, pidfd)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            going = True
            while going:
                for source, target in opened:
                    _copy(source, target)
                going = not poll.poll(INTERVAL)
        for source, target in opened:
            _copy(source, target)
    return OK


def _offset(values: dict[str, object]) -> int:
    text = str(values.get("offset", "0"))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Misconfigured(f"--offset must be a number of bytes, not {text}")
    return int(text)


def _copy(source: int, target: int) -> None:
    while data := os.read(source, CHUNK):
        while data:
            data = data[os.write(target, data) :]


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


def _kill(agents: list[Agent], name: str) -> int:
    try:
        number = 0 if name == "0" else signal_number(name)
    except ValueError as error:
        raise Misconfigured(str(error), "quine kill -l") from None
    status = OK
    for agent in agents:
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
