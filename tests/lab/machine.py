"""Resources that the lab takes from its machine: sshd, keys, ports, mounts, and a PATH for its hosts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
SYSTEM = Path("/usr/bin")
ROOT = Path(__file__).resolve().parents[2]
OURS = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Without root, namespaces need a user namespace around them: its user is root over everything in it.
UNSHARE = ["unshare", *(["--map-root-user"] if os.getuid() else [])]
# In the environment of all that this process starts, hosts of the lab included: several suites run on one machine.
RUN = f"LAB_RUN={uuid.uuid4().hex[:12]}"
PORTS = 10_000  # the first that a lab takes
MEMORY, ROOM = "/dev/shm", 4 << 30  # a file system in memory, and the free bytes of one that is taken

_random = random.SystemRandom()  # not the one that hypothesis seeds: labs beside each other must differ
FULL = Path("/dev/full")  # a device that takes no byte


def place_of_files() -> str | None:
    """Return the directory in which tests make theirs, which has a short name; None for Python's own choice.

    With QUINE_TEST_MEMORY it is in memory, if programs and all attributes of files can be there, as on a disk: a sixth
    of the suite's time is that of its files.
    """
    if os.environ.get("QUINE_TEST_MEMORY"):
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=MEMORY) as file:
            os.setxattr(file.name, "user.quine", b"x")
            found = os.statvfs(MEMORY)
            if found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC:
                return MEMORY
    return "/tmp" if os.access("/tmp", os.W_OK) else None


def search_path(base: Path, python: bool, scripts: Mapping[str, str]) -> str:
    """PATH of a host that keeps its files in `base`: the system's tools, its own scripts before them.

    With `python` there is one of our version: the system's, or else ours by a link. Without it there is none
    of any version.
    """
    own = base / "bin"
    own.mkdir(exist_ok=True)
    rest = f"{SYSTEM}:/bin"
    if python and not (SYSTEM / OURS).exists():
        # At one path for all labs: the installation that they share names it.
        place = ROOT / ".lab-cache" / "pythons" / OURS
        place.mkdir(parents=True, exist_ok=True)
        link(place / OURS, Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        rest = f"{place}:{rest}"
    for name, text in scripts.items():
        (own / name).write_text(text)
        (own / name).chmod(0o755)
    if python:
        return f"{own}:{rest}" if any(own.iterdir()) else rest
    bare = base / "bin-without-python"
    bare.mkdir(exist_ok=True)
    for tool in SYSTEM.iterdir():
        if not tool.name.startswith(("python", "pydoc", "pypy")):
            link(bare / tool.name, tool)
    return f"{own}:{bare}"


def link(at: Path, to: Path) -> None:
    with contextlib.suppress(FileExistsError):
        at.symlink_to(to)


def free_port() -> int:
    """Return a port that the kernel never picks by itself: a server that stops for a while finds it free again."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        port = _random.randrange(PORTS, first) if first > PORTS else 0
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as listener:
            return int(listener.getsockname()[1])
    raise RuntimeError("no port is free")


def make_key(path: Path, comment: str) -> None:
    """An ed25519 key pair without a passphrase; by ssh-keygen, or by asyncssh where OpenSSH is absent."""
    if shutil.which("ssh-keygen"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment)
    path.touch(mode=0o600)
    key.write_private_key(str(path))
    key.write_public_key(str(path) + ".pub")


def can_mount() -> bool:
    """May this process have mounts of its own?"""
    probe = [*UNSHARE, "-m", "mount", "-t", "tmpfs", "lab", "/mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(probe, capture_output=True).returncode == 0


def readable(fd: int | IO[Any], seconds: float) -> bool:
    """Does `fd` become readable (or end) within `seconds`? `select` would fail from descriptor 1024 on."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(int(seconds * 1000)))


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value if isinstance(value, (str, int, float, bool)) else str(value))


def remove(directory: Path) -> None:
    """rm -rf, read-only directories included."""

    def again(action: Callable[[str], object], path: str, _: object) -> None:
        os.chmod(Path(path).parent, stat.S_IRWXU)
        if not os.path.islink(path):
            os.chmod(path, stat.S_IRWXU)
        action(path)

    if directory.is_dir():
        shutil.rmtree(directory, onerror=again)
