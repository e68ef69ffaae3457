"""Stores behind fsspec: operations that they are trusted with, and entries that removing a directory leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from quine.base.errors import Misconfigured
from quine.files.api import Entry, Tier
from quine.files.stores.fsspec_store import Generic
from quine.files.stores.registry import open_store
from tests.files import tiers
from tests.files.clouds import Azure
from tests.files.tiers import get, put


@pytest.fixture(params=[each for each in tiers.makers() if each.values[0] in ("az", "fsspec", "gs")])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tiers.Store]:
    request.getfixturevalue(tiers.SERVERS[request.param])
    with tiers.MAKERS[request.param](request, tmp_path) as made:
        yield made
        made.tier.close()


def test_what_comes_into_a_directory_after_it_was_seen_empty_stays(
    store: tiers.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, another = store.tier, store.another()
    assert isinstance(tier, Generic)
    tier.mkdir("d")
    listed, came = tier._listed, []

    def late(path: str) -> tuple[Sequence[Entry], Sequence[str]]:
        found = listed(path)
        if not came:
            came.append(put(another, "d/f", b"acknowledged"))
        return found

    monkeypatch.setattr(tier, "_listed", late)
    try:
        tier.remove("d")
    except OSError as fault:
        assert fault.errno == errno.ENOTEMPTY
    assert get(another, "d/f") == b"acknowledged"
    another.close()


@pytest.mark.skipif(not tiers.AZURITE, reason="no azurite-blob here; see tests/files/clouds.py")
def test_a_closed_store_of_azures_keeps_no_connection(azure: Azure) -> None:
    """The driver kept it, and itself, until the server closed it: of an idle one after five seconds."""
    from fsspec.asyn import get_loop, sync  # type: ignore[import-untyped]

    before = _sockets()
    tier = open_store(f"az://{tiers.CONTAINER}/{uuid.uuid4()}", azure.environ, "")
    put(tier, "a", b"1")
    assert _sockets() - before
    tier.close()
    for _ in range(3):  # the loop closes a transport in its next round
        sync(get_loop(), asyncio.sleep, 0)
    assert not _sockets() - before


def _sockets() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {link for link in found if link.startswith("socket:")}


def opened(url: str, **options: object) -> Tier:
    return open_store(url, {"QUINE_FS_OPTIONS": json.dumps(options)}, "")


@pytest.mark.usefixtures("drivers")
def test_a_store_that_does_not_replace_in_one_step_is_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quine.files.stores.fsspec_store.ONE_STEP", ())
    url = f"dir::memory://{tmp_path}"
    unsafe, tier = opened(url, unsafe=True), opened(url)
    put(unsafe, "a", b"1")
    put(unsafe, "a", b"2")
    assert get(tier, "a") == b"2"
    acts: list[Callable[[], object]] = [
        lambda: put(tier, "a"),
        lambda: tier.remove("a"),
        lambda: tier.mkdir("d"),
        lambda: tier.rename("a", "b"),
        lambda: tier.copy("a", "b"),
    ]
    for act in acts:
        with pytest.raises(OSError, match='so it is only read; "unsafe": true in QUINE_FS_OPTIONS') as caught:
            act()
        assert caught.value.errno == errno.EROFS
    assert get(unsafe, "a") == b"2"
    with pytest.raises(Misconfigured, match="unsafe in QUINE_FS_OPTIONS must be true or false"):
        opened(url, unsafe="yes")


@pytest.mark.usefixtures("drivers")
def test_a_store_that_replaces_in_one_step_is_written_to(tmp_path: Path) -> None:
    for url in (f"dir::local://{tmp_path}/l", f"dir::file://{tmp_path}/f", f"dir::memory://{tmp_path}"):
        tier = opened(url)
        put(tier, "a/b", b"1")
        put(tier, "a/b", b"2")
        assert get(tier, "a/b") == b"2"


@pytest.mark.usefixtures("drivers")
@pytest.mark.parametrize("url", ["ftp", "webdav", "smb", "dir::ftp"])
def test_network_drives_are_not_known_to_replace_in_one_step(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generic, "_driver", lambda self: (None, ""))
    tier = Generic(f"{url}://host/x", url.rpartition("::")[2], {}, f"{url}://host/x")
    with pytest.raises(OSError, match="only read") as caught:
        tier.create("a")
    assert caught.value.errno == errno.EROFS
