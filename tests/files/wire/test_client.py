"""The tier of a job over a double of the link: each operation one round trip, errors as they are, nothing half."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.base.errors import LOST, NOT_STARTED, Failure, Misconfigured
from quine.files.api import BLOCK, Entry, OutcomeUnknown, Reader, Request, Tier, Writer, pour, stale
from quine.files.cli.pool import failure
from quine.files.stores.local.store import Local
from quine.files.wire import client, protocol, server
from quine.files.wire.client import Remote
from quine.files.wire.server import Service
from tests.transport.rpc import streams
from tests.transport.rpc.streams import Relay
from transport.errors import RequestError


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(str(tmp_path / "root"))


@pytest.fixture
def relay(local: Local) -> Iterator[Relay]:
    with streams.joined(Service(lambda: local)) as made:
        yield made


@pytest.fixture
def tier(relay: Relay) -> Remote:
    return Remote(relay)  # type: ignore[arg-type]


def put(tier: Tier, path: str, content: bytes, **more: Any) -> Entry:
    with tier.create(path, **more) as writer:
        writer.write(content)
        return writer.commit()


def get(tier: Tier, path: str, offset: int = 0, length: int | None = None) -> bytes:
    with tier.open(path, offset, length) as reader:
        return b"".join(iter(reader.read, b""))


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def parts(local: Local) -> list[str]:
    """Return the names of all files below the root, shown or hidden."""
    return [name for _, _, files in os.walk(local.root) for name in files]


# -- round trips -------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Tier], object]] = {
    "stat": lambda tier: tier.stat("d/small"),
    "get": lambda tier: get(tier, "d/small"),
    "put": lambda tier: put(tier, "d/new", content(5000)),
    "put a lot": lambda tier: put(tier, "d/new", content(90_000)),
    "list": lambda tier: list(tier.list("d")),
    "walk": lambda tier: list(tier.walk("")),
    "hidden": lambda tier: list(tier.hidden("")),
    "mkdir": lambda tier: tier.mkdir("x/y/z"),
    "remove": lambda tier: tier.remove("d/small"),
    "remove all": lambda tier: tier.remove("d", recursive=True),
    "rename": lambda tier: tier.rename("d/small", "e/f/g"),
    "move": lambda tier: tier.move("d/small", "e/f/g"),
    "move into": lambda tier: tier.move("d/small", "d/e1"),
    "setattr": lambda tier: tier.setattr("d/small", mode=0o600, mtime=5.0),
    "copy": lambda tier: tier.copy("d/small", "e/f/g"),
    "url": lambda tier: tier.url_of("d"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_one_request_that_waits_once(
    name: str, tier: Remote, local: Local, relay: Relay
) -> None:
    put(local, "d/small", content(5000))
    for number in range(20):
        put(local, f"d/e{number}/{number}", b"x")
    OPERATIONS[name](tier)
    assert (relay.requests, relay.waits) == (1, 1)


def test_a_list_of_thousands_is_one_request(relay: Relay) -> None:
    class Full(Local):
        def list(self, path: str) -> Iterator[Entry]:
            for number in range(10_000):
                yield Entry(f"{path}/{number:05}", "file", number, 1.5, 0o644, "v")

    relay.handler = Service(lambda: Full("/nowhere"))
    found = list(Remote(relay).list("a"))  # type: ignore[arg-type]
    assert [each.path for each in found] == [f"a/{number:05}" for number in range(10_000)]
    assert (relay.requests, relay.waits) == (1, 1)


def test_a_list_is_read_as_it_comes_and_may_be_left(relay: Relay) -> None:
    told = []

    class Endless(Local):
        def list(self, path: str) -> Iterator[Entry]:
            for number in range(10**9):
                told.append(number)
                yield Entry(f"{number}", "file")

    relay.handler = Service(lambda: Endless("/nowhere"))
    entries = Remote(relay).list("")  # type: ignore[arg-type]
    assert next(entries).path == "0"
    entries.close()  # type: ignore[attr-defined]
    relay.close()
    assert len(told) < 50_000


# -- contents ----------------------------------------------------------------------------------------

SIZES = (0, 1, client.FULL - 1, client.FULL, client.FULL + 1, BLOCK, 3 * BLOCK + 17)


@pytest.mark.parametrize("size", SIZES)
def test_contents_arrive_whole_both_ways(size: int, tier: Remote, local: Local) -> None:
    data = content(size)
    entry = put(tier, "a/b", data, mode=0o640, mtime=1234.5)
    assert (entry.size, entry.mode, entry.mtime) == (size, 0o640, 1234.5)
    assert get(local, "a/b") == data == get(tier, "a/b") and tier.stat("a/b") == local.stat("a/b") == entry
    for offset, length in ((0, 1), (size // 2, None), (size // 2, size // 4), (size, 9), (size + 9, None)):
        wanted = data[offset:] if length is None else data[offset : offset + length]
        assert get(tier, "a/b", offset, length) == wanted


def test_writes_of_every_size_are_one_file(tier: Remote, local: Local) -> None:
    drawn, whole = random.Random(2), bytearray()
    with tier.create("f") as writer:
        while len(whole) < 4 * BLOCK:
            piece = drawn.randbytes(drawn.choice((1, 100, 70_000, client.FULL, BLOCK + 1)))
            whole += piece
            writer.write(memoryview(piece) if drawn.random() < 0.5 else bytearray(piece))
        writer.commit()
    assert get(local, "f") == whole


def test_holes_are_not_sent(tier: Remote, local: Local, relay: Relay) -> None:
    size = 1 << 30
    with tier.create("f") as writer:
        writer.hole(size)
        writer.write(b"x" * 70_000)
        writer.hole(size)
        assert writer.commit().size == 2 * size + 70_000
    blocks = os.stat(f"{local.root}/f").st_blocks * 512
    assert blocks < 1 << 20
    with tier.open("f") as reader:
        assert sum(length for _, length in reader.holes) > 2 * size - 300_000
        assert sum(len(block) for block in iter(lambda: reader.data(BLOCK), b"")) < 300_000
    with tier.open("f") as reader, local.create("g") as copy:
        assert pour(reader, copy) == 2 * size + 70_000
        copy.commit()
    assert get(local, "g", size - 5, 70_010) == bytes(5) + b"x" * 70_000 + bytes(5)
    assert os.stat(f"{local.root}/g").st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("size", (10, client.LARGE - 1, client.LARGE, 3 * BLOCK + 5))
def test_descriptors_are_given_and_taken(size: int, tier: Remote, local: Local, tmp_path: Path) -> None:
    data = content(size + 7)
    (tmp_path / "here").write_bytes(data)
    with open(tmp_path / "here", "rb", buffering=0) as source, tier.create("f") as writer:
        source.seek(7)
        writer.write(b"before")
        assert writer.take(source.fileno(), size) == size
        writer.write(b"after")
        writer.commit()
    assert get(local, "f") == b"before" + data[7:] + b"after"
    with tier.open("f", 6, size) as reader, open(tmp_path / "there", "wb", buffering=0) as target:
        left = size
        while given := reader.give(target.fileno(), left):
            left -= given
    assert (tmp_path / "there").read_bytes() == data[7:]


def test_a_descriptor_that_ends_sooner_gives_what_it_has(tier: Remote, local: Local, tmp_path: Path) -> None:
    data = content(BLOCK)
    (tmp_path / "here").write_bytes(data)
    with open(tmp_path / "here", "rb", buffering=0) as source, tier.create("f") as writer:
        assert writer.take(source.fileno(), 5 * BLOCK) == BLOCK
        writer.commit()
    assert get(local, "f") == data
    read, write = os.pipe()
    try:
        os.write(write, b"piped")
        os.close(write)
        with tier.create("g") as writer:
            assert writer.take(read, 5 * BLOCK) == 5
            writer.commit()
    finally:
        os.close(read)
    assert get(local, "g") == b"piped"


# -- what is not committed -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", (0, 10, 3 * BLOCK))
def test_what_is_not_committed_leaves_nothing(size: int, tier: Remote, local: Local, relay: Relay) -> None:
    put(local, "f", b"old")
    with tier.create("f") as writer, tier.create("d/g") as other:
        writer.write(content(size))
        other.write(content(size))
    relay.close()
    assert parts(local) == ["f"] and get(local, "f") == b"old"
    with pytest.raises(OSError) as caught:
        writer.write(b"x")
    assert caught.value.errno == errno.EBADF


def test_who_dies_before_the_mark_has_put_nothing(local: Local, relay: Relay) -> None:
    """Even where the transport took his death for the end of the body."""
    for said in (
        protocol.ask("put", path="f"),
        protocol.ask("put", path="f") + protocol.mark(100) + b"x" * 50,
        protocol.ask("put", path="f") + protocol.mark(10) + b"x" * 10,
        protocol.ask("put", path="f") + protocol.mark(5, hole=True) + protocol.mark(0)[:-1],
        protocol.ask("put", path="f")[:-3],
    ):
        asked = relay.stream("fs")
        asked.write(said)
        asked.end()
        with pytest.raises(Exception, match="ends in the middle"):
            asked.read(1)
    assert parts(local) == []


def test_nothing_may_follow_the_mark(local: Local, relay: Relay) -> None:
    asked = relay.stream("fs")
    asked.write(protocol.ask("put", path="f") + protocol.mark(0) + b"x")
    asked.end()
    with pytest.raises(Exception, match="more bytes"):
        asked.read(1)
    assert parts(local) == []


# -- errors --------------------------------------------------------------------------------------------


def test_errors_are_those_of_the_store(tier: Remote, local: Local, relay: Relay) -> None:
    put(local, "d/f", b"x")
    for number, act in (
        (errno.ENOENT, lambda: tier.stat("no")),
        (errno.ENOENT, lambda: tier.open("no")),
        (errno.EISDIR, lambda: tier.open("d")),
        (errno.ENOTDIR, lambda: tier.list("d/f")),
        (errno.ENOENT, lambda: tier.list("no")),
        (errno.ENOTEMPTY, lambda: tier.remove("d")),
        (errno.EPERM, lambda: tier.remove("")),
        (errno.EEXIST, lambda: tier.mkdir("d")),
        (errno.EEXIST, lambda: put(tier, "d/f", b"y", if_absent=True)),
        (errno.EISDIR, lambda: put(tier, "d", b"y")),
        (errno.ENOTDIR, lambda: put(tier, "d/f/g", b"y")),
        (errno.EINVAL, lambda: tier.rename("d", "d/e")),
        (errno.EEXIST, lambda: tier.rename("d/f", "d/f", if_absent=True)),
    ):  # fmt: skip
        with pytest.raises(OSError) as caught:
            act()
        assert caught.value.errno == number and caught.value.strerror
    assert relay.waits == relay.requests


def test_a_put_that_is_refused_in_the_middle_says_why(local: Local, relay: Relay, tier: Remote) -> None:
    """The store stops listening: the sender gets the error before it has sent all the data."""

    class Full(Local):
        def create(self, path: str, **more: Any) -> Writer:
            writer = super().create(path, **more)
            wrote = [0]

            def write(data: Any) -> None:
                wrote[0] += len(data)
                if wrote[0] > 2 * BLOCK:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                type(writer).write(writer, data)

            writer.write = write  # type: ignore[method-assign]
            writer.fileno = lambda: -1  # type: ignore[method-assign]
            return writer

    relay.handler = Service(lambda: Full(local.root))
    sent = 0
    with pytest.raises(OSError) as caught, tier.create("d/f") as writer:
        for _ in range(1000):
            writer.write(content(BLOCK))
            sent += 1
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == "d/f" and sent < 10
    relay.close()
    assert parts(local) == []


def test_a_get_that_breaks_in_the_middle_is_an_error_and_no_end(
    local: Local, relay: Relay, tier: Remote
) -> None:
    class Broken(Local):
        def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
            reader = super().open(path, offset, length)
            whole = reader.data
            reader.fileno = lambda: -1  # type: ignore[method-assign]

            def data(size: int) -> bytes:
                if os.lseek(reader._fd, 0, os.SEEK_CUR) >= 2 * BLOCK:  # type: ignore[attr-defined]
                    raise stale(path)
                return whole(size)

            reader.data = data  # type: ignore[method-assign]
            return reader

    put(local, "f", content(5 * BLOCK))
    relay.handler = Service(lambda: Broken(local.root))
    with pytest.raises(OSError) as caught:
        get(tier, "f")
    assert caught.value.errno == errno.ESTALE and caught.value.filename == "f"


def test_a_file_that_shrinks_while_its_descriptor_is_sent(local: Local, relay: Relay, tier: Remote) -> None:
    put(local, "f", content(5 * BLOCK))
    relay.room = 1000
    with tier.open("f") as reader:
        reader.data(10)
        os.truncate(f"{local.root}/f", BLOCK)
        with pytest.raises(OSError) as caught:
            while reader.data(BLOCK):
                pass
    assert caught.value.errno == errno.ESTALE


def test_an_origin_that_is_lost_is_told(local: Local, relay: Relay, tier: Remote) -> None:
    put(tier, "f", content(3 * BLOCK))
    with tier.open("f") as reader, tier.create("g") as writer:
        reader.data(10)
        writer.write(content(BLOCK))
        relay.lost = "the origin cannot be reached: the node ended"
        for act in (lambda: reader.data(10), writer.commit, lambda: tier.stat("f"), lambda: tier.open("f")):
            with pytest.raises(OSError, match="the node ended") as caught:
                act()
            assert caught.value.errno == errno.ENOTCONN
    relay.lost = ""
    relay.close()
    assert parts(local) == ["f"]


def refuse(why: str) -> None:
    raise RequestError(why)


def test_an_origin_that_is_lost_before_its_answer_may_have_done_it(
    local: Local, relay: Relay, tier: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error tells to look before a retry. A caller that lost the origin before its request has changed nothing."""
    changes: list[Callable[[], object]] = [
        lambda: put(tier, "a", b"x"),
        lambda: tier.mkdir("d"),
        lambda: tier.rename("a", "b"),
        lambda: tier.copy("b", "c"),
        lambda: tier.remove("c"),
    ]
    end = streams.Asked.end

    def lost(self: streams.Asked) -> None:
        end(self)
        relay.threads[-1].join(60)
        relay.lost = "the origin cannot be reached: the node ended"

    for change in changes:
        relay.lost = "the origin cannot be reached: the node ended"
        with pytest.raises(OSError, match="the node ended") as caught:
            change()
        assert not isinstance(caught.value, OutcomeUnknown) and failure(caught.value).status == NOT_STARTED
        relay.lost = ""
        with monkeypatch.context() as patch:
            patch.setattr(relay, "handler", lambda incoming: refuse("no such job, or its origin is gone"))
            with pytest.raises(OSError, match="no such job") as caught:
                change()
            assert failure(caught.value).status == NOT_STARTED
        with monkeypatch.context() as patch:
            patch.setattr(streams.Asked, "end", lost)
            with pytest.raises(OutcomeUnknown, match="not known") as unsure:
                change()
            assert failure(unsure.value).status == LOST
            relay.lost = ""
            with pytest.raises(OSError, match="the node ended") as caught:
                tier.stat("")
            assert not isinstance(caught.value, OutcomeUnknown)
        relay.lost = ""
    assert sorted(entry.path for entry in local.walk("")) == ["b", "d"]


