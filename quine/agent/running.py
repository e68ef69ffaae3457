"""A running session, as its tools and a fork see it: the loop without its own steps; and what its process gives it."""

from __future__ import annotations

from transport.lean import Any, NamedTuple, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.agent.children import Job, Jobs
    from quine.agent.env import Settings, Tree
    from quine.agent.origin import Ask
    from quine.agent.session import SessionSpec
    from quine.agent.shell import Shell
    from quine.agent.signals import Signals
    from quine.agent.usage import Account
    from quine.base.log import Log
    from quine.base.messages import Guest, Message, ToolCall
    from quine.budget.ledger import Ledger
    from quine.providers.metering import Price
    from quine.tape.writer import Tape
    from transport.status import Status

    # Runs a session on another machine with streams of this process; returns how it ended: quine.remote.compose.proxy
    Proxy = Callable[..., Status]


class Process(NamedTuple):
    """The things that all sessions of one process share."""

    settings: Settings
    tree: Tree
    guest: Guest
    price: Price | None
    ask: Ask | None  # None if this process is its own origin
    signals: Signals
    proxy: Proxy


class Running(Protocol):
    """`quine.agent.loop.Loop`."""

    spec: SessionSpec
    settings: Settings
    tree: Tree
    ledger: Ledger
    account: Account
    signals: Signals
    shell: Shell
    jobs: Jobs
    tape: Tape
    log: Log
    messages: list[Message]
    answered: int  # calls of the current reply that have a result
    cut: ToolCall | None  # the call of the current reply that the limit of its output may have cut
    outputs: str  # directory
    warned: bool  # told at an `exit` what would be cut
    record: str  # directory for its status file if the parent does not wait, else ""
    slots: list[int]
    relayed: bool  # the origin of the tree is another machine
    proxy: Callable[..., Status]

    def child_ended(self, job: Job) -> None: ...
    def record_end(self, status: int, mode: str, reason: str, **more: Any) -> None: ...
    def disown(self) -> None: ...
