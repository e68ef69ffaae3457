"""`quine tape`: sessions, as their tapes record them; and with --follow one that runs now.

Laws
1. Standard library only: `show` is called in loops. Its options are in the table of cli_options.py, as `tape:NAME`.
2. A session that is not here is looked for in the other data directories of this user, then in the shared files, if
   sessions are kept there (QUINE_FS).
"""

from __future__ import annotations

import os
from pathlib import Path

from quine.base import data_directory
from quine.base.cli_options import RunOptions, parse_around
from quine.base.errors import FAILED, OK, Failure, Misconfigured, NotBuilt, complain
from quine.base.sessions import SHORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[[RunOptions, list[str]], int]

USAGE = """\
usage: quine tape COMMAND [OPTIONS] [SESSION]

Inspect sessions, from their tapes. SESSION is an id, or how it begins.

commands:"""

# the text of --help before the options; its third line is also the command's line in `quine tape --help`
HELP = {
    "ls": """\
usage: quine tape ls [OPTIONS]

One line a session, the latest last.
Begun, seconds, model, turns, tokens, exit code, how it ended, mission. Where sessions are kept in the files tier
(QUINE_FS), those of other machines too, with where each is.""",
    "show": """\
usage: quine tape show [OPTIONS] [SESSION]

One session as text: its messages, tool calls, results and outcome.
Without SESSION the root of the latest tree.""",
    "tree": """\
usage: quine tape tree [OPTIONS] [SESSION]

The tree of sessions: parent, host and exit status of each.
Without SESSION the latest tree.""",
    "cost": """\
usage: quine tape cost [OPTIONS] [SESSION]

Tokens and US dollars by model.
SESSION may also be the id of a batch of agents (quine xargs). Without SESSION of all sessions. Prices are those of
the vendors (quine/budget/prices.toml says of when), and over them your own: $XDG_CONFIG_HOME/quine/prices.toml or the
file that QUINE_PRICES names. A price that is not known is said to be unknown, it is never 0.""",
    "replay": """\
usage: quine tape replay [OPTIONS] [SESSION]

Run a session again without its guest, and say where it departs; exit 1 if it does.
THE COMMANDS ARE REALLY RUN AGAIN, here and now, with your rights and in the current directory: do it in a copy of
where they ran. The guest's replies come from the tape; children and further lives take theirs from the tapes
beside it. Sessions, pids, times and the places of quine's own files may differ. The new tapes are written below
the data directory, and stay there if anything departed. stdin is the material. A tree with sessions of other machines
is refused without --force: their tapes are what those machines sent. So is one whose tapes were in the data directory
before quine marked it as yours: a repository or an archive may have brought them.

With --dry nothing is run: each request is printed as a JSON line, rebuilt from the tape.""",
    "verify": """\
usage: quine tape verify [OPTIONS] [SESSION|FILE]…

Is a tape what was written? Names every changed, lost, moved or inserted line; exit 1 if there is one.
Without SESSION all tapes. No fault, but never called ok: a session that still runs, one that has no outcome or half a
last line because its writer died (nothing tells how much of its end is missing), and a tape of the reference
implementation. If a tape came from another machine, replies that could not be compared with those that were given
are reported as told by that host.""",
    "archive": """\
usage: quine tape archive [OPTIONS] [SESSION]

Copy the tapes and results of a tree into the files tier, as the archive daemon of a tree does.
Without SESSION those of all trees here.""",
}

OLD = {"save": "archive"}  # spellings that 1.0 drops


def main(words: list[str]) -> int:
    """Run one command; return the exit status."""
    if not words:
        raise Misconfigured("missing command", "quine tape --help")
    name = OLD.get(words[0], words[0])
    if name in ("-h", "--help"):
        print(_overview())
        return OK
    if name not in HELP:
        from quine.base.slips.missions import is_begun_id

        if name in ("export", "fork"):
            raise NotBuilt(f"quine tape {name}")
        what = "option" if name.startswith("-") else "command"
        cure = f"quine tape show {name}" if is_begun_id(name) else "quine tape --help"
        raise Misconfigured(f"no such {what} {name!r}", cure)
    options, sessions = parse_around(f"tape:{name}", words[1:])
    if options.help:
        from quine.cli.help import usage

        print(usage(f"tape:{name}", HELP[name]))
        return OK
    most = {"ls": 0, "verify": len(sessions)}.get(name, 1)
    if len(sessions) > most:
        raise Misconfigured(f"got unexpected extra argument {sessions[most]!r}", f"quine tape {name} --help")
    return _COMMANDS[name](options, sessions)


