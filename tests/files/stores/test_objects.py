"""Properties of stores behind a library: keys of objects, lost answers, versions, drivers, secrets."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import socket
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from asyncssh import ConnectionLost, SFTPClient, SSHClientConnection
from hypothesis import given
from hypothesis import strategies as st

from quine.agent import env
from quine.base.cli_options import RunOptions
from quine.base.errors import Misconfigured
from quine.files import credentials, urls
from quine.files.api import OutcomeUnknown, Tier
from quine.files.stores.drivers import _of_driver
from quine.files.stores.fsspec_io import about
from quine.files.stores.fsspec_store import Generic
from quine.files.stores.object import keys
from quine.files.stores.object.client import Bucket, Unmet, found, settings
from quine.files.stores.object.io import PART
from quine.files.stores.object.moves import Mover
from quine.files.stores.object.store import ObjectTier
from quine.files.stores.registry import open_store
from tests.files.clouds import AZURITE, CONTAINER, Azure, Google
from tests.files.commands import Shelf
from tests.files.lost_answers import losing
from tests.files.seaweed import BUCKET, SECRET, Weed
from tests.files.tiers import below, get, put
from tests.lab import Lab, processes
from tests.support.acts import refused, together
from transport import inherit


def opened(url: str, environ: Mapping[str, str] | None = None) -> Tier:
    return open_store(url, environ or {}, "")


@pytest.fixture
def bucket(weed: Weed) -> Iterator[Bucket]:
    made = weed.bucket()
    yield made
    made.close()


@pytest.fixture
def tier(bucket: Bucket, tmp_path: Path) -> ObjectTier:
    return ObjectTier(f"s3://{BUCKET}", bucket, str(tmp_path).lstrip("/"))


# -- keys ------------------------------------------------------------------------------------------

NAMES = st.lists(
    st.binary(min_size=1, max_size=12) | st.sampled_from([b"%41", b"%", b"a%", b"4F", b"\xc3", b"\\", b"\x7f"]),
    min_size=1, max_size=6,
).map(lambda parts: os.fsdecode(b"".join(parts).replace(b"\0", b"0").replace(b"/", b"%")))  # fmt: skip


@pytest.mark.long
@given(NAMES, NAMES)
def test_a_key_is_one_names_and_no_others(one: str, other: str) -> None:
    key = keys.key_of(one)
    assert keys.path_of(key) == one
    key.encode("utf-8")
    assert "\\" not in key and all(ord(character) >= 32 for character in key)
    assert (key == keys.key_of(other)) == (one == other)


@given(st.text(alphabet="aA4F%5C2É\udcff/", max_size=12).filter(lambda key: "\udcff" not in key))
def test_a_key_that_is_no_names_is_left_out(key: str) -> None:
    path = keys.path_of(key)
    assert path is None or keys.key_of(path) == key


def test_ordinary_names_are_their_own_keys() -> None:
    for name in ("a", "50%.txt", "a b/c+d", "Übung", "日本", "~x", "*?[]", "100%", "%zz"):
        assert keys.key_of(name) == name
    assert keys.path_of(keys.ASIDE) is None


# -- s3 --------------------------------------------------------------------------------------------


def test_what_others_put_is_seen_as_it_is(tier: ObjectTier, bucket: Bucket) -> None:
    """Objects without our metadata, without directories, with keys that are no names."""
    for key in ("x/y/z.txt", "50%.csv", "a%20b", "un//even", keys.ASIDE + "probe"):
        bucket.call("put_object", "", Key=tier.base + key, Body=b"theirs")
    assert below(tier) == ["50%.csv", "un", "x"]
    assert (tier.stat("x/y/z.txt").mode, get(tier, "x/y/z.txt")) == (0o644, b"theirs")
    assert tier.stat("x").kind == "directory"
    tier.remove("x", recursive=True)
    refused(errno.ENOENT, lambda: tier.stat("x"))


def test_a_directory_without_an_object_goes_with_what_is_below(tier: ObjectTier, bucket: Bucket) -> None:
    """This store has real directories: it listed those that it had made itself after all below them was gone."""
    for key in ("x/y/z/f", "from/y/f"):
        bucket.call("put_object", "", Key=tier.base + key, Body=b"theirs")
    tier.remove("x", recursive=True)
    tier.rename("from", "to")
    assert below(tier) == ["to"]
    assert get(tier, "to/y/f") == b"theirs"


def test_a_directory_is_created_before_those_below_it(
    tier: ObjectTier, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Created at one time, the object of the upper one was lost now and then."""
    begin, done, waiting, order = bucket.begin, bucket.done, dict[Any, str](), list[str]()

    def begun(method: str, **call: Any) -> Any:
        future = begin(method, **call)
        if method == "put_object" and call["Key"].endswith("/"):
            assert not any(call["Key"].startswith(above) for above in waiting.values())
            waiting[future] = call["Key"]
            order.append(call["Key"][len(tier.base) :])
        return future

    def ended(future: Any, path: str) -> Any:
        waiting.pop(future, None)
        return done(future, path)

    monkeypatch.setattr(bucket, "begin", begun)
    monkeypatch.setattr(bucket, "done", ended)
    put(tier, "a/b/f", b"1")
    put(tier, "a/c/d/f", b"2")
    tier.rename("a", "m/n")
    assert order == ["a/", "a/b/", "a/c/", "a/c/d/", "m/", "m/n/", "m/n/b/", "m/n/c/", "m/n/c/d/"]
    assert below(tier) == ["m"]
    assert [get(tier, path) for path in ("m/n/b/f", "m/n/c/d/f")] == [b"1", b"2"]


