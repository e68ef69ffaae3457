"""The files with host keys, as OpenSSH writes and reads them; first contacts are recorded (accept-new).

Laws
1. A name is looked up as ssh does it: the name or alias that was asked for, never the address it resolved to;
   with a port that is not 22 it is `[name]:port`.
2. This module does not decide whether a key is good: it says which keys are recorded, and where.
3. A line that cannot be read is skipped, as ssh does; a file that cannot be read is an OSError.
"""

from __future__ import annotations

import base64
import binascii
import errno
import fcntl
import hmac
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PORT = 22


@dataclass(frozen=True)
class Entry:
    """One line: `key` is "algorithm base64", `marker` is "", "cert-authority" or "revoked"."""

    marker: str
    names: str
    key: str
    path: Path
    line: int


class KnownHosts:
    """The entries of the files; new ones are written to the first file."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)
        self._entries: list[Entry] = []
        for path in files:
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                continue
            self._entries += parse(text, path)

    def find(self, name: str) -> list[Entry]:
        """Return all entries recorded under `name`, as given by `name_of`."""
        return [entry for entry in self._entries if matches(entry.names, name)]

    def record(self, name: str, key: str, hashed: bool = False) -> None:
        """Add a first contact: one whole line under a lock, so that concurrent writers tear nothing.

        With `hashed` the name cannot be read from the file (HashKnownHosts). Raises OSError if the file cannot be
        written, or is not a regular file and would lose the line.
        """
        path = self.files[0]
        line = f"{_as_hash(name) if hashed else name} {key}\n".encode()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb+") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is not a file", str(path))
            fcntl.flock(file, fcntl.LOCK_EX)
            there = file.read()
            recorded = parse(there.decode("utf-8", "replace"), path)
            if not any(
                entry.key == key and not entry.marker and matches(entry.names, name) for entry in recorded
            ):
                file.write((b"\n" if there and not there.endswith(b"\n") else b"") + line)


def name_of(host: str, port: int) -> str:
    """Return the name under which ssh keeps the key of that host and port."""
    return host.lower() if port == PORT else f"[{host.lower()}]:{port}"


def parse(text: str, path: Path) -> Iterable[Entry]:
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0)[1:] if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#") and marker in ("", "cert-authority", "revoked"):
            yield Entry(marker, fields[0], f"{fields[1]} {fields[2]}", path, number)


def matches(names: str, name: str) -> bool:
    """Return whether the first field of a line means `name`: patterns, negations and hashed names, as in sshd(8)."""
    if names.startswith("|"):
        return _hashed(names, name)
    found = False
    for pattern in names.lower().split(","):
        negated = pattern.startswith("!")
        if _wild(pattern.removeprefix("!")).fullmatch(name):
            if negated:
                return False
            found = True
    return found


def _wild(pattern: str) -> re.Pattern[str]:
    # not fnmatch: the brackets of [name]:port are literal
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."))


def _as_hash(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _hashed(names: str, name: str) -> bool:
    try:
        _, magic, salt, digest = names.split("|")
        wanted = base64.b64decode(digest, validate=True)
        made = hmac.digest(base64.b64decode(salt, validate=True), name.encode(), "sha1")
    except (ValueError, binascii.Error):
        return False
    return magic == "1" and hmac.compare_digest(made, wanted)
