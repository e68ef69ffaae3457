"""The interfaces of a job: to its link and its requests, which the node has, and to the launcher that starts it.

Laws
1. This module has no behaviour: `Order` is a value, the others are protocols. A node is given a `Launcher`, and a
   script can stand in its place.
2. `start` and the methods of a `Running` return at once, and touch no file system. All events come as calls of the
   `Owner`, from the event loop, never from within `start`.
3. An owner is called in this order: `on_started` or `on_not_started`; after `on_started` once `on_exited`; after that
   once `on_gone`, if `Running.end` was called before, or once `on_left`, if not and there is a folder. Nothing else
   comes after `on_not_started`. While the process runs, `on_signalled` comes once all signals so far were sent.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from transport.status import Status
    from transport.wire.session import Session

    class Link(Protocol):
        """`transport.node.link.Link`, as a job uses it."""

        session: Session
        name: str
        dead: str  # the reason, or ""
        down: str  # the same, of a line without a connection at the moment
        down_since: float  # of the loop's clock

        @property
        def remote(self) -> bool: ...
        def wake(self) -> None: ...

    class Asked(Protocol):
        """A request or a spawn of the job that is under way: `transport.node.relay.Relay`."""

        def revoke(self, why: str) -> None: ...

    class Owner(Protocol):
        """The object that wants a process, and gets its events."""

        def on_started(self) -> None:
            """The process runs: `pid` and the three descriptors of the `Running` are valid."""

        def on_not_started(self, status: Status) -> None:
            """The process has not started; the status says why. `lost`: it may have started; it is ended."""

        def on_signalled(self) -> None:
            """All signals of `Running.signal` and `Running.end` were sent. Does not come after `on_exited`."""

        def on_exited(self, status: Status) -> None:
            """The process has ended. `lost`: its exit status cannot be known."""

        def on_left(self, kept: bool) -> None:
            """The folder was released, after as long as the file system takes.

            `kept`: it was empty before, the last job has left it, and something is in it.
            """

        def on_gone(self) -> None:
            """No process of the session is left after `Running.end`, or SIGKILL was sent to the rest."""

    class Running(Protocol):
        """One process: a handle that `start` returns at once, and that stays valid.

        `pid` is 0 until it has started. `stdin`, `stdout` and `stderr` are the near ends of its pipes, or two
        descriptors of its terminal and an empty pipe. If its stdout and stderr are one pipe, `stderr` is an empty
        one, too. They belong to the owner from `on_started` on.
        """

        pid: int
        stdin: int
        stdout: int
        stderr: int

        def signal(self, number: int) -> None:
            """Send a signal to the process group, soon; one that has ended is no error.

            A launcher that dies at that moment may have sent it already: it is sent again rather than never.
            """

        def end(self, hung_up: bool = False) -> None:
            """TERM and CONT to the group, a pause (`termination.PAUSE`), KILL to everything of the session.

            A process that has not started yet is ended once it has. A second call, or one after `on_exited`, does
            nothing. With `hung_up` there is no TERM: the owner has closed the terminal.
            """

    class Launcher(Protocol):
        """Starts processes, and ends them with their descendants."""

        @property
        def pid(self) -> int:
            """Pid of the launcher process, which ends the jobs if the node is killed; 0 if there is none now."""

        def watch(self) -> None:
            """Keep a launcher process running from now on. Call it from within the loop, before the first `start`."""

        def start(self, order: Order, owner: Owner) -> Running:
            """Start a process; `owner` gets its events."""

        async def close(self) -> None:
            """Stop watching the launcher process: the node ends, and has ended its jobs before."""


class Order:
    """One process to start.

    argv      the command to execute; with `own`, arguments of this very program
    env       its whole environment, but for the variable that names the memo
    cwd       absolute directory to start in
    folder    directory to make before, and to remove after its end if it is empty; "" for none. `cwd` is in it
    limits    (RLIMIT_*, value) pairs
    memo      values for the process and its descendants, see `inherit`
    hurry     news of its start do not wait for those of its end: its stdin has bytes, or may have
    deadline  seconds that it may run, 0 for no limit: see `deadline.py`
    size      (rows, columns) of the terminal that it gets in place of three pipes, or None
    merged    its stdout and its stderr are one pipe
    umask     its umask, -1 for that of the node
    """

    __slots__ = (
        "argv",
        "cwd",
        "deadline",
        "env",
        "folder",
        "hurry",
        "limits",
        "memo",
        "merged",
        "own",
        "size",
        "umask",
    )

    def __init__(
        self,
        argv: list[str],
        env: Mapping[str, str],
        cwd: str,
        memo: Mapping[str, object],
        *,
        folder: str = "",
        limits: list[tuple[int, int]] | None = None,
        own: bool = False,
        size: tuple[int, int] | None = None,
        deadline: float = 0.0,
    ) -> None:
        self.deadline = deadline
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.memo = memo
        self.folder = folder
        self.limits = limits or []
        self.own = own
        self.size = size
        self.hurry = True
        self.merged = False
        self.umask = -1
