"""Many small files between a job and its origin: a few requests in all, and each file as if it went alone."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quine.base.errors import LOST, NOT_STARTED, Failure
from quine.budget.shared_counters import Numbers, SharedCounters
from quine.files.api import SMALL, Entry, OutcomeUnknown, Reader, Request, Tier, Writer
from quine.files.cli import localfs
from quine.files.cli.get import get
from quine.files.cli.main import Call
from quine.files.cli.pool import Crew
from quine.files.cli.put import put
from quine.files.cli.sync import sync
from quine.files.layers.quota import Quota
from quine.files.layers.reserved import Unreserved
from quine.files.stores.local.store import Local
from quine.files.wire import pipeline, protocol
from quine.files.wire.client import Remote
from quine.files.wire.server import Service
from tests.files import job_stores, tiers
from tests.files.commands import fill, snapshot
from tests.lab import Lab
from tests.transport.rpc import streams
from tests.transport.rpc.streams import Relay
from transport.errors import RequestLost
from transport.rpc import incoming

pytestmark = pytest.mark.timeout(300)

MOST = 12  # requests of a command: a walk, a directory, a pipeline for each of eight workers
FILES = 140
COMMANDS: dict[str, Callable[[Call], int]] = {"put": put, "get": get, "sync": sync}


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(str(tmp_path / "fs"))


@pytest.fixture
def relay(local: Local) -> Iterator[Relay]:
    with streams.joined(Service(lambda: local), room=pipeline.ROOM) as made:
        yield made


@pytest.fixture
def tier(relay: Relay) -> Remote:
    return Remote(relay)  # type: ignore[arg-type]


def run(tier: Tier, command: str, *paths: str | Path, **values: object) -> int:
    values = {"recursive": True, **values} if command != "sync" else values
    return COMMANDS[command](Call(command, values, [str(path) for path in paths], tier))  # type: ignore[arg-type]


def plant(top: Path, number: int, seed: int = 1, most: int = 3000) -> None:
    drawn = random.Random(seed)
    for each in range(number):
        path = top / f"d{each % 7}" / f"f{each:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn.randbytes(drawn.randrange(most)))
        path.chmod(drawn.choice((0o600, 0o644, 0o755)))
        os.utime(path, (0, 1_600_000_000 + each + 0.25))


# -- round trips -------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_requests_of_a_command_do_not_grow_with_its_files(
    tier: Remote, relay: Relay, tmp_path: Path
) -> None:
    def asked(command: str, *paths: str | Path, **values: object) -> int:
        before = relay.requests
        assert run(tier, command, *paths, **values) == 0
        return relay.requests - before

    for number in (140, 280):
        here, top = tmp_path / f"here-{number}", f"top-{number}"
        plant(here, number)
        assert asked("put", here, top) <= MOST
        assert asked("get", top, tmp_path / f"got-{number}") <= MOST
        assert snapshot(tmp_path / f"got-{number}") == snapshot(here)
        assert asked("sync", here, f"tier:synced-{number}") <= MOST
        assert asked("sync", here, f"tier:synced-{number}") == 1, "the listing says that nothing has changed"
        for path in here.rglob("f*"):
            os.utime(path, (0, 1))
        assert asked("sync", here, f"tier:synced-{number}") <= MOST, "each is looked at, and sent"
        assert asked("sync", here, f"tier:synced-{number}", checksum=True) <= MOST
        assert asked("sync", f"tier:synced-{number}", tmp_path / f"down-{number}") <= MOST
        assert snapshot(tmp_path / f"down-{number}") == snapshot(here)
        for path in list(here.rglob("f*"))[1:]:
            path.unlink()
        assert asked("sync", here, f"tier:synced-{number}", delete=True) <= MOST


@pytest.mark.long
def test_over_a_link_too(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []
    stream = Remote.stream

    def counted(tier: Remote, path: str) -> Any:
        requests.append(1)
        return stream(tier, path)

    monkeypatch.setattr(Remote, "stream", counted)
    with job_stores.opened(lab, "h1", tmp_path / "fs") as door:
        tier = door.tier()
        for number in (140, 280):
            plant(tmp_path / f"here-{number}", number, most=SMALL)
            for words in (
                ("put", tmp_path / f"here-{number}", f"top-{number}"),
                ("get", f"top-{number}", tmp_path / f"got-{number}"),
                ("sync", tmp_path / f"here-{number}", f"tier:synced-{number}"),
                ("sync", f"tier:synced-{number}", tmp_path / f"down-{number}"),
            ):
                requests.clear()
                assert run(tier, *words) == 0
                assert len(requests) <= MOST
            assert snapshot(tmp_path / f"got-{number}") == snapshot(tmp_path / f"here-{number}")
            assert snapshot(tmp_path / f"down-{number}") == snapshot(tmp_path / f"here-{number}")
        tier.close()


# -- each file as if it went alone -------------------------------------------------------------------


def odd(top: Path) -> None:
    """Files of every kind: small, large, at the border, empty, with holes."""
    sizes = {b"e": 0, b"1": 1, b"s": SMALL, b"t": SMALL + 1, b"l": 700_000}
    fill(top, {name: os.urandom(size) for name, size in sizes.items()} | {b"d/\xff\n": b"x", b"d/e/f": b"y"})
    (top / "nothing" / "in").mkdir(parents=True)
    for name, size in (("hole", 300_000), ("little hole", 20_000)):
        with (top / name).open("wb") as file:
            file.write(b"a" * 4096)
            file.truncate(size)
    for number, path in enumerate(sorted(top.rglob("*"))):
        if path.is_file():
            path.chmod((0o600 + 8 * number) & ~0o022)  # a copy that comes is masked
            os.utime(path, (0, 1_600_000_000.5 + number))


def test_files_of_every_kind_are_as_they_were(tier: Remote, local: Local, tmp_path: Path) -> None:
    odd(tmp_path / "here")
    for jobs in ("1", "3"):
        assert run(tier, "put", tmp_path / "here", f"put-{jobs}", jobs=jobs) == 0
        assert run(tier, "sync", tmp_path / "here", f"tier:sync-{jobs}", jobs=jobs) == 0
        assert run(tier, "get", f"put-{jobs}", tmp_path / f"got-{jobs}", jobs=jobs) == 0
        assert run(tier, "sync", f"tier:sync-{jobs}", tmp_path / f"down-{jobs}", jobs=jobs) == 0
        for found in (f"fs/put-{jobs}", f"fs/sync-{jobs}", f"got-{jobs}", f"down-{jobs}"):
            assert snapshot(tmp_path / found) == snapshot(tmp_path / "here"), found
            for name in ("hole", "little hole") if found.startswith("fs") else ("hole",):
                there, own = (tmp_path / found / name).stat(), (tmp_path / "here" / name).stat()
                assert there.st_blocks <= own.st_blocks, (found, name)


def test_a_file_whose_size_is_not_known_is_whole(tier: Remote, local: Local) -> None:
    call = Call("put", {}, ["/proc/self/cmdline", "/proc/self/status", "d/"], tier)
    assert put(call) == 0
    assert (Path(local.root) / "d/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()
    assert (Path(local.root) / "d/status").stat().st_size > 500


def test_named_files_go_together_too(tier: Remote, relay: Relay, local: Local, tmp_path: Path) -> None:
    plant(tmp_path / "here", 100)
    (tmp_path / "here" / "large").write_bytes(os.urandom(SMALL + 1))
    files = sorted(path for path in (tmp_path / "here").rglob("*") if path.is_file())
    assert run(tier, "put", *files, "d/") == 0
    names = [f"d/{path.name}" for path in files]
    (tmp_path / "got").mkdir()
    assert run(tier, "get", *names, tmp_path / "got", recursive=False) == 0
    assert relay.requests < 40
    assert {path.name: path.read_bytes() for path in files} == {
        path.name: path.read_bytes() for path in (tmp_path / "got").iterdir()
    }


def test_errors_are_those_of_a_store_that_is_reached_directly(
    tier: Remote, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path / "here", 60)
    (tmp_path / "here" / "d3" / "f0045").unlink()
    (tmp_path / "here" / "d3" / "f0045").symlink_to("f0052")
    told = []
    for number, each in enumerate((tier, Local(str(tmp_path / "direct")))):
        root = Path(each.directory_here() or tmp_path / "fs")
        for top in ("put", "sync"):
            (root / top / "d1" / "f0008").mkdir(parents=True)  # a directory where a file should go
            (root / top / "d2").write_bytes(b"a file where a directory should be")
            os.utime(root / top / "d2", (0, 5))
        found = []
        for words, more in (
            (("put", tmp_path / "here", "put"), {"no_target_directory": True}),
            (("put", tmp_path / "here", "put"), {"no_target_directory": True, "if_absent": True}),
            (("sync", tmp_path / "here", "tier:sync"), {}),
            (("sync", tmp_path / "here", "tier:sync"), {"delete": True}),
            (("get", "put", tmp_path / f"got-{number}"), {}),
            (("get", "put", tmp_path / f"got-{number}"), {"no_clobber": True, "no_target_directory": True}),
            (("get", "nothing", "put/d1/f0001", "put/nothing", tmp_path / f"got-{number}"), {}),
            (("sync", "tier:put", tmp_path / f"got-{number}"), {"verbose": True}),
        ):
            status = run(each, *words, **more)
            said = capfd.readouterr().err.replace(f"got-{number}", "got").splitlines()
            found.append((status, len(said), sorted(said) if len(said) < 10 else ""))
        told.append((found, snapshot(root), snapshot(tmp_path / f"got-{number}")))
    assert told[0] == told[1]
    assert [status for status, *_ in told[0][0]] == [1, 1, 1, 1, 0, 1, 1, 0]


class Failing(Local):
    """A store that fails at some files."""

    def __init__(self, root: Path, number: int, text: str = "") -> None:
        super().__init__(str(root))
        self.number, self.text = number, text

    def bad(self, path: str) -> None:
        if path.endswith("7"):
            raise OSError(self.number, self.text or os.strerror(self.number), path)

    def create(self, path: str, **more: Any) -> Writer:
        writer = super().create(path, **more)
        commit = writer.commit

        def commit_or_fail() -> Entry:
            self.bad(path)
            return commit()

        writer.commit = commit_or_fail  # type: ignore[method-assign]
        return writer

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        self.bad(path)
        return super().open(path, offset, length)


def test_a_failing_file_does_not_disturb_its_neighbours(
    relay: Relay, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = Failing(tmp_path / "store", errno.EACCES)
    relay.handler = Service(lambda: store)
    tier = Remote(relay)  # type: ignore[arg-type]
    plant(tmp_path / "here", 120)
    assert run(tier, "put", tmp_path / "here", "d") == 1
    said = capfd.readouterr().err
    assert said.count("permission denied") == 10 and said.endswith("error: 2 more went wrong\n")
    good = {str(path.relative_to(tmp_path / "here")): path.read_bytes() for path in (tmp_path / "here").rglob("*[!7]")
            if path.is_file()}  # fmt: skip
    assert {entry.path for entry in store.walk("d") if entry.is_file} == {f"d/{name}" for name in good}
    assert run(tier, "get", "d", tmp_path / "got") == 0
    assert {
        str(path.relative_to(tmp_path / "got")): path.read_bytes() for path in (tmp_path / "got").rglob("f*")
    } == good


def test_an_answer_is_short_whatever_the_error_says() -> None:
    for problem in (
        OSError(errno.EIO, "\U0001f600" * 500, "x" * 4000),
        Failure(1, "é" * 500, "ü" * 500),
        ValueError("x"),
    ):
        text = protocol.short(problem)
        assert len(text) <= protocol.ANSWER
        told = protocol.heard(io.BytesIO(text).read, protocol.LONGEST_TOLD)
        assert protocol.is_error(told) and "path" not in told
    assert pipeline.ROOM <= incoming.OUTBOX


# -- breaks ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trees of the same names, `old` and `new`: more files than a pipeline takes before it hears an answer."""
    place = tmp_path_factory.mktemp("versions")
    plant(place / "new", FILES, seed=2)
    plant(place / "old", FILES, seed=1)
    return place


