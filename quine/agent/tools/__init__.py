"""tools: the four tools of the guest: sh, fork, exec and exit; nothing else."""

from __future__ import annotations

from quine.agent.tools import validate
from quine.agent.tools.exec import EXEC
from quine.agent.tools.exit import EXIT
from quine.agent.tools.fork import FORK
from quine.agent.tools.sh import SH
from quine.base.messages import Tool

# Order and texts are fixed: the tools precede the conversation in every request, and providers cache that prefix.
TOOLS: tuple[Tool, ...] = (SH, FORK, EXEC, EXIT)
BY_NAME = {tool.name: tool for tool in TOOLS}


def fault(name: str, args: dict[str, object]) -> str:
    """Return the error in a call of tool `name`, "" if there is none."""
    tool = BY_NAME.get(name)
    if tool is None:
        return f"unknown tool: {validate.short(name)}; there are {', '.join(BY_NAME)}"
    return validate.check(args, tool.schema)
