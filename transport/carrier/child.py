"""A child process as a duplex: any program that carries bytes to a shell over there by its stdin and stdout.

Laws
1. The child is started without a shell, and always reaped. It ends with the duplex, and before this process, which
   calls `end_all` for that; should this process be killed, the end of its stdin ends it. It leads a process group, and
   stays in the session of the node, which takes a child of another session for the job of a launcher that has died, and
   reaps it.
2. Its stderr is kept as a tail, never mixed into the bytes. It is read to the end of the duplex, so it blocks nobody.
3. Its exit status never tells how a job ended. It only explains a bootstrap that came to nothing. Nor is it one if the
   child closes its stdout, runs on and has to be killed.
4. Its environment has no variable that looks like a secret: keys stay at the origin.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from transport.carrier.duplex import DuplexProtocol, FdDuplex
from transport.carrier.tail import Tail
from transport.inherit import scrubbed

GRACE = 5.0  # seconds between SIGTERM and SIGKILL, or between the end of its output and that
# given exit status and stderr of a child: whether it says by them that its connection broke
Lost = Callable[[int, str], bool]

_running: set[ChildDuplex] = set()
_starting: set[asyncio.Future[tuple[int, list[int]]]] = set()


def environment(env: Mapping[str, str], ssh_agent: str | None) -> dict[str, str]:
    """Return the variables of `env` but those that look like secrets, with the caller's ssh agent."""
    passed = scrubbed(env, here=True)
    passed.pop("SSH_AUTH_SOCK", None)
    return {**passed, "SSH_AUTH_SOCK": ssh_agent} if ssh_agent else passed


class ChildDuplex(FdDuplex):
    """The pipes of a child as a `Bootstrap`."""

    def __init__(self, pid: int, streams: Sequence[int], lost: Lost) -> None:
        """`streams`: our ends of the child's stdin, stdout and stderr, which this object owns."""
        stdin, stdout, stderr = streams
        super().__init__(stdout, stdin)
        self._tail = Tail(stderr)
        self.exit: int | None = None
        self._says_lost = lost
        self._ran_on = False  # behind the end of its output, until it was killed for that
        self._pid = pid
        self._before: list[bytes] = []  # read too far
        self._refused = ""  # why no more can be written, before `attach`
        self._kill: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._reaped = asyncio.Event()
        self._pidfd = os.pidfd_open(pid)
        self._loop.add_reader(self._pidfd, self._ended)
        _running.add(self)

    # Called by the bootstrap

    @property
    def stderr(self) -> bytes:
        return self._tail.text

    @property
    def broken(self) -> str:
        """The reason why the carrier broke; "" if it did not, or if only the command at its other end has ended."""
        said = self.stderr.decode(errors="replace").strip()
        if self.exit is None or (self.exit >= 0 and not self._says_lost(self.exit, said)):
            return ""
        return said.splitlines()[-1] if said else f"the carrier ended: {self.ending}"

    @property
    def ending(self) -> str:
        """How the child has ended, for people."""
        if self._ran_on:
            return "it closed its output and did not end"
        if self.exit is None:
            return "no status"
        return f"status {self.exit}" if self.exit >= 0 else f"killed by {signal.Signals(-self.exit).name}"

    async def read(self) -> bytes:
        """Return the next bytes as they came, b"" at end of file; `exit` and `stderr` are complete then."""
        while not self._before:
            if self._closed:
                return b""
            try:
                data = os.read(self._read_fd, self.READ_SIZE)
            except BlockingIOError:
                await self._readiness()
                continue
            if not data:
                await self._last_words()
            return data
        return self._before.pop(0)

    async def _readiness(self) -> None:
        self._news.clear()
        self._loop.add_reader(self._read_fd, self._news.set)
        try:
            await self._news.wait()
        finally:
            if not self._closed:
                self._loop.remove_reader(self._read_fd)

    async def _last_words(self) -> None:
        """Wait for the end of the child and of its stderr; a program that it left behind may hold that open."""
        if self._kill is None:
            self._kill = self._loop.call_later(GRACE, self._insist)
        await self._reaped.wait()
        self._tail.drain()

    def _insist(self) -> None:
        self._ran_on = not self._reaped.is_set()
        self.send_signal(signal.SIGKILL)

    def unread(self, data: bytes) -> None:
        """Give back bytes that were read too far; the next read or `attach` delivers them first."""
        if data:
            self._before.insert(0, data)

    async def drain(self) -> None:
        """Wait until the write buffer is below its high-water mark. Raises ConnectionResetError."""
        while not self._closed and not self._refused and self._size > self.HIGH_WATER:
            self._news.clear()
            await self._news.wait()
        if self._closed or self._refused:
            raise ConnectionResetError(self._refused or "end of file")

    async def closed(self) -> None:
        """Wait until the child is reaped; call after `close`."""
        await self._reaped.wait()

    # Called by the link

    def attach(self, protocol: DuplexProtocol) -> None:
        super().attach(protocol)
        if self._before:
            data = b"".join(self._before)
            self._before.clear()
            protocol.data_received(data)
        if self._refused:
            self._loop.call_soon(self._lost, self._refused)

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        self._news.set()
        self.send_signal(signal.SIGTERM)
        if not self._reaped.is_set() and self._kill is None:
            self._kill = self._loop.call_later(GRACE, self.send_signal, signal.SIGKILL)
        self._tail.close()

    # Called by the event loop

    def _lost(self, why: str) -> None:
        if self._protocol is not None or self._closed:
            super()._lost(why)
            return
        # The host gave up early: its last words can still be read
        self._refused = why
        self._buffer.clear()
        self._size = 0
        self._loop.remove_writer(self._write_fd)
        self._news.set()

    def _writable(self) -> None:
        super()._writable()
        self._news.set()

    def _ended(self) -> None:
        self.send_signal(signal.SIGTERM)  # its group: programs that it has started, as a ProxyCommand
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self.exit = None if self._ran_on else status
        if self._kill is not None:
            self._kill.cancel()
        self._reaped.set()
        _running.discard(self)

    def send_signal(self, number: int) -> None:
        """Send a signal to the child and all that it has started in its group."""
        if not self._reaped.is_set():  # until then the number cannot be another process's
            try:
                os.killpg(self._pid, number)
            except ProcessLookupError:
                pass


