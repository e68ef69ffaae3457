"""How many requests an operation costs in a store that is billed and waited for by the request."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from quine.files.api import Tier, walked
from quine.files.stores.object.client import Bucket
from quine.files.stores.object.store import ObjectTier
from quine.files.stores.registry import open_store
from tests.files.clouds import AZURITE, CONTAINER
from tests.files.faulty_s3 import Faulty, faulty
from tests.files.seaweed import BUCKET, Weed
from tests.files.tiers import get, put
from tests.support.acts import refused


@pytest.fixture
def proxy(weed: Weed) -> Iterator[Faulty]:
    with faulty(int(weed.endpoint.rpartition(":")[2])) as made:
        yield made


def planted(bucket: Bucket, base: str) -> ObjectTier:
    """With a file and a directory in it, and all that a tier tries out but once is known."""
    made = ObjectTier(f"s3://{BUCKET}", bucket, base)
    put(made, "d/a", b"content", if_absent=True)
    made.copy("d/a", "d/tried", if_absent=True)
    made.rename("d/tried", "d/b")
    made.setattr("d/b", mode=0o644)
    made.mkdir("d/empty")
    return made


def asked(proxy: Faulty, act: Callable[[], object]) -> Counter[str]:
    """How often each kind of request was made; a listing is told apart from the other GETs."""
    proxy.forget()
    act()
    kinds = (
        "LIST" if "list-type" in path or "comp=list" in path else method for method, path, _ in proxy.seen
    )
    return Counter(kinds)


ACTS: dict[str, tuple[Callable[[Tier], object], dict[str, int]]] = {
    "stat of a file": (lambda tier: tier.stat("d/a"), {"HEAD": 1}),
    "stat of a directory": (lambda tier: tier.stat("d"), {"HEAD": 1, "LIST": 1}),
    "list": (lambda tier: list(tier.list("d")), {"LIST": 1}),
    "read": (lambda tier: get(tier, "d/a"), {"GET": 1}),
    "read of a part": (lambda tier: get(tier, "d/a", 2, 3), {"GET": 1}),
    "read beyond the end": (lambda tier: get(tier, "d/a", 20, 3), {"GET": 1, "HEAD": 1}),
    "read of nothing": (lambda tier: get(tier, "d/a", 0, 0), {"HEAD": 1}),
    "put": (lambda tier: put(tier, "d/a", b"new"), {"LIST": 1, "PUT": 1}),
    "put of the first": (
        lambda tier: put(tier, "d/n", b"new", if_absent=True, size=3),
        {"LIST": 1, "PUT": 1},
    ),
    "copy": (lambda tier: tier.copy("d/a", "d/n"), {"HEAD": 1, "LIST": 1, "PUT": 1}),
    "remove of a file": (lambda tier: tier.remove("d/a"), {"HEAD": 1, "DELETE": 1}),
    "rename over a file": (
        lambda tier: tier.rename("d/a", "d/b"),
        {"HEAD": 2, "LIST": 1, "PUT": 1, "DELETE": 1},
    ),
    "mode of a file": (lambda tier: tier.setattr("d/a", mode=0o600), {"HEAD": 1, "PUT": 1}),
}


def test_an_object_store_is_asked_nothing_that_is_not_needed(
    weed: Weed, proxy: Faulty, tmp_path: Path
) -> None:
    bucket = Bucket(BUCKET, {}, {**weed.options, "endpoint_url": proxy.endpoint})
    for number, (name, (act, expected)) in enumerate(ACTS.items()):
        tier = planted(bucket, f"{tmp_path}/{number}".lstrip("/"))
        assert asked(proxy, partial(act, tier)) == expected, name
    proxy.forget()
    tier.close()


@pytest.fixture(
    params=[
        pytest.param("gs", marks=pytest.mark.whole),
        pytest.param("az", marks=pytest.mark.skipif(not AZURITE, reason="no azurite-blob here")),
    ]
)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Tier, Tier, Faulty]]:
    """A tier, and the same behind a proxy that counts: a look leaves requests on their way, which count for nobody."""
    server = request.getfixturevalue({"gs": "google", "az": "azure"}[request.param])
    with faulty(int(server.endpoint.rpartition(":")[2])) as proxy:
        url = f"{request.param}://{CONTAINER}/{tmp_path.name}-{request.param}"
        environ = {
            name: value.replace(server.endpoint, proxy.endpoint) for name, value in server.environ.items()
        }
        made = open_store(url, environ, "")
        direct = open_store(url, server.environ, "")
        yield direct, made, proxy
        made.close()
        direct.close()


def distinct(proxy: Faulty, act: Callable[[], object]) -> int:
    """How many different requests: the emulator ends connections at will, and the driver then asks again."""
    proxy.forget()
    act()
    return len(set(proxy.seen))


def test_all_that_is_below_a_directory_of_a_cloud_is_one_listing(cloud: tuple[Tier, Tier, Faulty]) -> None:
    tier, counted, proxy = cloud
    for path in ("d/a", "d/e/b", "d/e/f/c", "d-x", "d/%41", "last"):
        put(tier, path, b"content")
    tier.mkdir("d/empty")
    fs, place = tier._at("d")  # type: ignore[attr-defined]
    for key in ("%", "%41/in it", "e/%41/x", "x//y"):  # of another tool, as no name is written here
        fs.pipe_file(f"{place}/{key}", b"another's")
    for top in ("", "d", "d/e", "d/empty"):
        assert list(tier.walk(top)) == list(walked(tier, top))
        assert distinct(proxy, partial(list, counted.walk(top))) == 1
    refused(errno.ENOENT, lambda: list(tier.walk("d/none")))
    refused(errno.ENOTDIR, lambda: list(tier.walk("d/a")))
    assert distinct(proxy, lambda: list(counted.list("d/e"))) == 1
    assert list(tier.hidden("d")) == ["d/%41", "d/e/%41"]
    assert distinct(proxy, lambda: list(counted.hidden("d"))) == 1
