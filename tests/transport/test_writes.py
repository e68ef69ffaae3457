"""Descriptors that another process has made non-blocking: this one waits all the same."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest

from quine.__main__ import _read_mission
from quine.agent import prompt
from quine.files.cli import put
from quine.files.cli.progress import Progress
from quine.jobs import job_files
from transport.writes import is_no_input, read_some


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A pipe without a byte, for stdin; the function feeds and closes it as soon as its reader waits."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    before = os.dup(0)
    os.dup2(reading, 0)
    waits, poll = threading.Event(), select.poll

    def waiting() -> Any:
        waits.set()
        return poll()

    monkeypatch.setattr(select, "poll", waiting)

    def feed() -> None:
        waits.wait(60)
        os.write(writing, b"material")
        os.close(writing)

    yield feed
    os.dup2(before, 0)
    os.close(before)
    os.close(reading)


def _put() -> bytes:
    file = BytesIO()
    put._pour_stdin(file, Progress(quiet=True))  # type: ignore[arg-type]
    return file.getvalue()


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_some(0, 100),
        _put,
        prompt._material,
        lambda: job_files._read(0),
        lambda: _read_mission("-").encode(),
    ],
    ids=["read_some", "put", "-b", "--detach", "-f -"],
)
def test_a_stdin_that_is_non_blocking_is_waited_for(
    read: Callable[[], bytes], pipe: Callable[[], None]
) -> None:
    producer = threading.Thread(target=pipe)
    producer.start()
    try:
        assert read() == b"material"
    finally:
        select.poll()
        producer.join()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_socket_that_was_never_connected_is_no_input(family: socket.AddressFamily) -> None:
    with socket.socket(family) as one:
        with pytest.raises(OSError) as raised:
            os.read(one.fileno(), 1)
        assert is_no_input(one.fileno(), raised.value)
        assert not is_no_input(one.fileno(), OSError(errno.ECONNRESET, "reset")), "a part has come"
        reader, writer = os.pipe()
        try:
            assert not is_no_input(reader, raised.value), "no socket"
        finally:
            os.close(reader)
            os.close(writer)
