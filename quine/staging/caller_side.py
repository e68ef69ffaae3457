"""The caller's side of staging: it has the files, and the returns appear here.

Laws
1. Staging wraps the remote job: it lays out the files, and then becomes the command. A separate job sends the returns
   after the command has exited or was killed.
2. A command without --files and --returns loads none of this. Modules that sending the job does not need are loaded
   while it is in transit.
"""

from __future__ import annotations

import os
from copy import copy

from quine.base.errors import FAILED, NOT_STARTED, say
from quine.staging import scan, spec
from transport.client import client
from transport.spawn import Spawn
from transport.status import Status, clip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from quine.files.select import Services
    from quine.staging.files_sender import Giving
    from quine.staging.returns_receiver import Taking
    from transport.rpc.incoming import Incoming


class Staging:
    """The files and returns of one job; `folder` is the caller's directory. Raises Misconfigured for a bad name."""

    def __init__(self, files: list[str], returns: list[str], folder: str, data_dir: str = "") -> None:
        self._folder = os.path.abspath(folder)
        self.sources = spec.sources(files, self._folder)  # (path, name over there)
        self._returns = spec.returns(returns)
        self._data_dir = os.path.join(self._folder, data_dir) if data_dir else ""
        self.key = scan.key_of(*(name for _, name in self.sources))  # of the record on the remote host
        self._giving: Giving | None = None
        self._moves = True

    def in_place(self, files: Sequence[str]) -> Staging:
        """Return the staging of a job in the caller's directory: nothing moves. Raises Misconfigured for FROM:NAME."""
        spec.check_names(files, self._folder)
        found = copy(self)
        found._moves, found.sources = False, []
        return found

    def run(
        self,
        spawn: Spawn,
        stdin: int = 0,
        stdout: int = 1,
        stderr: int = 2,
        *,
        services: Services | None,
        **more: Any,
    ) -> Status:
        """Run a job by `client.run`; stage its files before it starts, and fetch its returns after it has ended."""
        job = self.dressed(spawn, services)
        if self.sources:
            more["on_sent"] = self.begin
        status = self.judged(client.run(job, stdin, stdout, stderr, services, **more))
        if self.brings(status):
            self.bring(self.sender(job, status), status, stderr)
        return status

    def dressed(self, spawn: Spawn, services: Services | None) -> Spawn:
        """Return the job that lays out the files and then becomes that of `spawn`. `services` answer its requests."""
        self._giving = None
        job = Spawn(**spawn.to_json())
        if self.sources:
            phase = "agent" if spawn.own else "in"
            # A directory made for this job alone is never staged again, so it needs no record.
            key = scan.ONCE if job.cwd is None and job.tree == job.id else self.key
            job.argv = ["node", "--stage", phase, key, "--", *spawn.argv]
            job.own = True
            assert services, "whoever gives files answers requests"
            services.offer("stage", self._given)
        return job

    def judged(self, status: Status) -> Status:
        """Return how the job has ended, or that it was not started because it could not have its files."""
        giving = self._giving
        if giving and giving.failure and (status.state, status.code) == ("exited", NOT_STARTED):
            host = "" if giving.is_ours else status.host  # "": no host is to blame, and none would have them
            return Status("unreachable", NOT_STARTED, host=host, detail=giving.failure, hint=giving.cure)
        if not self._moves and status.state in ("exited", "signaled"):
            self._spoil(status, spec.not_there(spec.matching(self._returns, self._folder)[1]))
        return status

    def brings(self, status: Status) -> bool:
        """Whether there are files to be brought back."""
        return self._moves and bool(self._returns) and status.state in ("exited", "signaled")

    def sender(self, job: Spawn, status: Status) -> Spawn:
        """Return the job that sends the returns of `job`."""
        return Spawn(
            self.out,
            own=True,
            where=status.host or job.where,
            env=job.env,
            cwd=job.cwd,
            tree=job.tree,
            lease=job.lease,
            context={**job.context, "control": True},
        )

    def begin(self) -> None:
        """The job is on its way: prepare its files, in a thread."""
        if self.sources:
            self._giving = self.giving()
            self._giving.look_ahead()

    def _given(self, incoming: Incoming) -> None:
        assert self._giving  # the first request comes after the job was sent
        self._giving.given(incoming)

    def giving(self) -> Giving:
        """Return the sender of one job."""
        from quine.staging.files_sender import Giving

        named = [part for pair in self.sources for part in pair]
        leave_out = scan.identity(self._data_dir) if self._data_dir else None
        return Giving(scan.Sources(self.sources, leave_out), scan.key_of(*named))

    def taking(self) -> Taking:
        """Return the receiver of one job."""
        from quine.staging.returns_receiver import Taking

        ours = os.path.relpath(self._data_dir, self._folder) if self._data_dir else ""
        return Taking(self._returns, os.fsencode(self._folder), ours)

    @property
    def out(self) -> list[str]:
        """The command that sends the returns. With a detached job's id appended, it uses that job's directory."""
        return ["node", "--stage", "out", self.key]

    def bring(self, out: Spawn, status: Status, stderr: int = 2) -> str:
        """Fetch the returns by the job `out`; put errors into `status`. Return the signal that ended `out`, or ""."""
        taking = self.taking()
        taking.bring(out, stderr)
        self.brought(taking, status)
        say(taking.note(status.host), stderr)
        return taking.signal

    def brought(self, taking: Taking, status: Status) -> None:
        """Put the error of returns that did not come, if any, into `status`."""
        self._spoil(status, taking.fault)
        if taking.failure and taking.place and not status.hint:
            status.hint = f"the results are still on the host, in {taking.place}"

    @staticmethod
    def _spoil(status: Status, fault: str) -> None:
        if fault:
            status.detail = clip("; ".join(filter(None, [status.detail, fault])))
            status.code = status.code or FAILED