@pytest.mark.parametrize("after", [0, 20, FILES - 10])
@pytest.mark.parametrize("command", ["put", "get", "sync"])
def test_a_link_that_is_lost_leaves_whole_files(
    command: str, after: int, relay: Relay, local: Local, versions: Path, tmp_path: Path
) -> None:
    """Old or new, and nothing aside; the exit status is that of an origin that is gone."""
    source, target = (
        (versions / "new", Path(local.root) / "d") if command != "get" else (None, tmp_path / "got")
    )
    shutil.copytree(versions / "old", target)
    if not source:
        shutil.copytree(versions / "new", Path(local.root) / "d")
    done = []

    class Cut(Local):
        def perform(self, request: Request) -> Entry | Reader | None:
            found = super().perform(request)
            done.append(1)
            if len(done) > after:
                relay.lost = "the link is gone"
            return found

    relay.handler = Service(lambda: Cut(local.root))
    words = ("get", "d", target) if not source else (command, source, "tier:d" if command == "sync" else "d")
    with pytest.raises(Failure) as caught:
        run(Remote(relay), *words, no_target_directory=True)  # type: ignore[arg-type]
    assert caught.value.status in (LOST, NOT_STARTED) and "the link is gone" in caught.value.detail
    assert (caught.value.status == LOST) <= (command != "get")
    relay.close()
    old, new, found = (files(versions / "old"), files(versions / "new"), files(target))
    assert found.keys() == old.keys()
    assert all(content in (old[path], new[path]) for path, content in found.items())


