"""One request of the client to the service `fs`: the words of its stream, and the errors that they stand for."""

from __future__ import annotations

import contextlib
import errno

from quine.files.api import OutcomeUnknown
from quine.files.wire import protocol
from quine.files.wire.protocol import LONGEST_TOLD, Garbled
from transport import quickjson
from transport.errors import RequestError, RequestLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from transport.rpc.outgoing import Asked

UNKNOWN = OutcomeUnknown.TEXT


def say(asked: Asked, request: bytes, path: str, unknown: str = "") -> None:
    """Send a whole request. If the origin stops reading early, its answer still has the reason, so go on."""
    with contextlib.suppress(BrokenPipeError):
        with translated(path):
            asked.write(request)
        with translated(path, unknown):
            asked.end()


def receive(asked: Asked, path: str, unknown: str = "") -> dict[str, Any]:
    """Read the next message of the answer; if it is an error, raise that."""
    with translated(path, unknown):
        answer = protocol.heard(asked.read, LONGEST_TOLD)
        if protocol.is_error(answer):
            asked.read(1)  # read up to the end, so that the connection can be used again
        return protocol.check(answer, path)


def ended(asked: Asked, path: str, unknown: str = "") -> None:
    """Read up to the end of the answer, so that the connection can be used again. Raises EIO if more bytes come."""
    with translated(path, unknown):
        if asked.read(1):
            raise Garbled("more than it should be")


@contextlib.contextmanager
def translated(path: str, unknown: str = "") -> Iterator[None]:
    try:
        yield
    except Garbled as error:
        raise garbled(error, path) from None
    except RequestError as error:
        text = str(error)
        if text.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError, Garbled):
                body = quickjson.loads(text)
                if isinstance(body, dict):
                    protocol.check(body, path)
        if unknown and isinstance(error, RequestLost):
            raise OutcomeUnknown(errno.ENOTCONN, f"{text}; {unknown}", path) from None
        raise OSError(errno.ENOTCONN, text, path) from None


def garbled(error: Garbled, path: str) -> OSError:
    return OSError(errno.EIO, f"the origin does not answer as it should: {error}", path)
