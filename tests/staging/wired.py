"""Both sides of staging in one process: a relay whose streams end in a handler, without a node between them."""

from __future__ import annotations

import errno
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quine.staging import remote_main, renames
from quine.staging.caller_side import Staging
from quine.staging.notes import Claim
from transport.errors import Abandoned, RequestError
from transport.status import Status


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


class End:
    """One end of a line."""

    def __init__(self, come: queue.SimpleQueue[Any], go: queue.SimpleQueue[Any]) -> None:
        self._come, self._go = come, go
        self._left = b""
        self.sent = 0
        self.limit = -1  # bytes after which the line is cut

    def read(self, size: int) -> bytes:
        if not self._left:
            got = self._come.get(timeout=120)
            if isinstance(got, BaseException):
                raise got
            self._left = got
        data, self._left = self._left[:size], self._left[size:]
        return data

    def write(self, data: bytes) -> None:
        self.sent += len(data)
        if 0 <= self.limit < self.sent:
            self._go.put(RequestError("the line was cut"))
            raise RequestError("the line was cut")
        if len(data):
            self._go.put(bytes(data))

    def end(self) -> None:
        self._go.put(b"")

    def close(self) -> None:
        self._go.put(Abandoned("given up"))

    def abandon(self, why: str) -> None:
        self._come.put(Abandoned(why))

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Relay:
    """A stand-in for `transport.rpc.call.Relay`, as a job has it. `bytes` counts what the handler has sent."""

    def __init__(self, handler: Callable[[Any], None], limit: int = -1) -> None:
        self._handler = handler
        self._limit = limit
        self.bytes = 0
        self.threads: list[threading.Thread] = []

    def stream(self, name: str) -> End:
        assert name == "stage"
        up: queue.SimpleQueue[Any] = queue.SimpleQueue()
        down: queue.SimpleQueue[Any] = queue.SimpleQueue()
        proxy = End(up, down)
        proxy.limit = self._limit

        def serve() -> None:
            try:
                self._handler(proxy)
                down.put(b"")
            except BaseException as error:
                down.put(RequestError(str(error)))
            self.bytes += proxy.sent

        thread = threading.Thread(target=serve)
        thread.start()
        self.threads.append(thread)
        return End(down, up)

    def close(self) -> None:
        for thread in self.threads:
            thread.join(60)


def sealed(top: Path, moves: list[tuple[bytes, bytes]]) -> None:
    """Make the journal of a private directory of staging, as its owner would."""
    fd = os.open(top, os.O_RDONLY)
    try:
        renames.seal(fd)
        around = os.open(top.parent, os.O_RDONLY)
        try:
            renames.write_journal(fd, [(*move, renames.facts_at(move[1], around)) for move in moves])
        finally:
            os.close(around)
    finally:
        os.close(fd)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def stage(
    here: Path, over_there: Path, *files: str, limit: int = -1, own: Sequence[Path] = (), around: Any = None
) -> int:
    """Lay `files` of one directory out in another; return the bytes sent. Raise the error that would end the job.

    `around`: the results of other jobs there.
    """
    staging = Staging(list(files), [], str(here), own=list(map(os.fsencode, own)))
    staging.around = around
    giving = staging.giving()
    relay = Relay(giving.given, limit)
    try:
        with inside(over_there):
            if not remote_main._staged(relay, staging.key):  # type: ignore[arg-type]
                raise RequestError(giving.failure)
    finally:
        relay.close()
    return relay.bytes


def bring(
    here: Path,
    over_there: Path,
    *patterns: str,
    left: Sequence[str] | None = None,
    data_dir: str = ".quine",
    claim: Claim | None = None,
    own: Sequence[Path] = (),
    written: Sequence[str] = (),
    obeyed: Sequence[str] = (),
    lasting: bool = False,
) -> tuple[str, list[str]]:
    """Bring the files that match `patterns` to `here`; return the error, and the patterns that match nothing.

    `left`: the places at which something has to be left out; `written`: of `own` files those that the host has, too;
    `obeyed`: so of those that quine obeys here.
    """
    staging = Staging([], list(patterns), str(here), data_dir, own=list(map(os.fsencode, own)))
    staging.lasting = lasting
    taking = staging.taking(claim)
    relay = Relay(taking.taken)
    try:
        with inside(over_there):
            remote_main._give_back(relay, staging.key)  # type: ignore[arg-type]
    except RequestError:
        assert taking.failure
    finally:
        relay.close()
    taking.end(Status("exited", 0))
    taking.close()
    assert left is None or taking.left_out == list(left)
    assert taking.written == list(written)
    assert not obeyed or taking.obeyed == list(obeyed), taking.obeyed
    return taking.failure, taking.missing


def three(here: Path, there: Path) -> None:
    for name in ("a", "b", "c"):
        (there / name).write_text("new")
        (here / name).write_text("old")


def refused_link(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def killed_before_b(monkeypatch: pytest.MonkeyPatch, first: Callable[[], object] = lambda: None) -> None:
    """Kill a process that renames for this one before it puts `b` in place."""
    caller, rename = os.getpid(), os.rename

    def dying(source: bytes, target: bytes, **more: int) -> None:
        if target == b"b" and os.getpid() != caller:
            first()
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", dying)
