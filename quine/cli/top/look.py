"""The batches, agents and jobs that run, and the totals of trees, for `quine top`.

Laws
1. An ended session is looked at once: later looks cost as much as there is alive, whatever a data directory holds.
2. Nothing is started. A batch publishes its own state (quine/jobs/batch_state.py), a tree has its ledger, all else is
   as `quine ps` reads it.
3. The jobs of a batch are counts in its state; only its agents have rows of their own.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from quine.base import procs
from quine.base.sessions import SHOWN
from quine.budget.shared_counters import LINK, PUT, SharedCounters
from quine.cli.ps_table import facts_of, progress_of
from quine.jobs import batch_state, census, foreign, remote
from quine.jobs.asking import ask
from quine.tape import registry
from quine.tape.registry import ALIVE
from transport import quickjson
from transport.inherit import reopened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from quine.base.cli_options import RunOptions
    from quine.jobs.census import Held
    from quine.jobs.remote import Silent
    from quine.tape.registry import Agent
    from transport.errors import Refused

    Facts = dict[str, Any]
    Progress = tuple[int | None, float | None, str]


class Tree(NamedTuple):
    """The totals of a tree, of its ledger."""

    id: str
    agents: int
    tokens: int
    cost: float


class Found(NamedTuple):
    """The findings of one look; `silent` are the hosts that gave no list, "" for a node of this machine."""

    batches: list[Facts]
    rows: list[Facts]  # as of `quine ps --json`
    trees: dict[str, Tree]
    silent: list[Silent]

    def to_json(self) -> str:
        """One object a line."""
        lines = [{"kind": "batch", **state} for state in self.batches]
        lines += [{"kind": "tree", **tree._asdict()} for tree in self.trees.values()]
        return "".join(quickjson.dumps(line) + "\n" for line in [*lines, *self.rows])


class Looker:
    """Looks again and again; remembers what is over, and what it has read of tapes that did not grow."""

    def __init__(self, folders: tuple[str, ...], options: RunOptions) -> None:
        self._folders = folders
        self._options = options
        self._dead: set[str] = set()  # sessions
        self._read: dict[str, tuple[tuple[int, int], Progress]] = {}

    def look(self) -> Found:
        files = census.open_files()
        read = [batch_state.read(held.path, held.pid) for held in files if held.target == batch_state.LINK]
        states = {state["pid"]: state for state in read if state}  # a child may hold the same file
        batches = [{**state, "stopped": _is_stopped(pid)} for pid, state in states.items()]
        rows, silent = self._rows(files)
        if self._options.elsewhere:
            there, more, others = self._asked()
            mine = {row["id"] for row in rows}
            rows = foreign.once(rows + [row for row in there if row["id"] not in mine])
            batches += more
            silent += others
        return Found(*_folded(batches, rows), _trees(files, rows, batches), silent)

    def _rows(self, files: list[Held]) -> tuple[list[Facts], list[Silent]]:
        """Return the rows of this machine, oldest first."""
        silent: list[Silent] = []

        def refused(why: Refused) -> None:
            silent.append(remote.Silent("", why.detail, why.hint))

        living = census.look(self._folders, refused, files)
        carried = {one.agent.id: one for one in living}
        self._dead -= carried.keys()
        agents = census.merge(registry.perhaps_alive(self._dead, *self._folders), living)
        seen = [(agent, agent.verdict()) for agent in sorted(agents, key=lambda agent: agent.begun)]
        running = {agent.id for agent, end in seen if end.state in ALIVE}
        rows = []
        for agent, end in seen:
            row = facts_of(agent, end, running, carried.get(agent.id), self._progress)
            if row["state"] in ALIVE:
                rows.append(row)
            elif not silent or end.state != "unknown":
                # With a node that is silent, an agent whose proxy it has looks like one that is gone.
                self._dead |= {agent.id, agent.session, *(agent.tapes.lives(agent.id) if agent.tapes else ())}
        return rows, silent

    def _progress(self, agent: Agent) -> Progress:
        """Read a tape anew only if it has grown."""
        if agent.tapes is None or agent.session not in agent.tapes.tapes:
            return None, None, ""
        path = agent.tapes.path(agent.session)
        try:
            found = os.stat(path)
        except OSError:
            return None, None, ""
        stamp = (found.st_size, found.st_mtime_ns)
        before, read = self._read.get(path, ((-1, -1), (None, None, "")))
        if before != stamp:
            read = progress_of(agent)
            self._read[path] = stamp, read
        return read

    def _asked(self) -> tuple[list[Facts], list[Facts], list[Silent]]:
        """Return the rows and the batches of the hosts, and those that gave no list."""
        options = self._options
        rows, batches, silent = [], [], []
        for host, answer in ask(["top", "--json"], remote.hosts(options.on, options), options).items():
            if not answer.whole:
                silent.append(remote.silence(host, answer))
            found, more = parsed(answer.out.split(b"\n"), host)
            rows += found
            batches += more
        return rows, batches, silent


def _is_stopped(pid: int) -> bool:
    process = procs.look(pid)
    return process is not None and process.state in "Tt"


def parsed(lines: Iterable[bytes], host: str) -> tuple[list[Facts], list[Facts]]:
    """Return the rows and the batches that a host has printed; without `host` each names its own."""
    rows, batches = [], []
    for line in lines:
        if len(line) > foreign.LONGEST:
            continue
        if line.startswith(b'{"kind":"batch"'):
            if state := batch_state.parsed(line):
                batches.append({**state, "host": host or state["host"]})
        elif row := foreign.fact_of(line, host):
            rows.append(row if host else {**row, "host": str(quickjson.loads(line).get("host"))[:SHOWN]})
    return [row for row in rows if row["state"] in ALIVE], batches


def trees_of(lines: Iterable[bytes]) -> dict[str, Tree]:
    """Return the totals that `Found.to_json` of this program has printed."""
    told = [quickjson.loads(line) for line in lines if line.startswith(b'{"kind":"tree"')]
    return {one["id"]: Tree(one["id"], one["agents"], one["tokens"], one["cost"]) for one in told}


def _folded(batches: list[Facts], rows: list[Facts]) -> tuple[list[Facts], list[Facts]]:
    """Return the batches, and the rows without those that are counted in a batch or are one."""
    detached = {row["id"]: row for row in rows if row["kind"] == "detached"}
    trees, pids = set(), set()
    shown = []
    for state in sorted(batches, key=lambda state: state["started"]):
        row = detached.get(state["id"])
        shown.append({**state, "command": row["mission"]} if row else state)
        if state["agents"] is None:
            trees.add(state["tree"])
            pids.add((state["host"], state["pid"]))
    ids = {state["id"] for state in batches}
    left = [
        row
        for row in rows
        if row["id"] not in ids and row["root"] not in trees - {""} and not _proxy_of(row, pids)
    ]
    return shown, left


def _proxy_of(row: Facts, pids: set[tuple[str, int]]) -> bool:
    """Whether a row is a job that one of these processes has started: the process stands for it here."""
    return row["kind"] == "proxy" and ("local", row["pid"]) in pids


def _trees(files: list[Held], rows: list[Facts], batches: list[Facts]) -> dict[str, Tree]:
    """Return the totals of the trees of these agents whose origin is this machine."""
    ledgers = {held.pid: held.path for held in files if held.target == LINK}
    found: dict[str, Tree] = {}
    for row in rows:
        root = row["root"] or row["id"]
        if root in found or row["pid"] not in ledgers or row["kind"] == "job":
            continue
        try:
            fd = reopened(ledgers[row["pid"]], os.O_RDONLY, target=LINK)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_size < PUT.end:
                continue  # a command can give its own file this name
            numbers = SharedCounters(fd).numbers()
        finally:
            os.close(fd)
        if not numbers.granted and numbers.born:  # else its origin is another machine
            found[root] = Tree(root, numbers.born, numbers.tokens, round(numbers.cost, 6))
    for state in batches:
        found.pop(state["id"], None)  # it has them itself
    return found