async def end_all() -> None:
    """End the children that are left; called by a process that ends. If it is cancelled, they are killed at once."""
    if _starting:  # those that were given up, too: their programs may run already
        await asyncio.wait(_starting, timeout=GRACE)
    for child in _running:
        child.close()
    try:
        await asyncio.gather(*(child.closed() for child in _running))
    finally:
        for child in _running:
            child.send_signal(signal.SIGKILL)


async def start(argv: Sequence[str], env: Mapping[str, str], lost: Lost) -> ChildDuplex:
    """Start `argv` and return its duplex. Raises OSError if there is no such program."""

    starting = asyncio.ensure_future(asyncio.to_thread(_spawn, argv, env))
    _starting.add(starting)
    starting.add_done_callback(_starting.discard)
    try:
        pid, streams = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_abandon)
        raise
    return ChildDuplex(pid, streams, lost)


def _spawn(argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, list[int]]:
    """Start `argv`; return its pid and our ends of its three streams. OSError if there is no such program.

    Called in a thread: the program may lie on a file system that does not answer.
    """
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            pipes.append(os.pipe2(os.O_CLOEXEC))
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            dict(env),
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(theirs)],
            setpgroup=0,
            setsigmask=[],
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError:
        for pair in pipes:
            os.close(pair[0])
            os.close(pair[1])
        raise
    for fd in theirs:
        os.close(fd)
    return pid, [pipes[0][1], pipes[1][0], pipes[2][0]]


def _abandon(starting: asyncio.Future[tuple[int, list[int]]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        child = ChildDuplex(*starting.result(), lambda status, said: False)
        child.send_signal(signal.SIGKILL)  # nobody may be left to do it later
        child.close()
