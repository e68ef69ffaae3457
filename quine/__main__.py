"""The entry: which verb is it, and how does the process leave.

Laws
1. What is called in loops (`run`, an agent, the dial) is dispatched before anything large is imported.
2. Every failure is printed once, here, and becomes an exit status; a defect of ours is exit 70 and says where
   its traceback is.
3. The process leaves by os._exit: nothing of the interpreter's tear-down is owed to anybody, and a thread that
   still answers a request must not hold the exit status back.
"""

from __future__ import annotations

import errno
import os
import sys

from quine.exits import DEFECT, Failure, complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.staging.face import Staging


def main() -> None:
    """The console script."""
    try:
        status = dispatch(sys.argv[1:])
    except Failure as failure:
        complain(failure.detail, failure.hint, failure.host)
        status = failure.status
    except KeyboardInterrupt:
        from transport.status import die_of

        die_of("INT")
        status = 130
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except Exception as error:
        status = _translated(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            status = status or 1  # what we printed went nowhere: a full disk, a reader that has gone
    os._exit(status)


def dispatch(words: list[str]) -> int:
    if words[:2] == ["node", "--guard"]:  # lives as long as a node does: loads as little as can be
        from transport.guard import main as guard

        return guard(words[2:])
    if words[:2] == ["node", "--stage"]:
        from quine.staging.there import main as stage

        return stage(words[2:])
    from quine import options

    verb = words[0] if words else ""
    if verb == "run":
        from quine.run import main as run

        return run(words[1:], _detach)
    if verb in ("ps", "wait", "logs", "kill", "attach"):
        from quine.ps import main as ps

        return ps(verb, words[1:])
    if words[:2] == ["fs", "python"]:
        os.execv(sys.executable, [sys.executable, *words[2:]])
    if words[:3] == ["fs", "mount", "--keep"]:
        from quine.mount.command import keep

        return keep(words[3:])
    if verb == "fs":
        from quine.files.commands import main as fs

        return fs(words[1:])
    if verb == "node" and {"--dial", "--ready-fd"} & set(words):
        from quine.compose import node

        return node(words[1:], main)
    if words[:2] == ["tape", "--keep"]:
        from quine.keeper import main as keep

        return keep(words[2:])
    if verb in options.UNBUILT:
        complain(f"not built yet: quine {verb}")
        return 2
    if verb in options.VERBS:
        from quine.cli import main as cli

        return cli(words)
    return agent(words)


def _detach(values: dict[str, object], command: list[str], tree: str, stage: Staging | None) -> int:
    from quine import detach

    return detach.command(values, command, tree, stage)


def agent(words: list[str]) -> int:
    """`quine [OPTIONS] MISSION…`: here as this process, or elsewhere with this process as its face."""
    from quine import options
    from quine.exits import Misconfigured

    values, mission = options.parse("agent", words)
    if values.get("help"):
        print(options.usage("agent"))
        return 0
    if values.get("version"):
        from quine.run import version

        return version()
    if "completion" in values:
        from quine.completion import script

        print(script(str(values["completion"])), end="")
        return 0
    text = " ".join(mission)
    if "file" in values:
        if text.strip():
            raise Misconfigured("a mission both in the arguments and in a file")
        text = _read_mission(str(values["file"]))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misconfigured("the mission is not text: it holds bytes that are not UTF-8") from None
    if not text.strip():
        complain("no mission", "quine MISSION…, or quine --help")
        return 2
    if "retry" in values or "idempotent" in values:
        from quine.retry import Tries

        Tries(values)  # refused here where it makes no sense
    if "files" in values or "returns" in values:
        from quine.run import staging

        staging(values, here="--files and --returns of an agent here")
    if values.get("detach"):
        from quine.detach import agent as detach

        return detach(text, values)
    for name in ("stdin", "spool"):
        if name in values:
            raise Misconfigured(f"--{name} goes with --detach")
    if "on" in values:
        from quine.compose import agent_elsewhere

        return agent_elsewhere(text, values)
    from quine.compose import agent_here

    return agent_here(text, values)


def _read_mission(path: str) -> str:
    from quine.exits import Misconfigured

    try:
        if path == "-":
            if sys.stdin is None:
                raise Misconfigured("the mission cannot be read: stdin is closed")
            return sys.stdin.buffer.read().decode()
        with open(path, "rb") as file:
            return file.read().decode()
    except OSError as error:
        raise Misconfigured(f"the mission cannot be read: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Misconfigured(f"the mission is not text: {path}") from None


def _translated(error: Exception) -> int:
    """Errors of the other packages, by type; the rest are defects."""
    from transport.errors import Refused

    if isinstance(error, Refused):
        complain(error.detail, error.hint, error.host)
        return error.status
    if isinstance(error, BrokenPipeError):
        from transport.status import die_of

        die_of("PIPE")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        complain(f"cannot write: {(error.strerror or '').lower()}")
        return 1
    return _defect()


def _defect() -> int:
    import tempfile
    import traceback

    text = f"argv: {sys.argv[:1]}\n{traceback.format_exc()}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="quine-defect-", suffix=".log", delete=False) as file:
            file.write(text)
        complain(f"a defect in quine; its traceback is in {file.name}", "please report it")
    except OSError:
        complain(f"a defect in quine\n{text}")
    return DEFECT


if __name__ == "__main__":
    main()
