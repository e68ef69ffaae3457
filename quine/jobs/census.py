"""The census: the live agents, jobs and proxies of this machine, whichever directory keeps their tapes.

Laws
1. Nothing is registered, so nothing is stale and no start becomes slower. An agent is a process that has its tape open.
   A job on another machine, or one that waits for a slot, is a connection of its client to a node of this machine.
2. The kernel tells which processes live: each entry has an existing pid, with the start time of that process.
3. Only processes of this user, this home and this runtime directory count: another runtime directory is another login.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from quine.base import procs
from quine.base.errors import complain
from quine.base.sessions import TAPE, is_session
from quine.tape import registry
from quine.tape.index import Index
from quine.tape.registry import Agent
from transport import address, this_build
from transport.errors import Refused
from transport.lean import Any, NamedTuple
from transport.node import rendezvous

ANSWER = 2.0  # seconds for a node to answer
MEMORY = "/memfd:quine-"  # how the name of a memory file of quine begins, in /proc
VERBS = (
    "ps",
    "top",
    "wait",
    "kill",
    "logs",
    "attach",
    "node",
)  # of quine itself, run here for another machine


class Living(NamedTuple):
    """One entry: `state` is running, stopped, queued or connecting; `down` is the seconds its link has been down."""

    agent: Agent
    state: str
    kind: str  # agent, job, proxy
    down: float = 0.0


class Held(NamedTuple):
    """A file of quine that a process has open."""

    pid: int
    path: str  # that opens it anew
    target: str  # its own path, or the name of a memory file


def look(
    folders: tuple[str, ...],
    refused: Callable[[Refused], None] | None = None,
    files: list[Held] | None = None,
) -> list[Living]:
    """Return all that live, except agents with tapes in `folders`: the caller knows those already.

    `refused` is called for each node that does not answer; without it the error goes to stderr. `files` are those of
    `open_files`, if the caller has them.
    """
    held = open_files() if files is None else files
    return [*_agents(folders, held), *_of_nodes(refused or _complain)]


def merge(known: list[Agent], living: list[Living]) -> list[Agent]:
    """Add `living` to the agents found by their tapes. A known agent without a live process gets that of its proxy."""
    by_id = {agent.id: agent for agent in known}
    # After an exec to a host the proxy has the later session.
    first = {agent.session: agent.id for agent in known}
    for one in living:
        before = by_id.get(first.get(one.agent.id, one.agent.id))
        if before is None:
            by_id[one.agent.id] = one.agent
        elif before.verdict().state in ("unknown", "lost"):
            names = ("pid", "started", "boot")
            by_id[before.id] = before._replace(**{name: getattr(one.agent, name) for name in names})
    return list(by_id.values())


# -- agents, by their open tapes ---------------------------------------------------------------------


def _agents(folders: tuple[str, ...], files: list[Held]) -> list[Living]:
    """The agents of this machine whose tapes are in none of `folders`."""
    known = {os.path.realpath(folder) for folder in folders if os.path.isdir(folder)}
    indexes: dict[str, Index] = {}
    found = []
    for pid, _, target in files:
        folder, _, name = target.rpartition("/")
        session = name.removesuffix(TAPE)
        if folder in known or session == name or not is_session(session):
            continue
        index = indexes.get(folder) or indexes.setdefault(folder, Index(folder))
        agent = registry.of(index, session)
        # A reader has a tape open, too; the tape names its writer.
        if agent and agent.pid == pid and agent.alive:
            found.append(Living(agent, "running", "agent"))
    return found


def open_files() -> list[Held]:
    """The tapes and the memory files of quine that processes of this user, home and runtime directory have open."""
    found = []
    ours = _scope(os.environ)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue  # root may look into it, and it would choose what we read
            files = _files_of(name)
            if files and _scope(_environ(name)) == ours:
                found += files
    return found


def _files_of(pid: str) -> list[Held]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        with contextlib.suppress(OSError):
            target = os.readlink(path)
            if target.endswith(TAPE) or target.startswith(MEMORY):
                found.append(Held(int(pid), path, target))
    return found


def _environ(pid: str) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _scope(environ: Any) -> tuple[str, str]:
    """The home and the runtime directory. The login's own counts as "", because cron sets none."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    return address.home(environ), "" if runtime == _of_the_login() else runtime


