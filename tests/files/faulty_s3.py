"""An HTTP proxy before the S3 server of the tests: it answers in its place, loses answers, breaks bodies off and hangs.

Laws
1. A request that no rule matches goes through unchanged, with its signature: to the server the proxy is the client.
2. A rule says which requests it matches, their fate, and how often it applies. The first that matches is used up.
3. `seen` is every request in order of arrival, with its fate.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from tests.files.seaweed import KEY, SECRET


class Asked(NamedTuple):
    method: str
    path: str  # with its query
    headers: dict[str, str]  # names in lower case


class Rule:
    """`when` matches a request. `what` is called with the handler, which has read only the head of the request."""

    def __init__(
        self, when: Callable[[Asked], bool], what: Callable[[Handler], None], times: int = 1
    ) -> None:
        self.when, self.what, self.left = when, what, times
        self.used = 0


def asks(method: str, part: str = "") -> Callable[[Asked], bool]:
    return lambda asked: asked.method == method and part in asked.path


def fault(code: str, text: str = "as the test will have it") -> bytes:
    return f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client, with one of its own to the server."""

    protocol_version = "HTTP/1.1"
    server: Faulty
    _far: http.client.HTTPConnection | None = None

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()
            return
        self.close_connection = True

    def _any(self) -> None:
        asked = Asked(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        rule = self.server.taken(asked)
        (rule.what if rule else Handler.through)(self)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

    # -- what a rule is made of

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def asked(self, leave_out: str = "") -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the server's answer to this request, sent without the header `leave_out` if there is one."""
        body = self.body()
        if leave_out:
            del self.headers[leave_out]
            self._sign()
        if self._far is None:
            self._far = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        self._far.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("transfer-encoding", "content-length", "expect"):
                self._far.putheader(name, value)
        if body or self.command in ("PUT", "POST"):
            self._far.putheader("Content-Length", str(len(body)))
        self._far.endheaders(body)
        answer = self._far.getresponse()
        data = answer.read()
        return answer.status, answer.getheaders(), data

    def _sign(self) -> None:
        """Sign the request again after a change."""
        said = self.headers["Authorization"]
        del self.headers["Authorization"]
        signed = said.partition("SignedHeaders=")[2].partition(",")[0].split(";")
        request = AWSRequest(
            self.command,
            f"http://{self.headers['Host']}{self.path}",
            {name: self.headers[name] for name in signed if name in self.headers and name != "host"},
        )
        S3SigV4Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(request)
        for name, value in request.headers.items():
            del self.headers[name]
            self.headers[name] = value

    def say(self, status: int, headers: list[tuple[str, str]], data: bytes, cut: int | None = None) -> None:
        """With the length of all of `data`; of which no more than `cut` bytes are sent."""
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if cut is None else data[:cut])
        self.wfile.flush()

    def through(self) -> None:
        self.say(*self.asked())

    def reset(self) -> None:
        """The connection is gone at once."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.server.close_soon(self.connection)

    def hang(self) -> None:
        """Nothing more comes, until the test has ended."""
        self.server.ended.wait()
        self.close_connection = True

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        if self._far is not None:
            self._far.close()


def instead(status: int, data: bytes = b"", *headers: tuple[str, str]) -> Callable[[Handler], None]:
    """That answer, and the server hears nothing of it."""

    def what(handler: Handler) -> None:
        handler.body()
        handler.say(status, [("Content-Type", "application/xml"), *headers], data)

    return what


def done_but(status: int, data: bytes = b"") -> Callable[[Handler], None]:
    """It is done, and the answer is that."""

    def what(handler: Handler) -> None:
        handler.asked()
        handler.say(status, [("Content-Type", "application/xml")], data)

    return what


def without(header: str) -> Callable[[Handler], None]:
    """The proxy does not pass that header to the server."""
    return lambda handler: handler.say(*handler.asked(leave_out=header))


def lost(handler: Handler) -> None:
    """It is done, and the connection breaks before the answer."""
    handler.asked()
    handler.reset()


def broken(after: int) -> Callable[[Handler], None]:
    """The answer breaks off after so many bytes of its body, which all arrive: a reset may take them with it."""

    def what(handler: Handler) -> None:
        handler.say(*handler.asked(), cut=after)
        handler.close_connection = True

    return what


def torn(after: int) -> Callable[[Handler], None]:
    """The connection breaks after so many bytes of the request's body; the server hears nothing of it."""

    def what(handler: Handler) -> None:
        handler.rfile.read(after)
        handler.reset()

    return what


class Faulty(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = behind
        self.rules: list[Rule] = []
        self.seen: list[tuple[str, str, bool]] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def rule(self, when: Callable[[Asked], bool], what: Callable[[Handler], None], times: int = 1) -> Rule:
        made = Rule(when, what, times)
        with self._lock:
            self.rules.append(made)
        return made

    def taken(self, asked: Asked) -> Rule | None:
        with self._lock:
            found = next((rule for rule in self.rules if rule.left and rule.when(asked)), None)
            if found:
                found.left -= 1
                found.used += 1
            self.seen.append((asked.method, asked.path, found is not None))
            return found

    def count(self, method: str, part: str = "") -> int:
        with self._lock:
            return sum(each[0] == method and part in each[1] for each in self.seen)

    def forget(self) -> None:
        with self._lock:
            self.rules.clear()
            self.seen.clear()

    def close_soon(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: clients of these tests break connections on purpose."""


@contextlib.contextmanager
def faulty(behind: int) -> Iterator[Faulty]:
    with Faulty(behind) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            proxy.shutdown()
            thread.join()
