"""The only owner of sockets to guests: it sends the requests that a dialect makes, and retries where that can help.

Laws
1. A dialect is pure: values to a request body, an answer to values. It never sees this file.
2. Only Unavailable is tried again; a key, a quota, a model or a full context never is. The server can overrule this by
   `x-should-retry`, and sets the pause by Retry-After up to PATIENCE. A longer one ends the tries and is reported.
3. An answer that was cut, in whatever way, is no answer: nothing of it was acted upon, so it is asked for again. It was
   paid all the same: its way is told what it used before another try is made.
4. A server's data is bounded in size and in the time without a byte, but not in its total time. Signs of life are no
   data: after STALLED seconds of them alone an answer that has begun is given up.
5. An answer is judged by its first bytes: servers and proxies label it wrongly.
6. A cancelled inference closes its request: the server sees its client go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import httpx

from quine import __version__
from quine.base import backoff
from quine.base.errors import USAGE, Misconfigured
from quine.base.messages import GuestError, Malformed, Refused, Reply, Request, Unavailable, Usage, unheard
from quine.providers.bodies import below, encoded, fed, is_stream, parse, pieces, retry_after
from quine.providers.connecting import Connections, Route, route_of, why_unreached, without_password
from quine.providers.dialects import sse
from quine.providers.dialects.dialect import Dialect, Stream
from quine.providers.dialects.faults import Adapted, printable
from quine.providers.lessons import Lesson, Lessons, is_plain
from quine.providers.way import PATIENCE, Open, Outcome, Wait, Way
from quine.tape.redact import Mask
from transport.lean import Any

# Tries after the first one, by HTTP status: throttling is worth more tries than a defect of the server.
RETRIES = {429: 5, 529: 5}
OTHER_RETRIES = 3  # all other statuses, a network that fails, an answer that was cut or is not a reply
MALFORMED_RETRIES = 2  # calls that the server itself cannot read: then the model is told
FIRST_PAUSE = (
    0.5  # seconds, doubled with each try, and up to half of it more: agents of a tree must not retry in step
)
LONGEST_PAUSE = 8.0
# Between two reads, not in total. Before the first byte a model may be loaded, or think, for minutes.
TIMEOUT = httpx.Timeout(600.0, connect=10.0)
QUESTION = httpx.Timeout(10.0)  # for what a server tells of itself
LARGEST = 64 << 20  # bytes of a body
LARGEST_STREAM = 4 * LARGEST  # on the wire each token has an envelope of some 200 bytes around it
LINGER = 0.5  # seconds that a complete answer may take to end
LATE = 10.0  # seconds in which the rest may come, usage or a last part, behind the reason of an end
STALLED = 300.0
TOO_LARGE = "the server's answer is larger than {} MiB"


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
                f"QUINE_API_BASE must begin with http:// or https://, not {without_password(base)!r}"
            )
        self._dialect = dialect
        self._base = base.rstrip("/")
        self._url = dialect.url(self._base)
        self._shown = without_password(self._url)
        self._mask = Mask([key])  # some servers quote the key that they refuse
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"quine/{__version__}",
            **dialect.headers(key),
        }
        self._timeout = timeout
        self._pause = pause
        self._connections = connections or Connections()
        self._lessons = Lessons(dialect.OWN)

    @property
    def kind(self) -> str:
        return self._dialect.KIND

    @property
    def host(self) -> str:
        """The name or address of the server."""
        return self._dialect.host

    @property
    def lessons(self) -> list[str]:
        """The optional parts of a request that are left out, since this server refuses them for this model."""
        return self._lessons.all()

    async def infer(
        self, request: Request, note: Callable[[str], None] = unheard, way: Way | None = None
    ) -> Reply:
        """Return the reply. `note` is called with the reason of every try but the first. Raise a GuestError."""
        way, failed = way or Open(), 0
        lesson = Lesson(self._lessons.of(way.tree))
        body = self._body(request, lesson.without)
        while True:
            outcome = await self._try(body, way)
            fault = outcome.told
            if isinstance(fault, Reply):
                self._lessons.keep(way.tree, lesson)
                for call in fault.message.tool_calls:
                    if call.repair:
                        note(f"the arguments of {call.name} were repaired: {call.repair}")
                return fault
            if lesson.learn(fault) and (changed := self._body(request, lesson.without)) != body:
                note(f"asked again {lesson.change}: {fault}")
                body = changed
                continue
            if isinstance(fault, Adapted):
                fault = self._masked(fault.fault)
            if not isinstance(fault, (Unavailable, Malformed)):
                raise fault
            failed += 1
            await self._wait(failed, 0 if outcome.final else _tries(outcome.status, fault), fault, note)
            if fault.usage is not None:
                output, cost = await way.broke_off(fault.usage) or (request.output, request.cost)
                request = request._replace(output=output, cost=cost)
                body = self._body(request, lesson.without)

    async def _try(self, body: list[bytes], way: Way) -> Outcome:
        outcome, status, final = None, 0, False
        await way.enter()
        try:
            with self._connections.using(self._url, self._route()) as client:
                response = await self._send(client, body)
                try:
                    status = response.status_code
                    final = response.headers.get("x-should-retry") == "false"
                    outcome = Outcome(await self._read(response, way), status, final)
                finally:
                    await response.aclose()
        except GuestError as error:
            outcome = Outcome(self._masked(error), status, final)
        finally:
            way.leave(outcome)
        return outcome

    async def _wait(
        self, failed: int, limit: int, fault: Unavailable | Malformed, note: Callable[[str], None]
    ) -> None:
        """Wait until the next try; raise `fault` if there is none."""
        after = fault.after if isinstance(fault, Unavailable) else None
        if after is not None and after > PATIENCE:
            told = Unavailable(f"{fault}; it asks to wait {after:.0f} s", after)
            told.usage = fault.usage
            raise told
        if failed > limit:
            raise fault
        seconds = _pause(failed, after)
        note(Wait(str(fault), seconds, number=f"{failed + 1} of {limit + 1}").note)
        await self._pause(seconds)

    def _masked(self, fault: GuestError) -> GuestError:
        fault.args = tuple(map(self._mask.of, fault.args))
        return fault

    async def get(self, path: str) -> Any:
        """Return the JSON at a path below the server's base, or below its root if it begins with a slash.

        Raises GuestError if there is none. Nothing is tried again.
        """
        url = below(self._base, path)
        headers = {name: value for name, value in self._headers.items() if name != "Content-Type"}
        try:
            with self._connections.using(url, self._route()) as client:
                request = client.build_request("GET", url, headers=headers, timeout=QUESTION)
                response = await client.send(request, stream=True)
                try:
                    data = _value(await self._whole(_chunks(response, LARGEST)))
                finally:
                    await response.aclose()
        except httpx.HTTPError as error:
            raise self._masked(self._fault(error)) from None
        if not response.is_success or isinstance(data, str):
            raise self._masked(self._dialect.fault(response.status_code, self._mask.of(data)))
        return data

    async def close(self) -> None:
        await self._connections.close()

    def _body(self, request: Request, without: frozenset[str] = frozenset()) -> list[bytes]:
        return list(encoded(self._dialect.body(request, without)))

    def _route(self) -> Route:
        """Return the way to the server by the environment of now. Raises Refused, naming the variable at fault."""
        return route_of(self._url, os.environ)

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
            raise self._fault(error) from None

    def _fault(self, error: httpx.HTTPError) -> GuestError:
        """Return the error of the network as one of a guest."""
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
            return why_unreached(error, self._shown, self._route())
        return Unavailable(self._why(error))

    def _why(self, error: httpx.HTTPError) -> str:
        silent = isinstance(error, httpx.ReadTimeout)
        text = f"nothing came for {self._timeout.read:.0f} s" if silent else printable(str(error))
        return f"{self._shown}: {text or type(error).__name__}"

    async def _read(self, response: httpx.Response, way: Way) -> Reply:
        if response.is_success:
            return await self._answered(response, way)
        raw = await self._whole(_chunks(response, LARGEST))
        if response.has_redirect_location:
            # Not followed: the key would be sent to wherever the redirect points.
            to = printable(without_password(response.headers["location"]))
            raise Refused(f"{self._shown} has moved to {to}", "see QUINE_API_BASE", USAGE)
        fault = self._dialect.fault(response.status_code, self._mask.of(_value(raw)))
        after = retry_after(response.headers)
        if is_plain(fault) and response.headers.get("x-should-retry") == "true":
            fault = Unavailable(str(fault))
        if isinstance(fault, Unavailable) and after is not None:
            fault.after = after
        raise fault

    async def _answered(self, response: httpx.Response, way: Way) -> Reply:
        """Return the reply of an answer that began well, streamed or not."""
        chunks = _chunks(response, LARGEST_STREAM)
        first = b""
        try:
            async for chunk in chunks:
                way.heard()
                first += chunk
                if first.strip() or len(first) > LARGEST:
                    break
            if is_stream(first, response.headers):
                return await self._streamed(first, chunks, way)
            way.is_whole = True
            data = _value(await self._whole(chunks, first))
        except httpx.HTTPError as error:
            raise self._fault(error) from None
        finally:
            await chunks.aclose()
        try:
            return self._dialect.reply(data)
        except GuestError as error:
            used = self._dialect.usage(data) if isinstance(data, dict) else Usage()
            error.usage = used if used.input or used.output else None
            raise

    async def _whole(self, chunks: AsyncIterator[bytes], first: bytes = b"") -> bytes:
        """Return a body that is no stream, and begins with `first`."""
        raw = bytearray(first)
        try:
            async for chunk in chunks:
                raw += chunk
                if len(raw) > LARGEST:
                    break
        except httpx.HTTPError as error:
            raise self._fault(error) from None
        if len(raw) > LARGEST:
            raise Refused(TOO_LARGE.format(LARGEST >> 20))
        return bytes(raw)

    async def _streamed(self, first: bytes, chunks: AsyncGenerator[bytes, None], way: Way) -> Reply:
        """Return the reply of a streamed answer whose `first` bytes have been read."""
        stream, decoder, broken = self._dialect.stream(), sse.Decoder(), ""
        try:
            over = fed(stream, decoder.feed(first))
            while not over and (chunk := await _next(chunks, stream)) is not None:
                over = fed(stream, decoder.feed(chunk))
            if over:
                await _drain(chunks)
            else:
                fed(stream, decoder.close())
        except httpx.HTTPError as error:
            broken = self._why(error)
        except sse.TooLong as error:
            raise Refused(str(error)) from None
        except GuestError as error:
            raise self._counted(error, stream) from None
        except BaseException:  # cancelled
            way.so_far = self._so_far(stream)
            raise
        try:
            return self._dialect.reply(stream.whole())
        except Unavailable as cut:
            told = Unavailable(f"{cut}: {broken}" if broken else str(cut), cut.after)
            raise self._counted(told, stream) from None
        except GuestError as error:
            raise self._counted(error, stream) from None

    def _so_far(self, stream: Stream) -> Reply | None:
        """Return the part of an answer that has come; None if it cannot be read."""
        with contextlib.suppress(Exception):  # of the server's half answer
            return self._dialect.reply(stream.begun())
        return None

    def _counted(self, fault: GuestError, stream: Stream) -> GuestError:
        """Return the error of an answer, with what its provider counts if it had begun."""
        if stream.events and not isinstance(fault, Adapted):
            with contextlib.suppress(Exception):  # it is what the server said that cannot be read
                fault.usage = Usage()
                fault.usage = self._dialect.usage(stream.begun())
        return fault


def _value(raw: bytes) -> Any:
    """Return what is in a body: JSON, or its text."""
    try:
        return parse(raw)
    except ValueError:
        return raw.decode("utf-8", "replace")


async def _next(chunks: AsyncGenerator[bytes, None], stream: Stream) -> bytes | None:
    """Return the next bytes; None if the answer is over, also where its server leaves it open.

    Raise Unavailable if it stalls.
    """
    if stream.events and stream.quiet > STALLED:
        raise Unavailable(f"nothing but signs of life came for {STALLED:.0f} s")
    try:
        if not stream.complete:
            return await chunks.__anext__()
        return await asyncio.wait_for(chunks.__anext__(), LINGER if stream.settled else LATE)
    except (StopAsyncIteration, asyncio.TimeoutError):
        return None


def _tries(status: int, fault: GuestError) -> int:
    return MALFORMED_RETRIES if isinstance(fault, Malformed) else RETRIES.get(status, OTHER_RETRIES)


async def _chunks(response: httpx.Response, most: int) -> AsyncGenerator[bytes, None]:
    size = 0
    chunks: Any = response.aiter_bytes()
    try:
        async for chunk in chunks:
            size += len(chunk)
            if size > most:
                raise Refused(TOO_LARGE.format(most >> 20))
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
