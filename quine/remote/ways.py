"""The way to each host, resolved by ~/.ssh/config without a connection, as text that tells one link from another.

Laws
1. The text is made anew once a file that it was made from has changed: an edit counts for the next job.
2. Nothing is run and no name is looked up: a node waits for it. Where `Match exec` or CanonicalizeHostname decides, any
   change of the files counts as another way; a command that decides otherwise by itself is not seen.
"""

from __future__ import annotations

import time
from pathlib import Path

from deploy.carriers import target_of
from deploy.host import Host
from deploy.inventory import Inventory
from transport.carrier.config_files import Stamp, stamp
from transport.carrier.dialer import SshTarget
from transport.carrier.ssh.config import SYSTEM_CONFIG, Asked, Config, hop, read

DEEPEST = 16  # hosts on the way to one
LOOK = 0.01  # seconds between looks at the files, less than a command takes to start: a batch has more jobs than that


class Ways:
    """The ways that are known, and the files that they were made from."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Host, str]] = {}  # by id(host)
        self._before: dict[str, str] = {}  # by name: texts of the files that were there before
        self._stamps: dict[str, Stamp] = {}
        self._looked = 0.0

    def clear(self) -> None:
        """The inventory has changed."""
        self._texts.clear()
        self._before.clear()

    def text(self, host: Host, inventory: Inventory, keep: bool) -> str:
        """Return the settings of a host, those of its table and the resolved ones, to compare.

        With `keep` a configuration that is being edited, and wrong, leaves the way as it was.
        """
        if (now := time.monotonic()) - self._looked >= LOOK:
            self._looked = now
            if any(stamp(path) != before for path, before in self._stamps.items()):
                self._before = {each.name: text for each, text in self._texts.values()}
                self._texts.clear()
                self._stamps.clear()
        known = self._texts.get(id(host))
        if known is None:
            known = self._texts[id(host)] = (host, self._made(host, inventory, keep))
        return known[1]

    def _made(self, host: Host, inventory: Inventory, keep: bool) -> str:
        if host.transport not in ("ssh", "openssh"):
            return repr(host)
        target = target_of(host, inventory, None)
        configs: list[Config] = []
        try:
            _resolve(target, configs)
            decided = not any(config.open for config in configs)
        except (ValueError, OSError):  # the dial says what is wrong
            if keep and host.name in self._before:
                return self._before[host.name]
            decided = False
        finally:
            for config in configs:
                self._stamps.update(config.files)
        parts = [repr(host), repr(target), *(config.values() for config in configs)]
        return "\0".join(parts if decided else [*parts, repr(sorted(self._stamps.items()))])


def _resolve(target: SshTarget, configs: list[Config]) -> None:
    """Append what ssh's configuration says for each host on the way, the target first. Raises ValueError, OSError."""
    if len(configs) == DEEPEST:
        return  # they go in a circle: the dial says so
    config = Config(Asked(target.address.strip("[]"), target.user or "", target.port), runs=False)
    configs.append(config)
    read(config.asked, Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG, config)
    if target.jump:
        _resolve(target.jump, configs)
    elif (named := config.get("ProxyJump")).lower() not in ("", "none"):
        before: SshTarget | None = None
        for text in config.expand(named).split(","):
            at = hop(text)
            before = SshTarget(at.host, at.host, at.user or None, at.port, None, before)
        assert before is not None
        _resolve(before, configs)
