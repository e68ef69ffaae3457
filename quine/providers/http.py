"""The only owner of sockets to guests: it sends the requests that a dialect makes, and retries where that can help.

Laws
1. A dialect is pure: values to a request body, an answer to values. It never sees this file.
2. Only Unavailable is tried again; a key, a quota, a model or a full context never is. The server can overrule this by
   `x-should-retry`, and sets the pause by Retry-After up to PATIENCE. A longer one ends the tries and is reported.
3. An answer that was cut, in whatever way, is no answer: nothing of it was acted upon, so it is asked for again.
4. A server's data is bounded in size and in the time without a byte, but not in its total time.
5. A cancelled inference closes its request: the server sees its client go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from importlib.util import find_spec

import httpx

from quine import __version__
from quine.base import backoff
from quine.base.errors import FAILED, USAGE, Misconfigured
from quine.base.messages import GuestError, Refused, Reply, Request, Unavailable, unheard
from quine.providers.bodies import encoded, fed, is_stream, parse, pieces, retry_after
from quine.providers.dialects import sse
from quine.providers.dialects.dialect import Dialect
from quine.providers.dialects.faults import Adapted, printable
from quine.providers.way import PATIENCE, Open, Outcome, Way
from quine.tape.redact import Mask
from transport.lean import Any

# Tries after the first one, by HTTP status: throttling is worth more tries than a defect of the server.
RETRIES = {429: 5, 529: 5}
OTHER_RETRIES = 3  # all other statuses, a network that fails, an answer that was cut or is not a reply
FIRST_PAUSE = (
    0.5  # seconds, doubled with each try, and up to half of it more: agents of a tree must not retry in step
)
LONGEST_PAUSE = 8.0
# Between two reads, not in total. Before the first byte a model may be loaded, or think, for minutes.
TIMEOUT = httpx.Timeout(600.0, connect=10.0)
MOST_CLIENTS = 64  # addresses; of more those that nobody uses are closed
WARM = 60.0  # seconds that an unused connection is kept: a command between two inferences often takes more than 5
# A proxy in the environment serves the outside: it cannot reach a server on this machine.
HERE = ("127.0.0.1", "localhost", "[::1]")
NO_PROXY: dict[str, httpx.AsyncBaseTransport | None] = {f"all://{host}": None for host in HERE}
LARGEST = 64 << 20  # bytes of a body
LARGEST_STREAM = 4 * LARGEST  # on the wire each token has an envelope of some 200 bytes around it
LINGER = 0.5  # seconds that a complete answer may take to end


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
    def using(self, url: str) -> Iterator[httpx.AsyncClient]:
        """Yield the client of a URL. One that nobody has used for a while is closed, with its connections."""
        scheme, _, rest = url.partition("://")
        base = (scheme, rest.partition("/")[0])
        found = self._clients.get(base)
        if found is None:
            self._make_room()
            found = self._clients[base] = _Client(_made(url))
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


def _made(url: str) -> httpx.AsyncClient:
    # Plain HTTP on this machine needs no CA certificates; loading them takes longer than all the rest.
    plain = url.startswith(tuple(f"http://{host}{end}" for host in HERE for end in ":/"))
    return httpx.AsyncClient(
        timeout=TIMEOUT,
        follow_redirects=False,
        mounts=NO_PROXY,
        verify=not plain,
        limits=httpx.Limits(keepalive_expiry=WARM),  # no bound on their number: the gate has one
    )


class HttpGuest:
    def __init__(
        self,
        dialect: Dialect,
        base: str,
        key: str,
        *,
        timeout: httpx.Timeout = TIMEOUT,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        connections: Connections | None = None,
    ) -> None:
        try:
            httpx.URL(base)
        except httpx.InvalidURL as error:
            raise Misconfigured(f"QUINE_API_BASE is no URL: {error}") from None
        if not base.startswith(("http://", "https://")):
            raise Misconfigured(
                f"QUINE_API_BASE must begin with http:// or https://, not {_without_password(base)!r}"
            )
        self._dialect = dialect
        self._url = dialect.url(base.rstrip("/"))
        self._shown = _without_password(self._url)
        self._mask = Mask([key])  # some servers quote the key that they refuse
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"quine/{__version__}",
            **dialect.headers(key),
        }
        self._timeout = timeout
        self._pause = pause
        self._connections = connections or Connections()

    async def infer(
        self, request: Request, note: Callable[[str], None] = unheard, way: Way | None = None
    ) -> Reply:
        """Return the reply. `note` is called with the reason of every try but the first. Raise a GuestError."""
        body, way = self._body(request), way or Open()
        failed = 0
        while True:
            outcome = await self._try(body, way)
            fault = outcome.told
            if isinstance(fault, Reply):
                return fault
            if isinstance(fault, Adapted):
                changed = self._body(request)
                if changed != body:
                    note(f"asked again without what the server refused: {fault}")
                    body = changed
                    continue
                fault = self._masked(fault.fault)
            if not isinstance(fault, Unavailable):
                raise fault
            failed += 1
            await self._wait(failed, 0 if outcome.final else _tries(outcome.status), fault, note)

    async def _try(self, body: list[bytes], way: Way) -> Outcome:
        outcome, status, final = None, 0, False
        await way.enter()
        try:
            with self._connections.using(self._url) as client:
                response = await self._send(client, body)
                try:
                    status = response.status_code
                    final = response.headers.get("x-should-retry") == "false"
                    outcome = Outcome(await self._read(response, way.heard), status, final)
                finally:
                    await response.aclose()
        except GuestError as error:
            outcome = Outcome(self._masked(error), status, final)
        finally:
            way.leave(outcome)
        return outcome

    async def _wait(self, failed: int, limit: int, fault: Unavailable, note: Callable[[str], None]) -> None:
        """Wait until the next try; raise `fault` if there is none."""
        if fault.after is not None and fault.after > PATIENCE:
            raise Unavailable(f"{fault}; it asks to wait {fault.after:.0f} s", fault.after)
        if failed > limit:
            raise fault
        seconds = _pause(failed, fault.after)
        note(f"try {failed + 1} of {limit + 1} in {seconds:.1f} s: {fault}")
        await self._pause(seconds)

    def _masked(self, fault: GuestError) -> GuestError:
        fault.args = tuple(map(self._mask.of, fault.args))
        return fault

    async def close(self) -> None:
        await self._connections.close()

    def _body(self, request: Request) -> list[bytes]:
        return list(encoded(self._dialect.body(request)))

    async def _send(self, client: httpx.AsyncClient, body: list[bytes]) -> httpx.Response:
        """Return the response, of which only the head has been read."""
        try:
            headers = {**self._headers, "Content-Length": str(sum(map(len, body)))}
            request = client.build_request(
                "POST", self._url, content=pieces(body), headers=headers, timeout=self._timeout
            )
            return await client.send(request, stream=True)
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, UnicodeError):
            # The text of the error is left out: it may show the header with the key.
            raise Refused(
                "the request cannot be sent", "see QUINE_API_BASE and QUINE_API_KEY", USAGE
            ) from None
        except httpx.HTTPError as error:
            raise Unavailable(self._why(error)) from None

    def _why(self, error: httpx.HTTPError) -> str:
        silent = isinstance(error, httpx.ReadTimeout)
        text = f"nothing came for {self._timeout.read:.0f} s" if silent else printable(str(error))
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return (
                f"cannot reach the model server at {self._shown}: {_unreached(error) or 'it does not answer'}"
            )
        return f"{self._shown}: {text or type(error).__name__}"

    async def _read(self, response: httpx.Response, heard: Callable[[], None]) -> Reply:
        if response.is_success and is_stream(response.headers):
            return self._dialect.reply(await self._streamed(response, heard))
        if response.is_success:
            heard()
        try:
            raw = b"".join([chunk async for chunk in _chunks(response, LARGEST)])
        except httpx.HTTPError as error:
            raise Unavailable(self._why(error)) from None
        if response.has_redirect_location:
            # Not followed: the key would be sent to wherever the redirect points.
            to = printable(_without_password(response.headers["location"]))
            raise Refused(f"{self._shown} has moved to {to}", "see QUINE_API_BASE", USAGE)
        try:
            data = parse(raw)
        except ValueError:
            data = raw.decode("utf-8", "replace")
        if response.is_success:
            return self._dialect.reply(data)
        fault = self._dialect.fault(response.status_code, self._mask.of(data))
        after = retry_after(response.headers)
        if _is_plain(fault) and response.headers.get("x-should-retry") == "true":
            fault = Unavailable(str(fault))
        if isinstance(fault, Unavailable) and after is not None:
            fault.after = after
        raise fault

    async def _streamed(self, response: httpx.Response, heard: Callable[[], None]) -> Any:
        """Return the whole of a streamed answer."""
        stream, decoder = self._dialect.stream(), sse.Decoder()
        chunks = _chunks(response, LARGEST_STREAM)
        broken = ""
        try:
            async for chunk in chunks:
                heard()
                if fed(stream, decoder.feed(chunk)):
                    await _drain(chunks)
                    break
            else:
                fed(stream, decoder.close())
        except httpx.HTTPError as error:
            broken = self._why(error)
        except sse.TooLong as error:
            raise Refused(str(error)) from None
        finally:
            await chunks.aclose()
        try:
            return stream.whole()
        except Unavailable as cut:
            raise Unavailable(f"{cut}: {broken}" if broken else str(cut), cut.after) from None


def _tries(status: int) -> int:
    return RETRIES.get(status, OTHER_RETRIES)


def _unreached(error: BaseException) -> str:
    """Return the reason why there is no connection, in the words of the system. The libraries wrap its error."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno:
            # asyncio puts the address into the text of a refused connection, where the address is shown already.
            text = os.strerror(seen.errno) if seen.errno > 0 else seen.strerror or ""
            return printable(text[:1].lower() + text[1:])
        seen = seen.__cause__ or seen.__context__
    return printable(str(error))


