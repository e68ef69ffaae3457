"""The verbs that people type by hand: hosts, deploy, doctor, node. Only this file knows typer.

Laws
1. Commands that run in loops are not here: an agent and `run` never pay for this import.
2. A command prints its result on stdout and its complaints by `complain`; one host's trouble never hides another's
   result.
3. Everything below a command is imported inside it: `quine node --status` does not load ssh.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quine.base.errors import OK, USAGE, Misconfigured, NotBuilt, complain

if TYPE_CHECKING:
    from deploy.host import Host
    from deploy.inventory import Inventory
    from quine.base.cli_options import Row

# of `quine hosts`, as other programs have them
ACTIONS = {
    **dict.fromkeys(("ls", "list", "show"), "quine hosts [WHERE]"),
    **dict.fromkeys(
        ("rm", "remove", "delete"), "remove [hosts.NAME] from the inventory; quine hosts names the hosts"
    ),
}
app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

InventoryOption = Annotated[
    Path | None,
    typer.Option("--inventory", metavar="FILE", help="the hosts (QUINE_INVENTORY, ./inventory.toml)"),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="each phase with its time, on stderr")]

# the error of typer for a wrong command line: its base, from whichever library
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main(words: list[str]) -> int:
    """Run one verb; return the exit status.

    Without the `main` of typer, which makes statuses of KeyboardInterrupt and of a stdout that nobody reads.
    """
    group = typer.main.get_group(app)
    try:
        with group.make_context("quine", list(words)) as context:
            status = group.invoke(context)
    except _UsageError as error:
        message = str(getattr(error, "message", "") or error).rstrip(".")
        complain(message[:1].lower() + message[1:], f"quine {words[0]} --help")
        return USAGE
    except typer.Exit as leaving:
        return leaving.exit_code
    return status if isinstance(status, int) else OK


@app.callback()
def _root() -> None:
    """Verbs of quine."""


def described(verb: str) -> tuple[str, list[str], list[Row]]:
    """Return the help of a verb of this file, its arguments, and its options as rows of a table of cli_options.py."""
    command = typer.main.get_group(app).commands[verb]
    arguments, options = [], []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            arguments.append(f"{parameter.metavar}{'…' if parameter.nargs < 0 else ''}")
            continue
        *short, long = sorted(parameter.opts, key=len)
        value = "" if getattr(parameter, "is_flag", False) else str(parameter.metavar)
        text = str(getattr(parameter, "help", ""))
        options.append((long[2:], short[0][1:] if short else "", value, verb, text))
    return (command.help or "").strip(), arguments, [*options, ("help", "h", "", verb, "this text")]


# -- hosts and deploy --------------------------------------------------------------------------------


@app.command()
def hosts(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="check|add|import|trust|WHERE",
            help="check: log in and look; add NAME [USER@HOST[:PORT]]: write a table; import: a table for each Host of "
            "~/.ssh/config; trust [FILE]: use ./inventory.toml as it is now; which hosts",
        ),
    ] = None,
    inventory: InventoryOption = None,
    json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    verbose: Verbose = False,
) -> int:
    """List the hosts of the inventory, or of WHERE; `hosts check` logs in: reachable, which Python, the same build?

    In a job whose origin is elsewhere: the hosts that it may use.
    """
    where = list(words or ())
    if where[:1] in (["trust"], ["add"], ["import"]):
        from quine.cli import own_inventory

        return own_inventory.main(where, inventory)
    checks = where[:1] == ["check"]
    if checks:
        del where[0]
    if _asks_origin(inventory):
        from quine.base import allowed_hosts
        from quine.cli.visits import reachable

        if words:
            raise Misconfigured("hosts are chosen and checked where the inventory is", "quine hosts")
        print(reachable(allowed_hosts.from_origin(), json), end="")
        return OK
    known = _inventory(inventory, where)
    if where[:1] == ["discover"] and "discover" not in known.everyone:
        raise NotBuilt(
            "quine hosts discover", "quine hosts import makes a table for each Host of ~/.ssh/config"
        )
    if (cure := ACTIONS.get(where[0] if where else "")) and where[0] not in known.everyone:
        raise Misconfigured(f"no such action: {where[0]}", cure)
    if known.path is None and not known.unlisted:
        if known.unread:
            from deploy import trust

            raise Misconfigured(*trust.unread(*known.unread))
        raise Misconfigured("there is no inventory", "quine hosts add NAME USER@HOST, or quine hosts import")
    chosen = _chosen(known, where) if where else list(known.hosts.values())
    if checks:
        from quine.cli.visits import check

        return check(chosen, known, verbose, json)
    from quine.cli.visits import listed

    print(listed(chosen, json), end="")
    return OK


def _chosen(known: Inventory, words: list[str]) -> list[Host]:
    """Return the hosts of one WHERE or several, each once. A word that is nearly `check` is reported as a slip."""
    from quine.base.slips.words import is_one_edit
    from transport.errors import NoSuchHost

    chosen = {}
    for where in words:
        if not where.strip():  # an unset variable
            raise Misconfigured("WHERE is empty", "name a host, @tag or any")
        try:
            chosen.update({host.name: host for host in known.matching(where)})
        except NoSuchHost:
            if is_one_edit(where, "check"):
                raise Misconfigured(f"no such action: {where}", "did you mean quine hosts check?") from None
            raise
    return list(chosen.values())


@app.command()
def deploy(
    where: Annotated[
        list[str] | None,
        typer.Argument(metavar="WHERE|build", help="which hosts, or: build a file", show_default="any"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="of `build`: where the file goes")
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option("--python", metavar="FILE", help="a packed standalone Python, for hosts that have none"),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="tell what would be done on each host; change nothing")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="remove all builds from the hosts, but those in use")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="of --remove: end nodes that have no work before")
    ] = False,
    inventory: InventoryOption = None,
    verbose: Verbose = False,
) -> int:
    """Put this binary on hosts, or remove it; `deploy build -o FILE` makes the file."""
    if where == ["build"]:
        if plan or remove or python:
            raise Misconfigured("--plan, --python and --remove are for hosts, not for quine deploy build")
        return _build(output)
    if output is not None:
        raise Misconfigured("--output belongs to quine deploy build")
    if remove and (plan or python):
        raise Misconfigured(f"one of {'--plan' if plan else '--python'}, --remove")
    if remove and not where:
        raise Misconfigured("--remove needs WHERE", "quine deploy --remove any removes it from every host")
    if now and not remove:
        raise Misconfigured("--now belongs to --remove", "quine deploy --remove --now WHERE")
    from quine.cli import deployment

    known = _inventory(inventory, where)
    chosen = _chosen(known, where or ["any"])
    if remove:
        return deployment.remove(chosen, known, verbose, now)
    return (deployment.plan if plan else deployment.put)(chosen, known, verbose, python)


def _build(output: Path | None) -> int:
    from deploy.build import build

    print("\n".join(build(output).lines()))
    return OK


def _asks_origin(inventory: Path | None) -> bool:
    from deploy.paths import find
    from quine.base.allowed_hosts import asks_origin
    from transport import inherit

    return inventory is None and asks_origin(False, find(os.environ).path, inherit.read())


def _inventory(path: Path | None, words: list[str] | None) -> Inventory:
    """Return the inventory, with the hosts that a WHERE among the words names beside it."""
    from deploy.inventory import load
    from quine.base.allowed_hosts import naming

    return naming(load(path, os.environ), ",".join(words or ()))


# -- doctor and node ----------------------------------------------------------------------------------


@app.command()
def doctor(
    host: Annotated[list[str] | None, typer.Argument(metavar="HOST", help="go there, step by step")] = None,
    inventory: InventoryOption = None,
    guest: Annotated[
        bool, typer.Option("--guest", help="examine the guest by a small session, which may cost something")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
) -> int:
    """Check the needs of quine on this machine, and print a cure for each that is not met.

    With --guest: how its server is reached, its models, tools, speed, context and price. With hosts: each step of the
    way there, from the name to an answer of the node, with its time.
    """
    if host and (guest or as_json):
        raise Misconfigured("one of HOST, --guest: the guest is asked from this machine")
    if host:
        from quine.cli.doctor.host import examine as go

        known = _inventory(inventory, host)
        return go(_chosen(known, host), known)
    from quine.cli.doctor.findings import show
    from quine.cli.doctor.machine import examine

    return show(examine(str(inventory) if inventory else None, guest), as_json)


@app.command()
def node(
    dial: Annotated[bool, typer.Option("--dial", help="hand stdin and stdout to the node here")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="end the node of this machine, if no job ends with it")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --stop: end it with its attached jobs")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="print the node's state, and the gates of the brokers")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="let agents that are paused for a provider's quota ask it again")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="with --status: every fact, as one object")] = False,
) -> int:
    """Run the daemon that serves this user here, in the foreground; commands start it when they need it."""
    from quine.remote.node_entry import node as enter

    if dial + stop + status + resume > 1:
        raise Misconfigured("one of --dial, --stop, --status, --resume")
    if force and not stop:
        raise Misconfigured("--force goes with --stop", "quine node --stop --force")
    if as_json and not status:
        raise Misconfigured("--json goes with --status", "quine node --status --json")
    if status or stop or resume:
        from quine.cli.node import status as told

        return told.show(as_json) if status else told.stop(force) if stop else told.resume()
    return enter(["--dial"] if dial else [])
