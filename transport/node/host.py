"""One machine as a node sees it: how it is reached, and the one link to it, dialled and dialled again.

Laws
1. The link is dialled once for the first job and shared by all. A failed dial ends the jobs that waited for it, with
   its reason, and nothing else.
2. A link that is down is dialled again, at once and then with growing pauses, as long as a channel is open on it.
   A job that has not begun does not wait for that: the error of the next dial becomes its reason for not being
   started. But a connection that only broke off is no such error, and is dialled again.
3. A dial goes the way that the configuration names by then. If that has changed since the link was made, a node that
   does not know the link is no proof that the link's own has ended: it may be another machine's.
4. A job that only asks (`asks` of its context) brings nothing to a host. Where there is nothing of ours, no job that
   could be asked about is there, and it ends with NothingThere. A link that it has made is as good as any.
5. A host may answer pings and no start. A start that is not answered in START is given up, and its job is lost. Only
   the time counts in which the link is up and the job could begin: see `Starts`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from itertools import count

from transport import this_build
from transport.address import boot_clock
from transport.carrier.duplex import Duplex
from transport.carrier.handshake import Greeter
from transport.errors import Interrupted, LinkLost, NothingThere, ProtocolError, Refused
from transport.lean import Any
from transport.node.link import Link
from transport.node.relay import Relay, Watcher
from transport.spawn import Spawn
from transport.status import Status
from transport.wire import numbers
from transport.wire.frames import Kind
from transport.wire.resume import Line, hello

log = logging.getLogger("quine.hosts")

INSIST = 30.0  # seconds in which a connection that breaks off before the greeting is dialled again
HELLO_DEADLINE = 30.0  # seconds for the node over there to greet once its duplex is open
FIRST_PAUSE = 0.1  # seconds between the second dial and the third; grows, and is random to spread the dials
LAST_PAUSE = 5.0
BROKEN_PAUSE = 0.2  # longest pause after a connection that broke off: the host is there, and a dial is slow
START = 60.0  # seconds for the answer to a start: a launcher gives a start up after half of them
ENDING = 10.0  # seconds for it beyond the time of the job, as overtime.py has them
STEP = 3.0  # seconds between two looks at the starts that wait for an answer
BROKEN_TRIES = (
    8  # of a new link with such a pause: a server that always hangs up may ban an address that goes on so
)


class Target:
    """A host chosen for a job, and the way to reach it.

    Targets of the same host have the same `group`, and share its slots. They have the same `key` if one link can serve
    both: another ssh agent or an edited entry of the inventory is another link.
    """

    __slots__ = ("ask", "dial", "group", "key", "met", "moved", "name", "news", "settings", "slots")

    def __init__(
        self,
        name: str,
        group: str,
        key: str,
        dial: Callable[[], Awaitable[Duplex]],
        settings: Callable[[Spawn], None],
        slots: int = 0,
        met: Callable[[dict[str, Any]], None] = lambda facts: None,
        news: list[str] | None = None,
        ask: Callable[[], Awaitable[Duplex]] | None = None,
        moved: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self.group = group
        self.key = key
        self.dial = dial
        self.moved = moved  # whether a dial may lead to another machine now than when this was made
        self.ask = ask or dial  # the same, but brings nothing there: raises NothingThere
        self.settings = settings  # puts the host's defaults (workdir, env, limits, lease) into a spawn
        self.slots = slots  # jobs at one time, 0 = no limit
        self.news = [] if news is None else news  # messages of a dial for the user: removed when sent
        self.met = met  # called with the hello of the node over there, when a link to it begins


class Met:
    """The one node of a host that all links to it have led to, as far as they were made since `since`.

    So what was sent to the host since then can have begun at that node alone, whenever that was started.
    """

    def __init__(self, since: object) -> None:
        """`since`: the start of this node, by `boot_clock`. Links of a node before it led nobody knows where."""
        self.since = since
        self._life: object = None

    def greeted(self, life: object) -> None:
        """A new link leads to the node with this `life` in its hello."""
        if self._life not in (None, life):
            self.since = boot_clock()
        self._life = life


class Starts:
    """The jobs that were sent to a host and have no answer yet, in their order.

    Time is counted in looks, which end with the link, so a process that was stopped gives up nothing. A job's count
    begins anew while all turns over there are taken (`turns.py`), and when a job that was sent before it is answered:
    a host that is busy answers in this order.
    """

    def __init__(self, is_up: Callable[[], bool]) -> None:
        self._is_up = is_up
        self._looks: dict[Relay, int] = {}
        self._limits: dict[Relay, tuple[float, int]] = {}  # seconds, and turns over there
        self._timer: asyncio.TimerHandle | None = None

    def add(self, relay: Relay, seconds: float, turns: int) -> None:
        self._looks[relay], self._limits[relay] = 0, (seconds, turns)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STEP, self._look)

    def _look(self) -> None:
        up, progress = self._is_up(), False
        begun: dict[Watcher, int] = {}
        for relay, looks in list(self._looks.items()):
            if not relay.unanswered:
                del self._looks[relay], self._limits[relay]
                progress = progress or relay.started or not relay.ended
                continue
            seconds, turns = self._limits[relay]
            watcher = relay.watcher if turns else None
            if watcher and watcher not in begun:
                begun[watcher] = watcher.begun
            if progress or (watcher and begun[watcher] >= turns):
                self._looks[relay] = 0
            elif up and looks * STEP >= seconds:
                del self._looks[relay], self._limits[relay]
                relay.give_up_start(seconds)
            else:
                self._looks[relay] = looks + up
        self._timer = asyncio.get_running_loop().call_later(STEP, self._look) if self._looks else None

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()


# (line, name, callback for a lost connection) -> the link that this node now drives.
Join = Callable[[Line, str, Callable[[Link, str], None]], Link]


class Host:
    """One host, and its link, which is being dialled or live."""

    def __init__(self, target: Target, join: Join, facts: dict[str, object], met: Met) -> None:
        self.target = target
        self._met = met
        self._join = join
        self._facts = facts
        self.processors = 0  # as its node has told; 0: not yet
        self._link: asyncio.Task[Link] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []  # jobs that want a link which is down
        self._starts = Starts(lambda: (link := self.live()) is not None and not link.down)

    @property
    def wanted(self) -> bool:
        """True if a job waits for the link."""
        return bool(self._tasks)

    def begin(self, relay: Relay, spawn: Spawn, unreachable: Callable[[Refused], None]) -> None:
        """Start a job: with a live link at once, in this turn of the loop."""
        if (link := self.live()) and not link.down:
            self._connect(relay, link, spawn)
            return
        task = asyncio.create_task(self._begin_later(relay, spawn, unreachable))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_later(self, relay: Relay, spawn: Spawn, unreachable: Callable[[Refused], None]) -> None:
        try:
            try:
                link = await self._reach(spawn.context.get("asks") is True)
            finally:
                while self.target.news:
                    relay.tell(self.target.news.pop(0))
        except Refused as refused:
            log.info("%s: not reached: %s", self.target.name, refused.detail)
            if not isinstance(refused, NothingThere):
                unreachable(refused)
            refuse(relay, refused)
        except Exception:
            log.exception("%s: defect while dialling", self.target.name)
            detail = "a defect in quine while dialling; see the node's log"
            refuse(relay, Refused(detail, host=self.target.name))
        else:
            self._connect(relay, link, spawn)

    def _connect(self, relay: Relay, link: Link, spawn: Spawn) -> None:
        if relay.ended:
            return  # its opener has gone meanwhile
        if relay.parent is None and spawn.context.get("control") is True and "batch" in spawn.context:
            relay.near.note({"sole": self._met.since})
        seconds = spawn.deadline or _seconds(spawn.context.get("timeout"))
        spawn.where, spawn.context = "", {}
        relay.lease = spawn.lease
        try:
            if spawn.template:
                relay.connect(link, Kind.SPAWN, spawn.own_fields(), spawn.template)
            else:
                relay.connect(link, Kind.SPAWN, spawn.to_json())
            self._starts.add(relay, min(START, seconds + ENDING) if seconds else START, spawn.slots)
        except Refused as refused:
            refuse(relay, refused)
        except ValueError as error:
            relay.refuse(Status("exited", 126, host=relay.host, detail=f"argument list too long: {error}"))
            relay.end()
        except LinkLost as error:
            detail = f"connection lost before the command was sent: {error}"
            refuse(relay, Refused(detail, "try again", host=relay.host))

    def live(self) -> Link | None:
        """The link, which may be down and be dialled again."""
        task = self._link
        if task is None or not task.done() or task.cancelled() or task.exception():
            return None
        link = task.result()
        return None if link.dead else link

    async def _reach(self, asks: bool) -> Link:
        """The link: live, or the dial under way, or a new one. Raises Refused."""
        while (link := self.live()) and link.down:
            tried = asyncio.get_running_loop().create_future()
            self._waiting.append(tried)
            await tried
        while True:
            task = self._link
            if task is None or (task.done() and self.live() is None):
                dial = self.target.ask if asks else self.target.dial
                task = self._link = asyncio.create_task(self._dial(dial))
            try:
                return await asyncio.shield(task)
            except NothingThere:
                if asks:
                    raise
                # It was the dial of a job that only asks: the next one brings what is lacking.

    async def _dial(self, dial: Callable[[], Awaitable[Duplex]]) -> Link:
        """The first connection of a new link."""
        loop = asyncio.get_running_loop()
        until = loop.time() + INSIST
        for tries in count():
            name = os.urandom(16).hex()  # a new one each time: the node over there may know the one before
            try:
                greeter = await self._greeted(dial, name, 0, resume=False)
                break
            except Interrupted as broken:
                if loop.time() > until:
                    raise
                log.info("%s: dialled again: %s", self.target.name, broken.detail)
                await asyncio.sleep(pause(tries, BROKEN_PAUSE if tries < BROKEN_TRIES else LAST_PAUSE))
        link = self._join(Line(True, name), self.target.name, self._down)
        self._met.greeted(greeter.handshake.peer.get("life"))
        link.connect(greeter)
        told = greeter.handshake.peer.get("processors")
        try:
            self.processors = numbers.whole(told, numbers.PROCESSORS, 1)
        except ValueError:
            self.processors = 1
        self.target.met(greeter.handshake.peer)
        return link

    async def _greeted(
        self, dial: Callable[[], Awaitable[Duplex]], name: str, seen: int, resume: bool, attempt: int = 0
    ) -> Greeter:
        """A new connection, after the greetings. Raises Refused."""
        target = self.target
        greeter = Greeter(await dial(), hello(self._facts, name, seen, resume, attempt))
        try:
            peer = await greeter.hello(HELLO_DEADLINE)
        except ProtocolError as error:
            message = f"{error}{': ' if greeter.noise else ''}{greeter.noise}"
            if greeter.lost is not None:
                raise Interrupted(
                    target.name, f"the connection was lost as its node greeted: {message}"
                ) from None
            hint = f"remove ~/.cache/quine on {target.name} to start afresh"
            raise Refused(f"the node over there does not answer: {message}", hint, target.name) from None
        if peer["link"] != name:
            greeter.duplex.close()
            raise Refused("the node over there answers for another link", host=target.name)
        if peer.get("build") != this_build.build_hash():
            greeter.duplex.close()
            raise Refused("the node over there is another build", f"quine deploy {target.name}", target.name)
        return greeter

    # -- a link that is down -----------------------------------------------------------------------

    def _down(self, link: Link, why: str) -> None:
        if not link.needed and not self.wanted:
            link.fail(why)
        elif self._mending is None or self._mending.done():
            self._mending = asyncio.create_task(self._mend(link))

    async def _mend(self, link: Link) -> None:
        """Dial until the link is up, or is not needed any more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + INSIST
        for tries in count():
            longest = LAST_PAUSE
            try:
                await self._again(link)
            except Interrupted as broken:
                longest = BROKEN_PAUSE
                log.info("%s: not back yet: %s", self.target.name, broken.detail)
                if loop.time() > until:
                    self._tell_waiting(broken)
            except Refused as refused:
                log.info("%s: not back yet: %s", self.target.name, refused.detail)
                self._tell_waiting(refused)
            except Exception:
                log.exception("%s: defect while dialling again", self.target.name)
                self._tell_waiting(Refused("a defect in quine while dialling; see the node's log"))
            if link.down and not link.needed and not self._waiting:
                link.fail(link.down)
            if link.dead or not link.down:
                break
            await asyncio.sleep(pause(tries, longest))
        self._tell_waiting(None)

    async def _again(self, link: Link) -> None:
        """One try. Raises Refused."""
        line = link.line
        assert line
        line.attempt += 1
        greeter = await self._greeted(
            self.target.dial, line.name, line.received, resume=True, attempt=line.attempt
        )
        if link.dead:
            greeter.duplex.close()
        elif greeter.handshake.peer.get("resume") is not True:
            greeter.duplex.close()
            if self.target.moved():
                detail = "the way to it was changed, and leads to a node that does not know the link"
                raise Refused(detail, "see ~/.ssh/config", self.target.name)
            link.fail("the node over there was started anew meanwhile")
        else:
            link.connect(greeter)

    def _tell_waiting(self, refused: Refused | None) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.done():
                continue
            if refused is None:
                each.set_result(None)
            else:
                each.set_exception(refused)

    def close(self) -> None:
        self._starts.close()
        for task in self._tasks:
            task.cancel()
        if self._link:
            self._link.cancel()
        if self._mending:
            self._mending.cancel()


def _seconds(told: object) -> float:
    """Return the time that the caller of a job gives it, 0.0 for none."""
    return float(told) if isinstance(told, (int, float)) and 0 < told < numbers.SECONDS else 0.0


def pause(tries: int, longest: float) -> float:
    """Seconds between one dial and the next: none before the second."""
    return min(FIRST_PAUSE * (2.0 ** min(tries, 10) - 1), longest) * random.uniform(0.5, 1.5)


def refuse(relay: Relay, refused: Refused) -> None:
    """Nothing was started: the reason becomes the exit record."""
    host = refused.host or relay.host
    relay.refuse(Status(refused.state, refused.status, host=host, detail=refused.detail, hint=refused.hint))
    relay.end()