def test_a_store_that_cannot_be_opened_is_told_and_tried_again(
    local: Local, relay: Relay, tier: Remote
) -> None:
    found: list[Tier] = []

    def opening() -> Tier:
        if not found:
            raise Misconfigured("no driver for s3", "pip install '.[s3]'")
        return found[0]

    relay.handler = Service(opening)
    with pytest.raises(Failure) as caught:
        tier.stat("")
    assert (caught.value.status, caught.value.hint) == (2, "pip install '.[s3]'")
    with pytest.raises(Failure), tier.create("f") as writer:
        writer.write(content(5 * BLOCK))
        writer.commit()
    found.append(local)
    assert tier.stat("").kind == "directory"


def test_each_request_of_a_pipeline_has_the_error_of_a_store_that_cannot_be_opened(
    relay: Relay, tier: Remote
) -> None:
    """Also if the driver raises no error of ours. The store is tried once for a pipeline."""
    wrong: list[Exception] = [
        KeyError("region"),
        OSError(errno.EACCES, "permission denied", "/keys"),
        OSError(errno.EACCES, "x" * 500, "y" * 4000),
    ]
    numbers = [errno.EIO, errno.EACCES, errno.EACCES]
    texts = ["a defect at the origin: KeyError", "/keys", "x" * 500]

    def opening() -> Tier:
        raise wrong.pop(0)

    relay.handler = Service(opening)
    for number, text in zip(numbers, texts, strict=True):
        pipeline = tier.pipeline()
        for name in ("a", "b", "c"):
            pipeline.send(Request("put", name, size=3, content=b"abc"))
        for _ in range(3):
            with pytest.raises(OSError, match=text) as caught:
                pipeline.answer()
            assert caught.value.errno == number
        pipeline.end()
    assert not wrong


