"""Paths of the inventory and the cache; standard library only, because every client needs them."""

from __future__ import annotations

import os

from deploy import trust
from transport.address import user_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def cache() -> str:
    """Return the directory for builds and for facts about hosts. On a host the installer uses ~/.cache/quine."""
    return os.path.join(user_directory("cache"), "quine")


_unread: list[tuple[str, str]] = []  # the inventory of the current directory that was not read, and why


def find(env: Mapping[str, str]) -> str | None:
    """Return the absolute path of the inventory, or None if there is none.

    It is $QUINE_INVENTORY, ./inventory.toml if the user trusts it, or the one in the user's configuration directory.
    """
    _unread.clear()
    if named := env.get("QUINE_INVENTORY"):
        return os.path.abspath(os.path.expanduser(named))
    path, why = trust.found(env or os.environ)
    if why:
        _unread.append((path, why))
    if path and not why:
        return path
    path = f"{user_directory('config', env)}/quine/{trust.NAME}"
    return os.path.abspath(path) if os.path.isfile(path) else None


def unread() -> tuple[str, str] | None:
    """Return the inventory of the current directory that `find` has not read in this process, and why."""
    return _unread[0] if _unread else None
