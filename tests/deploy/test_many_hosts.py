"""Many hosts at once: few uploads at a time, and a progress bar on a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from deploy import dial, inventory, push
from quine.cli.progress import CLEAR, Bar
from tests.lab import Lab


def entries(lab: Lab, folder: Path, count: int) -> list[str]:
    """So many entries for h1, each with a cache of its own that is empty."""
    return [lab.alias(f"many{number}", of="h1", cache=f"{folder}/{number}") for number in range(count)]


@pytest.mark.long
def test_few_uploads_at_a_time_and_no_fewer(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = entries(lab, tmp_path, push.UPLOADS + 3)
    for name, value in lab.env.items():
        monkeypatch.setenv(name, value)
    known = inventory.load(lab.inventory, {})
    under_way, most = 0, 0
    send = push._send

    async def all_of_them() -> list[dial.Visit]:
        full = asyncio.Event()

        async def counted(*words: object) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            if under_way == push.UPLOADS:
                full.set()
            await full.wait()  # the first ones wait for each other: so many are sent at the same time
            await send(*words)  # type: ignore[arg-type]
            under_way -= 1

        monkeypatch.setattr(push, "_send", counted)
        calls = [dial.deploy(known.host(name), known, ssh_agent=None, note=lambda _: None) for name in names]
        visits = await asyncio.gather(*calls)
        line = push.uplink()
        assert line.sent == line.announced == sum(visit.size for visit in visits)
        return visits

    visits = asyncio.run(all_of_them())
    assert all(visit.deployed for visit in visits) and most == push.UPLOADS


@pytest.mark.long
def test_a_terminal_has_a_bar_of_one_line_which_goes(lab: Lab, tmp_path: Path) -> None:
    names = entries(lab, tmp_path, 2)
    terminal, theirs = pty.openpty()
    try:
        process = lab.popen(["deploy", ",".join(names)], stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(terminal, 4096):
                shown += data
        except OSError:  # the other end is closed
            pass
        assert process.stdout is not None
        result = process.stdout.read().decode()
        process.stdout.close()
        assert process.wait() == 0
    finally:
        os.close(terminal)
    assert [line.split(",")[0] for line in result.splitlines()] == ["many0: deployed", "many1: deployed"]
    pictures = shown.decode().split(CLEAR)
    assert pictures[0] == "" and pictures[1].startswith("0 of 2 hosts")
    assert pictures[-1] == "", "nothing of it stays"
    assert re.fullmatch(r"2 of 2 hosts, ([1-9]\.\d) of \1 MB", pictures[-2]), pictures[-2]
    assert "\n" not in shown.decode()


def test_no_terminal_no_bar() -> None:
    read, write = os.pipe()
    try:
        bar = Bar(3, write)
        asyncio.run(bar.run())
        bar.clear()
        os.close(write)
        write = -1
        assert os.read(read, 100) == b""
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def test_the_text_of_the_bar() -> None:
    bar = Bar(20)
    assert bar.text(0, 0) == "0 of 20 hosts"
    bar.done = 12
    assert bar.text(8_449_000, 18_000_000) == "12 of 20 hosts, 8.4 of 18.0 MB"
