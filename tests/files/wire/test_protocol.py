"""Messages of the `fs` service: valid ones arrive as they were sent, invalid ones are refused with an error."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Failure, Misconfigured
from quine.files import paths as names
from quine.files.api import Entry, OutcomeUnknown, Request
from quine.files.wire import protocol
from quine.files.wire.protocol import Garbled
from tests.fuzz.mutate import VOLUME, Target, bombard, of_bytes, of_json
from transport import quickjson

pytestmark = pytest.mark.timeout(150 + VOLUME // 10_000)

file_names = (
    st.binary(min_size=1, max_size=255)
    .filter(lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b".."))
    .map(os.fsdecode)
)
paths = st.lists(file_names, min_size=1, max_size=4).map("/".join)
sizes = st.integers(0, protocol.MOST)
times = st.floats(-(2.0**52), 2.0**52)
entries = st.builds(
    Entry,
    paths,
    st.sampled_from(["file", "directory"]),
    sizes,
    times,
    st.integers(0, 0o7777),
    st.text(max_size=40),
)


def reader(data: bytes) -> protocol.Read:
    return io.BytesIO(data).read


@settings(max_examples=40)
@given(paths, paths, st.booleans(), st.none() | sizes, st.none() | st.integers(0, 0o7777), st.none() | times)
def test_what_is_asked_arrives(
    path: str, target: str, flag: bool, size: int | None, mode: int | None, mtime: float | None
) -> None:
    put = protocol.ask("put", path=path, if_absent=flag, size=size, mode=mode, mtime=mtime)
    assert protocol.asked(reader(put)) == Request(
        "put", path, size=size, mode=mode, mtime=mtime, if_absent=flag
    )
    get = protocol.ask("get", path=path, offset=size or 0, length=size)
    assert protocol.asked(reader(get)) == Request("get", path, offset=size or 0, length=size)
    rename = protocol.ask("rename", path=path, target=target, if_absent=flag)
    assert protocol.asked(reader(rename)) == Request("rename", path, target, if_absent=flag)


@settings(max_examples=40)
@given(st.lists(entries, max_size=30), st.lists(file_names, max_size=2).map("/".join))
def test_a_list_arrives_in_its_order(found: list[Entry], beginning: str) -> None:
    found = [each._replace(path=names.join(beginning, each.path)) for each in found]
    read = reader(b"".join(protocol.batches(iter(found), beginning)))
    got, more = [], True
    while more:
        batch, more = protocol.batch(protocol.heard(read, protocol.LONGEST_TOLD), beginning)
        got += batch
    assert got == found and read(1) == b""


def test_a_long_list_is_many_words() -> None:
    found = [Entry(f"d/{number:0200}", "file") for number in range(2000)]
    said = list(protocol.batches(iter(found), "d"))
    assert len(said) > 5 and max(map(len, said)) < 3 * protocol.BATCH


@settings(max_examples=40)
@given(sizes, st.booleans())
def test_a_mark_arrives(length: int, hole: bool) -> None:
    if hole and not length:
        return
    assert protocol.marked(reader(protocol.mark(length, hole))) == (length, hole)


@settings(max_examples=40)
@given(st.sampled_from(sorted(errno.errorcode)), st.text(max_size=300), paths)
def test_an_error_is_the_same_on_the_other_side(number: int, text: str, path: str) -> None:
    word = protocol.word(protocol.wrong(OSError(number, text or "x", path)))
    with pytest.raises(OSError) as caught:
        protocol.check(protocol.heard(reader(word), protocol.LONGEST_TOLD))
    assert caught.value.errno == number and caught.value.filename == path
    assert caught.value.strerror == (text or "x")


def test_a_store_that_cannot_be_opened_is_told_with_its_cure() -> None:
    with pytest.raises(Failure) as caught:
        protocol.check(protocol.wrong(Misconfigured("no driver", "pip install it")))
    with pytest.raises(OutcomeUnknown, match="may be done"):
        protocol.check(protocol.wrong(OutcomeUnknown(errno.EIO, "may be done", "a")))
    assert (caught.value.status, caught.value.detail, caught.value.hint) == (2, "no driver", "pip install it")


def test_what_cannot_be_a_name_is_an_error_of_the_path() -> None:
    for text, number in (
        ("a\ud800b", errno.EINVAL),
        ("a\0b", errno.EINVAL),
        ("../x", errno.EPERM),
        ("a/../../x", errno.EPERM),
        ("x" * 256, errno.ENAMETOOLONG),
    ):
        with pytest.raises(OSError) as caught:
            protocol.asked(reader(protocol.ask("stat", path=text)))
        assert caught.value.errno == number
    assert protocol.asked(reader(protocol.ask("stat", path="//a/./b/"))).path == "a/b"


def refused(data: bytes) -> str:
    with pytest.raises(Garbled) as caught:
        protocol.asked(reader(data))
    return str(caught.value)


def test_what_nobody_asks_is_refused() -> None:
    assert "no such operation" in refused(protocol.word({"op": "chmod", "path": "a"}))
    assert "no such operation" in refused(protocol.word({"op": ["stat"], "path": "a"}))
    assert "without path" in refused(protocol.word({"op": "stat"}))
    assert "bad field 'mode'" in refused(protocol.word({"op": "put", "path": "a", "mode": 0o10000}))
    assert "bad field 'mode'" in refused(protocol.word({"op": "put", "path": "a", "mode": True}))
    assert "bad field 'offset'" in refused(protocol.word({"op": "get", "path": "a", "offset": -1}))
    assert "bad field 'offset'" in refused(protocol.word({"op": "get", "path": "a", "offset": None}))
    assert "bad field 'target'" in refused(protocol.word({"op": "stat", "path": "a", "target": "b"}))
    assert "bad field 'path'" in refused(protocol.word({"op": "stat", "path": 7}))
    assert "are allowed" in refused(struct.pack("!I", protocol.LONGEST_ASKED + 1) + b"x" * 100)
    assert "middle" in refused(protocol.ask("stat", path="a")[:-1])


ASKED = [
    protocol.ask("put", path="a/b", if_absent=True, mode=0o600, mtime=1.5, size=7)[4:],
    protocol.ask("get", path="a\udcff", offset=3, length=9)[4:],
    protocol.ask("rename", path="a", target="b")[4:],
    protocol.ask("remove", path="a", recursive=True)[4:],
]
TOLD = [
    next(iter(protocol.batches([Entry("a/b", "file", 3, 1.5, 0o600, "v"), Entry("a/c", "directory")], "a")))[
        4:
    ],
    quickjson.dumps(
        {"entry": protocol.row(Entry("a", "file", 9)), "offset": 1, "length": 8, "holes": [[2, 3], [6, 1]]}
    ).encode(),
    quickjson.dumps(protocol.wrong(FileNotFoundError(errno.ENOENT, "no such file", "a/b"))).encode(),
    quickjson.dumps(protocol.wrong(Misconfigured("no", "yes"))).encode(),
]


def framed(data: bytes) -> protocol.Read:
    return reader(struct.pack("!I", len(data)) + data)


def test_broken_requests() -> None:
    def feed(data: bytes) -> None:
        asked = protocol.asked(framed(data))
        assert asked.op in protocol.OPERATIONS
        for path in (asked.path, asked.target):
            assert names.clean(path) == path

    bombard("words-asked", Target(ASKED, feed, (Garbled, OSError), of_json)).both()


def test_broken_answers() -> None:
    def feed(data: bytes) -> None:
        told = protocol.heard(framed(data), protocol.LONGEST_TOLD)
        if protocol.is_error(told):
            with contextlib.suppress(OSError, Failure):  # as it should, or Garbled
                protocol.check(told, "a")
        elif "entries" in told:
            for each in protocol.batch(told, "a")[0]:
                assert each.path.startswith("a/")
        else:
            entry, offset, length, holes = protocol.opened(told, "a")
            at = offset
            for start, size in holes:
                assert at <= start
                at = start + size
            assert at <= offset + length and entry.path.split("/")[0] == "a"

    bombard("words-told", Target(TOLD, feed, (Garbled,), of_json)).both()


def test_broken_streams() -> None:
    def feed(data: bytes) -> None:
        read = reader(data)
        protocol.asked(read)
        while protocol.marked(read)[0]:
            pass

    whole = protocol.ask("put", path="a") + protocol.mark(5, hole=True) + protocol.mark(0)
    bombard("words-stream", Target([whole], feed, (Garbled, OSError), of_bytes)).both()
