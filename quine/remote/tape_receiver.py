"""The receiver of tapes from another machine: every line is checked against the facts known here, then given to a sink.

Laws
1. The sender is not trusted: a body is bounded and strictly typed. A refusal names the rule and takes no line.
2. A tape's first line creates it: the session's own meta, of this tree, below a session that is known here. Only a tape
   created so may be appended to; a file that exists already is never touched.
3. A line follows the one before, by its number and by its hash. Lines that are there already are left out: one who got
   no answer sends them again.
4. Called from worker threads. One session's lines are taken in their order, several sessions' at the same time.
5. At the origin the first line gets the name of the host that sends it, and each reply of a guest is compared with
   those that were given: see replies.py.
"""

from __future__ import annotations

import _thread

from quine.agent.session import SessionSpec
from quine.base.errors import Failure
from quine.base.sessions import is_session
from quine.base.strict import HEX, Strict, integer, items, mapping, number, parse, text
from quine.remote.replies import Replies
from quine.tape.lines import LONGEST, TOLD, TOLD_BY, digest
from quine.tape.writer import Sink
from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SESSIONS = 10_000  # tapes that one job may make
MOST_TOKENS = 1 << 40  # of one inference, as far as it is counted
MAX_TAPES = 2 << 30  # bytes of them in all: a thousand long sessions


class TapeRequest(Strict):
    session: str = text(36)
    lines: list[str] = items(text(LONGEST), 10_000, 1)


class EntryRequest(Strict):
    type: str = text(32, 1, letters="abcdefghijklmnopqrstuvwxyz_")
    data: dict[str, Any] = mapping()
    seq: int = integer(1 << 40)
    ts: float = number(1e11)
    prev: str = text(letters=HEX, sizes=(0, 64))


class _Arriving:
    """One tape: its sink, the number of lines and the hash of the last one, the depth of its session and its model.

    `replies` counts those of the given replies that are on it, or were passed over. `born`: it is that of a new agent.
    """

    def __init__(self, sink: Sink, depth: int, born: bool, model: str) -> None:
        self.sink = sink
        self.depth = depth
        self.model = model
        self.born = born
        self.lock = _thread.allocate_lock()
        self.length = 0
        self.prev = ""
        self.replies = 0


