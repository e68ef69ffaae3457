"""The host loop: runs one session of one agent, from its first inference to its end.

Laws
1. The loop reads nothing from stdin and writes nothing to stdout; both belong to the commands of the agent.
2. Messages to the guest and its replies are on the tape before they have an effect.
3. The calls of a reply are answered in order, each exactly once. Only `exit` and a successful `exec` leave calls
   unanswered, because no further inference follows.
4. After a signal the outcome is written, then commands and children are ended. At the second SIGALRM commands only:
   each child has the same deadline, and ends by itself, with an outcome of its own.
"""

from __future__ import annotations

import os
import time

from quine.agent import origin, prompt, tools
from quine.agent.children import Job, Jobs, recorded, shown
from quine.agent.outcome import End, Ended, Moved, Result, ended_by, exhausted, mute
from quine.agent.session import SessionSpec
from quine.agent.shell import Shell
from quine.agent.signals import Terminated
from quine.agent.tools import dispatch
from quine.agent.usage import Account
from quine.base import dirs, procs
from quine.base.errors import DEADLINE, FAILED, Failure
from quine.base.log import Log
from quine.base.messages import (
    GuestError,
    Malformed,
    Message,
    Overflow,
    Reply,
    Request,
    Spent,
    ToolCall,
    ToolResult,
)
from quine.base.sessions import outputs_directory
from quine.providers import metering
from quine.tape.writer import Tape, sealed
from transport import quickjson
from transport.address import boot_id, pid_space
from transport.lean import Any, contextlib, signal
from transport.text import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.running import Process

REMINDERS = 3  # consecutive replies without a call that end a session
LINES, WIDTH = 5, 200  # of the last words of a guest that are shown
REFUSALS = 10  # consecutive replies with only refused calls that end a session; REMINDERS after the deadline


# Results removed when a conversation does not fit: those of the last reply, then all.
DROPS = ("last", "all")


