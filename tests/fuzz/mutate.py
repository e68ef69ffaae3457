"""Mutation fuzzing: valid recordings in, broken ones out, and the watch over a parser that is fed with them.

Laws
1. Seeded: the same target, seed and number make the same input; a failure names both and shows the input.
2. Structure first: JSON is changed as a value and frames as frames, so that what is behind a parser's first check is
   reached too; then bytes are changed as bytes.
3. A parser may raise what it declares and nothing else, may not hold more than a bound, and may not take long.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.hostile_guest import MEGABYTE, RAW, mutated
from transport.wire.frames import CHUNK, GREETING, HEADER, NAMES, Decoder, Frame, encode

VOLUME = int(os.environ.get("QUINE_TEST_FUZZ", 200_000))  # bytes for each parser
LONGEST = 256 * 1024  # bytes of one input
GIANT = 2000  # bytes that a longer input counts for: a handful of giants would be the whole test
SLOW = 5.0  # seconds of processor time that one input may take, on a machine with others on it
GREEDY = 96 * MEGABYTE  # bytes that a parser may hold at one time, beyond those of the test

Recordings = Sequence[bytes]
Mutate = Callable[[random.Random, Recordings], bytes]

NUMBERS = (0, 1, 2, 3, 7, 17, 18, 127, 128, 255, 256, 65517, 65518, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1,
           2**32, 2**53, 2**63, 2**64 - 1)  # fmt: skip
WORDS = (
    *RAW, "NaN", "-Infinity", "1e999", "-1e999", "1E400", "9" * 4301, '"\\ud800"', "\\u0000",
    "[" * 2000, '{"":' * 500,
    "\r\n", "\n", "\n\n", "\r", "\0", "\ufeff", "data: ", "event: ", ":", "[DONE]", "null", "true", "{}", "[]",
    '"', "\\",
    "\x1b]0;x\x07", "\x85", "\u2028", "%s", "../../", "/", "..", "-", " " * 300,
)  # fmt: skip
TOKENS = (
    *(word.encode("utf-8", "surrogatepass") for word in WORDS),
    *(b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x80", GREETING, HEADER.pack(0xFFFFFFFF, 4, 1, 1, 0)),
)


class Target(NamedTuple):
    """A parser: its recordings, their mutation, the function that feeds it bytes, the errors it may raise."""

    recordings: Recordings
    feed: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    mutate: Mutate


class Outcome(NamedTuple):
    taken: int
    refused: int

    def both(self) -> None:
        """Neither is everything refused nor everything taken: the fuzz is at the border."""
        assert min(self) > 0, self


def bombard(name: str, target: Target, volume: int = VOLUME, seed: str = "20261122") -> Outcome:
    """Feed the recordings, then `volume` bytes of broken ones. Raise AssertionError for the first fault."""
    taken = refused = size = number = 0
    for recording in target.recordings:
        target.feed(recording)  # else nothing is tested but the first check
    before = peak()
    while size < volume:
        drawn = random.Random(f"{seed} {name} {number}")
        data = target.mutate(drawn, target.recordings)[:LONGEST]
        begun = time.process_time()
        try:
            target.feed(data)
            taken += 1
        except target.raises:
            refused += 1
        except Exception:
            trace = traceback.format_exc(limit=-6)
            raise AssertionError(f"{name} {number}: {_short(data)}\n{trace}") from None
        seconds = time.process_time() - begun
        assert seconds < SLOW, f"{name} {number}: {seconds:.1f} s for {_short(data)}"
        size += min(max(1, len(data)), GIANT)
        number += 1
    grown = peak() - before
    assert grown < GREEDY, f"{name}: {grown >> 20} MB more at one time"
    return Outcome(taken, refused)


def _short(data: bytes) -> str:
    return f"{len(data)} bytes {data[:600]!r}"


def peak() -> int:
    """The most memory resident since the last call, in bytes."""
    try:
        status = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not ours to reset: the most since the beginning
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


# -- how recordings are changed ----------------------------------------------------------------------


def of_bytes(drawn: random.Random, recordings: Recordings) -> bytes:
    data = bytearray(drawn.choice(recordings))
    for _ in range(drawn.choice((1, 1, 1, 2, 3, 8))):
        data = _changed(drawn, data, recordings)
    return bytes(data)


def _changed(drawn: random.Random, data: bytearray, recordings: Recordings) -> bytearray:
    at = drawn.randint(0, len(data))
    end = min(len(data), at + drawn.choice((1, 1, 2, 4, 8, 64, 1000)))
    kind = drawn.randrange(8)
    if kind == 0 and data:
        data[at - 1] ^= 1 << drawn.randrange(8)
    elif kind == 1 and data:
        data[at - 1] = drawn.choice((0, 10, 13, 32, 34, 44, 58, 91, 92, 93, 123, 125, 127, 128, 255))
    elif kind == 2:
        del data[at:end]
    elif kind == 3:
        data[at:at] = data[at:end] * drawn.choice((1, 2, 20))
    elif kind == 4:
        data[at:end] = drawn.choice(TOKENS)
    elif kind == 5:
        data[at:end] = drawn.randbytes(end - at)
    elif kind == 6:
        del data[at:]  # cut off
    else:
        other = drawn.choice(recordings)
        data[at:] = other[drawn.randint(0, len(other)) :]
    return data


def of_json(drawn: random.Random, recordings: Recordings) -> bytes:
    """One JSON text: changed as a value, spelled in odd ways, or changed as bytes."""
    if drawn.random() < 0.25:
        return of_bytes(drawn, recordings)
    try:
        value = json.loads(drawn.choice(recordings))
    except (ValueError, RecursionError):
        return of_bytes(drawn, recordings)  # broken by an earlier change
    for _ in range(drawn.choice((1, 1, 2, 4))):
        value = mutated(drawn, value)
    return _spelled(drawn, value)


def of_lines(drawn: random.Random, recordings: Recordings) -> bytes:
    """Mutate JSON lines: change one as JSON, or lose, double or reorder lines."""
    lines = drawn.choice(recordings).split(b"\n")
    kind = drawn.randrange(6)
    at = drawn.randrange(len(lines))
    if kind < 3 and lines[at]:
        lines[at] = of_json(drawn, [lines[at]])
    elif kind == 3:
        del lines[at]
    elif kind == 4:
        lines.insert(drawn.randrange(len(lines)), lines[at])
    else:
        return of_bytes(drawn, recordings)
    return b"\n".join(lines)


def _spelled(drawn: random.Random, value: Any) -> bytes:
    """JSON that a strict reader may stumble over: a name twice, numbers beyond floats, depth, odd space."""
    try:
        text = json.dumps(value, ensure_ascii=drawn.random() < 0.8)
    except (ValueError, RecursionError):
        return b"1" * 5000
    kind = drawn.randrange(12)
    if kind == 0 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + "," + text[1:]  # every name twice
    elif kind == 1:
        spots = [at for at, char in enumerate(text) if char.isdigit()]
        if spots:
            at = drawn.choice(spots)
            text = (
                text[:at] + drawn.choice(("1e999", "9" * 4301, "1e-999", "0x1", "01", "1.")) + text[at + 1 :]
            )
    elif kind == 2:
        depth = drawn.choice((150, 250, 900, 1100, 20_000))
        text = text.replace("null", "[" * depth + "]" * depth, 1)
    elif kind == 3:
        text = text.replace(drawn.choice(("true", "false", "0", "1", '""')), "NaN", 1)
    elif kind == 4:
        text = " \n\t" * 9 + text + " \r\n"
    return text.encode("utf-8", "surrogatepass")


def of_frames(drawn: random.Random, recordings: Recordings) -> bytes:
    """A connection: frames with another field, lost, doubled, in another order, with a lying length; then bytes."""
    whole = drawn.choice(recordings)
    start = whole.find(GREETING) + len(GREETING)
    frames = list(Decoder().feed(whole))
    for _ in range(drawn.choice((1, 1, 1, 2, 5))):
        if not frames:
            break
        at = drawn.randrange(len(frames))
        kind = drawn.randrange(7)
        if kind < 3:
            frames[at] = _other(drawn, frames[at])
        elif kind == 3:
            del frames[at]
        elif kind == 4:
            frames.insert(drawn.randint(0, len(frames)), frames[at])
        elif kind == 5:
            to = drawn.randrange(len(frames))
            frames[at], frames[to] = frames[to], frames[at]
        else:
            frames[at:at] = [_other(drawn, frames[at]) for _ in range(20)]
    data = bytearray(whole[:start]) + b"".join(map(encode, frames))
    if drawn.random() < 0.2:
        data = _changed(drawn, data, recordings)
    return bytes(data)


def _other(drawn: random.Random, frame: Frame) -> Frame:
    """The frame with one field that is another."""
    made = Frame(frame.kind, frame.channel, frame.stream, frame.offset, frame.payload)
    field = drawn.randrange(6)
    if field == 0:
        made.kind = drawn.choice(sorted(NAMES))
    elif field == 1:
        made.channel = drawn.choice(NUMBERS[:-5]) if drawn.random() < 0.5 else drawn.randrange(8)
    elif field == 2:
        made.stream = drawn.choice((0, 1, 2, 3, 254, 255))
    elif field == 3:
        near = frame.offset + drawn.choice((-1, 1, 18, -18, 65536))
        made.offset = drawn.choice((*NUMBERS[:-1], max(0, near)))
    elif frame.payload.startswith(b"{"):
        made.payload = of_json(drawn, [frame.payload])[:CHUNK]
    else:
        made.payload = of_bytes(drawn, [frame.payload or b"x"])[:CHUNK]
    return made


def pieces(data: bytes, seed: int = 0) -> Iterator[bytes]:
    """The bytes as a connection may deliver them."""
    drawn = random.Random(len(data) + seed)
    at = 0
    while at < len(data):
        size = drawn.choice((1, 17, 18, 100, 4096, 65536))
        yield data[at : at + size]
        at += size