@given(st.lists(st.text(alphabet="ab/", min_size=1, max_size=8)))
def test_folders_of_keys(names: list[str]) -> None:
    cuts = {f"d/{name[: at + 1]}" for name in names for at, letter in enumerate(name) if letter == "/"}
    assert keys.folders_of("d/", [f"d/{name}" for name in names]) == {"d/", *cuts}


def test_more_than_one_page(tier: ObjectTier, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven, where a real one has a thousand."""
    begin, pages, some = bucket.begin, [], [f"{n:02}" for n in range(25)]

    def few(method: str, **call: Any) -> Any:
        if method == "list_objects_v2" and "MaxKeys" not in call:
            pages.append(call)
            call["MaxKeys"] = 7
        return begin(method, **call)

    monkeypatch.setattr(bucket, "begin", few)
    monkeypatch.setattr("quine.files.stores.object.client.MORE", 7)
    for future in [begin("put_object", Key=f"{tier.base}d/{name}", Body=b"") for name in some]:
        bucket.done(future, "")
    assert below(tier, "d") == some and len(pages) >= 4
    assert [entry.path for entry in tier.walk("")] == ["d", *(f"d/{name}" for name in some)]
    tier.remove("d", recursive=True)
    assert list(tier.walk("")) == []


def test_an_answer_that_was_lost(tier: ObjectTier, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first put arrives, its answer does not; asked again, our own object is in the way: we are the first."""
    begin, lost = bucket.begin, []

    def losing(method: str, **call: Any) -> Any:
        if "IfNoneMatch" in call and call["Key"].endswith("lock") and not lost:
            lost.append(bucket.done(begin(method, **call), ""))
        return begin(method, **call)

    monkeypatch.setattr(bucket, "begin", losing)
    version = put(tier, "lock", b"mine", if_absent=True)
    assert lost and tier.stat("lock").version == version
    with tier.create("big.lock", if_absent=True) as writer:
        lost.clear()
        writer.write(bytes(PART + 1))
        writer.commit()
    assert tier.stat("big.lock").size == PART + 1
    refused(errno.EEXIST, lambda: put(tier, "lock", b"other", if_absent=True))


def test_a_store_that_ignores_the_condition_is_found_out(
    tier: ObjectTier, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = bucket.begin
    monkeypatch.setattr(
        bucket,
        "begin",
        lambda method, **call: begin(method, **{k: v for k, v in call.items() if k != "IfNoneMatch"}),
    )
    refused(errno.ENOTSUP, lambda: put(tier, "lock", b"", if_absent=True))
    assert below(tier) == []
    put(tier, "lock", b"")


def test_one_of_many_moves_it(tier: ObjectTier) -> None:
    """To names of their own, and all to one name."""
    for target in ("mine/{}", "ours"):
        put(tier, "queue/item", b"work")
        moved = []

        def claim(index: int, target: str = target, moved: list[int] = moved) -> None:
            with contextlib.suppress(FileNotFoundError):
                tier.rename("queue/item", target.format(index))
                moved.append(index)

        together(*(lambda index=index: claim(index) for index in range(8)))  # type: ignore[misc]
        assert len(moved) == 1
        assert get(tier, target.format(moved[0])) == b"work"
        assert below(tier, "queue") == []
    assert below(tier, "mine") == [below(tier, "mine")[0]]


@pytest.mark.parametrize("times", [1, 100])
def test_a_move_whose_answer_was_lost_loses_no_file(weed: Weed, tmp_path: Path, times: int) -> None:
    """The source is removed and the answer lost. The retry finds no source, and must not blame another mover."""
    port = int(weed.endpoint.rpartition(":")[2])
    with losing(port, b"DELETE /shelf/tmp") as line, contextlib.ExitStack() as stack:
        options = {**weed.options, "endpoint_url": f"http://127.0.0.1:{line.port}"}
        tier = ObjectTier(f"s3://{BUCKET}", Bucket(BUCKET, {}, options), str(tmp_path).lstrip("/"))
        stack.callback(tier.close)
        put(tier, "before", b"")  # the store is tried out
        put(tier, "first", b"", if_absent=True)
        put(tier, "job", b"work")
        tier.rename("first", "moved")
        line.most = times
        line.lost = 0
        with contextlib.suppress(OSError):
            tier.rename("job", "mine")
        assert line.lost
        line.most = 0
        held = [name for name in ("job", "mine") if name in below(tier)]
        assert held and all(get(tier, name) == b"work" for name in held)


def test_what_is_put_while_its_directory_is_moved_stays(
    tier: ObjectTier, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is replaced, and one that comes, between its copy and its removal: both were acknowledged."""
    for name in ("a", "b", "c"):
        put(tier, f"d/{name}", b"old")
    each = Mover._each

    def busy(self: Mover, objects: Any, begin: Any) -> Any:
        result = each(self, objects, begin)
        monkeypatch.setattr(Mover, "_each", each)
        put(tier, "d/b", b"new")
        put(tier, "d/later", b"new")
        return result

    monkeypatch.setattr(Mover, "_each", busy)
    tier.rename("d", "e")
    assert below(tier, "e") == ["a", "b", "c"]
    assert [get(tier, f"d/{name}") for name in below(tier, "d")] == [b"new", b"new"]


def test_a_directory_that_another_has_just_made(
    tier: ObjectTier, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the directory between the look and the making: the store decides which was first."""
    call = bucket.call

    def late(method: str, path: str, **more: Any) -> Any:
        if more.get("Key", "").endswith("queue/lock/") and "IfNoneMatch" in more:
            monkeypatch.setattr(bucket, "call", call)
            tier.mkdir("queue/lock", exist_ok=True)
        return call(method, path, **more)

    put(tier, "first", b"", if_absent=True)  # the store is tried out
    monkeypatch.setattr(bucket, "call", late)
    refused(errno.EEXIST, lambda: tier.mkdir("queue/lock"))
    tier.mkdir("queue/other")
    assert below(tier, "queue") == ["lock", "other"]


@pytest.mark.parametrize("ignored", [(), ("copy_object",), ("copy_object", "put_object")])
def test_a_new_mode_loses_no_put(
    weed: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: tuple[str, ...]
) -> None:
    """A put that is acknowledged while the store copies, which has looked at the source by then."""
    bucket = weed.bucket()
    begin = bucket.begin
    puts: list[bytes] = []

    def busy(method: str, **call: Any) -> Any:
        if method in ignored:
            call.pop("IfMatch", None)
        if call.get("Metadata", {}).get("quine-mode") == "640" and puts:
            call.pop("CopySourceIfMatch", None)
            with contextlib.closing(weed.bucket()) as other:
                put(ObjectTier(f"s3://{BUCKET}", other, str(tmp_path).lstrip("/")), "f", puts.pop())
        return begin(method, **call)

    monkeypatch.setattr(bucket, "begin", busy)
    with contextlib.closing(ObjectTier(f"s3://{BUCKET}", bucket, str(tmp_path).lstrip("/"))) as tier:
        put(tier, "f", b"old")
        if len(ignored) == 2:
            fault = refused(errno.ENOTSUP, lambda: tier.setattr("f", mode=0o640))
            assert "If-Match of a copy" in str(fault) and '"unsafe": true' in str(fault)
            tier = ObjectTier(tier.url, bucket, tier.base.rstrip("/"), unsafe=True)
        else:
            puts.append(b"new")
        assert tier.setattr("f", mode=0o640).mode == 0o640
        assert not puts
        assert (get(tier, "f"), tier.stat("f").mode) == (b"old" if len(ignored) == 2 else b"new", 0o640)
        assert below(tier) == ["f"]


def test_parts_are_dropped_with_their_writer(tier: ObjectTier, bucket: Bucket) -> None:
    with tier.create("a") as writer:
        writer.write(bytes(3 * PART))
    refused(errno.ENOENT, lambda: tier.stat("a"))
    uploads = bucket.call("list_multipart_uploads", "", Prefix=tier.base)
    assert not uploads.get("Uploads")


def test_a_body_that_breaks_off_is_asked_for_again(
    tier: ObjectTier, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(3 << 20)
    put(tier, "a", data)
    run, faults = bucket.run, iter([False, True, False, True])

    def breaking(coroutine: Any, path: str) -> Any:
        if next(faults, False):
            coroutine.close()
            raise OSError(errno.EIO, "broke", path)
        return run(coroutine, path)

    monkeypatch.setattr(bucket, "run", breaking)
    assert get(tier, "a") == data
    faults = iter([False, True])
    with tier.open("a") as reader:
        reader.data(1 << 20)
        put(tier, "a", b"another")
        refused(errno.ESTALE, lambda: reader.data(1 << 20))


def test_a_forked_process_opens_its_own(tier: ObjectTier) -> None:
    put(tier, "a", b"of the parent")
    pid = os.fork()
    if not pid:
        status = 1
        with contextlib.suppress(BaseException):
            put(tier, "b", get(tier, "a"))
            status = 0
        os._exit(status)
    child = processes.find(pid)
    stuck = processes.wait_gone([child] if child else [], 100)
    processes.kill(pid)
    assert (os.waitpid(pid, 0)[1], stuck) == (0, [])
    assert get(tier, "b") == b"of the parent"


def test_what_is_wrong_with_the_way_to_a_bucket(weed: Weed) -> None:
    tier = opened("s3://no-such-bucket", weed.environ)
    assert "no bucket no-such-bucket" in str(refused(errno.ENOENT, lambda: list(tier.list(""))))
    refused(errno.ENOENT, lambda: tier.open("a"))
    tier.close()
    wrong = SECRET[::-1]
    tier = opened(f"s3://{BUCKET}", {**weed.environ, "AWS_SECRET_ACCESS_KEY": wrong})
    assert wrong not in str(refused(errno.EACCES, lambda: list(tier.list(""))))
    tier.close()
    with socket.socket() as silent:  # it is bound, so nobody else will answer there
        silent.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tier = opened(f"s3://{BUCKET}", {**weed.environ, "AWS_ENDPOINT_URL": nobody})
        refused(errno.EHOSTUNREACH, lambda: tier.stat("a"))
        tier.close()


@pytest.mark.timeout(300)  # six commands that each load the driver
def test_a_directory_is_sent_once(weed: Weed, tmp_path: Path) -> None:
    """The commands on a bucket; its listings have not the times that were given, and all is not sent again for it."""

    shelf = Shelf(tmp_path)
    shelf.env |= {**weed.environ, "QUINE_FS": f"s3://{BUCKET}/sync{tmp_path}"}

    def fs(*words: str) -> str:
        return shelf.ok(*words).decode()

    (tmp_path / "own" / "d").mkdir(parents=True)
    for name in ("a", "d/b"):
        (tmp_path / "own" / name).write_text(name)
        os.utime(tmp_path / "own" / name, (1e9, 1e9 + 0.5))
    (tmp_path / "own" / "a").chmod(0o755)
    fs("sync", str(tmp_path / "own"), "tier:x")
    assert fs("sync", "-n", str(tmp_path / "own"), "tier:x") == ""
    fs("sync", "tier:x", str(tmp_path / "back"))
    assert fs("sync", "-n", "tier:x", str(tmp_path / "back")) == ""
    assert (tmp_path / "back" / "a").stat().st_mode & 0o777 == 0o755
    os.utime(tmp_path / "own" / "a")
    assert fs("sync", "-n", str(tmp_path / "own"), "tier:x") == "put a\n"
    assert fs("cat", "x/d/b") == "d/b"


def test_a_flat_store_by_no_more_than_fsspec_offers(weed: Weed, tmp_path: Path) -> None:
    """How gs:// is spoken to."""
    where = f"s3://{BUCKET}{tmp_path}", "s3", settings({}, weed.options), "s3://x"
    tier = Generic(*where, unsafe=True)
    assert list(tier.list("")) == []
    put(tier, "d/a \\ b", b"one")
    put(tier, "d/a \\ b", b"two")
    assert (get(tier, "d/a \\ b"), below(tier, "d")) == (b"two", ["a \\ b"])
    put(tier, "lock", b"first", if_absent=True)
    refused(errno.EEXIST, lambda: put(tier, "lock", b"second", if_absent=True))
    refused(errno.EISDIR, lambda: put(tier, "d", b""))
    refused(errno.ENOTDIR, lambda: put(tier, "lock/x", b""))
    with tier.create("given up") as writer:
        writer.write(b"x")
    tier.mkdir("empty")
    assert below(tier) == ["d", "empty", "lock"]
    strict = Generic(*where)
    refused(errno.ENOTSUP, lambda: strict.rename("d", "e"))
    strict.close()
    tier.rename("d", "e")
    assert [entry.path for entry in tier.walk("")][-2:] == ["e/a \\ b", "empty"] or below(tier, "e") == [
        "a \\ b"
    ]
    with tier.open("e/a \\ b", 1, 1) as reader:
        assert reader.read() == b"w"
    tier.close()


# -- other drivers ---------------------------------------------------------------------------------


def test_archives_are_read(drivers: None, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/f.txt", "hello")
    tier = opened(f"zip::file://{tmp_path}/a.zip")
    assert (below(tier), below(tier, "d"), get(tier, "d/f.txt"), get(tier, "d/f.txt", 1, 3)) == (
        *(["d"], ["f.txt"], b"hello", b"ell"),
    )
    for act in (
        *(lambda: put(tier, "x"), lambda: tier.remove("d/f.txt"), lambda: tier.mkdir("x")),
        lambda: tier.rename("d", "e"),
    ):
        refused(errno.EROFS, act)
    refused(errno.ENOTDIR, lambda: tier.stat("d/f.txt/x"))
    tier.close()


def test_a_chain_with_copies_of_its_own_is_only_read(weed: Weed, tmp_path: Path) -> None:
    bucket = weed.bucket()
    put(ObjectTier("s3://", bucket, f"cached{tmp_path}"), "d/a", b"content")
    bucket.close()
    options = {
        "s3": {"skip_instance_cache": True},
        "simplecache": {"cache_storage": str(tmp_path / "copies")},
    }
    environ = {**weed.environ, "QUINE_FS_OPTIONS": json.dumps(options)}
    tier = opened(f"simplecache::s3://{BUCKET}/cached{tmp_path}", environ)
    assert (below(tier, "d"), get(tier, "d/a")) == (["a"], b"content")
    refused(errno.EROFS, lambda: put(tier, "d/b"))
    tier.close()


@pytest.mark.long
@pytest.mark.usefixtures("drivers")
@pytest.mark.parametrize(
    ("url", "says", "hint"),
    [
        ("nonesuch://x", "nothing here speaks nonesuch:", "origin:"),
        ("simplecache::nonesuch://x", "nothing here speaks nonesuch:", "origin:"),
        ("s3://", "no name of a bucket", "s3://BUCKET"),
        ("s3://key:hush-hush@bucket", "no name of a bucket", "AWS_ACCESS_KEY_ID"),
        ("az://", "no name of a bucket or container", "az://NAME"),
        ("gs:///x", "no name of a bucket or container", "gs://NAME"),
        ("sftp://me:hush-hush@host/x", "takes no password", "ssh agent"),
        ("sftp://-oProxyCommand=x/x", "no host", "sftp://"),
        ("az://c/p?sv=1&sig=hush-hush", "takes no query", "QUINE_FS_OPTIONS"),
        ("s3://b?X-Amz-Signature=hush-hush", "takes no query", "QUINE_FS_OPTIONS"),
        ("s3://bucket/../x", "no root of a tier", ""),
    ],
)
def test_a_url_that_cannot_be_opened(url: str, says: str, hint: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        opened(url)
    assert says in caught.value.detail and hint in caught.value.hint
    assert "hush-hush" not in caught.value.detail + caught.value.hint


@pytest.mark.usefixtures("drivers")
@pytest.mark.parametrize(
    ("url", "module", "extra"), [("gs://b/x", "gcsfs", "gcs"), ("az://c", "adlfs", "azure")]
)
def test_a_driver_that_is_missing(url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, url[:2], raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == module] or [module]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Misconfigured, match=f"{url[:2]}:// needs a driver") as caught:
        opened(url)
    assert caught.value.hint.endswith(f"[{extra}]'")


@pytest.mark.usefixtures("drivers")
def test_a_store_without_its_keys_names_them() -> None:
    with pytest.raises(Misconfigured, match="az:// cannot be opened with the keys") as caught:
        opened("az://container")
    assert "AZURE_STORAGE_CONNECTION_STRING" in caught.value.hint


def test_options_that_are_none() -> None:
    for text in ("{", "[]", "1"):
        with pytest.raises(Misconfigured, match="JSON object"):
            opened("s3://bucket", {"QUINE_FS_OPTIONS": text})


# -- sftp ------------------------------------------------------------------------------------------


@pytest.fixture
def served(sftp_lab: Lab, tmp_path: Path) -> Iterator[Tier]:
    tier = reached(sftp_lab, tmp_path)
    yield tier
    tier.close()


def reached(lab: Lab, path: Path) -> Tier:
    host = lab["h1"]
    options = {"QUINE_FS_OPTIONS": json.dumps({"identity": str(host.identity)})}
    return opened(f"sftp://{host.user}@{host.address}:{host.port}{path}", options)


def test_a_link_over_there_leads_nowhere(served: Tier, tmp_path: Path) -> None:
    (tmp_path / "evil").symlink_to("/etc")
    (tmp_path / "file").symlink_to("/etc/passwd")
    assert below(served) == []
    for act in (
        lambda: served.stat("evil"),
        lambda: list(served.list("evil")),
        lambda: served.open("evil/passwd"),
        lambda: served.open("file"),
        lambda: put(served, "evil/x"),
        lambda: put(served, "file"),
        lambda: served.remove("evil", recursive=True),
        lambda: served.mkdir("evil/x"),
    ):
        refused(errno.EPERM, act)
    put(served, "d/a")
    (tmp_path / "d" / "link").symlink_to("/etc")
    served.remove("d", recursive=True)  # the link goes, not what it leads to
    assert Path("/etc/passwd").exists() and not (tmp_path / "d").exists()


def test_a_connection_that_broke_is_made_again(served: Tier, sftp_lab: Lab, tmp_path: Path) -> None:
    data = os.urandom(6 << 20)
    put(served, "a", data)
    with served.open("a") as reader:
        got = reader.data(1 << 20)
        writer = served.create("b")
        for pid in processes.descendants(sftp_lab["h1"].pid):
            processes.kill(pid)
        assert got + b"".join(iter(lambda: reader.data(1 << 20), b"")) == data
    with pytest.raises(OSError) as caught:
        writer.write(bytes(2 << 20))
        writer.commit()
    assert not isinstance(caught.value, OutcomeUnknown)  # it had not begun to take its name
    assert below(served) == ["a"]
    assert get(served, "a") == data


def test_a_change_over_there_whose_answer_was_lost_is_not_known(
    served: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(method: str, act: Callable[[], object]) -> None:
        real = getattr(SFTPClient, method)

        async def lost(self: Any, *given: Any) -> None:
            await real(self, *given)
            raise ConnectionLost("cut")

        with monkeypatch.context() as patch, pytest.raises(OutcomeUnknown, match="is not known"):
            patch.setattr(SFTPClient, method, lost)
            act()

    cut("posix_rename", lambda: put(served, "a", b"1"))
    assert get(served, "a") == b"1"
    cut("posix_rename", lambda: served.rename("a", "b"))
    cut("mkdir", lambda: served.mkdir("d"))
    assert below(served) == ["b", "d"]
    cut("chmod", lambda: served.setattr("b", mode=0o600))
    cut("remove", lambda: served.remove("b"))
    cut("rmdir", lambda: served.remove("d"))
    assert below(served) == []


def test_a_connection_that_breaks_as_sftp_begins_is_no_missing_subsystem(
    sftp_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SSHClientConnection.start_sftp_client

    async def cut(self: SSHClientConnection, *given: Any, **more: Any) -> Any:
        for pid in processes.descendants(sftp_lab["h1"].pid):
            processes.kill(pid)
        return await real(self, *given, **more)

    monkeypatch.setattr(SSHClientConnection, "start_sftp_client", cut)
    tier = reached(sftp_lab, tmp_path)
    said = str(refused(errno.EHOSTUNREACH, lambda: tier.stat("a")))
    tier.close()
    assert "the connection broke" in said and "ubsystem" not in said


def test_a_part_does_not_outlive_its_connection(served: Tier, sftp_lab: Lab, tmp_path: Path) -> None:
    """A part without an owner would stay for a day."""
    with served.create("a") as writer:
        writer.write(bytes(3 << 20))
        assert os.listdir(tmp_path / ".quine-parts")
        for pid in processes.descendants(sftp_lab["h1"].pid):
            processes.kill(pid)
    assert os.listdir(tmp_path / ".quine-parts") == []


@pytest.mark.long
def test_a_server_that_is_gone_is_told_once(
    own_lab: Callable[..., Lab],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Blocks on their way add no error of their own: a proxy would print each with a traceback."""
    lab = own_lab(["h1"])
    monkeypatch.setenv("HOME", str(lab.home))
    tier = reached(lab, tmp_path)
    with pytest.raises(OSError), tier.create("a") as writer:
        for _ in range(8):
            writer.write(bytes(1 << 20))
        children = processes.descendants(lab["h1"].pid)
        for pid in (lab["h1"].pid, *children):
            processes.kill(pid)
        for _ in range(8):
            writer.write(bytes(1 << 20))
    del writer
    tier.close()
    gc.collect()
    assert "never retrieved" not in caplog.text and "socket.send()" not in caplog.text


def test_a_changed_host_key_is_refused(sftp_lab: Lab, tmp_path: Path) -> None:
    known = sftp_lab.home / ".ssh" / "known_hosts"
    tier = reached(sftp_lab, tmp_path)
    tier.stat("")
    tier.close()
    before, other = known.read_text(), (sftp_lab.identity.with_suffix(".pub")).read_text().split()[1]
    try:
        port = sftp_lab["h1"].port
        known.write_text(f"[127.0.0.1]:{port} ssh-ed25519 {other}\n")
        tier = reached(sftp_lab, tmp_path)
        assert "host key has changed" in str(refused(errno.EHOSTUNREACH, lambda: tier.stat("")))
        tier.close()
    finally:
        known.write_text(before)


# -- who may see what ------------------------------------------------------------------------------

HUSH = "canary-of-the-store-7f"


def test_a_url_is_shown_without_what_opens_it() -> None:
    for url, shown in (
        ("ftp://me:pw@host/dir", "ftp://me@host/dir"),
        ("simplecache::ftp://me:pw@host:21/dir", "simplecache::ftp://me@host:21/dir"),
        ("https://host/x?sig=pw", "https://host/x"),
        ("s3://bucket/a@b:c", "s3://bucket/a@b:c"),
        ("s3://bucket/a?b", "s3://bucket/a?b"),
        ("az://c/p?sv=2024-01-01&sig=pw", "az://c/p"),
        ("gs://b/p?X-Goog-Signature=pw", "gs://b/p"),
        ("simplecache::s3://b/p?X-Amz-Signature=pw", "simplecache::s3://b/p"),
        ("file:///a:b@c", "file:///a:b@c"),
        ("origin:a", "origin:a"),
    ):
        assert credentials.shown(url) == shown
        assert credentials.shown(shown) == shown


def test_keys_are_kept_for_the_store_that_is_used() -> None:
    def adopted(url: str) -> tuple[dict[str, str], env.Settings]:
        environ = {
            "QUINE_FS": url,
            "QUINE_FS_OPTIONS": json.dumps({"secret": HUSH + "1", "deep": {"sas_token": HUSH + "2"}}),
            "AWS_SECRET_ACCESS_KEY": HUSH + "3",
            "AWS_REGION": "here",
            "AZURE_STORAGE_CONNECTION_STRING": "AccountKey=" + HUSH + "4",
            "QUINE_DATA_DIR": "/nowhere",
        }
        return environ, env.adopt(RunOptions(), environ)

    environ, read = adopted("s3://bucket")
    assert HUSH not in str(environ) and environ["AWS_REGION"] == "here"
    assert {*read.secrets} == {"AWS_SECRET_ACCESS_KEY", "QUINE_FS_OPTIONS"}
    assert {HUSH + "1", HUSH + "2", HUSH + "3"} <= {*read.masked}
    assert {*adopted("az://c")[1].secrets} == {"AZURE_STORAGE_CONNECTION_STRING", "QUINE_FS_OPTIONS"}
    environ, read = adopted(f"ftp://me:{HUSH}5@host/d")
    assert environ["QUINE_FS"] == "ftp://me@host/d"
    assert HUSH + "5" in read.masked and read.secrets["QUINE_FS"] == f"ftp://me:{HUSH}5@host/d"
    fd = inherit.write({"environ": read.secrets})
    try:
        whole = credentials.completed({**environ, inherit.VARIABLE: str(fd)})
        assert whole["QUINE_FS"] == f"ftp://me:{HUSH}5@host/d"
        other = credentials.completed({"QUINE_FS": "s3://b", inherit.VARIABLE: str(fd)})
        assert other["QUINE_FS"] == "s3://b"  # another was asked for
    finally:
        os.close(fd)


def test_a_signature_in_a_url_is_on_no_tape_and_on_no_other_machine() -> None:
    url = f"az://c/p?sv=2024-01-01&sig={HUSH}"
    environ = {"QUINE_FS": url, "QUINE_DATA_DIR": "/nowhere"}
    assert inherit.scrubbed(environ) == {"QUINE_DATA_DIR": "/nowhere"}
    assert credentials.shown(url) == "az://c/p" and urls.shareable("az://c/p?sig=x", {}) == "az://c/p"
    assert HUSH in credentials.secrets_of(url, "")


ROLES = {
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/token",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/1",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/var/run/secrets/token",
    "AWS_SHARED_CREDENTIALS_FILE": "/etc/aws",
    "AZURE_FEDERATED_TOKEN_FILE": "/var/run/secrets/token",
}


def test_where_a_role_finds_its_keys_stays_in_the_environment() -> None:
    environ = {**ROLES, "AWS_CONTAINER_AUTHORIZATION_TOKEN": HUSH, "QUINE_DATA_DIR": "/nowhere"}
    env.adopt(RunOptions(), environ)
    assert ROLES.items() <= environ.items() and HUSH not in str(environ)


def test_a_role_of_azure_is_left_to_its_library() -> None:
    known = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_STORAGE_ACCOUNT_NAME": "a"}
    told = _of_driver("az", {**known, "AZURE_STORAGE_CLIENT_ID": "c", **ROLES}, {})
    assert told == {"account_name": "a", "anon": False, "skip_instance_cache": True}


def test_a_store_is_opened_by_the_keys_of_a_file_that_the_environment_names(
    weed: Weed, tmp_path: Path
) -> None:
    """An agent opens its store so, because its environment has no secrets."""
    keys = weed.options
    (tmp_path / "keys").write_text(
        f"[default]\naws_access_key_id = {keys['key']}\naws_secret_access_key = {keys['secret']}\n"
    )
    code = (
        "import os; from quine.agent import env; from quine.files.stores.registry import open_store\n"
        "env.adopt(env.RunOptions(), os.environ)\n"
        f"tier = open_store('s3://{BUCKET}{tmp_path}', os.environ, '')\n"
        "with tier.create('a') as writer: writer.write(b'1'); writer.commit()\n"
        "print(tier.stat('a').size)\n"
    )
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "QUINE_DATA_DIR": str(tmp_path / "data"),
        "AWS_ENDPOINT_URL": weed.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"1\n"), done.stderr


def test_nodes_and_jobs_are_not_given_them() -> None:
    environ = {
        "QUINE_FS_OPTIONS": "{}",
        "AZURE_STORAGE_CONNECTION_STRING": HUSH,
        "AWS_SESSION_TOKEN": HUSH,
        "QUINE_FS": f"simplecache::ftp://me:{HUSH}@host/d",
        "PATH": "/bin",
    }
    assert inherit.scrubbed(environ) == {"PATH": "/bin"}
    assert "QUINE_FS" in inherit.scrubbed({"QUINE_FS": "sftp://me@host:22/d"})


def test_no_error_of_a_bucket_holds_a_key() -> None:
    keys = {"key": "AKIA" + HUSH, "secret": HUSH + "1", "token": HUSH + "2"}
    bucket = Bucket("b", {}, keys)
    for value in keys.values():
        said = str(bucket.fault(ValueError(f"signed by {value} for nobody"), "p"))
        assert HUSH not in said and "signed by ***" in said

        class Refused(Exception):
            response = {"Error": {"Code": "AccessDenied", "Message": f"The key {value} is not known"}}  # noqa: RUF012

        assert HUSH not in str(bucket.fault(Refused(), "p"))


def test_what_is_unmet_is_no_error_of_the_system(bucket: Bucket) -> None:
    bucket.call("put_object", "", Key="unmet", Body=b"")
    with pytest.raises(Unmet):
        bucket.call("put_object", "", Key="unmet", Body=b"", IfNoneMatch="*")


@pytest.mark.parametrize("size", [0, 6 << 20])
def test_what_a_driver_would_cut_is_whole(google: Google, tmp_path: Path, size: int) -> None:
    """It sends a small file between boundaries that are always the same, with bare line feeds."""
    tier = opened(f"gs://{CONTAINER}/cut{tmp_path}", google.environ)
    for data in (b"a\r", b"\r", b"before\n--==0==\nafter", b"--==0==--", b"\n--==0==--\n\r"):
        data += bytes(size)
        put(tier, "a", data)
        assert get(tier, "a") == data
    refused(errno.ENOTSUP, lambda: put(tier, "lock", b"x", if_absent=True))
    assert below(tier) == ["a"]
    tier.close()


@pytest.mark.skipif(not AZURITE, reason="no azurite-blob here")
def test_keys_that_were_taken_out_of_the_environment_open_the_store(azure: Azure, tmp_path: Path) -> None:
    """A driver looks for them in the environment of its process, where an agent has none."""
    environ = {"QUINE_FS": f"az://{CONTAINER}{tmp_path}", **azure.environ}
    secrets = env.adopt(RunOptions(), environ).secrets
    assert "AZURE_STORAGE_CONNECTION_STRING" not in environ
    fd = inherit.write({"environ": secrets})
    try:
        tier = opened(environ["QUINE_FS"], {**environ, inherit.VARIABLE: str(fd)})
        put(tier, "a", b"x")
        assert get(tier, "a") == b"x"
        tier.close()
    finally:
        os.close(fd)


def test_directories_of_other_tools_in_gs(google: Google) -> None:
    tier = opened(f"gs://{CONTAINER}/{uuid.uuid4()}", google.environ)
    assert isinstance(tier, Generic)
    fs, root = tier._driver()
    for key in ("d/", "d/f", "d/s/", "empty/"):
        fs.pipe_file(f"{root}/{key}", b"1" if key == "d/f" else b"")
    assert below(tier) == ["d", "empty"]
    assert below(tier, "d") == ["f", "s"]
    tier.remove("d", recursive=True)
    tier.remove("empty")
    assert below(tier) == []
    refused(errno.ENOENT, lambda: tier.stat("d"))


@pytest.mark.skipif(not AZURITE, reason="no azurite-blob here")
def test_directories_of_other_tools_in_az(azure: Azure) -> None:
    """Keys that only other tools can name are never removed, nor are those of a sibling like `hidden` beside `h`."""
    from azure.storage.blob import ContainerClient

    prefix = str(uuid.uuid4())
    tier = opened(f"az://{CONTAINER}/{prefix}", azure.environ)
    text = azure.environ["AZURE_STORAGE_CONNECTION_STRING"]
    folders = ("h", "he")
    with ContainerClient.from_connection_string(text, CONTAINER) as client:
        for key in ("d/", "d/f", "d/s/", "d/s/g", "d2/f", "empty/", *folders, "h/f", "hidden/f?", "hidden/f"):
            told = {"hdi_isfolder": "true"} if key in folders else None
            client.upload_blob(f"{prefix}/{key}", b"1" if key.endswith(("f", "g")) else b"", metadata=told)
        assert below(tier) == ["d", "d2", "empty", "h", "he", "hidden"]
        assert not any(entry.is_file for entry in tier.list(""))
        assert [below(tier, name) for name in ("d", "d/s", "empty", "h", "hidden")] == [
            *(["f", "s"], ["g"], [], ["f"], ["f"]),
        ]
        for name in ("d", "empty", "h", "he", "hidden"):
            tier.remove(name, recursive=True)
        left = sorted(blob.name for blob in client.list_blobs(name_starts_with=prefix))
    assert left == [f"{prefix}/d2/f", f"{prefix}/hidden/f?"]
    assert below(tier) == ["d2", "hidden"]
    tier.close()


def test_a_bucket_that_is_not_there_is_not_empty_in_gs(google: Google) -> None:
    said = refused(errno.ENOENT, lambda: list(opened("gs://no-such-shelf/a", google.environ).list("")))
    assert "no bucket no-such-shelf" in str(said)
    said = refused(errno.ENOENT, lambda: put(opened("gs://no-such-shelf/a", google.environ), "x"))
    assert said.strerror == os.strerror(errno.ENOENT)
    assert below(opened(f"gs://{CONTAINER}/{uuid.uuid4()}", google.environ)) == []


@pytest.mark.skipif(not AZURITE, reason="no azurite-blob here")
def test_what_is_wrong_with_the_way_to_a_container(azure: Azure) -> None:
    said = refused(errno.ENOENT, lambda: list(opened("az://no-such-shelf/a", azure.environ).list("")))
    assert "no container no-such-shelf" in str(said)
    assert below(opened(f"az://{CONTAINER}/{uuid.uuid4()}", azure.environ)) == []
    for right, wrong in (("AccountKey=E", "AccountKey=X"), ("AccountKey=E", "AccountKey=!!")):
        name = "AZURE_STORAGE_CONNECTION_STRING"
        tier = opened(f"az://{CONTAINER}", {name: azure.environ[name].replace(right, wrong)})
        said = refused(errno.EACCES, lambda tier=tier: put(tier, "x"))  # type: ignore[misc]
        assert "the store refuses these keys" in str(said)
        said = refused(errno.EACCES, lambda tier=tier: list(tier.list("")))  # type: ignore[misc]


@pytest.mark.usefixtures("drivers")
def test_servers_of_clouds_that_are_away() -> None:
    """Drivers try for a minute before they raise these errors."""
    from azure.core import exceptions
    from google.auth.exceptions import TransportError

    for fault in (
        exceptions.ServiceRequestError("a"),
        exceptions.ServiceResponseError("a"),
        TransportError("a"),
    ):
        with pytest.raises(OSError, match="cannot be reached") as caught, about("a"):
            raise fault
        assert caught.value.errno == errno.EHOSTUNREACH
        with pytest.raises(OSError, match="cannot be reached"), about("a"):
            raise RuntimeError("a driver's own") from fault


@pytest.mark.long
@pytest.mark.usefixtures("drivers")
def test_what_a_driver_logs_is_not_said() -> None:
    program = (
        "import logging, os; from quine.files.stores.registry import open_store;"
        "open_store('gs://shelf', {'QUINE_FS_OPTIONS': '{\"token\": \"anon\"}'}, '');"
        "logging.getLogger('gcsfs').error('a traceback');"
        "print(os.environ['GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT'])"
    )
    environ = {**os.environ}
    environ.pop("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT")
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, timeout=120)
    assert (done.stdout, done.stderr) == (b"false\n", b"")


@pytest.mark.parametrize(
    ("told", "size"),
    [("bytes 0-4/17", 17), ("", 5), ("bytes 0-4/*", 5), ("0-4/²", 5), ("0-4/" + "9" * 5000, 5)],
)
def test_the_size_that_a_store_tells_is_a_number_or_that_of_the_answer(told: str, size: int) -> None:
    """The reader of the file failed with a ValueError of Python."""
    when = datetime.fromtimestamp(7.0, UTC)
    answer = {"ContentRange": told, "ContentLength": 5, "LastModified": when}
    assert found("key", answer).size == size
