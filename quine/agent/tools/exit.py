"""exit: end this process with a verdict.

Law: the first success is sent back while a background command may still write to the deliverable, which would be cut.
The second one ends it. Where nothing but a verdict is possible any more, the first one does.
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

MOMENT = 0.5  # seconds that the last writers have to end by themselves
SLOTS = ("3", "4", "5")  # descriptors that each command has
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
    if status == 0 and (pids := _writers(loop.shell.group)) and (pids := _left(loop.shell.group, pids)):
        running = f"background commands may still write to descriptor 4: pid {', '.join(map(str, pids))}"
        if not (loop.warned or loop.account.last or loop.signals.alarm):
            loop.warned = True
            return Result(f"Exit rejected: {running}; `wait` in sh for them, or exit again to end them", True)
        loop.log.note(f"ended by exit: {running}")
    raise Ended(status, "exit", reason)


def _left(shell: int, pids: list[int]) -> list[int]:
    """Wait a moment for these writers, and return those that there are now. One may be a fork before its exec."""
    fds = []
    for pid in pids:
        with contextlib.suppress(OSError):
            fds.append(os.pidfd_open(pid))
    procs.wait(fds, MOMENT)
    for fd in fds:
        os.close(fd)
    return _writers(shell)


def _writers(shell: int) -> list[int]:
    """Return the processes of a shell that may write to the deliverable; `shell` is its process group, 0 for none.

    All of them have it as descriptor 4. Those count that a redirection gave it once more, and subshells, which redirect
    one command after the other.
    """
    deliverable = _link(os.getpid(), "1") if shell else ""
    if deliverable in ("", os.devnull):
        return []
    below = procs.below(shell)
    below |= {pid: one for pid, one in procs.below(os.getpid()).items() if one.group == shell}  # orphans
    words = _words(shell)
    return sorted(pid for pid in below if pid != shell and _may_write(pid, deliverable, words))


def _may_write(pid: int, deliverable: str, shell: bytes) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        found = {number for number in os.listdir(f"/proc/{pid}/fd") if _link(pid, number) == deliverable}
        return bool(found.difference(SLOTS)) or ("4" in found and _words(pid) == shell)
    return False


def _link(pid: int, number: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{number}")
    return ""


def _words(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""
