"""Programs of carriers: each is reaped before the process that started it ends, and what it prints is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Mapping, Sequence

import pytest

from transport.carrier import child
from transport.carrier.duplex import STDERR_KEPT
from transport.carrier.ssh.proxy_command import ProxyCommand
from transport.carrier.tail import Tail


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


def test_a_program_that_prints_without_a_pause_holds_up_nothing_else() -> None:
    """Its stderr was read to its end in one callback, which is where a program gets that prints faster than is read."""

    async def main() -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        size = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
        with open(write, "wb", buffering=0) as file:
            assert file.write(b"x" * (size - 5) + b"\nlast") == size
        tail, turns = Tail(read), 0
        while not tail.text.endswith(b"last"):
            turns += 1
            await asyncio.sleep(0)
        assert len(tail.text) == STDERR_KEPT
        tail.close()
        return turns

    assert asyncio.run(main()) > 5


def test_a_proxy_command_fills_no_disk_and_its_last_line_is_kept() -> None:
    async def main() -> ProxyCommand:
        proxy = ProxyCommand(
            "sh -c 'head -c 3000000 /dev/zero | tr \\\\0 x >&2; echo >&2; echo last >&2; echo; exec cat'"
        )
        sock = await proxy.start()
        with sock:
            assert await asyncio.get_running_loop().sock_recv(sock, 1) == b"\n"
            assert proxy._process
            assert os.readlink(f"/proc/{proxy._process.pid}/fd/2").startswith("pipe:")
        proxy.end()
        await proxy._process.wait()
        return proxy

    assert asyncio.run(main()).said == "last"
