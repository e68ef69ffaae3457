"""Sends the binary to a host that lacks it, and reads the answers of the installer there.

Laws
1. Nothing is sent to a host that does not meet the requirements.
2. The host says `have` only after it has verified and unpacked the binary.
3. The deadline moves with the phase: so many seconds for a megabyte, so many to unpack.
4. Bytes that the host has kept of an upload that was cut off are not sent again.
5. A command of the user's that ends without an answer, after the host has given one, counts as cut off, whatever its
   status.
6. An upload that is cut off is taken up again for as long as one of VAIN connections adds to the bytes there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

from deploy import host_requirements, probe
from deploy.build import Binary
from deploy.probe import Answers, Facts, Place
from deploy.there import installer
from transport.carrier.duplex import Bootstrap
from transport.errors import Interrupted, Unreachable

CHUNK = 256 << 10
SLOWEST = 64 << 10  # bytes per second that an upload must at least make
UPLOAD_SECONDS = 30  # on top of that
# Without a bound, twenty uploads by a slow line are each slower than an upload may be, and all of them fail.
UPLOADS = 5  # at one time
WAIT = 3600.0  # seconds for a place among them, which do not count for the deadline of a host
UNPACK_SECONDS = 2 * installer.START_SECONDS
VAIN = 4  # connections in a row that bring nothing new
PAUSE = (
    0.5  # seconds before an upload is taken up again; doubled after each connection that brought nothing new
)

_T = TypeVar("_T")


class UploadCut(Interrupted):
    """The upload did not get through. `kept`: the bytes that the host had before it."""

    def __init__(self, host: str, detail: str, kept: int) -> None:
        super().__init__(host, detail, "run it again: it goes on behind the bytes that are there")
        self.kept = kept


async def repeated(attempt: Callable[[], Awaitable[_T]], again: Callable[[str], None]) -> _T:
    """Return the result of an attempt, made again while UploadCut ends it: law 6. `again` is told why before each."""
    kept, vain = -1, 0
    while True:
        try:
            return await attempt()
        except UploadCut as cut:
            vain = 0 if cut.kept > kept else vain + 1
            if vain == VAIN:
                raise
            kept = max(kept, cut.kept)
            again(cut.detail)
            await asyncio.sleep(
                PAUSE * 2**vain
            )  # the installer before may still write, on a host that is busy


async def push(
    host: str,
    binary: Binary,
    place: Place,
    facts: Facts,
    mode: str,
    duplex: Bootstrap,
    answers: Answers,
    allow: Callable[[float, str], None],
) -> None:
    """Send the binary; return when the host says `have`. `allow(seconds, phase)` moves the deadline."""
    host_requirements.check(host, binary, facts, place.python)
    kept, size = left(binary, facts)
    async with uplink().place(size, allow) as count:
        allow(UPLOAD_SECONDS + UNPACK_SECONDS + size / SLOWEST, f"send {size >> 10} kB")
        with contextlib.suppress(ConnectionError):  # the host gave up early: its last words say why
            await _send(binary, place, kept, mode, duplex, answers, count)
        answer = await answer_behind(host, duplex, answers, kept)
    if answer != "have":
        raise failed(host, answer, kept)


def failed(host: str, answer: str, kept: int, before: int = 0) -> Unreachable:
    """Return the error for an upload behind `kept` bytes and `before` others; UploadCut if another may succeed."""
    word, _, text = answer.removeprefix("fail ").partition(" ")
    failure = host_requirements.failed(host, word, text)
    again = word == "cut" or (kept and word in ("moved", "corrupt"))
    return UploadCut(host, failure.detail, before + kept) if again else failure


async def answer_behind(host: str, duplex: Bootstrap, answers: Answers, kept: int) -> str:
    """Return the answer to an upload. Raises UploadCut if the connection ends before it."""
    try:
        return await next_answer(host, duplex, answers)
    except Interrupted as lost:
        raise UploadCut(host, lost.detail, kept) from None


def left(binary: Binary, facts: Facts) -> tuple[int, int]:
    """Return how many bytes of the binary are of use there, and how many are to be sent."""
    kept = facts.kept if facts.kept < binary.size else 0
    return kept, binary.size - kept


async def _send(
    binary: Binary,
    place: Place,
    kept: int,
    mode: str,
    duplex: Bootstrap,
    answers: Answers,
    count: Callable[[int], None],
) -> None:
    """Send the installer as text, with its call at the end; then the file from byte `kept` on."""
    facts = (
        answers.marker,
        place.cache,
        place.name(binary),
        binary.sha256,
        binary.size,
        kept,
        place.setup,
        mode,
    )
    call = f"main({', '.join(map(repr, facts))}, sys.stdin.buffer)\n"
    program = Path(installer.__file__).read_bytes() + b"\n" + call.encode()
    duplex.write(f"{len(program)}\n".encode() + program)
    await send_file(binary.path, kept, duplex, count)


async def send_file(path: Path, kept: int, duplex: Bootstrap, count: Callable[[int], None]) -> None:
    """Send a file from byte `kept` on; call `count` with the size of each part.

    Raises ConnectionError if the other side ends.
    """
    with open(path, "rb") as file:
        file.seek(kept)
        while not duplex.broken and (data := file.read(CHUNK)):
            duplex.write(data)
            await duplex.drain()
            count(len(data))


async def next_answer(host: str, duplex: Bootstrap, answers: Answers) -> str:
    """Return the next marked line. Raises Unreachable if the other side ends, or says other things."""
    while True:
        try:
            answer = answers.next()
        except ValueError as error:
            speaker = "command" if answers.program else "login shell"
            raise Unreachable(
                host, f"its {speaker} speaks out of turn: {error}", _shell_hint(host, answers)
            ) from None
        if answer is not None:
            return answer
        data = await duplex.read()
        if not data:
            raise _ended(host, duplex, answers)
        answers.feed(data)


def _ended(host: str, duplex: Bootstrap, answers: Answers) -> Unreachable:
    """Return the error for an end without an answer."""
    by_hand = answers.by_hand or f"ssh {host} true"
    again = f"run it again; if it stays, try: {by_hand}"
    if duplex.broken:
        detail = f"the connection was lost before its shell had answered: {duplex.broken}"
        return Interrupted(host, detail, again)
    said = probe.plain(answers.banner + answers.rest() + duplex.stderr)
    last = (said.strip().splitlines() or ["nothing"])[-1][:300].rstrip(".")
    end = f"({duplex.ending}); its last words: {last}"
    if answers.program and answers.heard:
        return Interrupted(host, f"its command ended without an answer {end}", again)
    subject = "command leads to no shell" if answers.program else "login shell did not run the command"
    return Unreachable(host, f"its {subject} {end}", _shell_hint(host, answers))


def _shell_hint(host: str, answers: Answers) -> str:
    if answers.program:
        return f"{answers.by_hand} must end with status 0 and print nothing"
    by_hand = answers.by_hand or f"ssh {host} true"
    return f"{by_hand} must work: look at the login shell, ForceCommand and the shell's start files there"


class Uplink:
    """`announced`: bytes of all uploads that are waited for, under way or done; `sent`: those handed to connections."""

    def __init__(self) -> None:
        self.announced = 0
        self.sent = 0
        self._places = asyncio.Semaphore(UPLOADS)

    @contextlib.asynccontextmanager
    async def place(
        self, size: int, allow: Callable[[float, str], None]
    ) -> AsyncIterator[Callable[[int], None]]:
        """Hold one of the places for an upload of `size` bytes; give the function that counts those sent."""
        mine = 0

        def count(bytes_sent: int) -> None:
            nonlocal mine
            mine += bytes_sent
            self.sent += bytes_sent

        self.announced += size
        try:
            allow(WAIT, "wait for a place among the uploads")
            async with self._places:
                yield count
        finally:
            self.announced -= size - mine  # those that a cut kept back are announced again


_uplinks: WeakKeyDictionary[asyncio.AbstractEventLoop, Uplink] = WeakKeyDictionary()


def uplink() -> Uplink:
    """Return that of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _uplinks:
        _uplinks[loop] = Uplink()
    return _uplinks[loop]
