"""The hosts that a process may use: read from the inventory if it is here, else requested from the origin.

Laws
1. An agent starts without its list if the inventory is wrong; a command that uses the inventory then reports it.
2. A host without a table is for a WHERE that the user typed outside any tree. The jobs that it started know it too: the
   WHERE goes with their context.
3. Standard library only.
"""

from __future__ import annotations

import os

from quine.base.errors import say
from transport import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from deploy.inventory import Inventory
    from deploy.paths import Found
    from quine.base.cli_options import RunOptions
    from transport.errors import NoSuchHost

    Ask = Callable[[str, bytes], bytes]

SHOWN = 8  # names of ssh's configuration in a message
NAME = "hosts"  # of the request; quine.files.select has it too
_said: list[tuple[str, str]] = []  # inventories of which this process has said that they are not read


def asks_origin(named: bool, inventory: str | None, memo: Mapping[str, object]) -> bool:
    """Return whether the origin places the children of this process, and not an inventory of this machine.

    `named` says that --inventory was given.
    """
    return "token" in memo and not named and ("lineage" in memo or not inventory)


def at_start(inventory: str | None, ask: Ask | None) -> str:
    """Return the hosts that an agent started here may use, as JSON; "" if there are none. Raises Failure."""
    from quine.base.errors import NOT_STARTED, Failure
    from transport.errors import RequestError

    if ask is not None:
        try:
            return checked(ask(NAME, b"{}"))
        except RequestError:
            return ""  # it cannot fork to a host; everything else still works
    if inventory is None:
        return ""
    from deploy.hosts_for_agents import of_all

    try:
        return text(of_all(inventory))
    except OSError as error:  # no room for the process that reads it
        why = (error.strerror or str(error)).lower()
        raise Failure(NOT_STARTED, f"the hosts of {inventory} cannot be listed: {why}") from None


def from_origin() -> list[dict[str, Any]]:
    """Request the hosts that a command of a job may use. Raises Failure."""
    from quine.base.errors import NOT_STARTED, Failure
    from transport.errors import RequestError

    try:
        told = checked(asker()(NAME, b"{}"))
    except RequestError as error:
        detail = f"the origin does not say which hosts may be used: {error}"
        raise Failure(NOT_STARTED, detail, "does the agent that started this job still run?") from None
    listed: list[dict[str, Any]] = quickjson.loads(told) if told else []
    return listed


def checked(reply: bytes) -> str:
    """Return a reply as the JSON text of a list of objects; "" for an empty list. Raises RequestError."""
    from transport.errors import RequestError

    try:
        listed = quickjson.loads(reply)
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise RequestError("the origin's list of hosts cannot be read")
    return text(listed)


def text(listed: list[dict[str, Any]]) -> str:
    return quickjson.dumps(listed) if listed else ""


def asker() -> Callable[[str, bytes], bytes]:
    """Return a function that asks our own origin. Each thread has a connection, which carries one request at a time."""
    import threading

    from transport.errors import RequestError
    from transport.rpc.call import Relay

    mine = threading.local()

    def ask(name: str, body: bytes) -> bytes:
        relay = getattr(mine, "relay", None)
        if relay is None:
            relay = mine.relay = Relay.from_environment()
        if relay is None:
            raise RequestError("this process has no origin")
        answer: bytes = relay.request(name, body)
        return answer

    return ask


def find(options: RunOptions, environ: Mapping[str, str]) -> Found:
    """Return the inventory in force: of --inventory, or else of the environment; say once which one is not read.

    Raises Misconfigured if --on is known in none that is read.
    """
    from deploy import paths

    if options.inventory:
        return paths.Found(os.path.abspath(os.path.expanduser(options.inventory)))
    found = paths.find(environ)
    if found.unread:
        _say_unread(found, found.unread, options.on)
    return found


def known(options: RunOptions, environ: Mapping[str, str] = os.environ, *wheres: str) -> Inventory:
    """Return the inventory in force, with the hosts that --on, or another WHERE of the user, names beside it."""
    from deploy.inventory import opened

    return naming(opened(find(options, environ)), ",".join(wheres) or typed(options))


def check_where(options: RunOptions) -> None:
    """Refuse a WHERE that means no host before anything is started. Raises NoSuchHost, or Misconfigured."""
    from transport import inherit
    from transport.errors import NoSuchHost

    if not options.elsewhere:
        return
    if asks_origin(bool(options.inventory), find(options, os.environ).path, inherit.read()):
        return  # its origin knows the hosts
    try:
        known(options).matching(options.on)
    except NoSuchHost as error:
        raise cured(error, options.on, not in_tree()) from None
    except ModuleNotFoundError:  # on a host whose Python reads no TOML; its node tells it better
        return


def typed(options: RunOptions) -> str:
    """Return the WHERE of the options that may name hosts."""
    return ",".join(filter(None, (options.on, options.from_)))


def naming(inventory: Inventory, where: str) -> Inventory:
    """Return the inventory with the hosts that a WHERE of these options names beside it: law 2."""
    return inventory.naming(where) if where and not in_tree() else inventory


def cured(error: NoSuchHost, where: str, user: bool) -> NoSuchHost:
    """Return the error of a WHERE that means no host with the cure for the user, or for an agent or a job: law 2."""
    if not where.replace(".", "").replace("-", "").replace("_", "").isalnum() or where == "any":
        return error  # a tag, or several terms
    if error.hint.startswith("did you mean"):
        return error
    from transport.errors import NoSuchHost

    if not user:
        hint = "agents and jobs know the hosts of the inventory alone; the user adds some: quine hosts import"
        return NoSuchHost(error.detail, hint)
    from transport.carrier.ssh.names import like

    near, names = like(where, SHOWN)
    named = f"; ~/.ssh/config names {', '.join(names)}" if names else ""
    return NoSuchHost(error.detail + named, f"did you mean {near}?" if near else error.hint)


def in_tree() -> bool:
    """Return whether this process is below an agent or in a job, by what it has inherited, or else by the kernel.

    A ledger of its own is that of a tree which it begins, and a mark of its own as a daemon says nothing.
    """
    from quine.base.sessions import LEDGER
    from transport import inherit

    memo = inherit.read()
    if "token" in memo or "lineage" in memo:
        return True
    found = inherit.held_above(LEDGER, inherit.APART, whole=True).values()
    return any(pid != os.getpid() for holders in found for pid, _, _ in holders)


def _say_unread(found: Found, skipped: tuple[str, str], where: str) -> None:
    from deploy import trust
    from transport import inherit

    if "token" in inherit.read():
        return  # the origin of a job places its children
    if where and where != "local":
        from deploy.inventory import opened

        naming(opened(found), where).matching(where)
    if skipped not in _said:
        _said.append(skipped)
        detail, hint = trust.unread(*skipped)
        say(f"quine: note: {detail}\nquine: hint: {hint}\n")
