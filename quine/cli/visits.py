"""Visits to hosts of the inventory, all at the same time, for `quine hosts check` and `quine deploy`.

Laws
1. One host's trouble never hides another's result.
2. No program of a carrier outlives the command, whichever of INT, TERM and HUP ends that.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, TypeVar

from quine.base.errors import DEFECT, NOT_STARTED, OK, complain
from quine.base.text import plain, table
from transport import quickjson

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
    from typing import Any

    from deploy.dial import Visit
    from deploy.host import Host
    from deploy.inventory import Inventory
    from quine.cli.progress import Bar
    from transport.errors import Refused

    Call = Callable[..., Awaitable[Visit]]


T = TypeVar("T")
PASSPHRASES = 3  # as often as ssh asks


def listed(hosts: Sequence[Host], as_json: bool = False) -> str:
    """Return the hosts of an inventory as a table, or as JSON lines."""
    if as_json:
        return _lines(map(described, hosts))
    rows = [["HOST", "ADDRESS", "USER", "SLOTS", "THROUGH", "TAGS", "ABOUT"]]
    for host in hosts:
        address = host.destination + (f":{host.port}" if host.port else "")
        slots, tags = str(host.slots or "-"), ",".join(host.tags) or "-"
        rows.append([host.name, address, host.user or "-", slots, host.jump or "-", tags, host.about or "-"])
    return table(rows)


def _lines(objects: Iterable[Mapping[str, object]]) -> str:
    return "".join(quickjson.dumps(each) + "\n" for each in objects)


def described(host: Host) -> dict[str, object]:
    """Return the fields of `hosts --json`: those by which a host is chosen, and no setting that may hold a secret."""
    fields = ("user", "port", "jump", "tags", "slots", "transport", "about", "may_fork", "inference")
    values = {name: getattr(host, name) for name in fields}
    return {"name": host.name, "address": host.destination, **values}


def reachable(entries: Sequence[Mapping[str, Any]], as_json: bool = False) -> str:
    """Return the hosts that a job may use, as its origin lists them, as a table, or as JSON lines."""
    if as_json:
        return _lines(entries)
    rows = [["HOST", "SLOTS", "SYSTEM", "TAGS", "ABOUT"]]
    for entry in entries:
        tags = entry.get("tags")
        cells = [
            str(entry.get("name", "-")) + (" (here)" if entry.get("here") else ""),
            str(entry.get("slots", "-")),
            str(entry.get("system", "-")),
            ",".join(map(str, tags)) if isinstance(tags, list) and tags else "-",
            str(entry.get("about", "-")),
        ]
        rows.append([plain(cell, newlines=False) for cell in cells])
    return table(rows)


def check(chosen: Sequence[Host], known: Inventory, verbose: bool, as_json: bool = False) -> int:
    from deploy import dial

    results = visit(chosen, known, dial.check, verbose)
    if as_json:
        print(_lines(described(host) | _facts(result) for host, result in results), end="")
        return complaints(results)
    rows = [["HOST", "STATE", "SYSTEM", "PYTHON", "BUILD", "FREE", "SLOTS", "SECONDS"]]
    for host, result in results:
        facts = _facts(result)
        state = "unusable" if isinstance(result, Exception) else "ok"
        seconds = "-" if facts["seconds"] is None else f"{facts['seconds']:.2f}"
        system = f"{facts['system']} {facts['machine']}" if facts["system"] else "-"
        build = {True: "same", False: "none", None: "-"}[facts["build"]]
        free = "-" if facts["free"] is None else f"{facts['free'] >> 20} MB"
        python, slots = facts["python"] or "-", str(host.slots or "-")
        rows.append([host.name, state, system, python, build, free, slots, seconds])
    print(table(rows), end="")
    return complaints(results)


def _facts(result: Visit | Refused) -> dict[str, Any]:
    """Return the fields of `hosts check --json` beside those of `described`; the same ones for every host."""
    from deploy.dial import Visit
    from deploy.host_requirements import Unfit

    answered = isinstance(result, (Visit, Unfit))
    facts = result.facts if isinstance(result, (Visit, Unfit)) else None
    return {
        "reachable": answered,
        "build": (facts is not None and facts.have) if answered else None,
        "python": ".".join(map(str, facts.version)) if facts and facts.python else None,
        "system": facts.system if facts else None,
        "machine": facts.machine if facts else None,
        "free": facts.free if facts and facts.python else None,  # Python looks
        "seconds": None if isinstance(result, Exception) else round(result.seconds, 3),
        "error": result.detail if isinstance(result, Exception) else None,
        "hint": (result.hint or None) if isinstance(result, Exception) else None,
    }


def carry_out(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, as asyncio.run does. TERM and HUP cancel it, as INT does, and end this process."""
    import asyncio
    import logging

    from transport.carrier.child import end_all
    from transport.status import die_of, signal_name

    # It warns of each write to a connection that was lost.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    came: list[int] = []

    async def main() -> T:
        task = asyncio.ensure_future(work)

        def end(number: int) -> None:
            came.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                asyncio.get_running_loop().add_signal_handler(number, end, number)
        try:
            return await task
        finally:
            await end_all()

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if came:
            die_of(signal_name(came[0]))
        raise