def _overview() -> str:
    lines = [f"  {name:8} {text.splitlines()[2]}" for name, text in HELP.items()]
    return "\n".join([USAGE, *lines, "", "options: quine tape COMMAND --help"])


def _folder(options: RunOptions) -> Path:
    return Path(data_directory.checked(option=options.data_dir))


def _holding(options: RunOptions, session: str) -> Path:
    """Return the directory that has a session: here, another one of this user, or the copy kept in the shared files."""
    from quine.archive import policy
    from quine.tape import places
    from quine.tape.index import Index

    folder = _folder(options)
    elsewhere = len(session) >= SHORT and not options.data_dir and not Index(str(folder)).has(session)
    if elsewhere and (other := places.holding(session, str(folder)) or _with_batch(session, folder)):
        return Path(other)
    if not policy.wanted(os.environ):
        return folder
    from quine.archive import local_mirror

    return local_mirror.holding(folder, session)


def _with_batch(root: str, folder: Path) -> str:
    """Return the noted directory with the agents of a batch; "" if they are in `folder`, or nowhere."""
    from quine.tape import places
    from quine.tape.reader import batch

    if batch(folder, root):
        return ""
    return next((path for path in places.folders() if batch(Path(path), root)), "")


def _named(sessions: list[str]) -> str:
    return sessions[0] if sessions else ""


def _ls(options: RunOptions, sessions: list[str]) -> int:
    from quine.archive import policy
    from quine.tape import render

    there, status = None, OK
    if policy.wanted(os.environ):
        from quine.archive import local_mirror

        try:
            there = local_mirror.mirror()
        except Failure as failure:
            complain(failure.detail, failure.hint)
            status = failure.status
    print(render.ls(_folder(options), options.json, there), end="")
    return status


def _archive(options: RunOptions, sessions: list[str]) -> int:
    from quine.archive import local_mirror

    count, place = local_mirror.save(_folder(options), _named(sessions))
    print(f"{count} files copied to {place}")
    return OK


def _show(options: RunOptions, sessions: list[str]) -> int:
    from quine.tape import render

    session = _named(sessions)
    if options.follow:
        from quine.tape.follow import follow

        for text in follow(_holding(options, session), session):
            print(text, end="", flush=True)
        return OK
    print(render.show(_holding(options, session), session), end="")
    return OK


def _tree(options: RunOptions, sessions: list[str]) -> int:
    from quine.tape import render

    session = _named(sessions)
    print(render.tree(_holding(options, session), session), end="")
    return OK


def _cost(options: RunOptions, sessions: list[str]) -> int:
    from quine.tape import cost

    session = _named(sessions)
    print(cost.cost(_holding(options, session), session, options.tree, options.json), end="")
    return OK


def _replay(options: RunOptions, sessions: list[str]) -> int:
    from quine.tape import replay

    session = _named(sessions)
    if options.dry:
        for line in replay.dry(_holding(options, session), session):
            print(line, end="")
        return OK
    status, text = replay.replay(_folder(options), session, options.force)
    print(text, end="")
    return status


def _verify(options: RunOptions, sessions: list[str]) -> int:
    from quine.base.sessions import TAPE
    from quine.tape import verify
    from quine.tape.index import Index

    status = OK
    paths: list[Path] = []
    named = set[Path]()
    for word in sessions or [""]:
        file = os.sep in word or word.endswith(TAPE)
        folder = _folder(options) if file else _holding(options, word)
        paths += (found := verify.paths(folder, [word] if word else []))
        named.update(found if file else ())
    indexes = {folder: Index(str(folder)) for folder in {path.parent for path in paths}}
    for path in paths:
        verdict = verify.verify(path, indexes[path.parent], path in named)
        print(verdict.json() if options.json else verdict.text(), end="")
        if verdict.state == verify.BROKEN:
            status = FAILED
    return status


_COMMANDS: dict[str, Command] = {
    "ls": _ls,
    "show": _show,
    "tree": _tree,
    "cost": _cost,
    "replay": _replay,
    "verify": _verify,
    "archive": _archive,
}
