"""Programs work in a tier's directory on another machine while the link is cut: nothing half, nothing lost.

Laws
1. A file whose close has returned 0 is there, whole, from that moment on: at the origin, and for whoever opens it.
2. A reader gets one version to its end, whichever was put when; there is no error that a program must expect.
   A process that writes a file sees, in all its threads, its own writes so far: so each worker is a process.
3. CI runs a short form; QUINE_TEST_BREAKS=200 is the long one: that many cuts.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.files.api import BLOCK
from tests.files.tiers import marked, whole
from tests.lab import Lab
from tests.mount.mounting import needs_fuse
from tests.system import breaks
from tests.system.breaks import CUTS, LONG

pytestmark = [needs_fuse, pytest.mark.timeout(300 + 15 * CUTS)]

ROUNDS = 120 if LONG else 4
LARGEST = 6 * BLOCK if LONG else 2 * BLOCK

WORK = """import json, os, random, sys
sys.path.insert(0, sys.argv[1])
from tests.files.tiers import marked, whole
rounds, largest, mount = int(sys.argv[2]), int(sys.argv[3]), os.environ["QUINE_MOUNT"]

def read(name):
    with open(os.path.join(mount, name), "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(1 << 16), b""))

def work(worker):
    drawn, mine = random.Random(worker), {}
    for turn in range(rounds):
        name, seed = f"{worker}/{drawn.randrange(3)}", f"{worker}.{turn}"
        data = marked(seed, drawn.choice((0, 900, 70_000, largest)))
        path = os.path.join(mount, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        aside = path + ".new" if drawn.random() < 0.3 else path
        with open(aside, drawn.choice(("wb", "xb") if aside != path else ("wb",))) as file:
            for at in range(0, len(data), 300_000):
                file.write(data[at : at + 300_000])
        if aside != path:
            os.chmod(aside, 0o640)
            os.replace(aside, path)
        mine[name] = seed, len(data) - 32
        assert read(name) == data, f"{name} is not what was written"
        for other in os.listdir(os.path.join(mount, str(1 - worker))) if turn else ():
            try:
                seen = read(f"{1 - worker}/{other}")
            except FileNotFoundError:
                continue  # an aside one, which has its name now
            assert not seen or whole(seen), f"{other} is no version"
        found = {f"{worker}/{each.name}": each.stat().st_size - 32 for each in os.scandir(os.path.dirname(path))}
        assert found == {each: size for each, (_, size) in mine.items()}, f"{found} for {mine}"
    return mine

def told(worker):
    try:
        return work(worker), []
    except BaseException as error:
        return {}, [f"{type(error).__name__}: {error}"]

for worker in (0, 1):
    os.makedirs(os.path.join(mount, str(worker)), exist_ok=True)
read_end, write_end = os.pipe()
if not (child := os.fork()):
    os.write(write_end, json.dumps(told(1)).encode())
    os._exit(0)
os.close(write_end)
kept, failed = told(0)
with open(read_end) as pipe:
    others, wrong = json.load(pipe)
os.waitpid(child, 0)
print(json.dumps([kept | others, failed + wrong]))
"""


def work(lab: Lab, host: str, root: Path) -> dict[str, list[object]]:
    """Two processes write, replace and read on the host; return the wanted files. The origin never shows a part."""
    words = [
        "run",
        "--on",
        host,
        "--mount",
        "--",
        sys.executable,
        "-P",
        "-c",
        WORK,
        str(Path(__file__).parents[2]),
    ]
    over, halves = threading.Event(), list[str]()

    def watch() -> None:
        while not over.wait(0.02):
            for path in root.glob("[01]/*"):
                try:
                    data = path.read_bytes()
                except FileNotFoundError:
                    continue
                if data and not whole(data):  # "x" has put an empty one there
                    halves.append(f"{path.name}: {len(data)} bytes")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        done = lab.run(
            [*words, str(ROUNDS), str(LARGEST)], env={"QUINE_FS": f"origin:{root}"}, timeout=280 + 15 * CUTS
        )
    finally:
        over.set()
        watcher.join()
    assert done.returncode == 0, done.stderr
    kept, failed = json.loads(done.stdout)
    assert (failed, halves) == ([], [])
    return dict(kept)


@pytest.mark.long
def test_cut_at_random_while_programs_work_in_it(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    host, proxy = through("h1", lease=120), lab["h1"].proxy
    before = proxy.carried()
    work(lab, host, tmp_path / "uncut")
    carried, cuts, done = proxy.carried() - before, CUTS or 5, proxy.cuts()
    proxy.cut_after(*breaks.plan(11, cuts, carried))
    for again in range(4):  # how much the two read of each other, and so where a plan ends, is chance
        root = tmp_path / f"cut-{again}"
        kept = work(lab, host, root)
        there = {str(path.relative_to(root)): path.read_bytes() for path in root.glob("[01]/*")}
        assert there == {name: marked(str(seed), int(str(size))) for name, (seed, size) in kept.items()}
        if proxy.cuts() - done == cuts:
            break
    assert proxy.cuts() - done == cuts
