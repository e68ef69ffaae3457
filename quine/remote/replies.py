"""The replies that this end has given to the sessions of a job, to be found again on their tapes.

A host could write another reply on a tape, with a command that nobody asked for: `tape replay` would run it here.

Laws
1. A reply on a tape is compared with those that were given to its session, in their order. Another one is refused.
2. Where none was given (the host infers by itself) or its text was masked on the way, the line is marked as told by the
   host: `told`. Its sender cannot make that mark, nor leave it out.
"""

from __future__ import annotations

from quine.base.messages import Message
from quine.tape.lines import digest
from quine.tape.redact import MASK
from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any

BESIDE = ("timestamp", "usage", "stop", "asked")  # fields of a reply on a tape that are not of its message


class Replies:
    """The replies of one job, by session."""

    def __init__(self) -> None:
        self._given: dict[str, list[str]] = {}

    def give(self, session: str, message: Message) -> None:
        """Note a reply before it is sent."""
        data = quickjson.loads(quickjson.dumps(message.to_json()))
        given = Message.from_json(data).to_json()  # as it is read over there, and written again
        self._given.setdefault(session, []).append(_mark(given))

    def find(self, session: str, data: dict[str, Any], after: int) -> int:
        """Return the number of the reply that this one is, of those after number `after`; 0 if it is as told.

        Raises RequestError if it is another one than was given.
        """
        given = self._given.get(session)
        if given is None:
            return 0
        reply = {name: value for name, value in data.items() if name not in BESIDE}
        try:
            return given.index(_mark(reply), after) + 1
        except ValueError:
            pass
        if MASK in quickjson.dumps(reply):
            return 0
        raise RequestError("tape: a reply that was not given to this session")


def _mark(reply: dict[str, Any]) -> str:
    return digest(quickjson.dumps(reply).encode())
