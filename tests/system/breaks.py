"""The parts that tests of broken links share: streams that show every byte out of place, plans of cuts, and times.

Laws
1. No block of a stream is like another, of this stream or of any other: a lost, doubled or swapped block is seen
   at its place.
2. A plan of cuts comes from a seed that the failure shows, and is spread over what the same work carried uncut:
   handshakes come on top, so the plan is always done before the work is.
3. QUINE_TEST_BREAKS=200 is the long form: that many cuts, a gigabyte, 500 commands, the full pauses.

Run as a program it is the far end of two streams at once: `breaks.py SEED-IN SEED-OUT SIZE`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from tests.lab import Lab, Proxy


CUTS = int(os.environ.get("QUINE_TEST_BREAKS") or 0)
LONG = CUTS > 0
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"  # on the PATH of every host
# On a busy machine a link may be away for so long that people are told.
QUIET = ("run", "--quiet")
BLOCK = 1 << 16
MiB = 1 << 20


def block(seed: int, number: int) -> bytes:
    return random.Random(seed << 32 | number).randbytes(BLOCK)


def feed(
    pipe: IO[bytes], seed: int, size: int, hold: Callable[[], object] = lambda: None
) -> threading.Thread:
    """Write `size` bytes of the stream `seed` into a pipe and close it when `hold` returns, in a thread."""

    def write() -> None:
        try:
            with pipe:
                for number in range(size // BLOCK):
                    pipe.write(block(seed, number))
                pipe.flush()
                hold()
        except BrokenPipeError:
            pass  # the reader reports the reason

    thread = threading.Thread(target=write, name=f"feed-{seed}")
    thread.start()
    return thread


def carried(
    process: subprocess.Popen[bytes],
    seed_in: int,
    seed_out: int,
    size: int,
    between: Callable[[int], None] | None = None,
) -> tuple[str, int, bytes]:
    """Feed one stream, check the other; return (fault, status, stderr): ("", 0, b"") if all is well.

    The far end is not over before the last block has been read here: a link that is cut until then is made again.
    """
    assert process.stdin and process.stdout and process.stderr
    read = threading.Event()

    def after(number: int) -> None:
        if between:
            between(number)
        if number + 1 == size // BLOCK:
            read.set()

    thread = feed(process.stdin, seed_in, size, read.wait)
    try:
        wrong = check(process.stdout, seed_out, size, after)
    finally:
        read.set()
    if wrong:
        process.kill()
    thread.join()
    said = process.stderr.read()
    return wrong, process.wait(120), said


def check(pipe: IO[bytes], seed: int, size: int, between: Callable[[int], None] | None = None) -> str:
    """Read to the end; return the fault of the stream, or "" if it has none. Call `between` after each block."""
    for number in range(size // BLOCK):
        got = pipe.read(BLOCK)
        want = block(seed, number)
        if got != want:
            same = next(
                (n for n, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), len(got)
            )
            known = (
                [n for n in range(size // BLOCK) if got[same : same + 64] in block(seed, n)]
                if got[same:]
                else []
            )
            return (
                f"stream {seed} departs at byte {number * BLOCK + same} of {size}; that is of blocks {known}"
            )
        if between:
            between(number)
    rest = len(pipe.read())
    return f"stream {seed} has {rest} bytes too many" if rest else ""


def plan(seed: int, cuts: int, carried: int) -> list[int]:
    """Return the bytes before each of `cuts` cuts, at random places in the `carried` bytes of the uncut run."""
    places = sorted(random.Random(seed).sample(range(1, max(carried * 9 // 10, cuts + 2)), cuts))
    return [after - before for before, after in zip([0, *places], places, strict=False)]


@contextmanager
def proxy_process(lab: Lab, *words: object, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`quine WORDS` with three pipes; killed if it still runs at the end. A command's is quiet."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | more
    if words[0] == "run":
        words = (*QUIET, *words[1:])
    with lab.popen([str(word) for word in words], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def down(proxy: Proxy) -> Iterator[None]:
    """Within the context the host cannot be reached; each connection to it fails at once."""
    proxy.refuse()
    proxy.cut()
    try:
        yield
    finally:
        proxy.heal()


def dial_seconds(lab: Lab, host: str, proxy: Proxy) -> float:
    """Return the seconds that a command takes after a cut of its link, less those with a link: the worse of two."""
    words = ["run", "--on", host, "--", "true"]
    lab.run(words, check=True)
    times = []
    for _ in range(2):
        begun = time.monotonic()
        lab.run(words, check=True)
        warm = time.monotonic() - begun
        proxy.cut()
        begun = time.monotonic()
        lab.run(words, check=True)
        times.append(time.monotonic() - begun - warm)
    return max(times)


def in_time(
    cut: float, uncut: float, cuts: int, dial: float, again: Callable[[], tuple[float, float]]
) -> None:
    """1.3 times the uncut run and the dials.

    The short form runs beside other tests: it is given twice that, and where that is not enough the uncut run and the
    dial are measured once more, for the machine may have become a busier one since.
    """

    def allowed() -> float:
        return 1.3 * uncut + cuts * dial if LONG else 2 * (1.3 * uncut + cuts * dial) + 5

    if cut > allowed() and not LONG:
        uncut, dial = map(max, zip((uncut, dial), again(), strict=True))
    assert cut <= allowed(), f"{cut:.1f} s for {uncut:.1f} s uncut, {cuts} dials of {dial:.2f} s"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main(seed_in: int, seed_out: int, size: int) -> int:
    thread = feed(os.fdopen(1, "wb"), seed_out, size)
    wrong = check(os.fdopen(0, "rb"), seed_in, size)
    thread.join()
    print(wrong, end="", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
