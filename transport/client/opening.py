"""The first bytes of a client in one write: its kind, the greeting, its hello and the spawn.

Laws
1. They are the bytes that the session makes for the same spawn (`Wire.skip` proves it), made without the session.
2. Nothing is sent here for a spawn that cannot be sent, that has a terminal or that is large: the proxy does it, and
   reports what is wrong.
"""

from __future__ import annotations

import os

from transport import this_build
from transport.errors import ProtocolError
from transport.node_socket import CLIENT
from transport.wire.frames import GREETING, MAX_PAYLOAD, Kind, first_frame, header, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.lean import socket
    from transport.spawn import Spawn

FIRST = 1  # the number of the first channel of a client


def send(connection: socket.socket, spawn: Spawn) -> bytes:
    """Send the first bytes on a fresh connection and return them; b"" if none were sent.

    A node that ends at this moment is found out by reading.
    """
    if spawn.terminal:
        return b""
    body = spawn.to_json()
    try:
        type(spawn).from_json(body)
        payload = pack(body, MAX_PAYLOAD)
    except (ProtocolError, ValueError):
        return b""
    hello = first_frame({"build": this_build.build_hash(), "pid": os.getpid()})
    first = CLIENT + GREETING + hello + header(Kind.SPAWN, FIRST, 0, 0, len(payload)) + payload
    try:
        connection.sendall(first)  # less than a fresh socket takes at once
    except (BrokenPipeError, ConnectionResetError):
        pass
    return first