def files(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_a_full_quota_in_the_middle(relay: Relay, tmp_path: Path) -> None:
    book = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0, limit_stored=400_000), "quine-quota")
    quota = Quota(Local(str(tmp_path / "fs")), book)
    relay.handler = Service(lambda: Unreserved(quota))
    for each in range(200):
        (tmp_path / "here").mkdir(exist_ok=True)
        (tmp_path / "here" / f"{each}").write_bytes(b"%03d" % each * 2000)
    with pytest.raises(Failure) as caught:
        run(Remote(relay), "put", tmp_path / "here", "d")  # type: ignore[arg-type]
    assert caught.value.status == 1 and "no room for 6000 more" in caught.value.detail
    relay.close()
    put_there = files(tmp_path / "fs" / "d")
    assert len(put_there) == 400_000 // 6000 and book.numbers().stored == 6000 * len(put_there)
    assert all(content == b"%03d" % int(name) * 2000 for name, content in put_there.items())
    os.close(book.fd)


def test_what_is_reserved_stays_so(relay: Relay, local: Local, tmp_path: Path, capfd: Any) -> None:
    relay.handler = Service(lambda: Unreserved(local))
    plant(tmp_path / "here", 30)
    fill(tmp_path / "here" / ".QUINE", {b"record": b"forged"})
    assert run(Remote(relay), "put", tmp_path / "here", "/", no_target_directory=True) == 1  # type: ignore[arg-type]
    assert "is reserved" in capfd.readouterr().err
    assert not (Path(local.root) / ".QUINE").exists()
    assert len(files(Path(local.root))) == 30


