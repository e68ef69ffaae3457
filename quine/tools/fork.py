"""fork: children that run at the same time, here or on another machine.

A local child is os.fork(): it has the parent's memory, so the conversation is cloned by the kernel, and it
goes on with the loop as its own life. A remote child is os.fork() too: that process becomes the face of the
child over there, so that for the parent both are the same, a pid with pipes.

Laws
1. Everything that can be refused is refused before anything starts; a refused call starts no child at all.
2. All fork calls of one reply start before any of them is waited for.
3. In a child, what is the parent's is let go of, never touched: its shell, tape, jobs and slots.
"""

from __future__ import annotations

import contextlib
import gc
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from quine import prompt, slots
from quine.capture import Capture
from quine.exits import DEFECT, complain
from quine.guests.base import Message, Tool, ToolCall, ToolResult
from quine.jobs import Job
from quine.life import Life, new_session
from quine.tools.base import Reborn, Result, sections
from transport import quickjson

if TYPE_CHECKING:
    from quine.loop import Loop

_CHILD = {
    "intent": {"type": "string", "minLength": 1, "description": "the child's mission"},
    "host": {"type": "string", "minLength": 1, "description": "where it runs: a host, @tag, any, or local"},
    "stdin": {
        "type": "string",
        "minLength": 1,
        "description": "null, inherit (your material), or the path of a file",
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
LATER = ("files", "returns")


class Spec(NamedTuple):
    """One child that a call asks for; stdin is an open descriptor of ours."""

    intent: str
    host: str
    stdin: int
    material: str


class Call(NamedTuple):
    """One fork call of the reply under way; `place` is its index among the calls."""

    place: int
    call: ToolCall
    specs: list[Spec]
    slots: list[list[int]]
    wait: bool
    race: bool
    clone: bool


def fault(args: dict[str, Any]) -> str:
    """What the schema cannot say."""
    if ("intent" in args) == ("children" in args):
        return "[FORK ERROR] give either intent or children"
    for child in args.get("children", [args]):
        if not child["intent"].strip():
            return "[FORK ERROR] intent is blank"
        if "\0" in child["intent"] or "\0" in child.get("stdin", ""):
            return "[FORK ERROR] a NUL character in intent or stdin"
    return ""


def run(loop: Loop, calls: list[tuple[int, ToolCall]], reply: tuple[ToolCall, ...]) -> dict[int, Result]:
    """Results by index. In a child this raises Reborn."""
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
            for spec, slot in zip(one.specs, one.slots, strict=True):
                jobs.append(_start(loop, one, spec, slot, prepared, reply))
    except OSError as error:
        loop.jobs.end([job for _, jobs in started for job in jobs])
        text = (
            f"a child could not be started: {error.strerror}; those of this reply that had started were ended"
        )
        return {**results, **{one.place: _error(text) for one in prepared}}
    finally:
        if os.getpid() == parent:  # the child has closed its copies itself
            for one in prepared:
                _release(one)
    loop.tape.sync()
    for one, jobs in started:
        results[one.place] = _collect(loop, one, jobs)
    return results


def _prepare(loop: Loop, index: int, call: ToolCall) -> Call | Result:
    """Open and take what the children need, or say why not."""
    args = call.args
    limits = loop.life.limits
    if loop.life.depth + 1 >= limits.depth:
        return _error(
            f"too deep: this process is at level {loop.life.depth + 1} of {limits.depth}, nothing was started"
        )
    children = args.get("children", [args])
    hosts = [child.get("host", args.get("host", "local")) for child in children]
    if loop.relayed and any(host != "local" for host in hosts):
        return _error("not built yet: fork to another host from a host that is not the origin")
    specs: list[Spec] = []
    taken = slots.take(loop.locks, "agent", limits.agents, len(children))
    if taken is None:
        return _error(f"too many agents: the limit of the tree is {limits.agents}, nothing was started")
    try:
        for child, host in zip(children, hosts, strict=True):
            wanted = child.get("stdin", args.get("stdin", "null"))
            fd = _open_stdin(loop, wanted)
            specs.append(Spec(child["intent"], host, fd, "none" if wanted == "null" else prompt.material(fd)))
    except OSError as error:
        for held in (*taken, *(spec.stdin for spec in specs)):
            os.close(held)
        return _error(f"stdin {wanted}: {(error.strerror or '').lower()}, nothing was started")
    race = args.get("mode") == "race"
    each = [[fd] for fd in taken] if taken else [[] for _ in children]
    clone = args.get("context", "clone") == "clone"
    return Call(index, call, specs, each, race or bool(args.get("wait")), race, clone)


def _open_stdin(loop: Loop, wanted: str) -> int:
    if wanted == "inherit":
        return os.dup(0)
    path = os.devnull if wanted == "null" else os.path.join(loop.shell.cwd, os.path.expanduser(wanted))
    if stat.S_ISFIFO(os.stat(path).st_mode):
        raise OSError(0, "a named pipe, which would be waited for; let the child open it")
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _release(one: Call) -> None:
    """The parent's copies: each child has its own by now."""
    for fd in (*(spec.stdin for spec in one.specs), *(fd for held in one.slots for fd in held)):
        os.close(fd)


def _start(
    loop: Loop, one: Call, spec: Spec, slot: list[int], prepared: list[Call], reply: tuple[ToolCall, ...]
) -> Job:
    session = new_session()
    life = _child_life(loop, one, spec, session, reply)
    directory = "" if one.wait else os.path.join(loop.settings.data_dir, "jobs", session)
    job = Job(session, spec.intent, spec.host, directory)
    outs = _streams(loop, job)
    loop.tape.add(
        "fork", {"session": session, "intent": spec.intent, "host": spec.host, "tool_id": one.call.id}
    )
    report = os.pipe2(os.O_CLOEXEC)
    # The collector would write to every object's header and so copy every page of the parent's memory.
    gc.freeze()
    try:
        with loop.signals.held():
            pid = os.fork()
            if pid == 0:
                _be_child(loop, life, job, spec, outs, report, slot, prepared)
    except OSError:
        for fd in (*outs, *report, *job.streams):
            os.close(fd)
        raise
    gc.unfreeze()
    for fd in (*outs, report[1]):
        os.close(fd)
    job.report = report[0]
    job.started(pid)
    loop.jobs.running.append(job)
    return job


def _streams(loop: Loop, job: Job) -> list[int]:
    """The child's ends of stdout and stderr; ours go into the job."""
    if job.directory:
        os.makedirs(job.directory, 0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return [os.open(os.path.join(job.directory, name), flags, 0o600) for name in ("stdout", "stderr")]
    outs = []
    for name in ("stdout", "stderr"):
        read, write = os.pipe2(os.O_CLOEXEC)
        outs.append(write)
        job.streams[read] = Capture(
            loop.life.limits.truncate, os.path.join(loop.outputs, f"{job.session}.{name}")
        )
    return outs


def _child_life(loop: Loop, one: Call, spec: Spec, session: str, reply: tuple[ToolCall, ...]) -> Life:
    parent = loop.life
    life = parent._replace(
        session=session,
        mission=spec.intent,
        parent=parent.session,
        depth=parent.depth + 1,
        material=spec.material,
        material_file="",
        context=(),
        opening=(),
        cloned=("", 0),
        born="fork",
    )
    if not one.clone:
        return life._replace(wisdom={})
    # fork returns twice: here it returns in the child. Every call of the reply needs its answer.
    opening = []
    for call in reply[loop.answered :]:
        text = prompt.child(life) if call is one.call else prompt.NOT_YOURS
        opening.append(Message("tool", result=ToolResult(call.id, call.name, text)))
    return life._replace(
        context=tuple(loop.messages), opening=tuple(opening), cloned=(parent.session, loop.tape.length)
    )


def _be_child(
    loop: Loop,
    life: Life,
    job: Job,
    spec: Spec,
    outs: list[int],
    report: tuple[int, int],
    slot: list[int],
    prepared: list[Call],
) -> NoReturn:
    """In the child: become a process of our own, then go on as `life`, or as the face of it."""
    try:
        _let_go(loop, job, spec, outs, report, slot, prepared)
    except BaseException:
        os._exit(DEFECT)  # above us is the parent's code, which must not run here
    if spec.host != "local":
        _be_face(loop, life, spec, report[1])
    os.close(report[1])
    raise Reborn(life, slot, job.directory)


def _let_go(
    loop: Loop,
    job: Job,
    spec: Spec,
    outs: list[int],
    report: tuple[int, int],
    slot: list[int],
    prepared: list[Call],
) -> None:
    """A process group and streams of our own; what is the parent's is closed."""
    loop.signals.renew()
    os.setpgid(0, 0)
    for fd, source in enumerate((spec.stdin, *outs)):
        os.dup2(source, fd)
    ours = set(slot)
    for fd in (*outs, report[0], *loop.slots):
        os.close(fd)
    for one in prepared:
        for fd in (
            *(s.stdin for s in one.specs),
            *(fd for held in one.slots for fd in held if fd not in ours),
        ):
            os.close(fd)
    for own in job.streams:
        os.close(own)
    loop.disown()
    with contextlib.suppress(OSError):  # it was removed under us, as it may be under any process
        os.chdir(loop.shell.cwd)


def _be_face(loop: Loop, life: Life, spec: Spec, report: int) -> NoReturn:
    """The child lives on another machine; this process is its face, and leaves as it left."""
    code = DEFECT
    try:
        loop.signals.remove()
        status = loop.remote()(spec.host, life, stdin=0, stdout=1, stderr=2)
        if status.detail:
            complain(status.detail, status.hint, status.host)
        facts = {"code": status.code, "state": status.state, "signal": status.signal, "detail": status.detail}
        os.write(report, quickjson.dumps(facts).encode()[:4000])
        code = status.code
    except Exception as error:
        refused = getattr(error, "status", None)  # transport.errors.Refused, Failure: nothing was started
        code = refused if isinstance(refused, int) else DEFECT
        complain(str(error) or type(error).__name__, getattr(error, "hint", ""), getattr(error, "host", ""))
    finally:
        os._exit(code)


def _collect(loop: Loop, one: Call, jobs: list[Job]) -> Result:
    if not one.wait:
        lines = [
            f"[FORK] job {job.session} pid {job.pid}{_at(job)}: {job.directory}/stdout, stderr"
            for job in jobs
        ]
        return Result("\n".join([*lines, "Their end is told with a later result."]))
    winner = loop.jobs.wait(jobs, one.race, loop.signals)
    if winner is not None:
        loop.jobs.end([job for job in jobs if job is not winner])
    parts = []
    for number, job in enumerate(jobs, 1):
        assert job.status is not None
        text = sections(job.status.code, *job.texts())
        if line := job.status.line():
            text += f"\n{line}"
        if len(jobs) > 1:
            won = " [WINNER]" if job is winner else " [ENDED, not the winner]" if winner else ""
            text = f"--- CHILD {number} of {len(jobs)}: pid {job.pid}{_at(job)}{won}\n{text}"
        parts.append(text)
    return Result("\n".join(parts), all(job.status and job.status.code for job in jobs))


def _at(job: Job) -> str:
    return "" if job.host == "local" else f" on {job.host}"


def _error(text: str) -> Result:
    return Result(f"[FORK ERROR] {text}", True)


def default_face() -> Any:
    """Wired late: a process that never leaves this machine never imports a network."""
    from quine import compose

    return compose.face
