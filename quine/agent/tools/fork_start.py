"""The children of fork calls: started concurrently, here or on another machine, waited for and told of.

Law: all fork calls of one reply start before any of them is waited for.
"""

from __future__ import annotations

import os

from quine.agent import child_start, prompt
from quine.agent.children import Job, shown
from quine.agent.outcome import Result, sections
from quine.agent.session import SessionSpec
from quine.agent.tools import child_options
from quine.agent.tools.fork import Call, Child, prepare, refusal
from quine.base import dirs
from quine.base.errors import NOT_STARTED
from quine.base.messages import Message, ToolCall, ToolResult
from quine.base.sessions import JOB, job_directory, new_session
from transport.lean import contextlib
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.running import Running

TOLD = (
    "Their end is told with a later result; in sh there are quine wait ID, quine logs ID and quine kill ID."
)


def run(loop: Running, calls: list[tuple[int, ToolCall]], reply: tuple[ToolCall, ...]) -> dict[int, Result]:
    """Execute fork calls and return results by index. In a child this raises `ForkedChild`."""
    results: dict[int, Result] = {}
    prepared: list[Call] = []
    for index, call in calls:
        got = prepare(loop, index, call)
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
        return {**results, **{one.place: refusal(text) for one in prepared}}
    finally:
        if os.getpid() == parent:  # the child has closed its own copies
            for fd in (fd for one in prepared for fd in one.held()):
                os.close(fd)
    loop.tape.sync()
    for one, jobs in started:
        results[one.place] = _collect(loop, one, jobs)
    return results


def _start(
    loop: Running, one: Call, child: Child, slot: list[int], prepared: list[Call], reply: tuple[ToolCall, ...]
) -> Job:
    session = new_session()
    spec = _child_spec(loop, one, child, session, reply)
    directory = "" if one.wait else job_directory(loop.settings.data_dir, session)
    job = Job(session, child.intent, child.host, directory)
    if child.host != "local":  # a local child shares the directory
        job.files, job.returns = child.files, child.returns
    if one.race and any(each.returns for each in one.children):
        dirs.make_inside(loop.outputs, JOB)
        job.race = os.path.join(loop.outputs, f"{one.place}.winner")
    facts = {"session": session, "intent": child.intent, "host": child.host, "tool_id": one.call.id}
    loop.tape.add("fork", facts)
    loop.tape.sync()  # the child may run and end before the parent continues
    held = {fd for each in prepared for fd in each.held()}
    given = child_start.Given(
        spec,
        child_options.ledger_of(loop.ledger, child.options),
        child.stdin,
        slot,
        child.cwd,
        child.options.cwd,
        one.removed,
        child.options.limits,
    )
    try:
        child_start.fork_child(loop, given, job, held - {child.stdin, child.cwd, *slot})
    except OSError as error:
        # The tape already has the fork, but there is no record yet: without `directory`, never_started() writes one.
        job.directory = ""
        job.status = Status("unreachable", NOT_STARTED, detail=(error.strerror or "").lower())
        loop.child_ended(job)
        raise
    if not one.wait:
        _vouch(job)
    return job


def _vouch(job: Job) -> None:
    """Let the broker, if there is one, serve a child also after the end of this process.

    Now, and not at the end: this process may be killed, and it may end before the child has asked for anything.
    """
    from quine.broker import asking, finding

    if told := finding.told():
        asking.detach(str(told[0]), job.pid)


def _child_spec(
    loop: Running, one: Call, child: Child, session: str, reply: tuple[ToolCall, ...]
) -> SessionSpec:
    parent = loop.spec
    spec = child.base._replace(
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
    for race in {job.race for job in jobs if job.race}:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(race)
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
