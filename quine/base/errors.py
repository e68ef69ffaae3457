"""Exit statuses, the failures that become them, and the one voice in which quine speaks of them.

Laws
1. A failure is raised where it happens and printed once, by `complain`, at the end of the process.
2. `quine: error: …` in lower case without a full stop, then `quine: hint: …` where there is a cure; a
   failure that is about a host says so: `quine: gpu1: error: …`.
3. Nothing here writes to stdout, and a closed stderr is no reason to fail.
"""

from __future__ import annotations

import os

OK = 0
FAILED = 1
USAGE = 2
NOT_STARTED = 69
DEFECT = 70
LOST = 74
TRY_AGAIN = 75
DENIED = 77
DEADLINE = 124


class Failure(Exception):
    """The process ends with `status`; `detail` is for people, `hint` says what cures it."""

    def __init__(self, status: int, detail: str, hint: str = "", host: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.hint = hint
        self.host = host


class Misconfigured(Failure):
    """Usage or configuration: exit 2."""

    def __init__(self, detail: str, hint: str = "") -> None:
        super().__init__(USAGE, detail, hint)


class NoGuest(Misconfigured):
    """Nothing says which LLM an agent is to ask."""


class NotBuilt(Misconfigured):
    """A thing that this build does not have; it says so instead of pretending."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"not built yet: {what}", hint)


class Denied(Failure):
    """A limit or a rule forbids it: exit 77."""

    def __init__(self, detail: str, hint: str = "") -> None:
        super().__init__(DENIED, detail, hint)


def complain(detail: str, hint: str = "", host: str = "", fd: int = 2) -> None:
    """Say it on stderr, whole lines in one write, so that the lines of several processes do not mix."""
    voice = f"quine: {host}: " if host else "quine: "
    text = f"{voice}error: {detail}\n"
    if hint:
        text += f"{voice}hint: {hint}\n"
    say(text, fd)


def say(text: str, fd: int = 2) -> None:
    """Write all of `text` to `fd`; a reader that has gone is not an error of ours."""
    try:
        write_all(fd, text.encode("utf-8", "replace"))
    except OSError:
        pass


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, also where another process has made the open file non-blocking. Raises OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            import select

            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
