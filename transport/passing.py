"""Passing a streaming request on: what asks here is asked further up, piece by piece, both directions at once.

Laws
1. Nothing is kept: a window here and a window there, so who is slow at either end stops the other one.
2. What ends one side ends the other: an answer that comes before the body was whole, an asker that has gone, an error.
"""

from __future__ import annotations

import threading

from transport.errors import Abandoned, RequestError
from transport.outgoing import ROUND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.incoming import Incoming
    from transport.outgoing import Asked


def pass_on(incoming: Incoming, asked: Asked, head: bytes = b"") -> None:
    """For a handler of `incoming`: answer it with what `asked` is answered. Raises what the handler is to raise.

    `head` is what the handler has read of the body already.
    """
    with asked:
        threading.Thread(target=_up, args=(incoming, asked, head), name="passing", daemon=True).start()
        while data := asked.read(ROUND):
            incoming.write(data)


def _up(incoming: Incoming, asked: Asked, data: bytes) -> None:
    """The body, and then the news that nobody waits any more."""
    try:
        while data or (data := incoming.read(ROUND)):
            asked.write(data)
            data = b""
        asked.end()
        if incoming.wait():
            asked.close()
    except Abandoned:
        asked.close()
    except (BrokenPipeError, RequestError):
        pass  # who reads the answer hears why
