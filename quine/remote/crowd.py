"""Agents of a batch: one for each item, on other machines or on this one, with this process as the proxy of all.

Laws
1. They are the agents of one tree, whose root is the batch: one ledger, so the batch keeps the limits of one agent.
2. An agent that has no place among the agents of the tree waits; it is not refused.
3. Material and mission are the item's own. Nothing else differs between them.
"""

from __future__ import annotations

import os
import weakref

from quine.agent.main import spec_from
from quine.agent.prompt import material
from quine.archive import policy
from quine.base.cli_options import RunOptions, environment, limits
from quine.base.errors import Misconfigured
from quine.base.sessions import new_session
from quine.broker.finding import arrive as arrive
from quine.budget.shared_counters import NAME, release
from quine.jobs.client import caller, callers_environment, infers_there, starting_directory
from quine.providers.withholding import passed_on
from quine.remote.compose import agent_spawn, log_of, services_of, time_of
from quine.remote.waits import Waits
from transport.inherit import held_above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.select import Services
    from transport.spawn import Spawn

_made: set[int] = set()  # inodes of the ledgers of crowds that are the roots of their trees


def _close(fds: list[int], inode: int) -> None:
    _made.discard(inode)
    release(fds)


class Crowd:
    """The tree of a batch. Raises Failure if no agent could be run at all."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options = options if options.on else options.replace(on="local")
        given = dict(os.environ)
        settled = dict(given)
        self._spec, self._settings, self._ledger = spec_from(
            "a batch", options, settled, False, _made, lambda: infers_there(options)
        )
        self.left = time_of(self._spec, self._ledger)  # seconds until its agents have ended by themselves
        self._keep_apart()
        self._environ = {**given, **settled, **policy.of_the_store(self._settings.secrets)}
        self._env = {**callers_environment(options), **environment(options, given), **passed_on(options.env)}
        self._limits = limits(options)
        self._context = {**caller(options), "detached": bool(options.job)}
        self._cwd = starting_directory(options)
        self.waits = Waits()
        self._places: list[list[int]] = []  # taken for the next agents
        self.refused = log_of(self._spec, self._environ)
        self._kept = policy.wanted(settled) and "lineage" not in self._settings.memo
        if self._kept:
            policy.begin(self._spec.root, settled, policy.of_the_store(self._settings.secrets))

    def _keep_apart(self) -> None:
        """Let the next crowd of this process have a tree of its own, if there is no tree above both.

        The ledger is closed with the last handler that counts in it.
        """
        fd = self._ledger.fd
        inode = os.fstat(fd).st_ino
        if all(pid == os.getpid() or each != inode for pid, each, _ in held_above(NAME)[NAME]):
            _made.add(inode)
            fds = [each for each in (fd, self._ledger.beginning.fd) if each >= 0]
            weakref.finalize(self._ledger, _close, fds, inode)

    def offer(self, ident: str, command: str) -> None:
        """Show the budget of the batch as `ident`, and let it be raised, if there is no agent above."""
        if "lineage" not in self._settings.memo:
            self._ledger.into_purse(ident, command, self._settings.limits)

    @property
    def root(self) -> str:
        """The session that the tree is named by; it has no agent and no tape."""
        return self._spec.root

    def ready(self) -> bool:
        """Whether there is a place for one more agent; it is kept for it."""
        if not self._places:
            place = self._ledger.agents(self._spec.limits.agents)
            if place is None:
                return False
            self._places.append(place)
        return True

    @property
    def spent(self) -> bool:
        """Whether the ledger has refused an inference, or the time of the tree is over."""
        left = self._ledger.time_left()
        return self._ledger.spent or (left is not None and left <= 0)

    def totals(self) -> tuple[int, int, float]:
        """(agents, tokens, dollars) of the tree so far."""
        return self._ledger.totals()

    def agent(
        self, mission: str, stdin: int | bytes | None, avoid: list[str], facts: dict[str, object]
    ) -> tuple[Spawn, Services, list[int]]:
        """Return the spawn of an agent, its services, and its place: descriptors to be closed after its end.

        `facts` counts its tokens. `ready` was called before. Raises Misconfigured if the mission is no text.
        """
        try:
            mission.encode()
        except UnicodeEncodeError:
            raise Misconfigured("the mission is not text: it holds bytes that are not UTF-8") from None
        kind = material(stdin) if isinstance(stdin, int) else "pipe" if stdin else "none"
        spec = self._spec._replace(session=new_session(), mission=mission, material=kind)
        spawn = agent_spawn(self._options.on, spec)
        spawn.env, spawn.limits, spawn.cwd = self._env, self._limits, self._cwd
        spawn.context = {**self._context, "avoid": avoid} if avoid else self._context
        facts.update({"session": spec.session, "tokens_in": 0, "tokens_out": 0})
        more = (self._settings.masked, facts, self.waits)
        answers = services_of(spec, self._ledger, self._environ, spawn, *more)
        return spawn, answers, self._places.pop()

    def close(self) -> None:
        """The batch is over."""
        while self._places:
            release(self._places.pop())
        if self._kept:
            policy.finish(self._spec.root)
