"""A guest that is a program: one process per inference, a JSON request on its stdin, a JSON reply on its stdout.

Request: {"model", "session", "mission", "ordinal", "wisdom": {}, "output", "messages": [...], "tools": [{"name",
"description", "schema"}]}; a message has the form of quine.base.messages.Message.to_json. Reply: {"text"?,
"tool_calls"?: [{"name", "arguments", "id"?}], "usage"?: {"input", "output", "cache_read", "cache_write", "reasoning",
"cost"}, "stop"?}, or {"error": "unavailable" | "overflow" | "refused", "detail", "after"?}.

Laws
1. Exit 0 and one JSON object is a reply. Exit 75 (EX_TEMPFAIL), "unavailable" and a reply that cannot be read are tried
   again, as with a server. Any other end is a refusal that shows the end of its stderr.
2. It gets the agent's environment and the key, because it is the guest; it gets none of the agent's streams and no
   memo.
3. It is a process group of its own. The whole group is killed when the call ends, also when a signal ends it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time

from quine.base import backoff
from quine.base.errors import TRY_AGAIN, USAGE, Misconfigured
from quine.base.messages import (
    DEEPEST,
    GuestError,
    Message,
    Overflow,
    Refused,
    Reply,
    Request,
    ToolCall,
    Unavailable,
    Usage,
    too_deep,
    unheard,
)
from transport import quickjson
from transport.inherit import VARIABLE
from transport.lean import Any, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


TIMEOUT = 600.0  # seconds for one reply, as for a server's
LONGEST = 64 << 20  # bytes of a reply
MOST = 10**12  # tokens of one inference
PATIENCE = 120.0  # the longest pause that it may ask for, in seconds
ATTEMPTS = 4
FIRST_PAUSE = 0.5  # seconds, doubled with each attempt
STOPS = ("end", "tool", "length", "context", "refusal", "pause")


class ProgramGuest:
    def __init__(
        self, path: str, model: str = "", key: str = "", pause: Callable[[float], None] = time.sleep
    ) -> None:
        found = shutil.which(path)
        if found is None:
            raise Misconfigured(
                f"QUINE_API_BASE is no program: {path}", "name an executable: its path, or its name on PATH"
            )
        self._path = found
        self._model = model
        self._key = key
        self._pause = pause
        self.note: Callable[[str], None] = unheard

    def infer(self, request: Request) -> Reply:
        body = quickjson.dumps(
            {
                "model": self._model,
                **request.to_json(),
                "tools": [tool._asdict() for tool in request.tools],
            }
        ).encode()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._once(body)
            except Unavailable as error:
                if attempt == ATTEMPTS:
                    raise
                pause = (
                    error.after if error.after is not None else backoff.pause(attempt, FIRST_PAUSE, PATIENCE)
                )
                self.note(f"tried again in {pause:g} s: {error}")
                self._pause(pause)
        raise AssertionError("unreachable")

    def _once(self, body: bytes) -> Reply:
        environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
        if self._key:
            environ["QUINE_API_KEY"] = self._key
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        process = None
        try:
            # No signal may interrupt the start: the new process would be unknown, and never ended.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            process = self._start(environ)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            out, err = _converse(process, body)
            status = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{self._path}: no reply after {TIMEOUT:g} s") from None
        finally:
            if process:
                _end(process)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if status:
            words = err.decode("utf-8", "replace").strip()[-500:]
            how = f"died of signal {-status}" if status < 0 else f"exited with status {status}"
            what = f"{self._path} {how}{': ' + words if words else ''}"
            raise Unavailable(what) if status == TRY_AGAIN else Refused(what)
        return _reply(self._path, out, body)

    def _start(self, environ: dict[str, str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [self._path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                preexec_fn=_apart,
            )
        except OSError as error:
            raise Refused(f"{self._path}: {(error.strerror or '').lower()}", "", USAGE) from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with its group, however the call ended: its background helpers end too."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        with contextlib.suppress(OSError):
            stream.close()


def _apart() -> None:
    """Make a process group, and unblock all signals: a call to a guest blocks SIGPIPE, which must be able to kill."""
    os.setpgid(0, 0)  # Popen's process_group is of Python 3.11
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _converse(process: subprocess.Popen[bytes], body: bytes) -> tuple[bytes, bytes]:
    """Write the request and read the reply at the same time; the program may answer before it has read all of it.

    The reply ends with the process, not with its output: a background helper may hold that open.
    """
    assert process.stdin and process.stdout and process.stderr
    deadline = time.monotonic() + TIMEOUT
    feed, out, err = (stream.fileno() for stream in (process.stdin, process.stdout, process.stderr))
    kept = {out: bytearray(), err: bytearray()}
    pidfd = os.pidfd_open(process.pid)
    poll = select.poll()
    for fd, events in (
        (pidfd, select.POLLIN),
        (feed, select.POLLOUT),
        (out, select.POLLIN),
        (err, select.POLLIN),
    ):
        os.set_blocking(fd, False)
        poll.register(fd, events)
    view, talking = memoryview(body), set(kept)
    try:
        while True:
            ready = [fd for fd, _ in poll.poll(max(0, int((deadline - time.monotonic()) * 1000)))]
            if not ready:
                raise subprocess.TimeoutExpired(process.args, TIMEOUT)
            for fd in tuple(talking):
                if (fd in ready or pidfd in ready) and not _take(fd, kept[fd], pidfd in ready):
                    poll.unregister(fd)
                    talking.discard(fd)
            if pidfd in ready:
                return bytes(kept[out]), bytes(kept[err])
            if feed in ready:
                try:
                    view = view[os.write(feed, view[: 1 << 16]) :]
                except BrokenPipeError:
                    view = view[len(view) :]
                if not view:
                    poll.unregister(feed)
                    process.stdin.close()
    finally:
        os.close(pidfd)


def _take(fd: int, into: bytearray, all_of_it: bool) -> bool:
    """Append the bytes that can be read now, by one read or by `all_of_it`. Return False at the end of the stream."""
    while True:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        into += data
        if len(into) > LONGEST:
            raise GuestError(f"a reply of more than {LONGEST} bytes")
        if not data or not all_of_it:
            return bool(data)


def _reply(path: str, out: bytes, body: bytes) -> Reply:
    try:
        data = quickjson.loads(out)
        if not isinstance(data, dict):
            raise ValueError("it is no object")
        if "error" in data:
            raise _error(data)
        calls = tuple(
            _call(call, f"call_{len(body):x}_{index}")
            for index, call in enumerate(data.get("tool_calls") or ())
        )
        usage = _usage(data.get("usage") or {})
        stop = data.get("stop", "tool" if calls else "end")
        if stop not in STOPS:
            raise ValueError(f"stop is none of {', '.join(STOPS)}")
        text = data.get("text") or ""
        if not isinstance(text, str):
            raise ValueError("text is no text")
        return Reply(Message("assistant", text, calls), usage, stop)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise Unavailable(f"{path}: its reply cannot be read: {what}") from None


def _call(call: dict[str, Any], otherwise: str) -> ToolCall:
    call_id, name, arguments = str(call.get("id") or otherwise), call["name"], call["arguments"]
    if not isinstance(name, str):
        raise ValueError("the name of a call is no text")
    if isinstance(arguments, str):
        return ToolCall.parse(call_id, name, arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are neither an object nor text")
    if too_deep(arguments, DEEPEST):
        raise ValueError(f"arguments nest more than {DEEPEST} levels deep")
    return ToolCall(call_id, name, arguments)


def _usage(usage: dict[str, Any]) -> Usage:
    unknown = usage.keys() - set(Usage._fields)
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r} in usage")
    if any(
        isinstance(n, bool) or not isinstance(n, (int, float)) or not 0 <= n <= MOST for n in usage.values()
    ):
        raise ValueError("usage holds what is no count")
    told = {name: float(n) if name == "cost" else int(n) for name, n in usage.items()}
    return Usage(**told)  # type: ignore[arg-type]


def _error(data: dict[str, Any]) -> GuestError:
    detail = str(data.get("detail", "it gave no reason"))
    if data["error"] == "unavailable":
        after = data.get("after")
        pause = after if isinstance(after, (int, float)) and 0 <= after <= PATIENCE else None
        return Unavailable(detail, pause)
    return Overflow(detail) if data["error"] == "overflow" else Refused(detail)
