"""The start of a detached job: forks its supervisor, and hears from it whether the job runs."""

from __future__ import annotations

import os

from transport import quickjson
from transport.detached.supervisor import LAUNCHES, RUNS, Supervisor
from transport.status import LOST, NOT_STARTED, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.detached.order import Order


def start(directory: str, order: Order) -> Status | None:
    """Start a job in a directory made for it. Return None once it runs and is on record, else the reason."""
    outcome, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            if not os.fork():
                Supervisor(directory, order, tell).run()
        except BaseException:
            _note_defect(f"{directory}/log")
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(pid, 0)
    with open(outcome, "rb") as file:
        answer = file.read()
    launched, answer = answer.startswith(LAUNCHES), answer.removeprefix(LAUNCHES)
    if answer == RUNS:
        return None
    try:
        return Status.from_json(quickjson.loads(answer))
    except ValueError:
        detail = f"its supervisor has died; see {directory}/log"
        if launched:
            return Status("lost", LOST, detail=detail)
        return Status("unreachable", NOT_STARTED, detail=detail)


def _note_defect(path: str) -> None:
    import traceback

    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_APPEND, 0o600), "a") as file:
        traceback.print_exc(file=file)
