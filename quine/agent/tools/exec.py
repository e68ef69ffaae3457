"""exec: start a new session with an empty memory in this process or elsewhere, or replace it by another program.

Laws
1. Pid, streams and their positions, mission and depth stay. Only turns and memory are reset.
2. A call that is certain to fail is refused before the old session ends. If execve() fails, the old session goes on.
3. The new image gets only the streams, the environment, the memo, and the slot.
4. A persona is an instruction, so a person must have written it (quine/agent/personas.py). A file that an agent has
   written, moved or linked is data, and cannot become a persona.
5. For a session elsewhere, this process is the proxy. The old session ends on its tape after the new process has
   started there, and before it receives its mission. Until then nothing is ended and no byte of stdin is read.
"""

from __future__ import annotations

import os

from quine.agent import ending, env, origin, personas
from quine.agent.outcome import End, Moved, Result
from quine.agent.session import SessionSpec
from quine.agent.signals import Terminated
from quine.agent.tools import validate
from quine.base import dirs, procs
from quine.base.errors import Failure, complain
from quine.base.messages import Tool, Usage
from quine.base.sessions import new_session
from quine.base.text import unfit
from transport import quickjson
from transport.errors import Refused
from transport.lean import Any, contextlib, signal
from transport.status import LOST, Status, signal_number
from transport.this_build import own_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.running import Running

SHELL_LOST = (
    "; this life goes on, its shell was ended for it: variables, functions and background commands are lost"
)
LONGEST = 131072  # bytes of one string that Linux accepts in execve: NAME=value and its NUL (MAX_ARG_STRLEN)
WHOLE = 1 << 19  # bytes of all wisdom as JSON: it must fit into the memo and into an environment

EXEC = Tool(
    "exec",
    "Begin anew: same process, same mission, same streams, empty memory, full turns. Wisdom is given to your next "
    "life as data and stays until you change it (an empty value deletes a key). With argv, that program takes your "
    "place for good.",
    {
        "type": "object",
        "properties": {
            "wisdom": {
                "type": "object",
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": 100},
                "additionalProperties": {"type": "string"},
                "description": "facts for your next life, by key",
            },
            "reason": {"type": "string", "description": "why, for the record"},
            "persona": {
                "type": "string",
                "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$",
                "maxLength": 100,
                "description": "persona of your next lives: personas/NAME.md, until changed; empty: none",
            },
            "argv": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "host": {
                "type": "string",
                "minLength": 1,
                "description": "where the next life runs: a host, @tag, any",
            },
        },
        "additionalProperties": False,
    },
)


def run(loop: Running, args: dict[str, Any]) -> Result:
    """Execute the call. Does not return if it succeeds."""
    host = args.get("host", "local")
    wisdom = {**loop.spec.wisdom, **args.get("wisdom", {})}
    wisdom = {key: value for key, value in wisdom.items() if value}
    for key, value in wisdom.items():
        if fault := unfit(value):
            return _error(f"wisdom.{key} holds {fault}")
        size = len(f"{env.WISDOM}{key}={value}\0".encode())
        if size > LONGEST:
            return _error(
                f"wisdom.{key} is too long: {size} bytes, and {LONGEST} are possible; put it into a file"
            )
    if (size := len(quickjson.dumps(wisdom))) > WHOLE:
        return _error(
            f"wisdom is too long in all: {size} bytes, and {WHOLE} are possible; put it into a file"
        )
    if argv := args.get("argv"):
        for name in ("persona", "host"):
            if name in args:
                return _error(f"a {name} is for your own next life, not for another program")
        return _become(loop, argv, wisdom)
    persona = loop.spec.persona
    if "persona" in args:
        try:
            persona = _persona(loop, args["persona"]) if args["persona"] else ""
        except (OSError, ValueError) as error:
            return _error(f"persona {args['persona']}: {_why(error)}")
    spec = _next(loop.spec, wisdom, persona)
    spec = spec._replace(limits=spec.limits._replace(window=loop.account.found))
    return _renew(loop, spec) if host == "local" else _move(loop, spec, host)


def _persona(loop: Running, name: str) -> str:
    """Return the text of a persona, and note it if there are two of that name. Raises OSError, ValueError."""
    text = personas.text(name, loop.tree.start, loop.ledger)
    used, *others = personas.named(name, loop.tree.start)
    for other in others:
        loop.log.note(f"persona {name}: {used} is used, and not {other}")
    return text


def _next(old: SessionSpec, wisdom: dict[str, str], persona: str) -> SessionSpec:
    return old._replace(
        session=new_session(),
        parent=old.session,
        wisdom=wisdom,
        persona=persona,
        context=(),
        opening=(),
        cloned=("", 0),
        born="exec",
    )


