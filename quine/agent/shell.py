"""The persistent shell of an agent: one POSIX shell that runs one command at a time, with non-blocking I/O.

The shell reads statements from its descriptor 0. Each is an `eval` of the command with 0 from /dev/null, then a
line with `$?` for the status pipe. No output of a command can be taken for its end.

Laws
1. In a command: 0 = /dev/null, 1 and 2 captured, 3 4 5 = the agent's own 0 1 2. The shell's own channels are
   closed in a command.
2. A command ends with its status line, or with the shell. The end of its output is no sign, because a background
   process can hold it open for ever.
3. A timeout ends the processes of this command, TERM then KILL, and the shell leaves the rest of its list: it is told
   first, and lives, with its variables. Background processes of earlier commands go on. So does an interrupt.
4. The shell is a process group of its own in the agent's session, and ends with all its descendants in that session.
5. A command is sent once, to a running shell. If the shell dies of it, no second shell gets it.
6. If the agent is killed by SIGKILL, at any moment, the kernel ends the group: `procs.set_parent_death_signal` ties the
   status pipe to it, and while this reads that pipe, the control pipe. Processes that left the group (timeout(1),
   `set -m`, setsid) go on.
"""

from __future__ import annotations

import os
import select
import time

from quine.agent.capture import CHUNK, PIPE, Capture, close, drain, pipe, quoted
from quine.agent.signals import PYTHON_IGNORES, Signals
from quine.base import dirs, procs
from quine.base.text import quote
from transport.lean import Mapping, NamedTuple, contextlib, signal

GRACE = 2.0  # seconds between TERM and KILL
LAST = 2.0  # seconds between KILL for the command and KILL for the shell; a busy machine needs more than a few tenths
INSIST = 1.0  # seconds after which an interrupt without effect on the command goes to the shell, too

STOP = 64  # the signal that ends the list of a command in its shell; dash and bash know it only as a number
# A shell does this at STOP, once the command that it waits for has ended: it keeps the status and leaves the list.
# In dash an error leads out of it, to `command eval`. An error in bash would end the shell: each function and each
# file that is being read is left by a `return` that brings the next STOP, the list itself by the `break`.
ENDING = (
    "QUINE_ENDED=${QUINE_ENDED-$?}; case ${BASH_VERSION+b}${FUNCNAME+f} in "
    "bf) return $(command kill -STOP $$; echo 1);; b) break 9999;; "
    '*) : "${QUINE_ENDING?}";; esac 2>/dev/null'
).replace("STOP", str(STOP))
# 6 is the status pipe, 7 and 8 capture output: single digits, because dash redirects no others. `command` keeps an
# error in eval (syntax, a failed redirection) from ending the shell. The loop of one round is for the `break` above.
# No reserved word follows it: bash would not know one after a quote that is not closed.
# The mark is new each time, on a line of its own: a command of bash that writes to all descriptors reaches that pipe.
STATEMENT = (
    f"unset QUINE_ENDED; {{ command trap {quote(ENDING)} {STOP}; }} 2>/dev/null\n"
    "for _ in 1; do { command eval %s\n} </dev/null >&7 2>&8 6>&- 7>&- 8>&-; done\n"
    f"command eval 'QUINE_ENDED=${{QUINE_ENDED-$?}}; command trap : {STOP}'\n"
    "command printf '\\n%s %%s\\n' \"${QUINE_ENDED-$?}\" >&6\n"
)
# A question prints its answer to the status pipe. `! :` keeps `set -e` from ending the shell over a failure.
QUESTION = (
    "{ command eval %s\n} </dev/null 2>/dev/null >&6 6>&- 7>&- 8>&- || ! :\n"
    "command printf '\\n%s %%s\\n' \"$?\" >&6\n"
)
# There is nobody to answer a question: `git commit` waited for an editor to the end of its time.
UNATTENDED = {
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "EDITOR": "false",
    "PAGER": "cat",
    "DEBIAN_FRONTEND": "noninteractive",
}
ANSWER = 8 << 20  # bytes; more than the kernel lets a process have of environment


