"""Real mounts for tests: each in processes of its own, unmounted and gone when its `with` ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from quine.mount import mounts
from tests.lab.machine import readable
from tests.support.agents import QUINE, until

ROOT = Path(__file__).resolve().parents[2]


def why_not() -> str:
    """Why nothing can be mounted on this machine; "" where it can. Found by trying, once."""
    why, _ = mounts.lacking()
    if why:
        return why
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys, tempfile\n"
            "from quine.mount import mounts\n"
            "with tempfile.TemporaryDirectory() as path:\n"
            "    fd = mounts.mount(path, 'quine-test')\n"
            "    os.close(fd)\n"
            "    mounts.unmount(path)\n",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


WHY_NOT = why_not()
needs_fuse = pytest.mark.skipif(bool(WHY_NOT), reason=f"no FUSE here: {WHY_NOT}")


class Mount:
    """A tier in `store`, and its directory `path`."""

    def __init__(
        self, directory: Path, store: Path, name: str = "m", *, cwd: Path = ROOT, **env: str
    ) -> None:
        self.path = directory / name
        self.store = store
        self.cwd = cwd
        self.path.mkdir()
        store.mkdir(exist_ok=True)
        runtime = directory / "run"
        runtime.mkdir(exist_ok=True)
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("QUINE_")},
            "XDG_RUNTIME_DIR": str(runtime),
            "QUINE_FS": f"file://{store}",
            **env,
        }

    def quine(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*QUINE, *words], env=self.env, cwd=self.cwd, capture_output=True, timeout=timeout
        )

    def processes(self) -> list[int]:
        """The keeper and the server, in this order."""
        found: dict[int, int] = {}
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.fsencode(self.path) in Path(
                    "/proc", name, "cmdline"
                ).read_bytes().split(b"\0"):
                    found[int(name)] = int(
                        Path("/proc", name, "stat").read_bytes().rpartition(b") ")[2].split()[1]
                    )
        return sorted(found, key=lambda pid: found[pid] in found)  # the server's parent is the keeper

    @property
    def is_there(self) -> bool:
        return mounts.is_mounted(str(self.path))

    def __enter__(self) -> Mount:
        done = self.quine("fs", "mount", str(self.path))
        assert done.returncode == 0, done.stderr
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            mounts.unmount(str(self.path))
        until(lambda: not self.processes())
        assert not self.is_there


class Part(NamedTuple):
    """A directory of a mount that many tests share, for one of them: as it is mounted, and in the store."""

    path: Path
    store: Path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount for all tests of a module that leave it as they found it."""
    place = tmp_path_factory.mktemp("shared")
    with Mount(place, place / "store") as mount:
        yield mount


@pytest.fixture
def mount(shared: Mount) -> Part:
    name = f"{len(os.listdir(shared.store))}"
    (shared.path / name).mkdir()
    return Part(shared.path / name, shared.store / name)


@contextlib.contextmanager
def ending(pids: list[int]) -> Iterator[None]:
    """These are to end within; waited for until they hold nothing any more.

    A dying process has no command line before it gives up its locks and descriptors.
    """
    with contextlib.ExitStack() as stack:
        fds = [os.pidfd_open(pid) for pid in pids]
        for fd in fds:
            stack.callback(os.close, fd)
        yield
        for fd in fds:
            assert readable(fd, 60), "still there"


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the first line of a process's stdout."""
    assert process.stdout is not None
    assert readable(process.stdout, 120), "nothing came"
    return process.stdout.readline()


@contextlib.contextmanager
def serving(directory: Path, program: str) -> Iterator[Path]:
    """A mount whose tier is made by `program`, which defines `tier`, in a process of its own."""
    path = directory / "m"
    path.mkdir()
    code = (
        "import sys\n"
        f"{program}\n"
        "from quine.mount import mounts\n"
        "from quine.mount.server import Server\n"
        "from quine.mount.state import State\n"
        "fd = mounts.mount(sys.argv[1], 'quine-test')\n"
        "print('ready', flush=True)\n"
        "Server(fd, State(tier, lambda text: print(text, file=sys.stderr, flush=True))).serve([], lambda fd: True)\n"
        "import os\n"
        "os._exit(0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        try:
            assert first_line(process) == b"ready\n"
            yield path
        finally:
            with contextlib.suppress(OSError):
                mounts.unmount(str(path))
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
    assert not mounts.is_mounted(str(path))