def _without_password(url: str) -> str:
    """Return `url` as it may be shown, without the user:password@ that authenticates at a proxy."""
    return re.sub(r"//[^/?#]*@", "//", url)


def _is_plain(fault: GuestError) -> bool:
    """Return True for a refusal without a known cause."""
    return isinstance(fault, Refused) and fault.status == FAILED


async def _chunks(response: httpx.Response, most: int) -> AsyncGenerator[bytes, None]:
    size = 0
    chunks: Any = response.aiter_bytes()
    try:
        async for chunk in chunks:
            size += len(chunk)
            if size > most:
                raise Refused(f"the server's answer is larger than {most >> 20} MiB")
            yield chunk
    finally:
        await chunks.aclose()


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read a complete answer to its end: only then can its connection serve the next one.

    A server that sends [DONE] and leaves the connection open is cut off after LINGER.
    """

    async def rest() -> None:
        async for _ in chunks:
            pass

    try:
        await asyncio.wait_for(rest(), LINGER)
    except (httpx.HTTPError, asyncio.TimeoutError):  # the answer is complete, whatever comes now
        pass


def _pause(failed: int, after: float | None) -> float:
    if after is not None and after > 0:
        return after * (1 + 0.1 * random.random())  # never earlier than the server asks
    return backoff.pause(failed, FIRST_PAUSE, LONGEST_PAUSE, jitter=(1, 1.5))
