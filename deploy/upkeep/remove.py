"""Removes what quine has put on a host: the one command that does it, and its answer.

    exec /bin/sh -c '...'                  ->         with --now it ends the nodes of all builds first
                                           <-     MARKER removed COUNT used NAME… left NAME…

Laws
1. An installation that a process runs stays, and is named: its path stands in the command line of that process. Its
   layers stay, too; `layer-` sorts behind the names of installations, so that these have gone or stayed before. With
   `now` each node is asked to end before, which it refuses while it has jobs. An installation with a note of another
   host with this home (`note_use` of transport/this_build.py) that is not half an hour old stays, too, and so do the
   interpreters that were brought: one of them may run it. A note without the name of a boot is of an older build; it is
   this host's if it has its name. Where `find` cannot tell its age, it counts as new.
2. Only that is removed which quine made: directories with the file of an installation in them, interpreters and
   layers that were brought, and leftovers of installers. The cache itself goes if nothing else is in it.
3. A cache that another user may have made, or can change, is refused: nothing in it is started or removed. In one
   that is the user's own, entries of others (root's) stay, and are named.
4. Any login shell passes the command on as it is, and no Python is needed for it: see `probe.py`.
"""

from __future__ import annotations

import re
import time
from functools import partial

from deploy import dial, probe, push
from deploy.host import Host
from deploy.inventory import Inventory
from deploy.probe import Answers, Place
from deploy.there import installer, layers
from transport.carrier.duplex import Bootstrap
from transport.errors import Unreachable

# The pattern comes by a pipe: as an argument of grep it would stand in a command line, and be found there.
_RUNS = 'echo "{}" | grep -qFf - /proc/{}/cmdline 2>/dev/null'
_OWN = '[ -e "{base}" ] && {{ own "{base}" || {{ echo {marker} fail owner "{base}"; exit 69; }}; }}; '
_STOP = (
    'for d in "{base}"/*; do [ -f "$d/{file}" ] && [ -x "$d/quine" ] && own "$d" && '
    'PATH="$d:$PATH" "$d/quine" node --stop </dev/null >/dev/null 2>&1; done; '
)
_SCRIPT = (
    'n=0; u=; l=; o=; m="$(uname -n)"; {{ read -r b </proc/sys/kernel/random/boot_id; }} 2>/dev/null || b="$m"; '
    + _RUNS.format("/bin/sh", "$$")
    + " || {{ echo {marker} blind; exit 0; }}; "
    + 'for d in "{base}"/* "{base}"/unpacked/* "{base}"/.part-* "{base}"/.new-* "{base}"/.old-*; do '
    'c="${{d##*/}}"; k=1; case "$c" in .part-*|.new-*|.old-*) k=0;; {brought}*) k=${{o:-1}};; {layer}*) k=2;; '
    '*) [ -f "$d/{file}" ] || continue;; esac; '
    '[ -e "$d" ] || continue; [ $k = other ] && {{ u="$u $c"; continue; }}; [ -O "$d" ] || {{ l="$l $c"; continue; }}; '
    "if [ $k -gt 0 ] && " + _RUNS.format("$d/", "[0-9]*") + '; then u="$u $c"; continue; fi; '
    'for y in "$d"/used-*; do [ -e "$y" ] || continue; case "$y" in "$d/used-$m"|"$d/used-$m-$b") continue;; esac; '
    'f="$(find "$y" -mmin -{minutes} 2>/dev/null)" && [ -z "$f" ] && continue; u="$u $c"; o=other; continue 2; done; '
    'if [ $k = 2 ]; then for y in "{base}"/*/{layer}* "{base}"/unpacked/*/{layer}*; do '
    'if [ "$y" -ef "$d" ]; then u="$u $c"; continue 2; fi; done; fi; '
    'rm -rf "$d" 2>/dev/null; if [ -e "$d" ]; then l="$l $c"; else n=$((n + k % 2)); fi; '
    'done; rmdir "{base}/unpacked" "{base}" 2>/dev/null; echo {marker} removed $n used$u left$l'
)

BY_HAND = "its /bin/sh, grep and /proc are needed for it; or remove its cache of quine by hand"


async def remove(
    host: Host,
    inventory: Inventory,
    *,
    ssh_agent: str | None,
    note: dial.Note,
    news: dial.Note = dial.unheard,
    now: bool = False,
) -> dial.Visit:
    """Remove all that quine has put on `host`, but the builds that a process runs; `now`: end idle nodes before."""
    began = time.monotonic()

    async def talk(duplex: Bootstrap, answers: Answers, allow: object) -> str:
        return await push.next_answer(host.name, duplex, answers)

    answer = await dial.speak(
        host,
        inventory,
        partial(command, now=now),
        "remove builds",
        talk,
        ssh_agent=ssh_agent,
        note=note,
        news=news,
    )
    if answer.startswith("fail "):
        raise push.failed(host.name, answer, 0)
    try:
        removed, used, left = parsed(answer)
    except ValueError as error:
        raise Unreachable(host.name, f"nothing was removed: {error}", BY_HAND) from None
    seconds = time.monotonic() - began
    return dial.Visit(seconds, False, None, removed=removed, used=used, left=left)


def command(place: Place, marker: str, now: bool = False) -> str:
    """Return the command for the channel."""
    names = {"file": installer.FILE, "brought": probe.BROUGHT, "layer": layers.PREFIX}
    names["minutes"] = str(installer.USED // 60)
    script = _OWN + (_STOP if now else "") + _SCRIPT
    script = script.format(base=probe.in_shell(place.cache), marker=marker, **names)
    return probe.for_any_shell(probe.judge(place) + script)


def parsed(answer: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Return how many are gone, the names of those in use, and of those that cannot be removed.

    Raises ValueError for any other line.
    """
    found = re.fullmatch(r"removed ([0-9]{1,9}) used((?: \S+)*) left((?: \S+)*)", answer)
    if found is None:
        raise ValueError(f"not an answer: {answer!r}")
    return int(found[1]), tuple(found[2].split()), tuple(found[3].split())