class Arrivals:
    """The tapes of the sessions of one job: `spec`, and its remote descendants."""

    def __init__(
        self,
        spec: SessionSpec,
        sink: Callable[[str], Sink],
        born: Callable[[], None] = lambda: None,
        used: Callable[[str, tuple[int, int]], None] = lambda session, tokens: None,
        replies: Replies | None = None,
        host: Callable[[], str] = lambda: "",
    ) -> None:
        """`born` is called for each new agent: not for `spec` itself, nor for a session begun by exec.

        `used` gets the session and the tokens, in and out, of each inference on a tape. `replies` are those that were
        given to these sessions; without it nothing is compared. `host` is where the job runs, "" for this machine.
        """
        self._spec = spec
        self._sink = sink
        self._born = born
        self._used = used
        self._replies = replies
        self._host = host
        self._lock = _thread.allocate_lock()
        self._tapes: dict[str, _Arriving] = {}
        self._size = 0

    def known(self, session: str) -> bool:
        """Return whether this is the session that was given away, or one below it that has begun its tape."""
        return session == self._spec.session or session in self._tapes

    def model(self, session: str) -> str:
        """Return the model of a session by the meta on its tape; before that, the one of the session given away."""
        tape = self._tapes.get(session)
        return tape.model if tape else self._spec.model

    def put(self, body: bytes) -> bytes:
        """The service `tape`: take the lines of one body. Raises RequestError."""
        asked = parse(TapeRequest, body)
        self.take(asked.session, asked.lines)
        return b""

    def take(self, session: str, texts: list[str]) -> None:
        """Take lines, at least one. Raises RequestError."""
        if not is_session(session):
            raise RequestError("tape: the session is not a UUID")
        entries = [_entry(line) for line in texts]
        lines = [line.encode() for line in texts]
        with self._lock:
            tape = self._tapes.get(session)
            if tape is None:
                tape = self._tapes[session] = self._new(session, entries[0])
        with tape.lock:
            known = _known(tape, entries, lines)
            try:
                self._take(session, tape, entries[known:], lines[known:])
            except RequestError:
                if not tape.length:
                    self._tapes.pop(session, None)  # the tape was never begun
                raise

    def _take(self, session: str, tape: _Arriving, entries: list[EntryRequest], lines: list[bytes]) -> None:
        if not lines:
            return  # all of them were known
        length, prev = tape.length, tape.prev
        for entry, line in zip(entries, lines):
            if entry.seq != length:
                raise RequestError(f"tape: line {entry.seq} came, and {length} is next")
            if entry.prev != prev:
                raise RequestError(f"tape: line {entry.seq} does not follow the line before")
            length, prev = length + 1, digest(line)
        lines, replies = self._judged(session, tape, entries, lines)
        size = sum(len(line) + 1 for line in lines)
        with self._lock:
            if self._size + size > MAX_TAPES:
                raise RequestError(f"tape: more than {MAX_TAPES} bytes of one job")
            self._size += size
        try:
            tape.sink.put(lines)
        except BaseException as error:
            with self._lock:
                self._size -= size
            if isinstance(error, Failure):
                raise RequestError(f"tape: {error.detail}") from None
            raise
        finally:
            tape.sink.close()  # many sessions, few descriptors: the next line opens it again
        if tape.born and not tape.length:
            self._born()
        tape.length, tape.prev, tape.replies = length, prev, replies
        for entry in entries:
            if entry.type == "message" and (tokens := _tokens(entry.data.get("usage"))):
                self._used(session, tokens)

    def _judged(
        self, session: str, tape: _Arriving, entries: list[EntryRequest], lines: list[bytes]
    ) -> tuple[list[bytes], int]:
        """Return the lines, with the marks of replies.py, and the count of the replies on the tape.

        Raises RequestError for a reply that was not given.
        """
        host, replies, judged = self._host(), tape.replies, []
        for entry, line in zip(entries, lines):
            if entry.type == "meta" and host:
                line = _marked(line, TOLD_BY, host)
            elif self._replies and entry.type == "message" and entry.data.get("role") == "assistant":
                if found := self._replies.find(session, entry.data, replies):
                    replies = found
                else:
                    line = _marked(line, TOLD, True)
            judged.append(line)
        return judged, replies

    def _new(self, session: str, first: EntryRequest) -> _Arriving:
        """Create a tape from its first line: the meta of a session of this tree, below one that is known."""
        told, spec = first.data, self._spec
        if first.type != "meta" or told.get("session_id") != session:
            raise RequestError("tape: the first line must be the session's own meta")
        if told.get("root_session_id") != spec.root:
            raise RequestError("tape: the session belongs to another tree")
        depth, parent = told.get("depth"), told.get("parent_session_id")
        if session == spec.session:
            true = parent == spec.parent and depth == spec.depth
        else:
            above = self._tapes.get(parent) if isinstance(parent, str) else None
            least = above.depth + (told.get("born") != "exec") if above and above.length else 1 << 62
            true = type(depth) is int and least <= depth
        if not true:
            raise RequestError("tape: the session's parent or depth is not true")
        if type(depth) is int and depth >= max(1, spec.limits.depth):
            raise RequestError(f"tape: level {depth + 1}, and {spec.limits.depth} are allowed")
        if len(self._tapes) >= MAX_SESSIONS:
            raise RequestError(f"tape: more than {MAX_SESSIONS} sessions of one job")
        assert isinstance(depth, int)
        born = session != spec.session and told.get("born") != "exec"
        model = told.get("model_id")
        return _Arriving(self._sink(session), depth, born, model if isinstance(model, str) else "")


def _known(tape: _Arriving, entries: list[EntryRequest], lines: list[bytes]) -> int:
    """Return how many of the lines, from the first, are on the tape: each names the hash of the one before."""
    known = tape.length - entries[0].seq
    if not 0 < known <= len(lines):
        return 0
    expected = tape.prev
    for entry, line in zip(reversed(entries[:known]), reversed(lines[:known])):
        if digest(line) != expected:
            return 0
        expected = entry.prev
    return known


def _marked(line: bytes, name: str, value: object) -> bytes:
    """Return a line with one more field in its data. The sink chains it to the line before as it is here."""
    entry = quickjson.loads(line)
    entry["data"][name] = value
    return quickjson.dumps(entry).encode()


def _tokens(usage: object) -> tuple[int, int] | None:
    if not isinstance(usage, dict):
        return None
    before, after = usage.get("input"), usage.get("output")
    if type(before) is not int or type(after) is not int or min(before, after) < 0:
        return None
    return min(before, MOST_TOKENS), min(after, MOST_TOKENS)


def _entry(line: str) -> EntryRequest:
    """Parse one line as one entry; with a newline in it there would be two."""
    if "\n" in line or not line.isascii():
        raise RequestError("tape: a line with a newline in it, or not in ASCII")
    entry = parse(EntryRequest, line.encode())
    if entry.type == "fork":
        if not is_session(entry.data.get("session")):
            raise RequestError("tape: a fork without the session of its child")
        if "ended" in entry.data:
            try:
                Status.from_json(entry.data["ended"])
            except ValueError as error:
                raise RequestError(f"tape: a fork whose end is no status: {error}") from None
    return entry
