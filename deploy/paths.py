"""Where the inventory is, and where things are kept; standard library only, because every client asks."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def cache() -> str:
    """The directory for builds, and for what is known of hosts."""
    return os.path.expanduser("~/.cache/quine")


def find(env: Mapping[str, str]) -> str | None:
    """$QUINE_INVENTORY, ./inventory.toml, or the user's configuration directory; an absolute path, or None."""
    home = env.get("HOME") or os.path.expanduser("~")
    if named := env.get("QUINE_INVENTORY"):
        return os.path.abspath(os.path.expanduser(named))
    config = env.get("XDG_CONFIG_HOME") or f"{home}/.config"
    for path in ("inventory.toml", f"{config}/quine/inventory.toml"):
        if os.path.isfile(path):
            return os.path.abspath(path)
    return None
