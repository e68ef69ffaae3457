"""fork: its schema, the check of its arguments, and the children that a call prepares; `fork_start` starts them.

Law: a call is checked completely before any child starts; a refused call holds nothing.
"""

from __future__ import annotations

import os
import stat

from quine.agent import prompt
from quine.agent.outcome import Result
from quine.agent.tools import child_options, exported, validate
from quine.agent.tools.child_options import Options
from quine.base.errors import Misconfigured
from quine.base.messages import Tool, ToolCall
from quine.base.text import unfit
from transport.lean import Any, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.running import Running
    from quine.agent.session import SessionSpec

_CHILD = {
    "intent": {"type": "string", "minLength": 1, "description": "the child's mission"},
    "host": {"type": "string", "minLength": 1, "description": "where it runs: a host, @tag, any, or local"},
    "stdin": {
        "type": "string",
        "minLength": 1,
        "description": "null, inherit (your material), or the path of a file",
    },
    "files": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "description": "with host: files and directories of yours that it has, under the same names, before it starts",
    },
    "returns": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "description": "with host: names or patterns, relative to its directory, brought back to yours after its end",
    },
}

FORK = Tool(
    "fork",
    "Start a child (intent) or several at once (children). wait true: returns exit code, stdout and stderr of "
    "each. wait false: returns at once; the end of a child is told with a later result. mode race: the first child "
    "that succeeds wins, the others are ended. context clone: the child knows what you know; none: it knows its "
    "intent only.",
    {
        "type": "object",
        "properties": {
            **_CHILD,
            "children": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {**_CHILD, **child_options.SCHEMA},
                    "required": ["intent"],
                    "additionalProperties": False,
                },
            },
            "wait": {"type": "boolean", "default": False},
            "mode": {"type": "string", "enum": ["all", "race"], "default": "all"},
            "context": {"type": "string", "enum": ["clone", "none"], "default": "clone"},
        },
        "additionalProperties": False,
    },
)


class Refused(Exception):
    """The reason why nothing of a call was started."""


class Child(NamedTuple):
    """One child of a call; `stdin` and `cwd`, if it is not -1, are open descriptors of the parent."""

    intent: str
    host: str
    files: list[str]
    returns: list[str]
    options: Options
    base: SessionSpec  # of the parent, with the options of the child
    stdin: int = -1
    material: str = "none"
    cwd: int = -1


class Call(NamedTuple):
    """One fork call of the current reply; `place` is its index among the calls."""

    place: int
    call: ToolCall
    children: list[Child]
    slots: list[list[int]]
    wait: bool
    race: bool
    clone: bool
    removed: frozenset[str]  # names of the variables that were unset in the shell

    def held(self) -> list[int]:
        """Return the descriptors that the call holds open for its children."""
        return [*_opened(self.children), *(fd for held in self.slots for fd in held)]


def fault(args: dict[str, Any]) -> str:
    """Return the error in a call that the schema cannot express; "" if there is none."""
    if ("intent" in args) == ("children" in args):
        return "[FORK ERROR] give either intent or children"
    for child in args.get("children", [args]):
        if not child["intent"].strip():
            return "[FORK ERROR] intent is blank"
        for name in ("intent", "stdin", "host"):
            if fault := unfit(child.get(name, "")):
                return f"[FORK ERROR] {name} holds {fault}"
        for name in ("files", "returns"):
            if fault := unfit("".join(child.get(name, args.get(name, [])))):
                return f"[FORK ERROR] {name} holds {fault}"
        if fault := child_options.fault(child):
            return f"[FORK ERROR] {fault}"
    if fault := unfit(args.get("stdin", "") + args.get("host", "")):
        return f"[FORK ERROR] stdin or host holds {fault}"
    return ""


def refusal(text: str) -> Result:
    return Result(f"[FORK ERROR] {text}", True)


