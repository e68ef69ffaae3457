"""Programs of carriers: each is reaped before the process that started it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Mapping, Sequence

import pytest

from transport.carrier import child


def test_a_program_whose_start_is_given_up_ends_before_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may come after the program was started, and before its starter has heard of that."""
    spawn, started = child._spawn, []

    async def main() -> None:
        spawned, heard = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow(argv: Sequence[str], env: Mapping[str, str]) -> tuple[int, list[int]]:
            result = spawn(argv, env)
            started.append(result[0])
            loop.call_soon_threadsafe(spawned.set)
            heard.wait(60)
            return result

        monkeypatch.setattr(child, "_spawn", slow)
        starting = asyncio.ensure_future(
            child.start(["sleep", "8641"], os.environ, lambda status, said: False)
        )
        await spawned.wait()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        ending = asyncio.ensure_future(child.end_all())
        await asyncio.sleep(0)
        heard.set()
        await ending

    asyncio.run(main())
    (pid,) = started
    try:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
