"""The state of a running batch, for other processes of its user: `quine top`, and `quine attach` of a detached batch.

A batch keeps it in a memory file that it holds open, and that readers open through /proc.

Laws
1. Nothing is registered: the file is gone with its process, however that ends. So nothing is stale, and ended batches
   cost a reader nothing.
2. A reader never sees half of a state: its number stands at both ends, and a reader that finds two different ones
   reads again.
3. A state that cannot be published costs the batch nothing, and is no error.
4. A state is foreign: a value of another type than expected is left out, and sizes are bounded.
5. A batch of commands has the secrets of its caller, and is closed to other processes of its user. Then a child without
   them holds the file as well, as long as the batch lives.
"""

from __future__ import annotations

import os
import time

from quine.base import procs
from transport import quickjson
from transport.inherit import FIRST_FD, link, reopened
from transport.lean import contextlib, prctl, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAME = "quine-batch"
LINK = link(NAME)
MOST = 1 << 20  # bytes of a state
HOSTS = 256  # hosts in a state; of more there is the number alone
TEXT = 4096  # characters of a text in it
WAITS = 60  # and of what it waits for
TRIES = 20  # readings of a state that is being written; a write takes microseconds
GET_DUMPABLE = 3  # of prctl(2)
SCOPE = ("HOME", "XDG_RUNTIME_DIR")  # variables by which a reader knows a process of the same login
GAP = "   "
KINDS = ("done", "failed", "killed", "timeout", "lost", "never started", "denied", "unavailable")  # of ends

# The keys of a state with their types and the value of one that is left out; those of a host below.
FIELDS: dict[str, tuple[tuple[type, ...], object]] = {
    "id": ((str,), ""),
    "tree": ((str,), ""),
    "host": ((str,), "local"),
    "pid": ((int,), 0),
    "started": ((int, float), 0.0),
    "seconds": ((int, float), 0.0),
    "detached": ((bool,), False),
    "stopped": ((bool,), False),  # as its reader has found
    "agents": ((int,), None),
    "tokens": ((int,), None),
    "cost": ((int, float), None),
    "items": ((int,), None),
    "ended": ((int,), 0),
    **{kind.replace(" ", "_"): ((int,), 0) for kind in KINDS},
    "running": ((int,), 0),
    "rate": ((int, float), 0.0),
    "eta": ((int, float), None),
    "waits": ((str,), ""),  # for what, if that is none of its jobs
    "provider": ((str,), ""),  # how many agents wait for it, and how long
    "more_hosts": ((int,), 0),
    "command": ((str,), ""),
}
OF_HOST: dict[str, tuple[tuple[type, ...], object]] = {
    "host": ((str,), ""),
    "running": ((int,), 0),
    "slots": ((int,), 0),
    "rate": ((int, float), 0.0),
    "load": ((int, float), None),
    "ended": ((int,), 0),
    "failed": ((int,), 0),
    "down": ((int, float), None),  # seconds that its jobs have left, while its link is down
}


class Published:
    """The memory file of this process."""

    def __init__(self) -> None:
        self._number = 0
        self._size = 0
        self._fd = -1
        self._closed = False
        self._holder: tuple[int, int] | None = None  # its pid, and the pipe whose end it waits for

    def put(self, state: Mapping[str, Any]) -> None:
        if self._closed:
            return
        if self._fd < 0:
            try:
                self._fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
            except OSError:
                self._closed = True
                return
            if prctl(GET_DUMPABLE, 0):  # 0: it is closed to others
                with contextlib.suppress(OSError):
                    self._holder = _held_by_another(self._fd)
        try:
            text = quickjson.dumps(state).encode()
        except (ValueError, TypeError):
            return  # an infinite number
        self._number += 1
        data = b"%d\n%s\n%d" % (self._number, text, self._number)
        try:
            os.pwrite(self._fd, data, 0)
            if len(data) < self._size:
                os.ftruncate(self._fd, len(data))
            self._size = len(data)
        except OSError:
            self.close()  # a limit on the size of files

    def close(self) -> None:
        self._closed = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._holder:
            pid, end = self._holder
            self._holder = None
            os.close(end)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _held_by_another(fd: int) -> tuple[int, int]:
    """Start a process without secrets that holds a file; return its pid, and a pipe: it ends with the last writer.

    It is in the group of the batch, and no signal to that reaches it.
    """
    waits, end = os.pipe2(os.O_CLOEXEC)
    try:
        actions = [
            (os.POSIX_SPAWN_DUP2, waits, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, fd, FIRST_FD),
        ]
        env = {name: os.environ[name] for name in SCOPE if name in os.environ}
        words = ["quine-batch", "-c", "read end"]
        pid = os.posix_spawn("/bin/sh", words, env, file_actions=actions, setsigmask=signal.valid_signals())
    except BaseException:
        os.close(end)
        raise
    finally:
        os.close(waits)
    procs.own(pid)
    return pid, end


# -- reading ---------------------------------------------------------------------------------------


def read(path: str, pid: int) -> dict[str, Any] | None:
    """Return the state that the memory file at `path` has, if it is of process `pid` or of its parent; else None.

    A process that was forked from the batch holds the file, too: each reader takes a state once.
    """
    try:
        fd = reopened(path, os.O_RDONLY, target=LINK)  # a named pipe may have that name, too
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid != os.getuid():
            return None
        for _ in range(TRIES):
            head, _, rest = os.pread(fd, MOST, 0).partition(b"\n")
            text, _, tail = rest.rpartition(b"\n")
            if head and head == tail:
                found = parsed(text)
                return found if found and found["pid"] in (pid, _parent_of(pid)) else None
            time.sleep(0.0005)
    except OSError:
        pass
    finally:
        os.close(fd)
    return None


