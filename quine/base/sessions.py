"""Names of sessions: a UUID of version 7, which is also a part of an argv and a name in a data directory."""

from __future__ import annotations

import os
import time

SHORT = 18  # characters of an id in a table: its time, and enough of its random part
SHOWN = 4096  # characters of a mission in an argv
TAPE = ".jsonl"  # suffix of the file name of a tape
LEDGER = "quine-ledger"  # the memory file that the processes of a tree share
JOB = 2  # names of a job's directory, or of an agent's outputs, below the data directory
COURIER = "courier"  # in the memo of a job that infers by itself: its socket, and the folder of its tapes


def new_session() -> str:
    """Return a UUID of version 7: random, sorted by the millisecond of its creation."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    number = number & ~(0xF << 76) | 7 << 76
    number = number & ~(0x3 << 62) | 2 << 62
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def created(session: str) -> float:
    """Return the time that is in the name of a session: its creation, in seconds since the epoch."""
    return int(session[:8] + session[9:13], 16) / 1000


def is_session(text: object) -> bool:
    """A UUID in its one spelling; a session is also a file name, so nothing else may pass."""
    if not isinstance(text, str) or len(text) != 36:
        return False
    dashes = text[8] == text[13] == text[18] == text[23] == "-" and text.count("-") == 4
    return dashes and not text.replace("-", "").strip("0123456789abcdef")


def tape_path(folder: str, session: str) -> str:
    """Return the path of a session's tape in a data directory."""
    return os.path.join(folder, f"{session}{TAPE}")


def job_directory(folder: str, session: str) -> str:
    """Return the directory, in a data directory, of the output and the status of a job."""
    return os.path.join(folder, "jobs", session)


def outputs_directory(folder: str, session: str) -> str:
    """Return the directory, in a data directory, of the long outputs of an agent's commands."""
    return os.path.join(folder, "outputs", session)
