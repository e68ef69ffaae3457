"""`quine doctor HOST…`: every step of the way to a host, from its name to an answer of its node, and the first cure.

Laws
1. The way is that of a job: the steps are those that the dial tells of, and the build is put there if it is missing.
   Only its end is ours, a ping in place of a job.
2. A step is printed when the next one begins, or at an interrupt, so that a dial that hangs shows where. The hosts are
   gone to at the same time; the lines of one wait until the host before it is done.
3. Text of a host is never printed as it came.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from quine.base.errors import NOT_STARTED, OK
from quine.base.text import plain
from quine.cli.visits import carry_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.host import Host
    from deploy.inventory import Inventory

ANSWER = 30.0  # seconds for the node's hello, and for its answer to a ping


def examine(hosts: Sequence[Host], known: Inventory) -> int:
    """Go to all of the hosts; return OK if all of them answer."""
    return OK if all(carry_out(_shown(hosts, known))) else NOT_STARTED


async def _shown(hosts: Sequence[Host], known: Inventory) -> list[bool]:
    """Print the steps of each host, in the order of the hosts; return which of them answer."""
    shown = [Steps(host.name) for host in hosts]
    ways = [asyncio.create_task(_reached(host, known, steps)) for host, steps in zip(hosts, shown)]
    try:
        for steps in shown:
            while line := await steps.lines.get():
                print(line, flush=True)
        return [await way for way in ways]
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for steps in shown:  # empty, unless this was interrupted
            while not steps.lines.empty():
                if line := steps.lines.get_nowait():
                    print(line, flush=True)


async def _reached(host: Host, known: Inventory, steps: Steps) -> bool:
    from deploy import dial
    from transport.errors import Refused

    steps("read its table in the inventory", _settings(host))
    try:
        agent = os.environ.get("SSH_AUTH_SOCK")
        duplex = await dial.look(host, known, ssh_agent=agent, steps=steps, news=steps.news)
        try:
            await _greet(duplex, steps)
        finally:
            duplex.close()
            await duplex.closed()
    except Refused as refused:
        steps.failed(refused.detail, refused.hint)
        return False
    except asyncio.CancelledError:
        steps.failed("interrupted", "")
        raise
    finally:
        steps.end()
        steps.lines.put_nowait("")
    return True


async def _greet(duplex: object, steps: Steps) -> None:
    from transport import this_build
    from transport.carrier.handshake import Greeter, round_trip
    from transport.errors import ProtocolError, Unreachable
    from transport.wire.resume import hello

    steps(step := "speak with the node")
    try:
        facts = {"build": this_build.build_hash(), "node": os.uname().nodename, "pid": os.getpid()}
        greeter = Greeter(duplex, hello(facts, os.urandom(16).hex(), 0, resume=False))  # type: ignore[arg-type]
        peer = await greeter.hello(ANSWER)
        names = ("node", "system", "version", "pid")
        node, system, version, pid = (str(peer.get(name, "?"))[:80] for name in names)
        build = "this build" if peer.get("build") == this_build.build_hash() else "another build"
        steps(step, f"{build}, protocol {version}, {system}, pid {pid} on {node}")
        steps(step := "mount the files tier")
        lacks = str(peer.get("mount", "it does not say whether it can"))[:80]
        steps(step, f"no QUINE_MOUNT there: {lacks}" if lacks else "it can be a directory there: --mount")
        steps(step := "ping the node")
        seconds = await round_trip(greeter, ANSWER)
        steps(step, f"round trip {seconds * 1000:.1f} ms")
    except ProtocolError as error:
        cure = f"remove ~/.cache/quine on {steps.host} to start afresh"
        raise Unreachable(steps.host, f"its node does not answer: {error}", cure) from None


def _settings(host: Host) -> str:
    """Return the way to a host as its table names it."""
    user, port = f"{host.user}@" if host.user else "", f" port {host.port}" if host.port else ""
    return f"{host.transport} to {user}{host.destination}{port}" + (
        f" through {host.jump}" if host.jump else ""
    )


class Steps:
    """The steps of one host as lines for people, the last one empty; a transport.carrier.dialer.Note."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self._name = ""
        self._found: list[str] = []
        self._ok = True
        self._began = time.monotonic()

    def __call__(self, step: str, found: str = "", ok: bool = True) -> None:
        """See Note. A detail of an earlier step belongs to the present one: the two ran at the same time."""
        if not found and step == self._name:
            return
        if not found or not self._name:
            self.end()
            self._name, self._began = step, time.monotonic()
        if found and found not in self._found:
            self._found.append(found)
        self._ok = self._ok and ok

    def news(self, text: str) -> None:
        """A message for the user about a first contact."""
        self(self._name, text)

    def failed(self, detail: str, hint: str) -> None:
        """End with the present step, which is the first that failed for good."""
        self._ok = False
        self._found.append(detail)
        self.end()
        if hint:
            self.lines.put_nowait(f"{'':4}{self.host}: {plain(hint, newlines=False)}")

    def end(self) -> None:
        """End the present step, if there is one."""
        if self._name:
            taken = f"{(time.monotonic() - self._began) * 1000:.0f} ms"
            detail = plain("; ".join(self._found), newlines=False)
            state = "ok" if self._ok else "no"
            self.lines.put_nowait(f"{state}  {self.host}  {self._name:40} {taken:>8}  {detail}".rstrip())
        self._name, self._found, self._ok = "", [], True
