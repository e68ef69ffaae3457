"""Agents and detached jobs: found by their tapes and job directories, alive by the word of the kernel.

An agent is a process, and its lives are its sessions: exec begins a new session in the same process. The id of an agent
is the session of its first life, which is the id that fork gave; the session of any later life finds it too.

Laws
1. A pid names nobody. It counts together with the start time and the boot that were recorded with it, and is held by a
   pidfd before anything is done to it.
2. How an agent ended is told by its status file, then by the kernel (a zombie), then by its tape. Where its process is
   gone and none of them tells, it is lost; where it never was a process of this machine, it is unknown.
   A detached job is over when its supervisor has ended: that writes its status, after the last of its output.
3. What lies in a data directory is foreign: no value has to be of the type that we write, and none becomes a path.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, NamedTuple

from quine import procs
from quine.life import is_session
from transport import quickjson
from transport.address import boot_id
from transport.status import LOST, Status, signal_name

BLOCK = 1 << 13  # most first and last lines of a tape are shorter
LIVES = 10_000  # of one process: a tape that names itself as its next must not hold us


class Agent(NamedTuple):
    id: str
    session: str  # of its last life
    mission: str
    host: str
    pid: int
    started: int  # ticks since boot
    boot: str
    begun: float
    last: float  # the time of the last entry
    parent: str
    root: str
    directory: str  # where its output is kept, "" where somebody else has it
    outcome: dict[str, Any] | None
    became: str  # what its tape ends with where another program took over
    supervisor: int = 0  # of a detached job, 0 for others
    supervisor_started: int = 0
    node: str = ""  # the machine it was detached on
    kept: bool = False  # found in the files tier, and perhaps of another machine

    @property
    def process(self) -> procs.Process | None:
        """The process, also as a zombie; None where it is gone or is none of this machine."""
        if self.boot != boot_id() or self.pid <= 0:
            return None
        process = procs.look(self.pid)
        return process if process and process.started == self.started else None

    @property
    def supervised(self) -> bool:
        """A detached job whose supervisor lives: whatever the job's process says, it is not over yet."""
        if self.boot != boot_id() or self.supervisor <= 0:
            return False
        return _lives(self.supervisor, self.supervisor_started)

    @property
    def alive(self) -> bool:
        process = self.process
        return process is not None and process.state not in "ZX"

    @property
    def known_here(self) -> bool:
        if self.supervisor:
            return self.node == os.uname().nodename  # a boot ago, too: then it is known to be lost
        return self.boot == boot_id() and self.pid > 0

    def hold(self) -> int:
        """A pidfd, -1 where the process has ended."""
        return held(self.pid, self.started) if self.boot == boot_id() else -1

    def holds(self) -> list[int]:
        """Pidfds of whom to wait for until it is over and its status is written."""
        found = [self.hold()]
        if self.boot == boot_id():
            found.append(held(self.supervisor, self.supervisor_started))
        return [fd for fd in found if fd >= 0]

    def state(self) -> str:
        """running, stopped, or how it ended."""
        process = self.process
        if process is None or process.state in "ZX":
            if self.supervised and self._status_file() is None:
                return "running"
            end = self.end()
            return "unknown" if end.state == "lost" and not self.known_here else end.state
        return "stopped" if process.state in "Tt" else "running"

    def end(self) -> Status:
        """How it ended, as far as is known; for an agent that is not alive."""
        if told := self._status_file():
            return told
        if (process := self.process) and (word := procs.exit_word(process.pid)) is not None:
            return Status.from_wait(word)
        if told := self._on_tape():
            return told
        if not self.known_here:
            where = (
                f"on {self.host}" if self.host != "local" else "on another machine or before the last boot"
            )
            return Status("lost", LOST, detail=f"it was started {where}; its process is not known here")
        what = f"it was {self.became}" if self.became else "neither its tape nor a status tells how it ended"
        if self.supervisor:
            what = "the machine was restarted" if self.boot != boot_id() else "its supervisor was killed"
        return Status("lost", LOST, detail=f"process {self.pid} is gone; {what}")

    def _on_tape(self) -> Status | None:
        data = self.outcome
        if data is None:
            return None
        code, number = data.get("exit_code"), data.get("signal")
        if type(code) is not int or not 0 <= code <= 255:
            return None
        if type(number) is int and number > 0:
            return Status("signaled", code, signal_name(number))
        return Status("exited", code)

    def _status_file(self) -> Status | None:
        if self.directory:
            with contextlib.suppress(OSError, ValueError, TypeError):
                return Status.from_json(_json(os.path.join(self.directory, "status")))
        return None


