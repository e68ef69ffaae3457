"""The blocking client: starts a job by this machine's node, and is its proxy until it ends.

Law: the modules of the proxy are loaded once the spawn is on its way.
"""

from __future__ import annotations

import os

from transport import node_socket
from transport.client import opening
from transport.client.connect import connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from transport.client.output import Used
    from transport.rpc.services import Service
    from transport.spawn import Spawn
    from transport.status import Status


def run(
    spawn: Spawn,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    services: Mapping[str, Service] | None = None,
    on_start: Callable[[int, str], None] | None = None,
    on_note: Callable[[dict[str, Any]], None] | None = None,
    on_refused: Callable[[str], None] | None = None,
    used: Used | None = None,
    on_sent: Callable[[], None] | None = None,
    on_fatal: Callable[[int], None] | None = None,
    left: Callable[[], float | None] | None = None,
) -> Status:
    """Start a job through this machine's node and be its proxy until it ends.

    services   name -> function from request body to reply body, or a Streaming; called in threads, may raise
    on_sent    called when the job is on its way: work that its requests will need may begin
    on_start   called with the job's pid over there and the name of its host, "" for this machine, before a request of
               it is answered
    on_note    called with each note of the node about the link to the job's host
    on_refused called with the reason when a request was refused
    on_fatal   called with each signal that tells this process to end
    used       records the use of the streams, and keeps stdin untouched until the job runs
    left       the job is an agent: returns the seconds until it has ended by itself, None if it may take for ever

    Raises Refused if this machine has no usable node; any other outcome is in the Status. Must be called in the main
    thread.
    """
    spawn.capability = os.urandom(16).hex()
    for _ in range(node_socket.TRIES):
        connection = connect()
        sent = opening.send(connection, spawn)

        from transport.client.proxy import Proxy  # here: the node works on the spawn while this is loaded

        proxy = Proxy(connection, spawn, (stdin, stdout, stderr), services or {}, used, sent, left)
        proxy.on_start, proxy.on_note, proxy.on_refused = on_start, on_note, on_refused
        proxy.on_sent, proxy.on_fatal = on_sent, on_fatal
        try:
            if (status := proxy.run()) is not None:
                return status
        finally:
            proxy.close()
        # The node went idle while we connected, before it had read a byte. The next try starts another.
    raise node_socket.short_lived()
