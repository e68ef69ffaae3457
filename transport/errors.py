"""The errors of transport.

TransportError
├── ProtocolError        bytes that break the rules of the wire; the link that carried them is dead
├── LinkLost             the link ended while something was under way
├── RequestError         a request to the origin was refused or failed there
│   └── RequestLost      or the way there was lost: it may have been done
├── Abandoned            nobody waits for the answer to a request any more
└── Refused              nothing was started (exit status 69), with a cure
    ├── Unreachable      a host that cannot be used
    │   ├── UnknownHostKey  its key has to be confirmed first
    │   └── Interrupted  it answered, and then the connection broke: the same again may work
    ├── NoSuchHost       nothing matches WHERE
    ├── Denied           a rule forbids it (exit status 77)
    └── Misconfigured    the inventory is wrong (exit status 2)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class TransportError(Exception):
    """Base of all; str() is for people: lower case, no full stop."""


class ProtocolError(TransportError):
    """The peer (or a caller of ours) broke the rules of the wire; str() says which one."""


class LinkLost(TransportError):
    """The link to `host` ended; what was under way there may have happened."""


class RequestError(TransportError):
    """The origin refused a request or failed to answer it."""


class RequestLost(RequestError):
    """The way to the origin was lost: whether it has done what was asked is not known."""


class Abandoned(TransportError):
    """Who asked has gone, or has given up; what its handler does now is for nobody."""


class Refused(TransportError):
    """Nothing was started. `host` is "" where the fault is not about one; `hint` says what cures it."""

    status = 69
    state = "unreachable"

    def __init__(self, detail: str, hint: str = "", host: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.host = host


class Unreachable(Refused):
    """The host cannot be used: name, network, host key, authentication, deployment."""

    def __init__(self, host: str, detail: str, hint: str = "") -> None:
        super().__init__(detail, hint, host)


class Interrupted(Unreachable):
    """The connection was made and broke before the node over there had answered. Nothing says that the host is bad."""


class UnknownHostKey(Unreachable):
    """A first contact that has to be confirmed by a person. `record` accepts the key; it may raise OSError."""

    def __init__(self, host: str, detail: str, hint: str, record: Callable[[], None]) -> None:
        super().__init__(host, detail, hint)
        self.record = record


class NoSuchHost(Refused):
    """WHERE matches nothing."""


class Denied(Refused):
    """A rule of the origin's forbids it."""

    status = 77
    state = "denied"


class Misconfigured(Refused):
    """The inventory, found by the node on behalf of its caller, is wrong."""

    status = 2
