"""The caller's side: the files are here, and what is brought back appears here.

Laws
1. The job over there is started with the files as their wrapper: it lays them out, and then becomes the command.
   What is given back is asked for by a job of its own, after the command has ended in any way.
2. Nothing of this is loaded by a command without --files and --returns; and what is not needed to send the job is
   loaded while it is on its way.
"""

from __future__ import annotations

import os

from quine.base.errors import FAILED, NOT_STARTED
from quine.staging import scan, spec
from transport.client import client
from transport.spawn import Spawn
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from quine.files.select import Services
    from quine.staging.receiver import Taking
    from quine.staging.sender import Giving
    from transport.rpc.incoming import Incoming


class Staging:
    """The files and returns of one job; `folder` is the caller's. Raises Misconfigured for what is not there."""

    def __init__(self, files: list[str], returns: list[str], folder: str, data_dir: str = "") -> None:
        self._folder = os.path.abspath(folder)
        self._sources = spec.sources(files, self._folder)
        self._returns = spec.returns(returns)
        self._data_dir = os.path.join(self._folder, data_dir) if data_dir else ""
        self.key = scan.key_of(*(name for _, name in self._sources))  # of the record that is kept there
        self._giving: Giving | None = None

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
        """client.run of a job that has its files before it starts and gives its returns after it has ended."""
        self._giving = None
        job = Spawn(**spawn.to_json())
        if self._sources:
            phase = "agent" if spawn.own else "in"
            # A directory that is made for this job alone is never laid out again.
            key = scan.ONCE if job.cwd is None and job.tree == job.id else self.key
            job.argv = ["node", "--stage", phase, key, "--", *spawn.argv]
            job.own = True
            assert services, "whoever gives files answers requests"
            services.offer("stage", self._given)
            more["on_sent"] = self._begin
        status = client.run(job, stdin, stdout, stderr, services, **more)
        giving = self._giving
        if giving and giving.failure and (status.state, status.code) == ("exited", NOT_STARTED):
            return Status(
                "unreachable", NOT_STARTED, host=status.host, detail=giving.failure, hint=giving.cure
            )
        if self._returns and status.state in ("exited", "signaled"):
            out = Spawn(
                self.out,
                own=True,
                where=status.host or job.where,
                env=job.env,
                cwd=job.cwd,
                tree=job.tree,
                lease=job.lease,
                context={**job.context, "control": True},
            )
            self.bring(out, status, stderr)
        return status

    def _begin(self) -> None:
        self._giving = self.giving()
        self._giving.look_ahead()

    def _given(self, incoming: Incoming) -> None:
        assert self._giving  # nobody asks before the job was sent
        self._giving.given(incoming)

    def giving(self) -> Giving:
        """The side that gives, for one job."""
        from quine.staging.sender import Giving

        named = [part for pair in self._sources for part in pair]
        leave_out = scan.identity(self._data_dir) if self._data_dir else None
        return Giving(scan.Sources(self._sources, leave_out), scan.key_of(*named))

    def taking(self) -> Taking:
        """The side that takes, for one job."""
        from quine.staging.receiver import Taking

        ours = os.path.relpath(self._data_dir, self._folder) if self._data_dir else ""
        return Taking(self._returns, os.fsencode(self._folder), os.fsencode(ours))

    @property
    def out(self) -> list[str]:
        """The command that gives the returns; with the id of a detached job after it, those of that one's directory."""
        return ["node", "--stage", "out", self.key]

    def bring(self, out: Spawn, status: Status, stderr: int = 2) -> str:
        """Have the returns here, from the job `out`; what is wrong is put into the status. The signal that ended it."""
        taking = self.taking()
        if wrong := taking.bring(out, stderr):
            status.detail = "; ".join(filter(None, [status.detail, wrong]))
            status.code = status.code or FAILED
        if taking.failure and taking.place and not status.hint:
            status.hint = f"what was made is still over there, in {taking.place}"
        return taking.signal
