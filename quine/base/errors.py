"""Exit statuses, the exceptions that lead to them, and the one format of error messages.

Laws
1. A failure is raised where it happens and printed once, by `complain`, at the end of the process.
2. A message is `quine: error: …` in lower case without a full stop, then `quine: hint: …` if there is a cure.
   A failure about a host names it: `quine: gpu1: error: …`.
3. Nothing here writes to stdout, and a closed stderr is not an error.
4. No character of an error moves the cursor of a terminal, or tells it to do something.
"""

from __future__ import annotations

from transport.writes import write_all

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
    """An error that ends the process with `status`. `detail` is the message, `hint` the cure."""

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
    """No guest (LLM) is configured."""


class NotBuilt(Misconfigured):
    """A feature that this build does not have."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"not built yet: {what}", hint)


class Denied(Failure):
    """A limit or a rule forbids the action: exit 77."""

    def __init__(self, detail: str, hint: str = "") -> None:
        super().__init__(DENIED, detail, hint)


def need_stdin(what: str = "") -> None:
    """Raise Misconfigured if this process was started with a closed stdin, where /dev/null may be by now."""
    import sys

    if sys.stdin is None:
        raise Misconfigured(f"{what}stdin is closed")


def complain(detail: str, hint: str = "", host: str = "", fd: int = 2) -> None:
    """Print an error as whole lines in one write, so that the lines of several processes do not mix."""
    say(error_text(detail, hint, host), fd)


def error_text(detail: str, hint: str = "", host: str = "") -> str:
    """Return the lines of an error. It may repeat words of a guest, a command or a host: law 4."""
    from transport.text import harmless

    voice = f"quine: {host}: " if host else "quine: "
    detail, hint = harmless(detail, keep="\n\t"), harmless(hint, keep="\n\t")
    return f"{voice}error: {detail}\n" + (f"{voice}hint: {hint}\n" if hint else "")


def say(text: str, fd: int = 2) -> None:
    """Write all of `text` to `fd`; a reader that has gone is not an error of ours."""
    try:
        write_all(fd, text.encode("utf-8", "replace"))
    except OSError:
        pass


def defect() -> int:
    """Keep the traceback of the exception that is handled in a file of its own, and name it; return the exit status."""
    import sys
    import tempfile
    import traceback

    text = f"argv: {sys.argv[:1]}\n{traceback.format_exc()}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="quine-defect-", suffix=".log", delete=False) as file:
            file.write(text)
        complain(f"a defect in quine; its traceback is in {file.name}", "please report it")
    except OSError:
        complain(f"a defect in quine\n{text}")
    return DEFECT
