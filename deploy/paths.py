"""Where the inventory is; standard library only, because every client asks."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


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
