"""Upload of tapes and results into the shared files, in the layout of a data directory.

Laws
1. Only whole lines of a tape are copied; a file that has not grown is not sent again.
2. The record of a job is copied before its tape, its status after the tape and the output. So a record in the store
   announces a status, and a status means that the rest is there.
3. Output is copied after its end: a growing stream would be sent again and again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import IO

from quine.archive.policy import PLACE
from quine.base.errors import complain
from quine.base.sessions import job_directory, tape_path
from quine.files.api import BLOCK, Tier
from quine.tape import registry
from quine.tape.index import ends, jobs, sessions
from quine.tape.lines import READ, TooLong, opened

RECORD = "job"
RESULTS = (RECORD, "stdout", "stderr", "status")  # in this order


class Copies:
    """The copies of one tree, or with `root` "" of a whole data directory; `detached` has the detached jobs."""

    def __init__(self, tier: Tier, folder: str, detached: str, root: str = "") -> None:
        self._tier = tier
        self._folder = folder
        self._detached = detached
        self._root = root
        self._roots: dict[str, str] = {}  # session -> root
        self._parents: dict[str, str] = {}  # job -> session of its parent
        self._refused: set[str] = set()  # paths in the store of files that cannot be copied
        self._there: dict[str, int] = {}  # path in the store -> bytes copied

    def round(self) -> int:
        """Copy new data, and return the number of files copied. Raises OSError."""
        # Listed first: a job that ends after this has its tape copied now, and its results in the next round.
        ended = [job for job in self._jobs() if os.path.exists(f"{job}/status")]
        sessions = self._sessions()
        begun = sum(self._copy(f"{job}/{RECORD}", f"{_place(job)}/{RECORD}") for job in self._jobs())
        return begun + sum(map(self._tape, sessions)) + sum(map(self._result, ended))

    def _sessions(self) -> list[str]:
        found = []
        for session in sorted(sessions(self._folder)):
            if session not in self._roots and (root := _root_of(tape_path(self._folder, session))):
                self._roots[session] = root
            if self._roots.get(session, "") and self._root in ("", self._roots[session]):
                found.append(session)
        return found

    def _jobs(self) -> Iterator[str]:
        """Yield the directories of the jobs."""
        mine = set(self._sessions())
        # A job that was never started has no tape; its record names its parent.
        started = {job for job in jobs(self._folder) if self._parent(job) in mine}
        for session in sorted(mine | started):
            for place in (self._folder, self._detached):
                directory = job_directory(place, session)
                if registry.is_own(directory):
                    yield directory

    def _parent(self, job: str) -> str:
        if job not in self._parents and (facts := registry.record(job_directory(self._folder, job))):
            self._parents[job] = str(facts.get("parent") or "")
        return self._parents.get(job, "")

    def _tape(self, session: str) -> int:
        return self._copy(tape_path(self._folder, session), tape_path(PLACE, session), lines=True)

    def _result(self, directory: str) -> int:
        target = _place(directory)
        if f"{target}/status" in self._there:
            return 0
        return sum(self._copy(f"{directory}/{name}", f"{target}/{name}") for name in RESULTS)

    def _copy(self, source: str, target: str, lines: bool = False) -> int:
        if target in self._refused or (source_file := self._opened(source, target, lines)) is None:
            return 0
        with source_file as file:
            found = os.fstat(file.fileno())
            before = self._there.get(target, -1)
            if before == found.st_size:
                return 0
            size, rest = 0, b""
            with self._tier.create(target, mode=0o600, mtime=found.st_mtime) as writer:
                while block := file.read(min(BLOCK, found.st_size - size - len(rest))):
                    block = rest + block
                    end = block.rfind(b"\n") + 1 if lines else len(block)
                    writer.write(block[:end])
                    size, rest = size + end, block[end:]
                    if lines and len(rest) > READ:
                        return self._refuse(source, target, str(TooLong()))
                if lines and size <= before:
                    return 0  # only part of a line is new
                writer.commit()
            self._there[target] = size
            return 1

    def _opened(self, source: str, target: str, tape: bool) -> IO[bytes] | None:
        """Return the file; None if it is gone, or something else than a file of the user is in its place."""
        try:
            return opened(source) if tape else open(registry.opened(*os.path.split(source)), "rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EISDIR):
                raise
            self._refuse(source, target, (error.strerror or "").lower())
            return None

    def _refuse(self, source: str, target: str, why: str) -> int:
        """Say once that a file is not copied; the others are."""
        self._refused.add(target)
        complain(f"{source} is not copied: {why}")
        return 0


def _place(directory: str) -> str:
    """Return the path of a job directory in the store."""
    return job_directory(PLACE, os.path.basename(directory))


def _root_of(path: str) -> str:
    """Return the root that a tape names; "" if its first line is not whole yet, or it is no tape of quine."""
    return str(ends(path).meta.get("root_session_id") or "")
