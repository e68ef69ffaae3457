"""Terminals: the caller's, which is set to raw mode, and a job's, which is made for it.

Laws
1. The caller's terminal is restored as it was found, whatever ends this process, and whenever it is suspended.
2. A key is a byte: the line discipline of the job's terminal makes signals of ^C and ^Z; none is made here.
3. Raw mode leaves no key that ends the client. So `~.` after a newline leaves, as with ssh.
4. The job leads a session with a terminal of its own; when our end is closed, the kernel hangs it up.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

IUTF8 = 0x4000  # erase takes a whole character; Python has no name for it

LEAVE, SUSPEND, HELP = ".", "\x1a", "?"
ESCAPES = """\r
~.   disconnect; the command over there gets SIGHUP\r
~^Z  suspend this client; the command over there goes on\r
~~   send one ~\r
~?   this text\r
(only after a newline)\r
"""


class Terminal:
    """The caller's terminal. `size` is (rows, columns)."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)  # our own copy, open as long as the terminal may have to be restored
        self._found: list[Any] | None = None  # the settings found, while ours are in force
        self.taken = False  # stdin may be read; before, typed bytes belong to the shell or the foreground job
        self.escapes = Escapes()

    @property
    def size(self) -> tuple[int, int]:
        return size_of(self._fd)

    def raw(self) -> None:
        """Set raw mode. Raises OSError if the terminal has hung up.

        Not to be called in the background: the kernel stops this process here. When continued it gets InterruptedError.
        """
        try:
            settings = self._found or termios.tcgetattr(self._fd)
            wanted = [*settings[:6], list(settings[6])]
            wanted[0] &= ~(
                termios.IGNBRK
                | termios.BRKINT
                | termios.PARMRK
                | termios.ISTRIP
                | termios.INLCR
                | termios.IGNCR
                | termios.ICRNL
                | termios.IXON
                | termios.IXOFF
            )
            wanted[1] &= ~termios.OPOST
            wanted[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
            wanted[6][termios.VMIN], wanted[6][termios.VTIME] = 1, 0
            # The settings are kept before they are changed, so that `restore` can undo an interrupted change
            self._found = settings
            self.taken = False
            # NOW, not DRAIN: a terminal whose output is held up must not delay our exit
            termios.tcsetattr(self._fd, termios.TCSANOW, wanted)
            self.taken = True
        except termios.error as error:
            raise OSError(*error.args) from None

    @property
    def behind(self) -> bool:
        """Whether this process is in the background of the terminal."""
        try:
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        except OSError:
            return False  # not our controlling terminal: no other group has it

    def restore(self) -> None:
        """Restore the settings found, unless in the background: there the shell in front has set its own."""
        if self._found is None:
            return
        settings, self._found = self._found, None
        self.taken = False
        if self.behind:
            return
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, settings)
        except termios.error:
            pass  # the terminal hung up

    def say(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode())
        except OSError:
            pass

    def close(self) -> None:
        os.close(self._fd)


def size_of(fd: int) -> tuple[int, int]:
    """Return (rows, columns); both 0 if the terminal has hung up."""
    try:
        return termios.tcgetwinsize(fd)
    except termios.error:
        return 0, 0


def description(fd: int, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the `terminal` of a spawn, for the caller's terminal."""
    rows, columns = size_of(fd)
    return {"rows": rows, "columns": columns, "term": environ.get("TERM", "")}


class Escapes:
    """Finds `~.` and the other escapes in typed bytes: keys in, keys to send and commands out."""

    def __init__(self) -> None:
        self._fresh = True  # at the beginning of a line
        self._held = False  # a ~ there; it is sent if the next byte makes no command of it

    def feed(self, data: bytes) -> tuple[bytes, list[str]]:
        """Return (bytes to send, commands found); bytes after LEAVE are ignored."""
        if not (self._held or self._fresh or b"\r~" in data or b"\n~" in data):
            self._fresh = data[-1:] in (b"\r", b"\n")
            return data, []
        out, commands = bytearray(), []
        for byte in data:
            if self._held:
                self._held = False
                command = chr(byte)
                if command in (LEAVE, SUSPEND, HELP):
                    commands.append(command)
                    self._fresh = True
                    if command == LEAVE:
                        break
                    continue
                out += b"~"
                if byte == 0x7E:
                    self._fresh = False
                    continue
            elif self._fresh and byte == 0x7E:
                self._held = True
                continue
            out.append(byte)
            self._fresh = byte in b"\r\n"
        return bytes(out), commands


# -- over there ------------------------------------------------------------------------------------


def pair(rows: int, columns: int) -> tuple[list[int], list[int]]:
    """Make a terminal of this size: three descriptors of ours and three of the child's, none inheritable.

    Ours are its input, its output, and an empty pipe in place of stderr, because a terminal has one output.
    """
    made: list[int] = []
    try:
        made += os.openpty()
        master, slave = made
        resize(master, rows, columns)
        settings = termios.tcgetattr(slave)
        settings[0] |= IUTF8
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        for fd in (master, slave, slave):
            made.append(os.dup(fd))
        made += os.pipe2(os.O_CLOEXEC)
    except (OSError, termios.error) as error:
        for fd in made:
            os.close(fd)
        raise OSError(*error.args) from None
    os.close(made.pop())
    return [made[0], made[2], made[5]], [made[1], made[3], made[4]]


def take() -> None:
    """In the child, which leads a session without a terminal: make descriptor 0 its controlling terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def resize(fd: int, rows: int, columns: int) -> None:
    """Set the size of a terminal. The foreground group gets SIGWINCH even if the size is unchanged.

    A client that was suspended comes back to a screen on which other programs have written.
    """
    try:
        before = termios.tcgetwinsize(fd)
        termios.tcsetwinsize(fd, (rows, columns))  # the kernel signals a change
        if before == (rows, columns) and (group := os.tcgetpgrp(fd)) > 0:
            os.killpg(group, signal.SIGWINCH)
    except (OSError, termios.error):
        pass  # nobody uses it any more


def end_of_input(fd: int, fresh: bool) -> bytes:
    """Return the keys that end a file on a terminal; b"" if it has hung up.

    Unless `fresh` (at the beginning of a line), two keys are needed: the first only ends the line.
    """
    try:
        key: bytes = termios.tcgetattr(fd)[6][termios.VEOF]
    except termios.error:
        return b""
    return key if fresh else key * 2
