"""Agents of a batch: an item's mission from the template, and its agent from the tree of the batch.

Law: an agent does nothing before this process has answered its first request, and the journal has a note of it by then.
So of an agent that has none it is known that it never began. The others die with this process: see
docs/explanation/agents-elsewhere.md.
"""

from __future__ import annotations

from functools import partial

from quine.fanout.starter import Starter
from quine.remote.crowd import Crowd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.fanout.options import Options
    from quine.fanout.output.results import Report
    from quine.fanout.output.sinks import Sink
    from quine.fanout.tasks import Task, Work
    from quine.files.select import Services
    from transport.client.batch import Batch
    from transport.spawn import Spawn


class AgentStarter(Starter):
    """Starts an agent for each try. Where -P does not bound them, the places of the tree do (--max-agents)."""

    agents = True
    adopts = False

    def __init__(
        self, options: Options, batch: Batch, work: Work, sink: Sink, report: Report, crowd: Crowd
    ) -> None:
        super().__init__(options, batch, work, sink, report)
        self._crowd = crowd
        self.left = crowd.left
        self.most = options.number("jobs", 0)

    def ready(self) -> bool:
        return self._crowd.ready()

    @property
    def spent(self) -> bool:
        return self._crowd.spent

    def close(self) -> None:
        self._crowd.close()

    def make(self, task: Task, avoid: list[str]) -> tuple[Spawn, Services, list[int]]:
        task.facts = {}
        mission = " ".join(self._work.argv(task))
        spawn, answers, held = self._crowd.agent(mission, task.stdin, avoid, task.facts)
        spawn.folder = self.folder
        if self._journal:
            answers.on_request = partial(self._journal.begin_agent, spawn.id)
        return spawn, answers, held

    def never_began(self, id: str) -> bool:
        return self._journal is not None and id not in self._journal.begun
