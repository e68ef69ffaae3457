"""However a mount ends, nothing of it stays: no entry in the kernel's table, no process, no directory. Real FUSE."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quine.base.cli_options import MOUNT_WANTED
from quine.mount import mounts, registry
from tests.files.commands import Shelf
from tests.lab import Lab
from tests.mount.mounting import ROOT, Mount, ending, first_line, needs_fuse, serving
from tests.support.agents import OK, QUINE, Agents, Started, says, sh, until
from tests.support.remote_agents import environment

pytestmark = needs_fuse


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def left(mount: Mount) -> list[str]:
    return os.listdir(Path(mount.env["XDG_RUNTIME_DIR"], f"quine-{os.getuid()}", "mounts"))


def stopped(pid: int) -> bool:
    """All threads of a process."""
    return all(
        task.joinpath("stat").read_bytes().rpartition(b") ")[2][:1] == b"T"
        for task in Path("/proc", str(pid), "task").iterdir()
    )


def test_unmounted_when_it_is_asked_for(tmp_path: Path, store: Path) -> None:
    with Mount(tmp_path, store) as mount:
        assert str(mount.path) in mount.quine("fs", "mount").stdout.decode().splitlines()
        with open(mount.path / "f", "wb"):
            done = mount.quine("fs", "umount", str(mount.path))
            assert done.returncode == 1
            assert b"busy" in done.stderr and f"fuser -vm {mount.path}\n".encode() in done.stderr
        assert mount.quine("fs", "mount", str(mount.path)).returncode == 2  # there already
        # The close comes a little later.
        until(lambda: mount.quine("fs", "umount", str(mount.path)).returncode == 0)
        assert not mount.is_there
        until(lambda: not mount.processes() and not left(mount))
        done = mount.quine("fs", "umount", str(mount.path))
        assert (done.returncode, b"nothing of quine" in done.stderr) == (1, True)


@pytest.mark.parametrize("named", [{}, {"QUINE_DATA_DIR": "x", "QUINE_FS": "origin:.quine/fs"}])
def test_a_relative_tier_is_the_one_of_who_mounts(tmp_path: Path, named: dict[str, str]) -> None:
    """Its keeper leaves that directory."""
    store = tmp_path / ".quine" / "fs"
    store.mkdir(parents=True)
    (store / "in").write_bytes(b"in")
    mount = Mount(tmp_path, store, cwd=tmp_path, **named)
    if "QUINE_FS" not in named:
        del mount.env["QUINE_FS"]
    with mount:
        assert (mount.path / "in").read_bytes() == b"in"
        (mount.path / "out").write_bytes(b"out")
    assert (store / "out").read_bytes() == b"out"


def test_a_keeper_that_is_late_takes_no_other_mount_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unmounted and mounted again before the keeper of the first has seen the end of that."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "m").mkdir()
    path, fds = str(tmp_path / "m"), []
    try:
        first = registry.Place(path)
        fds += [first.fd, mounts.mount(path, first.source)]
        mounts.unmount(path)
        second = registry.Place(path)
        fds += [second.fd, mounts.mount(path, second.source)]
        first.leave()
        assert mounts.sources(path) == [second.source]
        second.leave()
        assert not mounts.is_mounted(path)
        assert os.listdir(registry.folder()) == []
    finally:
        for fd in fds:
            os.close(fd)


def test_unmounted_by_the_name_that_it_was_mounted_by(tmp_path: Path, store: Path) -> None:
    """Which may lead there through a link, as a home does on many a cluster, or be one."""
    (tmp_path / "real").mkdir()
    mount = Mount(tmp_path / "real", store)
    (tmp_path / "above").symlink_to("real")
    (tmp_path / "itself").symlink_to("real/m")
    for name in ("above/m", "itself"):
        with mount:
            done = mount.quine("fs", "umount", str(tmp_path / name))
            assert done.returncode == 0, done.stderr
            assert not mount.is_there


def test_a_tier_is_not_shown_where_it_is_itself(tmp_path: Path) -> None:
    """Its server would wait for itself, and hold up all who look there."""
    (tmp_path / "m" / "fs" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("m/fs")
    shelf = Shelf(tmp_path)
    shelf.env |= {"XDG_RUNTIME_DIR": str(tmp_path), "QUINE_FS": f"origin:{tmp_path}/link"}
    for where in ("m", "m/fs", "m/fs/sub"):
        assert "cannot be shown at" in shelf.fails("mount", tmp_path / where, status=2)
        assert not mounts.is_mounted(str(tmp_path / where))


@pytest.mark.parametrize("which", ["keeper", "server"])
def test_unmounted_when_either_is_killed(tmp_path: Path, store: Path, which: str) -> None:
    with Mount(tmp_path, store) as mount:
        pids = mount.processes()
        assert len(pids) == 2
        os.kill(pids[which == "server"], signal.SIGKILL)
        until(lambda: not mount.is_there and not mount.processes())
        until(lambda: not left(mount))
        assert os.listdir(mount.path) == []


def test_unmounted_by_the_next_when_both_are_killed(tmp_path: Path, store: Path) -> None:
    with Mount(tmp_path, store) as mount:
        pids = mount.processes()
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: all(map(stopped, pids)))
        with ending(pids):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        assert mount.is_there
        with pytest.raises(OSError):
            os.listdir(mount.path)
        assert mount.quine("fs", "mount", str(mount.path)).returncode == 0
        assert os.listdir(mount.path) == []
        assert len(mounts.sources(str(mount.path))) == 1


def test_unmounted_at_the_end_of_the_foreground(tmp_path: Path, store: Path) -> None:
    mount = Mount(tmp_path, store)
    with Started(
        [*QUINE, "fs", "mount", "--foreground", str(mount.path)],
        env=mount.env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    ) as process:
        until(lambda: mount.is_there)
        (mount.path / "f").write_bytes(b"f")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not mount.is_there
    assert (store / "f").read_bytes() == b"f"


def test_what_is_wrong_is_said(tmp_path: Path, store: Path) -> None:
    mount, shelf = Mount(tmp_path, store), Shelf(tmp_path)
    shelf.env = mount.env
    for words in (
        ["mount", tmp_path / "missing"],
        ["mount", "--fs", "nonsense:x", mount.path],
        ["umount"],
    ):
        shelf.fails(*words, status=2)
    assert not mount.is_there
    until(lambda: not mount.processes())


# ------------------------------------------------------------------------------------------ of a job

JOB = 'echo "$QUINE_MOUNT"; cat "$QUINE_MOUNT/in"; echo out >"$QUINE_MOUNT/out"; '


def test_a_command_has_a_mount_of_its_own(tmp_path: Path, store: Path) -> None:
    mount = Mount(tmp_path, store)
    (store / "in").write_bytes(b"in\n")
    done = mount.quine("run", "--mount", "--", "sh", "-c", JOB + "exit 7")
    path, said = done.stdout.decode().split("\n", 1)
    assert (said, done.returncode, done.stderr) == ("in\n", 7, b"")
    assert (store / "out").read_bytes() == b"out\n"
    until(lambda: not mounts.is_mounted(path) and not os.path.exists(path))
    until(lambda: not left(mount))


def test_a_mount_ends_with_a_command_that_is_killed(tmp_path: Path, store: Path) -> None:
    mount = Mount(tmp_path, store)
    with Started(
        [*QUINE, "run", "--mount", "--", "sh", "-c", 'echo "$QUINE_MOUNT"; exec sleep 1000'],
        env=mount.env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as process:
        path = first_line(process).decode().strip()
        assert mounts.is_mounted(path)
        process.kill()
    until(lambda: not mounts.is_mounted(path) and not left(mount))


def test_why_nothing_can_be_mounted_is_seen_without_opening_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node tells it to all that dial it; to open the device would load a module of the kernel."""
    device = tmp_path / "fuse"
    monkeypatch.setattr(mounts, "DEVICE", str(device))
    assert mounts.lacking(opens=False)[0] == f"there is no {device}"
    os.mkfifo(device)
    assert mounts.lacking(opens=False) == ("", "")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert mounts.lacking(opens=False)[0] == f"{device} cannot be opened: permission denied"


