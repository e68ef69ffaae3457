"""`quine ps`: the agents and jobs that run on this machine, and with --all those that ended; here and on hosts.

Laws
1. Standard library only. A row shows an agent's verdict (quine/tape/registry.py) and its live process
   (quine/jobs/census.py).
2. Text from a tape or a host is untrusted: control characters are shown, never passed to the terminal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time

from quine.base.errors import NOT_STARTED, OK
from quine.base.sessions import SHORT, created
from quine.tape import registry
from quine.tape.registry import ALIVE, Agent
from transport import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from quine.base.cli_options import RunOptions
    from quine.jobs.census import Living
    from quine.jobs.remote import Silent
    from transport.errors import Refused
    from transport.status import Status

MISSION = 60
RECENT = 86_400.0  # seconds since a command was detached on a host, for which it is mentioned
FOLLOW = 1.0  # seconds between two lists of --follow
HEAD = ("ID", "HOST", "PID", "STATE", "EXIT", "SECONDS", "TREE", "TURN", "COST", "DOING", "COMMAND")


def ps(folders: tuple[str, ...], options: RunOptions) -> int:
    """Print the list, once or until a signal. Return 69 if a host, or a node of this machine, gave none."""
    if not options.follow:
        facts, silent = _listed(folders, options)
        _tell(silent)
        _print(facts, options)
        _hint(options)
        return NOT_STARTED if silent else OK
    before: list[dict[str, Any]] = []
    told: list[str] = []
    clear = "\x1b[H\x1b[J" if os.isatty(1) and not options.json else ""
    wiped = clear and os.isatty(2)
    while True:
        facts, silent = _listed(folders, options)
        if clear or _steady(facts) != _steady(before):
            print(clear, end="")
            _print(facts, options)
            print("", end="" if clear or options.json else "\n", flush=True)
        names = [one.host for one in silent]
        if wiped or names != told:
            _tell(silent)
        before, told = facts, names
        time.sleep(FOLLOW)


def _tell(silent: list[Silent]) -> None:
    if silent:
        from quine.jobs import remote

        remote.tell(silent)


def _hint(options: RunOptions) -> None:
    """Say on a terminal where commands were detached of late, which are on the lists of their hosts alone."""
    if options.on or options.json or not os.isatty(2):
        return
    from quine.cli import job_ids

    there = job_ids.detached_on("", options).items()
    late = [host for host, jobs in there for job in jobs if created(job) > time.time() - RECENT]
    if late:
        hosts = ",".join(sorted(set(late)))
        print(f"quine: {len(late)} detached on hosts in the last day: quine ps --on {hosts}", file=sys.stderr)


def _steady(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a list without the field that changes with time alone."""
    return [{name: value for name, value in fact.items() if name != "seconds"} for fact in facts]


def _listed(folders: tuple[str, ...], options: RunOptions) -> tuple[list[dict[str, Any]], list[Silent]]:
    """Return the rows, and the hosts that gave no list; "" stands for a node of this machine."""
    from quine.jobs import census

    silent: list[Silent] = []

    def mute(refused: Refused) -> None:
        from quine.jobs.remote import Silent

        silent.append(Silent("", refused.detail, refused.hint))

    living = census.look(folders, mute)
    # The list of a host is compared with all that is known here, ended jobs too.
    over = options.all or options.elsewhere
    agents = census.merge(registry.everyone(*folders, over=over), living)
    seen = [(agent, agent.verdict()) for agent in sorted(agents, key=lambda agent: agent.begun)]
    running = {agent.id for agent, end in seen if end.state in ALIVE}
    carried = {one.agent.id: one for one in living}
    facts = [facts_of(agent, end, running, carried.get(agent.id)) for agent, end in seen]
    if options.elsewhere:
        from quine.jobs import foreign, remote

        # This machine knows its own jobs better; of a job that is lost here, the host may know more.
        mine = {fact["id"] for fact in facts if fact["state"] not in ("unknown", "lost")}
        there, others = remote.listed(remote.hosts(options.on, options), options)
        silent += others
        stopped = {fact["id"] for fact in there if fact["state"] == "stopped"}
        for fact in facts:
            if fact["id"] in stopped and fact["state"] == "running":
                fact["state"] = "stopped"  # only its host knows that a process over there is stopped
        facts = foreign.once(facts + [fact for fact in there if fact["id"] not in mine])
    return facts if options.all else [fact for fact in facts if fact["state"] in ALIVE], silent