class Loop:
    """One session. Tools use its attributes."""

    def __init__(
        self,
        process: Process,
        spec: SessionSpec,
        tape: Tape,
        log: Log,
        slots: list[int],
        record: str,
    ) -> None:
        self.spec = spec
        self.settings = process.settings
        self.tree = process.tree
        self.ledger = process.tree.ledger
        self.tape = tape
        self.signals = process.signals
        self.log = log
        self.record = record  # directory for its status file if the parent does not wait, else ""
        self.slots = slots
        self.relayed = process.ask is not None
        self.proxy = process.proxy
        self.jobs = Jobs()
        self.outputs = outputs_directory(self.settings.data_dir, spec.session)
        self.signals.commands_first = spec.interrupt == "command"
        self.shell = Shell(spec.shell, dirs.here(), self.signals, self.outputs, spec.limits.truncate)
        self.messages: list[Message] = list(spec.context)
        self.answered = 0  # calls of the current reply that have a result
        self.cut: ToolCall | None = None  # a call of the reply that the limit of its output may have cut
        self._guest = process.guest
        self._far = origin.infers(process.ask, self.settings.memo)
        self._price = process.price
        self.account = Account(spec.limits, self.ledger, self._guest, self._price)
        self.warned = False  # told at an `exit` what would be cut
        self._silent = 0
        self._refused = 0
        self._alarmed = self._called = False
        self._drops = 0  # stages of DROPS already applied
        self._begun = time.monotonic()
        self.signals.others = self._others

    # -- the session -------------------------------------------------------------------------------

    def live(self) -> End:
        """Run the session to its end and return how the process must end. Raises `ForkedChild` in a forked child."""
        try:
            try:
                self._open()
                while True:
                    self._step()
            except (GuestError, Spent) as error:
                if self.signals.fatal:
                    raise Terminated(self.signals.fatal) from error
                raise ended_by(error) from error
            except Failure as failure:
                if (
                    self.relayed and self.signals.fatal
                ):  # after a fatal signal the origin did not answer in time
                    raise Terminated(self.signals.fatal) from failure
                raise
        except Ended as ended:
            return self._finish(ended)
        except Terminated as terminated:
            self.signals.end()
            return self._finish_signalled(terminated.number)
        except Moved as moved:
            return moved.end

    def _open(self) -> None:
        spec = self.spec
        meta = {
            "session_id": spec.session,
            "parent_session_id": spec.parent,
            "root_session_id": spec.root,
            "depth": spec.depth,
            "model_id": spec.model,
            "created_at": round(time.time(), 6),
            "mission": spec.mission,
            "born": spec.born,
            "node": self.settings.node,
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "pid_space": pid_space(),
            "started": process.started if (process := procs.look(os.getpid())) else 0,
            "cwd": self.shell.cwd,
            "limits": spec.limits._asdict(),
            "wisdom": spec.wisdom,
        }
        if spec.cloned[0]:
            # The cloned conversation is on the parent's tape, up to this line.
            meta["cloned"] = {"session": spec.cloned[0], "lines": spec.cloned[1]}
        self.tape.add("meta", meta if self.relayed else sealed(meta))
        self.log.detail(f"session {spec.session}, {spec.born}, level {spec.depth + 1}, model {spec.model}")
        for message in spec.opening or (prompt.system(spec), prompt.first(spec, self.settings.withheld)):
            self._say(message)

    def _step(self) -> None:
        if self.signals.alarm:
            if not self._alarmed:
                self._alarmed, self._silent, self._refused = True, 0, 0
            self._say(Message("user", prompt.TIME_LIMIT))
        reply = self._reply()
        last, calls = self.account.last, tuple(map(self._fitted, reply.message.tool_calls))
        self.cut = calls[-1] if calls and reply.stop == "length" else None
        if calls:
            self._silent, self._called = 0, True
            names = [call.name for call in reply.message.tool_calls]
            self._refused = 0 if self._answer(calls, names) else self._refused + 1
        else:
            self._silent += 1
        if last:
            raise exhausted(last, self.spec.limits, self.account.window)
        if self.signals.alarm and max(self._silent, self._refused) >= REMINDERS:
            raise Ended(DEADLINE, "timeout", detail="the guest did not end when its time was over")
        if self._silent >= REMINDERS:
            raise self._speechless(reply.message.text)
        if self._refused >= REFUSALS:
            raise Ended(
                FAILED, "error", detail=f"every call of {REFUSALS} replies in a row had to be refused"
            )
        if not calls:
            self._say(Message("user", prompt.CUT if reply.stop == "length" else prompt.REMINDER))

    def _speechless(self, text: str) -> Ended:
        """Return the end of a session whose guest only talks: its server may have no tools for it."""
        lines = [line for line in text.strip().splitlines() if line.strip()][:LINES]
        said = "".join(f"\n  {harmless(line[:WIDTH])}" for line in lines)
        detail = f"the guest made no tool call in {REMINDERS} replies in a row"
        hint = mute(self._called, self.spec.session)
        return Ended(FAILED, "error", detail=f"{detail}; it said:{said}" if said else detail, hint=hint)

    def _fitted(self, call: ToolCall) -> ToolCall:
        """Return the call as it is plainly meant."""
        fitted = tools.fitted(call)
        if fitted is not call:
            meant = f"{fitted.name} {quickjson.readable(fitted.args)}"
            self.log.note(f"a call of {call.name!r} was taken for {meant[:WIDTH]}")
        return fitted

    def _reply(self) -> Reply:
        """Infer; if the conversation does not fit, try again with results removed, in the stages of DROPS.

        A guest whose call its server cannot read is told so, as often as one that makes no call.
        """
        while True:
            try:
                return self._infer()
            except Overflow:
                if not self._drop():
                    raise
            except Malformed:
                self._silent += 1
                if self._silent >= REMINDERS:
                    raise
                self._say(Message("user", prompt.LOST))

    def _drop(self) -> bool:
        """Remove long results from the messages: those of the last reply, then all. Return False if none is left.

        The tape keeps the full results. The shortened results are added to it, to record what is sent from now on.
        """
        replies = [n for n, message in enumerate(self.messages) if message.role == "assistant"]
        if not replies or self._drops == len(DROPS):
            return False
        since = replies[-1] if DROPS[self._drops] == "last" else 0
        self._drops += 1
        first, self.account.last = not self.account.last, self.account.last or "context_exhaustion"
        long = [
            n
            for n, message in enumerate(self.messages)
            if n > since and message.result and len(message.result.text) > len(prompt.DROPPED)
        ]
        for n in long:
            result = self.messages[n].result
            assert result is not None
            self.messages[n] = Message("tool", result=result._replace(text=prompt.DROPPED))
            self.tape.message(self.messages[n], again=n)
        if first or (long and long[-1] == len(self.messages) - 1):
            self._say(Message("user", prompt.last_note(self.account.last)))
        return True

    def _infer(self) -> Reply:
        lines = self.tape.ahead()
        spec = self.spec
        request = Request(
            self.messages,
            tools.TOOLS,
            spec.session,
            spec.mission,
            self.account.inferences,
            spec.wisdom,
            model=spec.model,
            tape=lines,
        )

        def on_wait() -> None:
            if self.signals.fatal:  # its exception was dropped, see `until_ready`
                raise Terminated(self.signals.fatal)
            if lines:
                self.tape.sync()  # a line that has to wait for others' inferences could be lost meanwhile
                lines.clear()

        begun = time.time()
        if self.ledger.beyond:
            self.ledger.beyond.give_back()  # places of killed children; an inference may take long
        with self.signals.calling_out(self._far):
            # The origin pays a relayed inference; here it counts only against the limits set on this machine.
            reply = metering.infer(
                self._guest,
                request,
                self.ledger,
                spec.limits.concurrent,
                self._price,
                self.account.used(self.messages),
                on_wait,
            )
        self.tape.arrived(len(lines))
        self.account.count(reply, self.messages)
        calls = ", ".join(call.name for call in reply.message.tool_calls)
        self.log.detail(
            f"inference {self.account.inferences}: {time.time() - begun:.2f} s, {reply.usage.input} tokens in, "
            f"{reply.usage.output} out: {calls or reply.stop}"
        )
        self.messages.append(reply.message)
        self.tape.message(reply.message, usage=reply.usage._asdict(), stop=reply.stop, asked=round(begun, 6))
        if not self._only_ends(reply):
            self.tape.sync()
        return reply

    @property
    def _has_nothing_running(self) -> bool:
        return not self.shell.group and not self.jobs.running

    def _only_ends(self, reply: Reply) -> bool:
        """Whether nothing is left to do but to write the outcome, with which the reply goes to the disk."""
        calls = [call.name for call in reply.message.tool_calls]
        return calls == ["exit"] and self._has_nothing_running

    # -- calls -------------------------------------------------------------------------------------

    def _answer(self, calls: tuple[ToolCall, ...], names: list[str]) -> bool:
        """Answer all calls of a reply, by the names that it has. Return whether any was executed, with any result."""
        ready: dict[int, Result] = {}
        carried = False
        self.answered = 0
        for index, call in enumerate(calls):
            if index not in ready:
                if objection := dispatch.objection(self, call):
                    ready[index] = Result(objection, True)
                else:
                    # Results are on the disk before the next call begins, because that call may end this process.
                    if call.name != "exit" or not self._has_nothing_running:
                        self.tape.sync()
                    ready.update(dispatch.carry_out(self, index, call, calls))
            result = ready[index]
            carried = carried or not dispatch.had_no_effect(call, result)
            text = result.text if index < len(calls) - 1 else result.text + self._left(result.text)
            self._say(Message("tool", result=ToolResult(call.id, names[index], text, result.is_error)))
            self.answered += 1
        return carried

    def child_ended(self, job: Job) -> None:
        """Record on the tape how a child ended: its own tape cannot say that it was killed, never started, or that its
        files did not come back. A child that never started has no tape, and gets a record in `jobs/` instead.
        """
        assert job.status is not None
        self.tape.add("fork", {"session": job.session, "ended": recorded(job.status)})
        if job.status.state in ("unreachable", "denied") and not self.relayed:
            job.never_started(self.settings.data_dir, self.spec.session)

    def _left(self, result: str) -> str:
        """Return the lines below the last result of a batch: ended children, and the limits left."""
        lines = []
        for job in self.jobs.finished():
            assert job.status is not None
            self.child_ended(job)
            line = shown(job.status)
            lines.append(
                f"[FORK ENDED] job {job.session} exit code {job.status.code}{' ' + line if line else ''}"
            )
            if job.directory:
                lines.append(f"  {job.directory}/stdout, stderr")
        return "\n" + "\n".join(lines + self.account.notes(self.messages, result))

    def _say(self, message: Message) -> None:
        self.messages.append(message)
        self.tape.message(message)

    # -- the end -----------------------------------------------------------------------------------

    def record_end(self, status: int, mode: str, reason: str, **more: Any) -> None:
        """Write the outcome to the disk. If exec then fails, the session continues, and so does its tape."""
        data = {
            "exit_code": status,
            "stderr": reason,
            "duration_ms": round((time.monotonic() - self._begun) * 1000),
            "tokens_in": self.account.usage.input,
            "tokens_out": self.account.usage.output,
            "turn_count": self.account.turns,
            "termination_mode": mode,
            **more,
        }
        self.tape.add("outcome", data)
        self.tape.sync()

    def _finish(self, ended: Ended) -> End:
        from quine.base.errors import complain, say

        for job in self.jobs.finished():
            self.child_ended(job)
        self.shell.close()
        # The verdict is final: a later signal has no effect on it.
        self.record_end(ended.status, ended.mode, ended.reason or ended.detail)
        if ended.reason:
            say(ended.reason if ended.reason.endswith("\n") else f"{ended.reason}\n")
        if ended.detail:
            complain(ended.detail, ended.hint)
        return End(ended.status, usage=self.account.usage, reason=ended.reason or ended.detail)

    def _finish_signalled(self, number: int) -> End:
        if number == signal.SIGALRM:
            return self._finish(Ended(DEADLINE, "timeout", detail="the time of the tree is over"))
        # The outcome first: KILL may follow TERM.
        with contextlib.suppress(Failure):  # full disk, lost origin: the children must be ended all the same
            self.record_end(128 + number, "signal", f"terminated by signal {number}", signal=number)
        for job in self.jobs.running:
            job.hurry()
        self.shell.close()
        self.jobs.end(list(self.jobs.running))
        return End(128 + number, number, self.account.usage)

    def disown(self) -> None:
        """In a forked child: close the descriptors of the parent."""
        self.shell.disown()
        self.jobs.disown()
        self.tape.disown()

    def _others(self) -> list[int]:
        return [*self.shell.pids(), *(job.pid for job in self.jobs.running)]
