"""The socket of this user's node: its greeting, and a connection to a node that runs; `node.rendezvous` starts one.

A client loads this alone: nearly always there is a node.

Laws
1. The socket's name holds the build hash, so a client never talks to a daemon of another build. After an upgrade the
   old daemon serves its jobs to their end and goes when idle.
2. A client sends its environment and its streams. So it looks whose process the other end is, before it sends a byte.
"""

from __future__ import annotations

import os
import sys

from transport import address, this_build
from transport.errors import Refused
from transport.lean import blake2b, socket

CLIENT, DIAL, STATUS = b"C", b"D", b"S"  # the first byte on a node's socket
TAKEN = b"+"  # the node's answer to a dial: the streams are its own now
UNSTARTED = "the node of this machine does not start"
_SO_PEERCRED = 17  # PyPy has no name for it
SUN_PATH = 100  # bytes of a Unix socket's path; 108 on Linux, 104 on BSD
TRIES = 3  # attempts, each of which may meet a node that ends before it has read a byte


def node_name() -> str:
    """Return a short name of this user's node of this build; its files in the runtime directory begin with it."""
    return blake2b(
        f"{address.home()}\0{address.boot_id()}\0{this_build.build_hash()}".encode(), digest_size=8
    ).hexdigest()


def socket_path() -> str:
    path = f"{address.runtime_directory()}/{node_name()}.sock"
    if len(os.fsencode(path)) > SUN_PATH:
        raise Refused(
            f"the path of the node's socket is too long: {path}", "set XDG_RUNTIME_DIR to a shorter one"
        )
    return path


def try_connect(path: str = "") -> socket.socket | None:
    """A connection to the node, or None if no node listens; path "" is the socket of this build. Raises Refused."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path or socket_path())
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    if (uid := peer_uid(connection)) != os.getuid():
        connection.close()
        why = f"the socket of this machine's node belongs to another user (user id {uid})"
        raise Refused(why, "set XDG_RUNTIME_DIR to a directory of yours alone")
    return connection


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the process that listened at the other end, as the kernel has noted it."""
    option = getattr(socket, "SO_PEERCRED", _SO_PEERCRED)
    credentials: bytes = connection.getsockopt(socket.SOL_SOCKET, option, 12)  # pid, uid, gid
    return int.from_bytes(credentials[4:8], sys.byteorder)


def beside(suffix: str) -> str:
    """Return the path of a file beside the socket."""
    return f"{address.runtime_directory()}/{node_name()}.{suffix}"


def log_path() -> str:
    return beside("log")


def short_lived() -> Refused:
    """The error after TRIES nodes that ended before they had read a byte."""
    return Refused("the node of this machine ends as soon as it is started", f"look at {log_path()}")