@pytest.mark.parametrize("jobs", [1, 4])
def test_what_is_under_way_is_given_up_when_the_process_ends(tier: Remote, local: Local, jobs: int) -> None:
    def work(number: int) -> Generator[Request, Any, None]:
        yield Request("put", f"d/{number}", size=5, content=b"%05d" % number)
        if number == 300:
            reached.set()
        crew.tick(5)

    reached = threading.Event()
    with pytest.raises(KeyboardInterrupt), Crew(jobs, tier=tier) as crew:
        for number in range(20_000):
            crew.do(work, number)
            if reached.is_set():
                raise KeyboardInterrupt
    found = files(Path(local.root) / "d")
    assert 1 <= len(found) < 20_000
    assert all(content == b"%05d" % int(name) for name, content in found.items())


# -- foreign words -----------------------------------------------------------------------------------

BAD = [
    protocol.word({"op": "put", "path": "f", "size": SMALL + 1}) + bytes(SMALL + 1),
    protocol.word({"op": "put", "path": "f", "size": -1}),
    protocol.word({"op": "put", "path": "f", "size": 1 << 70}),
    protocol.word({"op": "put", "path": "f", "size": None}),
    protocol.word({"op": "put", "path": "f", "size": True}) + b"x",
    protocol.word({"op": "put", "path": "f"}) + protocol.mark(0),
    protocol.word({"op": "put", "path": "f", "size": 5}) + b"abc",
    protocol.word({"op": "put", "path": "f", "size": 5, "mode": -1}) + b"abcde",
    protocol.word({"op": "rename", "path": "kept", "target": "f"}),
    protocol.word({"op": "pipeline"}), protocol.word({"op": ["put"]}), protocol.word({}),
    protocol.word({"op": "get", "path": "kept", "content": "x"}),
    b"\xff\xff\xff\xff", b"\0\0", b"\0\0\0\5abcde",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_requester_that_breaks_the_protocol_ends_its_pipeline(
    bad: bytes, relay: Relay, local: Local
) -> None:
    good = Request("put", "kept", size=2, content=b"ok")
    with relay.stream("fs") as asked:
        asked.write(protocol.ask("pipeline") + protocol.piece(good) + bad)
        asked.end()
        assert protocol.heard(asked.read, 1000) == {}
        with pytest.raises(Exception, match=r"."):
            while asked.read(1000):
                pass
    assert files(Path(local.root)) == {"kept": b"ok"}


def test_a_bad_path_is_an_error_of_its_own(relay: Relay, local: Local) -> None:
    with relay.stream("fs") as asked:
        asked.write(protocol.ask("pipeline"))
        for path in ("../x", "a\0b", "\ud800", "", ".quine-parts/x", "good"):
            asked.write(protocol.piece(Request("put", path, size=3, content=b"abc")))
        asked.end()
        told = [protocol.heard(asked.read, 5000) for _ in range(6)]
        assert asked.read(1) == b""
    assert [protocol.is_error(each) for each in told] == [True] * 5 + [False]
    assert files(Path(local.root)) == {"good": b"abc"}


ENTRY = protocol.row(Entry("f", "file", 5, 1.0, 0o644, "v"), "f")


@pytest.mark.parametrize(
    "bad",
    [
        protocol.word({"entry": ENTRY, "offset": 0, "length": SMALL + 1}),
        protocol.word({"entry": ENTRY, "offset": 0, "length": 1 << 60}),
        protocol.word({"entry": ENTRY, "offset": 0, "length": 5, "holes": [[0, 5]]}),
        protocol.word({"entry": ENTRY, "offset": 2, "length": 3}) + b"abc",
        protocol.word({"entry": ENTRY, "offset": 0, "length": 5}) + b"abc",
        protocol.word({"alone": 1}), protocol.word({}), b"\xff\xff\xff\xff", b"",
    ],
)  # fmt: skip
def test_an_origin_that_breaks_the_protocol_is_an_error(bad: bytes, relay: Relay, tmp_path: Path) -> None:
    def lie(line: Any) -> None:
        if protocol.asked(line.read).op == "pipeline":
            line.write(bad)

    relay.handler = lie
    lane = Remote(relay).pipeline()  # type: ignore[arg-type]
    for name in ("f", "g"):
        lane.send(Request("get", name, size=5))
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            lane.answer()
        assert caught.value.errno in (errno.EIO, errno.ENOTCONN)
    lane.close()


class Lost:
    """An origin to which the link is lost once requests were sent."""

    def stream(self, path: str) -> Lost:
        return self

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        raise OSError(errno.ENOTCONN, "lost", path)

    def write(self, data: bytes) -> None:
        return

    def read(self, size: int) -> bytes:
        raise RequestLost("lost")


@pytest.mark.parametrize(
    "look", [Request("stat", "s"), Request("get", "g", size=SMALL + 1)], ids=["stat", "alone"]
)
def test_changes_behind_a_look_that_was_lost_are_unknown(look: Request) -> None:
    for behind in ([], [Request("mkdir", "d")]):
        lane = pipeline.RequestPipeline(Lost())  # type: ignore[arg-type]
        for request in [look, *behind]:
            lane.send(request)
        with pytest.raises(OSError) as caught:
            lane.answer()
        assert caught.value.errno == errno.ENOTCONN
        assert isinstance(caught.value, OutcomeUnknown) == bool(behind)


# -- both ways at once -------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("get", "grown", "put", "stat", "nothing")), st.sampled_from((0, 1, 3000, SMALL))
    ),
    min_size=1,
    max_size=250,
)


