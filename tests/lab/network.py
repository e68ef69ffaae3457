"""A network of one host's own: a namespace that a veth joins to this machine, so that packets can really vanish.

Laws
1. The pair of interfaces is the one thing of the machine that a lab changes. It lives in the namespace, so it is gone
   when the last process there is and this one lets go, however that comes about.
2. The far end is what goes down. Were it ours, the route would go with it, and what is meant for the host would
   leave by the default route.
3. Addresses are of 198.18.0.0/15, which no network uses (RFC 2544). A block is taken by the name of its interface.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess

BLOCKS = 1 << 15  # of four addresses each
TRIES = 20
LINK = "eth0"  # over there


def can_separate() -> bool:
    """May this process give a host a network of its own?"""
    if os.getuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    return (
        subprocess.run(["unshare", "-n", "ip", "link", "add", "type", "veth"], capture_output=True).returncode
        == 0
    )


class Network:
    """Made with the link up."""

    def __init__(self) -> None:
        with subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "echo; read wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()  # it is inside
            self.fd = os.open(f"/proc/{holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._join()
        except BaseException:
            os.close(self.fd)
            raise

    def _join(self) -> None:
        for _ in range(TRIES):
            block = random.randrange(BLOCKS)
            self.name = f"ql-{block:04x}"
            try:
                _ip("link", "add", self.name, "type", "veth", "peer", "name", f"{self.name}p")
            except RuntimeError as error:
                if "File exists" in str(error):
                    continue
                raise
            first, second = 18 + (block >> 14), (block & 0x3FFF) << 2
            prefix = f"198.{first}.{second >> 8}"
            self.address = f"{prefix}.{(second & 255) + 2}"
            _ip("link", "set", f"{self.name}p", "netns", f"/proc/{os.getpid()}/fd/{self.fd}", "name", LINK)
            _ip("address", "add", f"{prefix}.{(second & 255) + 1}/30", "dev", self.name)
            _ip("link", "set", self.name, "up")
            for words in (("address", "add", f"{self.address}/30", "dev", LINK), ("link", "set", "lo", "up")):
                _ip(*words, within=self)
            self.up()
            return
        raise RuntimeError("no block of addresses is free")

    def enter(self) -> list[str]:
        """Return the words that run an argv in this network when they are put before it."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.fd}", "--"]

    def up(self) -> None:
        _ip("link", "set", LINK, "up", within=self)

    def down(self) -> None:
        """Drop every packet, both ways, without notice to either end."""
        _ip("link", "set", LINK, "down", within=self)

    def close(self) -> None:
        if self.fd >= 0:
            _ip("link", "delete", self.name)  # a namespace takes its time to go
            os.close(self.fd)
            self.fd = -1


def _ip(*words: str, within: Network | None = None) -> None:
    done = subprocess.run(
        [*(within.enter() if within else ()), "ip", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
