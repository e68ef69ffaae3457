"""Text for terminals, and as words: foreign text made harmless, tables, quotes for a shell."""

from __future__ import annotations

from transport.text import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def plain(text: str, newlines: bool = True, indent: str = "") -> str:
    """Escape the control characters of foreign text. `indent` follows each newline."""
    shown = harmless(text, keep="\n\t" if newlines else "")
    return shown.replace("\n", f"\n{indent}") if indent else shown


def table(rows: Sequence[Sequence[str]], right: tuple[int, ...] = ()) -> str:
    """Format rows as columns of minimal width; the columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def unfit(text: str) -> str:
    """Return why a text from a guest cannot be part of an argv, environment or file name; "" if it can."""
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair, which is no character"
    return ""


def quote(text: str) -> str:
    """Quote any text as one word for a POSIX shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def shown_path(path: str) -> str:
    """Return a path that a host has told, quoted if a shell would make more of it than a path."""
    harmless = all(c.isalnum() or c in "/._-+@%:,=~" for c in path) and not path.startswith("-")
    return path if harmless else quote(path)
