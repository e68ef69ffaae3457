"""How a host is reached: which address, how many at a time."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from transport.carrier import dialer
from transport.carrier.dialer import SshTarget
from transport.errors import Unreachable


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """The name server's answer, whatever the question."""

    async def found(_: object, host: str, port: int, **more: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", found)


def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        with listening() as listener:
            port = listener.getsockname()[1]
            answering(monkeypatch, "127.0.0.2", "127.0.0.1")
            steps: list[tuple[str, str, bool]] = []

            def note(step: str, found: str = "", ok: bool = True) -> None:
                steps.append((step, found, ok))

            sock = await dialer.connected(SshTarget("h", "h"), "h", port, socket.AF_UNSPEC, note)
            assert sock.getpeername() == ("127.0.0.1", port)
            sock.close()
            assert steps == [
                ("resolve h", "", True),
                ("resolve h", "127.0.0.2, 127.0.0.1", True),
                (f"connect to h at 127.0.0.2 port {port}", "", True),
                (f"connect to h at 127.0.0.2 port {port}", "connection refused", False),
                (f"connect to h at 127.0.0.1 port {port}", "", True),
            ]

    asyncio.run(scene())


def test_an_address_that_swallows_everything_costs_its_share_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Future()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        connect = loop.sock_connect

        async def some(sock: socket.socket, address: tuple[str, int]) -> None:
            await (never() if address[0] == "127.0.0.2" else connect(sock, address))

        monkeypatch.setattr(loop, "sock_connect", some)
        monkeypatch.setattr(dialer, "ATTEMPT", 0.01)
        with listening() as listener:
            answering(monkeypatch, "127.0.0.2", "127.0.0.1")
            port = listener.getsockname()[1]
            (await dialer.connected(SshTarget("h", "h"), "h", port, socket.AF_UNSPEC)).close()

    asyncio.run(scene())


def test_who_refuses_is_named() -> None:
    async def scene() -> None:
        with socket.socket() as nobody:  # holds the port, and listens not
            nobody.bind(("127.0.0.1", 0))
            port = nobody.getsockname()[1]
            with pytest.raises(Unreachable, match=f"connection refused by 127.0.0.1 port {port}") as caught:
                await dialer.connected(SshTarget("h", "127.0.0.1"), "127.0.0.1", port, socket.AF_UNSPEC)
        assert caught.value.host == "h" and caught.value.hint

    asyncio.run(scene())


def test_a_name_that_cannot_be_one() -> None:
    async def scene() -> None:
        with pytest.raises(Unreachable, match="unknown host name"):
            await dialer.connected(SshTarget("h", "h"), "x" * 64 + ".invalid", 22, socket.AF_UNSPEC)

    asyncio.run(scene())


def test_few_handshakes_at_a_time_with_each_host_and_bastion() -> None:
    async def scene() -> None:
        inside: dict[str, int] = {"b": 0}
        most: dict[str, int] = {}
        go = asyncio.Event()

        async def one(number: int) -> None:
            async with dialer.handshakes(["b:22", f"h{number}:22"]):
                inside["b"] += 1
                most["b"] = max(most.get("b", 0), inside["b"])
                if inside["b"] == dialer.HANDSHAKES:
                    go.set()
                await go.wait()
                inside["b"] -= 1

        async with asyncio.TaskGroup() as group:
            for number in range(4 * dialer.HANDSHAKES):
                group.create_task(one(number))
        assert most["b"] == dialer.HANDSHAKES

    asyncio.run(scene())


def test_a_way_that_names_a_host_twice_takes_one_place_of_it() -> None:
    async def scene() -> None:
        async def one() -> None:
            async with dialer.handshakes(["b:22", "h:22", "b:22"]):
                await asyncio.sleep(0)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(4 * dialer.HANDSHAKES):
                group.create_task(one())

    asyncio.run(scene())


def test_a_connection_leaves_from_the_bind_address() -> None:
    async def scene() -> None:
        with listening() as listener:
            port = listener.getsockname()[1]
            target = SshTarget("h", "127.0.0.1")
            sock = await dialer.connected(target, "127.0.0.1", port, socket.AF_UNSPEC, source="127.0.0.9")
            assert sock.getsockname()[0] == "127.0.0.9"
            sock.close()
            with pytest.raises(Unreachable, match=r"BindAddress 192\.0\.2\.1: cannot assign"):
                await dialer.connected(target, "127.0.0.1", port, socket.AF_UNSPEC, source="192.0.2.1")

    asyncio.run(scene())
