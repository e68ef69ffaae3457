"""Brings a Python to a host that has none: a standalone one that the user has, as a packed tar file.

    exec /bin/sh -c '...'     ->
                              <-     MARKER have           a Python that is new enough is there
                              or     MARKER need KEPT
    the bytes behind KEPT     ->
                              <-     MARKER fail WORD TEXT | have

Laws
1. Nothing of it can get out of its one directory: names and links are checked here, before a byte is sent, and the host
   unpacks only bytes with the SHA-256 of those that were checked.
2. <cache>/python-SHA256 exists only as a whole, and only if its Python starts; `probe.py` looks for it there.
3. The host needs /bin/sh, head, dd, tar, sha256sum, and the program that unpacks it.
4. Nothing is written, unpacked or started in a cache that another user may have made, or can change.
5. Bytes that came stay, as in `installer.py`: each connection writes behind those that are there, without a lock, and
   the name of the file decides which bytes are right at each place. The first that has all of them removes the file;
   the others find the Python that it made.
"""

from __future__ import annotations

import contextlib
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deploy import dial, host_requirements, probe, push
from deploy.build import OLDEST_PYTHON
from deploy.host import Host
from deploy.inventory import Inventory
from deploy.probe import Answers, Place
from deploy.there import installer
from transport.carrier.duplex import Bootstrap
from transport.errors import Misconfigured, Unreachable
from transport.wire.numbers import digits

try:
    from lzma import LZMAError
except ImportError:  # a Python may be made without it; then nothing is unpacked by it

    class LZMAError(Exception):  # type: ignore[no-redef]
        """Never raised."""


BLOCK = 64 << 10  # dd counts in it
PACKINGS = ((b"\x1f\x8b", "z", "gzip"), (b"\xfd7zXZ", "J", "xz"), (b"BZh", "j", "bzip2"))
ZSTD = b"\x28\xb5\x2f\xfd"
KIND = "a .tar.gz or .tar.xz with one directory, and bin/python3 in it, as python-build-standalone has them"

_SCRIPT = (
    'umask 077; LC_ALL=C; export LC_ALL; base="{base}"; d="$base/{name}"; p="$base/.part-{name}"; '
    'w="$base/.new-{name}-$$"; fail() {{ echo {marker} fail "$@"; exit 69; }}; set -f; '
    'works() {{ "$1/{program}" -I -S -c "{trial}" </dev/null; }}; '
    # Another connection brought the same one meanwhile, and has removed the bytes that both wrote.
    'lost() {{ works "$d" >/dev/null 2>&1 && {{ rm -f "$p"; echo {marker} have; exit 0; }}; fail "$@"; }}; '
    '[ $h = shut ] && fail readonly "$base"; '
    '[ $h = noexec ] && fail noexec "$base" is on a file system mounted noexec; '
    "for c in head dd tar sha256sum {tool}; do command -v $c >/dev/null || fail lacks $c; done; "
    'x="$(df -Pk "$b" 2>/dev/null | tail -n 1)"; set -- $x; [ "${{2:-1}}" = 0 ] && fail readonly "$base"; '
    '[ "${{4:-{room}}}" -ge {room} ] || fail full "$base has $4 kB free, {room} kB are needed"; '
    '[ "$k" -le {size} ] || k=0; k=$((k / {block})); echo {marker} need $((k * {block})); '
    'e="$(mkdir -p "$base" 2>&1)" || fail readonly $e; '
    'own "$base" || fail owner "$base"; '
    'e="$(head -c $(({size} - k * {block})) | dd of="$p" bs={block} seek=$k conv=notrunc 2>&1)" || case "$e" in '
    "*space*|*uota*) fail full $e;; *) fail write $e;; esac; "
    'n="$({{ wc -c < "$p"; }} 2>/dev/null)"; [ "${{n:-0}}" -ge {size} ] || lost cut "${{n:-0}}" of {size} bytes came; '
    's="$({{ sha256sum < "$p"; }} 2>/dev/null)"; '
    '[ "${{s%% *}}" = {sha256} ] || {{ rm -f "$p"; lost corrupt its SHA-256 is $s; }}; '
    'clean() {{ rm -rf "$w" "$w.old" "$p"; }}; trap clean EXIT; trap "exit 1" HUP TERM; '
    'e="$(mkdir "$w" 2>&1 && tar -x{flag}of "$p" -C "$w" 2>&1)" || case "$e" in '
    "*space*|*uota*) fail full $e;; *) lost unpack $e;; esac; "
    '[ -x "$w/{program}" ] || fail noexec "$base" is on a file system mounted noexec; '
    'e="$(works "$w" 2>&1)" || fail start $e; '
    '[ -e "$d" ] && {{ works "$d" >/dev/null 2>&1 || mv "$d" "$w.old"; }}; '
    'mv "$w" "$d"; rm -rf "$d/${{w##*/}}"; echo {marker} have'
)
_NAMED = "echo {marker} fail named; exit 69"
_TRIAL = "import sys, os, zlib, zipfile, hashlib, socket; sys.exit(sys.version_info[:2] < {oldest})"


