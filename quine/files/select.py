"""Selection of the files tier that a process uses, and of the services that a proxy answers for its job.

Laws
1. A process with `QUINE_FS` opens that store. A job without it asks its origin, whatever machine it runs on. Any other
   process is at the origin itself and opens the origin's directory.
2. A proxy answers with the tier of its own environment. So a proxy that is itself part of a job elsewhere passes the
   requests on to its origin.
3. Only the standard library is imported, and almost nothing before the first request: `quine run` on a host loads it.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured
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
SETTLE = 5.0  # seconds that abandoned handlers have to clean up


def tier_here(environ: Mapping[str, str] = os.environ, for_job: bool = False) -> Tier:
    """The tier of this process, or of a job that it answers. Raises Misconfigured.

    If the origin is gone, the first operation raises the error.
    """
    if store_url := environ.get("QUINE_FS"):
        from quine.files.urls import GIVE_STORE, GONE, NO_ORIGIN  # here: every client loads this module

        if store_url == GONE:
            raise Misconfigured(NO_ORIGIN, GIVE_STORE)
    else:
        from transport.rpc.call import Relay

        if (relay := Relay.from_environment()) is not None:
            from quine.files.wire.client import Remote

            return Remote(relay)
    from quine.base import data_directory
    from quine.files.layers.quota import bounded
    from quine.files.layers.reserved import Unreserved
    from quine.files.stores.registry import open_store

    store = open_store(store_url or "origin:", environ, data_directory.path(environ))
    return Unreserved(bounded(store, environ, for_job))


class Services(Mapping[str, "Plain | Streaming"]):
    """The services that a proxy answers: `plain` ones, the hosts that its job may use, and the files tier.

    `Answering` for the tier is made on the first request for it. `host` is where the job was started, "" before that
    and for this machine; `asked` is its WHERE. `reach` returns the hosts that the job may use, from the body of a
    request and `host`.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        plain: Mapping[str, Plain] | None = None,
        reach: Callable[[bytes, str], bytes] | None = None,
        end: Callable[[], None] | None = None,
        asked: str = "",
    ) -> None:
        """`close` calls `end` after the end of the job."""
        self._environ = environ
        self._plain = {**(plain or {}), **({HOSTS: self.hosts} if reach else {})}
        self._reach = reach
        self._end = end
        self.host = ""
        self._asked = "" if asked == "local" else asked
        self.on_placed: Callable[[str], None] = lambda host: None
        self.on_request: Callable[[], None] = lambda: None  # called before each request is looked at
        self._streams: dict[str, Handler] = {}
        self._answering: Answering | None = None

    def placed(self, host: str) -> None:
        """Note that the job has been started on `host`, "" for this machine. Its requests come later."""
        self.host = host
        self.on_placed(host)

    def where(self) -> str:
        """The host that the job was started on, "" for this machine.

        A host that sends requests before it says that it has started the job is the WHERE that was asked for.
        """
        return self.host or self._asked

    def hosts(self, body: bytes = b"{}") -> bytes:
        """The hosts that the job may use, as JSON. Raises RequestError."""
        assert self._reach
        return self._reach(body, self.host)

    def offer(self, name: str, handler: Handler) -> None:
        """Answer the streaming request `name` with `handler`, too."""
        self._streams[name] = handler

    def __getitem__(self, name: str) -> Plain | Streaming:
        self.on_request()
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
        """Wait up to SETTLE seconds until abandoned handlers have dropped their unfinished files. No requests follow.

        Handlers are threads that die with this process, and nothing sweeps the parts that they leave in a bucket.
        """
        if self._end:
            self._end()
        if self._answering:
            self._answering.close()


class Answering:
    """The handler of `fs`. It imports its modules and opens its store in the thread of the first request."""

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

                self._service = Service(lambda: tier_here(self._environ, for_job=True))
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
