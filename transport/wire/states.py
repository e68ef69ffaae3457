"""The states of one job or request on a link: the frames that each end may send next, and its streams.

Law: both ends move the same TABLE by the frames they send and receive, so a rule cannot hold for one of them alone.
`python -m transport.wire.session` prints it. opener = the end that sent spawn or request, server = the other end.
"""

from __future__ import annotations

from transport.errors import ProtocolError
from transport.wire.flow import Flow
from transport.wire.frames import LIFE, NAMES, Kind

OPENING, RUNNING, ENDED, GONE = "opening", "running", "ended", "gone"
STDIN, STDOUT, STDERR = 0, 1, 2

# (state, sender, kind, class of stream) -> next state. Streams are sorted into classes first:
# "in" = 0, "out" = 1 and 2, "life" = the channel itself.
TABLE: dict[tuple[str, str, int, str], str] = {}
for _state in (OPENING, RUNNING, ENDED):
    for _kind, _stream in ((Kind.DATA, "in"), (Kind.EOF, "in"), (Kind.ACK, "out"), (Kind.STOP, "out")):
        TABLE[_state, "opener", _kind, _stream] = _state
    for _kind in (Kind.SIGNAL, Kind.WINCH, Kind.NOTE):
        TABLE[_state, "opener", _kind, "life"] = _state
    TABLE[_state, "opener", Kind.STOP, "life"] = GONE  # nobody waits: end it and forget it
for _state in (RUNNING, ENDED):
    for _kind, _stream in ((Kind.DATA, "out"), (Kind.EOF, "out"), (Kind.ACK, "in"), (Kind.STOP, "in")):
        TABLE[_state, "server", _kind, _stream] = _state
for _sender, _states in (("opener", (OPENING, RUNNING, ENDED)), ("server", (RUNNING, ENDED))):
    for _state in _states:
        for _stream in ("in", "out"):
            TABLE[_state, _sender, Kind.LEND, _stream] = TABLE[_state, _sender, Kind.RETURN, _stream] = _state
TABLE[OPENING, "server", Kind.ATTACH, "life"] = RUNNING
TABLE[OPENING, "server", Kind.EXIT, "life"] = ENDED  # never started
TABLE[OPENING, "server", Kind.EOF, "out"] = OPENING  # a relay holds back that exit until the streams ended
TABLE[RUNNING, "server", Kind.EXIT, "life"] = ENDED
for _state in (OPENING, RUNNING, ENDED):
    TABLE[_state, "server", Kind.NOTE, "life"] = _state
TABLE[OPENING, "server", Kind.REPLY, "life"] = ENDED
TABLE[RUNNING, "server", Kind.REPLY, "life"] = ENDED
TABLE[ENDED, "opener", Kind.ACK, "life"] = GONE

_CLASS = {STDIN: "in", STDOUT: "out", STDERR: "out", LIFE: "life"}
LENT = (Kind.LEND, Kind.RETURN)
_ENDS = {False: Kind.EXIT, True: Kind.REPLY}


class Asker:
    """One of many senders of bodies over a link: bytes of them that are under way."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = 0


class Channel:
    """One job or request as both ends see it."""

    __slots__ = ("asker", "flows", "mine", "number", "request", "state")

    def __init__(self, number: int, mine: bool, request: bool) -> None:
        self.number = number
        self.mine = mine  # this end opened it
        self.request = request
        self.asker: Asker | None = None  # set where this end opens channels for many askers
        self.state = OPENING
        self.flows = (Flow(), Flow(), Flow())
        if request:
            self.flows[STDERR].ended = True  # a request has no stderr

    def move(self, sender: str, kind: int, stream: int) -> str:
        """Take the row of TABLE, or raise ProtocolError."""
        key = (self.state, sender, kind, _CLASS.get(stream, "no such stream"))
        state = TABLE.get(key)
        if (
            state is None
            or (kind in (Kind.EXIT, Kind.REPLY) and kind != _ENDS[self.request])
            or (kind in LENT and not self.request and stream == STDERR)  # too little ever comes on it
        ):
            name = NAMES[kind].lower()
            raise ProtocolError(f"{name} from the {sender} on stream {stream} while {self.state}")
        self.state = state
        return state

    @property
    def finished(self) -> bool:
        """True once the end was told and no more output can come: the opener may send the last frame."""
        return self.state == ENDED and all(flow.ended or flow.stopped for flow in self.flows[STDOUT:])


def diagram() -> str:
    """TABLE as Markdown, so that the documentation is printed from the code."""
    lines = ["| state | who | sends | about | next |", "|---|---|---|---|---|"]
    for (state, who, kind, stream), after in TABLE.items():
        lines.append(f"| {state} | {who} | {NAMES[kind].lower()} | {stream} | {after} |")
    return "\n".join(lines)
