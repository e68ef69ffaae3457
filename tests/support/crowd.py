"""Many agents at once: a guest that is a small program, a place where agents meet, and what their tapes must hold.

Laws
1. The guest writes a line before and a line after every inference to one file, in append mode: their order is the
   order of events, so the greatest number that were under way is counted, not sampled.
2. An agent reports to a meeting with a line into one FIFO, and waits for a line out of another. The test holds both
   open, so no agent misses the meeting and nothing has to sleep.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab import processes
from tests.lab.machine import readable
from tests.support.agents import Agents

# Inferences meet where a file `meet/<first word of the mission>.<ordinal>` says so.
GUEST = """#!/bin/sh
request=$(cat)
mission=${request#*\\"mission\\":\\"}; mission=${mission%%\\"*}
ordinal=${request#*\\"ordinal\\":}; ordinal=${ordinal%%,*}
echo "+ $QUINE_SESSION_ID $ordinal $mission" >>"$CROWD/log"
reply=$CROWD/replies/${mission%% *}.$ordinal
if [ -e "$reply.meet" ]; then
    exec 9<"$CROWD/desk"; echo "$mission" >"$CROWD/roll"; read -r go <&9
fi
cat "$reply"
echo "- $QUINE_SESSION_ID $ordinal $mission" >>"$CROWD/log"
"""

# Inferences wait at a gate of their own, the desk: a line that lets a command go must not let an inference go.
GATES = ("gate", "door", "desk")


def meet(gate: str = "gate") -> str:
    """Return a command that reports this agent, with its pid, then waits to be let go."""
    return f'exec 9<"$CROWD/{gate}"; echo "$PPID" >"$CROWD/roll"; read -r go <&9; exec 9<&-'


class Crowd(Agents):
    """`with Crowd(directory) as crowd`: agents whose guest answers by the first word of their mission."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.replies = directory / "replies"
        self.log = directory / "log"
        self.mark = f"CROWD={directory}"
        self._fifos: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.replies.mkdir()
        for name in (*GATES, "roll"):
            os.mkfifo(self.directory / name)
            self._fifos[name] = os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        guest = self.directory / "guest"
        guest.write_text(GUEST)
        guest.chmod(0o700)
        self.env |= {"QUINE_API_TYPE": "program", "QUINE_API_BASE": str(guest), "CROWD": str(self.directory)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._fifos.values():
            os.close(fd)
        if kind is not None:
            processes.kill_marked(self.mark)

    def says(self, kind: str, *replies: dict[str, Any], meets: tuple[int, ...] = ()) -> None:
        """Set the answers for missions that begin with `kind`; at the inferences `meets` their agents meet."""
        for ordinal, reply in enumerate(replies):
            path = self.replies / f"{kind}.{ordinal}"
            path.write_text(json.dumps(reply["reply"]))
            if ordinal in meets:
                path.with_name(f"{path.name}.meet").touch()

    def arrive(self, count: int, seconds: float = 60) -> list[str]:
        """Return the lines of the next `count` agents that come to the meeting."""
        deadline = time.monotonic() + seconds
        data = b""
        while data.count(b"\n") < count:
            left = deadline - time.monotonic()
            ready = readable(self._fifos["roll"], max(0, left))
            assert ready, f"{data.count(10)} of {count} have come"
            data += os.read(self._fifos["roll"], 1)  # no more than ours: the next meeting has the same door
        return data.decode().splitlines()

    def nobody_else(self) -> bool:
        """Whether every agent that came to the meeting was counted by `arrive`."""
        return not readable(self._fifos["roll"], 0)

    def let_go(self, count: int = 1000, gate: str = "gate") -> None:
        os.write(self._fifos[gate], b"\n" * count)

    def gone(self, seconds: float = 30) -> bool:
        """Have all agents ended, and all that they had started?"""
        return processes.wait_none(lambda: processes.marked(self.mark), seconds) == []

    def most(self, what: str) -> int:
        """The most inferences ("infer") under way, or agents ("agent") alive, at any one moment."""
        lines = [line.split(" ", 3) for line in self.log.read_text().splitlines()]
        last = {session: number for number, (_, session, *_) in enumerate(lines)}
        now = most = 0
        seen: set[str] = set()
        for number, (sign, session, *_) in enumerate(lines):
            if what == "infer":
                now += 1 if sign == "+" else -1
            elif session not in seen:
                seen.add(session)
                now += 1
            most = max(most, now)
            if what == "agent" and last[session] == number:
                now -= 1
        return most


def broken(path: Path, ended: bool = True) -> str:
    """Return the fault of a tape, or "" if it has none. `ended`: it must end with an outcome and a newline."""
    *lines, torn = path.read_bytes().split(b"\n")
    if torn and ended:
        return f"{path.name}: torn at its end"
    prev, kinds = "", []
    for number, line in enumerate(lines):
        entry = json.loads(line)
        if (entry["seq"], entry["prev"]) != (number, prev):
            return f"{path.name}: line {number} does not follow the one before"
        prev = hashlib.sha256(line).hexdigest()
        kinds.append(entry["type"])
    if ended and (kinds[:1] != ["meta"] or kinds[-1:] != ["outcome"] or kinds.count("outcome") != 1):
        return f"{path.name}: {kinds}"
    return ""