def state_directory() -> str:
    """Where the jobs of this user and machine are, below `jobs`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.local/state"), "quine")


def everyone(*folders: str) -> list[Agent]:
    """All agents and jobs of these directories, oldest first."""
    return sorted(find("", *folders), key=lambda agent: agent.begun)


def find(text: str, *folders: str) -> list[Agent]:
    """Those that an id, or the beginning of one, may mean. Of a detached agent one directory has its tape, another its
    process, its output and its status.
    """
    found: dict[str, Agent] = {}
    for folder in folders:
        for session in sorted(one for one in _sessions(folder) if one.startswith(text)):
            agent = load(folder, session)
            if agent is None:
                continue
            known = found.setdefault(agent.id, agent)
            if known is not agent and agent.supervisor and not known.supervisor:
                names = ("pid", "started", "boot", "directory", "supervisor", "supervisor_started", "node")
                found[agent.id] = known._replace(**{name: getattr(agent, name) for name in names})
    return list(found.values())


def load(folder: str, session: str) -> Agent | None:
    """The agent that lived or lives as `session`; None where nothing can be read of it."""
    meta = _meta(folder, session)
    for _ in range(LIVES):  # back to its first life
        before = meta.get("parent_session_id")
        if meta.get("born") != "exec" or not is_session(before) or not (older := _meta(folder, str(before))):
            break
        session, meta = str(before), older
    first, begun = session, _number(meta.get("ts"))
    entry: dict[str, Any] = {}
    latest = meta
    for _ in range(LIVES):  # and on to its last
        entry = _last(os.path.join(folder, f"{session}.jsonl"))
        follows = entry.get("data", {}).get("to") if entry.get("type") == "outcome" else None
        if not is_session(follows) or not (newer := _meta(folder, str(follows))):
            break
        session, latest = str(follows), newer
    directory = os.path.join(folder, "jobs", first)
    job = record(directory)
    if not meta and not job:
        return None
    data = entry.get("data") if entry.get("type") == "outcome" else None
    over = isinstance(data, dict) and data.get("termination_mode") == "exec"
    # A remote child's tape names a process over there; the job is its face, a process of ours.
    who = job if job.get("started") else latest
    return Agent(
        id=first,
        session=session,
        mission=str(meta.get("mission") or job.get("intent") or ""),
        host=str(job.get("host") or latest.get("node") or "local"),
        pid=_integer(who.get("pid")),
        started=_integer(who.get("started")),
        boot=str(who.get("boot_id") or ""),
        begun=begun or _number(job.get("begun")),
        last=_number(entry.get("ts")) or begun,
        parent=str(meta.get("parent_session_id") or job.get("parent") or ""),
        root=str(meta.get("root_session_id") or job.get("root") or ""),
        directory=directory if os.path.isdir(directory) else "",
        outcome=data if isinstance(data, dict) and not over else None,
        became=str(data.get("stderr")) if isinstance(data, dict) and over else "",
        supervisor=_integer(job.get("supervisor")),
        supervisor_started=_integer(job.get("supervisor_started")),
        node=str(job.get("node") or ""),
    )


def _lives(pid: int, started: int) -> bool:
    process = procs.look(pid) if pid > 0 else None
    return process is not None and process.started == started and process.state not in "ZX"


def held(pid: int, started: int) -> int:
    """A pidfd of that very process, -1 where it has ended."""
    if not _lives(pid, started):
        return -1
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return -1
    if _lives(pid, started):  # and it is still that one: from here on nobody else can have its pid
        return fd
    os.close(fd)
    return -1


def _sessions(folder: str) -> set[str]:
    names: set[str] = set()
    for place, suffix in ((folder, ".jsonl"), (os.path.join(folder, "jobs"), "")):
        with contextlib.suppress(OSError):
            names |= {name.removesuffix(suffix) for name in os.listdir(place) if name.endswith(suffix)}
    return {name for name in names if is_session(name)}


def _meta(folder: str, session: str) -> dict[str, Any]:
    """The data of a tape's first entry and its time, {} where it is none."""
    with contextlib.suppress(OSError), open(os.path.join(folder, f"{session}.jsonl"), "rb", BLOCK) as file:
        entry = _entry(file.readline())
        if entry.get("type") == "meta":
            return {**entry["data"], "ts": entry.get("ts")}
    return {}


def _last(path: str) -> dict[str, Any]:
    """The last whole entry of a tape, {} where there is none."""
    with contextlib.suppress(OSError), open(path, "rb", 0) as file:
        size, block = file.seek(0, os.SEEK_END), BLOCK
        while True:
            begin = max(0, size - block)
            file.seek(begin)
            # What follows the last newline is torn, or being written now.
            lines = (file.read(size - begin) or b"").split(b"\n")[:-1]
            if len(lines) > 1 or begin == 0:
                return _entry(lines[-1]) if lines else {}
            block *= 8
    return {}


def _entry(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        entry = quickjson.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("data"), dict):
            return entry
    return {}


def record(directory: str) -> dict[str, Any]:
    """What its directory says of a job, {} where it says nothing."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = _json(os.path.join(directory, "job"))
        return found if isinstance(found, dict) else {}
    return {}


def _json(path: str) -> Any:
    with open(path, "rb", 0) as file:
        return quickjson.loads(file.read())


def _integer(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def _number(value: object) -> float:
    """A time of a sensible size, or 0."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0.0
