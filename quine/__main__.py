"""Entry point: dispatches to a verb, and ends the process.

Laws
1. Verbs that are called in loops (`run`, an agent, the dial) are dispatched before large imports.
2. Every failure is printed once, here, and becomes an exit status. A defect is exit 70, and names its traceback's file.
3. The process ends by os._exit: a thread that still answers a request must not delay the exit status.
"""

from __future__ import annotations

import sys

if sys.platform != "linux":  # before the imports, which fail elsewhere with a traceback
    sys.stderr.write(f"quine: error: quine runs on Linux (and WSL2), and this is {sys.platform}\n")
    sys.exit(2)

import errno
import gc
import os
import time

from quine import packed
from quine.base.errors import LOST, NOT_STARTED, Failure, NoGuest, complain, defect
from transport import inherit, this_build
from transport.writes import closed, read_some, write_all

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from _typeshed import ReadableBuffer

    from quine.base.cli_options import RunOptions
    from quine.staging.caller_side import Staging


def main() -> None:
    """The console script."""
    try:
        if "LC_CTYPE" in os.environ:
            from quine.base import exposure

            exposure.drop_own_locale()
        _hide_secrets()
        _ready_streams()
        status = dispatch(sys.argv[1:])
    except Failure as failure:
        complain(failure.detail, _or_mission(failure.hint), failure.host)
        status = failure.status
    except KeyboardInterrupt:
        from transport.status import die_of

        die_of("INT")
        status = 130
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except Exception as error:
        status = _translated(error)
    for name in ("stdout", "stderr"):
        try:
            if stream := getattr(sys, name):
                stream.flush()
        except OSError as error:
            status = status or _unwritten(error, name)
    packed.keep()
    os._exit(status)


def _hide_secrets() -> None:
    """Hide keys of the environment from other processes, whatever the verb and the lifetime of this one."""
    if names := os.environ.keys() - inherit.scrubbed(os.environ).keys():
        from quine.broker import memory

        memory.hide(names)


def _ready_streams() -> None:
    """Make `print` wait if another process has made its pipe non-blocking, and fail if stdout is closed."""
    if sys.stdout is None:
        sys.stdout = closed()
    for name, fd in (("stdout", 1), ("stderr", 2)):
        try:
            if os.get_blocking(fd):
                continue
        except OSError:
            continue  # closed
        import io

        class Patient(io.FileIO):
            def write(self, data: ReadableBuffer, /) -> int:
                view = memoryview(data).cast("B")
                write_all(self.fileno(), view)
                return len(view)

        stream = getattr(sys, name)
        if stream is None:
            continue
        kind = {"encoding": stream.encoding, "errors": stream.errors, "line_buffering": stream.line_buffering}
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(Patient(fd, "w", closefd=False)), **kind))


def _mount(command: str, values: Mapping[str, object], paths: list[str]) -> int:
    from quine.mount.command import perform

    return perform(command, values, paths)


def _detached() -> ModuleType:
    from quine.jobs import detach

    return detach


