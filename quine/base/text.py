"""Text for people: foreign text made harmless, and columns."""

from __future__ import annotations

from collections.abc import Sequence


def plain(text: str, newlines: bool = True, indent: str = "") -> str:
    """Foreign text for a terminal: control characters as their escapes."""
    keep = "\n\t" if newlines else ""
    shown = "".join(c if c in keep or (c.isprintable()) else repr(c)[1:-1] for c in text)
    return shown.replace("\n", f"\n{indent}") if indent else shown


def table(rows: Sequence[Sequence[str]], right: tuple[int, ...] = ()) -> str:
    """Columns as wide as they must be; the last one is not filled up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
