"""Moving within the tier: plainly, if absent, of many who do it, and what crosses to the origin meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.files.api import Tier
from quine.files.cli.cp_mv import mv
from quine.files.cli.main import Call
from quine.files.stores.local import dirfd
from quine.files.stores.local.store import Local
from quine.files.stores.object.client import Bucket
from quine.files.stores.object.store import ObjectTier
from quine.files.stores.registry import open_store
from quine.files.stores.sftp.links import Taking
from quine.files.stores.sftp.store import SftpTier
from tests.files import tiers
from tests.files.clouds import AZURITE, CONTAINER, Google
from tests.files.faulty_s3 import faulty, without
from tests.files.seaweed import BUCKET, Weed
from tests.files.tiers import below, get, put
from tests.lab import Lab


@pytest.fixture(params=tiers.makers())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tiers.Store]:
    if server := tiers.SERVERS.get(request.param):
        request.getfixturevalue(server)
    with tiers.MAKERS[request.param](request, tmp_path) as made:
        yield made
        made.tier.close()


def move(tier: Tier, *paths: str, **values: object) -> int:
    return mv(Call("mv", values, list(paths), tier))


def test_a_plain_move_asks_no_store_who_was_first(
    store: tiers.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, asked = store.tier, []
    rename = tier.rename

    def noted(source: str, target: str, if_absent: bool = False) -> None:
        asked.append(if_absent)
        rename(source, target, if_absent)

    monkeypatch.setattr(tier, "rename", noted)
    put(tier, "a", b"1")
    put(tier, "there", b"2")
    tier.mkdir("d")
    assert move(tier, "a", "b") == 0 and get(tier, "b") == b"1"
    assert move(tier, "b", "there") == 0 and get(tier, "there") == b"1"
    assert move(tier, "there", "d") == 0 and get(tier, "d/there") == b"1"
    assert move(tier, "d/there", "d/there") == 1 and get(tier, "d/there") == b"1"
    assert move(tier, "d", "d") == 1 and move(tier, "none", "x") == 1
    put(tier, "e", b"3")
    assert move(tier, "e", "d", no_target_directory=True) == 1 and get(tier, "e") == b"3"
    assert not any(asked)


def test_a_move_is_decided_where_the_store_is(store: tiers.Store) -> None:
    put(store.tier, "a", b"1")
    store.tier.mkdir("d")
    assert [store.tier.move("a", "b"), store.tier.move("b", "d"), store.tier.move("d/b", "d/c")] == [
        *("b", "d/b", "d/c"),
    ]
    assert below(store.tier, "d") == ["c"]
    with pytest.raises(OSError, match="same file") as caught:
        store.tier.move("d/c", "d")
    assert caught.value.errno == errno.EINVAL


# -- filesystems without RENAME_NOREPLACE, such as NFS -----------------------------------------------


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Local:
    monkeypatch.setattr(dirfd, "_renamed_new", lambda *_: False)
    return Local(str(tmp_path / "root"))


def hook(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Have something done once, right after a link was made."""
    link = os.link

    def linking(*args: Any, **more: Any) -> None:
        link(*args, **more)
        monkeypatch.setattr(os, "link", link)
        act()

    monkeypatch.setattr(os, "link", linking)


