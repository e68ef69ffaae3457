"""The wire between a client and its broker: frames of JSON on a Unix socket, and the proof that both hold one key.

    broker: {"nonce"}                     as soon as it has taken the connection
    client: {"nonce", "proof"}            if it holds the keys
    broker: {"proof"}
    client: {"build", "env", "mark", "concurrent", "limited"} and the descriptors of its ledger and purses
    broker: {"kind", "model"} or {"error", "detail", "hint"}
    client: an inference, as remote agents ask for it
    broker: {"note"} for each retry, then the reply or the error of the guest; then the next inference

Any process of the user may ask for something else in place of the proof, and is answered once:

    client: {"ask": "status"}                the keys by name, and the gates
    client: {"ask": "raise", "purse", "limits"}  higher limits of a purse, asked for by a process that is not below it
    client: {"ask": "detach", "supervisor"}  the asker's agent has detached a job, or does not wait for a child, which
                                             may infer when that agent has ended. Any process below may say so, of any
                                             process that is below, too
    client: {"ask": "resume", "tree"}        a tree that is paused for a quota asks its provider again; 0: all of them

Laws
1. A key crosses in neither direction. A proof holds for one connection: it covers the nonces of both ends and the
   pids that the kernel names, so one that was passed on is worthless.
2. A frame is bounded. One inference is under way on a connection; a client that closes it has cancelled that.
"""

from __future__ import annotations

import os
import struct

from transport import quickjson
from transport.lean import blake2b, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from transport.lean import socket

SIZE = struct.Struct(">I")
LONGEST = 256 << 20  # bytes of a frame: a reply of the longest stream that a provider may send
LONGEST_HELLO = 1 << 20  # and of what a prover or a broker tells
LONGEST_GREETING = 1 << 16  # of what a client tells before it is admitted: its variables and tools
LONGEST_ADDRESS = 107  # bytes
SUFFIX = ".broker"  # of the socket's name; each .sock there is taken for that of a node, and asked as one
MOST_PURSES = 16  # that a client hands over, the innermost ones
NOTE = b'{"note"'
CREDENTIALS = struct.Struct("iII")  # pid, uid and gid, as the kernel names them
_SO_PASSCRED, _SO_PEERCRED, _SOL_SOCKET, _SCM_RIGHTS, _SCM_CREDENTIALS = 16, 17, 1, 1, 2


def frame(body: bytes) -> bytes:
    return SIZE.pack(len(body)) + body


def packed(value: object) -> bytes:
    return frame(quickjson.dumps(value).encode())


def proof(key: bytes, label: str, nonces: tuple[str, str], pids: tuple[int, int]) -> str:
    """Return the proof of one end, `client` or `broker`, that it holds `key`. Both ends give nonces and pids alike."""
    text = quickjson.dumps([label, *nonces, *pids]).encode()
    return str(blake2b(text, key=key, digest_size=32).hexdigest())


def same(one: str, other: str) -> bool:
    """Compare a foreign proof with the right one, in a time that tells nothing where the interpreter can."""
    with contextlib.suppress(ImportError):
        from _operator import _compare_digest

        return bool(_compare_digest(one.encode("utf-8", "replace"), other.encode()))
    return one == other


def nonce() -> str:
    return os.urandom(16).hex()


def peer(line: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end, as the kernel noted them."""
    pid, uid, _ = CREDENTIALS.unpack(line.getsockopt(_SOL_SOCKET, _SO_PEERCRED, CREDENTIALS.size))
    return pid, uid


def name_senders(line: socket.socket) -> None:
    """Have the kernel name the sender of all that comes from now on, see `sender`."""
    line.setsockopt(_SOL_SOCKET, _SO_PASSCRED, 1)


def sender(messages: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the pid of the process that has sent data which came with these messages; 0 if the kernel names none."""
    for level, kind, value in messages:
        if (level, kind) == (_SOL_SOCKET, _SCM_CREDENTIALS) and len(value) == CREDENTIALS.size:
            return int(CREDENTIALS.unpack(value)[0])
    return 0


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """Yield a name of `path` that is short enough for the address of a socket. Raises OSError."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield path
        return
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def send(line: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send all of `data`, with these descriptors. Raises OSError."""
    if fds:
        sent = line.sendmsg([data], [(_SOL_SOCKET, _SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))])
        data = data[sent:]
    if data:
        line.sendall(data)


def receive(line: socket.socket, most: int = LONGEST) -> bytes:
    """Return the body of the next frame. Raises OSError: ConnectionResetError if the other end has gone."""
    (size,) = SIZE.unpack(_exactly(line, SIZE.size))
    if size > most:
        raise OSError(f"a frame of {size} bytes")
    return _exactly(line, size)


def receive_json(line: socket.socket) -> dict[str, Any]:
    """Return the next frame as an object. Raises OSError, also for one that is none."""
    try:
        value = quickjson.loads(receive(line, LONGEST_HELLO))
    except (ValueError, RecursionError):
        raise OSError("a frame that is no JSON") from None
    if not isinstance(value, dict):
        raise OSError("a frame that is no object")
    return value


def _exactly(line: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        data = line.recv(min(size - len(got), 1 << 18))
        if not data:
            raise ConnectionResetError("the broker has ended")
        got += data
    return bytes(got)