class Outcome(NamedTuple):
    """Result of a command. `code` is `$?`, `notes` other events, `earlier` the background output before it."""

    code: int
    stdout: str
    stderr: str
    notes: tuple[str, ...] = ()
    earlier: str = ""


class Shell:
    def __init__(self, program: str, cwd: str, signals: Signals, outputs: str, limit: int) -> None:
        self.cwd = cwd
        self._program = program
        self._signals = signals
        self._outputs = outputs
        self._limit = limit
        self._count = 0
        self.left: dict[int, procs.Process] = {}  # background processes of shells that ended by themselves
        self._pid = 0
        self._pidfd = self._control = self._status = -1
        self._tied = self._report = -1  # the shell's ends of the control and the status pipe
        self._pipes: list[tuple[int, int]] = []  # stdout, stderr: kept when a new shell starts
        self._answer = (0, "", b"")  # number of commands before it, question, answer

    @property
    def group(self) -> int:
        """Process group of the shell; 0 if none runs."""
        return self._pid

    def pids(self) -> list[int]:
        """Pids of the shell and its commands, in any process group."""
        return list(procs.of_session(self._pid)) if self._pid else []

    def run(self, command: str, timeout: float, environ: Mapping[str, str]) -> Outcome:
        """Run one command to its end. `timeout` in seconds, 0 for none. OSError if no shell can be started."""
        died: list[str] = []
        if self._pid and procs.wait([self._pidfd], 0):
            self._ended(died)  # it died between two commands: this one has not begun, and runs in a new shell
        if not self._pid:
            self._start(environ)
        self._count += 1
        name = os.path.join(self._outputs, str(self._count))
        background = Capture(self._limit // 2, f"{name}.background")
        for out, _ in self._pipes:
            drain(out, background)
        streams = [Capture(self._limit, f"{name}.stdout"), Capture(self._limit, f"{name}.stderr")]
        watch = _Watch(self, STATEMENT, command, streams, timeout)
        with self._signals.running():
            code = watch.until_done()
        for (out, _), stream in zip(self._pipes, streams):
            drain(out, stream)
        if code is None:
            code = self._ended(watch.notes)
        else:
            with contextlib.suppress(OSError):
                self.cwd = os.readlink(f"/proc/{self._pid}/cwd").removesuffix(" (deleted)")
        if watch.timed_out:
            code = 124
        return Outcome(code, streams[0].text(), streams[1].text(), (*died, *watch.notes), background.text())

    def ask(self, question: str, timeout: float) -> bytes | None:
        """Return what a command of ours prints in the shell, as it is between two commands of the agent.

        None if no shell runs. Raises OSError if it gives no answer.
        """
        if not self._pid or procs.wait([self._pidfd], 0):
            return None
        if self._answer[:2] == (self._count, question):
            return self._answer[2]
        watch = _Watch(self, QUESTION, question, [], timeout)
        watch.answer = bytearray()
        with self._signals.running():
            code = watch.until_done()
        if code != 0:  # if the shell has died of it, the next command says so
            raise OSError(0, "the shell does not show its variables")
        self._answer = (self._count, question, bytes(watch.answer[:-1]))
        return self._answer[2]

    def close(self) -> None:
        """End the shell and its commands: end of file, then TERM, a pause, KILL. Reaps the shell."""
        if self._pid:
            self._end()
        if self.left:
            procs.end_all(self.left, None, GRACE)
        self.disown()

    def _end(self) -> None:
        group = self._pid
        below = procs.below(group)
        self._untie()
        close(self._control)
        self._control = -1
        if procs.wait([self._pidfd], 0.5):
            self._forget()
        procs.reap_orphans()  # one of the shell's group that has ended would look like one that lives
        if self._pid or below or not procs.is_empty(group):  # `end_all` looks for its orphans
            procs.end_all(below, group, GRACE)
        if self._pid:
            self._forget()

    def disown(self) -> None:
        """Close the descriptors without ending the shell, which in a forked child belongs to the parent."""
        for pair in self._pipes:
            for fd in pair:
                close(fd)
        self._pipes = []
        self.left = {}
        self._close_channels()

    def write_control(self, data: bytes) -> int:
        """Write to the shell what fits, and return its length."""
        procs.set_parent_death_signal(self._tied, -self._pid, False)
        return os.write(self._control, data)

    def read_status(self) -> bytes:
        """Read from the status pipe, with the control pipe tied meanwhile: no moment is without one that is."""
        procs.set_parent_death_signal(self._tied, -self._pid)
        procs.set_parent_death_signal(self._report, -self._pid, False)
        data = os.read(self._status, CHUNK)
        procs.set_parent_death_signal(self._report, -self._pid)
        return data

    def _untie(self) -> None:
        """The group no longer ends with this process, nor by the end of the pipes."""
        for fd in (self._tied, self._report):
            procs.set_parent_death_signal(fd, -self._pid, False)

    def _start(self, environ: Mapping[str, str]) -> None:
        while len(self._pipes) < 2:
            self._pipes.append(pipe(PIPE))
        try:
            self._tied, self._control = pipe()
            self._status, self._report = pipe()
            os.set_blocking(self._control, False)
            (_, out), (_, err) = self._pipes
            pairs = [(0, 3), (1, 4), (2, 5), (self._tied, 0), (self._report, 6)]
            pairs += [(out, 7), (err, 8), (out, 1), (err, 2)]
            self._pid = os.posix_spawnp(
                self._program,
                [self._program, "-s"],
                {**UNATTENDED, **environ},
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in pairs],
                setpgroup=0,
                setsigdef=PYTHON_IGNORES,
                setsigmask=self._signals.mask,
            )
            procs.own(self._pid)
            procs.set_parent_death_signal(self._report, -self._pid)
            self._pidfd = os.pidfd_open(self._pid)
        except OSError:
            if self._pid:
                os.kill(self._pid, signal.SIGKILL)  # no pidfd to wait for it; it has read nothing
                procs.reap(self._pid)
            self._close_channels()
            raise
        if self.cwd != dirs.here():
            self.write_control(f"cd {quote(self.cwd)} 2>/dev/null || :\n".encode("utf-8", "surrogateescape"))

    def _ended(self, notes: list[str]) -> int:
        """Reap a shell that has ended, add a note, and return its exit code."""
        self.left |= procs.of_session(self._pid)
        status = self._forget()
        how = f"died of signal {-status}" if status < 0 else f"exited with status {status}"
        notes.append(
            f"[SHELL] the shell {how}; variables and functions are lost, the next command starts in "
            f"{quoted(self.cwd)}"
        )
        return status if status >= 0 else 128 - status

    def _forget(self) -> int:
        """Reap the shell and return its status, negative for a signal."""
        status = procs.reap(self._pid)
        self._untie()
        self._close_channels()
        return os.waitstatus_to_exitcode(status)

    def _close_channels(self) -> None:
        for fd in (self._control, self._tied, self._status, self._report, self._pidfd):
            close(fd)
        self._pid = 0
        self._control = self._tied = self._status = self._report = self._pidfd = -1


