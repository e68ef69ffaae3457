"""The demo: its output is true of the log, the tree spans three nodes, the second run deploys nothing."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.lab import marked

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(rb'(\S+) - \S+ \[[^]]+\] "([^"]*)" (\d+) (\d+) "[^"]*" "[^"]*"')


def facts() -> dict[str, object]:
    """Return the facts of a right report, counted here from the log."""
    lines = gzip.decompress((ROOT / "examples" / "access.log.gz").read_bytes()).splitlines()
    status: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    clients: Counter[str] = Counter()
    size = 0
    for line in lines:
        found = LINE.fullmatch(line)
        assert found, line
        request = found[2].decode().split()
        status[found[3].decode()] += 1
        paths[request[1].partition("?")[0] if len(request) > 1 else "(malformed)"] += 1
        clients[found[1].decode()] += 1
        size += int(found[4])
    return {"requests": len(lines), "bytes": size, "status": status, "paths": paths, "clients": clients}


def ranked(counts: Counter[str], most: int | None = None) -> list[tuple[int, str]]:
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0].encode()))
    return [(count, key) for key, count in order][:most]


def section(report: str, title: str) -> list[tuple[int, str]]:
    lines = report.split(f"\n{title}\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [(int(line.split()[0]), line.split()[1]) for line in lines if line.strip()]


def test_the_log_is_what_its_readme_says() -> None:
    known = facts()
    assert known["requests"] == 20000
    assert {"200", "206", "301", "304", "403", "404", "500"} <= set(known["status"])  # type: ignore[call-overload]


def run_demo(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), str(directory)],
        capture_output=True,
        text=True,
        timeout=140,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_demo(tmp_path: Path) -> None:
    known = facts()
    begun = time.monotonic()
    first = run_demo(tmp_path)
    took = time.monotonic() - begun
    assert first.returncode == 0, first.stderr
    assert took < 120  # ten seconds, on a machine that runs nothing else

    assert all(f"{name}: deployed" in first.stderr for name in ("h1", "h2")), first.stderr
    report, _, tree = first.stdout.rpartition("\n\n")
    head = dict(line.split() for line in report.split("\n\n")[1].splitlines())
    assert int(head["requests"]) == known["requests"]
    assert int(head["bytes"]) == known["bytes"]
    assert int(head["clients"]) == len(known["clients"])  # type: ignore[arg-type]
    assert section(report, "by status") == ranked(known["status"])  # type: ignore[arg-type]
    assert section(report, "busiest paths") == ranked(known["paths"], 10)  # type: ignore[arg-type]
    assert section(report, "busiest clients") == ranked(known["clients"], 5)  # type: ignore[arg-type]

    assert all(re.search(rf"\b{node}\b", tree) for node in ("local", "h1", "h2")), tree

    second = run_demo(tmp_path)
    assert second.returncode == 0, second.stderr
    assert all(f"{name}: already there" in second.stderr for name in ("h1", "h2")), second.stderr
    assert second.stdout.rpartition("\n\n")[0] == report
    for name in ("h1", "h2"):
        assert not list((tmp_path / name / "tmp").iterdir())
        assert not marked(f"HOME={tmp_path / name / 'home'}")
    assert not marked(f"HOME={tmp_path / 'origin'}")
