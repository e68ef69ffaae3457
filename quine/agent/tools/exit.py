"""exit: end this process with a verdict."""

from __future__ import annotations

from quine.agent.outcome import Ended, Result
from quine.base.messages import Tool
from transport.lean import Any

MOST = 63  # greater statuses are reserved: they tell callers why an agent gave no verdict

EXIT = Tool(
    "exit",
    'End this process. Status 0 or "success": the mission is done and its deliverable was written to descriptor 4. '
    'Any other status up to 63, or "failure" (1), needs a reason in stderr.',
    {
        "type": "object",
        "properties": {
            "status": {
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": MOST},
                    {"type": "string", "enum": ["success", "failure"]},
                ],
            },
            "stderr": {
                "type": "string",
                "description": "the reason of a failure, written to stderr as a line",
            },
        },
        "required": ["status"],
        "additionalProperties": False,
    },
)


def run(args: dict[str, Any]) -> Result:
    """Raise `Ended`; return only to refuse the call."""
    status = {"success": 0, "failure": 1}.get(args["status"], args["status"])
    reason = args.get("stderr", "")
    if status == 0 and reason:
        return Result("Exit rejected: success takes no stderr; if something is wrong, it is a failure", True)
    if status != 0 and not reason.strip():
        return Result("Exit rejected: a status other than 0 needs a reason in stderr", True)
    raise Ended(status, "exit", reason)
