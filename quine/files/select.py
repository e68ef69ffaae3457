"""Which files tier a process uses, and the one that the face of a job answers with.

Laws
1. Who has a `QUINE_FS` opens that. A job without one asks its origin, whatever machine it is on; everybody else has the
   directory of the origin: itself.
2. A face answers with the tier of its own environment, so one that is itself elsewhere passes on what it is asked.
3. Standard library only, and next to nothing before the first request: every `quine run` on a host has this.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured
from quine.files.urls import GIVE_STORE, GONE, NO_ORIGIN
from transport.lean import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.files.api import Tier
    from quine.files.wire.server import Service
    from transport.rpc.incoming import Incoming, Streaming

    Plain = Callable[[bytes], bytes]
    Handler = Callable[[Incoming], None]

SERVICE = "fs"
HOSTS = "hosts"
SETTLE = 5.0  # seconds for handlers that were given up to clean up behind them


def tier_here(environ: Mapping[str, str] = os.environ) -> Tier:
    """The tier of this process. Raises Misconfigured; an origin that is gone is told by the first operation."""
    if environ.get("QUINE_FS") == GONE:
        raise Misconfigured(NO_ORIGIN, GIVE_STORE)
    if not environ.get("QUINE_FS"):
        from transport.rpc.call import Relay

        if (relay := Relay.from_environment()) is not None:
            from quine.files.wire.client import Remote

            return Remote(relay)
    from quine.files.layers.quota import bounded
    from quine.files.layers.reserved import Unreserved
    from quine.files.stores.registry import open_store

    data_dir = os.path.abspath(os.path.expanduser(environ.get("QUINE_DATA_DIR") or ".quine"))
    store = open_store(environ.get("QUINE_FS") or "origin:", environ, data_dir)
    return Unreserved(bounded(store, environ))


class Services(Mapping[str, "Plain | Streaming"]):
    """What a face answers: `plain` services, the hosts that its job may use, and the files tier, made when it is first
    asked for. `host` is where the job was started, "" before that; `reach` says which hosts it may use, from the body
    of a request and its host.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        plain: Mapping[str, Plain] | None = None,
        reach: Callable[[bytes, str], bytes] | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        """`end` is called when the job has ended."""
        self._environ = environ
        self._plain = {**(plain or {}), **({HOSTS: self.hosts} if reach else {})}
        self._reach = reach
        self._end = end
        self.host = ""
        self._streams: dict[str, Handler] = {}
        self._answering: Answering | None = None

    def placed(self, host: str) -> None:
        """The job has been started on `host`, "" for this machine. Its requests come after this."""
        self.host = host

    def hosts(self, body: bytes = b"{}") -> bytes:
        """The hosts that the job may use, as JSON. Raises RequestError."""
        assert self._reach
        return self._reach(body, self.host)

    def offer(self, name: str, handler: Handler) -> None:
        """Answer this, too: a streaming request."""
        self._streams[name] = handler

    def __getitem__(self, name: str) -> Plain | Streaming:
        if name in self._plain:
            return self._plain[name]
        if name == SERVICE and self._answering is None:
            self._answering = self._streams[SERVICE] = Answering(self._environ)
        handler = self._streams[name]
        from transport.rpc.incoming import Streaming

        return Streaming(handler)

    def __iter__(self) -> Iterator[str]:
        yield from {**self._plain, **self._streams, SERVICE: None}

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def close(self) -> None:
        """Nobody asks any more: wait, not for long, until handlers that were given up have dropped what was half done.

        They are threads that die with this process, and what they leave in a bucket nobody sweeps.
        """
        if self._end:
            self._end()
        if self._answering:
            self._answering.close()


class Answering:
    """The handler of `fs`, which brings its modules and opens its store in the thread of the first request."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        import threading

        self._environ = environ
        self._change = threading.Condition()
        self._service: Service | None = None
        self._active = 0

    def __call__(self, incoming: Incoming) -> None:
        with self._change:
            if self._service is None:
                from quine.files.wire.server import Service

                self._service = Service(lambda: tier_here(self._environ))
            self._active += 1
        try:
            self._service(incoming)
        finally:
            with self._change:
                self._active -= 1
                self._change.notify_all()

    def close(self) -> None:
        with self._change:
            self._change.wait_for(lambda: not self._active, SETTLE)
