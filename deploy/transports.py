"""Keys of the inventory that belong to one transport, and those that mean nothing to another."""

from __future__ import annotations

from collections.abc import Mapping

OF_SSH = ("address", "port", "user", "identity", "jump")


def misplaced(table: Mapping[str, object], defaults: Mapping[str, object]) -> str:
    """Return the key of a host's table that does not go with its transport, and the reason; "" if there is none.

    Keys of ssh may stand in the defaults: hosts with another transport do not use them.
    """
    both = {**defaults, **table}
    if both.get("transport", "ssh") != "command":
        return 'command: only transport = "command" has one' if "command" in table else ""
    if not both.get("command"):
        return 'command: transport = "command" needs one, as ["docker", "exec", "-i", "box"]'
    return next((f'{key}: transport = "command" does not use it' for key in OF_SSH if key in table), "")
