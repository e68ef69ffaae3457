"""Files for a command on another host: a tree of many small ones, sent twice, beside rsync and GNU parallel."""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import subprocess
from pathlib import Path

from bench.measure import Row, timed
from tests.lab import Lab

FILES = 10_000
SIZE = 4096
RUNS = 3


def run(lab: Lab) -> list[Row]:
    """The first staging into a directory of a host that has none of the files, and the second."""
    tree = lab.tmp / "tree"
    for folder in range(100):
        (tree / f"{folder:02}").mkdir(parents=True)
        for file in range(FILES // 100):
            (tree / f"{folder:02}" / f"{file:02}").write_bytes(os.urandom(SIZE))
    times: dict[str, list[float]] = {}
    # Every run has a directory of its own, removed at the end: making files where many were just removed takes ten
    # times as long on ext4.
    for number in range(RUNS):
        for name, action in _actions(lab, tree, number):
            times.setdefault(name, []).append(timed(action))
        _forget(lab)
    shutil.rmtree(tree)
    middle = {name: 1000 * statistics.median(found) for name, found in times.items()}
    return _rows(middle)


def _actions(lab: Lab, tree: Path, number: int) -> list[tuple[str, object]]:
    home = lab["h1"].home
    places = {name: home / f"stage-{number}-{name}" for name in ("quine", "rsync", "parallel")}
    for place in places.values():
        place.mkdir()
    quiet = {"check": True, "env": lab.env, "cwd": lab.tmp, "stdin": subprocess.DEVNULL}
    *ssh, target = lab.ssh("h1")
    rsync = ["rsync", "-a", "-e", shlex.join(ssh), str(tree), f"{target}:{places['rsync']}"]
    quine = [lab.quine, "run", "--on", "h1", "--cwd", str(places["quine"]), "--files", "tree", "--", "true"]
    parallel = [
        "parallel",
        "--will-cite",
        "-S",
        shlex.join([*ssh, target]),
        "--workdir",
        str(places["parallel"]),
    ]
    parallel += ["--transferfile", "{}", "true", ":::", "tree"]
    nothing = [lab.quine, "run", "--on", "h1", "--", "true"]

    def call(argv: list[str]) -> object:
        return lambda: subprocess.run(argv, **quiet)  # type: ignore[call-overload]

    actions = [("nothing", call(nothing)), ("first", call(quine)), ("second", call(quine))]
    if shutil.which("rsync"):
        actions += [("rsync", call(rsync)), ("rsync again", call(rsync))]
        if shutil.which("parallel"):
            actions += [("parallel", call(parallel))]
    return actions


def _forget(lab: Lab) -> None:
    for home in (lab.home, lab["h1"].home):
        shutil.rmtree(home / ".cache" / "quine" / "staging", ignore_errors=True)


def _rows(middle: dict[str, float]) -> list[Row]:
    first, second, nothing = middle["first"], middle["second"], middle["nothing"]
    added, again = first - nothing, second - nothing
    rsync, parallel = middle.get("rsync"), middle.get("parallel")
    what = f"{FILES} files of {SIZE >> 10} KB"
    return [
        Row(
            f"`--files` of {what}, first",
            first,
            "ms",
            "rsync -a",
            rsync,
            "≥ 1 × its speed",
            rsync is None or first <= rsync,
        ),
        Row("the same", first, "ms", "parallel --transferfile", parallel),
        Row("the same again, whole command", second, "ms", "rsync -a again", middle.get("rsync again")),
        Row("its part of the first", second, "ms", "the first", first, "≤ 5 %", second <= first / 20),
        Row("`run` of nothing, for comparison", nothing, "ms"),
        Row(
            "added by `--files` when sent again",
            again,
            "ms",
            "the first",
            added,
            "≤ 5 %",
            again <= added / 20,
        ),
    ]
