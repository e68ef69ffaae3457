"""The registry of agents and detached jobs: found by their tapes and job directories; the kernel tells which live.

An agent is a process with one or more sessions: exec begins a new session in the same process. The id of an agent is
its first session, the id that fork gave; any later session finds the agent too.

Laws
1. A pid alone identifies no process. It counts together with the recorded start time and boot, and a pidfd holds the
   process before anything is done to it. A pid that a host told, or a process of another pid namespace, names no
   process here, even if all of these agree: the agent is reached through its proxy (quine/jobs/census.py).
2. How an agent ended has one answer, `Agent.verdict`, which each verb uses. The sources in their order: the status
   file of its job, the kernel (a zombie), the tape of its parent, its own tape. If the process is gone and no source
   tells, the agent is lost. If it never was a process of this machine, it is unknown.
   A detached job is over when its supervisor has ended: the supervisor writes the status, after the last of the output.
   If it has written none, the job is lost whatever else tells of its process: nothing shows that its output is whole.
3. A data directory is foreign: a value need not have the type that quine writes, and none becomes a path.
4. Each tape is opened at most once, however many sessions a process has (quine/tape/index.py).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from quine.base import procs
from quine.base.messages import DEEPEST, too_deep
from quine.base.sessions import JOB, job_directory
from quine.tape.index import Index, is_at_home
from quine.tape.lines import TOLD_BY
from transport import quickjson
from transport.address import boot_id, pid_space
from transport.address import state_directory as state_directory
from transport.lean import contextlib
from transport.provenance import regular_file, safe_path
from transport.status import LOST, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

RECORD = 16 << 20  # bytes of the record, the status or the report of a job
ALIVE = ("running", "stopped", "queued", "connecting")  # the states of jobs that have not ended


class Agent(NamedTuple):
    id: str
    session: str  # the last one
    mission: str
    host: str
    pid: int
    started: int  # ticks since boot
    boot: str  # "" if the pid is none of this machine and pid namespace
    begun: float
    last: float  # the time of the last entry
    parent: str
    root: str
    directory: str  # of the job, with its output; "" if there is none
    outcome: dict[str, Any] | None
    became: str  # the end of its tape, if an exec started another program
    supervisor: int = 0  # of a detached job, 0 for others
    supervisor_started: int = 0
    node: str = ""  # the machine it was detached on
    kept: bool = False  # found in the shared files, perhaps of another machine
    elsewhere: bool = False  # its tape says that it ran on another machine than its parent
    tapes: Index | None = None  # of the directory that it was found in

    @property
    def process(self) -> procs.Process | None:
        """The process, also as a zombie; None if it is gone or not of this machine."""
        if self.boot != boot_id() or self.pid <= 0:
            return None
        process = procs.look(self.pid)
        return process if process and process.started == self.started else None

    @property
    def supervised(self) -> bool:
        """Whether it is a detached job whose supervisor lives. Then it is not over, even without its process."""
        if self.boot != boot_id() or self.supervisor <= 0:
            return False
        return lives(self.supervisor, self.supervisor_started)

    @property
    def alive(self) -> bool:
        process = self.process
        return process is not None and process.state not in "ZX"

    @property
    def known_here(self) -> bool:
        if self.supervisor:
            # also before the last boot: then it is known to be lost
            return bool(self.boot) and self.node == os.uname().nodename
        return self.boot == boot_id() and self.pid > 0

    def hold(self) -> int:
        """Return a pidfd, -1 if the process has ended."""
        return held(self.pid, self.started) if self.boot == boot_id() else -1

    def holds(self) -> list[int]:
        """Return pidfds of the processes to wait for until it is over and its status is written."""
        found = [self.hold()]
        if self.boot == boot_id():
            found.append(held(self.supervisor, self.supervisor_started))
        return [fd for fd in found if fd >= 0]

    def state(self) -> str:
        """running, stopped, or how it ended."""
        return self.verdict().state

    def verdict(self) -> Status:
        """Return its status: running or stopped with code 0, unknown, or a state in which a job ends."""
        process = self.process
        if process is not None and process.state not in "ZX":
            return Status("stopped" if process.state in "Tt" else "running", 0, pid=self.pid)
        told = self._status_file()
        if told is None and self.supervised:
            return Status("running", 0, pid=self.pid)
        return told or self._end(process)

    def end(self) -> Status:
        """Return how an agent that is not alive ended; unknown becomes lost."""
        end = self._status_file() or self._end(self.process)
        if end.state == "unknown":
            end.state = "lost"
        return end

    def _end(self, process: procs.Process | None) -> Status:
        if self.supervisor and self.known_here:
            return self._status_file() or self._lost()  # it may have been written just now
        if process and (word := procs.exit_word(process.pid)) is not None:
            return Status.from_wait(word)
        if told := self._by_parent() or self._on_tape():
            return told
        if not self.known_here:
            where = (
                f"on {self.host}" if self.host != "local" else "on another machine or before the last boot"
            )
            return Status("unknown", LOST, detail=f"it was started {where}; its process is not known here")
        return self._lost()

    def _lost(self) -> Status:
        what = f"it was {self.became}" if self.became else "neither its tape nor a status tells how it ended"
        if self.supervisor:
            what = "the machine was restarted" if self.boot != boot_id() else "its supervisor was killed"
        return Status("lost", LOST, detail=f"process {self.pid} is gone; {what}")

    def _by_parent(self) -> Status | None:
        """Return its end as its parent recorded it; None if its own tape suffices.

        The tape of an agent that was killed, or ran elsewhere, may lack the end or tell less than the parent saw.
        """
        if not self.tapes or not self.parent or (self.outcome and not self.elsewhere):
            return None
        return self.tapes.children_ended(self.parent).get(self.id)

    def _on_tape(self) -> Status | None:
        data = self.outcome
        if data is None:
            return None
        code, number = data.get("exit_code"), data.get("signal")
        if type(code) is not int or not 0 <= code <= 255:
            return None
        if type(number) is int and number > 0:
            with contextlib.suppress(
                ValueError
            ):  # the tape may be that of a host, and no process ends by this number
                return Status.from_json({"state": "signaled", "code": code, "signal": str(number)})
            return None
        return Status("exited", code)

    def _status_file(self) -> Status | None:
        if self.directory:
            with contextlib.suppress(OSError, ValueError, TypeError):
                told = dict(_json(os.path.join(self.directory, "status")))
                told.pop("stopped", None)
                end = Status.from_json(told)
                end = self._reported(end) if end.state == "exited" and end.code else end
                # Any process of this user can write the file, and a session that has a tape has started.
                never = end.state in ("unreachable", "denied")
                return None if never and self.tapes and self.id in self.tapes.tapes else end
        return None

    @property
    def stopped(self) -> bool:
        """Whether a detached job has ended after its supervisor had told it to, for a signal or its --deadline."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return _json(os.path.join(self.directory, "status")).get("stopped") is True
        return False

    def _reported(self, end: Status) -> Status:
        """Return the end of a proxy: its exit status, or the report's, if the agent is lost or never started."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            told = _json(os.path.join(self.directory, "report"))
            fields = {name: told[name] for name in ("state", "code", "host", "detail")}
            status = Status.from_json({**fields, "hint": told.get("hint", "")})
            if status.state in ("lost", "unreachable", "denied") and status.code == end.code:
                return status
        return end


def everyone(*folders: str, over: bool = True) -> list[Agent]:
    """All agents and jobs of these directories, oldest first; `over` as in `find`."""
    return sorted(find("", *folders, over=over), key=lambda agent: agent.begun)


def find(text: str, *folders: str, over: bool = True) -> list[Agent]:
    """Return the agents and jobs with a session that begins with `text`.

    Without `over`, agents whose tape tells their end are left out: nine of ten in a directory.
    """
    return _found(lambda session: session.startswith(text), folders, over)


def perhaps_alive(dead: set[str], *folders: str) -> list[Agent]:
    """Return the agents and jobs that may be alive.

    The sessions in `dead` are not looked at. Those whose tape tells their end are added to it, so that whoever asks
    again and again reads each of them once.
    """
    return _found(lambda session: session not in dead, folders, False, dead)


def having(sessions: Collection[str], *folders: str) -> list[Agent]:
    """Return the agents and jobs that have one of these sessions."""
    return _found(sessions.__contains__, folders, True)


def _found(
    wanted: Callable[[str], bool], folders: tuple[str, ...], over: bool, dead: set[str] | None = None
) -> list[Agent]:
    """Of a detached agent one directory has the tape, another the process, the output and the status."""
    found: dict[str, Agent] = {}
    indexes = [Index(folder) for folder in folders]
    jobs = set[str]().union(*(index.jobs for index in indexes))
    pids = frozenset() if over else procs.pids()
    for index in indexes:
        named = sorted(filter(wanted, index.tapes | index.jobs))
        for first in dict.fromkeys(index.lives(one)[0] for one in named):
            if not over and first not in jobs and _is_over(index, first, pids):
                if dead is not None:
                    dead.update(index.lives(first))
                continue
            agent = load(index, first)
            if agent is None:
                continue
            known = found.setdefault(agent.id, agent)
            if known is not agent and agent.supervisor and not known.supervisor:
                names = ("pid", "started", "boot", "directory", "supervisor", "supervisor_started", "node")
                found[agent.id] = known._replace(**{name: getattr(agent, name) for name in names})
    return list(found.values())


def _is_over(index: Index, first: str, pids: frozenset[int]) -> bool:
    """Return whether its tape tells the end, and no process has its pid."""
    latest = index.ends(index.lives(first)[-1])
    data = latest.last.get("data", {}) if latest.last.get("type") == "outcome" else {}
    told = type(data.get("exit_code")) is int and data.get("termination_mode") != "exec"
    return told and latest.meta.get("pid") not in pids


def fresh(agent: Agent, *folders: str) -> Agent:
    """Read the same agent again: it may have ended since, or have begun another session."""
    own = [agent.tapes.folder] if agent.tapes else []
    found = find(agent.id, *dict.fromkeys([*folders, *own]))
    return next((one for one in found if one.id == agent.id), agent)


def of(index: Index, session: str) -> Agent | None:
    """Return the agent that has or had this session, as one directory knows it; None if nothing can be read of it."""
    return load(index, index.lives(session)[0])


def load(index: Index, first: str) -> Agent | None:
    """Return the agent whose first session is `first`; None if nothing can be read of it."""
    lives = index.lives(first)
    meta, latest = index.ends(first).meta, index.ends(lives[-1]).meta
    entry = index.ends(lives[-1]).last
    directory = job_directory(index.folder, first) if first in index.jobs else ""
    directory = directory if directory and is_own(directory) else ""
    job = record(directory) if directory else {}
    if not meta and not job:
        return None
    data = entry.get("data") if entry.get("type") == "outcome" else None
    over = isinstance(data, dict) and data.get("termination_mode") == "exec"
    # A remote child's tape names a remote process; its job record names the proxy, a local process. So does the tape of
    # a session before an exec to another machine: the process stays, as the face of the next session.
    who = job if job.get("started") else _of_here(index, lives)
    # Before its process is started a detached job has its supervisor alone.
    boot = job if job.get("supervisor") else who
    begun = number(meta.get("ts"))
    parent = str(meta.get("parent_session_id") or job.get("parent") or "")
    above = index.ends(parent).meta
    return Agent(
        id=first,
        session=lives[-1],
        mission=str(meta.get("mission") or job.get("intent") or ""),
        host=str(job.get("host") or latest.get(TOLD_BY) or latest.get("node") or "local"),
        pid=integer(who.get("pid")),
        started=integer(who.get("started")),
        boot=_boot(boot),
        begun=begun or number(job.get("begun")),
        last=number(entry.get("ts")) or begun,
        parent=parent,
        root=str(meta.get("root_session_id") or job.get("root") or above.get("root_session_id") or ""),
        directory=directory,
        outcome=data if isinstance(data, dict) and not over else None,
        became=str(data.get("stderr")) if isinstance(data, dict) and over else "",
        supervisor=integer(job.get("supervisor")),
        supervisor_started=integer(job.get("supervisor_started")),
        node=str(job.get("node") or ""),
        elsewhere=bool(above) and _machine(above) != _machine(latest),
        tapes=index,
    )


def _of_here(index: Index, lives: list[str]) -> dict[str, Any]:
    """Return the last meta of these sessions that no host has told; {} if there is none."""
    metas = (index.ends(session).meta for session in reversed(lives))
    return next((meta for meta in metas if TOLD_BY not in meta), {})


def _boot(facts: dict[str, Any]) -> str:
    """Return the boot that the pid of a record or a meta belongs to; "" if it was of another pid namespace."""
    if facts.get("pid_space", space := pid_space()) != space:
        return ""
    return str(facts.get("boot_id") or "")


def _machine(meta: dict[str, Any]) -> tuple[object, object]:
    return meta.get(TOLD_BY), meta.get("node")


def lives(pid: int, started: int) -> bool:
    """Whether that very process is there, and no zombie."""
    process = procs.look(pid) if pid > 0 else None
    return process is not None and process.started == started and process.state not in "ZX"


def held(pid: int, started: int) -> int:
    """Return a pidfd of that very process, -1 if it has ended."""
    if not lives(pid, started):
        return -1
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return -1
    if lives(pid, started):  # still the same process: from here on no other can have its pid
        return fd
    os.close(fd)
    return -1


def record(directory: str) -> dict[str, Any]:
    """Return the record in the directory of a job, {} if there is none."""
    with contextlib.suppress(OSError, ValueError):
        found = _json(os.path.join(directory, "job"))
        return found if isinstance(found, dict) else {}
    return {}


def is_own(directory: str) -> bool:
    """Return whether the directory of a job is there and is the user's."""
    if is_at_home(directory):
        return os.path.isdir(directory)
    with contextlib.suppress(OSError):
        os.close(safe_path.inside(directory, JOB, safe_path.FOLDER))
        return True
    return False


def opened(directory: str, name: str) -> int:
    """Return a descriptor for reading a file of a job. Raises OSError, also for anything but a regular file."""
    return regular_file.opened(os.path.join(directory, name), _own_names(directory))


def _own_names(directory: str) -> int:
    return 0 if is_at_home(directory) else JOB + 1


def _json(path: str) -> Any:
    own = _own_names(os.path.dirname(path))
    value = quickjson.loads(regular_file.content(path, RECORD, own))
    if too_deep(value, DEEPEST):
        raise ValueError("it nests too deep")
    return value


def integer(value: object) -> int:
    """Return a whole number of sensible size, else 0."""
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def number(value: object) -> float:
    """Return a number of sensible size, else 0."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e15 else 0.0
