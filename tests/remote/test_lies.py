"""A host that lies in each row of the table of its words, at full speed, and an honest one beside it.

Laws
1. The origin ends with the status and the reason that the lie has in its table, or goes on: it never waits for a liar.
2. All its processes together have less than MOST bytes of memory more than before, and write no more to files than
   the lie may have them write.
3. The honest host does its items meanwhile.
4. A row of the table without a lie is a failure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.remote import host_words
from tests.lab import Lab
from tests.remote.lies import LIES
from tests.remote.lies.lie import GUEST, ITEMS, MEGABYTE, Lie
from tests.remote.lies.scene import Scene

MOST = 160 * MEGABYTE  # of which a command and the broker that it starts have 130 without any lie
FULL, SHORT, LARGE = 300 * MEGABYTE, 2 * MEGABYTE, 40 * MEGABYTE
LONGEST = 20_000  # characters of all messages
EACH = [(row, number) for row, lies in LIES.items() for number in range(len(lies))]


@pytest.fixture
def scene(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(lab, tmp_path, alone=request.node.get_closest_marker("long") is not None)
    yield made
    made.close()


@pytest.mark.law
def test_each_row_has_its_liar() -> None:
    """Lies about time are told to a client without a clock: tests/transport/client/test_core.py."""
    rows = [row for rows in host_words.TABLE.values() for row in rows if row.kind != "time"]
    assert list(LIES) == [row.item for row in rows]
    assert all(LIES.values())


def meets(scene: Scene, lie: Lie, size: int) -> None:
    """Have the origin meet a host that tells the lie."""
    guest = scene.folder / "guest"
    liar = scene.liar("liar", lie.plan(size), slots=lie.slots)
    places = {
        "LIAR": liar,
        "BEGUN": scene.begun(liar),
        "GUEST": str(guest),
        "SHARED": str(scene.folder / "shared"),
        "FOLDER": str(scene.folder),
    }

    def placed(text: str) -> str:
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    guest.write_text(placed(json.dumps({"reply": {"tool_calls": GUEST}, "repeat": True})) + "\n")
    for name, text in lie.files.items():
        (scene.folder / name).write_text(placed(text))
    ended = scene.origin(
        [placed(word) for word in lie.words], {name: placed(text) for name, text in lie.env.items()}
    )
    print(f"{sum(ended.memory.values()) >> 20} MB: {ended.memory}; {ended.disk >> 20} MB of files")
    assert ended.status == lie.status, ended
    assert lie.told in ended.err and ended.err.replace("\n", "").isprintable(), ended.err
    assert len(ended.err) < LONGEST
    assert lie.answered in str(scene.said(liar)), scene.said(liar)
    assert sum(ended.memory.values()) < MOST and ended.disk <= lie.disk
    if "--json" in lie.words and lie.words[0] == "xargs":
        found = Counter((item["host"], item["state"]) for item in map(json.loads, ended.out.splitlines()))
        assert sum(found.values()) == ITEMS
        assert all(state == "done" for host, state in found if host != liar) and (
            lie.slots is None or found["good", "done"]
        ), found
    assert "Traceback" not in ended.log, ended.log


@pytest.mark.parametrize("row", [row for row, lies in LIES.items() if not lies[0].large])
def test_a_lie(scene: Scene, row: str) -> None:
    meets(scene, LIES[row][0], SHORT)


@pytest.mark.long
@pytest.mark.parametrize(("row", "number"), EACH)
def test_a_lie_at_full_speed(scene: Scene, row: str, number: int) -> None:
    lie = LIES[row][number]
    meets(scene, lie, LARGE if lie.words[0] != "xargs" or "--returns" in lie.words else FULL)
