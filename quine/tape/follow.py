"""`quine tape show --follow`: the entries of a session as they are written, until it has ended.

Laws
1. An entry is shown once its line is whole. All entries written before the process ended are shown, with or without an
   outcome.
2. A session ends with its outcome, or with its process; an exec that failed is followed by more of the same session.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from quine.base import procs
from quine.tape import registry
from quine.tape.index import Index, sessions
from quine.tape.lines import lines_of, opened, parse
from quine.tape.reader import find
from quine.tape.render import text_of, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


INTERVAL = 0.2  # seconds between two reads of a growing tape


def follow(folder: Path, session: str = "") -> Iterator[str]:
    """Yield the text of each entry; if the session has ended or runs elsewhere, of the entries that are here."""
    one = find(folder, session)
    held = _held(folder, one.id)
    try:
        with opened(str(one.path)) as file:
            number = 0
            last: dict[str, Any] = {}
            while True:
                # Checked before reading, so that the last lines of an ended process are still read.
                over = procs.wait(held, 0)
                for line in lines_of(file):
                    if not line.endswith(b"\n"):
                        file.seek(-len(line), os.SEEK_CUR)  # only half a line yet
                        break
                    number += 1
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
    """Return pidfds of the process that runs this session; none if it has ended or is not on this machine."""
    first = Index(str(folder)).lives(session)[0]
    found = registry.find(first, str(folder), registry.state_directory())
    return [fd for agent in found if agent.session == session for fd in agent.holds()]


def _is_last(entry: dict[str, Any], folder: Path) -> bool:
    """Return True if no entry of this session can follow.

    More may follow the outcome of an exec, if the exec failed. It succeeded if there is a tape of the next session.
    """
    if entry.get("type") != "outcome":
        return False
    data = entry["data"]
    return data.get("termination_mode") != "exec" or str(data.get("to")) in sessions(str(folder))
