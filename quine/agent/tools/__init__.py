"""tools: the four tools of the guest: sh, fork, exec and exit; nothing else."""

from __future__ import annotations

from quine.agent.tools import validate
from quine.agent.tools.exec import EXEC
from quine.agent.tools.exit import EXIT
from quine.agent.tools.fork import FORK
from quine.agent.tools.sh import SH
from quine.base.messages import Tool, ToolCall

# Order and texts are fixed: the tools precede the conversation in every request, and providers cache that prefix.
TOOLS: tuple[Tool, ...] = (SH, FORK, EXEC, EXIT)
PREFIXES = ("functions", "tools", "default_api")  # that models put before a name
BY_NAME = {tool.name: tool for tool in TOOLS}


def fitted(call: ToolCall) -> ToolCall:
    """Return the call as it is meant: with the name of the tool alone, and arguments of the types that the tool takes.

    A call whose meaning is not plain stays as it came.
    """
    name = call.name if call.name in BY_NAME else _bare(call.name)
    tool = BY_NAME.get(name)
    if tool is None or call.fault:
        return call
    call = call if name == call.name else call._replace(name=name)
    if not validate.check(call.args, tool.schema):
        return call
    args = validate.fitted(call.args, tool.schema)
    return call if validate.check(args, tool.schema) else call._replace(args=args)


def _bare(name: str) -> str:
    """Return the name of a tool without the blanks and the prefix that some models put before it."""
    name = name.strip()
    for prefix in PREFIXES:
        rest = name.removeprefix(prefix)
        if rest != name and rest[:1] in (".", ":"):
            return rest[1:]
    return name


def fault(name: str, args: dict[str, object]) -> str:
    """Return the error in a call of tool `name`, "" if there is none."""
    tool = BY_NAME.get(name)
    if tool is None:
        return f"unknown tool: {validate.short(name)}; there are {', '.join(BY_NAME)}"
    return validate.check(args, tool.schema)
