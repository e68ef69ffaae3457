"""The launcher process as its node holds it: the process, the channel to it, and the table that both have open.

Laws
1. The launcher is the node's child. The node is a subreaper: it inherits the jobs of a launcher that was killed, and
   with them their true status.
2. The first launcher is a subreaper, too, and reaps the orphans of jobs. Its replacement is none, because that would
   cost a fork of the node; the node reaps those orphans itself.
3. A launcher is always a program of its own: small, and with a command line that names it.
"""

from __future__ import annotations

import os
import resource
import time

from transport import inherit, this_build
from transport.launcher.table import Table, say
from transport.lean import signal, socket


class Beside:
    """One launcher after the other. While there is none, `pid` is 0 and `channel` is None."""

    def __init__(self) -> None:
        self.table = Table.create()
        self.pid = 0
        self.pidfd = -1
        self.channel: socket.socket | None = None
        self.born = 0.0
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def begin(self) -> None:
        """Start the first launcher. Call it early, while this process is small and has one thread."""
        inherit.adopt_orphans()
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            try:
                inherit.adopt_orphans()
                for fd in (self.table.fd, far.fileno()):
                    os.set_inheritable(fd, True)
                command = self._command(far)
                os.execv(command[0], command)
            except OSError as error:
                say(f"the launcher does not start: {error}")
            finally:
                os._exit(1)
        far.close()
        self._attach(pid, near)

    def again(self) -> None:
        """Start another launcher. Raises OSError."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            for fd in (self.table.fd, far.fileno()):
                os.set_inheritable(fd, True)
            command = self._command(far)
            self._attach(os.posix_spawn(command[0], command, os.environ, setsigmask=[]), near)
        except OSError:
            near.close()
            raise
        finally:
            far.close()
            os.set_inheritable(self.table.fd, False)

    def forget(self) -> None:
        """The launcher has ended: reap it, and release its descriptors."""
        os.close(self.pidfd)
        if self.channel:
            self.channel.close()
        os.waitpid(self.pid, 0)
        self.pid, self.pidfd, self.channel = 0, -1, None

    def _attach(self, pid: int, near: socket.socket) -> None:
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:
            # Killed before it sees its channel closed and concludes that this node is gone.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.pid, self.channel = pid, near
        self.born = time.monotonic()

    def _command(self, far: socket.socket) -> list[str]:
        words = (self.table.fd, far.fileno(), self._files)
        return [*this_build.own_command(), "node", "--launcher", *map(str, words)]
