"""The cost of a host that has the binary: one round trip behind the login, and no process over there but the dial."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import dial, inventory, probe
from deploy.build import Binary
from tests.deploy.test_probe import MARKER, USUAL, installed
from tests.lab import Lab
from tests.lab.host import Host
from tests.lab.machine import can_mount
from transport.carrier.ssh.channel import SshDuplex


@pytest.mark.long
def test_a_warm_dial_is_one_round_trip(
    lab: Lab, odd_host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round trip is an answer that is waited for behind something that was sent. Behind the login one thing is sent,
    the command; the first bytes of the node come without another word from here.
    """
    odd_host("warm")
    for name, value in lab.env.items():
        monkeypatch.setenv(name, value)
    known = inventory.load(lab.inventory, {})
    sent: list[bytes] = []
    channels: list[SshDuplex] = []
    write, made = SshDuplex.write, SshDuplex.connection_made

    def writing(duplex: SshDuplex, data: bytes) -> None:
        sent.append(data)
        write(duplex, data)

    def opened(duplex: SshDuplex, channel: object) -> None:
        channels.append(duplex)
        made(duplex, channel)  # type: ignore[arg-type]

    monkeypatch.setattr(SshDuplex, "write", writing)
    monkeypatch.setattr(SshDuplex, "connection_made", opened)

    async def once() -> tuple[int, int, bytes]:
        sent.clear()
        channels.clear()
        duplex = await dial.dial(known.host("warm"), known, ssh_agent=None, note=lambda _: None)
        first = await duplex.read()
        duplex.close()
        await duplex.closed()
        return len(channels), len(sent), first

    cold, warm = asyncio.run(once()), asyncio.run(once())
    assert cold[0] == 1 and cold[1] > 1, "the binary is sent"
    assert warm[:2] == (1, 0) and warm[2], "one channel, one command, and the node speaks"


def test_a_warm_dial_starts_no_process(tmp_path: Path) -> None:
    """The processes of a PID namespace are counted: each takes the next number, and `exec` none."""
    if os.getuid() or not can_mount():
        pytest.skip("needs root and namespaces")
    binary = Binary(tmp_path / "quine.pyz", "ab" * 32, 1000)
    launcher = installed(tmp_path, binary, script='echo "$$ $*"') / "quine"

    def numbers(command: str) -> list[str]:
        script = 'read -r command; sh -c "$command"; exec cat /proc/sys/kernel/ns_last_pid'
        argv = ["unshare", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", script]
        env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            argv, input=command.encode() + b"\n", stdout=subprocess.PIPE, env=env, check=True
        )
        return done.stdout.decode().splitlines()

    # the shell of the namespace is 1, and becomes cat; the login shell, which becomes the dial, is 2
    assert numbers(probe.command(binary, USUAL, MARKER)) == [f"{MARKER} have", "2 node --dial", "2"]
    assert numbers(probe.command(binary, USUAL, MARKER, "deploy"))[0] == f"{MARKER} have"
    shutil.rmtree(launcher.parent)
    assert int(numbers(probe.command(binary, USUAL, MARKER, "check"))[-1]) > 2, "the count sees processes"
