"""fork: start child agents that run concurrently, here or on another machine.

Laws
1. A call is checked completely before any child starts; a refused call starts none.
2. All fork calls of one reply start before any of them is waited for.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from quine.agent import child_start, env, prompt
from quine.agent.children import Job, shown
from quine.agent.outcome import Result, sections
from quine.agent.session import SessionSpec
from quine.agent.tools import validate
from quine.base.errors import NOT_STARTED, Misconfigured
from quine.base.messages import Message, Tool, ToolCall, ToolResult
from quine.base.sessions import job_directory, new_session
from transport.status import Status

if TYPE_CHECKING:
    from quine.agent.running import Running

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
                    "properties": _CHILD,
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
TOLD = (
    "Their end is told with a later result; in sh there are quine wait ID, quine logs ID and quine kill ID."
)


class Child(NamedTuple):
    """One child of a call; `stdin` is an open descriptor of the parent."""

    intent: str
    host: str
    stdin: int
    material: str
    files: list[str]
    returns: list[str]


class Call(NamedTuple):
    """One fork call of the current reply; `place` is its index among the calls."""

    place: int
    call: ToolCall
    children: list[Child]
    slots: list[list[int]]
    wait: bool
    race: bool
    clone: bool


def fault(args: dict[str, Any]) -> str:
    """Return the error in a call that the schema cannot express; "" if there is none."""
    if ("intent" in args) == ("children" in args):
        return "[FORK ERROR] give either intent or children"
    for child in args.get("children", [args]):
        if not child["intent"].strip():
            return "[FORK ERROR] intent is blank"
        for name in ("intent", "stdin", "host"):
            if fault := env.unfit(child.get(name, "")):
                return f"[FORK ERROR] {name} holds {fault}"
        for name in ("files", "returns"):
            if fault := env.unfit("".join(child.get(name, args.get(name, [])))):
                return f"[FORK ERROR] {name} holds {fault}"
    if fault := env.unfit(args.get("stdin", "") + args.get("host", "")):
        return f"[FORK ERROR] stdin or host holds {fault}"
    return ""


def run(loop: Running, calls: list[tuple[int, ToolCall]], reply: tuple[ToolCall, ...]) -> dict[int, Result]:
    """Execute fork calls and return results by index. In a child this raises `ForkedChild`."""
    results: dict[int, Result] = {}
    prepared: list[Call] = []
    for index, call in calls:
        got = _prepare(loop, index, call)
        if isinstance(got, Result):
            results[index] = got
        else:
            prepared.append(got)
    loop.tape.sync()
    parent = os.getpid()
    started: list[tuple[Call, list[Job]]] = []
    try:
        for one in prepared:
            jobs: list[Job] = []
            started.append((one, jobs))
            for child, slot in zip(one.children, one.slots):
                jobs.append(_start(loop, one, child, slot, prepared, reply))
    except OSError as error:
        begun = [job for _, jobs in started for job in jobs]
        loop.jobs.end(begun)
        for job in begun:
            loop.child_ended(job)
        text = (
            f"a child could not be started: {error.strerror}; those of this reply that had started were ended"
        )
        return {**results, **{one.place: _error(text) for one in prepared}}
    finally:
        if os.getpid() == parent:  # the child has closed its own copies
            for fd in (fd for one in prepared for fd in _held(one)):
                os.close(fd)
    loop.tape.sync()
    for one, jobs in started:
        results[one.place] = _collect(loop, one, jobs)
    return results


def _prepare(loop: Running, index: int, call: ToolCall) -> Call | Result:
    """Check a call, take slots and open stdin for its children; return a Result if it is refused."""
    args = call.args
    limits = loop.spec.limits
    if loop.spec.depth + 1 >= limits.depth:
        return _error(
            f"too deep: this process is at level {loop.spec.depth + 1} of {limits.depth}, nothing was started"
        )
    children = args.get("children", [args])
    hosts = [child.get("host", args.get("host", "local")) for child in children]
    clone = args.get("context", "clone") == "clone"
    staged = [[child.get(name, args.get(name, [])) for name in ("files", "returns")] for child in children]
    if fault := _unstaged(loop, staged):
        return _error(f"{fault}, nothing was started")
    if not loop.account.affords(len(children), loop.account.used(loop.messages) if clone else 0):
        return _error("the tree cannot pay for that any more, nothing was started")
    opened: list[Child] = []
    try:
        taken = loop.ledger.agents(limits.agents, len(children))
    except OSError as error:
        return _error(f"no slot for a child: {(error.strerror or '').lower()}, nothing was started")
    if taken is None:
        return _error(
            f"too many agents: {len(children)} more were asked for, and the limit of the tree is {limits.agents} "
            "(--max-agents); nothing was started"
        )
    try:
        for child, host, (files, returns) in zip(children, hosts, staged):
            wanted = child.get("stdin", args.get("stdin", "null"))
            fd = _open_stdin(loop, wanted)
            material = "none" if wanted == "null" else prompt.material(fd)
            opened.append(Child(child["intent"], host, fd, material, files, returns))
    except OSError as error:
        for held in (*taken, *(child.stdin for child in opened)):
            os.close(held)
        return _error(
            f"stdin {validate.short(wanted)}: {(error.strerror or '').lower()}, nothing was started"
        )
    race = args.get("mode") == "race"
    each = [[fd] for fd in taken] if taken else [[] for _ in children]
    return Call(index, call, opened, each, race or bool(args.get("wait")), race, clone)


def _unstaged(loop: Running, staged: list[list[list[str]]]) -> str:
    """Return the error in the `files` and `returns` of a call; "" if there is none."""
    if not any(files or returns for files, returns in staged):
        return ""
    from quine.staging import spec

    try:
        for files, returns in staged:
            spec.sources(files, loop.shell.cwd)
            spec.returns(returns)
    except Misconfigured as error:
        return error.detail.removeprefix("--")
    return ""


def _open_stdin(loop: Running, wanted: str) -> int:
    if wanted == "inherit":
        return os.dup(0)
    path = os.devnull if wanted == "null" else os.path.join(loop.shell.cwd, os.path.expanduser(wanted))
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(0, "a directory")
    if stat.S_ISFIFO(mode):
        raise OSError(0, "a named pipe, which would be waited for; let the child open it")
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _held(one: Call) -> list[int]:
    """Return the descriptors that a call holds open for its children."""
    return [*(child.stdin for child in one.children), *(fd for held in one.slots for fd in held)]


def _start(
    loop: Running, one: Call, child: Child, slot: list[int], prepared: list[Call], reply: tuple[ToolCall, ...]
) -> Job:
    session = new_session()
    spec = _child_spec(loop, one, child, session, reply)
    directory = "" if one.wait else job_directory(loop.settings.data_dir, session)
    job = Job(session, child.intent, child.host, directory)
    if child.host != "local":  # a local child shares the directory
        job.files, job.returns = child.files, child.returns
    facts = {"session": session, "intent": child.intent, "host": child.host, "tool_id": one.call.id}
    loop.tape.add("fork", facts)
    loop.tape.sync()  # the child may run and end before the parent continues
    held = {fd for each in prepared for fd in _held(each)}
    try:
        child_start.fork_child(loop, spec, job, child.stdin, slot, held - {child.stdin, *slot})
    except OSError as error:
        # The tape already has the fork, but there is no record yet: without `directory`, never_started() writes one.
        job.directory = ""
        job.status = Status("unreachable", NOT_STARTED, detail=(error.strerror or "").lower())
        loop.child_ended(job)
        raise
    return job


def _child_spec(
    loop: Running, one: Call, child: Child, session: str, reply: tuple[ToolCall, ...]
) -> SessionSpec:
    parent = loop.spec
    spec = parent._replace(
        session=session,
        mission=child.intent,
        parent=parent.session,
        depth=parent.depth + 1,
        material=child.material,
        material_file="",
        context=(),
        opening=(),
        cloned=("", 0),
        born="fork",
    )
    if not one.clone:
        return spec._replace(wisdom={}, persona="")
    # fork returns twice; this is its result in the child. Every call of the reply needs a result.
    opening = []
    for call in reply[loop.answered :]:
        text = prompt.child(spec) if call is one.call else prompt.NOT_YOURS
        opening.append(Message("tool", result=ToolResult(call.id, call.name, text)))
    return spec._replace(
        context=tuple(loop.messages), opening=tuple(opening), cloned=(parent.session, loop.tape.length)
    )


def _collect(loop: Running, one: Call, jobs: list[Job]) -> Result:
    if not one.wait:
        lines = [f"[FORK] job {job.session} {_process(job)}: {job.directory}/stdout, stderr" for job in jobs]
        return Result("\n".join([*lines, TOLD]))
    winner = loop.jobs.wait(jobs, one.race, loop.signals)
    if winner is not None:
        loop.jobs.end([job for job in jobs if job is not winner])
    parts = []
    for number, job in enumerate(jobs, 1):
        assert job.status is not None
        loop.child_ended(job)
        text = sections(job.status.code, *job.texts())
        if line := shown(job.status):
            text += f"\n{line}"
        if len(jobs) > 1:
            won = " [WINNER]" if job is winner else " [ENDED, not the winner]" if winner else ""
            text = f"--- CHILD {number} of {len(jobs)}: {_process(job)}{won}\n{text}"
        parts.append(text)
    return Result("\n".join(parts), all(job.status and job.status.code for job in jobs))


def _process(job: Job) -> str:
    """Describe where the child runs. A remote child has another pid than its local proxy."""
    return f"pid {job.pid}" if job.host == "local" else f"on {job.host}, by way of pid {job.pid} here"


def _error(text: str) -> Result:
    return Result(f"[FORK ERROR] {text}", True)
