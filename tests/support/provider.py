"""One provider for many tests: its agents find the broker that the test before has started, the dearest part of them.

A broker remembers its server: a test after which it must not go on, as it was told to wait an hour, has its own.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from tests.vendors.server import Provider


@contextlib.contextmanager
def reused(provider: Provider) -> Iterator[Provider]:
    """As a new provider; at the end it has hung up, and nothing that was asked was wrong or is still planned."""
    provider.plan, provider.choose = [], None
    provider.requests.clear()
    provider.silent.clear()
    provider.hung_up.clear()
    try:
        yield provider
        wrong = [*provider.violations, *(f"nobody came for {turn}" for turn in provider.plan)]
        assert not wrong, "\n".join(wrong)
    finally:
        provider.violations.clear()
        for connection in [*provider._open]:  # of a broker, which makes another one
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
