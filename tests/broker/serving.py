"""Agents whose guest is a server on loopback, with a runtime directory and brokers of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab import processes
from tests.support.agents import OK, Agents, sh
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Seen

FIRST = "first-errand"  # the mission of an agent that a test starts
Plan = dict[str, list[Said | Fault]]
BYE = Said(calls=(OK,))


def said(*commands: str) -> Said:
    return Said(calls=tuple(sh(command) for command in commands))


class Served(Agents):
    """`with Served(directory) as served`: agents that answer by `plan`, the replies of a mission by a word of it."""

    def __init__(self, directory: Path, key: str = KEY) -> None:
        super().__init__(directory)
        self.plan: Plan = {FIRST: [said("echo hi >&4"), BYE], "inner-errand": [said("echo inner >&4"), BYE]}
        self.mark = f"SERVED={directory}"
        self.runtime = directory / "run"
        self.provider = Provider(chat, choose=self.choose)
        self.key = key

    def __enter__(self) -> Self:
        self.runtime.mkdir(mode=0o700)
        self.provider.__enter__()
        name, _, value = self.mark.partition("=")
        self.env |= {
            name: value,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "QUINE_API_TYPE": "openai",
            "QUINE_API_BASE": f"{self.provider.base}/v1",
            "QUINE_API_KEY": self.key,
            "QUINE_MODEL_ID": "m",
            "QUINE_BROKER_IDLE": "60",
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes.kill_marked(self.mark)
        self.provider.__exit__(kind, error, trace)

    def choose(self, seen: Seen) -> Said | Fault:
        system, _, *rest = seen.body["messages"]
        plan = next(plan for word, plan in self.plan.items() if word in system["content"])
        return plan[sum(message["role"] == "assistant" for message in rest)]

    def brokers(self) -> list[int]:
        """Return the pids of keepers and workers, each keeper before its worker."""
        found = [each for each in processes.marked(self.mark, brokers=True) if each.broker]
        keepers = [each.pid for each in found if each.ppid not in {other.pid for other in found}]
        return [pid for keeper in keepers for pid in (keeper, *(e.pid for e in found if e.ppid == keeper))]

    def kill(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def sockets(self) -> list[Path]:
        return sorted(self.runtime.rglob("*.broker"))


class Careless:
    """A server that wants no key."""

    def __init__(self, vendor: Any) -> None:
        self._vendor = vendor

    def check(self, *_: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vendor, name)


def gone(pids: list[int], seconds: float = 60) -> bool:
    """Have all these processes ended?"""
    found = [process for process in map(processes.find, pids) if process]
    return not processes.wait_gone(found, seconds)
