"""Lies about files: those that come back, and the shared ones."""

from __future__ import annotations

import json
import stat
import struct
from collections.abc import Callable
from typing import Any

from quine.staging import content, manifest, returns_limit
from quine.staging.manifest import IMPLIED, SPARSE, Manifest, digest_of
from tests.remote.lies.lie import BATCH, MEGABYTE, Lie, Plan, batch, jobs


def said(message: dict[str, object], blob: bytes = b"", size: int = -1) -> str:
    """A message of staging, and the bytes that belong to it; `size`: of how many it speaks."""
    text = json.dumps(message).encode()
    return (struct.pack("<IQ", len(text), len(blob) if size < 0 else size) + text + blob).decode("latin-1")


def entries(*found: tuple[bytes, int, int, bytes]) -> bytes:
    """A packed manifest: name, mode, size and mark of each."""
    made = Manifest()
    made.add(b"out", stat.S_IFDIR | 0o755, 0)
    for name, mode, size, mark in found:
        made.add(name, mode, 0, size, mark)
    return made.pack()


FILE, ZERO = stat.S_IFREG | 0o644, bytes(manifest.SIZE)
OUT: list[Any] = [said({"say": "out", "in": "/x"}), 1]


def returns(*parts: Any, told: str, options: tuple[str, ...] = (), **more: Any) -> Lie:
    """The words of a sender of returns, and then bytes without end."""
    return Lie(
        lambda size: jobs(
            ["of", "--stage", ["ask", "stage", [*(part() for part in parts), ["x" * 6000, size // 6000]]]]
        ),
        batch("--returns", "out", *options),
        74,
        told,
        **more,
    )


def gets(place: object) -> Lie:
    """The words of jobs that get their files in this place, and which ask again after their end."""
    words = (
        said({"say": "in"})
        + said({"say": "others", "place": place}) * 2
        + said({"say": "done", "place": place})
    )
    return Lie(
        lambda size: jobs(["of", "--stage", ["ask", "stage", [[words, 1], ["x" * 6000, size // 6000]]]]),
        batch("--files", "FOLDER/input", "--returns", "out"),
        74,
        "the received files were refused: nothing is given here any more",
        files={"input": "x"},
    )


def listed(*found: tuple[bytes, int, int, bytes]) -> Callable[[], list[Any]]:
    packed = entries(*found)
    return lambda: [OUT[0] + said({"tree": digest_of(packed)}, packed), 1]


def many() -> list[Any]:
    """As many names as one may send, each as long as it may be."""
    room = returns_limit.NAME - 52 - len("out/") - 6 - 2
    names = (b"out/%06d" % number + b"n" * room for number in range(returns_limit.NAMES - 1))
    packed = entries(*((name, FILE, 10, ZERO) for name in names))
    return [OUT[0] + said({"tree": "0" * 64}, packed), 1]


def extents() -> list[Any]:
    """The head of a file with as many holes as it may have."""
    count = content.MOST_EXTENTS
    table = b"".join(struct.pack("<QQ", 2 * at, 1) for at in range(count))
    return [(struct.pack("<I", count) + table).decode("latin-1"), 1]


def shares(*parts: list[Any], answered: str, **more: Any) -> Lie:
    """A request for the shared files."""

    def plan(size: int) -> Plan:
        body = [[text, size // len(text) if times is None else times] for text, times in parts]
        return jobs(["ask", "fs", body])

    return Lie(
        plan,
        BATCH,
        0,
        answered=answered,
        env={"QUINE_FS": "origin:SHARED", "QUINE_FS_QUOTA": "1M"},
        disk=16 * MEGABYTE,
        **more,
    )


def word(body: dict[str, object], length: int = -1) -> str:
    text = json.dumps(body).encode()
    return (struct.pack("!I", len(text) if length < 0 else length) + text).decode("latin-1")


BLOCK = struct.pack("!Q", 6000).decode("latin-1") + "x" * 6000

FILES: dict[str, tuple[Lie, ...]] = {
    "returns: bytes": (
        returns(
            listed((b"out/2", FILE, 1 << 40, ZERO)),
            told="1099511627776 bytes, and --returns-limit allows 1048576",
            options=("--returns-limit", "1M"),
        ),
        returns(
            listed((b"out/2", FILE, 300_000, ZERO)), told="came with another content", disk=32 * MEGABYTE
        ),
        returns(
            listed((b"out/2", FILE | SPARSE, 1 << 32, ZERO)),
            extents,
            told="came with another content",
            large=True,
            disk=256 * MEGABYTE,
        ),
    ),
    "returns: names": (
        returns(listed((b"out/../../x", FILE, 1, ZERO)), told="a name out of its place"),
        returns(
            listed(*((b"out/%d" % n, FILE, 1, ZERO) for n in range(29))),
            told="30 names, and --returns-limit allows 20",
            options=("--returns-limit", "1M,20"),
        ),
        returns(lambda: [said({"say": "out"}, size=1 << 27), 1], told="and 1048576 and 0 are possible"),
        returns(lambda: [OUT[0] + said({"tree": ""}, size=1 << 27), 1], told="and 25600000 are possible"),
        returns(many, told="another manifest than was announced", large=True),
    ),
    "returns: modes, links": (
        returns(listed((b"out/2", stat.S_IFREG | 0o6755, 1, ZERO)), told="a mode that is none"),
        returns(listed((b"out/2", stat.S_IFLNK | 0o777, 0, b"/etc/passwd")), told="a link that leads out"),
        returns(listed((b"out/2", stat.S_IFLNK | 0o777, 0, b"../../x")), told="a link that leads out"),
        returns(listed((b"out/2", stat.S_IFDIR | IMPLIED | 0o777, 0, b"")), told="")._replace(status=0),
    ),
    "messages of staging": (
        returns(
            lambda: [said({"say": "out", "x": "y" * 1_100_000}), 1], told="a message of 1100023 and 0 bytes"
        ),
        returns(lambda: [said({"say": "failed", "why": "\x1b[2J" * 90_000}), 1], told="x1b[2J"),
    ),
    "messages of staging: `place`": (gets({"x": 1}), gets("g" * 900_000), gets(["0" * 32])),
    "shared files: bytes": (
        shares([word({"op": "put", "path": "x"}), 1], [BLOCK, None], answered="EDQUOT"),
        shares([word({"op": "put", "path": "x", "size": 1 << 60}), 1], [BLOCK, None], answered="EDQUOT"),
    ),
    "shared files: a request": (
        shares([word({}, 1 << 20), 1], ["x" * 6000, None], answered="a word of 1048576 bytes, and 65536 are"),
        shares([word({"op": "put", "path": "../../x"}), 1], [BLOCK, None], answered=""),
        shares(
            [word({"op": "pipeline"}), 1], [word({"op": "stat", "path": ["x"]}), None], answered="bad field"
        ),
    ),
}
