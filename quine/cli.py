"""The verbs that people type by hand: hosts, deploy, doctor, node, tape. Only this file knows typer.

Laws
1. What is called in loops is not here: an agent and `run` never pay for this import.
2. A command prints its result on stdout and its complaints by `complain`; one host's trouble never
   hides another's result.
3. Everything below a command is imported inside it: `quine node --status` does not load ssh.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quine.exits import FAILED, OK, USAGE, Failure, Misconfigured, complain
from quine.text import table

if TYPE_CHECKING:
    from deploy.inventory import Inventory

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

# what typer raises for a wrong command line: its base, whichever library it stands on
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main(words: list[str]) -> int:
    """Run one verb; the exit status."""
    try:
        status = app(words, prog_name="quine", standalone_mode=False)
    except _UsageError as error:
        message = str(getattr(error, "message", "") or error).rstrip(".")
        complain(message[:1].lower() + message[1:], f"quine {words[0]} --help")
        return USAGE
    except typer.Exit as leaving:
        if leaving.exit_code == 130:
            raise KeyboardInterrupt from None  # typer makes a status of it; a shell's loop wants the death
        return leaving.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return status if isinstance(status, int) else OK


@app.callback()
def _root() -> None:
    """Verbs of quine."""


# -- hosts and deploy --------------------------------------------------------------------------------


@app.command()
def hosts(
    action: Annotated[str, typer.Argument(metavar="check", help="check: log in and look")] = "",
    where: Annotated[str, typer.Argument(metavar="WHERE", help="which hosts")] = "any",
    inventory: InventoryOption = None,
    verbose: Verbose = False,
) -> int:
    """What the inventory says; `hosts check`: reachable? which python? this very build there?"""
    if action not in ("", "check"):
        raise Misconfigured(f"no such action: {action}", "quine hosts, or quine hosts check [WHERE]")
    known = _inventory(inventory)
    if known.path is None and where == "any":
        raise Misconfigured("there is no inventory", "write ./inventory.toml; see inventory.example.toml")
    chosen = known.matching(where) if known.hosts or where != "any" else []
    if action == "check":
        from quine.visits import check

        return check(chosen, known, verbose)
    rows = [["HOST", "ADDRESS", "USER", "SLOTS", "THROUGH", "TAGS"]]
    for host in chosen:
        address = host.destination + (f":{host.port}" if host.port else "")
        slots = str(host.slots or "-")
        rows.append(
            [host.name, address, host.user or "-", slots, host.jump or "-", ",".join(host.tags) or "-"]
        )
    print(table(rows), end="")
    return OK


@app.command()
def deploy(
    where: Annotated[
        str, typer.Argument(metavar="WHERE|build", help="which hosts, or: build a file")
    ] = "any",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="of `build`: where the file goes")
    ] = None,
    inventory: InventoryOption = None,
    verbose: Verbose = False,
) -> int:
    """Put this binary on hosts; `deploy build -o FILE` makes the file."""
    if where == "build":
        return _build(output)
    if output is not None:
        raise Misconfigured("--output belongs to quine deploy build")
    from deploy import dial
    from quine.visits import complaints, visit

    known = _inventory(inventory)
    results = visit(known.matching(where), known, dial.deploy, verbose)
    for host, result in results:
        if not isinstance(result, Exception):
            print(
                f"{host.name}: {'deployed' if result.deployed else 'already there'}, {result.seconds:.2f} s"
            )
    return complaints(results)


def _build(output: Path | None) -> int:
    from deploy.build import build

    binary = build(output)
    version = ".".join(map(str, binary.python))
    print(f"{binary.path}: {binary.size} bytes, for {binary.system} {binary.machine}, Python {version}")
    print(f"sha256 {binary.sha256}")
    return OK


def _inventory(path: Path | None) -> Inventory:
    from deploy.inventory import load

    return load(path, os.environ)


# -- doctor and node ----------------------------------------------------------------------------------


@app.command()
def doctor(inventory: InventoryOption = None) -> int:
    """What works here, what does not, how to mend it."""
    from quine.doctor import examine

    findings = examine(str(inventory) if inventory else None)
    for finding in findings:
        print(f"{finding.state:4}  {finding.subject:10}  {finding.detail}")
        if finding.cure:
            print(f"{'':18}{finding.cure}")
    return FAILED if any(finding.state == "fail" for finding in findings) else OK


@app.command()
def node(
    dial: Annotated[bool, typer.Option("--dial", help="hand stdin and stdout to the node here")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="end the node of this machine, and its jobs")] = False,
    status: Annotated[bool, typer.Option("--status", help="what it is doing, as JSON")] = False,
) -> int:
    """The daemon that serves this user here, in the foreground; commands start it when they need it."""
    from quine import compose
    from transport import starter

    if dial + stop + status > 1:
        raise Misconfigured("one of --dial, --stop, --status")
    if dial:
        return compose.node(["--dial"])
    if status:
        import json

        facts = starter.status()
        if facts is None:
            complain("no node of this build runs here", "it is started by the first command that needs it")
            return FAILED
        print(json.dumps(facts, indent=2))
        return OK
    if stop:
        if not starter.stop():
            complain("no node of this build runs here")
            return FAILED
        return OK
    return compose.node([])


# -- tape --------------------------------------------------------------------------------------------

tapes = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="What sessions did, from the tapes that they left."
)
app.add_typer(tapes, name="tape")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="where tapes are (QUINE_DATA_DIR, .quine)"),
]
Session = Annotated[
    str, typer.Argument(metavar="SESSION", help="an id, or how it begins; left out: the latest")
]
Json = Annotated[bool, typer.Option("--json", help="for scripts: one JSON object a line")]


def _folder(data_dir: Path | None) -> Path:
    return data_dir or Path(os.environ.get("QUINE_DATA_DIR") or ".quine")


def _holding(data_dir: Path | None, session: str) -> Path:
    """Where a session is: here, or kept in the files tier."""
    from quine import keeping

    folder = _folder(data_dir)
    if not keeping.wanted(os.environ):
        return folder
    from quine import kept

    return kept.holding(folder, session)


@tapes.command()
def ls(as_json: Json = False, data_dir: DataDir = None) -> int:
    """One line a session, the latest last: begun, seconds, model, turns, tokens, exit code, how it ended, mission.

    Where sessions are kept in the files tier (QUINE_FS), those of other machines too, with where each is.
    """
    from quine import keeping, tree

    there, status = None, OK
    if keeping.wanted(os.environ):
        from quine import kept

        try:
            there = kept.mirror()
        except Failure as failure:
            complain(failure.detail, failure.hint)
            status = failure.status
    print(tree.ls(_folder(data_dir), as_json, there), end="")
    return status


@tapes.command()
def save(session: Session = "", data_dir: DataDir = None) -> int:
    """Copy the tapes and results of a tree into the files tier, as its keeper does; left out: of all trees here."""
    from quine import kept

    count, place = kept.save(_folder(data_dir), session)
    print(f"{count} files copied to {place}")
    return OK


@tapes.command()
def show(session: Session = "", data_dir: DataDir = None) -> int:
    """One session as text: what it was told, what it did, what came of it."""
    from quine import tree

    print(tree.show(_holding(data_dir, session), session), end="")
    return OK


@tapes.command("tree")
def draw(session: Session = "", data_dir: DataDir = None) -> int:
    """Who started whom, where, and how each ended."""
    from quine import tree

    print(tree.tree(_holding(data_dir, session), session), end="")
    return OK


@tapes.command()
def cost(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="an id, or how it begins; left out: all")
    ] = "",
    whole_tree: Annotated[bool, typer.Option("--tree", help="of the whole tree of that session")] = False,
    as_json: Json = False,
    data_dir: DataDir = None,
) -> int:
    """Tokens and US dollars by model.

    Prices are those of the vendors (quine/prices.toml says of when), and over them your own:
    $XDG_CONFIG_HOME/quine/prices.toml or the file that QUINE_PRICES names. A price that is not known is said to be
    unknown, it is never 0.
    """
    from quine import bill

    print(bill.cost(_holding(data_dir, session), session, whole_tree, as_json), end="")
    return OK


@tapes.command()
def replay(
    session: Session = "",
    dry: Annotated[bool, typer.Option("--dry", help="run nothing: print what the guest was sent")] = False,
    data_dir: DataDir = None,
) -> int:
    """Run a session again without its guest, and say where it departs; exit 1 if it does.

    THE COMMANDS ARE REALLY RUN AGAIN, here and now, with your rights and in the current directory: do it in a copy of
    where they ran. The guest's replies come from the tape; children and further lives take theirs from the tapes
    beside it. Sessions, pids, times and the places of quine's own files may differ. The new tapes are written below
    the data directory, and stay there if anything departed. stdin is the material.

    With --dry nothing is run: each request is printed as a JSON line, rebuilt from the tape.
    """
    from quine import replay as again

    if dry:
        for line in again.dry(_holding(data_dir, session), session):
            print(line, end="")
        return OK
    status, text = again.replay(_folder(data_dir), session)
    print(text, end="")
    return status


@tapes.command()
def verify(
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="SESSION|FILE", help="which ones; left out: all")
    ] = None,
    as_json: Json = False,
    data_dir: DataDir = None,
) -> int:
    """Is a tape what was written? Names every changed, lost, moved or inserted line; exit 1 if there is one.

    No fault, but never called ok: a session that still runs, one that has no outcome or half a last line because its
    writer died (nothing tells how much of its end is missing), and a tape of the reference implementation.
    """
    from quine import verify as verifier

    status = OK
    paths: list[Path] = []
    for word in sessions or [""]:
        file = os.sep in word or word.endswith(".jsonl")
        folder = _folder(data_dir) if file else _holding(data_dir, word)
        paths += verifier.paths(folder, [word] if word else [])
    for path in paths:
        verdict = verifier.verify(path)
        print(verdict.json() if as_json else verdict.text(), end="")
        if verdict.state == verifier.BROKEN:
            status = FAILED
    return status
