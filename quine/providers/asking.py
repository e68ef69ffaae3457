"""The body of an `infer` request, checked: as a remote agent sends it to its origin, and an agent to its broker.

Law: nothing of it is trusted. Types and sizes are bounded, and a conversation that cannot be read is refused.
"""

from __future__ import annotations

from quine.base.messages import DEEPEST, Message, Request, too_deep
from quine.base.strict import Strict, integer, items, mapping, number, text
from quine.tape.writer import AHEAD
from transport.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from quine.base.messages import Tool

MOST = 10**9  # tokens, dollars


class Infer(Strict):
    """`known` is a lower bound of the prompt in tokens, with the tools. Without `model`: that of the tree.

    `tape`: lines for the tape of the session, which come before the inference; AHEAD bytes have a few hundred at most.
    """

    session: str = text(36)
    mission: str = text()
    ordinal: int = integer(1_000_000)
    wisdom: dict[str, str] = mapping(text())
    messages: list[dict[str, Any]] = items(mapping(), 100_000)
    output: int = integer(MOST, default=0)
    cost: float = number(MOST, default=0.0)
    known: int = integer(MOST, default=0)
    model: str = text(200, default="")
    tape: list[str] = items(text(AHEAD), 1000, default=())

    def conversation(self) -> list[Message]:
        """Raises RequestError."""
        try:
            return [_message(message) for message in self.messages]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RequestError(f"infer: not a conversation: {str(error)[:200]}") from None

    def request(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Request:
        return Request(
            messages,
            tools,
            self.session,
            self.mission,
            self.ordinal,
            self.wisdom,
            self.output,
            self.cost,
            self.model,
        )


def _message(data: dict[str, Any]) -> Message:
    if not isinstance(data.get("content"), str):
        raise TypeError("content is no text")
    message = Message.from_json(data)
    if any(too_deep(call.args, DEEPEST) for call in message.tool_calls):
        raise ValueError("arguments that nest too deep")
    return message
