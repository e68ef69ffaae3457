"""An S3 store that throttles, fails in the middle, answers with what is no answer, loses answers and hangs."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.retries import standard  # type: ignore[import-untyped]

from quine.files.stores.object import client
from quine.files.stores.object.client import TRIES, Bucket
from quine.files.stores.object.io import PART
from quine.files.stores.object.store import ObjectTier
from tests.files.faulty_s3 import (
    Faulty,
    Handler,
    asks,
    broken,
    done_but,
    fault,
    faulty,
    instead,
    lost,
    torn,
    without,
)
from tests.files.seaweed import BUCKET, Weed
from tests.files.tiers import below, get, put
from tests.support.acts import refused

SLOW = instead(503, fault("SlowDown", "Please reduce your request rate."))
FAILS = instead(500, fault("InternalError"))
UPLOAD = "uploadId="


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses between the library's tries short."""
    monkeypatch.setattr(standard.ExponentialBackoff, "delay_amount", lambda self, context: 0.01)


@pytest.fixture
def proxy(weed: Weed) -> Iterator[Faulty]:
    with faulty(int(weed.endpoint.rpartition(":")[2])) as made:
        yield made


@pytest.fixture
def tier(weed: Weed, proxy: Faulty, tmp_path: Path) -> Iterator[ObjectTier]:
    yield from opened(weed, proxy, tmp_path)


def opened(weed: Weed, proxy: Faulty, path: Path, **more: int) -> Iterator[ObjectTier]:
    options = {**weed.options, "endpoint_url": proxy.endpoint, "config_kwargs": more}
    made = ObjectTier(f"s3://{BUCKET}", Bucket(BUCKET, {}, options), str(path).lstrip("/"))
    put(made, "tried", b"", if_absent=True)
    proxy.forget()
    yield made
    proxy.forget()
    made.close()


def uploads(tier: ObjectTier) -> object:
    return tier.bucket.call("list_multipart_uploads", "", Prefix=tier.base).get("Uploads", [])