def test_what_the_origin_says_is_checked(relay: Relay, tier: Remote) -> None:
    answers = [
        b"", b"\0\0\0\2{}", b"\xff\xff\xff\xff", b"\0\0\0\5\"abc\"",
        protocol.word({"entry": ["../x", "f", 0, 0, 0, ""]}),
        protocol.word({"entry": ["", "f", -1, 0, 0, ""]}),
        protocol.word({"entries": [["", "d", 0, 0, 0, ""]], "more": False}),
        protocol.word({"entries": [["../../etc", "d", 0, 0, 0, ""]], "more": False}), protocol.word({"errno": 7}),
        protocol.word({"entry": ["", "g", 5, 0, 0, ""], "offset": 0, "length": 5, "holes": [[3, 9]]}),
        protocol.word({"entry": ["", "f", 5, 0, 0, ""], "offset": 0, "length": 5}) + b"xx",
        protocol.word({"url": 7}), protocol.word({"errno": "EIO", "text": "x"})[:-1],
    ]  # fmt: skip
    for answer in answers:
        relay.handler = lambda incoming, answer=answer: (incoming.read(1 << 20), incoming.write(answer))  # type: ignore[misc]
        for act in (lambda: tier.stat("a"), lambda: list(tier.list("a")), lambda: get(tier, "a"),
                    lambda: put(tier, "a", b"x"), lambda: tier.url_of("a")):  # fmt: skip
            with pytest.raises(OSError) as caught:
                act()
            assert caught.value.errno == errno.EIO


