"""Stores for the one suite of shared files (tests/files/stores/test_every_store.py): each backend brings a maker.

Laws
1. A maker gives an empty store, and leaves nothing behind. Session fixtures share a costly part, such as a server.
2. A store names the operations that it lacks in `LACKS`; the suite is the same for all.
   docs/reference/shared-files.md documents each lack.

As a program it is another process at the same store: `python -m tests.files.tiers URL DATA_DIR VERB ARG…`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quine.files.api import Tier
from quine.files.stores.registry import SHARED_MEMORY, open_store
from tests.files.clouds import AZURITE, CONTAINER
from tests.files.seaweed import BUCKET

LACKS = {
    "mode": "permission bits",
    "mtime": "times that are given",
    "fractions": "parts of a second in times",
    "versions": "contents of the same size and second: their versions are the same",
    "listed": "mode and mtime in listings; stat knows them",
    "holes": "sparse files: zeros take room",
    "stays": "directories that came with their files, when these are gone",
    "if_absent": "deciding who was first: such writers are refused with ENOTSUP",
    "old": "the content that was opened, after it was replaced: readers get ESTALE",
    "rename": "renaming a directory in one step",
    "gone": "listings without removed directories: a gateway may show an empty one of its own, which is ENOENT",
    "room": "limits that it tells before a file is committed",
    "descriptors": "Reader.fileno and Writer.fileno",
}


@dataclass
class Store:
    """An empty store. `another` opens it once more, as a client of its own; `url` and so on are for other processes."""

    tier: Tier
    another: Callable[[], Tier]
    url: str = ""
    data_dir: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    near: bool = False  # a call takes microseconds: no server and no link on the way

    def has(self, what: str) -> bool:
        assert what in LACKS
        return what not in self.lacks

    def needs(self, what: str) -> None:
        if not self.has(what):
            pytest.skip(f"this store lacks {LACKS[what]}")

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "tests.files.tiers", self.url, self.data_dir, *words]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of `command`, whose working directory may be any."""
        return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **self.environ}


Make = Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Store]]
MAKERS: dict[str, Make] = {}
SERVERS = {
    "az": "azure",
    "fsspec": "drivers",
    "gs": "google",
    "relayed": "door",
    "s3": "weed",
    "sftp": "sftp_server",
}  # maker -> the fixture of the session or module that it needs, made before the watch
NEAR = {"origin", "file", "memory"}
# Where not all parameters of a long test are run, the first and the fifth are (tests/conftest.py): a directory, and
# that of a job over a link. For a release are `origin`, the class of `file`, and `gs`: it goes by the class of `az`,
# and lacks what `fsspec` lacks.
ORDER = ("file", "memory", "fsspec", "sftp", "relayed", "s3", "az", "origin", "gs")


def makers() -> list[Any]:
    """The parameters of a fixture that gives one store after the other."""
    absent = pytest.mark.skipif(not AZURITE, reason="no azurite-blob here; see tests/files/clouds.py")
    marks = {"az": [absent], "origin": [pytest.mark.whole], "gs": [pytest.mark.whole]}
    return [pytest.param(name, marks=marks.get(name, [])) for name in ORDER]


def maker(
    name: str, *lacks: str
) -> Callable[[Callable[[pytest.FixtureRequest, Path], Iterator[Store]]], Make]:
    """Register a generator that yields one empty Store and cleans up after it."""
    assert not set(lacks) - set(LACKS)

    def register(make: Callable[[pytest.FixtureRequest, Path], Iterator[Store]]) -> Make:
        @contextlib.contextmanager
        def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
            with contextlib.contextmanager(make)(request, tmp_path) as store:
                store.lacks = frozenset(lacks)
                store.near = name in NEAR
                yield store

        MAKERS[name] = made
        return made

    return register


def opened(url: str, data_dir: str = "", environ: Mapping[str, str] | None = None) -> Store:
    """A store that a URL is enough for."""

    def another() -> Tier:
        return open_store(url, environ or {}, data_dir)

    return Store(another(), another, url, data_dir, environ or {})


@maker("origin")
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield opened("origin:", str(tmp_path))


@maker("file")
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield opened(f"file://{tmp_path}/a mount")


@maker("memory")
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = opened(f"memory://quine-test-{uuid.uuid4()}")
    try:
        yield store
    finally:
        shutil.rmtree(store.tier.directory_here(), ignore_errors=True)


