"""The one command that a session channel runs, and the answers to it: pure text, no I/O.

    origin                                        host
    exec /bin/sh -c '...'                  ->
                                           <-     MARKER have            then the dial's own bytes
                                           or     MARKER need|shut SYSTEM MACHINE VERSION FREE PYTHON
    length, program, binary                ->
                                           <-     MARKER unpack | fail WORD TEXT | have

Laws
1. Any login shell passes it on as it is: within its single quotes there is no single quote, no backslash, no
   exclamation mark and no newline. So sh, csh, tcsh and fish are one case.
2. A host that has the binary answers and starts the dial at once: one round trip.
3. Bytes before the marker are a banner of the login shell: they are skipped, never trusted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy.build import Binary
from transport.text import harmless

BANNER_LIMIT = 1 << 20  # bytes without a marker, after which none will come any more
LINE_LIMIT = 4096

# Size and age are checked: a full disk truncates a file, and a person may change one. The launcher is the last thing
# written, so a binary that is younger than it was written to later.
_HAVE = (
    'd="$HOME/.cache/quine/{sha256}"; '
    'if {trusted} [ -x "$d/venv/bin/python" ] && [ "$d/quine" -nt "$d/quine.pex" ] && '
    '[ "$(wc -c < "$d/quine.pex")" -eq {size} ]; '
    "then {found}; fi; "
)
# -I: no PYTHON* variable and no file of the login directory may replace our modules
_FOUND = {
    "dial": 'echo {marker} have; PATH="$d:$PATH"; export PATH; exec "$d/venv/bin/python" -I -m quine node --dial',
    "deploy": "echo {marker} have; exit 0",
    "check": "h=have",
}
_FACTS = (
    "v=none; f=0; p=; "
    'for b in "$HOME/.cache/quine" "$HOME/.cache" "$HOME" /; do [ -d "$b" ] && break; done; '
    '[ $h = have ] || [ -w "$b" ] || h=shut; '
    'for c in python{version} python3 "$HOME/.local/bin/python{version}"; do '
    'x="$("$c" -c "import os, sys; s = os.statvfs(sys.argv[1]); '
    "print(*sys.version_info[:2], sep=chr(46), end=chr(32)); "
    'print(s.f_bavail * s.f_frsize)" "$b" 2>/dev/null)" || continue; '
    'v="${{x% *}}"; f="${{x#* }}"; p="$(command -v "$c")"; [ "$v" = {version} ] && break; done; '
    "echo {marker} $h $(uname -s) $(uname -m) $v $f $p; "
)
_RECEIVE = (
    '[ "$v" = {version} ] && '
    'exec "$p" -I -c "import sys; f = sys.stdin.buffer; exec(f.read(int(f.readline())))"; exit 69'
)


@dataclass(frozen=True)
class Facts:
    """Facts that a host reports. `python` is the path of the best one, "" for none."""

    have: bool  # this very binary is there
    shut: bool  # and it cannot be put there: the home is missing, or cannot be written
    system: str
    machine: str
    version: str
    free: int
    python: str


def command(binary: Binary, marker: str, mode: str = "dial", *, trust: bool = True) -> str:
    """Return the command for the channel. `trust` False installs anew whatever is there.

    Modes: "dial" installs if need be and starts the dial, "deploy" only installs, "check" only looks.
    """
    values = {
        "sha256": binary.sha256,
        "size": binary.size,
        "marker": marker,
        "version": ".".join(map(str, binary.python)),
        "trusted": "" if trust else "false &&",
    }
    script = "h=need; " + _HAVE.replace("{found}", _FOUND[mode]) + _FACTS
    script = (script + ("exit 0" if mode == "check" else _RECEIVE)).format(**values)
    assert not set("'\\!\n") & set(script)
    return f"exec /bin/sh -c '{script}'"


class Answers:
    """Finds the marked lines in the bytes of a host, whatever stands around them."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self._sought = marker.encode() + b" "
        self._data = b""
        self.banner = b""

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> str | None:
        """Return the next answer without its marker, None until it is whole. Raises ValueError if it will not come."""
        found = self._data.find(self._sought)
        if found < 0:
            if len(self._data) > BANNER_LIMIT:
                raise ValueError(f"more than {BANNER_LIMIT >> 20} MB before the first answer")
            return None
        start = found + len(self._sought)
        end = self._data.find(b"\n", start)
        if end < 0:
            if len(self._data) - start > LINE_LIMIT:
                raise ValueError("an answer without an end")
            return None
        self.banner = (self.banner + self._data[:found])[-LINE_LIMIT:]
        line, self._data = self._data[start:end], self._data[end + 1 :]
        return plain(line).strip()

    def rest(self) -> bytes:
        """Return the bytes after the last answer: the first bytes of the dial, or the words of a shell that failed."""
        rest, self._data = self._data, b""
        return rest


def plain(data: bytes) -> str:
    """Return a host's output as text fit for a terminal: no escape sequence, no other control character."""
    return harmless(data.decode(errors="replace"), keep="\n", instead=" ")


def facts(answer: str) -> Facts:
    """Parse a line `need ...`, `shut ...` or, in a check, `have ...`. Raises ValueError for any other line."""
    found = re.fullmatch(r"(need|shut|have) (\S+) (\S+) (none|\d+\.\d+) (\d+) ?(.*)", answer)
    if found is None:
        raise ValueError(f"not an answer: {answer!r}")
    state, system, machine, version, free, python = found.groups()
    return Facts(state == "have", state == "shut", system, machine, version, int(free), python)