def dispatch(words: list[str]) -> int:
    if words[:1] != ["run"]:  # `show` of quine/jobs/client.py enables it, once all modules are loaded
        gc.enable()
    if words[:1] == ["node"] and words[1:2] in (["--launcher"], ["--zygote"], ["--stage"]):
        return _beside_a_node(words[1], words[2:])
    verb = words[0] if words else ""
    if verb == "node" and {"--dial", "--ready-fd"} & set(words):  # before the table of options: a dial waits
        from quine.remote.node_entry import node

        return node(words[1:])
    from quine.base import cli_options

    if verb == "run":
        from quine.cli.run import main as run

        return run(words[1:], _detach)  # a command that it executes itself gets the streams as they are
    inherit.hold_standard_streams()
    if verb in ("ps", "top", "wait", "logs", "kill", "attach"):
        return _jobs(verb, words[1:])
    if verb in ("budget", "each", "rsh", "xargs"):
        return _commands(verb, words[1:])
    if words[:2] == ["fs", "python"]:
        if this_build.unpacked():
            os.environ["PYTHONPATH"] = ":".join(filter(None, [this_build.ROOT, os.environ.get("PYTHONPATH")]))
        os.execv(sys.executable, [sys.executable, *words[2:]])
    if words[:3] == ["fs", "mount", "--keep"]:
        from quine.mount.command import keep

        return keep(words[3:])
    if verb == "fs":
        from quine.files.cli.main import main as fs

        return fs(words[1:], _mount)
    if words[:2] == ["tape", "--keep"]:
        from quine.archive.daemon import main as keep

        return keep(words[2:])
    if verb == "tape":
        from quine.cli.tape import main as tape

        return tape(words[1:])
    if verb == "help" and (len(words) == 1 or words[1] in cli_options.VERBS):
        return dispatch([*words[1:], "--help"])
    if words == ["version"]:
        return dispatch(["--version"])
    if verb in cli_options.UNBUILT:
        complain(f"not built yet: quine {verb}")
        return 2
    if verb in cli_options.VERBS:
        if this_build.unpacked() and not _has_typer():
            from quine.cli.on_host import main as cli
        else:
            from quine.cli.app import main as cli
        return cli(words)
    return agent(words)


def _beside_a_node(what: str, words: list[str]) -> int:
    """Run the launcher of a node, or a process that it starts."""
    if what == "--launcher":  # lives as long as a node: loads as little as possible
        from transport.launcher.launcher import main as launcher

        return launcher(words, _inside, _forks)
    if what == "--zygote":
        from quine.remote.zygote import serve

        return serve(words, main)
    from quine.staging.remote_main import main as stage

    return stage(words, _detached)


def _jobs(verb: str, words: list[str]) -> int:
    """Run a verb on agents and jobs."""
    if verb == "top":
        from quine.cli.top.main import main as top

        return top(words)
    from quine.cli.job_verbs import main as on_jobs

    return on_jobs(verb, words)


def _commands(verb: str, words: list[str]) -> int:
    """Run a verb that starts commands."""
    if verb == "budget":
        from quine.cli.budget.main import main as budget

        return budget(words)
    if verb == "rsh":
        from quine.cli.rsh import main as rsh

        return rsh(words)
    if verb == "each":
        from quine.fanout.each.main import main as each

        return each(words)
    from quine.fanout.main import main as xargs

    return xargs(words)


def _has_typer() -> bool:
    """Whether the packages of an installation are there beside the file for hosts: a person may start it, too."""
    from importlib.util import find_spec

    return bool(find_spec("typer") and find_spec("pydantic"))


def _inside(words: list[str]) -> Callable[[], None] | None:
    """A `transport.launcher.launcher.Inside`: runs `node --stage` in a fork, without a new Python and its checks."""
    if words[:2] != ["node", "--stage"]:
        return None
    import quine.staging.remote_main  # noqa: F401 - imported once in the launcher; all later forks have it

    def run() -> None:
        sys.argv[1:] = words
        main()

    return run


def _forks(words: list[str]) -> bool:
    """A `transport.launcher.zygotes.Forks`: an agent, which has a mission and no verb."""
    return words[:1] == ["--"]


def _detach(options: RunOptions, command: list[str], tree: str, stage: Staging | None) -> int:
    from quine.jobs import detach

    gc.enable()
    inherit.hold_standard_streams()
    return detach.command(options, command, tree, stage)


def agent(words: list[str]) -> int:
    """Run `quine [OPTIONS] MISSION…`, in this process, or elsewhere with this process as the proxy."""
    from quine.base import cli_options

    options, mission = cli_options.parse("agent", words)
    if options.help:
        from quine.cli.help import usage

        print(usage("agent"))
        return 0
    if options.version:
        from quine.cli.run import version

        return version()
    if options.completion:
        from quine.cli.completion import script

        print(script(options.completion), end="")
        return 0
    if len(mission) > 1 or not any(map(str.isspace, "".join(mission))):  # else nothing else can be meant
        from quine.base.slips.missions import mistake

        if wrong := mistake(words, [] if options.file else mission):
            raise wrong
    # Before anything is read, made or prepared: the process may begin anew here.
    if not options.detach and (options.file or any(map(str.strip, mission))):
        from quine.remote.compose import leave_keys

        leave_keys(options)
    began, reported = time.time(), bool(options.report) and not options.detach
    if reported:
        from quine.base import run_report

        options = options.replace(report=run_report.begin(options.report))
    try:
        return _live(options, mission)
    except Failure as failure:
        if reported:
            run_report.failed(options.report, failure, options.on or "local", began)
        if isinstance(failure, NoGuest):
            from quine.base.slips.missions import near_verb
            from quine.cli import local_servers

            failure.hint = near_verb(mission) + (local_servers.hint() or failure.hint)
        raise


