"""Three machines build one report by files only: two of them map, the third reduces, and none has the store's keys.

    python examples/mapreduce.py [URL]

Brings up three real sshd hosts on loopback (the lab of the tests). URL names the shared files, QUINE_FS. By default it
is a directory of this machine, served over the links; with s3://BUCKET/PREFIX the keys are taken from the environment
here, and stay here. stdout carries the report, the tree, and the list of shared files. The guest is a script,
mapreduce.jsonl.
"""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.lab import Lab  # noqa: E402 - the lab is no package of the distribution

MISSION = "count the answers in this access log by status, on three machines"
STORE = ("AWS_", "GOOGLE_", "AZURE_", "QUINE_FS_OPTIONS")


def mapreduce(url: str) -> int:
    log = gzip.decompress((HERE / "access.log.gz").read_bytes())
    with Lab(("h1", "h2", "h3"), lease=10) as lab:
        env = {name: value for name, value in os.environ.items() if name.startswith(STORE)}
        env |= {
            "QUINE_API_TYPE": "script",
            "QUINE_API_BASE": str(HERE / "mapreduce.jsonl"),
            "QUINE_DATA_DIR": str(lab.home / "data"),
            "QUINE_FS": url,
        }
        print("mapreduce: three hosts are up; the first job of each brings the binary there", file=sys.stderr)
        deployed = lab.run(["deploy", "any"], env=env, timeout=300)
        sys.stderr.buffer.write(deployed.stderr)
        agent = lab.run([MISSION], input=log, env=env, timeout=300, shown=True)
        for words in (["tape", "tree"], ["fs", "ls", "-R"]):
            print(f"\n$ quine {' '.join(words)}", flush=True)
            lab.run(words, env=env, shown=True)
        return agent.returncode


if __name__ == "__main__":
    try:
        sys.exit(mapreduce(sys.argv[1] if len(sys.argv) > 1 else "origin:"))
    except KeyboardInterrupt:
        sys.exit(130)