@dataclass(frozen=True)
class Interpreter:
    """A packed Python. `program`: its path in the archive. `size` and `unpacked` in bytes."""

    path: Path
    sha256: str
    size: int
    unpacked: int
    program: str
    flag: str  # of tar
    tool: str  # that unpacks it


def read(path: Path) -> Interpreter:
    """Return the interpreter in a packed tar file; raises Misconfigured if it is none, or a name leads out of it."""
    if path.exists() and not path.is_file():  # a device may have no end
        raise Misconfigured(f"{path} is no archive of a Python: it is not a file", KIND)
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            file.seek(0)
            sha256 = installer.digest(file)
            size = file.tell()
        if start.startswith(ZSTD):
            raise Misconfigured(f"{path} is packed with zstd", f"zstd -dc {path} | gzip > python.tar.gz")
        with tarfile.open(path) as archive:
            members = archive.getmembers()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise Misconfigured(f"{path} cannot be read: {why}", KIND) from None
    except (tarfile.TarError, EOFError, ValueError, zlib.error, LZMAError):
        raise Misconfigured(f"{path} is no archive of a Python, or is cut off", KIND) from None
    except (ImportError, ArithmeticError) as error:
        raise Misconfigured(f"{path} cannot be unpacked here: {error}", KIND) from None
    try:
        program = _program(members)
    except ValueError as error:
        raise Misconfigured(f"{path} cannot be brought to a host: {error}", KIND) from None
    flag, tool = next(((flag, tool) for magic, flag, tool in PACKINGS if start.startswith(magic)), ("", ""))
    return Interpreter(path, sha256, size, sum(member.size for member in members), program, flag, tool)


def _program(members: list[tarfile.TarInfo]) -> str:
    """Return the path of python3 in the archive. Raises ValueError if an entry could lie, or lead, outside."""
    for member in members:
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise ValueError(f"{member.name!r} leads out of it")
    names = {posixpath.normpath(member.name): member for member in members}
    links = {name for name, member in names.items() if member.issym()}
    tops = {name.split("/")[0] for name in names if name != "."}
    if len(tops) != 1 or not tops.isdisjoint(links):
        raise ValueError("it has more than one directory at its top" if tops else "it is empty")
    (top,) = tops
    for member in members:
        name = posixpath.normpath(member.name)
        if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            raise ValueError(f"{member.name!r} is no file, directory or link")
        if any(parent in links for parent in _parents(name)):
            raise ValueError(f"{member.name!r} is behind a link")
        if member.issym() and not _inside(posixpath.dirname(name), member.linkname, top):
            raise ValueError(f"the link {member.name!r} leads out of it")
        if member.islnk() and posixpath.normpath(member.linkname) not in names:
            raise ValueError(f"the link {member.name!r} leads out of it")
    program = f"{top}/bin/python3"
    if program not in names or not set(top) <= _PLAIN:
        raise ValueError("there is no bin/python3 in its directory")
    return program


