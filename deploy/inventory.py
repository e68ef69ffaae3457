"""The inventory: the hosts, the way to each of them, and the meaning of WHERE.

Laws
1. Foreign data enters here and nowhere else: every key is validated; an error names file, table and key.
2. WHERE chooses among inventory hosts. "local" is decided before this module is called, and nothing ever falls back
   to it.
3. A WHERE that the user typed may name a host by the literal name after a `Host` of ssh's configuration, or by
   USER@HOST[:PORT] (`naming`), if HOST has no table. Such a host has no tags, and `any`, `@tag` and `!x` never mean it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy import paths, trust
from deploy.host import A_NAME, KEYS, NAME, Host, by_destination, destination, misplaced
from transport.carrier.config_files import Stamp
from transport.errors import Denied, Misconfigured, NoSuchHost, Refused
from transport.lean import blake2b
from transport.provenance import safe_path

RESERVED = ("any", "local")
UNLIMITED = 1 << 24  # free slots of a host without a limit: more than any other has
MOST_FOUND = 1024  # meanings of WHERE that are remembered
JSON = ".json"  # suffix of an inventory that has its tables as a JSON object


class ConfigError(Misconfigured):
    """The inventory is wrong; the detail names file, table and key."""


class Inventory:
    """The hosts by name, in the order of the file. `path` is None if there is no inventory.

    `gone` are names and tags that it had once: in a WHERE they mean no host, and are no error. `unread` is the file of
    the current directory that was not used, and why. `unlisted` are the hosts of law 3, `stamps` those of their files.
    """

    stamps: Mapping[str, Stamp] = {}

    def __init__(
        self,
        hosts: Mapping[str, Host],
        path: Path | None = None,
        gone: frozenset[str] = frozenset(),
        unread: tuple[str, str] | None = None,
        unlisted: Mapping[str, Host] | None = None,
    ) -> None:
        self.hosts = dict(hosts)
        self.path = path
        self.gone = gone
        self.unread = unread
        self.unlisted = dict(unlisted or {})
        self._found: dict[str, list[Host]] = {}  # by a WHERE of this machine, not of a job on another one

    @property
    def everyone(self) -> dict[str, Host]:
        return {**self.hosts, **self.unlisted} if self.unlisted else self.hosts

    def naming(self, where: str) -> Inventory:
        """Return this one with the hosts that a WHERE of the user names and no table has. Raises Unreachable."""
        terms = {term.strip() for term in where.replace("!", ",").split(",")}
        terms = {each for each in terms if each not in self.hosts and each not in (*self.gone, *RESERVED)}
        places = {term: host for term in terms if (host := by_destination(term))}
        unlisted = {term: host for term, host in places.items() if host.address not in self.hosts}
        named, stamps = _of_ssh({term for term in terms if NAME.fullmatch(term)})
        if not unlisted and not named:
            return self
        found = Inventory(self.hosts, self.path, self.gone, self.unread, {**named, **unlisted})
        found.stamps = stamps
        return found

    def after(self, before: Inventory) -> Inventory:
        """Return this one for a batch that began with the one `before`."""
        known = {*before.hosts, *(f"@{tag}" for host in before.hosts.values() for tag in host.tags)}
        return Inventory(self.hosts, self.path, before.gone | known, self.unread)

    def host(self, name: str) -> Host:
        """Return the host of that name; NoSuchHost names the known ones."""
        if host := self.hosts.get(name) or self.unlisted.get(name):
            return host
        raise self._nobody(name)

    def matching(self, where: str) -> list[Host]:
        """Return all hosts that WHERE means, in the order of the file; raises NoSuchHost if there are none.

        `a,b` adds, `!x` takes away from the whole, and with nothing added it takes away from all.
        """
        wanted: set[str] = set()
        refused: set[str] = set()
        positive = False
        for part in where.split(","):
            first, *negated = part.split("!")
            if first.strip():
                positive = True
                wanted |= self._term(first.strip(), where)
            for term in negated:
                if term.strip() != "local":  # no inventory host is this machine
                    refused |= self._term(term.strip(), where)
        if not positive and "!" in where:
            wanted = set(self.hosts)
        wanted -= refused  # once: for each host it made placing among a thousand take milliseconds
        chosen = [host for name, host in self.everyone.items() if name in wanted]
        if not chosen:
            raise self._nobody(where)
        return chosen

    def select(
        self,
        where: str,
        loads: Callable[[Sequence[Host]], Sequence[int]],
        avoid: Sequence[str] = (),
        pick: str = "",
        asking: str | None = None,
    ) -> Host:
        """Return the host of `matching` with most free slots (no limit counts as most); ties go to the first.

        `loads` tells of each host how many jobs run or wait there. `avoid` has the hosts that failed the job, once for
        each time: fewest failures count before all else. A host whose settings need a feature that is not built yet
        takes no part; Misconfigured if no other matches.

        `pick`, the id of a job, chooses by rendezvous hashing instead: the same id always gets the same host, whatever
        its load, as long as that host matches. So nothing has to remember where a job was started.

        `asking` names the host of the agent that asks, if one does: Denied if it may use none of them.
        """
        ready = self._ready(where, asking)
        if pick:
            return max(ready, key=lambda host: _weight(pick, host.name))
        if avoid:
            failures: dict[str, int] = {}
            for name in avoid:
                failures[name] = failures.get(name, 0) + 1
            fewest = min(failures.get(host.name, 0) for host in ready)
            ready = [host for host in ready if failures.get(host.name, 0) == fewest]
        free = [(host.slots or UNLIMITED) - load for host, load in zip(ready, loads(ready), strict=True)]
        return ready[free.index(max(free))]

    def _ready(self, where: str, asking: str | None) -> list[Host]:
        """Return the hosts that a job may have, remembered: a batch asks for each of its jobs."""
        if asking is None and where in self._found:
            return self._found[where]
        matching = self.matching(where) if asking is None else self._allowed(asking, where)
        ready = [host for host in matching if not host.unbuilt()]
        if not ready:
            first = matching[0]
            raise Misconfigured(first.unbuilt(), "change its table in the inventory", first.name)
        if asking is None:
            if len(self._found) >= MOST_FOUND:
                self._found.clear()
            self._found[where] = ready
        return ready

    def within_reach(self, name: str) -> Inventory:
        """Return the hosts that an agent on host `name` may fork to: that one, and those that its may_fork means."""
        host = self.host(name)
        may = {name}.union(
            *({each.name for each in self.matching(where)} for where in host.may_fork if where != "local")
        )
        within, apart = ({n: h for n, h in each.items() if n in may} for each in (self.hosts, self.unlisted))
        return Inventory(within, self.path, unlisted=apart)

    def _allowed(self, asking: str, where: str) -> list[Host]:
        """Return the hosts of `matching` that an agent on host `asking` may use. Denied names no other one."""
        if asking not in self.everyone:
            raise Denied("this host is not in the inventory of the origin any more", host=asking)
        reach = self.within_reach(asking)
        try:
            return reach.matching(where)
        except NoSuchHost:
            known = ", ".join(reach.everyone)
            hint = f"see may_fork of [hosts.{asking}] in the inventory of the origin"
            raise Denied(
                f"may_fork does not allow {where!r} from here; allowed: {known}", hint, asking
            ) from None

    def _term(self, term: str, where: str) -> set[str]:
        if term == "any":
            return set(self.hosts)
        if term == "local":
            if where == term:
                raise NoSuchHost("local is this machine, and no host of the inventory", "leave it out")
            raise NoSuchHost(f"{where!r} mixes this machine with others", "name local alone, or leave it out")
        if term.startswith("@"):
            found = {name for name, host in self.hosts.items() if term[1:] in host.tags}
        else:
            found = {term} & self.everyone.keys()
        if not found and term not in self.gone:
            raise self._nobody(term)
        return found

    def _near(self, where: str, tags: Sequence[str]) -> list[str]:
        """Return the name that may have been meant, at most one."""
        if where.lower() in ("all", "*", "hosts"):
            return ["any"]
        words = where.split()
        if len(words) > 1 and all(word in self.hosts or word in tags for word in words):
            return [",".join(words)]
        folded = {name.lower(): name for name in (*self.hosts, *tags)}
        import difflib  # here: only an error needs it

        return [folded[name] for name in difflib.get_close_matches(where.lower(), folded, 1)]

    def _nobody(self, where: str) -> Refused:
        if self.unread:
            detail, hint = trust.unread(*self.unread)
            return Misconfigured(f"no such host: {where!r}; {detail}", hint)
        if self.path is None:
            if where != "any" and NAME.fullmatch(where):
                detail = f"no such host: {where!r}; there is no inventory"
                cure = "a Host NAME in ~/.ssh/config; or name one with --inventory"
                return NoSuchHost(detail, f"quine hosts add NAME USER@HOST, or {cure}")
            detail = f"there is no inventory, so {where!r} means no host"
            cure = "quine hosts import takes each Host of ~/.ssh/config"
            return NoSuchHost(detail, f"{cure}; or quine hosts add NAME USER@HOST")
        known = ", ".join(self.hosts) or "none"
        tags = sorted({f"@{tag}" for host in self.hosts.values() for tag in host.tags})
        if tags:
            known += f"; tags: {', '.join(tags)}"
        near = self._near(where, tags)
        if where.startswith("@") and not near:
            return NoSuchHost(f"no host has the tag {where}; known: {known}", "add it to a host's tags")
        if "!" in where or "," in where:
            return NoSuchHost(f"{where!r} leaves no host; known: {known}", "quine hosts shows them all")
        if "@" in where[1:] and where.isprintable():
            hint = self._with_user(where)
        else:
            hint = f"did you mean {near[0]}?" if near else f"add a table [hosts.NAME] to {self.path}"
        return NoSuchHost(f"no such host: {where!r}; known: {known}", hint)

    def _with_user(self, where: str) -> str:
        """Return the cure for USER@HOST[:PORT] where it means no host: in a tree, or because HOST has a table."""
        given = destination(where) or {"address": where}
        name, port = given["address"], given.get("port")
        keys = f'user = "{given.get("user", "")}"' + (f" and port = {port}" if port else "")
        if name in self.hosts:
            return f"name the host {name}, with {keys} in the table [hosts.{name}] of {self.path}"
        return f'add a table [hosts.NAME] with address = "{name}" and {keys} to {self.path}'


def load(path: Path | None, env: Mapping[str, str]) -> Inventory:
    """Read and validate the inventory; return an empty one if there is none. ConfigError says what is wrong."""
    return opened(paths.Found(str(path)) if path else paths.find(env))


def opened(found: paths.Found) -> Inventory:
    """Return the inventory that `paths.find` has found, as `load` does."""
    if found.path is None:
        return Inventory({}, unread=found.unread)
    path = Path(found.path)
    known = parsed(content(path) if found.data is None else found.data, path)
    known.unread = found.unread
    return known


def content(path: Path) -> bytes:
    """Return the content of an inventory. ConfigError says why it cannot be read."""
    try:
        with os.fdopen(safe_path.named(str(path)), "rb") as file:
            return file.read()
    except safe_path.Unsafe as unsafe:
        raise ConfigError(f"{path} is not read: {unsafe}", unsafe.hint) from None
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such inventory", "see --inventory and QUINE_INVENTORY") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {_lowered(error.strerror or '')}") from None


def _of_ssh(wanted: set[str]) -> tuple[dict[str, Host], Mapping[str, Stamp]]:
    """Return those of the names that ssh's configuration has as literal ones, and its files. Raises Unreachable."""
    if not wanted:
        return {}, {}
    from transport.carrier.ssh import names

    found, stamps = names.literal(wanted)
    return {name: Host(name) for name in found}, stamps


