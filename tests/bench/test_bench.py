"""The benchmarks as programs: none hangs, their plots can be shown, and the fake hosts do what hosts do."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import __main__ as bench
from bench import plot
from bench.fanout import scale
from bench.measure import Row

LAB: Any = None  # of figures that need none


def test_a_figure_that_does_not_end_is_left_out_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.FIGURES, "hangs", lambda lab: threading.Event().wait() and [])
    (row,) = bench.measured("hangs", LAB, 0.05)
    assert (row.figure, row.met, row.peer_name) == ("`hangs`", False, "not done in that time")


def test_a_figure_that_waits_for_a_process_as_it_ends_is_interrupted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "AGAIN", 1.0)  # the third one would come where nothing waits any more
    processes: list[subprocess.Popen[bytes]] = []

    def hangs(lab: Any) -> list[Row]:
        held = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # not before it is known
        processes.append(subprocess.Popen(["sleep", "1000"]))
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        with processes[0] as process:  # its end waits for the process
            process.wait()
        return []

    monkeypatch.setitem(bench.FIGURES, "hangs", hangs)
    try:
        (row,) = bench.measured("hangs", LAB, 0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert row.met is False


def test_a_figure_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(lab: Any) -> list[Row]:
        raise AssertionError("no such host")

    monkeypatch.setitem(bench.FIGURES, "fails", fails)
    (row,) = bench.measured("fails", LAB, 10)
    assert row.met is False and "failed" in row.peer_name


def test_the_help_names_every_figure() -> None:
    text = (bench.__doc__ or "").replace(";", ",").replace("\n", " ")
    named = text.partition("Figures: ")[2].partition(", without")[0].split(", ")
    assert sorted(name.strip() for name in named) == sorted(bench.FIGURES)


def test_plots_are_whole_documents(tmp_path: Path) -> None:
    rows = [
        Row("`a` & b", 12.5, "ms", "peer <x>", 25.0),
        Row("alone", 1.0, "MB"),
        Row("none", 0.0, "ms", "p", 0.0),
    ]
    plot.write_bars(tmp_path, "bars", rows)
    plot.write_bars(tmp_path, "nothing", rows[1:2])
    lines = [plot.Line("one", [(10, 5.0), (1000, 20_000.0)]), plot.Line("two", [(10, 3.0)], dashed=True)]
    plot.write_lines(tmp_path / "lines.svg", "t & t", "x", "y", lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.svg", "lines.svg"]
    bars, curves = (ElementTree.parse(tmp_path / name).getroot() for name in ("bars.svg", "lines.svg"))
    texts = {each.text for each in bars.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a & b", "peer <x>", "12.5 ms"} <= texts
    assert len(list(curves.iter("{http://www.w3.org/2000/svg}circle"))) == 3


def test_a_batch_over_fake_hosts_ends() -> None:
    """The client and the node are the real ones: each of the items is served once."""
    point = scale.measure(3, 0.01, items=40)
    assert (point.hosts, point.length) == (3, 0.01) and point.rate > 0


def test_the_scale_is_drawn(tmp_path: Path) -> None:
    points = [scale.Point(10, 1.0, 39.0, 0.01, 0.02), scale.Point(1000, 1.0, 900.0, 0.2, 1.0)]
    scale.draw(points, tmp_path)
    rate, cost = (ElementTree.parse(tmp_path / f"scale-{name}.svg").getroot() for name in ("rate", "cost"))
    assert len(list(rate)) > 20 and len(list(cost)) > 20
    assert (points[1].most, points[1].wanted) == (900.0, 1000 * scale.SLOTS)


def test_a_figure_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(["nothing"])
    assert caught.value.code == 2 and "no such figure: nothing" in capsys.readouterr().err
