"""A terminal that `quine top` fills: its second screen, keys one by one, and all as it was at the end.

Laws
1. The terminal is as it was before whenever this process does not run: at its end, also by a signal, and while it is
   stopped. Only KILL leaves it as it is.
2. Nothing scrolls or wraps: a line is cut by the terminal, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios

from transport.client.signals import Caught
from transport.status import signal_name
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENTER = b"\x1b[?1049h\x1b[?7l\x1b[?25l"  # the second screen, no wrapping, no cursor
LEAVE = b"\x1b[?25h\x1b[?7h\x1b[?1049l"
FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LONGEST = 3600.0  # seconds of one wait
OTHERS = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class Signalled(Exception):
    """A signal is to end this process; the terminal is as it was."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Screen:
    """The terminal at stdout, as a context manager."""

    def __init__(self) -> None:
        self._keys = 0 if os.isatty(0) else _terminal()
        self._before: list[Any] | None = None
        self._shown = False
        self._caught = Caught()

    def __enter__(self) -> Screen:
        self._caught.install((*FATAL, *OTHERS))
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._caught.uninstall()
        self._caught.close()
        if self._keys > 0:
            os.close(self._keys)

    def _enter(self) -> None:
        if self._keys >= 0:
            with contextlib.suppress(termios.error):
                # TSTP comes while this process is in the background, and stops it until it is in the foreground.
                self._before = self._before or termios.tcgetattr(self._keys)
                mode = termios.tcgetattr(self._keys)
                mode[3] &= ~(termios.ICANON | termios.ECHO)
                mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
                termios.tcsetattr(self._keys, termios.TCSADRAIN, mode)
        self._shown = True
        write_all(1, ENTER)

    def _leave(self) -> None:
        if not self._shown:
            return
        self._shown = False
        with contextlib.suppress(OSError):  # the terminal has gone
            write_all(1, LEAVE)
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            width, height = os.get_terminal_size(1)
        except OSError:
            width = height = 0
        return width or 80, height or 24

    def paint(self, lines: list[str]) -> None:
        text = "\x1b[K\n".join(lines)
        write_all(1, f"\x1b[H{text}\x1b[K\x1b[J".encode())

    def wait(self, seconds: float, *others: int) -> bytes | None:
        """Wait for a key, a change of the terminal, or input on one of `others`, at most `seconds`.

        Return the keys, b"" if it is time to paint, None if the terminal has hung up. Raises Signalled.
        """
        poll = select.poll()
        for fd in (self._caught.fd, self._keys, *others):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(int(min(seconds, LONGEST) * 1000) + 1)}
        if self._caught.fd in ready:
            self._caught.drain()
            while number := self._caught.take():
                self._signalled(number)
        if self._keys < 0 or self._keys not in ready:
            return b""
        try:
            return os.read(self._keys, 64) or None
        except OSError:
            return None

    def _signalled(self, number: int) -> None:
        if number in FATAL:
            self._leave()
            raise Signalled(signal_name(number))
        if number == signal.SIGTSTP:
            self._leave()
            if not self._caught.stop(number, FATAL):
                return  # a fatal one was noted before, and comes next
            self._enter()
        elif number == signal.SIGCONT:
            self._leave()  # it was stopped by STOP, and the shell has the terminal in its own mode since
            self._enter()


def _terminal() -> int:
    """Open the terminal for its keys; -1 if this process has none."""
    try:
        return os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
