"""The errors of transport.

TransportError
├── ProtocolError        bytes that break the rules of the wire; the link that carried them is dead
├── LinkLost             the link ended while something was under way
├── RequestError         a request to the origin was refused or failed there
│   └── RequestLost      the way there was lost: the request may have been carried out
├── Abandoned            nobody waits for the answer to a request any more
└── Refused              nothing was started (exit status 69), with a cure
    ├── Unreachable      a host that cannot be used
    │   ├── UnknownHostKey  its key has to be confirmed first
    │   ├── LockedKey    the private key needs its passphrase
    │   ├── NothingThere it has nothing of ours, and was only asked
    │   └── Interrupted  it answered, and then the connection broke: the same again may work
    ├── NoSuchHost       nothing matches WHERE
    ├── Unseen           the processes above one cannot be seen up to the top
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
    """The link ended; anything under way on it may or may not have happened."""


class RequestError(TransportError):
    """The origin refused a request or failed to answer it."""


class RequestLost(RequestError):
    """The way to the origin was lost; the request may or may not have been carried out."""


class Abandoned(TransportError):
    """The requester has gone or has given up; nobody takes the handler's result any more."""


class Refused(TransportError):
    """Nothing was started. `host` is "" if the error is not about one host; `hint` is the cure."""

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


class NothingThere(Unreachable):
    """The host has nothing of this program, and nothing was brought to it: the job that was to start only asks."""

    DETAIL = "nothing of quine is on this host"

    def __init__(self, host: str) -> None:
        super().__init__(host, self.DETAIL)


class Interrupted(Unreachable):
    """The connection was made, and broke before the far node had answered. It does not mean that the host is bad."""


class UnknownHostKey(Unreachable):
    """A first contact that a person has to confirm. `record` accepts the key; it may raise OSError."""

    def __init__(self, host: str, detail: str, hint: str, record: Callable[[], None]) -> None:
        super().__init__(host, detail, hint)
        self.record = record


class LockedKey(Unreachable):
    """A login that was refused because `key` has a passphrase. `unlock` takes it for this process; False if wrong."""

    def __init__(self, host: str, detail: str, hint: str, key: str, unlock: Callable[[str], bool]) -> None:
        super().__init__(host, detail, hint)
        self.key = key
        self.unlock = unlock


class NoSuchHost(Refused):
    """WHERE matches nothing."""


class Unseen(Refused):
    """The processes above one cannot be seen up to the top, so it may be below an agent or a budget."""


class Denied(Refused):
    """A rule of the origin forbids it."""

    status = 77
    state = "denied"


class Misconfigured(Refused):
    """The inventory is wrong; the node reads it on behalf of its caller."""

    status = 2
