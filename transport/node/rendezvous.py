"""Find this user's node, or start it; hand a dial's streams to it. Blocking, standard library only.

Laws
1. One node per socket: it holds a lock until it ends, and the kernel frees that lock however the process ends.
2. Readiness is a byte on a pipe, never a sleep or a probe.
3. A node that ends while a client connects is not an error: it has acted on nothing, so the next one is started.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import sys
import time

from transport import address, inherit, node_socket, quickjson, this_build
from transport.carrier.unix import rights
from transport.errors import Refused
from transport.lean import signal, socket
from transport.node import door
from transport.node_socket import (
    DIAL,
    STATUS,
    TAKEN,
    TRIES,
    UNSTARTED,
    beside,
    log_path,
    short_lived,
    try_connect,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket as Listener
    from typing import Any

    from transport.job.launcher_process import Beside

# A process fills its nursery before the first collection, and by default that is as large as the processor's cache:
# nodes of 400 MB were seen. The launcher inherits it from its node, jobs do not.
PYPY = {"PYPY_GC_NURSERY": "1M"} if sys.implementation.name == "pypy" else {}
# Seconds for the node to be ready: one that ends is seen at once, and this is for one that hangs. Where 1,200 clients
# began at one time on two processors, starting took more than 20 s.
START_DEADLINE = 60.0
ANSWER_DEADLINE = 20.0  # seconds for a node to answer, and to end
PATIENCE = 1 / 8  # of the time waited, until the next look: hundreds that wait leave the node the processor
MARK = 32  # bytes in the lock file
ROOM = 4096  # bytes that its directory must take
WORDS = 300  # characters of the log that an error repeats
LOG_LIMIT = 4 << 20  # bytes of log after which a node begins a new file


def connect() -> socket.socket:
    """A connection to the node, which is started first if there is none. Raises Refused."""
    if connection := try_connect():
        return connection
    with open(beside("start"), "ab") as lock:
        begin = time.monotonic()
        while not door.lock(lock.fileno()):  # three hundred clients at once must start one node
            if connection := try_connect():
                return connection
            if (waited := time.monotonic() - begin) > START_DEADLINE:
                raise Refused(f"another process is starting the node of this machine, for {waited:.0f} s now")
            time.sleep(max(0.02, waited * PATIENCE))
        if connection := try_connect():
            return connection
        _start()
        if connection := try_connect():
            return connection
    raise Refused("the node of this machine was started and does not answer", f"look at {log_path()}")


def rotate_log() -> None:
    """For the node: begin a new log file if its stderr is the log and exceeds LOG_LIMIT; keeps one old file."""
    facts = os.fstat(2)
    try:
        path = log_path()
        if facts.st_size <= LOG_LIMIT or os.stat(path).st_ino != facts.st_ino:
            return
        os.rename(path, f"{path}.old")
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_APPEND, 0o600)
    except (OSError, Refused):
        return  # the directory was removed meanwhile
    os.dup2(log, 2)
    os.close(log)


def _start() -> None:
    """Start the node as a daemon: in its own session, without this process's streams and secrets.

    It starts the carriers of all later commands of the user, so its environment is the user's and no command's.
    """
    ready, announce = os.pipe()
    log = os.open(log_path(), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_APPEND, 0o600)
    begin = os.fstat(log).st_size
    null = os.open(os.devnull, os.O_RDWR)
    try:
        actions = [
            (os.POSIX_SPAWN_DUP2, announce, 3),
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, null, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        command = [*this_build.own_command(), "node", "--ready-fd", "3"]
        pid = os.posix_spawn(
            command[0],
            command,
            {**PYPY, **inherit.scrubbed(inherit.users_environment(), here=True)},
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
        os.close(announce)
        announce = -1
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        is_ready = poll.poll(START_DEADLINE * 1000) and os.read(ready, 1)
    finally:
        for fd in (ready, announce, log, null):
            if fd >= 0:
                os.close(fd)
    if not is_ready:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, and does not hang
    # The daemon detaches itself (double fork); the process started here ends at once and is reaped.
    os.waitpid(pid, 0)
    if not is_ready:
        raise _unstarted(begin)


def _unstarted(begin: int) -> Refused:
    """Return the error for a node that did not start. Its words stand in the log, from byte `begin` on.

    Where the file system of the log takes no bytes, there are no words, and this is the cause.
    """
    folder, trial = address.runtime_directory(), beside("trial")
    try:
        fd = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, bytes(ROOM))
        finally:
            os.close(fd)
            os.unlink(trial)
    except OSError as error:
        why = f"{folder}: {(error.strerror or '').lower()}"
        limit = (
            "raise `ulimit -f`, which the login may set, "
            if error.errno == errno.EFBIG
            else "make room there, "
        )
        return Refused(f"{UNSTARTED}: {why}", f"{limit}or set XDG_RUNTIME_DIR to another directory")
    with open(log_path(), "rb") as log:
        log.seek(begin)
        words = log.read(LOG_LIMIT).decode(errors="replace").strip().rpartition("\n")[2]
    return Refused(f"{UNSTARTED}: {words[:WORDS]}" if words else UNSTARTED, f"look at {log_path()}")


def bind() -> tuple[Listener, dict[str, object]] | None:
    """For the node: take the lock that it holds until it ends, and listen. Returns the listener and its `seat`.

    None when another node is there already.
    """
    lock = os.open(beside("lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    while not door.lock(lock):
        if living := try_connect():
            living.close()
            os.close(lock)
            return None
        time.sleep(0.02)  # its holder listens no more: it is ending, or will listen again
    door.locks.append(lock)
    return door.listen(node_socket.socket_path()), seat(lock)


def seat(lock: int) -> dict[str, object]:
    """Facts for the hello of the node that holds `lock`: the lock's name, and since when the node holds it.

    A lock has one holder at a time. So of two nodes that name the same one the earlier has ended, whatever else is the
    same (host name, user, home). The name is that of the locked file. Boot, device and inode identify one file of one
    kernel as long as it is open; random bytes in it distinguish kernels that claim the same boot.
    `since` is the same moment by `boot_clock`. Without the lock's name it is alone.
    """
    since: dict[str, object] = {"since": address.boot_clock()}
    try:
        mark = os.pread(lock, MARK, 0)
        if len(mark) < MARK:
            mark = os.urandom(MARK // 2).hex().encode()
            if os.pwrite(lock, mark, 0) < MARK:
                return since
        facts, boot = os.fstat(lock), address.boot_id()
        name = f"{boot} {facts.st_dev} {facts.st_ino} {mark.decode('ascii')}"
    except (OSError, ValueError):
        return since  # a full disk, or a file that is not of our making
    named = boot != os.uname().nodename
    return {**since, "origin": name, "began": time.monotonic_ns()} if named else since


def daemonize(ready_fd: int) -> Beside:
    """Leave the starter: fork, let the parent end, start the launcher, say ready. The socket listens already.

    Jobs must not inherit soft limits of the process that happened to start the node. So those are raised to the hard
    ones, except limits that programs take for a size to use (files, stack, core).
    """
    from transport import rlimits
    from transport.job.launcher_process import Beside

    if os.fork():
        os._exit(0)
    os.chdir("/")
    for number in map(rlimits.number, rlimits.OWN):
        hard = resource.getrlimit(number)[1]
        resource.setrlimit(number, (hard, hard))
    beside = Beside()
    beside.begin()
    try:
        os.write(ready_fd, b"\n")
    except BrokenPipeError:
        pass  # the starter has gone; others may be in the queue already
    os.close(ready_fd)
    return beside


def dial() -> int:
    """Command of sshd's session channel: hand stdin and stdout to the node here, then wait until it lets go.

    The process stays because sshd closes the streams when its child ends; no byte passes through it.
    """
    for _ in range(TRIES):
        connection = connect()
        try:
            if _hand_over(connection):
                return 0
        finally:
            connection.close()
    raise short_lived()


def _hand_over(connection: socket.socket) -> bool:
    """Hand the streams over and wait until the node lets go; False if it ended before it took them."""
    try:
        connection.sendmsg([DIAL], rights([0, 1]))
        if connection.recv(1) != TAKEN:
            return False
    except (BrokenPipeError, ConnectionResetError):
        return False
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    try:
        while connection.recv(64):
            pass
    except ConnectionResetError:
        pass  # the node was killed
    return True


def status(path: str = "", seconds: float = ANSWER_DEADLINE) -> dict[str, Any] | None:
    """The status report of the node at a socket ("": of this build); None if none runs.

    Raises Refused if it does not answer, or answers as no node of this build does.
    """
    connection = try_connect(path)
    if connection is None:
        return None
    answer = b""
    try:
        connection.settimeout(seconds)
        connection.sendall(STATUS)
        while data := connection.recv(65536):
            answer += data
    except (TimeoutError, socket.timeout):  # two names of one class since Python 3.10
        raise Refused("the node of this machine does not answer", f"look at {log_path()}") from None
    finally:
        connection.close()
    try:
        facts = quickjson.loads(answer)
    except ValueError:  # it has ended in mid-answer
        return None
    if not path and not _is_report(facts):
        why = "the program at the socket of this machine's node answers as no node does"
        raise Refused(why, f"look who has {node_socket.socket_path()} open, and end it")
    return facts if isinstance(facts, dict) else None


def _is_report(facts: object) -> bool:
    """Whether this has all that `Node.status` reports and somebody reads: any program of this user may answer."""
    if not isinstance(facts, dict):
        return False
    numbers = [facts.get(name) for name in ("pid", "launcher", "seconds", "cpu", "jobs", "links")]
    hosts, lines = facts.get("hosts"), facts.get("lines")
    return (
        all(type(number) in (int, float) for number in numbers)
        and all(type(number) is int and number >= 0 for number in numbers[:2])
        and isinstance(hosts, dict)
        and all(isinstance(host, dict) for host in hosts.values())
        and isinstance(lines, list)
        and all(isinstance(line, dict) and _is_line(line) for line in lines)
    )


def _is_line(line: dict[str, Any]) -> bool:
    named = (
        isinstance(line.get("host"), (str, type(None)))
        and {"name", "up", "channels", "queued"} <= line.keys()
    )
    return named and type(line.get("down", 0)) in (int, float)


def stop() -> bool:
    """End the node of this machine, and wait for it and its launcher; False if none runs, or not all end in time."""
    facts = status()
    if facts is None:
        return False
    waiting = []
    try:
        for pid in filter(None, (facts["pid"], facts["launcher"])):
            try:
                waiting.append(os.pidfd_open(pid))
            except ProcessLookupError:
                pass  # it ended since
        signal.pidfd_send_signal(waiting[0], signal.SIGTERM)
        deadline = time.monotonic() + ANSWER_DEADLINE
        return all(_ended(pidfd, deadline) for pidfd in waiting)
    except (IndexError, ProcessLookupError):
        return True
    finally:
        for pidfd in waiting:
            os.close(pidfd)


def _ended(pidfd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
