"""The way to a model server: its proxy and its certificates, by the variables of the environment that all programs use.

Laws
1. A server of this machine is asked without a proxy and without certificates: nothing in the environment stands between
   it and its user.
2. A variable that cannot be used is named, with what is wrong with it. That is exit 2, and nothing is tried again.
3. NO_PROXY as curl reads it: names with all below them, addresses, networks, with or without a port. Words that are
   none of these match nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from urllib.parse import urlsplit

import httpx

from quine.base.errors import USAGE
from quine.base.messages import GuestError, Refused, Unavailable
from quine.providers.dialects.faults import printable
from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PROXIES = ("http", "https", "socks5", "socks5h")  # schemes
MISTAKEN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")  # of a server that speaks no TLS
DENIED = ("407", "403", "401")  # statuses of a proxy that another try does not change
BUNDLE, FOLDER = "SSL_CERT_FILE", "SSL_CERT_DIR"
WARM = 60.0  # seconds that an unused connection is kept: a command between two inferences often takes more than 5
KEPT = 64  # connections without work, of one client; more are closed
MOST_CLIENTS = 64  # addresses; of more those that nobody uses are closed


class Route(NamedTuple):
    """The way to one server. `variable` named the proxy."""

    proxy: str = ""
    variable: str = ""
    bundle: str = ""
    folder: str = ""
    secure: bool = False  # whether anything on the way is TLS


def route_of(url: str, environ: Mapping[str, str]) -> Route:
    """Return the way to the server of a URL. Raises Refused."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if is_here(host):
        return Route(secure=parts.scheme == "https")
    proxy, variable = "", ""
    if not _is_direct(host, parts.port or (443 if parts.scheme == "https" else 80), environ):
        proxy, variable = _proxy(parts.scheme, environ)
    secure = "https" in (parts.scheme, proxy.partition("://")[0])
    return Route(proxy, variable, environ.get(BUNDLE, ""), environ.get(FOLDER, ""), secure)


def is_here(host: str) -> bool:
    """Return whether the name or address is of this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def client_of(route: Route) -> httpx.AsyncClient:
    """Return a client for servers on this way. Raises Refused."""
    return httpx.AsyncClient(
        timeout=None,  # each request has its own
        follow_redirects=False,
        trust_env=False,
        proxy=route.proxy or None,
        # Where there is no TLS no certificates are loaded: that takes longer than all the rest.
        verify=_certificates(route) if route.secure else False,
        # No bound on their number: the gate has one. Of those without work few are kept, since the library looks at
        # each of them for each other one at every request: 200 agents took four seconds of a processor for an answer.
        limits=httpx.Limits(max_keepalive_connections=KEPT, keepalive_expiry=WARM),
    )


def _certificates(route: Route) -> ssl.SSLContext | bool:
    """Return the certificates to trust: those of the environment, else those that the HTTP library brings."""
    if not (route.bundle or route.folder):
        return True
    if route.folder and not os.path.isdir(route.folder):
        raise _unusable(
            FOLDER, route.folder, "it is no directory", "name a directory of certificates, or unset it"
        )
    try:
        return ssl.create_default_context(cafile=route.bundle or None, capath=route.folder or None)
    except (OSError, ssl.SSLError) as error:
        why = (
            "it holds no certificate"
            if isinstance(error, ssl.SSLError)
            else (error.strerror or str(error)).lower()
        )
        raise _unusable(
            BUNDLE, route.bundle, why, "name a file of certificates in PEM, or unset it"
        ) from None


def _proxy(scheme: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the proxy for a scheme and the variable that names it; "" if there is none."""
    for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"):
        if value := environ.get(name, "").strip():
            return _checked(value if "://" in value else f"http://{value}", name), name
    return "", ""


def _checked(proxy: str, name: str) -> str:
    kind = proxy.partition("://")[0].lower()
    if kind not in PROXIES:
        hint = f"one of {', '.join(f'{each}://' for each in PROXIES)}"
        raise _unusable(name, proxy, f"{kind}:// is no proxy that is known", hint)
    if kind.startswith("socks") and find_spec("socksio") is None:
        raise _unusable(
            name, proxy, "a SOCKS proxy needs the package socksio", "pip install socksio, or an http:// proxy"
        )
    try:
        if not httpx.URL(proxy).host:
            raise _unusable(name, proxy, "it names no host", "http://HOST:PORT")
    except httpx.InvalidURL as error:
        raise _unusable(name, proxy, str(error).lower(), "http://HOST:PORT") from None
    return proxy


def _unusable(name: str, value: str, why: str, hint: str) -> Refused:
    return Refused(f"{name}={printable(without_password(value), 200)} cannot be used: {why}", hint, USAGE)


