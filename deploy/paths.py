"""Paths of the inventory and the cache; standard library only, because every client needs them."""

from __future__ import annotations

import os

from transport.address import user_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def cache() -> str:
    """Return the directory for builds and for facts about hosts. On a host the installer uses ~/.cache/quine."""
    return os.path.join(user_directory("cache"), "quine")


def find(env: Mapping[str, str]) -> str | None:
    """Return the absolute path of the inventory, or None if there is none.

    It is $QUINE_INVENTORY, ./inventory.toml, or the one in the user's configuration directory.
    """
    if named := env.get("QUINE_INVENTORY"):
        return os.path.abspath(os.path.expanduser(named))
    for path in ("inventory.toml", f"{user_directory('config', env)}/quine/inventory.toml"):
        if os.path.isfile(path):
            return os.path.abspath(path)
    return None
