"""The files of one try over there, from the time when it may be sent until its end."""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.fanout.files.names import Sources, Uses
    from quine.fanout.tasks import Task
    from quine.jobs.staged import Bringing
    from quine.staging.caller_side import Staging
    from transport.client.batch import BatchJob
    from transport.spawn import Spawn


class Held:
    """The files of one try. `names` are those that it has, `own` are those that it may have to remove."""

    __slots__ = ("names", "own", "refuse", "say", "send", "stage", "task")

    def __init__(
        self,
        task: Task,
        stage: Staging,
        say: Callable[[str], None],
        send: Callable[[], None] = lambda: None,
        refuse: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.task = task
        self.stage = stage
        self.say = say
        self.send, self.refuse = send, refuse  # called once it may be sent, or if it never may
        self.names: tuple[Sources, Uses] = [], []
        self.own: list[str] = []

    # -- the interface of `Bringing` -----------------------------------------------------------------

    def sent(self, job: BatchJob | Bringing) -> None:
        self.task.after = job

    @property
    def wanted(self) -> bool:
        return not self.task.abandoned

    def write(self, data: memoryview) -> int | None:
        return self.task.output.write(2, data) if self.task.output else None

    def lost(self, place: str) -> None:
        self.task.unreturned = place


class Left(NamedTuple):
    """Names of files that a try has left on a host, with its results; `spawn`: of its job, if the next try decides."""

    host: str
    names: list[str]
    spawn: Spawn | None = None