_PLAIN = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = posixpath.dirname(name)
        yield name


def _inside(folder: str, target: str, top: str) -> bool:
    """Say whether a link in `folder` stays below `top`. A `..` behind a name is refused: the name may be a link."""
    parts = target.split("/")
    while parts and parts[0] in ("..", "."):
        parts.pop(0)
    place = posixpath.normpath(posixpath.join(folder, target))
    return ".." not in parts and not target.startswith("/") and f"{place}/".startswith(f"{top}/")


def command(python: Interpreter, place: Place, marker: str) -> str:
    """Return the command for the channel."""
    name = f"{probe.BROUGHT}{python.sha256}"
    values = {
        "base": probe.in_shell(place.cache),
        "name": name,
        "marker": marker,
        "tool": python.tool,
        "flag": python.flag,
        "size": python.size,
        "room": (python.size + python.unpacked >> 10) + 1,
        "block": BLOCK,
        "sha256": python.sha256,
        "program": python.program,
        "trial": _TRIAL.format(oldest=OLDEST_PYTHON),
    }
    script = _NAMED if place.python else _SCRIPT
    return probe.for_any_shell(probe.looking(place, marker, name) + script.format(**values))


async def deploy(
    host: Host,
    inventory: Inventory,
    *,
    python: Interpreter | None,
    ssh_agent: str | None,
    note: dial.Note,
    news: dial.Note = dial.unheard,
) -> dial.Visit:
    """Do as `dial.deploy` does; bring `python` first, if the host has none and needs one."""
    brought = False
    if python and not host.binary:
        talk, ask = partial(bring, host.name, python, host.python or ""), partial(command, python)
        brought = await dial.speak(
            host, inventory, ask, "find a Python", talk, ssh_agent=ssh_agent, note=note, news=news
        )
    done = await dial.deploy(host, inventory, ssh_agent=ssh_agent, note=note, news=news)
    return replace(done, brought=brought)


async def bring(
    host: str,
    python: Interpreter,
    named: str,
    duplex: Bootstrap,
    answers: Answers,
    allow: Callable[[float, str], None],
) -> bool:
    """Send it if the host, on which `command` runs, has no Python; return whether.

    `named`: the Python that its table names, "" if none. `allow` moves the deadline.
    """
    answer = await push.next_answer(host, duplex, answers)
    if answer == "have":
        return False
    word, _, told = answer.partition(" ")
    try:
        kept = digits(told, python.size if word == "need" else -1)
    except ValueError:
        raise _failure(host, python, answer, 0, named) from None
    left = python.size - kept
    seconds = push.UPLOAD_SECONDS + push.UNPACK_SECONDS + left / push.SLOWEST
    async with push.uplink().place(left, allow) as count:
        allow(seconds, f"send {left >> 10} kB of Python")
        with contextlib.suppress(ConnectionError):  # the host gave up early: its last words say why
            await push.send_file(python.path, kept, duplex, count)
        answer = await push.answer_behind(host, duplex, answers, kept)
    if answer != "have":
        raise _failure(host, python, answer, kept, named)
    return True


def _failure(host: str, python: Interpreter, answer: str, kept: int, named: str) -> Unreachable:
    word, _, text = answer.removeprefix("fail ").partition(" ")
    if word == "named":
        cure = "take `python` out of its table in the inventory, and the Python that is brought is used"
        return host_requirements.NeedsPython(host, host_requirements.not_there(named), cure)
    if word == "start":
        return Unreachable(
            host,
            f"{python.path.name} does not start there: {text}",
            "take one for its machine: uname -m, ldd --version",
        )
    return push.failed(host, answer, kept)
