"""tools: what the guest can do; sh, fork, exec, exit, and nothing else."""

from __future__ import annotations

from quine.agent.tools import schema
from quine.agent.tools.exec import EXEC
from quine.agent.tools.exit import EXIT
from quine.agent.tools.fork import FORK
from quine.agent.tools.sh import SH
from quine.base.messages import Tool

# This order, these words: the tools stand before the conversation in every request, and a provider caches them.
TOOLS: tuple[Tool, ...] = (SH, FORK, EXEC, EXIT)
BY_NAME = {tool.name: tool for tool in TOOLS}


def fault(name: str, args: dict[str, object]) -> str:
    """What is wrong with a call, "" where nothing is."""
    tool = BY_NAME.get(name)
    if tool is None:
        return f"unknown tool: {schema.short(name)}; there are {', '.join(BY_NAME)}"
    return schema.check(args, tool.schema)