@settings(deadline=None, max_examples=25)
@given(steps=STEPS, eager=st.integers(0, 3))
@example(steps=[("grown", 0)] * 10 + [("put", SMALL)] * 3, eager=0)
def test_a_sender_that_reads_late_is_never_stuck(steps: list[tuple[str, int]], eager: int) -> None:
    """It reads an answer only when the pipeline is full, or now and then; each answer is that of its request.

    A file may have grown since it was listed. Its content was once sent in between all the same, and the origin waited
    for a reader that waited for the origin.
    """
    with tiers.scratch() as root:
        send_and_read_late(Local(root), steps, eager)


def send_and_read_late(store: Local, steps: list[tuple[str, int]], eager: int) -> None:
    for size in (0, 1, 3000, SMALL):
        with store.create(f"get/{size}") as writer:
            writer.write(b"g" * size)
            writer.commit()
    with streams.joined(Service(lambda: store), room=pipeline.ROOM) as relay:
        lane = Remote(relay).pipeline()
        waiting: deque[tuple[str, int]] = deque()

        def hear() -> None:
            op, size = waiting.popleft()
            if op == "nothing":
                with pytest.raises(FileNotFoundError):
                    lane.answer()
                return
            found = lane.answer()
            if op == "stat":
                assert isinstance(found, Entry) and found.size == size
            elif op in ("get", "grown"):
                size = SMALL if op == "grown" else size
                assert isinstance(found, Reader) and b"".join(iter(found.read, b"")) == b"g" * size
                found.close()
            else:
                assert found is None

        for number, (op, size) in enumerate(steps):
            request = {
                "get": Request("get", f"get/{size}", size=size),
                "grown": Request("get", f"get/{SMALL}", size=size),
                "put": Request("put", f"put/{number}", size=size, content=b"p" * size),
                "stat": Request("stat", f"get/{size}"),
                "nothing": Request("get", "nothing", size=size),
            }[op]
            while lane.full(request):
                hear()
            lane.send(request)
            waiting.append((op, size))
            if eager and number % eager == 1:
                hear()
        while waiting:
            hear()
        lane.end()
        assert relay.requests == 1 + sum(op == "grown" and size < SMALL for op, size in steps)
    kept = {entry.path: entry.size for entry in store.walk("") if entry.path.startswith("put/")}
    assert kept == {f"put/{number}": size for number, (op, size) in enumerate(steps) if op == "put"}


