"""Trying a job again: `--retry N`, and `--idempotent`.

Laws
1. A job is tried again if it is known never to have started; a lost job only if its caller has said that a second run
   is harmless. A job that exited, or was denied, has its answer.
2. Another host of WHERE comes first. When each of them has failed, the one that failed least is tried, after a pause.
3. Stdin is not read for a job that does not run, so the next try has the whole of it. If a lost job has read a file,
   the file is read again from its old position. A job that read a pipe, or whose output was passed on, is not tried
   again.
"""

from __future__ import annotations

import os
import stat
import time

from quine.base import backoff
from quine.base.errors import Misconfigured, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import RunOptions
    from transport.client.output import Used
    from transport.spawn import Spawn
    from transport.status import Status

# Seconds before a host is tried again; sshd counts connections that come too fast.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Tries:
    """The tries of one job; `left` is how many more there may be."""

    def __init__(self, options: RunOptions) -> None:
        text = options.retry or "0"
        if text.startswith("-") and text[1:].isdigit():
            raise Misconfigured(f"--retry {text[:40]}: must not be negative")
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise Misconfigured(f"--retry {text[:40]}: should be a number")
        if options.idempotent and not options.retry:
            raise Misconfigured("--idempotent says what --retry may do; it needs --retry N")
        if options.retry and not options.on:
            raise Misconfigured("--retry tries other hosts; it needs --on WHERE")
        self.left = int(text)
        self._idempotent = options.idempotent
        self._verbose = options.verbose
        self._failed: list[str] = []
        self._number = 1
        self._start = _position() if self.left else None

    def again(self, spawn: Spawn, status: Status, used: Used) -> bool:
        """Return True to try once more, after any pause; `spawn` then has a new id and avoids the hosts that failed."""
        if not self.left or not self._may(status):
            return False
        if why := self._spoilt(used):
            status.detail += f"; not tried again: {why}"
            return False
        self.left -= 1
        again = status.host in self._failed
        self._failed.append(status.host)
        if self._verbose:
            say(
                f"quine: {status.host or 'local'}: try {self._number}: {status.state}: {status.detail}; trying again\n"
            )
        self._number += 1
        spawn.id = os.urandom(16).hex()
        spawn.context["avoid"] = self._failed
        if again:
            failed = self._failed.count(status.host) - 1
            time.sleep(backoff.pause(failed, FIRST_PAUSE, LONGEST_PAUSE, jitter=(0.5, 1)))
        return True

    def _may(self, status: Status) -> bool:
        if status.state == "unreachable":
            return bool(status.host)  # a fault that is about no host is the same at the next try
        return status.state == "lost" and self._idempotent

    def _spoilt(self, used: Used) -> str:
        """Return why a second try would differ from the first, or ""; a file on stdin is set back."""
        if used.stdout:
            return "some of its output has been passed on or dropped"
        if used.stdin and (self._start is None or _position() is None):
            return "some of its stdin has been read"
        if used.stdin and self._start is not None:
            os.lseek(0, self._start, os.SEEK_SET)
        return ""


def _position() -> int | None:
    """Return the position in stdin if it is a file, else None."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR) if stat.S_ISREG(os.fstat(0).st_mode) else None
    except OSError:
        return None
