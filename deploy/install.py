"""How this quine was installed: its distribution, the source of that, and the command that adds an extra to it."""

from __future__ import annotations

import sys
from importlib import metadata
from urllib.parse import unquote, urlsplit

from transport import quickjson, this_build

NAME = "quine-agent"
POINT = "quine.files.python.filesystem:QuineFileSystem"  # an entry point that no other project has


def distribution() -> metadata.Distribution | None:
    """Return the distribution of our packages, whatever a fork of the project calls it; None without one."""
    try:
        return metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        found = (one for one in metadata.distributions() if any(p.value == POINT for p in one.entry_points))
        return next(found, None)


def source() -> str:
    """Return the directory or URL that it was installed from, "." if that is not known."""
    known = distribution()
    try:
        url = str(quickjson.loads((known and known.read_text("direct_url.json")) or "{}").get("url", ""))
    except (ValueError, AttributeError):
        url = ""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else url or "."


def with_extra(extra: str, prefix: str = sys.prefix) -> str:
    """Return the command that installs the same again with `extra`, by the tool that installed it."""
    if this_build.unpacked():
        return 'set fs = "direct" for this host in the inventory of the origin, which then sends the packages'
    wanted = f"'{source()}[{extra}]'"
    if "/uv/tools/" in f"{prefix}/":
        return f"uv tool install --force {wanted}"
    if "/pipx/venvs/" in f"{prefix}/":
        return f"pipx install --force {wanted}"
    return f"{prefix}/bin/python -m pip install {wanted}"
