"""exit: end this process with a verdict.

Law: the first success is sent back while a background command may still write to the deliverable, which would be cut.
The second one ends it. Where nothing but a verdict is possible any more, the first one does. Each command that has the
deliverable open may write to it, also a server that never does: nothing tells them apart.
"""

from __future__ import annotations

import os

from quine.agent.outcome import Ended, Result
from quine.base import procs
from quine.base.messages import Tool
from transport.lean import Any, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.running import Running
    from quine.agent.shell import Shell

MOMENT = 0.5  # seconds that the last writers have to end by themselves
OTHERS = ("3", "5")  # descriptors that each command has, and that may be the same file
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


def run(loop: Running, args: dict[str, Any]) -> Result:
    """Raise `Ended`; return only to refuse the call."""
    status = {"success": 0, "failure": 1}.get(args["status"], args["status"])
    reason = args.get("stderr", "")
    if status == 0 and reason:
        return Result("Exit rejected: success takes no stderr; if something is wrong, it is a failure", True)
    if status != 0 and not reason.strip():
        return Result("Exit rejected: a status other than 0 needs a reason in stderr", True)
    if status == 0 and (pids := _writers(loop.shell)) and (pids := _left(loop.shell, pids)):
        running = f"background commands may still write to descriptor 4: pid {', '.join(map(str, pids))}"
        if not (loop.warned or loop.account.last or loop.signals.alarm):
            loop.warned = True
            return Result(
                f"Exit rejected: {running}; `wait` in sh for those that do, or exit again to end all", True
            )
        loop.log.note(f"ended by exit: {running}")
    raise Ended(status, "exit", reason)


def _left(shell: Shell, pids: list[int]) -> list[int]:
    """Wait a moment for these writers, and return those that there are now. One may be a fork before its exec."""
    fds = []
    for pid in pids:
        with contextlib.suppress(OSError):
            fds.append(os.pidfd_open(pid))
    procs.wait(fds, MOMENT)
    for fd in fds:
        os.close(fd)
    return _writers(shell)


def _writers(shell: Shell) -> list[int]:
    """Return the processes of a shell, and of those that ended before it, that may write to the deliverable."""
    groups = {shell.group, *(process.group for process in shell.left.values())} - {0}
    deliverable = _link(os.getpid(), "1") if groups else ""
    if deliverable in ("", os.devnull):
        return []
    below = procs.below(shell.group) if shell.group else {}
    below |= {pid: one for pid, one in procs.below(os.getpid()).items() if one.group in groups}  # orphans
    return sorted(pid for pid in below if pid != shell.group and _may_write(pid, deliverable))


def _may_write(pid: int, deliverable: str) -> bool:
    try:
        numbers = set(os.listdir(f"/proc/{pid}/fd")).difference(OTHERS)
        return any(_link(pid, number) == deliverable for number in numbers)
    except PermissionError:
        return True  # an agent, or another user's: it cannot be looked at
    except OSError:
        return False  # it has ended


def _link(pid: int, number: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{number}")
    return ""
