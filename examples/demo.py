"""The main use of quine: one agent here, a child on each of two hosts, a report on stdout, the tree after it.

    python examples/demo.py [DIRECTORY]

Brings up two real sshd hosts on loopback (the lab of the tests), which keep their homes in DIRECTORY
(default: .quine-demo beside README.md), so that a second run finds the binary there and deploys nothing.
stdout carries the report and the tree, stderr the steps of the demo itself. The guest is a script, demo.jsonl.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402 - the lab is no package of the distribution

MISSION = "report on the traffic in this access log"


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def demo(directory: Path) -> int:
    began = time.monotonic()
    log = gzip.decompress((HERE / "access.log.gz").read_bytes())
    with Lab(("h1", "h2"), directory=directory, lease=10) as lab:
        for host in lab.hosts.values():
            kind = "sshd" if host.real else "no sshd here, asyncssh's server"
            say(f"host {host.name} is up: 127.0.0.1:{host.port} ({kind}), home {host.home}")
        data = lab.home / "data"
        shutil.rmtree(data, ignore_errors=True)  # the tapes of this run alone
        env = {
            "QUINE_API_TYPE": "script",
            "QUINE_API_BASE": str(HERE / "demo.jsonl"),
            "QUINE_DATA_DIR": str(data),
        }

        say("quine deploy h1,h2")
        step = time.monotonic()
        deployed = lab.run(["deploy", "h1,h2"], env=env, timeout=120)
        for line in (deployed.stdout + deployed.stderr).decode(errors="replace").splitlines():
            say(f"  {line}")
        if deployed.returncode != 0:
            return deployed.returncode
        say(f"  done in {time.monotonic() - step:.1f} s")

        say(f"gzip -dc examples/access.log.gz | quine '{MISSION}'  # {log.count(bytes([10]))} lines")
        step = time.monotonic()
        agent = lab.run([MISSION], input=log, env=env, timeout=120, shown=True)
        say(f"  status {agent.returncode} in {time.monotonic() - step:.1f} s")

        say("quine tape tree")
        print(flush=True)
        tree = lab.run(["tape", "tree"], env=env, shown=True)
    say(f"all in {time.monotonic() - began:.1f} s; the hosts are down, their homes stay in {directory}")
    return agent.returncode or tree.returncode


if __name__ == "__main__":
    try:
        sys.exit(demo(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".quine-demo"))
    except KeyboardInterrupt:
        sys.exit(130)
