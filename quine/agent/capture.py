"""Output of a command or a child: its beginning and end in memory, and all of it in a file once it is too long.

Laws
1. Memory is bounded by the size of the text shown. Nothing is dropped: the result names the file that holds all
   output, or says why there is none.
2. Truncation never splits a character.
3. No line of output can be taken for a line of the host loop: a line that begins with one of `HEADERS`, after any
   number of backslashes, gets one more backslash in front, as mboxrd does with From. Invisible characters and the
   escape sequences of terminals do not count.
"""

from __future__ import annotations

import fcntl
import os
import sys

from quine.base import dirs
from quine.base.sessions import JOB
from transport.lean import contextlib
from transport.provenance import regular_file

HIGH = 20  # pipe ends of the agent stay above the descriptors that shells and users redirect
PIPE = 1 << 18  # bytes of background output that fit between commands
LIMIT = 1 << 30  # bytes kept of one stream; a command that prints more is ended, and the result says so
CHUNK = 1 << 18
COMMON = ("x86_64", "i686", "aarch64", "armv7l", "riscv64", "s390x", "loongarch64")  # they have one FIONREAD

# Of ECMA-48: control sequences, whole strings as titles and links have them, and what begins any other one.
ESCAPES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
)
# Characters without a width that count as printable: Unicode has them as ignorable by default.
UNSEEN = {
    *"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0",
    *map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))),
}

# beginnings of the lines of a result that are not output; a test compares this list with the sources
HEADERS = (
    "[EXIT CODE]",
    "[STDOUT]",
    "[STDERR]",
    "[SIGNAL]",
    "[STATE]",
    "[SHELL]",
    "[SHELL ERROR]",
    "[TIMEOUT]",
    "[INTERRUPTED]",
    "[OUTPUT LIMIT]",
    "[BACKGROUND OUTPUT]",
    "[FORK]",
    "[FORK ENDED]",
    "[FORK ERROR]",
    "[HOSTS]",
    "[EXEC ERROR]",
    "[TURNS LEFT]",
    "[TOKENS LEFT]",
    "[COST LEFT]",
    "[TIME LEFT]",
    "[CONTEXT USED]",
    "[CONTEXT]",
    "[CUT]",
    "[DROPPED]",
    "[LOST]",
    "[LAST REPLY]",
    "[TIME LIMIT]",
    "[REMINDER]",
    "--- CHILD ",
    "...[Output Truncated",
)


class Capture:
    def __init__(self, limit: int, path: str) -> None:
        self._limit = limit
        self._path = path
        self._kept = bytearray()  # all output until it exceeds the limit, then its beginning
        self._tail = bytearray()
        self._fd = -1
        self._spilt = False
        self._fault = ""
        self.total = 0

    @property
    def too_much(self) -> bool:
        return self.total > LIMIT

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        if not self._spilt:
            self._kept += data
            if len(self._kept) <= self._limit:
                return
            self._spill()
            data = b""
        self._keep(data)
        self._tail += data
        del self._tail[: -self._tail_size or len(self._tail)]

    def _spill(self) -> None:
        self._spilt = True
        try:
            dirs.make_inside(os.path.dirname(self._path), JOB)
            self._fd = regular_file.written(self._path, os.O_TRUNC)
        except OSError as error:
            self._fault = error.strerror or str(error)
        self._keep(self._kept)
        head = self._limit - self._tail_size
        self._tail += self._kept[head:]
        del self._tail[: -self._tail_size or len(self._tail)]
        del self._kept[head:]

    def _keep(self, data: bytes | bytearray) -> None:
        """Append `data` to the file. A write error, such as a full disk, ends the copy and not the command."""
        try:
            view = memoryview(data)
            while view and not self._fault:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._fault = error.strerror or str(error)
        finally:
            view.release()

    @property
    def _tail_size(self) -> int:
        return self._limit // 4

    def text(self) -> str:
        """Return the text to show, truncated if it is too long, and close the file."""
        self.close()
        if self.total <= self._limit:
            return quoted(self._kept.decode("utf-8", "replace"))
        where = (
            f"the whole could not be kept: {self._fault}" if self._fault else f"the whole is in {self._path}"
        )
        note = f"\n...[Output Truncated, {self.total} bytes total, {where}]...\n"
        return quoted(_whole_head(self._kept)) + note + quoted(_whole_tail(self._tail))

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def drain(fd: int, into: Capture) -> None:
    """Read only the bytes that are in the pipe now: a process may write to it without end."""
    left = int.from_bytes(fcntl.ioctl(fd, _fionread(), bytes(4)), sys.byteorder)
    while left > 0:
        data = os.read(fd, min(left, CHUNK))
        into.feed(data)
        left -= len(data)


def _fionread() -> int:
    """Return FIONREAD of ioctl(2). The library of `termios` takes a millisecond to open."""
    if os.uname().machine in COMMON:
        return 0x541B
    import termios

    return int(termios.FIONREAD)


def quoted(text: str) -> str:
    """Escape the lines of `text` that begin like a header of the host loop (law 3)."""
    hides = _hides(text.replace("\n", "").replace("\t", ""))
    if not hides and not any(header in text for header in HEADERS):
        return text
    lines = text.splitlines(keepends=True)  # also at carriage returns, which a guest may read as newlines
    return "".join("\\" + line if _seen(line).lstrip("\\").startswith(HEADERS) else line for line in lines)


def _hides(text: str) -> bool:
    """Return whether something in `text` is not seen by its reader."""
    return not text.isprintable() or not (text.isascii() or UNSEEN.isdisjoint(text))


def _seen(line: str) -> str:
    """Return `line` as it is read."""
    if not _hides(line.rstrip("\r\n")):
        return line
    import re

    line = re.sub(ESCAPES, "", line)
    return "".join(c for c in line if c.isprintable() and c not in UNSEEN)


def _whole_head(data: bytearray) -> str:
    """Decode `data` without an incomplete character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        if length > back:
            data = data[:-back]
        break
    return data.decode("utf-8", "replace")


def _whole_tail(data: bytearray) -> str:
    """Decode `data` without an incomplete character at its beginning."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:].decode("utf-8", "replace")


def pipe(size: int = 0) -> tuple[int, int]:
    """Return a pipe (read, write) with both descriptors at or above HIGH."""
    low = os.pipe2(os.O_CLOEXEC)
    high: list[int] = []
    try:
        for fd in low:
            high.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH))
    except OSError:
        for fd in high:
            os.close(fd)
        raise
    finally:
        for fd in low:
            os.close(fd)
    read, write = high
    if size:
        with contextlib.suppress(OSError):  # keep the default size if the user's pipe memory is used up
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, size)
    return read, write


def close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
