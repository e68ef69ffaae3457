"""Terminals: the caller's, which becomes a plain line of bytes, and a job's, which is made for it.

Laws
1. The caller's terminal is given back as it was found, whatever ends us, and whenever we are suspended.
2. A key is a byte: the line discipline over there makes signals of ^C and ^Z, and none is made here.
3. What raw mode takes away must have another way: `~.` after a newline leaves, as with ssh.
4. The process over there leads a session whose terminal is its own; when our end is closed, the kernel hangs it up.
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
    """The caller's own. `size` is (rows, columns)."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)  # ours for as long as it has to be given back
        self._found: list[Any] | None = None  # its settings, while ours are in force
        self.taken = False  # to be read; before, what is typed is the shell's, or that of whoever is in front
        self.escapes = Escapes()

    @property
    def size(self) -> tuple[int, int]:
        return size_of(self._fd)

    def raw(self) -> None:
        """Bytes as they are typed, bytes as they come. OSError where it has hung up.

        Not to be called in the background, where the kernel stops us here. InterruptedError when we go on all the same.
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
            # Settings are kept before they are changed: whatever comes between the two, restore can undo it
            self._found = settings
            self.taken = False
            # NOW, not DRAIN: a terminal whose output is held up must not hold up our leaving
            termios.tcsetattr(self._fd, termios.TCSANOW, wanted)
            self.taken = True
        except termios.error as error:
            raise OSError(*error.args) from None

    @property
    def behind(self) -> bool:
        """Whether we are in the background of it."""
        try:
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        except OSError:
            return False  # not our controlling terminal: nobody but us has it

    def restore(self) -> None:
        """As it was found. Not while others have it: a shell in front of us has put in its own settings."""
        if self._found is None:
            return
        settings, self._found = self._found, None
        self.taken = False
        if self.behind:
            return
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, settings)
        except termios.error:
            pass  # it hung up

    def say(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode())
        except OSError:
            pass

    def close(self) -> None:
        os.close(self._fd)


def size_of(fd: int) -> tuple[int, int]:
    """(rows, columns); both 0 where it has hung up."""
    try:
        return termios.tcgetwinsize(fd)
    except termios.error:
        return 0, 0


def description(fd: int, environ: Mapping[str, str]) -> dict[str, object]:
    """What a spawn says of the caller's."""
    rows, columns = size_of(fd)
    return {"rows": rows, "columns": columns, "term": environ.get("TERM", "")}


class Escapes:
    """Finds `~.` and its like among what is typed: keys in, keys to send and commands out."""

    def __init__(self) -> None:
        self._fresh = True  # at the beginning of a line
        self._held = False  # a ~ there, which is sent when what follows makes no command of it

    def feed(self, data: bytes) -> tuple[bytes, list[str]]:
        """What to send, and the commands in it; after LEAVE nothing more is looked at."""
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
    """A terminal of this size as three descriptors of ours and three of the child's, none inheritable.

    Ours are its input, its output, and an empty pipe in place of stderr, which a terminal does not tell apart.
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
    """In the child, the leader of a session without a terminal: descriptor 0 is its terminal from now on."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def resize(fd: int, rows: int, columns: int) -> None:
    """Set its size. The foreground group is told even if it is what it was: a client that was suspended comes back
    to a screen on which others have written.
    """
    try:
        before = termios.tcgetwinsize(fd)
        termios.tcsetwinsize(fd, (rows, columns))  # of a change the kernel tells
        if before == (rows, columns) and (group := os.tcgetpgrp(fd)) > 0:
            os.killpg(group, signal.SIGWINCH)
    except (OSError, termios.error):
        pass  # nobody has it any more


def end_of_input(fd: int, fresh: bool) -> bytes:
    """What a terminal has for the end of a file; in the midst of a line the first one only ends the line."""
    try:
        key: bytes = termios.tcgetattr(fd)[6][termios.VEOF]
    except termios.error:
        return b""
    return key if fresh else key * 2