def _live(options: RunOptions, mission: list[str]) -> int:
    """Check options and mission, then run the agent."""
    from quine.base.cli_options import field
    from quine.base.errors import Misconfigured

    text = " ".join(mission)
    if options.file:
        if text.strip():
            raise Misconfigured("a mission both in the arguments and in a file")
        text = _read_mission(options.file)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misconfigured("the mission is not text: it holds bytes that are not UTF-8") from None
    if not text.strip():
        raise Misconfigured("no mission", "quine MISSION…, or quine --help")
    if options.retry or options.idempotent:
        from quine.jobs.retry import Tries

        Tries(options)  # raises Misconfigured if the options make no sense together
    if options.files or options.returns:
        from quine.jobs.client import staging

        staging(options, here="--files and --returns of an agent here")
    if options.detach:
        from quine.jobs.detach import agent as detach

        return detach(text, options)
    for name in ("stdin", "output-limit"):
        if getattr(options, field(name)):
            raise Misconfigured(f"--{name} goes with --detach")
    if options.on:
        from quine.remote.compose import agent_elsewhere

        return agent_elsewhere(text, options)
    from quine.remote.compose import agent_here

    return agent_here(text, options)


def _read_mission(path: str) -> str:
    from quine.base.errors import Misconfigured, need_stdin

    try:
        if path == "-":
            need_stdin("the mission cannot be read: ")
            return b"".join(iter(lambda: read_some(0, 1 << 16), b"")).decode()
        with open(path, "rb") as file:
            return file.read().decode()
    except OSError as error:
        raise Misconfigured(f"the mission cannot be read: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Misconfigured(f"the mission is not text: {path}") from None


def _translated(error: Exception) -> int:
    """Report an error of another package by its type, or as a defect; return the exit status."""
    # Before anything is imported: no module can be loaded, either.
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        complain("too many open files", "raise the limit, as with: ulimit -n 1024")
        return LOST
    from quine.base import dirs
    from transport.errors import Refused

    if isinstance(error, FileNotFoundError):  # of a relative path that was made absolute
        try:
            dirs.current()
        except Failure as gone:
            error = gone
    if isinstance(error, (Refused, Failure)):
        complain(error.detail, _or_mission(error.hint), error.host)
        return error.status
    if isinstance(error, ModuleNotFoundError) and this_build.unpacked():
        detail = f"{error.name} is needed for this, and the file for hosts is without it"
        complain(detail, "do it where quine was installed with pip, pipx or uv")
        return NOT_STARTED
    if isinstance(error, OSError) and (error.errno in (*FULL, errno.EPIPE) or error.filename == "stdout"):
        return _unwritten(error, str(error.filename or ""))
    return defect()


def _or_mission(hint: str) -> str:
    """Return a hint; and a second one, if the verb that failed begins what reads like a mission."""
    from quine.base.slips.missions import as_mission

    return "; ".join(filter(None, (hint, as_mission(sys.argv[1:]))))


def _unwritten(error: OSError, name: str) -> int:
    """Report output that could not be written and return LOST. Without a reader, die of SIGPIPE."""
    if error.errno == errno.EPIPE:
        from transport.status import die_of

        die_of("PIPE")
    complain(f"cannot write {name}".rstrip() + f": {(error.strerror or str(error)).lower()}")
    return LOST


if __name__ == "__main__":
    main()
