"""Opens the byte duplex to the node on a host: connects, makes sure that the binary is there, starts the dial.

Laws
1. One connection, one channel, one command. A host that has the binary costs one round trip after the login.
2. One deadline covers all of it, the first byte of the node included, and the error names the phase that it
   struck. Only an upload and an unpacking move it.
3. An installation that does not start is replaced once; then it is the host's fault, and the error says so.
4. An upload that is cut off is taken up again (`push.repeated`).
5. Dials of different hosts are independent of each other.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from deploy import carriers, host_requirements, layers, probe, push
from deploy.build import Binary, build
from deploy.host import Host
from deploy.inventory import Inventory
from transport.carrier.dialer import Note as Steps
from transport.carrier.dialer import unheard as unwatched
from transport.carrier.duplex import Bootstrap
from transport.carrier.timeouts import timeout
from transport.errors import Interrupted, Misconfigured, NothingThere, Unreachable
from transport.node_socket import UNSTARTED

SHELL, FIND = "start the login shell", "find the binary"
DEADLINE = 30.0  # seconds from the first connect to the first byte of the node over there
# Exit statuses of a Python that finds its files damaged; a dial that refuses also prints an error of ours.
BROKEN = (0, 1, 2, 126, 127)

_T = TypeVar("_T")
Note = Callable[[str], None]
Command = Callable[[probe.Place, str], str]
Talk = Callable[[Bootstrap, probe.Answers, Callable[[float, str], None]], Awaitable[_T]]
unheard: Note = lambda text: None  # noqa: E731


@dataclass(frozen=True)
class Visit:
    """The result of a check, a deployment or a removal. `size`: bytes of the binary that are not there yet."""

    seconds: float
    deployed: bool
    facts: probe.Facts | None
    size: int = 0
    brought: bool = False  # a Python, too
    removed: int = 0  # installations
    used: tuple[str, ...] = ()  # names of those that a process runs
    left: tuple[str, ...] = ()  # and of those that cannot be removed


class _Clock:
    """The one deadline, and the current phase."""

    def __init__(self, host: Host, note: Note, steps: Steps = unwatched) -> None:
        self._host = host
        self._note = note
        self._steps = steps
        self._timeout = timeout(None)
        self._started = time.monotonic()
        self._limit = DEADLINE
        self._phase = "wait for a place among the handshakes"

    async def __aenter__(self) -> _Clock:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)  # type: ignore[arg-type]
        except TimeoutError:
            detail = f"no answer within {self._limit:g} s; it was about to {self._phase}"
            likely = "is it up, is the network?"
            if self._phase.startswith((SHELL, FIND)):  # it reads its files first
                likely = "do its login files (.bashrc, .zshenv) wait for input?"
            hint = f"{likely} {carriers.by_hand(self._host)} would tell"
            raise Unreachable(self._host.name, detail, hint) from None

    def phase(self, step: str, found: str = "", ok: bool = True) -> None:
        self._steps(step, found, ok)
        if found:
            return
        if self._timeout.when() is None:  # waiting for a place does not count
            self.allow(DEADLINE, "")
        self._note(f"{time.monotonic() - self._started:7.3f} s {step}")
        self._phase = step

    def doubt(self, text: str) -> None:
        """Note a thing that may be the reason if the present phase takes too long."""
        self._note(f"{time.monotonic() - self._started:7.3f} s {text}")
        self._phase += f" ({text})"

    def allow(self, seconds: float, name: str) -> None:
        self._limit = seconds
        self._timeout.reschedule(asyncio.get_running_loop().time() + seconds)
        if name:
            self.phase(name)


async def dial(
    host: Host,
    inventory: Inventory,
    *,
    ssh_agent: str | None,
    note: Note,
    news: Note = unheard,
    layer: str = "",
    brings: bool = True,
) -> Bootstrap:
    """Return the duplex to the node on `host`; raises Refused.

    `note` is called with each phase and its time, `news` with messages for the user about first contacts. `layer` is
    the name of one that its jobs need. Without `brings` a host that has nothing of ours is left so, and NothingThere
    raised.
    """
    visit = await _Visit.plan(host, inventory, ssh_agent, note, news)
    visit.layer = "" if host.binary else layer  # an admin's installation has the packages that it has
    return await _dialled(visit, "dial" if brings else "ask")


async def look(
    host: Host, inventory: Inventory, *, ssh_agent: str | None, steps: Steps, news: Note = unheard
) -> Bootstrap:
    """Dial as `dial` does, and tell each step of the way, and what it has found. Raises Refused."""
    steps("make the file for hosts")
    visit = await _Visit.plan(host, inventory, ssh_agent, unheard, news)
    steps("make the file for hosts", f"{visit.binary.size >> 10} kB, sha256 {visit.binary.sha256[:16]}")
    visit.steps = steps
    return await _dialled(visit, "look")


async def _dialled(visit: _Visit, mode: str) -> Bootstrap:
    try:
        return await visit.dial(mode, trust=True)
    except _BrokenError as error:
        if path := visit.host.binary:
            raise Unreachable(
                visit.host.name, f"{path} does not start there: {error}", "tell its admin"
            ) from None
        visit.note("the binary installed there does not start: it is replaced")
        visit.steps("start the node", f"{error}; the binary is replaced", False)
    try:
        return await visit.dial(mode, trust=False)
    except _BrokenError as error:
        host = visit.host
        hint = f"rm -r {visit.place.cache}/{visit.place.name(visit.binary)} there, and look at its Python"
        raise Unreachable(host.name, f"the binary does not start there: {error}", hint) from None


async def deploy(
    host: Host, inventory: Inventory, *, ssh_agent: str | None, note: Note, news: Note = unheard
) -> Visit:
    """Make sure that the binary is on `host`; start nothing."""
    return await (await _Visit.plan(host, inventory, ssh_agent, note, news)).once("deploy")


async def check(
    host: Host, inventory: Inventory, *, ssh_agent: str | None, note: Note, news: Note = unheard
) -> Visit:
    """Log in and look; install nothing, start nothing. Raises Refused if the binary could not be put there."""
    plan = await _Visit.plan(host, inventory, ssh_agent, note, news)
    visit = await plan.once("check")
    if visit.facts and not visit.facts.have:
        host_requirements.check(host.name, plan.binary, visit.facts, plan.place.python)
    return visit


async def speak(
    host: Host,
    inventory: Inventory,
    command: Command,
    phase: str,
    talk: Talk[_T],
    *,
    ssh_agent: str | None,
    note: Note,
    news: Note = unheard,
) -> _T:
    """Run another command than the dial on `host`: text of a place and a marker. `talk` with it."""
    return await (await _Visit.plan(host, inventory, ssh_agent, note, news)).speak(command, phase, talk)


class _BrokenError(Exception):
    """The binary is installed and does not start."""


class _Visit:
    """One host, one purpose."""

    def __init__(self, host: Host, connect: carriers.Connect, binary: Binary, note: Note, news: Note) -> None:
        self.host = host
        self.binary = binary
        self.layer = ""
        self.place = probe.Place(
            host.cache or probe.CACHE, host.python or "", host.modules, host.binary or ""
        )
        self.note = note
        self.steps: Steps = unwatched
        self._connect = connect
        self._news = news

    @classmethod
    async def plan(
        cls, host: Host, inventory: Inventory, ssh_agent: str | None, note: Note, news: Note
    ) -> _Visit:
        if host.transport == "slurm":
            raise Misconfigured(host.unbuilt(), "name its login node as a host of its own", host.name)
        binary = await asyncio.to_thread(build)
        return cls(host, carriers.to(host, inventory, ssh_agent), binary, note, news)

    async def dial(self, mode: str, trust: bool) -> Bootstrap:
        async with _Clock(self.host, self.note, self.steps) as clock:
            duplex, answers, _ = await self._open(clock, mode, trust)
            try:
                clock.phase("start the node")
                first = answers.rest() or await duplex.read()
                if not first:
                    raise _failure(self.host, duplex)
                duplex.unread(first)
            except BaseException:
                await _close(duplex)
                raise
            clock.phase("speak with the node")
        return duplex

    async def once(self, mode: str) -> Visit:
        async with _Clock(self.host, self.note) as clock:
            began = time.monotonic()
            duplex, _, facts = await self._open(clock, mode, trust=True)
            seconds = time.monotonic() - began
            await _close(duplex)
        left = push.left(self.binary, facts)[1] if facts and not facts.have else 0
        return Visit(seconds, left > 0 and mode == "deploy", facts, left)

    async def speak(self, command: Command, phase: str, talk: Talk[_T]) -> _T:
        """Run another command than the dial, and talk with it."""

        async def attempt() -> _T:
            answers = self._answers()
            text = command(self.place, answers.marker)
            duplex = await self._connect(text, clock.phase, self._news)
            try:
                clock.phase(phase)
                return await talk(duplex, answers, clock.allow)
            finally:
                await _close(duplex)

        async with _Clock(self.host, self.note) as clock:
            return await self._repeated(clock, attempt)

    def _answers(self) -> probe.Answers:
        marker, program = secrets.token_hex(16), self.host.transport == "command"
        return probe.Answers(marker, carriers.by_hand(self.host), program)

    async def _open(
        self, clock: _Clock, mode: str, trust: bool
    ) -> tuple[Bootstrap, probe.Answers, probe.Facts | None]:
        """Connect and ask; unless it is a check, make sure that the binary is there. Facts: if the host sent any."""
        return await self._repeated(clock, lambda: self._open_once(clock, mode, trust))

    async def _repeated(self, clock: _Clock, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of an attempt that no connection cut short: law 4."""
        return await push.repeated(attempt, lambda detail: clock.allow(DEADLINE, f"connect again: {detail}"))

    async def _open_once(
        self, clock: _Clock, mode: str, trust: bool
    ) -> tuple[Bootstrap, probe.Answers, probe.Facts | None]:
        answers = self._answers()
        command = probe.command(self.binary, self.place, answers.marker, mode, trust=trust)
        command = layers.prefixed(command, answers.marker, self.layer)
        duplex = await self._connect(command, clock.phase, self._news)
        try:
            answer, hung = await self._answer(clock, mode, duplex, answers)
            if answer == probe.NOTHING:
                raise NothingThere(self.host.name)
            host_requirements.check_build(self.host.name, self.place.binary, answer)
            facts = None if answer == "have" else replace(_facts(self.host, answer), hung=hung)
            if facts is not None:
                clock.phase(FIND, facts.text)
            if facts is not None and not facts.have and mode != "check":
                end = "deploy" if mode == "deploy" else "dial"
                await push.push(
                    self.host.name,
                    self.binary,
                    self.place,
                    facts,
                    end,
                    duplex,
                    answers,
                    clock.allow,
                )
                clock.allow(DEADLINE, "")
            if self.layer:
                size, wheels = self.binary.size, self.host.wheels
                if not await layers.bring(
                    self.host.name, self.layer, wheels, duplex, answers, size, clock.allow
                ):
                    raise _failure(self.host, duplex)
                clock.allow(DEADLINE, "")
        except BaseException:
            await _close(duplex)
            raise
        return duplex, answers, facts

    async def _answer(
        self, clock: _Clock, mode: str, duplex: Bootstrap, answers: probe.Answers
    ) -> tuple[str, str]:
        """Return the answer to the probe, and a Python that hangs. Answers before it, of a look, are for the steps."""
        clock.phase(step := SHELL if mode == "look" else FIND)
        versions: set[str] = set()
        hung = ""
        for _ in range(probe.MOST_ANSWERS):
            answer = await push.next_answer(self.host.name, duplex, answers)
            word, _, text = answer.partition(" ")
            if word not in ("shell", "python", "hung"):
                return answer, hung
            if word == "hung":
                hung = text
                clock.phase(step, why := host_requirements.hangs(text), ok=False)
                clock.doubt(why)
            elif word == "shell":
                clock.phase(step, probe.of_shell(text, answers.banner))
                clock.phase(step := FIND)
            elif (version := text.partition(" ")[0]) not in versions:  # python3 and python3.N are often one
                versions.add(version)
                clock.phase(step, probe.of_python(text))
        detail = f"its shell answers wrongly: more than {probe.MOST_ANSWERS} lines to one question"
        raise Unreachable(self.host.name, detail, "is its /bin/sh a POSIX shell?")


def _facts(host: Host, answer: str) -> probe.Facts:
    try:
        return probe.facts(answer)
    except ValueError as error:
        raise Unreachable(
            host.name, f"its shell answers wrongly: {error}", "is its /bin/sh a POSIX shell?"
        ) from None


def _failure(host: Host, duplex: Bootstrap) -> Exception:
    """Return the error for a dial that ended before its first byte."""
    if duplex.broken:
        return Interrupted(host.name, f"the connection was lost as its node started: {duplex.broken}")
    said = probe.plain(duplex.stderr).strip()
    last = (said.splitlines() or [duplex.ending])[-1][:500]
    ours = [line for line in said.splitlines() if line.startswith("quine: ")]
    if not ours and duplex.exit in BROKEN:
        return _BrokenError(last)
    detail = next((line for line in ours if " error: " in line), last).rpartition("error: ")[2]
    hint = next((line for line in ours if " hint: " in line), "").rpartition("hint: ")[2]
    detail = detail.removeprefix(f"{UNSTARTED}: ")  # there it is the node of this machine
    return Unreachable(host.name, f"its node does not start: {detail}", hint)


async def _close(duplex: Bootstrap) -> None:
    duplex.close()
    await duplex.closed()
