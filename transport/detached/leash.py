"""The leash of a detached job: a pipe by which the kernel ends the job when its supervisor is gone."""

from __future__ import annotations

import fcntl
import os
import select
import signal

from transport import inherit
from transport.status import NOT_STARTED


class Leash:
    """Made by the supervisor. `fd` is the reading end, which the job has, too; `held` the writing end."""

    def __init__(self) -> None:
        low, self.held = os.pipe2(os.O_CLOEXEC)
        self.fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, inherit.FIRST_FD)
        os.close(low)

    def arm(self) -> None:
        """In the job, before its exec: have the kernel send TERM to its group when the supervisor is gone.

        The kernel sends it when the writing end of the leash is closed, which the supervisor alone holds. The job holds
        the reading end too, so that it outlives the supervisor.
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the supervisor's handler would swallow it
        fcntl.fcntl(self.fd, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | fcntl.FASYNC)
        os.close(self.held)
        poll = select.poll()
        poll.register(self.fd, 0)
        if poll.poll(0):
            os._exit(NOT_STARTED)  # the supervisor has already gone

    def disarm(self) -> None:
        """Cancel the TERM: processes that the job left in the background are meant to go on."""
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) & ~fcntl.FASYNC)
