"""The socket at which the node of a machine listens, and the lock that says which node that is.

Laws
1. A lock has one holder at a time, until that ends.
2. The file system may lose the socket, the lock and their directory, as a logout removes it. Their node makes them
   anew, unless another one was faster.
"""

from __future__ import annotations

import fcntl
import os

from transport import address, node_socket
from transport.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket as Listener

BACKLOG = 1024  # xargs -P 300 must not see a refusal
locks: list[int] = []  # descriptors of those of this node, open as long as it lives


def lock(fd: int) -> bool:
    """Take a lock without waiting; return whether this process has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Door:
    """Where a node listens: a socket that the file system may lose, as a logout removes its directory."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.path = node_socket.socket_path()
        self._inode = os.stat(self.path).st_ino

    def is_there(self) -> bool:
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def reopen(self) -> bool:
        """Listen anew at the same path; return whether that is possible."""
        listener = _bind_again(self.path)
        if listener is None:
            return False
        self.listener.close()
        self.listener, self._inode = listener, os.stat(self.path).st_ino
        return True

    def close(self) -> None:
        if self.is_there():
            os.unlink(self.path)
        self.listener.close()


def _bind_again(path: str) -> Listener | None:
    """Take the lock, if it is not ours still, and listen. None if another node is there, or nothing can be made."""
    try:
        address.private_directory(os.path.dirname(path), "")
        fd = os.open(
            f"{path.removesuffix('sock')}lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        if any(os.path.samestat(os.fstat(fd), os.fstat(held)) for held in locks):
            os.close(fd)
        elif lock(fd):
            locks.append(fd)
        else:
            os.close(fd)
            return None
        return listen(path)
    except (OSError, Refused):
        return None


def listen(path: str) -> Listener:
    """Return a listener at a path, in place of what is there. Raises OSError."""
    import socket

    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.fchmod(listener.fileno(), 0o600)  # its file gets that mode
    listener.bind(path)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