def parsed(data: bytes, path: Path) -> Inventory:
    """Validate the content of an inventory. ConfigError says what is wrong."""
    try:
        tables = _tables(data.decode(), path)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: cannot be read: it is not UTF-8") from None
    except (ValueError, RecursionError) as error:  # also nesting too deep
        kind = "JSON" if path.suffix == JSON else "TOML"
        raise ConfigError(f"{path}: not {kind}: {_lowered(str(error))}") from None
    return Inventory(_hosts(tables, path), path)


def _tables(text: str, path: Path) -> dict[str, Any]:
    """Raises ValueError, and ModuleNotFoundError for TOML on an old Python."""
    if path.suffix != JSON:
        import tomllib  # here: Python 3.11 brought it, and an old host reads the other form

        return tomllib.loads(text)
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("must be an object")
    return data


def _hosts(data: dict[str, Any], path: Path) -> dict[str, Host]:
    for table in data:
        if table not in ("defaults", "hosts"):
            raise ConfigError(f"{path}: [{table}]: unknown table", "there are [defaults] and [hosts.NAME]")
    defaults, tables = data.get("defaults", {}), data.get("hosts", {})
    for table, value in (("defaults", defaults), ("hosts", tables)):
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {table}: must be a table")
    hosts: dict[str, Host] = {}
    _check("defaults", {key: value for key, value in defaults.items() if key != "name"}, path, "defaults", ())
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [hosts.{name}]: must be a table")
        if name in RESERVED:
            raise ConfigError(f"{path}: [hosts.{name}]: {name} is a word of WHERE", "give it another name")
        place = destination(name) if by_destination(name) else None  # of a batch that --from has sent on
        if not NAME.fullmatch(name) and place is None:
            raise ConfigError(f"{path}: [hosts.{name}]: {name!r} is not {A_NAME}")
        if wrong := misplaced(table, defaults):
            raise ConfigError(f"{path}: [hosts.{name}]: {wrong}")
        hosts[name] = _check(f"hosts.{name}", {**defaults, **(place or {}), **table}, path, name, table)
    for host in hosts.values():
        _check_jump(host, hosts, path)
        _check_forks(host, hosts, path)
    return hosts


