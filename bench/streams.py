"""Streaming requests: a gigabyte from a file of a job to a file of its proxy and back, beside scp and ssh.

As a program it is that proxy (role `proxy`) or its job: `python -m bench.streams proxy|job put|get HERE THERE`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench.measure import Row, alternate
from tests.lab import Lab
from tests.transport.rpc import streaming
from transport.rpc.call import Relay
from transport.rpc.incoming import Incoming, Streaming

GB = 1_000_000_000
CIPHER = "aes128-gcm@openssh.com"
SOURCE = os.O_RDONLY
TARGET = os.O_RDWR | os.O_CREAT | os.O_TRUNC


def both_ways(lab: Lab, size: int = GB, runs: int = 3) -> list[Row]:
    host = lab["h1"]
    near, far = lab.work / "near", Path(host.home) / "far"
    for path in (near, far):
        with open(path, "wb") as file:
            for _ in range(size // streaming.BLOCK):
                file.write(os.urandom(streaming.BLOCK))
    to, came = lab.work / "came", Path(host.home) / "came"
    rows = []
    ssh = lab.ssh("h1", "-c", CIPHER)
    copy = ["scp", "-q", *ssh[1:-1]]
    copy = [{"-p": "-P", "-T": "-q"}.get(word, word) for word in copy]
    run = partial(subprocess.run, env=lab.env, check=True, cwd=lab.work)

    def stream(way: str, here: Path, there: Path) -> None:
        env = {**lab.env, "PYTHONPATH": str(streaming.ROOT)}
        words = ["proxy", way, str(here), str(there)]
        subprocess.run([sys.executable, "-m", "bench.streams", *words], env=env, check=True, cwd=lab.work)

    def cat(command: str, source: Path | None, target: Path | None) -> None:
        with open(source or os.devnull, "rb") as given, open(target or os.devnull, "wb") as taken:
            run([*ssh, command], stdin=given, stdout=taken)

    for way, ours, scp, plain in (
        (
            "put",
            partial(stream, "put", to, far),
            [f"{ssh[-1]}:{far}", str(to)],
            partial(cat, f"cat {far}", None, to),
        ),
        (
            "get",
            partial(stream, "get", near, came),
            [str(near), f"{ssh[-1]}:{came}"],
            partial(cat, f"cat >{came}", near, None),
        ),
    ):
        mine, other, third = (
            size / 1e6 / s for s in alternate(runs, ours, lambda w=scp: run([*copy, *w]), plain)
        )
        name = f"{size / 1e9:g} GB of a file, {way} by a request, aes128-gcm"
        rows += [Row(name, mine, "MB/s", "scp", other, "≥ 0.7 ×", mine >= 0.7 * other)]
        rows += [Row(name, mine, "MB/s", "ssh cat", third)]
    for path in (near, far, to, came):
        path.unlink()
    return rows


def put(path: str, incoming: Incoming) -> None:
    fd = os.open(path, TARGET, 0o600)
    incoming.receive_file(fd, 1 << 60)
    os.close(fd)


def get(path: str, incoming: Incoming) -> None:
    incoming.read(1)
    fd = os.open(path, SOURCE)
    incoming.send_file(fd, os.fstat(fd).st_size)
    os.close(fd)


def main(role: str, way: str, here: str, there: str) -> int:
    if role == "proxy":
        services = {"put": Streaming(partial(put, here)), "get": Streaming(partial(get, here))}
        words = ["-m", "bench.streams", "job", way, here, there]
        return streaming.serve(os.environ.get("STREAMING_HOST", "h1"), words, services)
    relay = Relay.from_environment()
    assert relay
    with relay.stream(way) as asked:
        fd = os.open(there, SOURCE if way == "put" else TARGET, 0o600)
        if way == "put":
            asked.send_file(fd, os.fstat(fd).st_size)
            asked.end()
            asked.read(1)
        else:
            asked.end(b"x")
            asked.receive_file(fd, 1 << 60)
        os.close(fd)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