def prepare(loop: Running, index: int, call: ToolCall) -> Call | Result:
    """Check a call, take slots and open descriptors for its children; return a Result if it is refused."""
    args, limits = call.args, loop.spec.limits
    clone = args.get("context", "clone") == "clone"
    wanted = args.get("children", [args])
    try:
        if loop.spec.depth + 1 >= limits.depth:
            raise Refused(f"too deep: this process is at level {loop.spec.depth + 1} of {limits.depth}")
        known = _variables(loop)
        used = loop.account.used(loop.messages) if clone else 0  # it reads all of the conversation
        children = [_child(loop, child, args, known, used) for child in wanted]
        if fault := _unstaged(loop, children):
            raise Refused(fault)
        if not loop.account.affords(len(children), used):
            raise Refused("the tree cannot pay for that any more")
        taken = _slots(loop, len(children))
        try:
            children = _with_descriptors(loop, children, [_stdin_of(child, args) for child in wanted])
        except Refused:
            for fd in taken:
                os.close(fd)
            raise
    except Refused as refused:
        return refusal(f"{refused}, nothing was started")
    race = args.get("mode") == "race"
    each = [[fd] for fd in taken] if taken else [[] for _ in children]
    return Call(index, call, children, each, race or bool(args.get("wait")), race, clone, known.removed)


def _variables(loop: Running) -> exported.Exported:
    try:
        return exported.of(loop.shell)
    except OSError as error:
        raise Refused(error.strerror or "") from None


def _child(
    loop: Running, child: dict[str, Any], args: dict[str, Any], known: exported.Exported, used: int
) -> Child:
    """Return a child without its descriptors. Raises Refused."""
    host, options = child.get("host", args.get("host", "local")), Options.of(child)
    if fault := child_options.unpayable(loop, options, used):
        raise Refused(fault)
    base = child_options.applied(loop.spec, options, known, host)
    if isinstance(base, str):
        raise Refused(base)
    files, returns = (child.get(name, args.get(name, [])) for name in ("files", "returns"))
    return Child(child["intent"], host, files, returns, options, base)


def _slots(loop: Running, count: int) -> list[int]:
    """Return slots of the tree for so many agents; [] without a limit. Raises Refused."""
    limit = loop.spec.limits.agents
    try:
        taken = loop.ledger.agents(limit, count)
    except OSError as error:
        raise Refused(f"no slot for a child: {(error.strerror or '').lower()}") from None
    if taken is None:
        raise Refused(
            f"too many agents: {count} more were asked for, and the limit of the tree is {limit} (--max-agents)"
        )
    return taken


def _with_descriptors(loop: Running, children: list[Child], stdins: list[str]) -> list[Child]:
    """Return the children with their stdin and directory opened. Raises Refused, with nothing open."""
    opened: list[Child] = []
    for child, wanted in zip(children, stdins):
        what = f"stdin {validate.short(wanted)}"
        try:
            fd = _open_stdin(loop, wanted)
            material = "none" if wanted == "null" else prompt.material(fd)
            opened.append(child._replace(stdin=fd, material=material))
            if child.options.cwd and child.host == "local":
                what = f"cwd {validate.short(child.options.cwd)}"
                opened[-1] = opened[-1]._replace(cwd=_open_directory(loop, child.options.cwd))
        except OSError as error:
            for held in _opened(opened):
                os.close(held)
            raise Refused(f"{what}: {(error.strerror or '').lower()}") from None
    return opened


def _opened(children: list[Child]) -> list[int]:
    return [fd for child in children for fd in (child.stdin, child.cwd) if fd >= 0]


def _stdin_of(child: dict[str, Any], args: dict[str, Any]) -> str:
    return str(child.get("stdin", args.get("stdin", "null")))


def _open_directory(loop: Running, wanted: str) -> int:
    path = os.path.join(loop.shell.cwd, os.path.expanduser(wanted))
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if not os.access(path, os.X_OK):
        os.close(fd)
        raise PermissionError(0, "permission denied")
    return fd


def _unstaged(loop: Running, children: list[Child]) -> str:
    """Return the error in the `files` and `returns` of a call; "" if there is none."""
    if not any(child.files or child.returns for child in children):
        return ""
    from quine.staging import spec

    try:
        for child in children:
            spec.sources(child.files, loop.shell.cwd)
            spec.returns(child.returns)
    except Misconfigured as error:
        return error.detail.removeprefix("--")
    return ""


def _open_stdin(loop: Running, wanted: str) -> int:
    if wanted == "inherit":
        return os.dup(0)
    path = os.devnull if wanted == "null" else os.path.join(loop.shell.cwd, os.path.expanduser(wanted))
    _require_file(os.stat(path).st_mode)  # not opened: that alone would end the wait of a pipe's writer
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _require_file(os.fstat(fd).st_mode)  # another process may have put something else in its place
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_file(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(0, "a directory")
    if stat.S_ISFIFO(mode):
        raise OSError(0, "a named pipe, which would be waited for; let the child open it")
