"""Text of others made harmless for a terminal.

Modules that a client loads at its start import this one where a text needs it: most texts do not.
"""

from __future__ import annotations


def harmless(text: str, keep: str = "", instead: str = "") -> str:
    """Replace each character that is not printable by `instead`, or else by its escape; those in `keep` stay.

    No text of a host, a file's name or a tape moves the cursor, changes a terminal or cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else instead or _escape(c) for c in text)


def _escape(character: str) -> str:
    """Return the escape of one character; of a byte in a file's name that is no UTF-8, that of the byte."""
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return repr(character)[1:-1]
