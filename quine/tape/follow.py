"""`quine tape show --follow`: the entries of a session as they are written, until it has ended.

Laws
1. An entry is shown once its line is whole. All that was written before the process ended is shown, with or without an
   outcome.
2. A session ends with its outcome, or with its process; an exec that failed is followed by more of the same session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quine.base import procs
from quine.tape import registry
from quine.tape.index import Index
from quine.tape.reader import find
from quine.tape.render import text_of, unreadable
from quine.tape.writer import parse

INTERVAL = 0.2  # seconds between two looks at a growing tape


def follow(folder: Path, session: str = "") -> Iterator[str]:
    """The text of each entry. A session that has ended, or lives on another machine, is shown as far as it is here."""
    one = find(folder, session)
    held = _held(folder, one.id)
    try:
        with open(one.path, "rb") as file:
            number, begun = 0, b""
            last: dict[str, Any] = {}
            while True:
                # Looked at first: what is written until then is read after it.
                over = procs.wait(held, 0)
                while line := file.readline():
                    begun += line
                    if not begun.endswith(b"\n"):
                        break  # half a line, so far
                    number, line, begun = number + 1, begun, b""
                    if line.strip():
                        last = parse(line)
                        yield text_of(last, number)
                if over or _is_last(last, folder):
                    return
                procs.wait(held, INTERVAL)
    except (OSError, ValueError) as error:
        raise unreadable(error) from None
    finally:
        for pidfd in held:
            os.close(pidfd)


def _held(folder: Path, session: str) -> list[int]:
    """Pidfds of the process that lives this session now; none where it is over, or not of this machine."""
    first = Index(str(folder)).lives(session)[0]
    found = registry.find(first, str(folder), registry.state_directory())
    return [fd for agent in found if agent.session == session for fd in agent.holds()]


def _is_last(entry: dict[str, Any], folder: Path) -> bool:
    """Does nothing of this session follow the entry? Behind the outcome of an exec that failed more may come: it has
    not failed if there is a tape of the next session.
    """
    if entry.get("type") != "outcome":
        return False
    data = entry["data"]
    return data.get("termination_mode") != "exec" or f"{data.get('to')}.jsonl" in os.listdir(folder)