def test_a_slow_reader_holds_up_nothing_but_itself(
    tier: Remote, local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk here is slow: the origin sends ahead no more than the room of the pipelines."""
    plant(Path(local.root) / "d", 120, most=SMALL)
    whole = localfs.Folder.fill

    def slowly(*words: Any, **more: Any) -> None:
        time.sleep(0.005)
        whole(*words, **more)

    monkeypatch.setattr(localfs.Folder, "fill", slowly)
    assert run(tier, "get", "d", tmp_path / "got") == 0
    assert snapshot(tmp_path / "got") == snapshot(Path(local.root) / "d")


def test_a_pipeline_is_full_when_its_origin_may_be(tier: Remote) -> None:
    for request, most in (
        (Request("stat", "f"), 128),
        (Request("get", "f", size=SMALL), 3),
        (Request("get", "f"), 3),
        (Request("put", "f", size=SMALL, content=bytes(SMALL)), 3),
        (Request("get", "f", size=SMALL + 1), 128),
    ):
        lane = tier.pipeline()
        sent = 0
        while not lane.full(request):
            lane.send(request)
            sent += 1
        assert sent == most
        lane.close()


def test_an_origin_that_is_lost_says_whether_changes_are_in_doubt(relay: Relay, tier: Remote) -> None:
    for op, doubt in (("get", False), ("put", True)):
        lane = tier.pipeline()
        lane.send(Request(op, "f", size=1, content=b"x" if op == "put" else b""))
        lane._flush()
        relay.lost = "gone"
        with pytest.raises(OSError, match="is not known" if doubt else "^.Errno 107. gone: 'f'$"):
            lane.answer()
        lane.close()
        relay.lost = ""