class _Watch:
    """Run of one command: writes the statement, reads output and status, handles signals and the timeout."""

    def __init__(
        self, shell: Shell, statement: str, command: str, streams: list[Capture], timeout: float
    ) -> None:
        self._shell = shell
        self._signals = shell._signals
        self._mark = os.urandom(8).hex()
        self._statement = (statement % (quote(command), self._mark)).encode("utf-8", "surrogateescape")
        self._streams = {pair[0]: stream for pair, stream in zip(shell._pipes, streams)}
        self._begun = procs.now()
        self._older = procs.children(shell._pid)
        self._deadline = time.monotonic() + timeout if timeout > 0 else float("inf")
        self._timeout = timeout
        self._stage = 0  # 0 running, 1 TERM sent, 2 KILL sent, 3 the shell killed too
        self._insist = float("inf")
        self._tries = 3
        self._left = 0  # status of a list that the shell has left because it was told to
        self._interrupted: set[int] = set()
        self._acknowledged = 0
        self._line = b""
        self.timed_out = False
        self.answer: bytearray | None = None  # lines before the status, if they are wanted
        self.notes: list[str] = []

    def until_done(self) -> int | None:
        """Return the status of the command, or None if the shell has ended."""
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        poll.register(self._shell._status, select.POLLIN)
        poll.register(self._shell._control, select.POLLOUT)
        for fd in self._streams:
            poll.register(fd, select.POLLIN)
        # The end of the status pipe is not enough: a background subshell holds it open.
        poll.register(self._shell._pidfd, select.POLLIN)
        while True:
            with self._signals.interruptible():
                ready = poll.poll(self._pause())
            for fd, event in ready:
                if fd == self._signals.fd:
                    self._signals.drain()
                elif fd == self._shell._control:
                    if not self._feed(event):
                        poll.unregister(fd)
                elif fd in self._streams:
                    self._streams[fd].feed(os.read(fd, CHUNK))
                elif fd == self._shell._pidfd:
                    return None
                elif (status := self._read_status()) is not None:
                    return status
            self._mind()

    def _feed(self, event: int) -> bool:
        """Write as much of the statement as the pipe takes; return False if nothing is left to write."""
        if event & select.POLLERR:
            return False
        try:
            with self._signals.block_sigpipe():
                self._statement = self._statement[self._shell.write_control(self._statement) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._statement)

    def _read_status(self) -> int | None:
        *lines, self._line = (self._line + self._shell.read_status()).split(b"\n")
        for line in lines:
            mark, _, status = line.partition(b" ")
            if mark == self._mark.encode() and status.isdigit():
                return self._code(int(status))
            if self.answer is not None and len(self.answer) < ANSWER:
                self.answer += line + b"\n"
        return None

    def _code(self, status: int) -> int:
        """Return the status of the command. A list that was left is no success, whatever its last command was."""
        return self._left if self._left and status in (0, 128 + STOP) else status

    def _pause(self) -> int | None:
        left = min(self._deadline, self._insist) - time.monotonic()
        return None if left == float("inf") else max(0, min(int(left * 1000) + 1, 1 << 30))

    def _mind(self) -> None:
        """Handle interrupts, the alarm, the output limit and the timeout."""
        if self._signals.interrupts > self._acknowledged:
            self._acknowledged = self._signals.interrupts
            self._interrupted = self._stop(signal.SIGINT)
            self._insist = time.monotonic() + INSIST
        if time.monotonic() >= self._insist:
            # A loop in the shell goes on although its commands were interrupted, or the signal came between two
            # commands. A process that got SIGINT and still runs is handling it, or ignores it (background, `&`).
            self._insist = float("inf")
            left = self._interrupted.intersection(self._members())
            if all(procs.ignores(pid, signal.SIGINT) for pid in left):
                # The whole group, as a terminal does: bash acts on SIGINT only if the command it waits for died of
                # it. It misses one if that command was just ending by itself, hence several tries.
                os.killpg(self._shell._pid, signal.SIGINT)
                self._tries -= 1
                self._insist = time.monotonic() + INSIST if self._tries else float("inf")
        if self._stage == 0:
            if self._signals.alarm:
                self._end("[INTERRUPTED] the time limit of this process was reached; the command was ended")
            elif any(stream.too_much for stream in self._streams.values()):
                self._end("[OUTPUT LIMIT] the command printed without end and was ended")
        if time.monotonic() < self._deadline:
            return
        if self._stage == 0:
            self.timed_out = True
            self._end(f"[TIMEOUT] the command was ended after {self._timeout:g} s")
        elif self._stage == 1:
            self._stage, self._deadline = 2, time.monotonic() + LAST
            rounds = 10  # a loop may start new processes meanwhile
            while self._tell(signal.SIGKILL) and rounds:
                rounds -= 1
        else:
            self._stage, self._deadline = 3, float("inf")
            os.kill(self._shell._pid, signal.SIGKILL)

    def _end(self, note: str) -> None:
        self.notes.append(note)
        self._stage, self._deadline = 1, time.monotonic() + GRACE
        self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> set[int]:
        """Signal the processes of the command, after the shell was told that no other one may follow."""
        os.kill(self._shell._pid, STOP)
        self._left = 128 + number
        return self._tell(number)

    def _members(self) -> list[int]:
        return procs.of_command(self._shell._pid, self._begun, self._older)

    def _tell(self, number: int) -> set[int]:
        """Signal the processes of the command, a shell before what it waits for, and return their pids."""
        pids = self._members()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return set(pids)
