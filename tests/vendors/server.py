"""A provider on loopback: checks every request as its vendor would, answers by plan, and misbehaves on demand.

Laws
1. A real HTTP server: keep-alive, chunked SSE, connections that really break. Nothing here is known to the client.
2. A request that the vendor would refuse gets the vendor's own 400, and fails the test at the end of the `with`; so
   does a request too many, and a turn of the plan that nobody came for.
3. A vendor is anything with the functions of `Vendor`, as a module is.
4. Nothing sleeps. A test that has to know that the server has come to a point waits for its event.

    with Provider(chat, Fault(429, "rate"), Said("hi")) as provider:
        await HttpGuest(ChatDialect("m"), provider.base + "/v1", KEY).infer(...)
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Protocol

KEY = "canary-5f3a9c1e7b"  # the key that a strict vendor wants to see; a test can look for it where it must not be
PATIENCE = 30.0  # seconds until a silent turn gives up waiting for its client to go


class Said(NamedTuple):
    """The words of the model, in the form of no vendor. `calls` are as `tests.support.agents.call` makes them."""

    text: str = ""
    calls: tuple[dict[str, Any], ...] = ()  # {"name", "arguments": object, or text to send as it is}
    reasoning: str = ""
    stop: str = ""  # "" = end or tool, as fits; else length, context, refusal, pause
    # Input (cached and not), output, of the input read from a cache.
    usage: tuple[int, int, int] = (100, 10, 0)


class Fault(NamedTuple):
    """The vendor's own error: kind is bad, auth, model, rate, quota, server, overloaded or overflow."""

    status: int
    kind: str
    headers: Mapping[str, str] = {}
    message: str = ""


class Raw(NamedTuple):
    """Any answer: a proxy's page, a redirect, JSON that is none."""

    status: int
    body: bytes = b""
    type: str = "application/json"
    headers: Mapping[str, str] = {}


class Cut(NamedTuple):
    """A stream that ends after so many events: in good order, or torn in the middle of the next one."""

    said: Said
    after: int = 1
    torn: bool = False


class Slow(NamedTuple):
    """A stream byte by byte, each its own chunk, with CRLF and with comments between the events."""

    said: Said


class Silent(NamedTuple):
    """A stream that says nothing more after so many events, and waits until the client goes."""

    said: Said
    after: int = 1


class Lingering(NamedTuple):
    """A complete stream whose connection then stays open, until the client goes."""

    said: Said


class Inside(NamedTuple):
    """An error inside a 200: after so many events of the stream, or as the whole body."""

    kind: str
    said: Said = Said()
    after: int = 0
    message: str = ""


class Whole(NamedTuple):
    """A plain body, although a stream was asked for."""

    said: Said


Turn = Said | Fault | Raw | Cut | Slow | Silent | Lingering | Inside | Whole


class Seen(NamedTuple):
    """A request: header names in lower case."""

    path: str
    headers: dict[str, str]
    body: Any


class Vendor(Protocol):
    """Optional besides: error_event(kind, message) -> (event, data), where an error inside a stream looks otherwise."""

    def check(self, headers: Mapping[str, str], path: str, body: Any) -> str | None:
        """Return the error with which the vendor would refuse this request, in its own words; None if it would not."""

    def reply_json(self, said: Said) -> Any:
        """The body of an answer without streaming."""

    def reply_events(self, said: Said) -> Iterable[tuple[str, Any]]:
        """The events of a streamed answer: name ("" for none) and data, JSON or a bare text as "[DONE]"."""

    def error(self, status: int, kind: str, message: str = "") -> Any:
        """The body of an error; `message` "" = the vendor's usual one. Kind "bad" always has one."""


