"""The calls of a reply: each is refused with a reason, or carried out by its tool."""

from __future__ import annotations

from quine.agent import prompt, tools
from quine.agent.tools import exec as exec_tool
from quine.agent.tools import exit as exit_tool
from quine.agent.tools import fork, fork_start
from quine.agent.tools import sh as sh_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.outcome import Result
    from quine.agent.running import Running
    from quine.base.messages import ToolCall


def carry_out(loop: Running, index: int, call: ToolCall, calls: tuple[ToolCall, ...]) -> dict[int, Result]:
    """Execute a call; return results by index. A fork call executes all fork calls of the reply."""
    if call.name == "fork":
        forks = [(i, c) for i, c in enumerate(calls) if i >= index and _may_fork(loop, c)]
        return fork_start.run(loop, forks, calls)
    if call.name == "sh":
        loop.account.turns += 1
        return {index: sh_tool.run(loop, call.args)}
    if call.name == "exec":
        return {index: exec_tool.run(loop, call.args)}
    return {index: exit_tool.run(loop, call.args)}


def _may_fork(loop: Running, call: ToolCall) -> bool:
    return call.name == "fork" and not objection(loop, call)


def objection(loop: Running, call: ToolCall) -> str:
    """Return why a call is refused without execution; "" if it is allowed."""
    if loop.signals.alarm and call.name != "exit":
        return prompt.TIME_REFUSAL
    if loop.account.last and call.name not in ("exec", "exit"):
        return prompt.last_refusal(loop.account.last)
    if fault := call.fault or tools.fault(call.name, call.args):
        return prompt.CUT_CALL if call is loop.cut else f"Bad call: {fault}; send it again"
    if call.name == "fork":
        return fork.fault(call.args)
    if call.name == "sh" and loop.account.out_of_turns:
        return prompt.last_refusal("turn_exhaustion")
    return ""


def had_no_effect(call: ToolCall, result: Result) -> bool:
    """Return whether a call had no effect. exec and exit return only to say why they failed."""
    nothing = ("Bad call:", "[CUT]", "Refused:", "[FORK ERROR]", "[SHELL ERROR]")
    return call.name not in ("sh", "fork") or (result.is_error and result.text.startswith(nothing))