@pytest.mark.parametrize(
    ("method", "part", "what"),
    [
        ("HEAD", "", SLOW),  # its answer has no body, and so no code
        ("GET", "list-type", SLOW),
        ("PUT", "partNumber=2", torn(PART // 2)),
        ("POST", UPLOAD, instead(200, fault("InternalError"))),
    ],
)
def test_what_a_store_cannot_do_now_is_asked_again(
    tier: ObjectTier, proxy: Faulty, method: str, part: str, what: Callable[[Handler], None]
) -> None:
    data = os.urandom(2 * PART + 5)
    rule = proxy.rule(asks(method, part), what, TRIES - 1)
    put(tier, "d/a", data)
    assert tier.stat("d/a").size == len(data)
    assert (rule.left, get(tier, "d/a") == data) == (0, True)


def test_tries_are_bounded_and_no_part_is_left(tier: ObjectTier, proxy: Faulty) -> None:
    rule = proxy.rule(asks("PUT", "partNumber=2"), FAILS, 1000)
    refused(errno.EIO, lambda: put(tier, "a", bytes(3 * PART)))
    assert (rule.used, below(tier), uploads(tier)) == (TRIES, ["tried"], [])


def test_keys_that_expire_in_the_middle(tier: ObjectTier, proxy: Faulty) -> None:
    rule = proxy.rule(asks("PUT", "partNumber=3"), instead(400, fault("ExpiredToken", "It has expired.")))
    assert "has expired" in str(refused(errno.EACCES, lambda: put(tier, "a", bytes(4 * PART))))
    assert (rule.used, below(tier), uploads(tier)) == (1, ["tried"], [])


@pytest.mark.parametrize(
    ("what", "size"),
    [(lost, 1), (lost, PART + 1), (done_but(500, fault("InternalError")), 1), (done_but(200, b""), PART + 1)],
)
def test_who_was_the_first_and_was_not_told_is_the_first(
    tier: ObjectTier, proxy: Faulty, size: int, what: Callable[[Handler], None]
) -> None:
    data = os.urandom(size)
    put(tier, "tried.too", bytes(PART + 1), if_absent=True)
    proxy.rule(asks("PUT" if size == 1 else "POST", "lock" if size == 1 else UPLOAD), what)
    version = put(tier, "lock", data, if_absent=True)
    assert (tier.stat("lock").version, get(tier, "lock") == data) == (version, True)
    refused(errno.EEXIST, lambda: put(tier, "lock", data, if_absent=True))


NOTHING = [b"", b"<html><body>Log in</body></html>"]


@pytest.mark.parametrize("said", NOTHING)
def test_what_is_no_answer_is_not_one(tier: ObjectTier, proxy: Faulty, said: bytes) -> None:
    """Of a gateway whose connection broke, of a login page: no empty directory, no copy, no file that was put."""

    def answered(method: str, part: str, act: Callable[[], object]) -> None:
        rule = proxy.rule(asks(method, part), instead(200, said), 1000)
        refused(errno.EIO, act)
        assert rule.used
        proxy.forget()

    for name in ("a", "b", "d/c"):
        put(tier, name, name.encode())
    for look in (lambda: list(tier.list("")), lambda: list(tier.walk("")), lambda: list(tier.list("d"))):
        answered("GET", "list-type", look)
    answered("HEAD", "", lambda: tier.stat("a"))
    answered("GET", "/a", lambda: tier.open("a"))
    answered("PUT", "/b", lambda: tier.rename("a", "b"))
    answered("PUT", "/e/c", lambda: tier.rename("d", "e"))
    answered("PUT", "/a", lambda: put(tier, "a", b"new"))
    answered("POST", UPLOAD, lambda: put(tier, "a", bytes(PART + 1)))
    assert [get(tier, name) for name in ("a", "b", "d/c")] == [b"a", b"b", b"d/c"]
    assert uploads(tier) == []


def test_a_part_that_nobody_asked_for_is_not_given(tier: ObjectTier, proxy: Faulty) -> None:
    """From the beginning, by who knows of no ranges; and of another version, by who knows of no conditions."""
    data = os.urandom(3 << 20)
    put(tier, "a", data)

    def whole(handler: Handler) -> None:
        status, headers, _ = handler.asked()
        told = [header for header in headers if header[0].lower() != "content-range"]
        handler.say(status and 200, told, data)

    proxy.rule(asks("GET", "/a"), whole)
    refused(errno.EIO, lambda: get(tier, "a", 1 << 20, 10))
    proxy.rule(asks("GET", "/a"), broken(1 << 20))
    proxy.rule(asks("GET", "/a"), whole)
    refused(errno.EIO, lambda: get(tier, "a"))
    with tier.open("a") as reader:
        reader.data(1 << 20)
        reader._let_go()  # type: ignore[attr-defined]
        put(tier, "a", data[::-1])
        proxy.rule(asks("GET", "/a"), without("If-Match"))
        refused(errno.ESTALE, lambda: reader.data(1 << 20))


def test_a_body_that_breaks_off_again_and_again_goes_on(tier: ObjectTier, proxy: Faulty) -> None:
    data = os.urandom(5 << 20)
    put(tier, "a", data)
    rule = proxy.rule(asks("GET", "/a"), broken(1 << 20), 2)
    proxy.rule(asks("GET", "/a"), FAILS, 2)
    assert (get(tier, "a") == data, rule.left) == (True, 0)


def test_the_first_of_many_parts_where_only_one_put_is_decided(
    weed: Weed, proxy: Faulty, tier: ObjectTier
) -> None:
    """Some stores heed If-None-Match of a put, and neither of what completes an upload nor of a copy."""
    proxy.rule(asks("POST", UPLOAD), without("If-None-Match"), 1000)
    proxy.rule(lambda asked: "x-amz-copy-source" in asked.headers, without("If-None-Match"), 1000)
    put(tier, "lock", b"", if_absent=True)
    refused(errno.ENOTSUP, lambda: put(tier, "big.lock", bytes(PART + 1), if_absent=True))
    put(tier, "big", bytes(PART + 1))
    refused(errno.ENOTSUP, lambda: tier.copy("big", "other", if_absent=True))
    assert below(tier) == ["big", "lock", "tried"]
    assert uploads(tier) == []


def test_a_server_that_takes_no_more_is_given_up(
    weed: Weed, proxy: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the connection and reads no more of a body than fits into its system's buffers."""
    monkeypatch.setattr(client, "SILENCE", 1)
    for tier in opened(weed, proxy, tmp_path, read_timeout=1):
        rule = proxy.rule(asks("PUT", "/a"), Handler.hang, 1000)
        ended: list[OSError] = []
        act = threading.Thread(
            target=lambda: ended.append(refused(errno.EHOSTUNREACH, lambda: put(tier, "a", bytes(PART)))),  # noqa: B023
            daemon=True,
        )
        act.start()
        act.join(100)
        assert ended and rule.used >= TRIES