def test_where_nothing_can_be_mounted_nothing_is_started(tmp_path: Path, store: Path) -> None:
    """`$QUINE_MOUNT/x` of a command that was started without a mount is `/x`."""
    mount = without_a_place(tmp_path, store, "/somewhere/old")
    done = mount.quine("run", "--mount", "--", "sh", "-c", "echo started")
    assert (done.stdout, done.returncode) == (b"", 69)
    assert done.stderr.startswith(b"quine: error: the files tier cannot be mounted: ")
    assert b"quine: hint: " in done.stderr
    agents = Agents(tmp_path)
    agents.script(says(OK))
    env = {**agents.env, "XDG_RUNTIME_DIR": mount.env["XDG_RUNTIME_DIR"]}
    done = subprocess.run([*QUINE, "--mount", "share it"], env=env, cwd=tmp_path, capture_output=True)
    assert done.returncode == 69 and b"cannot be mounted" in done.stderr
    assert not list(agents.data.glob("*.jsonl"))


def test_a_mount_of_the_defaults_is_had_where_it_can_be(tmp_path: Path, store: Path) -> None:
    mount = without_a_place(tmp_path, store, MOUNT_WANTED)
    done = mount.quine("run", "--mount", "--", "sh", "-c", 'echo "${QUINE_MOUNT-none}"')
    assert (done.stdout, done.stderr, done.returncode) == (b"none\n", b"", 0)
    done = mount.quine("run", "-v", "--mount", "--", "true")
    assert b"cannot be mounted" in done.stderr