def without_password(url: str) -> str:
    """Return `url` as it may be shown, without the user:password@ that authenticates at a proxy."""
    scheme, mark, rest = url.partition("//")
    end = min(at for at in (rest.find("/"), rest.find("?"), rest.find("#"), len(rest)) if at >= 0)
    place = rest[:end].rpartition("@")[2] + rest[end:]
    return f"{scheme}{mark}{place}" if mark else url


def _is_direct(host: str, port: int, environ: Mapping[str, str]) -> bool:
    """Return whether NO_PROXY names the host."""
    words = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").replace(",", " ").split()
    return any(_names(word.lower(), host, port) for word in words)


def _names(word: str, host: str, port: int) -> bool:
    if word == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(word.strip("[]"), strict=False)
    except ValueError:
        pass  # one of them is a name
    name, colon, number = word.rpartition(":")
    if colon and number.isdigit() and "]" not in number and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        word = name
    word = word.strip("[]").removeprefix("*").removeprefix(".")
    return bool(word) and (host == word or host.endswith(f".{word}"))


def why_unreached(error: BaseException, shown: str, route: Route) -> GuestError:
    """Return the error of a guest that has no connection, in the words of the system. The libraries wrap its error."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            now = f"; {BUNDLE} is {route.bundle}" if route.bundle else ""
            why = printable(seen.verify_message or str(seen)).lower()
            hint = f"{BUNDLE}=FILE names the certificates to trust{now}"
            return Refused(f"{shown}: certificate verify failed: {why}", hint, USAGE)
        if isinstance(seen, ssl.SSLError) and seen.reason in MISTAKEN:
            return Refused(f"{shown} speaks no TLS", "see QUINE_API_BASE: perhaps http:// is meant", USAGE)
        if isinstance(seen, ssl.SSLError):
            return Unavailable(f"{shown}: TLS: {printable(seen.reason or str(seen)).lower()}")
        if isinstance(seen, OSError) and seen.errno:
            # asyncio puts the address into the text of a refused connection, where the address is shown already.
            text = os.strerror(seen.errno) if seen.errno > 0 else seen.strerror or ""
            return _unreached(f"{_to(shown, route)}: {printable(text[:1].lower() + text[1:])}")
        seen = seen.__cause__ or seen.__context__
    text = printable(str(error))
    if isinstance(error, httpx.ProxyError) and route.proxy:
        told = (
            f"the proxy {without_password(route.proxy)} ({route.variable}) refuses the way to {shown}: {text}"
        )
        if text.startswith(DENIED):
            return Refused(told, f"see {route.variable}; NO_PROXY names servers that need no proxy", USAGE)
        return Unavailable(told)
    return _unreached(f"{_to(shown, route)}: {text or 'it does not answer'}")


def _unreached(detail: str) -> Unavailable:
    error = Unavailable(detail)
    error.reached = False
    return error


def _to(shown: str, route: Route) -> str:
    way = f" by the proxy {without_password(route.proxy)} ({route.variable})" if route.proxy else ""
    return f"cannot reach the model server at {shown}{way}"


class Connections:
    """The HTTP clients of a process: one for each base, with its warm connections.

    By HTTP/1.1, also where a server offers HTTP/2: over that, httpx does not reset the stream of a cancelled request,
    and the provider would write to its end, and charge, what nobody reads.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], _Client] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # httpcore imports it four times a request, and Python looks for a missing module in all folders each time.
        if find_spec("sniffio") is None:
            sys.modules["sniffio"] = None  # type: ignore[assignment]

    @contextlib.contextmanager
    def using(self, url: str, route: Route) -> Iterator[httpx.AsyncClient]:
        """Yield the client of a URL. One that nobody has used for a while is closed, with its connections."""
        scheme, _, rest = url.partition("://")
        base = (scheme, rest.partition("/")[0])
        found = self._clients.get(base)
        if found is None:
            self._make_room()
            found = self._clients[base] = _Client(client_of(route))
        if found.timer:
            found.timer.cancel()
            found.timer = None
        found.users += 1
        try:
            yield found.client
        finally:
            found.users -= 1
            self._clients[base] = self._clients.pop(base)  # in the order of their last use
            if not found.users:
                found.timer = asyncio.get_running_loop().call_later(WARM, self._drop, base)

    def _make_room(self) -> None:
        """Close the client that has been unused for longest, if there are many: anybody may name an address."""
        unused = [base for base, found in self._clients.items() if not found.users]
        if len(self._clients) >= MOST_CLIENTS and unused:
            self._drop(unused[0])

    def _drop(self, base: tuple[str, str]) -> None:
        dropped = self._clients.pop(base)
        if dropped.timer:
            dropped.timer.cancel()
        task = asyncio.get_running_loop().create_task(dropped.client.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for base in list(self._clients):
            self._drop(base)
        await asyncio.gather(*self._closing, return_exceptions=True)


class _Client:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.users = 0
        self.timer: asyncio.TimerHandle | None = None  # to close it
