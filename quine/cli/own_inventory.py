"""`quine hosts trust|add|import`: the user's own inventory is written, or one of the current directory allowed.

Laws
1. A table is added at the end of the file; nothing else in it changes. The whole is parsed before it is written.
2. The trust of a trusted file goes over to what is written. An edit by hand is shown by `trust`.
3. An agent, a command of one and a job change nothing here: otherwise they would allow themselves hosts.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
from pathlib import Path

from deploy import paths, trust
from deploy.host import A_NAME, NAME, destination
from deploy.inventory import JSON, RESERVED, ConfigError, content, parsed
from quine.base import dirs
from quine.base.allowed_hosts import find, in_tree
from quine.base.cli_options import RunOptions
from quine.base.errors import NOT_STARTED, OK, Denied, Failure, Misconfigured, say
from transport import atomic, quickjson
from transport.lean import Any, Mapping
from transport.provenance.safe_path import Unsafe
from transport.text import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from transport.carrier.ssh.names import Machine

USAGE = "quine hosts add NAME [USER@HOST[:PORT]]"
# Hosts, and those below them, that serve git to everybody.
FORGES = (
    *("github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "gitea.com", "sr.ht", "sourceforge.net"),
    *("dev.azure.com", "visualstudio.com", "source.developers.google.com", "hf.co", "aur.archlinux.org"),
    *("salsa.debian.org", "gitlab.gnome.org", "gitlab.freedesktop.org", "invent.kde.org"),
)


def main(words: list[str], inventory: Path | None) -> int:
    """Do one of the three. Raises Misconfigured, Denied and Failure."""
    verb, *rest = words
    if in_tree():
        raise Denied(
            f"quine hosts {verb} is not for agents and jobs", "the user does it, in a shell of his own"
        )
    if verb == "trust":
        return _trust(rest)
    if verb == "import":
        if rest:
            raise Misconfigured(f"hosts import takes no {rest[0]!r}", "it takes each Host of ~/.ssh/config")
        return _import(str(inventory or ""))
    if not 1 <= len(rest) <= 2:
        raise Misconfigured("hosts add takes a name, and the way there", USAGE)
    keys = destination(rest[1]) if len(rest) == 2 else {}
    if keys is None:
        raise Misconfigured(f"{rest[1][:200]!r} is not USER@HOST[:PORT]", USAGE)
    if rest[0] in RESERVED or not NAME.fullmatch(rest[0]):
        why = "a word of WHERE" if rest[0] in RESERVED else f"not {A_NAME}"
        raise Misconfigured(f"{rest[0][:200]!r} is {why}", USAGE)
    return _add({rest[0]: keys}, str(inventory or ""))


# -- add and import --------------------------------------------------------------------------------


def _import(inventory: str) -> int:
    from transport.carrier.ssh.names import of_user

    try:
        named = of_user()
    except (ValueError, OSError) as error:
        raise Misconfigured(str(error), getattr(error, "hint", "see ~/.ssh/config")) from None
    unfit = [name for name in named if name in RESERVED or not NAME.fullmatch(name)]
    for name in unfit:
        say(f"quine: note: Host {harmless(name[:200])} is left out: not {A_NAME}, or a word of WHERE\n")
    forges: list[str] = []
    machines: dict[Machine, list[str]] = {}
    for name, machine in named.items():
        if name not in unfit:
            names = forges if is_forge(machine) else machines.setdefault(machine, [])
            names.append(name)
    return _add({names[0]: {} for names in machines.values()}, inventory, _Import(forges, machines.values()))


class _Import:
    """An import; its comments name hosts that get no table of their own."""

    def __init__(self, forges: Iterable[str] = (), machines: Iterable[Sequence[str]] = ()) -> None:
        self.forges = list(forges)
        self._others = {names[0]: names[1:] for names in machines}

    def has(self, name: str, known: Container[str]) -> bool:
        """Whether the machine of a name has a table, under any of its names."""
        return any(one in known for one in (name, *self._others[name]))

    def of(self, name: str) -> str:
        """Return the comment in the table of a name."""
        others = self._others.get(name)
        return f"# the same machine: {', '.join(others)}\n" if others else ""

    def head(self) -> str:
        """Return the comment before all tables."""
        if not self.forges:
            return ""
        return f"# left out of ~/.ssh/config: {', '.join(self.forges)}: git is served there, and no command runs\n\n"


def is_forge(machine: Machine) -> bool:
    """Whether a machine serves git, and runs no commands: `each any` would fail there."""
    name = machine.hostname
    return machine.user == "git" or name in FORGES or name.endswith(tuple(f".{one}" for one in FORGES))


def _add(tables: Mapping[str, Mapping[str, Any]], inventory: str, imported: _Import | None = None) -> int:
    """Write tables into the inventory in force. None of the names may be there; of an import those are left out."""
    options = RunOptions(inventory=inventory)
    path = find(options, os.environ).path or paths.users(os.environ)
    if path.endswith(JSON):
        raise Misconfigured(f"{path}: is JSON, and is not added to", "add the host by hand")
    try:
        dirs.make(os.path.dirname(path))
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # of two that add at the same time both are to be there
            return _written(Path(path), tables, imported)
        finally:
            os.close(folder)
    except ConfigError as error:
        raise Misconfigured(error.detail, error.hint) from None
    except OSError as error:
        raise Failure(NOT_STARTED, f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None


def _written(path: Path, tables: Mapping[str, Mapping[str, Any]], imported: _Import | None) -> int:
    before = content(path) if os.path.lexists(path) else b""
    trusted = trust.former(str(path)) == before
    known = parsed(before, path).hosts
    for name in known.keys() & tables.keys() if imported is None else ():
        raise Misconfigured(
            f"{path}: [hosts.{name}]: is there already", "edit the file, or take another name"
        )
    said = imported or _Import()
    fresh = {name: keys for name, keys in tables.items() if imported is None or not said.has(name, known)}
    if not fresh:
        for name in said.forges:
            say(f"quine: note: Host {name} is left out: git is served there, and no command runs\n")
        print(f"{path}: nothing to add")
        return OK
    head = "" if said.head().encode().rstrip() in before else said.head()
    text = head + "\n".join(_table(name, keys, said.of(name)) for name, keys in fresh.items())
    after = before + (b"\n" if before and not before.endswith(b"\n") else b"") + (b"\n" if before else b"")
    after += text.encode()
    parsed(after, path)
    atomic.write(str(path), after, 0o600)
    if trusted:
        trust.trust(str(path), after)
    print(f"{path}: added\n{text}", end="")
    return OK


def _table(name: str, keys: Mapping[str, Any], comment: str) -> str:
    shown = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quickjson.dumps(name)
    return "".join(
        [
            f"[hosts.{shown}]\n{comment}",
            *(f"{key} = {quickjson.dumps(value)}\n" for key, value in keys.items()),
        ]
    )


# -- trust -----------------------------------------------------------------------------------------


def _trust(words: list[str]) -> int:
    """Show the inventory, or what has changed in it since it was trusted, and trust it."""
    if len(words) > 1:
        raise Misconfigured("hosts trust takes one file", "quine hosts trust [FILE]")
    path = os.path.abspath(words[0] if words else trust.NAME)
    try:
        data = trust.read(path)
        count = len(parsed(data, Path(path)).hosts)
    except FileNotFoundError:
        raise Misconfigured(f"{path}: no such inventory", "quine hosts trust FILE") from None
    except Unsafe as unsafe:
        raise Misconfigured(f"{path} is not read: {unsafe}", unsafe.hint) from None
    except ConfigError as error:
        raise Misconfigured(error.detail, error.hint) from None
    except OSError as error:
        raise Misconfigured(f"{path}: {(error.strerror or str(error)).lower()}") from None
    before = trust.former(path)
    if before is None:
        print(_shown(data))
    elif before != data:
        print(
            *difflib.unified_diff(
                _shown(before).split("\n"), _shown(data).split("\n"), "trusted", path, lineterm=""
            ),
            sep="\n",
        )
    try:
        trust.trust(path, data)
    except OSError as error:
        raise Misconfigured(f"cannot keep it: {error.filename}: {(error.strerror or '').lower()}") from None
    print(f"trusted: {path}: {count} host{'s' * (count != 1)}")
    return OK


def _shown(data: bytes) -> str:
    """Return a text that hides nothing on a terminal."""
    return harmless(data.decode(errors="backslashreplace").rstrip("\n"), "\n\t")
