"""Paths of the inventory and the cache; standard library only, because every client needs them."""

from __future__ import annotations

import os

from deploy import trust
from transport.address import user_directory
from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def cache() -> str:
    """Return the directory for builds and for facts about hosts. On a host the installer uses ~/.cache/quine."""
    return os.path.join(user_directory("cache"), "quine")


class Found(NamedTuple):
    """The inventory in force: its absolute path, or None; and its content, if it has been read.

    `unread` is the inventory of the current directory that is not used, and why.
    """

    path: str | None
    data: bytes | None = None
    unread: tuple[str, str] | None = None


def find(env: Mapping[str, str]) -> Found:
    """Return the inventory in force.

    It is $QUINE_INVENTORY, ./inventory.toml if the user trusts it, or the one in the user's configuration directory.
    """
    if named := env.get("QUINE_INVENTORY"):
        return Found(os.path.abspath(os.path.expanduser(named)))
    path, data, why = trust.found(env or os.environ)
    if path and not why:
        return Found(path, data)
    own = users(env)
    return Found(own if os.path.isfile(own) else None, unread=(path, why) if why else None)


def users(env: Mapping[str, str]) -> str:
    """Return the path of the inventory in the user's configuration directory, whether it exists or not."""
    return os.path.abspath(f"{user_directory('config', env)}/quine/{trust.NAME}")