class Provider(ThreadingHTTPServer):
    """`base` has no path. `choose`, where the order of requests is not known, picks the turn for a request."""

    daemon_threads = False
    request_queue_size = 512  # with 5 a caller beyond them tries again after a second

    def __init__(self, vendor: Any, *plan: Turn, choose: Callable[[Seen], Turn] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.vendor: Vendor = vendor
        self.plan = list(plan)
        self.choose = choose
        self.requests: list[Seen] = []
        self.facts: dict[str, Any] = {}  # the answers to a GET of a path; 404 for any other
        self.told: Callable[[str], object] = lambda path: None  # called after such an answer
        self.violations: list[str] = []
        self.connections = 0
        self.silent = threading.Event()  # a Silent turn has said what it had to say
        self.hung_up = threading.Event()  # the client has gone in the middle of an answer
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def bodies(self) -> list[Any]:
        return [seen.body for seen in self.requests]

    def __enter__(self) -> Provider:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:  # gone already
                    pass
        self.server_close()
        if kind is None:
            assert not self.violations, "\n".join(self.violations)
            assert not self.plan, f"nobody came for {self.plan}"

    def next(self, seen: Seen, wrong: str | None) -> Turn:
        with self._lock:
            self.requests.append(seen)
            if wrong is not None:
                self.violations.append(f"request {len(self.requests)}: {wrong}")
                return Fault(400, "bad", message=wrong)
            if self.choose is not None:
                return self.choose(seen)
            if not self.plan:
                self.violations.append(f"request {len(self.requests)} was not planned")
                return Fault(400, "bad", message="not planned")
            return self.plan.pop(0)

    def answered(self, turn: Turn) -> None:
        """Called when the request that got this turn is over; a provider with limits counts them."""

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may go at any time
            self.violations.append(traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    server: Provider
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)

    def finish(self) -> None:
        self.server.closed(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        path = path[path.find("/", len("http://")) :] if "://" in path else path
        found = self.server.facts.get(path)
        nothing = {"error": {"message": f"no {path}", "code": 404}}
        self._body(404 if found is None else 200, nothing if found is None else found)
        self.server.told(path)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body, wrong = _strict_json(raw)
        seen = Seen(self.path, headers, body)
        if wrong is None and headers.get("content-type") != "application/json":
            wrong = f"content-type {headers.get('content-type')}"
        turn = self.server.next(seen, wrong or self.server.vendor.check(headers, self.path, body))
        streaming = "stream" in self.path or (isinstance(body, dict) and body.get("stream") is True)
        try:
            self._answer(turn, streaming)
        except ConnectionError:  # the client has gone: that is its right
            self.server.hung_up.set()
            self.close_connection = True
        finally:
            self.server.answered(turn)

    def _answer(self, turn: Turn, streaming: bool) -> None:
        vendor = self.server.vendor
        match turn:
            case Fault(status, kind, headers, message):
                self._body(status, vendor.error(status, kind, message), headers)
            case Raw(status, data, type, headers):
                self._bytes(status, data, {"Content-Type": type, **headers})
            case Whole(said):
                self._body(200, vendor.reply_json(said))
            case Inside(kind, _, _, message) if not streaming:
                self._body(200, vendor.error(200, kind, message))
            case Said() as said if not streaming:
                self._body(200, vendor.reply_json(said))
            case _:
                self._stream(turn)

    def _stream(self, turn: Turn) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        said = turn if isinstance(turn, Said) else turn.said  # type: ignore[union-attr]
        events = list(self.server.vendor.reply_events(said))
        match turn:
            case Cut(_, after, torn):
                self._events(events[:after])
                if torn:
                    lost = _sse(*events[after])
                    self._chunk(lost[: len(lost) // 2])
                    self.close_connection = True
            case Slow():
                for event in events:
                    for byte in b": a comment\r\n\r\n" + _sse(*event).replace(b"\n", b"\r\n"):
                        self._chunk(bytes([byte]))
            case Silent(_, after):
                self._events(events[:after])
                self._wait_until_it_goes()
            case Lingering():
                self._events(events)
                self._wait_until_it_goes()
            case Inside(kind, _, after, message):
                self._events([*events[:after], self._error_event(kind, message)])
            case _:
                self._events(events)
        if not self.close_connection:
            self.wfile.write(b"0\r\n\r\n")

    def _wait_until_it_goes(self) -> None:
        self.server.silent.set()
        self.connection.settimeout(PATIENCE)
        self.close_connection = True
        if self.connection.recv(1) == b"":
            self.server.hung_up.set()

    def _error_event(self, kind: str, message: str) -> tuple[str, Any]:
        vendor = self.server.vendor
        make = getattr(vendor, "error_event", lambda kind, message: ("", vendor.error(200, kind, message)))
        event: tuple[str, Any] = make(kind, message)
        return event

    def _events(self, events: Iterable[tuple[str, Any]]) -> None:
        for event in events:
            self._chunk(_sse(*event))

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _body(self, status: int, data: Any, headers: Mapping[str, str] | None = None) -> None:
        self._bytes(
            status, json.dumps(data).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def _bytes(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _sse(event: str, data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


def _strict_json(raw: bytes) -> tuple[Any, str | None]:
    """Return the value, and the fault that every provider refuses: not UTF-8, NaN, a name twice, half a surrogate."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name stands twice in one object")
        return dict(pairs)

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        body = json.loads(raw.decode(), object_pairs_hook=unique, parse_constant=no_constant)
        json.dumps(body, ensure_ascii=False).encode()
    except ValueError as error:
        return None, f"the body is not JSON: {error}"
    return body, None if isinstance(body, dict) else "the body is no object"
