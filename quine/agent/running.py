"""The running session, as its tools and a fork see it: the loop without its own steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.agent.children import Job, Jobs
    from quine.agent.env import Settings
    from quine.agent.session import Life
    from quine.agent.shell import Shell
    from quine.agent.signals import Signals
    from quine.agent.usage import Account
    from quine.base.messages import Message
    from quine.budget.ledger import Ledger
    from quine.tape.writer import Tape
    from transport.status import Status


class Running(Protocol):
    """`quine.agent.loop.Loop`."""

    life: Life
    settings: Settings
    ledger: Ledger
    account: Account
    signals: Signals
    shell: Shell
    jobs: Jobs
    tape: Tape
    messages: list[Message]
    answered: int  # calls of the current reply that have a result
    outputs: str  # directory
    record: str  # directory for its status file if the parent does not wait, else ""
    slots: list[int]
    face: Callable[..., Status]

    def child_ended(self, job: Job) -> None: ...
    def record_end(self, status: int, mode: str, reason: str, **more: Any) -> None: ...
    def disown(self) -> None: ...
