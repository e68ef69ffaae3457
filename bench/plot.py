"""Figures as SVG, without a library: bars of a figure beside its peers, and lines over two logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.measure import Row

WIDTH, BAR, LEFT = 720, 22, 300
COLOURS = ("#1f6f8b", "#c8553d", "#588b4c", "#8e6c8a", "#b08900")
OURS, THEIRS = COLOURS[0], "#b9c2c8"
TEXT = 'font-family="sans-serif" font-size="12"'


class Line(NamedTuple):
    """One line: its name and its points."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def write_bars(directory: Path, name: str, rows: Sequence[Row]) -> None:
    """Write the rows of a figure that have a peer, each group with its own scale. None if no row has one."""
    shown = [row for row in rows if row.peer is not None]
    if not shown:
        return
    parts, top = [], 10
    for row in shown:
        peer = row.peer or 0.0
        most = max(row.value, peer) or 1.0
        parts.append(
            f'<text x="8" y="{top + 14}" {TEXT} font-weight="bold">{escape(_plain(row.figure))}</text>'
        )
        top += BAR
        for label, value, colour in (("quine", row.value, OURS), (row.peer_name, peer, THEIRS)):
            wide = (WIDTH - LEFT - 130) * value / most
            parts += [
                f'<text x="{LEFT - 8}" y="{top + 15}" {TEXT} text-anchor="end">{escape(_plain(label))}</text>',
                f'<rect x="{LEFT}" y="{top + 3}" width="{wide:.1f}" height="{BAR - 6}" fill="{colour}"/>',
                f'<text x="{LEFT + wide + 6:.1f}" y="{top + 15}" {TEXT}>{value:.4g} {escape(row.unit)}</text>',
            ]
            top += BAR
        top += 10
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.svg").write_text(_svg(WIDTH, top, parts))


def write_lines(path: Path, title: str, x: str, y: str, lines: Sequence[Line]) -> None:
    """Write lines over two logarithmic axes, from the power of ten below all points to the one above."""
    points = [point for line in lines for point in line.points]
    (x0, x1), (y0, y1) = (_decades([point[axis] for point in points]) for axis in (0, 1))
    left, top, wide, high = 70, 40, 430, 300

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (math.log10(point[0]) - x0) / (x1 - x0)
        up = (math.log10(point[1]) - y0) / (y1 - y0)
        return left + wide * across, top + high * (1 - up)

    parts = [f'<text x="{left}" y="22" {TEXT} font-weight="bold">{escape(title)}</text>']
    for power in range(x0, x1 + 1):
        at = place((10.0**power, 10.0**y0))[0]
        parts.append(f'<path d="M{at:.1f} {top}V{top + high}" stroke="#dddddd"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{top + high + 16}" {TEXT} text-anchor="middle">{_tick(power)}</text>'
        )
    for power in range(y0, y1 + 1):
        at = place((10.0**x0, 10.0**power))[1]
        parts.append(f'<path d="M{left} {at:.1f}H{left + wide}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" {TEXT} text-anchor="end">{_tick(power)}</text>')
    parts.append(
        f'<text x="{left + wide / 2}" y="{top + high + 36}" {TEXT} text-anchor="middle">{escape(x)}</text>'
    )
    parts.append(f'<text x="8" y="{top - 8}" {TEXT}>{escape(y)}</text>')
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(point) for point in line.points]
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        way = " ".join(f"{across:.1f},{up:.1f}" for across, up in places)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>' for across, up in places]
        row = top + 12 + 20 * number
        parts.append(f'<path d="M{left + wide + 16} {row}h24" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{left + wide + 46}" y="{row + 4}" {TEXT}>{escape(line.name)}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_svg(WIDTH, top + high + 50, parts))


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)))
    return low, max(low + 1, math.ceil(math.log10(max(values))))


def _tick(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 4 else f"1e{power}"


def _plain(text: str) -> str:
    return text.replace("`", "")


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    back = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', back, *parts, "</svg>\n"])
