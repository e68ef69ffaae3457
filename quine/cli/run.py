"""The verb `run`: one plain command, here or on a node, with the streams, signals and exit status of a local one.

Laws
1. stdout belongs to the command alone. quine writes to stderr, and only if something is wrong, or if the directory made
   for a job is kept because files were left in it.
2. The command's own status is returned unchanged, and a death by signal as that death.
3. Standard library only.
"""

from __future__ import annotations

import os
import sys

from quine.base.cli_options import MOUNT, MOUNT_WANTED, RunOptions, environment, field, limits, parse
from quine.base.errors import Misconfigured, complain, say
from quine.jobs.client import (
    caller,
    callers_environment,
    callers_limits,
    choose_store,
    directory_here,
    seconds_of,
    services,
    show,
    staging,
    starting_directory,
    tries_of,
)

RSYNC = ["rsync", "--server"]  # from rsync -e 'quine run --on': its relative paths are those of a login

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.staging.caller_side import Staging


def main(words: list[str], detach: Callable[[RunOptions, list[str], str, Staging | None], int]) -> int:
    """Return the exit status, unless the process dies of the command's signal or becomes the command.

    `detach` starts the job of --detach.
    """
    options, command = parse("run", words)
    if options.help:
        from quine.cli.help import usage

        print(usage("run"))
        return 0
    if options.version:
        return version()
    if options.on == "-l" and len(command) > 1:  # rsync -e 'quine run --on', for USER@HOST
        options, command = options.replace(on=f"{command[0]}@{command[1]}"), command[2:]
    if options.report and not options.detach:
        from quine.base import run_report

        options = options.replace(report=run_report.begin(options.report))
    if not command or not command[0]:
        raise Misconfigured("no command", "quine run [--on WHERE] -- CMD [ARG…]")
    choose_store(options)
    stage = staging(options)
    if options.detach:
        return detach(options, command, _tree(), stage)
    for name in ("job", "stdin", "output-limit"):
        if getattr(options, field(name)):
            hint = (
                "leave it out: the command reads our stdin; -t gives it a terminal" if name == "stdin" else ""
            )
            raise Misconfigured(f"--{name} goes with --detach", hint)
    if not (options.on or options.report or seconds_of(options)) and stage is None:
        env, limited = environment(options, os.environ), limits(options)
        if options.terminal:
            _terminal()  # raises Misconfigured without one; the command has it anyway
        tries_of(options)
        if options.mount:
            _mount(options)
        return _here(options, command, env, limited)
    return by_node(options, command, stage)


def by_node(options: RunOptions, command: list[str], stage: Staging | None = None) -> int:
    """Run a command through the node of this machine, with this process as its proxy; leave as it left."""
    from transport.spawn import Spawn
    from transport.writes import is_one_file

    env, limited = environment(options, os.environ), callers_limits(options)
    terminal = _terminal() if options.terminal else None
    tries_of(options)  # refused here, before anything is started
    # A terminal starts in the directory of a login, and so does rsync's server.
    at_home = stage is None and (options.terminal or command[:2] == RSYNC)
    spawn = Spawn(
        ["run", "--mount", "--", *command] if options.mount else command,
        own=options.mount,
        where=options.on or "local",
        env={**callers_environment(options), **env},
        cwd=starting_directory(options),
        limits=limited,
        deadline=seconds_of(options),
        tree=_tree(),
        context=caller(options) | ({"home": True} if at_home else {}),
        terminal=terminal,
        # --idempotent tells output from messages: a job that has sent output is not tried again.
        merged=not (terminal or options.idempotent) and is_one_file(1, 2),
    )
    spawn.apart(bool(stage))
    return show(spawn, options, services(spawn.context), stage=stage)


def _mount(options: RunOptions) -> None:
    """Mount the shared files. Raises Failure if that fails, unless only the defaults of an inventory want it."""
    from quine.mount.command import attach

    why = attach(os.environ, needed=os.environ.get(MOUNT) != MOUNT_WANTED)
    if why and options.verbose:
        say(f"quine: {why}\n")


def _terminal() -> dict[str, object]:
    """Return the caller's terminal, as a spawn describes it."""
    if not os.isatty(0):
        hint = "leave -t out: a command that reads a pipe or a file needs none; script(1) makes one"
        raise Misconfigured("-t needs a terminal on stdin", hint)
    from transport.terminal import description

    return description(0, os.environ)


def _tree() -> str:
    """Return the tree of the agent that this process is a command of; "" if there is none."""
    from transport.spawn import is_id

    tree = os.environ.get("QUINE_ROOT_SESSION", "")
    if tree and not is_id(tree):
        raise Misconfigured(f"QUINE_ROOT_SESSION is not a session: {tree[:80]!r}", "unset it")
    return tree


def version() -> int:
    print(version_text())
    return 0


def version_text() -> str:
    from quine import __version__
    from transport.this_build import build_hash

    return f"quine {__version__} (build {build_hash()[:12]})"


def _here(options: RunOptions, command: list[str], env: dict[str, str], limited: dict[str, str]) -> int:
    """Become the command, without a node. Return only if that fails."""
    from transport.status import restore_signals

    try:
        if options.cwd:
            env = {"PWD": directory_here(options) or "/", **env}
            os.chdir(os.path.expanduser(options.cwd))
    except OSError as error:
        complain(f"cannot start in {options.cwd}: {error.strerror}")
        return 69
    if limited:
        from transport.errors import ProtocolError
        from transport.job.process import limit_self

        try:
            limit_self(limited)
        except ProtocolError as error:
            raise Misconfigured(str(error)) from None
    restore_signals()
    try:
        os.execvpe(command[0], command, {**os.environ, **env})
    except (FileNotFoundError, NotADirectoryError):
        from quine.base.slips.missions import as_mission
        from quine.base.slips.not_run import not_found

        hint = not_found(command, options)
        complain(f"command not found: {command[0]}", hint or as_mission(sys.argv[1:]))
        return 127
    except OSError as error:
        complain(f"cannot execute {command[0]}: {error.strerror}")
        return 126
