"""Removes what quine has put on a host: the one command that does it, and its answer. Pure text, no I/O.

    exec /bin/sh -c '...'                  ->
                                           <-     MARKER removed COUNT used NAME… left NAME…

Laws
1. An installation that a process runs stays, and is named: its path stands in the command line of that process.
2. Only that is removed which quine made: directories with the file of an installation in them, interpreters that were
   brought, and leftovers of installers. The cache itself goes if nothing else is in it.
3. Any login shell passes the command on as it is, and no Python is needed for it: see `probe.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy import installer, probe
from deploy.probe import Place

# The pattern comes by a pipe: as an argument of grep it would stand in a command line, and be found there.
_RUNS = 'echo "{}" | grep -qFf - /proc/{}/cmdline 2>/dev/null'
_SCRIPT = (
    "n=0; u=; l=; "
    + _RUNS.format("/bin/sh", "$$")
    + " || {{ echo {marker} blind; exit 0; }}; "
    + 'for d in "{base}"/* "{base}"/unpacked/* "{base}"/.part-* "{base}"/.new-* "{base}"/.old-*; do '
    'c="${{d##*/}}"; k=1; case "$c" in .part-*|.new-*|.old-*) k=0;; {brought}*) ;; '
    '*) [ -f "$d/{file}" ] || continue;; esac; '
    '[ -e "$d" ] || continue; '
    "if [ $k = 1 ] && " + _RUNS.format("$d/", "[0-9]*") + '; then u="$u $c"; continue; fi; '
    'rm -rf "$d" 2>/dev/null; if [ -e "$d" ]; then l="$l $c"; else n=$((n + k)); fi; '
    'done; rmdir "{base}/unpacked" "{base}" 2>/dev/null; echo {marker} removed $n used$u left$l'
)

BY_HAND = "its /bin/sh, grep and /proc are needed for it; or remove its cache of quine by hand"


@dataclass(frozen=True)
class Removal:
    """`count` installations and interpreters are gone; those of `used` run, those of `left` cannot be removed."""

    count: int
    used: tuple[str, ...]
    left: tuple[str, ...]


def command(place: Place, marker: str) -> str:
    """Return the command for the channel."""
    script = _SCRIPT.format(
        base=probe.in_shell(place.cache), marker=marker, file=installer.FILE, brought=probe.BROUGHT
    )
    return probe.for_any_shell(script)


def parsed(answer: str) -> Removal:
    """Parse the one answer. Raises ValueError for any other line."""
    found = re.fullmatch(r"removed (\d+) used((?: \S+)*) left((?: \S+)*)", answer)
    if found is None:
        raise ValueError(f"not an answer: {answer!r}")
    return Removal(int(found[1]), tuple(found[2].split()), tuple(found[3].split()))
