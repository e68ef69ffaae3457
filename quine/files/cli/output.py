"""Printing of names and entries of the tier: for a person on a terminal, or for the next program in a pipe.

Laws
1. In a pipe a name is its bytes. On a terminal unprintable characters are escaped: no file name moves the cursor.
2. JSON is ASCII, one object a line. A byte of a name that is no UTF-8 is a lone surrogate (\\udc80 to \\udcff, as
   Python's os.fsencode expects it). Such an object also has `path_base64`, the name's bytes.
3. A reader that has gone (`| head -1`) ends the process as it ends any other: by SIGPIPE, without a message.
"""

from __future__ import annotations

import os
import stat
import time

from quine.base.errors import LOST, Failure
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.files.api import Entry, Reader

ENOUGH = 65536  # bytes gathered before a write
UNITS = "KMGTPE"


class Hungup(Exception):
    """The reader of stdout has gone."""


class Output:
    """Buffered stdout for bytes. Call `flush` before the end."""

    def __init__(self) -> None:
        self.fd = 1
        self._kept = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._kept += data
        if len(self._kept) >= ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Write the buffer. Raises Failure if stdout cannot be written, Hungup if its reader has gone."""
        block = bytes(self._kept)
        self._kept.clear()
        self._all(block)

    def copy(self, reader: Reader) -> int:
        """Write the rest of an open file; return the number of bytes. Raises as `flush`."""
        self.flush()
        total = 0
        while block := reader.read():
            total += len(block)
            self._all(block)
        return total

    def _all(self, block: bytes) -> None:
        try:
            write_all(self.fd, block)
        except BrokenPipeError:
            raise Hungup from None
        except OSError as problem:
            raise Failure(LOST, f"cannot write stdout: {(problem.strerror or '').lower()}") from None

    def terminal(self) -> bool:
        return os.isatty(self.fd)


def escaped(name: str) -> str:
    """The name for a person: unprintable characters, and bytes that are no UTF-8, are escaped."""
    if name.isprintable():
        return name
    from transport.text import harmless

    return harmless(name)


def path_bytes(name: str, terminal: bool) -> bytes:
    return escaped(name).encode("utf-8", "replace") if terminal else os.fsencode(name)


def long(entry: Entry, human: bool) -> str:
    """The columns of `ls -l` before the name: mode, size, time."""
    kind = stat.S_IFREG if entry.is_file else stat.S_IFDIR
    size = human_size(entry.size) if human else str(entry.size)
    when = _when(entry, "%Y-%m-%d %H:%M:%S", time.localtime)
    return f"{stat.filemode(kind | entry.mode & 0o7777)} {size:>{6 if human else 12}} {when:19} "


def _when(entry: Entry, form: str, clock: Callable[[float], time.struct_time]) -> str:
    """The formatted time; `-` for a directory without one, and for a time that cannot be formatted."""
    try:
        return time.strftime(form, clock(entry.mtime)) if entry.mtime or entry.is_file else "-"
    except (OverflowError, ValueError, OSError):
        return "-"


def human_size(size: float) -> str:
    """4096 -> 4.0K, as `ls -h`."""
    if size < 1000:
        return str(int(size))
    for unit in UNITS:
        size /= 1024
        if size < 999.5 or unit == UNITS[-1]:
            return f"{size:.1f}{unit}" if size < 10 else f"{size:.0f}{unit}"
    raise AssertionError


def as_json(entry: Entry) -> bytes:
    """The entry as one line of JSON. `mtime` is in seconds since the epoch, `mode` is a number."""
    from transport import quickjson

    fields: dict[str, object] = {
        "path": entry.path,
        "type": entry.kind,
        "size": entry.size,
        "mtime": entry.mtime,
    }
    fields |= {"mode": entry.mode, "version": entry.version}
    try:
        entry.path.encode()
    except UnicodeEncodeError:
        from base64 import b64encode

        fields["path_base64"] = b64encode(os.fsencode(entry.path)).decode()
    return quickjson.dumps(fields).encode() + b"\n"


def details(entry: Entry) -> str:
    """The output of `stat` for an entry."""
    part = f"{entry.mtime % 1:.6f}"[1:]
    when = _when(entry, f"%Y-%m-%dT%H:%M:%S{part}Z", lambda mtime: time.gmtime(mtime // 1))
    lines = [f"path:    {escaped(entry.path) or '/'}", f"type:    {entry.kind}", f"size:    {entry.size}"]
    lines += [f"mode:    {entry.mode:04o}", f"mtime:   {when}"]
    lines += [f"version: {escaped(entry.version)}"] if entry.version else []
    return "\n".join(lines) + "\n"