def _print(facts: list[dict[str, Any]], options: RunOptions) -> None:
    if options.json:
        print("".join(quickjson.dumps(fact) + "\n" for fact in facts), end="")
        return
    from quine.base.text import plain, table

    short = {fact["id"][:SHORT] for fact in facts}
    width = SHORT if len(short) == len(facts) else None
    rows = [HEAD]
    for fact in facts:
        mission = plain(fact["mission"], newlines=False)
        mission = mission if len(mission) <= MISSION else mission[: MISSION - 1] + "…"
        state, root, doing, host = (
            plain(str(fact[name] or "")[:MISSION], newlines=False)
            for name in ("state", "root", "doing", "host")
        )
        code, pid, turns = (str(fact[name] or "-") for name in ("code", "pid", "turns"))
        code = "0" if fact["code"] == 0 else code
        turns = "0" if fact["turns"] == 0 else turns
        cost = "-" if fact["cost"] is None else f"{fact['cost']:.4f}"
        doing = f"link down {fact['down']:.0f} s" if fact["down"] else doing or "-"
        cells = (fact["id"][:width], host, pid, state, code, f"{fact['seconds']:.1f}")
        rows.append((*cells, root[:width] or "-", turns, cost, doing, mission))
    text = table(rows, right=(2, 4, 5, 7, 8))
    if sys.stdout.isatty():  # as ps does, so that a row is a line
        wide = shutil.get_terminal_size().columns
        text = "".join(
            f"{line if len(line) <= wide else line[: wide - 1] + '…'}\n" for line in text.splitlines()
        )
    print(text, end="")


def facts_of(
    agent: Agent,
    end: Status,
    running: set[str],
    one: Living | None,
    progress: Callable[[Agent], tuple[int | None, float | None, str]] | None = None,
) -> dict[str, Any]:
    """Return the row of an agent or a job whose verdict is `end`; `running` are the ids of those that run.

    `one` is its live process, and `progress` returns the turns, the cost and what an agent is doing.
    """
    if end.state == "unknown" and agent.parent in running:
        end.state = "running"  # on another node, and its parent holds its proxy
    if end.state == "running" and one:
        end.state = one.state
    alive = end.state in ALIVE
    known = not alive and end.state != "unknown"
    last = agent.last if alive or not agent.supervisor else _written(agent)
    turns, cost, doing = (progress or progress_of)(agent) if alive else (None, None, "")
    return {
        "id": agent.id,
        "session": agent.session,
        "kind": one.kind if one else "detached" if agent.supervisor else "agent",
        "pid": agent.pid,
        "host": one.agent.host if one else agent.host,
        "state": end.state,
        "code": end.code if known else None,
        "signal": (end.signal or None) if known else None,
        "detail": end.detail if known else "",
        "started": agent.begun,
        "seconds": round(max(0.0, (time.time() if alive else last) - agent.begun), 3),
        "turns": turns,
        "cost": cost,
        "doing": doing,
        "down": one.down if one else 0,
        "mission": agent.mission,
        "parent": agent.parent,
        "root": agent.root,
        "stdout": os.path.join(agent.directory, "stdout") if agent.directory else None,
        "stderr": os.path.join(agent.directory, "stderr") if agent.directory else None,
    }


def progress_of(agent: Agent) -> tuple[int | None, float | None, str]:
    if agent.tapes is None or agent.session not in agent.tapes.tapes:
        return None, None, ""
    from quine.tape.progress import progress

    return progress(agent.tapes.path(agent.session))


def _written(agent: Agent) -> float:
    """Return when a detached job's supervisor recorded its end, or else the time of its last output."""
    for name in ("status", "stdout"):
        with contextlib.suppress(OSError):
            return os.stat(os.path.join(agent.directory, name)).st_mtime
    return agent.last