def _move(loop: Running, spec: SessionSpec, where: str) -> Result:
    """Run the next session on another machine, with this process as its proxy. Raises `Moved` at its end."""
    if fault := unfit(where):
        return _error(f"host holds {fault}")
    if spec.material_file:
        return _error(f"the material was saved to {spec.material_file}, which is not over there")
    if left := [job for job in loop.jobs.running if not procs.wait([job.pidfd], 0)]:
        names = ", ".join(f"{job.session} (pid {job.pid})" for job in left)
        return _error(f"children of yours still run: {names}; quine wait ID or quine kill ID comes first")
    facts: dict[str, Any] = {"tokens_in": 0, "tokens_out": 0}
    started: list[int] = []

    def begin(pid: int, host: str) -> None:
        if loop.signals.fatal:
            raise Terminated(loop.signals.fatal)  # it arrived before the proxy had handlers
        started.append(pid)
        signal.setitimer(signal.ITIMER_REAL, 0)  # the new session has a timer of its own
        loop.record_end(0, "exec", f"exec: the next life runs on {where}", to=spec.session)
        loop.tape.close()
        loop.jobs.finished()
        loop.shell.close()

    # The proxy passes the end of a reader on to the writer on the other machine.
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        more = {"masked": loop.settings.masked, "stdin": 0, "stdout": 1, "stderr": 2}
        with loop.signals.interruptible():  # until the proxy installs its handlers
            status = loop.proxy(where, spec, loop.ledger, **more, facts=facts, on_start=begin)
        number = signal_number(status.signal) if status.signal else 0
    except Terminated as late:
        if not started:
            raise
        # After the proxy had removed its handlers.
        raise Moved(End(128 + late.number, late.number, loop.account.usage)) from None
    except (Refused, Failure) as error:
        if started:
            raise
        return _error(f"{where}: {error.detail}; nothing was started, this life goes on")
    finally:
        signal.signal(signal.SIGPIPE, before)
    if not started:
        if fatal := number or loop.signals.fatal:
            raise Terminated(fatal)
        time_left = loop.ledger.time_left()
        loop.signals.alarm = loop.signals.alarm or (time_left is not None and time_left <= 0)
        hint = f" ({status.hint})" if status.hint else ""
        return _error(
            f"{where}: {status.state}: {status.detail}{hint}; nothing was started, this life goes on"
        )
    if status.detail:
        complain(status.detail, status.hint, status.host)
    used = loop.account.usage + Usage(facts["tokens_in"], facts["tokens_out"])
    raise Moved(End(status.code, number, used, status))


def _renew(loop: Running, spec: SessionSpec) -> Result:
    old = loop.spec
    argv = [*own_command(), "--", spec.shown]
    loop.record_end(0, "exec", "exec: a new life with an empty memory", to=spec.session)
    loop.shell.close()
    state = {
        "pid": os.getpid(),
        "life": spec.to_json(),
        "mask": [int(number) for number in loop.signals.mask],
        "slots": loop.slots,
        "jobs": loop.jobs.to_json(),
        "record": loop.record,
        "usage": list(loop.settings.spent + loop.account.usage),
        "report": loop.settings.report,
        "verbose": loop.settings.verbose,
        "began": loop.settings.began,
        "masked": list(loop.settings.masked),
        "top": loop.settings.top,
    }
    with loop.signals.block_signals():
        # Blocked signals stay pending through execve: the handlers of the new session get them, not the default action.
        if loop.signals.fatal:
            raise Terminated(loop.signals.fatal)  # recorded by the old session, and otherwise lost with it
        if loop.signals.alarm:
            os.kill(os.getpid(), signal.SIGALRM)  # blocked now, so the next session gets it
        for fd in loop.slots:
            os.set_inheritable(fd, True)
        try:
            env.bequeath(loop.settings, loop.tree, spec, state)
            os.execve(argv[0], argv, os.environ)
        except (OSError, ValueError) as error:
            for fd in loop.slots:
                os.set_inheritable(fd, False)
            env.bequeath(loop.settings, loop.tree, old)
            return _error(f"{_why(error)}{SHELL_LOST}")


def _become(loop: Running, argv: list[str], wisdom: dict[str, str]) -> Result:
    from quine.base import run_report  # here: few agents need it

    if fault := unfit(" ".join(argv)):
        return _error(f"argv holds {fault}")
    path = _find(argv[0], loop.shell.cwd)
    if not path:
        return _error(f"{validate.short(argv[0])}: not found, or not executable")
    target, held = loop.settings.report, -1
    end = _unknown(loop, argv[0])
    # A file holds the last report. Elsewhere there may be one alone: once it is known that this process has ended.
    replaced = run_report.is_replaced(target)
    if target and not (ending.report(loop, end) if replaced else run_report.may_arrive(target)):
        return _error("the report cannot be written, and the program would not write it; this life goes on")
    before = dirs.here()
    loop.record_end(0, "exec", f"exec: {validate.short(argv[0])} takes over")
    loop.shell.close()
    origin.flush(loop.settings, loop.signals.ready)
    with loop.signals.block_signals():
        if loop.signals.fatal:
            raise Terminated(loop.signals.fatal)  # already recorded here, so the program would never get it
        loop.signals.remove()
    try:
        os.chdir(loop.shell.cwd)
        env.bequeath(loop.settings, loop.tree, loop.spec._replace(wisdom=wisdom))
        procs.adopt_no_more()  # it outlives the exec, and most programs wait for their own children alone
        if target and not replaced:
            held = ending.report(loop, end, run_report.put_after_exec)
        os.execve(path, argv, os.environ)
    except (OSError, ValueError) as error:
        if held >= 0:
            os.write(held, b"-")
            os.close(held)
        loop.signals.install(loop.signals.mask)
        with contextlib.suppress(OSError):
            os.chdir(before)
        env.bequeath(loop.settings, loop.tree, loop.spec)
        return _error(f"{validate.short(argv[0])}: {_why(error)}{SHELL_LOST}")


def _unknown(loop: Running, program: str) -> End:
    """Return the end of this process that it reports itself: nothing of it is left after execve."""
    detail = f"became {validate.short(program)}, whose end this report does not tell"
    outcome = Status("lost", LOST, pid=os.getpid(), detail=detail)
    return End(LOST, usage=loop.account.usage, outcome=outcome)


def _find(program: str, cwd: str) -> str:
    """Return the file that the shell would run; "" if there is none."""
    if "/" in program:
        candidates = [os.path.join(cwd, program)]
    else:
        places = os.environ.get("PATH", os.defpath).split(os.pathsep)
        candidates = [os.path.join(cwd, place, program) for place in places]
    return next((path for path in candidates if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def _why(error: OSError | ValueError) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def _error(text: str) -> Result:
    return Result(f"[EXEC ERROR] {text}", True)