def _of_the_login() -> str:
    return f"/run/user/{os.getuid()}"


# -- what nodes carry and run ------------------------------------------------------------------------


def _complain(refused: Refused) -> None:
    complain(refused.detail, refused.hint)


def _of_nodes(refused: Callable[[Refused], None]) -> list[Living]:
    return [one for node in _nodes(refused) for one in carried_by(node)]


def carried_by(node: dict[str, Any]) -> list[Living]:
    """Return what a node carries and runs, by its status."""
    found = []
    above = {os.getpid(), *procs.ancestors()}
    for facts in _rows(node, "proxies"):
        if one := _living(facts, facts.get("client"), "proxy"):
            found.append(one)
    for facts in _rows(node, "running"):
        command = str(facts.get("command"))
        verb = facts.get("own") is True and not _wrapping(facts) and command.partition(" ")[0] in VERBS
        if verb or facts.get("ended") or facts.get("pid") in above:
            continue
        if one := _living(facts, facts.get("pid"), "agent" if facts.get("own") else "job"):
            found.append(one)
    return found


def _rows(node: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = node.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _nodes(refused: Callable[[Refused], None]) -> list[dict[str, Any]]:
    """Ask each node of this home for its status, also nodes of other builds."""
    places = {address.runtime_directory()}
    if not _scope(os.environ)[1]:
        places |= {f"{_of_the_login()}/quine-{os.getuid()}", *address.runtime_places()}
    found = []
    for place in sorted(places):
        with contextlib.suppress(OSError):
            if os.lstat(place).st_uid != os.getuid():
                continue
            for name in sorted(os.listdir(place)):
                if name.endswith(".sock") and (node := _ask(f"{place}/{name}", refused)):
                    found.append(node)
    return [node for node in found if node.get("home") == address.home()]


def other_builds() -> str:
    """Return a hint that names the nodes of other builds of this home; "" if there is none."""
    ours = this_build.build_hash()
    pids = [str(node.get("pid")) for node in _nodes(lambda _: None) if node.get("build") != ours]
    if not pids:
        return ""
    return (
        f"nodes of other builds end when they are idle, or by kill {' '.join(pids)}, with their attached jobs"
    )


def _ask(path: str, refused: Callable[[Refused], None]) -> dict[str, Any] | None:
    try:
        return rendezvous.status(path, ANSWER)
    except Refused as silent:
        refused(silent)
    except (OSError, ValueError):
        pass  # it is just ending
    return None


def _wrapping(facts: dict[str, Any]) -> int:
    """Return how many characters of the command are words of quine before those of the user."""
    command, at = str(facts.get("command", "")), 0
    if facts.get("own") is not True:
        return 0
    if command.startswith("node --stage in "):  # its files are laid out before it starts
        at = command.find(" -- ") + len(" -- ") if " -- " in command else 0
    for words in ("run --mount -- ", "-- "):
        at += len(words) if command.startswith(words, at) else 0
    return at


def _living(facts: dict[str, Any], pid: object, kind: str) -> Living | None:
    """Return the entry for a row of a node; None if the process `pid` does not exist."""
    process = procs.look(pid) if isinstance(pid, int) and pid > 0 else None
    if process is None or process.state in "ZX":
        return None
    now = time.time()
    job, command = str(facts.get("id")), str(facts.get("command", ""))
    agent = Agent(
        id=job,
        session=job,
        mission=command[_wrapping(facts) :],
        host=str(facts.get("host") or "local"),
        pid=process.pid,
        started=process.started,
        boot=address.boot_id(),
        begun=now - registry.number(facts.get("seconds")),
        last=now,
        parent="",
        root=str(facts.get("tree", "")),
        directory="",
        outcome=None,
        became="",
    )
    state = str(facts.get("state", "running"))
    if state == "running" and process.state == "T":
        state = "stopped"
    return Living(agent, state, kind, registry.number(facts.get("down")))