def _parent_of(pid: int) -> int:
    process = procs.look(pid)
    return process.ppid if process else 0


def of_process(pid: int) -> dict[str, Any] | None:
    """Return the state of the batch that a process runs; None if it runs none."""
    try:
        return _held_by(pid)
    except PermissionError:
        children = procs.children(pid)  # one of them may hold the file
    except OSError:
        return None
    for child in children:
        with contextlib.suppress(OSError):
            if state := _held_by(child):
                return state
    return None


def _held_by(pid: int) -> dict[str, Any] | None:
    """Raises OSError if the files of the process are not shown."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if os.readlink(path) == LINK:
                return read(path, pid)
        except OSError:
            pass  # closed since
    return None


def parsed(text: bytes) -> dict[str, Any] | None:
    """Return the state that a text holds, with all keys; None if it is none."""
    try:
        value = quickjson.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    found = _checked(value, FIELDS)
    hosts = value.get("hosts")
    rows = hosts[:HOSTS] if isinstance(hosts, list) else []
    found["hosts"] = [_checked(row, OF_HOST) for row in rows if isinstance(row, dict)]
    return found


def _checked(
    value: Mapping[str, Any], fields: Mapping[str, tuple[tuple[type, ...], object]]
) -> dict[str, Any]:
    return {name: _taken(value.get(name), types, default) for name, (types, default) in fields.items()}


def _taken(value: object, types: tuple[type, ...], default: object) -> object:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return default
    if isinstance(value, str):
        return value[:TEXT]
    return value if isinstance(value, (int, float)) and -1e15 < value < 1e15 else default


# -- as text ---------------------------------------------------------------------------------------


def shown(words: list[str]) -> str:
    """Return the command line of a batch for people, without its items, and without the values of --env and --fs.

    It is written to the disk, where no environment variable and no key may be.
    """
    from quine.jobs.job_files import quoted

    words = [_without_value(word, before) for before, word in zip(["", *words], words)]
    end = next((at for at, word in enumerate(words) if word.startswith(":::")), len(words))
    text = " ".join(map(quoted, ["quine", "xargs", *words[:end], *words[end : end + 1]]))
    return text[:TEXT] + (" …" if end < len(words) else "")


def _without_value(word: str, before: str) -> str:
    option, given, value = word.partition("=") if word.startswith(("--env=", "--fs=")) else (before, "", word)
    if option == "--env":
        name, equals, secret = value.partition("=")
        hidden = f"{name}{equals}{'…' if secret else ''}"
    elif option == "--fs":
        hidden = value.partition("://")[0] + "://…" if "://" in value else value
    else:
        return word
    return f"{option}={hidden}" if given else hidden


def line(state: Mapping[str, Any]) -> str:
    """The batch in one line."""
    ends = [(state[kind.replace(" ", "_")], kind) for kind in KINDS]
    counts = ", ".join(f"{count} {kind}" for count, kind in ends if count) or "0 done"
    if state["items"] is not None:
        counts = f"{state['ended']} of {state['items']}: {counts}"
    parts = [counts, f"{state['running']} running", f"{number(state['rate'])}/s"]
    if state["provider"]:
        parts.insert(2, state["provider"][:WAITS])
    if state["waits"]:
        parts.append(f"waiting for {state['waits'][:WAITS]}")
    if state["eta"] is not None:
        parts.append(f"ETA {duration(state['eta'])}")
    if state["tokens"] is not None:
        parts.append(f"{state['tokens']} tokens, ${state['cost'] or 0.0:.2f}")
    return ", ".join(parts)


def host_lines(state: Mapping[str, Any]) -> list[str]:
    """A line for each host, in columns."""
    from transport.text import harmless

    table = [(harmless(host["host"], instead="?"), *_cells(host)) for host in state["hosts"]]
    wide = [max(map(len, column)) for column in zip(*table)]
    return [
        "  ".join([row[0].ljust(wide[0]), *(cell.rjust(size) for cell, size in zip(row[1:], wide[1:]))])
        for row in table
    ]


def lines(state: Mapping[str, Any], width: int, height: int) -> list[str]:
    """At most `height` lines of at most `width` columns; hosts stand beside each other where there is room."""
    first = _wrapped(line(state), width)[: max(1, height - 1)]
    height -= len(first) - 1
    hosts = host_lines(state)
    cell = max(map(len, hosts), default=0)
    columns = max(1, (width + len(GAP)) // (cell + len(GAP))) if cell else 1
    rows = -(-len(hosts) // columns)
    more = state["more_hosts"]
    if rows + bool(more) > height - 1:
        rows = max(1, height - 2)
        more += max(0, len(hosts) - rows * columns)
    found = list(first)
    for at in range(rows):
        found.append(GAP.join(host.ljust(cell) for host in hosts[at : rows * columns : rows]).rstrip())
    return [each[:width] for each in [*found, *([f"and {more} more hosts"] if more else [])]]


def _wrapped(text: str, width: int) -> list[str]:
    """Break a line behind commas, where it is too long."""
    lines = [""]
    for part in text.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) + 2 > width:
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] += (", " if lines[-1] else "") + part
    return lines


def _cells(host: Mapping[str, Any]) -> tuple[str, str, str, str]:
    slots = f"{host['running']}/{host['slots']} slots" if host["slots"] else f"{host['running']} running"
    load = "load -" if host["load"] is None else f"load {host['load']:.2f}"
    if host["down"] is not None:
        load = f"link down, {duration(host['down'])} left"
    return slots, f"{number(host['rate'])}/s", load, f"{host['failed']} failed"


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """1:02:03, 2:03 or 3 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