def _check(table: str, values: dict[str, Any], path: Path, name: str, own: Iterable[str]) -> Host:
    """Return one table as a Host, with the keys of its `own`. A key `name` in it is refused like an unknown one."""
    where = f"{path}: [{table}]"
    keys = [key for key in KEYS if key != "name"]
    for key in values:
        if key not in keys:
            import difflib  # here: only an error needs it

            near = difflib.get_close_matches(key, keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(keys)}"
            raise ConfigError(f"{where}: {key}: unknown key", hint)
    # TOML has arrays, never tuples; strictness is meant for the values in them
    ready: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return Host(name=name, own=frozenset(own), **ready)
    except ValueError as error:
        raise ConfigError(f"{where}: {str(error).removeprefix('name: ')}") from None


def jump_of(host: Host, inventory: Inventory) -> Host | None:
    """Return the host that `host` is reached through: one of the inventory, or one made from user@host:port."""
    if host.jump is None:
        return None
    if known := inventory.hosts.get(host.jump):
        return known
    keys = destination(host.jump)
    assert keys is not None  # the model has checked it
    return Host(name=keys["address"].replace(":", "_"), **keys)


def _check_jump(host: Host, hosts: dict[str, Host], path: Path) -> None:
    if host.jump is None:
        return
    where = f"{path}: [hosts.{host.name}]: jump"
    if host.jump not in hosts:
        if "@" not in host.jump and ":" not in host.jump:
            raise ConfigError(f"{where}: no such host: {host.jump!r}", "name a host or user@host:port")
        try:
            jump_of(host, Inventory(hosts, path))
        except ValueError:
            raise ConfigError(f"{where}: {host.jump!r} is not user@host:port") from None
    seen = [host.name]
    at: Host | None = host
    while at is not None and at.jump in hosts:
        if at.jump in seen:
            raise ConfigError(f"{where}: goes in a circle: {' -> '.join([*seen, at.jump])}")
        seen.append(at.jump)
        at = hosts[at.jump]


def _check_forks(host: Host, hosts: dict[str, Host], path: Path) -> None:
    for where in host.may_fork:
        try:
            if where != "local":
                Inventory(hosts, path).matching(where)
        except NoSuchHost as error:
            raise ConfigError(f"{path}: [hosts.{host.name}]: may_fork: {error.detail}") from None


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _weight(job: str, host: str) -> bytes:
    return blake2b(f"{job}\0{host}".encode("utf-8", "replace")).digest()
