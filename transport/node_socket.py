"""The socket of this user's node: its greeting, and a connection to a node that runs; `node.rendezvous` starts one.

A client loads this alone: nearly always there is a node.
"""

from __future__ import annotations

from transport import address
from transport.errors import Refused
from transport.lean import socket

CLIENT, DIAL, STATUS = b"C", b"D", b"S"  # the first byte on a node's socket
TAKEN = b"+"  # the node's answer to a dial: the streams are its own now
TRIES = 3  # attempts, each of which may meet a node that ends before it has read a byte


def try_connect(path: str = "") -> socket.socket | None:
    """A connection to the node, or None if no node listens; path "" is the socket of this build."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path or address.socket_path())
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def beside(suffix: str) -> str:
    """Return the path of a file beside the socket."""
    return f"{address.runtime_directory()}/{address.node_name()}.{suffix}"


def log_path() -> str:
    return beside("log")


def short_lived() -> Refused:
    """The error after TRIES nodes that ended before they had read a byte."""
    return Refused("the node of this machine ends as soon as it is started", f"look at {log_path()}")