# -- many at one time ------------------------------------------------------------------------------------


def test_many_operations_at_one_time(tier: Remote, local: Local) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(2):
            data = content(300 * number + turn, number)
            put(tier, f"d{number}/f", data)
            if get(tier, f"d{number}/f") != data or tier.stat(f"d{number}/f").size != len(data):
                wrong.append(f"{number}.{turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(list(local.walk(""))) == 128


def test_many_try_and_one_is_first(tier: Remote) -> None:
    won: list[int] = []

    def attempt(number: int) -> None:
        try:
            put(tier, "lock", b"%d" % number, if_absent=True)
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and get(tier, "lock") == b"%d" % won[0]


def test_the_store_is_opened_once(local: Local, relay: Relay, tier: Remote) -> None:
    opened = []

    def opening() -> Tier:
        opened.append(1)
        return local

    relay.handler = Service(opening)
    threads = [threading.Thread(target=lambda: tier.stat("")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [1] and server.LARGE <= BLOCK


def test_what_a_driver_raises_is_an_answer(local: Local, relay: Relay, tier: Remote) -> None:
    """And no origin that cannot be reached."""

    class Odd(Local):
        def stat(self, path: str) -> Entry:
            raise KeyError("region")

        def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
            reader = super().open(path, offset, length)
            reader.fileno = lambda: -1  # type: ignore[method-assign]
            reader.data = lambda size: {}["x"]  # type: ignore[method-assign]
            return reader

    put(local, "f", b"x" * 100)
    relay.handler = Service(lambda: Odd(local.root))
    for act in (lambda: tier.stat("f"), lambda: get(tier, "f")):
        with pytest.raises(OSError, match="a defect at the origin: KeyError") as caught:
            act()
        assert caught.value.errno == errno.EIO
