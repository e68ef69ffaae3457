"""The verb `top`: all that runs, live on a terminal, or printed as text or as JSON."""

from __future__ import annotations

import os
import time

from quine.base import sizes
from quine.base.cli_options import as_words, parse_around
from quine.base.errors import NOT_STARTED, OK, Misconfigured
from quine.cli.job_verbs import folders_of
from quine.cli.top.draw import draw
from quine.cli.top.look import Found, Looker, parsed, trees_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen

    from quine.base.cli_options import RunOptions

SHORTEST = 0.1  # seconds between two looks


def main(words: list[str]) -> int:
    """Return the exit status: 69 if a host, or a node of this machine, gave no list."""
    options, rest = parse_around("top", words)
    if options.help:
        from quine.cli.help import usage

        print(usage("top"))
        return OK
    if rest:
        raise Misconfigured(f"top takes no such word: {rest[0][:40]}", "quine top --on WHERE")
    delay = max(SHORTEST, sizes.seconds(options.delay or "1", "--delay"))
    times = options.iterations or "1"
    if not (times.isascii() and times.isdigit() and len(times) < 10 and int(times)):
        raise Misconfigured(f"--iterations {times[:40]}: should be a whole number, 1 or more")
    still = options.json or options.batch or options.iterations
    if still or not os.isatty(1) or os.environ.get("TERM", "dumb") in ("", "dumb"):
        return _print(options, delay, int(times))
    return _live(options, delay)


def _print(options: RunOptions, delay: float, times: int) -> int:
    looker = Looker(folders_of(options), options)
    silent = False
    for number in range(times):
        if number:
            time.sleep(delay)
            print(end="" if options.json else "\n")
        found = looker.look()
        if options.json:
            print(found.to_json(), end="", flush=True)
        else:
            print("\n".join(draw(found._replace(silent=[]), _now(), None, None)), flush=True)
        if found.silent:
            from quine.jobs import remote

            remote.tell(found.silent)
            silent = True
    return NOT_STARTED if silent else OK


def _now() -> str:
    return time.strftime("%H:%M:%S")


# -- live ------------------------------------------------------------------------------------------


def _live(options: RunOptions, delay: float) -> int:
    from quine.cli.top.screen import Screen, Signalled
    from transport.status import die_of

    looker = Looker(folders_of(options), options)
    asking = _Asking(options, delay) if options.elsewhere else None
    near = Looker(folders_of(options), options.replace(on=""))  # shown until the hosts have answered
    found = Found([], [], {}, [])
    due = 0.0
    ended = ""
    try:
        with Screen() as screen:
            while True:
                now = time.monotonic()
                notes: tuple[str, ...] = ()
                if asking:
                    asking.tick(now)
                    notes = asking.notes
                if asking and asking.found:
                    found = asking.found
                elif now >= due:
                    due = now + delay
                    found = (near if asking else looker).look()
                screen.paint(draw(found, _now(), *screen.size, notes))
                pause = (asking.due if asking and asking.found else due) - time.monotonic()
                keys = screen.wait(min(delay, max(0.0, pause)), *(asking.fds if asking else ()))
                if keys is None or b"q" in keys or b"Q" in keys:
                    return OK
    except Signalled as signalled:
        ended = signalled.name
    finally:
        if asking:
            asking.close()
    die_of(ended)
    return OK


class _Asking:
    """The hosts are asked by a process of its own, so that keys work while one of them does not answer."""

    def __init__(self, options: RunOptions, delay: float) -> None:
        self.found: Found | None = None
        self.notes: tuple[str, ...] = ("asking the hosts",)
        self.due = 0.0
        self._delay = delay
        self._words = ["top", "--json", *as_words(options, ("on", "inventory", "data-dir"))]
        self._process: Popen[bytes] | None = None
        self._parts: dict[int, list[bytes]] = {}

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(self._parts)

    def tick(self, now: float) -> None:
        """Read what has come; begin again when it is time."""
        for fd in _ready(self._parts):
            data = os.read(fd, 1 << 16)
            self._parts[fd].append(data)
            if not data:
                self._ended(fd, now)
        if self._process is None and now >= self.due:
            self._begin()

    def _begin(self) -> None:
        import subprocess

        from transport.this_build import own_command

        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        # A session of its own: ^C ends it by way of this process alone.
        self._process = subprocess.Popen(
            [*own_command(), *self._words], stdin=null, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert self._process.stdout and self._process.stderr
        self._parts = {self._process.stdout.fileno(): [], self._process.stderr.fileno(): []}
        self._out: list[bytes] = []
        self.due = float("inf")

    def _ended(self, fd: int, now: float) -> None:
        """One of its two outputs has ended."""
        process = self._process
        assert process and process.stdout
        data = b"".join(self._parts.pop(fd))
        if fd == process.stdout.fileno():
            self._out = data.splitlines()
        else:
            self.notes = tuple(line.decode(errors="replace") for line in data.splitlines()[:3])
        if not self._parts:
            self.close()
            rows, batches = parsed(self._out, "")
            self.found = Found(batches, rows, trees_of(self._out), [])
            self.due = now + self._delay

    def close(self) -> None:
        if process := self._process:
            process.terminate()
            process.communicate()
            self._process, self._parts = None, {}


def _ready(fds: dict[int, list[bytes]]) -> list[int]:
    import select

    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(0)]
