"""A connection to the node of this machine, which is started first if there is none."""

from __future__ import annotations

from transport import node_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.lean import socket


def connect() -> socket.socket:
    """Connect to the node. Raises Refused."""
    if connection := node_socket.try_connect():
        return connection
    from transport.node import rendezvous  # loaded only then: most clients find a node

    return rendezvous.connect()