def without_a_place(directory: Path, store: Path, value: str) -> Mount:
    """Return a Mount whose runtime directory takes none; `value` of QUINE_MOUNT."""
    mount = Mount(directory, store, QUINE_MOUNT=value)
    runtime = Path(mount.env["XDG_RUNTIME_DIR"], f"quine-{os.getuid()}")
    runtime.mkdir(0o700)
    (runtime / "mounts").write_bytes(b"")
    return mount


def test_an_agent_and_its_children_have_one(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    agents.script(
        says(sh('echo "$QUINE_MOUNT" >&4; echo shared >"$QUINE_MOUNT/f"; quine fs cat f >&4')),
        says(OK),
    )
    done = subprocess.run(
        [*QUINE, "--mount", "share it"], env=agents.env, cwd=tmp_path, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    path, said = done.stdout.decode().split("\n", 1)
    assert said == "shared\n"
    until(lambda: not mounts.is_mounted(path) and not os.path.exists(path))
    tapes = b"".join(tape.read_bytes() for tape in agents.data.glob("*.jsonl"))
    assert b"in the directory $QUINE_MOUNT" in tapes


# ------------------------------------------------------------------------------- on another machine


def test_a_command_elsewhere_has_the_origins_files(lab: Lab, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "fs").mkdir(parents=True)
    (data / "fs" / "in").write_bytes(b"in\n")
    done = lab.run(
        ["run", "--on", "h1", "--mount", "--", "sh", "-c", JOB + "exit 7"], env={"QUINE_DATA_DIR": str(data)}
    )
    path, _, said = done.stdout.decode().partition("\n")
    assert (said, done.returncode) == ("in\n", 7), done.stderr
    assert (data / "fs" / "out").read_bytes() == b"out\n"
    until(lambda: not mounts.is_mounted(path) and not os.path.exists(path))


def test_an_agent_elsewhere_has_them(lab: Lab, tmp_path: Path) -> None:
    data = tmp_path / "data"
    script = [
        {"reply": {"tool_calls": [{"name": "sh", "arguments": {"command": 'echo far >"$QUINE_MOUNT/f"'}}]}},
        {"reply": {"tool_calls": [{"name": "exit", "arguments": {"status": 0}}]}},
    ]
    done = lab.run(["--on", "h1", "--mount", "write it"], env=environment(lab, data, *script))
    assert done.returncode == 0, done.stderr
    assert (data / "fs" / "f").read_bytes() == b"far\n"


# ------------------------------------------------------------------------------- stores that misbehave

SLOW = """
import time
from quine.files.stores.local.store import Local
class Slow(Local):
    def stat(self, path):
        if path == "d/slow":
            time.sleep(1000)
        return super().stat(path)
    def open(self, path, offset=0, length=None):
        if path == "broken":
            raise RuntimeError("a defect of the store")
        return super().open(path, offset, length)
    def list(self, path):
        yield from super().list(path)
        for name in ("../up", "a/b", "", ".", "n" * 300, "odd\\0"):
            yield next(super().list(path))._replace(path=name, size=-5, mtime=float("nan"))
        yield next(super().list(path))._replace(path="huge", size=1 << 80, mtime=1e300)
tier = Slow(sys.argv[1] + ".store")
"""


def test_who_waits_for_a_store_can_be_killed_and_hinders_nobody(tmp_path: Path) -> None:
    with serving(tmp_path, SLOW) as path:
        # While the kernel looks up a name it holds back who makes one in the same directory.
        (path / "d").mkdir()
        waiting = [
            subprocess.Popen(["cat", path / "d" / "slow"], stderr=subprocess.DEVNULL) for _ in range(20)
        ]
        (path / "g").write_bytes(b"g")
        for process in waiting:
            process.kill()
        for process in waiting:
            assert process.wait(60) == -signal.SIGKILL


def test_a_signal_that_does_not_kill_does_not_interrupt(tmp_path: Path) -> None:
    program = SLOW.replace("time.sleep(1000)", "time.sleep(1)")
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGALRM, lambda *_: print('rang', flush=True))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "print(os.path.exists(sys.argv[1]))\n"
    )
    with serving(tmp_path, program) as path:
        (path / "d").mkdir()
        done = subprocess.run(
            [sys.executable, "-c", code, path / "d" / "slow"], capture_output=True, timeout=60
        )
        assert done.stdout.split() == [b"rang", b"False"], done.stderr


def test_a_hostile_store_is_an_errno(tmp_path: Path) -> None:
    with serving(tmp_path, SLOW) as path:
        (path / "broken").write_bytes(b"f")
        with pytest.raises(OSError) as caught:
            (path / "broken").read_bytes()
        assert caught.value.errno == 5
        assert sorted(os.listdir(path)) == ["broken", "huge"]
        assert os.lstat(path / "broken").st_size == 1


def test_the_table_is_swept_of_what_nobody_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    kept, lost = registry.Place(), registry.Place()
    os.close(lost.fd)
    assert registry.sweep() == [lost.path]
    assert not os.path.exists(lost.path)
    assert os.path.isdir(kept.path)
    kept.leave()
    os.close(kept.fd)
    assert os.listdir(registry.folder()) == []
