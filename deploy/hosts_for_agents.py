"""The list of hosts for an agent: name, tags, slots, system and purpose, as JSON; and the known systems of hosts.

Laws
1. The list does not say how a host is reached: no address, user, key or path.
2. The list of a whole inventory is made once for each of its contents and kept: an inventory takes longer to read
   than an agent to start. A list that cannot be kept is made anew.
3. Standard library only in the calling process.
"""

from __future__ import annotations

import os

from deploy import paths
from transport import quickjson
from transport.atomic import write_aside
from transport.lean import contextlib, sha256
from transport.provenance import safe_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from deploy.host import Host

FORM = "2"  # of the kept lists; another form has another name
LONGEST = 64  # characters of a system's name, which another machine chooses,
LETTERS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"  # and the characters of its two words
)
MOST_LISTS = 500  # lists that are kept, of each content of an inventory the whole one and those of its hosts


def told(hosts: Iterable[Host], here: str = "") -> list[dict[str, Any]]:
    """Return one mapping for each host, in their order. `here` is the host that the reader of the list is on."""
    known = systems()
    found = []
    for host in hosts:
        entry: dict[str, Any] = {"name": host.name, "tags": list(host.tags)}
        entry["slots"] = host.slots or "unlimited"
        if system := known.get(place_of(host)):
            entry["system"] = system
        if host.about:
            entry["about"] = host.about
        if host.name == here:
            entry["here"] = True
        found.append(entry)
    return found


def of_all(path: str) -> list[dict[str, Any]]:
    """Return the list of hosts that can run an agent, from the inventory at `path`; empty if the inventory is wrong."""
    kept = _name(path)
    listed = _kept(kept)
    if not isinstance(listed, list):
        listed = _made_apart(path)
        if listed is None:
            return []
        _keep(kept, listed)
    return _with_systems(listed)


def of_reach(path: str, host: str) -> list[dict[str, Any]] | None:
    """Return the list of hosts that an agent on `host` may use; None if no `prepare` has kept it."""
    try:
        os.stat(path)
    except OSError:
        return None  # loading it says why
    listed = _kept(_name(path, host)) if host else None
    return _with_systems(listed) if isinstance(listed, list) else None


def prepare(path: str, host: str) -> None:
    """Keep the list of `of_reach`, if it is not kept: a proxy that reads an inventory takes a third more of memory.

    Not in a process with threads, whose fork has locks that nobody lets go.
    """
    if len(os.listdir("/proc/self/task")) == 1 and not os.path.exists(
        os.path.join(_folder(), _name(path, host))
    ):
        with contextlib.suppress(OSError):  # no room for a process: the proxy reads the inventory
            listed = _made_apart(path, host)
            if listed is not None:
                _keep(_name(path, host), listed)


def _name(path: str, host: str = "") -> str:
    """Return the name of a kept list: of the whole inventory at `path`, or of the hosts that `host` may use."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        data = b""  # loading it finds the error
    return f"{_digest(quickjson.dumps([FORM, host]).encode() + data)}.list"


def _made_apart(path: str, host: str = "") -> list[dict[str, Any]] | None:
    """Make the list in a separate process; return None if there is none. Raises OSError if no process can be made.

    The caller keeps its memory small, because its children are copies of it.
    """
    heard, said = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(heard)
        os.close(said)
        raise
    if not pid:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            listed = quickjson.dumps(made(path, host)).encode()
            with open(said, "wb") as pipe:
                pipe.write(listed)
        finally:
            os._exit(0)  # the command that uses the inventory says what is wrong with it
    os.close(said)
    try:
        with open(heard, "rb") as pipe:
            data = pipe.read()
    finally:
        os.waitpid(pid, 0)
    return quickjson.loads(data) if data else None


def made(path: str, asking: str = "") -> list[dict[str, Any]]:
    """Return the list as it is kept, with places instead of systems. Raises Misconfigured."""
    from pathlib import Path

    from deploy.inventory import load

    known = load(Path(path), {})
    if asking and asking not in known.hosts:
        return []
    known = known.within_reach(asking) if asking else known
    hosts = [host for host in known.hosts.values() if not host.unbuilt()]
    return [{**entry, "place": place_of(host)} for entry, host in zip(told(hosts, asking), hosts)]


def _with_systems(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = systems()
    return [_with_system(entry, known) for entry in listed]


def _with_system(entry: dict[str, Any], known: dict[str, str]) -> dict[str, Any]:
    system = known.get(entry["place"])
    bare = {name: value for name, value in entry.items() if name not in ("place", "system")}
    return {**bare, "system": system} if system else bare


# -- systems ------------------------------------------------------------------------------------------


def place_of(host: Host) -> str:
    """Return the key under which the system of a host is kept: its address, not its name."""
    return _digest(f"{host.user or ''}@{host.destination}:{host.port or ''}".encode())[:32]


def systems() -> dict[str, str]:
    """Return the systems of hosts that were reached from here: place -> "Linux x86_64"."""
    known = _kept("systems")
    return (
        {place: system for place, system in known.items() if _is_system(system)}
        if isinstance(known, dict)
        else {}
    )


def remember(host: Host, system: object) -> None:
    """Keep the system that a host reports. If two processes write at once, one entry is lost until the next visit.

    Agents read it in their first message, where words of another form could be an instruction: those are not kept.
    """
    known, place = systems(), place_of(host)
    if _is_system(system) and known.get(place) != system:
        known.pop(place, None)
        _keep("systems", {**known, place: system})


def _is_system(told: object) -> bool:
    """Whether this is the name of a system and of its kind of processor, as "Linux x86_64"."""
    if not isinstance(told, str) or len(told) > LONGEST:
        return False
    words = told.split(" ")
    return len(words) == 2 and all(word and not word.strip(LETTERS) for word in words)


def _digest(data: bytes) -> str:
    return sha256(data)


def _folder() -> str:
    return os.path.join(paths.cache(), "hosts")


def _kept(name: str) -> object:
    """Return a kept value; None if there is none, or if another user can write it: agents read these words."""
    with contextlib.suppress(OSError, ValueError), open(_judged(name), "rb") as file:
        return quickjson.loads(file.read())
    return None


def _judged(name: str) -> int:
    return safe_path.named(os.path.join(_folder(), name))


def _keep(name: str, value: object) -> None:
    """Write it aside and rename; on an error it is not kept."""
    folder = _folder()
    with contextlib.suppress(OSError, safe_path.Unsafe):
        safe_path.made(folder)
        lists = [os.path.join(folder, each) for each in os.listdir(folder) if each.endswith(".list")]
        for old in sorted(lists, key=os.path.getmtime)[:-MOST_LISTS]:
            os.unlink(old)
        write_aside(os.path.join(folder, name), value)
