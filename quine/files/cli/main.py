"""`quine fs …`: the entry point, and the small commands: cat, rm, stat, mkdir, url.

Laws
1. Commands are the same on every node: `select.tier_here` alone decides which store answers.
2. Only the standard library is imported, and only the modules of the one command: scripts call these in loops.
3. Paths are cleaned before any store sees them; a path that leads out of the tier is refused here already.
4. A process that gets an ending signal discards its unfinished files and then dies of that signal.
"""

from __future__ import annotations

import errno
import os
import signal

from quine.base.errors import FAILED, OK, Misconfigured
from quine.files import paths as names
from quine.files.cli.context import Call
from quine.files.cli.options import COMMANDS, OTHERS, PREFIX, number, parse, usage
from quine.files.cli.output import Hungup, as_json, details, escaped
from quine.files.cli.pool import failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from quine.files.api import Tier
    from quine.files.cli.options import Values

    Mount = Callable[[str, Values, list[str]], int]

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """A signal ends this process; `name` is its name without SIG."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def main(arguments: list[str], mount: Mount) -> int:
    """Run `quine fs COMMAND …` and return the exit status. `mount` runs the commands mount and umount."""
    _watch_signals()
    try:
        return perform(arguments, mount)
    except Hungup:
        return _die("PIPE")
    except Ended as ended:
        return _die(ended.name)
    except KeyboardInterrupt:
        return _die("INT")


def perform(arguments: list[str], mount: Mount | None = None) -> int:
    """As `main`, but leave the end by a signal to the caller. Raises Failure, Hungup, KeyboardInterrupt."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        if arguments:
            print(usage())
            return OK
        raise Misconfigured("no command", f"quine fs {'|'.join([*COMMANDS, *OTHERS])}")
    command = arguments[0]
    if command not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(command, [*COMMANDS, *OTHERS], 1)
        hint = f"did you mean quine fs {near[0]}?" if near else "quine fs --help"
        if command.startswith("-"):
            raise Misconfigured(
                f"{escaped(command)} stands before a command", "options follow it: quine fs ls -l"
            )
        raise Misconfigured(f"no such command: fs {escaped(command)}", hint)
    values, paths = parse(command, arguments[1:])
    if values.get("help"):
        print(usage(command))
        return OK
    if command in ("mount", "umount"):
        assert mount, "quine.__main__ has it"
        return mount(command, values, paths)
    try:
        call = Call(command, values, paths, _tier(values))
        try:
            status = _run(call)
            if status == FAILED and command not in ("put", "mkdir"):
                _tell_of_nothing(call.tier)
            return status
        finally:
            call.tier.close()
    except OSError as problem:
        raise failure(problem) from None


def _tell_of_nothing(tier: Tier) -> None:
    """Hint that the tier's directory does not exist.

    By default each directory has a tier of its own, so a command in the wrong directory finds nothing.
    """
    root = tier.directory_here()
    if root and not os.path.lexists(root):
        from quine.base.errors import say

        cure = "QUINE_FS or --fs names another"
        say(f"quine: hint: the files tier is {escaped(root)}, where nothing was put yet; {cure}\n")


def _run(call: Call) -> int:
    name = call.command
    if name in ("ls", "find"):
        from quine.files.cli import ls_find

        return ls_find.ls(call) if name == "ls" else ls_find.find(call)
    if name == "put":
        from quine.files.cli.put import put

        return put(call)
    if name == "get":
        from quine.files.cli.get import get

        return get(call)
    if name in ("cp", "mv"):
        from quine.files.cli import cp_mv

        return cp_mv.cp(call) if name == "cp" else cp_mv.mv(call)
    if name == "sync":
        from quine.files.cli.sync import sync

        return sync(call)
    return {"cat": cat, "rm": rm, "stat": stat, "mkdir": mkdir, "url": url}[name](call)


def _tier(values: Values) -> Tier:
    environ = dict(os.environ)
    if "fs" in values:
        environ["QUINE_FS"] = str(values["fs"])
    from quine.files.select import tier_here

    return tier_here(environ)


def _watch_signals() -> None:
    def end(number: int, _: FrameType | None) -> None:
        for other in ENDING:  # a second one, raised while this one is handled, would end it as an interrupt
            signal.signal(other, signal.SIG_IGN)
        raise Ended(signal.Signals(number).name.removeprefix("SIG"))

    for each in ENDING:
        if signal.getsignal(each) == signal.SIG_DFL:  # a signal that is ignored (nohup) stays ignored
            signal.signal(each, end)


def _die(name: str) -> int:
    from transport.status import die_of, signal_number

    die_of(name)
    return 128 + signal_number(name)


# -- the commands ------------------------------------------------------------------------------------


def cat(call: Call) -> int:
    offset = number(call.values, "offset", default=0) or 0
    length = number(call.values, "length")

    def copy(path: str) -> None:
        with call.tier.open(path, offset, length) as reader:
            call.out.copy(reader)

    call.each(copy, call.some())
    return call.end()


def rm(call: Call) -> int:
    from quine.files.cli.pool import Crew

    recursive, force = bool(call.values.get("recursive")), bool(call.values.get("force"))
    jobs = number(call.values, "jobs", 1, 8) or 8

    def remove(path: str) -> None:
        try:
            call.tier.remove(path, recursive)
        except FileNotFoundError:
            if not force:
                raise
            return
        except OSError as problem:
            if problem.errno != errno.ENOTEMPTY or recursive:
                raise
            text = "directory not empty; -r removes all that is in it"
            raise OSError(errno.ENOTEMPTY, text, path) from None
        call.say(f"removed {escaped(path)}")

    if force and not call.paths:
        return OK
    paths = call.some()
    with Crew(jobs) as crew:
        for clean, _ in call.expand(paths):
            crew.do(remove, clean)
        return crew.finish() or call.end()


def stat(call: Call) -> int:
    first = True

    def show(path: str) -> None:
        nonlocal first
        entry = call.tier.stat(path)
        if call.values.get("json"):
            call.out.write(as_json(entry))
        else:
            call.out.write((("" if first else "\n") + details(entry)).encode("utf-8", "replace"))
        first = False

    call.each(show, call.some())
    return call.end()


def mkdir(call: Call) -> int:
    for path in call.some():
        try:
            call.tier.mkdir(names.clean(path.removeprefix(PREFIX)), exist_ok=bool(call.values.get("parents")))
        except OSError as problem:
            call.failed(problem)
    return call.end()


def url(call: Call) -> int:
    end = b"\0" if call.values.get("null") else b"\n"
    call.each(lambda path: call.out.write(os.fsencode(call.tier.url_of(path)) + end), call.some())
    return call.end()