def visit(
    chosen: Sequence[Host], known: Inventory, call: Call, verbose: bool, bar: Bar | None = None
) -> list[tuple[Host, Visit | Refused]]:
    """Run `call` for all hosts at the same time; return each one's result or refusal, in order.

    `bar` shows the progress meanwhile. A host whose unknown key is accepted on the terminal, or whose private key is
    unlocked there, is visited again.
    """
    import asyncio
    import contextlib

    from transport.errors import Refused

    agent = os.environ.get("SSH_AUTH_SOCK")

    async def one(host: Host) -> tuple[Host, Visit | Refused]:
        def note(text: str) -> None:
            if verbose:
                os.write(2, f"quine: {host.name}: {text}\n".encode())

        def news(text: str) -> None:
            if bar:
                bar.clear()
            os.write(2, f"quine: {host.name}: {text}\n".encode())

        try:
            return host, await call(host, known, ssh_agent=agent, note=note, news=news)
        except Refused as refused:
            return host, refused
        except Exception as error:
            what = f"a defect in quine: {type(error).__name__}: {error}"
            unknown = Refused(what, "please report it")
            unknown.status = DEFECT
            return host, unknown
        finally:
            if bar:
                bar.done += 1

    async def all_of_them() -> list[tuple[Host, Visit | Refused]]:
        async with bar.shown() if bar else contextlib.nullcontext(), asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(host)) for host in chosen]
        return [task.result() for task in tasks]

    results = carry_out(all_of_them())
    unlocked: set[str] = set()
    cured = [host for host, result in results if _accepts(host, result) or _unlocks(host, result, unlocked)]
    if not cured:
        return results
    again = {host.name: result for host, result in visit(cured, known, call, verbose)}
    return [(host, again.get(host.name, result)) for host, result in results]


def _accepts(host: Host, result: Visit | Refused) -> bool:
    """Ask on the terminal, as ssh does under `ask`, whether an unknown host key is accepted; record it then."""
    from transport.errors import UnknownHostKey

    if not isinstance(result, UnknownHostKey):
        return False
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            terminal.write(f"quine: {host.name}: {result.detail}\nRecord it and go on (yes/no)? ".encode())
            accepted = terminal.readline().strip().lower() == b"yes"
    except OSError:
        return False  # there is no terminal to ask on
    if accepted:
        try:
            result.record()
        except OSError as error:
            complain(
                f"the host key cannot be recorded: {(error.strerror or str(error)).lower()}", "", host.name
            )
            return False
    return accepted


def _unlocks(host: Host, result: Visit | Refused, unlocked: set[str]) -> bool:
    """Ask on the terminal for the passphrase of a private key, as ssh does, once for all hosts that want it."""
    from transport.errors import LockedKey

    if not isinstance(result, LockedKey):
        return False
    if result.key in unlocked:
        return True
    import getpass
    import warnings

    try:
        with open("/dev/tty", "r+b", buffering=0), warnings.catch_warnings():
            warnings.simplefilter("error")  # no terminal: getpass would read stdin, and show it
            for _ in range(PASSPHRASES):
                given = getpass.getpass(f"quine: {host.name}: passphrase of {result.key}: ")
                if not given:
                    return False
                if result.unlock(given):
                    unlocked.add(result.key)
                    return True
    except (OSError, EOFError, getpass.GetPassWarning):
        pass  # there is no terminal to ask on
    return False


def complaints(results: Sequence[tuple[Host, Visit | Refused]]) -> int:
    """Report each host's trouble; return the exit status of the whole."""
    refused = [(host, result) for host, result in results if isinstance(result, Exception)]
    for host, why in refused:
        complain(why.detail, why.hint, host.name)
    statuses = {why.status for _, why in refused}
    return OK if not refused else statuses.pop() if len(statuses) == 1 else NOT_STARTED
