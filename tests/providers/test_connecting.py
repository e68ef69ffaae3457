"""The way to a model server: proxies, certificates, and faults that name what is to be changed."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.base.messages import Message, Refused, Request, Unavailable
from quine.providers.connecting import client_of, is_here, route_of, without_password
from quine.providers.dialects.chat import ChatDialect
from quine.providers.http import HttpGuest
from tests.support.blocking import BlockingGuest

FAR = "https://models.example.org/v1"
ASKED = Request([Message("user", "do")], ())
VARIABLES = [f"{name}_proxy" for name in ("http", "https", "all", "no")]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *map(str.upper, VARIABLES), "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ({"https_proxy": "p:1", "HTTPS_PROXY": "q:1"}, "http://p:1"),
        ({"all_proxy": "http://p:1"}, "http://p:1"),
        ({"http_proxy": "http://p:1"}, ""),
        ({"https_proxy": "p:1", "no_proxy": "example.org"}, ""),
        ({"https_proxy": "p:1", "no_proxy": ".example.org"}, ""),
        ({"https_proxy": "p:1", "no_proxy": "*.example.org"}, ""),
        ({"https_proxy": "p:1", "no_proxy": "a.b, models.example.org:443"}, ""),
        ({"https_proxy": "p:1", "no_proxy": "models.example.org:80"}, "http://p:1"),
        ({"https_proxy": "p:1", "no_proxy": "ample.org"}, "http://p:1"),
        ({"https_proxy": "p:1", "no_proxy": "*"}, ""),
        ({"https_proxy": "p:1", "NO_PROXY": "::1/128,[::1],10.0.0.0/8"}, "http://p:1"),
    ],
)
def test_the_proxy_of_a_server(environ: dict[str, str], proxy: str) -> None:
    assert route_of(FAR, environ).proxy == proxy


@pytest.mark.parametrize(
    ("word", "direct"),
    [
        ("10.0.0.0/8", True),
        ("10.1.2.3", True),
        ("10.1.2.0/30", True),
        ("10.1.2.3:8000", True),
        ("10.1.2.3:80", False),
        ("11.0.0.0/8", False),
    ],
)
def test_a_network_in_no_proxy(word: str, direct: bool) -> None:
    route = route_of("http://10.1.2.3:8000/v1", {"http_proxy": "p:1", "no_proxy": word})
    assert bool(route.proxy) is not direct


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "m.localhost", "[::1]"])
def test_nothing_stands_before_a_server_of_this_machine(host: str) -> None:
    """NO_PROXY=::1/128, a SOCKS proxy or a missing SSL_CERT_FILE made every agent of a local model fail."""
    environ = {"NO_PROXY": "::1/128", "ALL_PROXY": "socks://x", "SSL_CERT_FILE": "/nowhere"}
    route = route_of(f"http://{host}:8080/v1", environ)
    assert route == ("", "", "", "", False)
    assert is_here(host.strip("[]"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ALL_PROXY", "socks://me:secret@p:1", "socks:// is no proxy that is known"),
        ("all_proxy", "socks5://p:1", "a SOCKS proxy needs the package socksio"),
        ("https_proxy", "http://", "it names no host"),
        ("HTTPS_PROXY", "http://p:x", ""),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(name: str, value: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        route_of(FAR, {name: value})
    assert str(caught.value).startswith(f"{name}=") and says in str(caught.value)
    assert "secret" not in str(caught.value) and caught.value.hint and caught.value.status == 2


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for name, path in (
        ("SSL_CERT_FILE", empty),
        ("SSL_CERT_FILE", tmp_path / "no"),
        ("SSL_CERT_DIR", tmp_path / "no"),
    ):
        with pytest.raises(Refused, match=f"{name}={path}") as caught:
            client_of(route_of(FAR, {name: str(path)}))
        assert caught.value.status == 2 and caught.value.hint


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:pass@word@h/x", "http://h/x"),
        ("http://h/x@y", "http://h/x@y"),
        ("http://h?a=@b", "http://h?a=@b"),
        ("h", "h"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


class Listener:
    """A server on 127.0.0.1 that gives each connection to a function."""

    def __init__(self, answer: object) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            try:
                self._answer(connection)  # type: ignore[operator]
            except OSError:
                pass
            connection.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def own_certificate(tmp_path: Path) -> Path:
    path = tmp_path / "own.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    subprocess.run(
        [*command, "-keyout", path, "-out", tmp_path / "c", "-subj", "/CN=localhost", "-days", "2"],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + (tmp_path / "c").read_text())
    return path


@pytest.fixture
def secure(own_certificate: Path) -> Iterator[Listener]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own_certificate)
    made = Listener(lambda connection: context.wrap_socket(connection, server_side=True).recv(1))
    yield made
    made.close()


def fails(base: str) -> tuple[Exception, list[float]]:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    guest = BlockingGuest(lambda: HttpGuest(ChatDialect("m"), base, "", pause=pause))
    try:
        with pytest.raises((Refused, Unavailable)) as caught:
            guest.infer(ASKED)
    finally:
        guest.close()
    return caught.value, pauses


def test_a_certificate_that_is_not_trusted_is_said_at_once(secure: Listener) -> None:
    """It read "operation not permitted", after four tries."""
    error, pauses = fails(f"https://localhost:{secure.port}/v1")
    assert isinstance(error, Refused) and error.status == 2
    assert (
        "certificate verify failed: self-signed certificate" in str(error) and "SSL_CERT_FILE" in error.hint
    )
    assert pauses == []


def test_a_server_without_tls_is_told_from_one_that_is_down() -> None:
    plain = Listener(lambda connection: (connection.recv(9), connection.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")))
    try:
        error, pauses = fails(f"https://localhost:{plain.port}/v1")
    finally:
        plain.close()
    assert isinstance(error, Refused) and "speaks no TLS" in str(error) and pauses == []


@pytest.mark.parametrize(
    ("status", "kind"), [(b"407 Proxy Authentication Required", Refused), (b"502 Bad Gateway", Unavailable)]
)
def test_what_a_proxy_says_is_told_as_its_own(
    status: bytes, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    proxy = Listener(answer)
    monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{proxy.port}")
    try:
        error, _ = fails("https://models.example.org/v1")
    finally:
        proxy.close()
    assert isinstance(error, kind)
    assert f"the proxy http://127.0.0.1:{proxy.port} (https_proxy)" in str(error) and status[
        :3
    ].decode() in str(error)
    assert "secret" not in str(error)


def test_a_proxy_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and listens to nobody
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("ALL_PROXY", address)
        error, _ = fails("http://models.example.org/v1")
    assert f"by the proxy {address} (ALL_PROXY)" in str(error) and "refused" in str(error)
