"""How names and entries of the tier are printed: for a person on a terminal, for the next program in a pipe.

Laws
1. In a pipe a name is its bytes. On a terminal what it would obey is shown as an escape: nobody's name for a file moves
   a cursor.
2. JSON is ASCII, one object a line. A byte of a name that is no UTF-8 is a lone surrogate there (\\udc80 to \\udcff, as
   Python's os.fsencode takes it back), and such an object has `path_base64` as well, the bytes themselves.
3. A reader that has gone (`| head -1`) ends the process as it ends any other: by SIGPIPE, without a word.
"""

from __future__ import annotations

import os
import stat
import time

from quine.base.errors import LOST, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.files.api import Entry, Reader

ENOUGH = 65536  # bytes that are worth a write
UNITS = "KMGTPE"


class Hungup(Exception):
    """Nobody reads our stdout any more."""


class Output:
    """stdout as bytes, written in large pieces; `flush` before the end."""

    def __init__(self) -> None:
        self.fd = 1
        self._kept = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._kept += data
        if len(self._kept) >= ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Raises Failure where it cannot be written; Hungup."""
        block = bytes(self._kept)
        self._kept.clear()
        self._all(block)

    def copy(self, reader: Reader) -> int:
        """All of an open file; how many bytes."""
        self.flush()
        total = 0
        while block := reader.read():
            total += len(block)
            self._all(block)
        return total

    def _all(self, block: bytes) -> None:
        left = memoryview(block)
        try:
            while left:
                left = left[os.write(self.fd, left) :]
        except BrokenPipeError:
            raise Hungup from None
        except OSError as problem:
            raise Failure(LOST, f"cannot write stdout: {(problem.strerror or '').lower()}") from None

    def terminal(self) -> bool:
        return os.isatty(self.fd)


def escaped(name: str) -> str:
    """Text for a person: control characters, and bytes that are no UTF-8, as escapes."""
    if name.isprintable():
        return name
    return "".join(
        c if c.isprintable() else f"\\x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else repr(c)[1:-1]
        for c in name
    )


def path_bytes(name: str, terminal: bool) -> bytes:
    return escaped(name).encode("utf-8", "replace") if terminal else os.fsencode(name)


def long(entry: Entry, human: bool) -> str:
    """What `ls -l` says before the name."""
    kind = stat.S_IFREG if entry.is_file else stat.S_IFDIR
    size = human_size(entry.size) if human else str(entry.size)
    when = _when(entry, "%Y-%m-%d %H:%M:%S", time.localtime)
    return f"{stat.filemode(kind | entry.mode & 0o7777)} {size:>{6 if human else 12}} {when:19} "


def _when(entry: Entry, form: str, clock: Callable[[float], time.struct_time]) -> str:
    """Its time; `-` for a directory of a store that knows none, and for what no calendar has."""
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
    """One line. `mtime` in seconds since the epoch, `mode` as a number."""
    from transport.wire import quickjson

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
    """What `stat` says of it."""
    part = f"{entry.mtime % 1:.6f}"[1:]
    when = _when(entry, f"%Y-%m-%dT%H:%M:%S{part}Z", lambda mtime: time.gmtime(mtime // 1))
    lines = [f"path:    {escaped(entry.path) or '/'}", f"type:    {entry.kind}", f"size:    {entry.size}"]
    lines += [f"mode:    {entry.mode:04o}", f"mtime:   {when}"]
    lines += [f"version: {escaped(entry.version)}"] if entry.version else []
    return "\n".join(lines) + "\n"
