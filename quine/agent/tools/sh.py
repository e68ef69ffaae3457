"""sh: run a command in the persistent shell."""

from __future__ import annotations

import os

from quine.agent.outcome import Result, sections
from quine.base.messages import Tool
from quine.base.text import unfit
from transport.lean import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.running import Running

SH = Tool(
    "sh",
    "Run a command in your persistent POSIX shell. Returns [EXIT CODE], [STDOUT] and [STDERR]; a "
    "line of output that begins like such a header is shown with a backslash in front. In the command, "
    "descriptor 3 is your material (read with <&3), 4 your deliverable (write with >&4), 5 your diagnostics. "
    "Costs one turn.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "command for the shell; it may have several lines"},
            "timeout": {
                "type": "number",
                "minimum": 0.001,
                "maximum": 1e9,
                "description": "seconds; then the command is ended",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
)


def run(loop: Running, args: dict[str, Any]) -> Result:
    command = args["command"]
    if fault := unfit(command):
        return Result(f"[SHELL ERROR] the command holds {fault}", True)
    try:
        outcome = loop.shell.run(command, args.get("timeout", loop.spec.limits.sh_timeout), os.environ)
    except OSError as error:
        return Result(f"[SHELL ERROR] {loop.spec.shell} cannot be started: {error.strerror}", True)
    text = sections(outcome.code, outcome.stdout, outcome.stderr)
    if outcome.notes:
        text += "\n" + "\n".join(outcome.notes)
    if outcome.earlier:
        text += f"\n[BACKGROUND OUTPUT]\n{outcome.earlier}"
    return Result(text, outcome.code != 0)