def test_what_is_put_while_a_link_is_moved_stays(linked: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the link to the new name and the removal of the old one."""
    put(linked, "q/7", b"old")
    hook(monkeypatch, lambda: put(Local(linked.root), "q/7", b"acknowledged"))
    linked.rename("q/7", "mine", if_absent=True)
    assert (get(linked, "mine"), get(linked, "q/7")) == (b"old", b"acknowledged")
    assert parts(linked) == []


def test_who_loses_a_move_leaves_no_link(linked: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    put(linked, "q/7", b"work")
    hook(monkeypatch, lambda: Local(linked.root).rename("q/7", "theirs"))
    with pytest.raises(FileNotFoundError):
        linked.rename("q/7", "mine", if_absent=True)
    assert (below(linked), below(linked, "q"), get(linked, "theirs")) == (["q", "theirs"], [], b"work")
    assert parts(linked) == []


def test_who_loses_a_move_removes_no_file_of_another(linked: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    put(linked, "q/7", b"work")

    def race() -> None:
        other = Local(linked.root)
        other.rename("q/7", "theirs")
        put(other, "mine", b"acknowledged")

    hook(monkeypatch, race)
    with pytest.raises(FileNotFoundError):
        linked.rename("q/7", "mine", if_absent=True)
    assert (get(linked, "mine"), get(linked, "theirs")) == (b"acknowledged", b"work")


def parts(tier: Local) -> list[str]:
    return os.listdir(os.path.join(tier.root, ".quine-parts"))


def test_both_directories_of_a_move_are_synced_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = Local(str(tmp_path / "root"))
    put(tier, "a/x", b"1")
    tier.mkdir("b")
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def renamed(*args: Any, **more: Any) -> None:
        rename(*args, **more)
        done.clear()

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    tier.rename("a/x", "b/y")
    assert sorted(done) == ["a", "b"]


# -- sftp --------------------------------------------------------------------------------------------


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path, sftp_server: Lab) -> Iterator[tiers.Store]:
    with tiers.MAKERS["sftp"](request, tmp_path) as made:
        yield made
        made.tier.close()


@pytest.mark.parametrize("moved", [False, True])
def test_what_is_put_while_sftp_moves_a_file_stays(
    served: tiers.Store, tmp_path: Path, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`moved`: and another one has the file."""
    tier, root = served.tier, Local(str(tmp_path / "a root"))
    assert isinstance(tier, SftpTier)
    put(tier, "q/7", b"old")
    settle = Taking.settle

    async def late(self: Taking, old: bytes, new: bytes) -> None:
        if moved:
            root.rename("q/7", "theirs")
        else:
            put(root, "q/7", b"acknowledged")
        await settle(self, old, new)

    monkeypatch.setattr(Taking, "settle", late)
    if moved:
        with pytest.raises(FileNotFoundError):
            tier.rename("q/7", "mine", if_absent=True)
        assert (below(tier), get(tier, "theirs")) == (["q", "theirs"], b"old")
    else:
        tier.rename("q/7", "mine", if_absent=True)
        assert (get(tier, "mine"), get(tier, "q/7")) == (b"old", b"acknowledged")
    assert parts(root) == []


# -- objects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unsafe", [False, True])
def test_a_store_that_ignores_the_condition_of_a_deletion_moves_nothing(
    weed: Weed, tmp_path: Path, unsafe: bool
) -> None:
    """A file put between the copy and the deletion was acknowledged, and the deletion would remove it."""
    with faulty(int(weed.endpoint.rpartition(":")[2])) as proxy:
        bucket = Bucket(BUCKET, {}, {**weed.options, "endpoint_url": proxy.endpoint})
        tier = ObjectTier(f"s3://{BUCKET}", bucket, str(tmp_path).lstrip("/"), unsafe)
        proxy.rule(
            lambda asked: asked.method == "DELETE" and "if-match" in asked.headers, without("If-Match"), 99
        )
        put(tier, "a", b"1")
        put(tier, "d/a", b"1")
        if unsafe:
            tier.rename("a", "b")
            tier.rename("d", "e")
            assert below(tier) == ["b", "d", "e"] or below(tier) == ["b", "e"]
            assert (get(tier, "b"), get(tier, "e/a")) == (b"1", b"1")
        else:
            for source in ("a", "d"):
                with pytest.raises(OSError, match="does not heed If-Match of a deletion") as caught:
                    tier.rename(source, "b")
                assert caught.value.errno == errno.ENOTSUP
            assert (below(tier), below(tier, "d")) == (["a", "d"], ["a"])
        tier.close()


def test_a_copy_is_of_the_version_that_was_looked_at(
    weed: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode and time come from the look, so the content must be of the same version."""
    bucket = weed.bucket()
    tier = ObjectTier(f"s3://{BUCKET}", bucket, str(tmp_path).lstrip("/"))
    put(tier, "a", b"old", mode=0o600)
    head = bucket.head

    def late(key: str, path: str) -> Any:
        found = head(key, path)
        monkeypatch.setattr(bucket, "head", head)
        put(tier, "a", b"newer")
        return found

    monkeypatch.setattr(bucket, "head", late)
    with pytest.raises(OSError) as caught:
        tier.copy("a", "b")
    assert caught.value.errno == errno.ESTALE
    assert below(tier) == ["a"]
    tier.close()


def test_no_byte_of_an_object_that_is_moved_comes_here(weed: Weed, tmp_path: Path) -> None:
    with faulty(int(weed.endpoint.rpartition(":")[2])) as proxy:
        bucket = Bucket(BUCKET, {}, {**weed.options, "endpoint_url": proxy.endpoint})
        tier = ObjectTier(f"s3://{BUCKET}", bucket, str(tmp_path).lstrip("/"))
        put(tier, "a", os.urandom(1 << 20))
        proxy.forget()
        assert tier.move("a", "b") == "b"
        tier.rename("b", "c", if_absent=True)
        assert proxy.count("GET", "/a") + proxy.count("GET", "/b") == 0
        assert tier.stat("c").size == 1 << 20
        tier.close()


def test_a_copy_that_stays_in_a_bucket_is_named(
    weed: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a file that was there, when another client has taken the source."""
    tier = ObjectTier(f"s3://{BUCKET}", weed.bucket(), str(tmp_path).lstrip("/"))
    copied = tier.copied

    def busy(*given: Any) -> Any:
        made = copied(*given)
        tier.remove("a")
        return made

    monkeypatch.setattr(tier, "copied", busy)
    put(tier, "a", b"job")
    put(tier, "b", b"before")
    with pytest.raises(FileNotFoundError, match="b is a copy of it now"):
        tier.rename("a", "b")
    put(tier, "a", b"job")
    with pytest.raises(FileNotFoundError) as caught:
        tier.rename("a", "c")
    assert "copy" not in str(caught.value) and below(tier) == ["b"]

    def rival(*given: Any) -> Any:
        made = busy(*given)
        put(tier, "c", b"job")  # of one content all objects have one ETag
        return made

    monkeypatch.setattr(tier, "copied", rival)
    put(tier, "a", b"job")
    with pytest.raises(FileNotFoundError):
        tier.rename("a", "c")
    assert below(tier) == ["b", "c"]
    tier.close()


@pytest.mark.parametrize(
    "store",
    ["gs", pytest.param("az", marks=pytest.mark.skipif(not AZURITE, reason="no azurite-blob here"))],
    indirect=True,
)
def test_what_is_put_while_a_flat_store_moves_a_file_stays(
    store: tiers.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is of the version before, and the removal would be of the acknowledged one."""
    tier = store.tier
    copy, puts = tier.copy, [b"new"]

    def busy(*given: Any) -> Any:
        made = copy(*given)
        if puts:
            put(tier, "a", puts.pop())
        return made

    monkeypatch.setattr(tier, "copy", busy)
    put(tier, "a", b"old")
    tier.rename("a", "b")
    assert (below(tier), get(tier, "b")) == (["b"], b"new")
    puts += [b"new"] * 9  # replaced faster than it is moved
    put(tier, "a", b"old")
    with pytest.raises(OSError) as caught:
        tier.rename("a", "c")
    assert (caught.value.errno, get(tier, "a")) == (errno.ESTALE, b"new")


def test_a_copy_in_google_is_known_by_the_answer_to_its_put(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any look at it another client puts a file of that size there, and a third one takes the source."""
    from gcsfs import core

    tier = open_store(f"gs://{CONTAINER}/{uuid.uuid4()}", google.environ, "")
    monkeypatch.setattr(tier._conditions, "decides", lambda _: True)  # type: ignore[attr-defined]
    put(tier, "a", b"job")
    upload = core.simple_upload

    async def busy(fs: Any, bucket: str, key: str, data: bytes, *given: Any, **words: Any) -> Any:
        made = await upload(fs, bucket, key, data, *given, **words)
        if data == b"job":
            await upload(fs, bucket, key, b"new", *given, **words)
            await fs._rm_file(f"{bucket}/{key[:-1]}a")
        return made

    monkeypatch.setattr(core, "simple_upload", busy)
    with pytest.raises(FileNotFoundError):
        tier.rename("a", "b")
    assert get(tier, "b") == b"new"
    tier.close()


def test_a_flat_store_that_ignores_the_condition_of_a_removal_moves_nothing(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcsfs import GCSFileSystem

    def deaf(request: Any) -> Any:
        def asked(self: Any, *given: Any, **more: Any) -> Any:
            more.pop("ifGenerationMatch", None)
            return request(self, *given, **more)

        return asked

    request = GCSFileSystem._request
    ignoring = deaf(request)
    ignoring.__wrapped__ = deaf(request.__wrapped__)  # without the driver's repetitions
    monkeypatch.setattr(GCSFileSystem, "_request", ignoring)
    url = f"gs://{CONTAINER}/{uuid.uuid4()}"
    options = json.loads(google.environ["QUINE_FS_OPTIONS"])
    unsafe = {**google.environ, "QUINE_FS_OPTIONS": json.dumps({**options, "unsafe": True})}
    with contextlib.closing(open_store(url, google.environ, "")) as tier:
        put(tier, "d/a", b"1")
        for source in ("d/a", "d"):
            with pytest.raises(OSError, match="does not remove one version alone") as caught:
                tier.rename(source, "b")
            assert caught.value.errno == errno.ENOTSUP
        assert (below(tier), below(tier, "d")) == (["d"], ["a"])
    with contextlib.closing(open_store(url, unsafe, "")) as tier:
        tier.rename("d/a", "b")
        assert get(tier, "b") == b"1"
        with pytest.raises(FileNotFoundError):
            tier.stat("d/a")
