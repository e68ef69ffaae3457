"""A door to the tier of a job on another host: its own right to ask, used from this process over its own node and link.

Laws
1. All hosts of the lab are on this machine, so this process reaches the socket of their node. Its requests go the
   same way as those of the job, through the same programs.
2. The job lives as long as the door is open, and no longer.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quine.files.wire.client import Remote
from tests.support.agents import until
from transport.rpc.call import Relay

if TYPE_CHECKING:
    from tests.lab import Lab

TELL = """import os, sys
print(os.pread(int(os.environ["QUINE_CREDENTIALS_FD"]), 1 << 16, 0).decode(), flush=True)
sys.stdin.read()"""


class Door:
    """`memo` has the job's credentials, `face` is the process that answers the job, `root` the directory of files."""

    def __init__(self, proxy: subprocess.Popen[bytes], root: Path) -> None:
        assert proxy.stdout
        self.proxy = proxy
        self.root = root
        line = proxy.stdout.readline()
        assert line, f"no job: {proxy.stderr.read() if proxy.stderr else b''!r}"
        self.memo: dict[str, Any] = json.loads(line)

    def relay(self, **more: str) -> Relay:
        """The job's; with `token` or `capability`, one that claims another's."""
        memo = {**self.memo, **more}
        return Relay(memo["socket"], memo["token"], memo["capability"])

    def tier(self, **more: str) -> Remote:
        return Remote(self.relay(**more))

    def kept(self) -> list[str]:
        """Return all files below the root, shown or hidden, but not the directories that keep parts."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())

    def settled(self, *wanted: str) -> None:
        """Wait until exactly these files are there: the origin drops abandoned parts on its own time."""
        until(lambda: self.kept() == sorted(wanted))


@contextlib.contextmanager
def opened(
    lab: Lab, host: str, root: Path, env: Mapping[str, str] | None = None, *options: str
) -> Iterator[Door]:
    """A job on a host whose tier is the directory `root` at the origin, without the quota that a job has by default."""
    words = ["run", *options, "--on", host, "--", "python3", "-c", TELL]
    env = {"QUINE_FS": f"origin:{root}", "QUINE_FS_QUOTA": "0", **(env or {})}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with lab.popen(words, env=env, **pipes) as proxy:  # type: ignore[arg-type]
        try:
            yield Door(proxy, root)
        finally:
            assert proxy.stdin
            with contextlib.suppress(BrokenPipeError):
                proxy.stdin.close()
            try:
                proxy.wait(120)
            except subprocess.TimeoutExpired:
                proxy.kill()