@maker("relayed", "descriptors")
def relayed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """That of a job on another host, over a real link; other processes are those of the origin."""
    from tests.support.agents import until

    door = request.getfixturevalue("door")
    yield Store(door.tier(), door.tier, f"origin:{door.root}", str(tmp_path))
    until(lambda: shutil.rmtree(door.root, ignore_errors=True) or not door.root.exists())


@maker("s3", "listed", "holes", "old", "rename", "gone", "room", "descriptors")
def s3(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    weed = request.getfixturevalue("weed")
    yield opened(f"s3://{BUCKET}/a prefix/{uuid.uuid4()}", "", weed.environ)


@maker("sftp", "holes", "versions", "fractions", "descriptors")
def sftp(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    host = request.getfixturevalue("sftp_lab")["h1"]
    options = {"identity": str(host.identity)}
    url = f"sftp://{host.user}@{host.address}:{host.port}{tmp_path}/a root"
    yield opened(url, "", {"QUINE_FS_OPTIONS": json.dumps(options), "HOME": os.environ["HOME"]})


GENERIC = ("mode", "mtime", "listed", "holes", "stays", "old", "rename", "versions", "room", "descriptors")


@maker("fsspec", "if_absent", *GENERIC)
def fsspec(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Any filesystem of fsspec's, with directories; chained, as they can be."""
    yield opened(f"dir::local://{tmp_path}/a root")


@maker("gs", "if_absent", *GENERIC)  # the emulator does not decide it; Google does
def gs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    google = request.getfixturevalue("google")
    yield opened(f"gs://{CONTAINER}/a prefix/{uuid.uuid4()}", "", google.environ)


@maker("az", *GENERIC)
def az(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    azure = request.getfixturevalue("azure")
    yield opened(f"az://{CONTAINER}/a prefix/{uuid.uuid4()}", "", azure.environ)


# -- what every test does --------------------------------------------------------------------------


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """The root of a store that is empty, and quick where the machine has a filesystem in memory."""
    shared = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="quine-test-", dir=shared) as name:
        yield f"{name}/root"


def put(tier: Tier, path: str, data: bytes = b"", **more: object) -> str:
    """Its version."""
    with tier.create(path, **more) as writer:  # type: ignore[arg-type]
        if data:
            writer.write(data)
        return writer.commit().version


def get(tier: Tier, path: str, offset: int = 0, length: int | None = None) -> bytes:
    with tier.open(path, offset, length) as reader:
        return b"".join(iter(reader.read, b""))


def below(tier: Tier, path: str = "") -> list[str]:
    """The names in a directory, as listed."""
    return [entry.path[len(path) + 1 if path else 0 :] for entry in tier.list(path)]


def marked(seed: str, size: int) -> bytes:
    """Content that tells of itself whether it is whole."""
    body = (hashlib.sha256(seed.encode()).digest() * (size // 32 + 1))[:size]
    return hashlib.sha256(body).digest() + body


def whole(data: bytes) -> bool:
    return hashlib.sha256(data[32:]).digest() == data[:32]


# -- another process -------------------------------------------------------------------------------


def _contend(tier: Tier, name: str, count: str) -> None:
    """Try to be the first at so many names; print which."""
    won = []
    for index in range(int(count)):
        with contextlib.suppress(FileExistsError):
            put(tier, f"locks/{index}", name.encode(), if_absent=True)
            won.append(index)
    print(json.dumps(won))


def _overwrite(tier: Tier, path: str, name: str, count: str) -> None:
    for index in range(int(count)):
        put(tier, path, marked(f"{name}{index}", 100_000 + 1000 * index))


def _hang(tier: Tier, path: str, size: str) -> None:
    """Begin a file, say so, and wait to be killed."""
    with tier.create(path) as writer:
        writer.write(b"x" * int(size))
        print("begun", flush=True)
        signal.pause()


def _append(tier: Tier, directory: str, name: str, count: str) -> None:
    """Many files of our own in one directory."""
    for index in range(int(count)):
        put(tier, f"{directory}/{name}-{index}", name.encode())


if __name__ == "__main__":
    _verbs = {"contend": _contend, "overwrite": _overwrite, "hang": _hang, "append": _append}
    _verbs[sys.argv[3]](open_store(sys.argv[1], os.environ, sys.argv[2]), *sys.argv[4:])  # type: ignore[operator]
