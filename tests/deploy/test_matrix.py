"""The troubles of hosts, each as a host of its own: it works, or it is refused with a cure that the test follows.

Others are in `test_deploy.py` (a full disk, no Python, no home, a noisy login, a shell that runs nothing, old and
foreign systems) and in `test_probe.py` (every shell).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.build import build
from tests.deploy.test_deploy import refused, said
from tests.lab import Lab, processes
from tests.lab.host import Host

pytestmark = pytest.mark.long
CURE = 'cache = "/scratch/me/quine"'
RCS = {"tcsh": ".tcshrc", "fish": ".config/fish/config.fish", "zsh": ".zshenv", "bash": ".bashrc"}


def works(lab: Lab, host: str) -> None:
    """A deployment, then a job by it: its input, both outputs and its status."""
    assert lab.run(["deploy", host], check=True).stdout.decode().startswith(f"{host}: deployed, ")
    program = ["sh", "-c", "cat; echo error >&2; exit 7"]
    done = lab.run(["run", "--on", host, "--", *program], input=b"in and out")
    assert (done.stdout, done.stderr, done.returncode) == (b"in and out", b"error\n", 7)


def scratch(lab: Lab, host: Host, name: str, path: Path) -> str:
    """Follow the cure: return another entry for the host, with a cache and a workdir elsewhere."""
    path.mkdir(mode=0o700, exist_ok=True)
    return lab.alias(name, of=host.name, cache=f"{path}/quine", workdir=f"{path}/work")


@pytest.mark.parametrize("shell", sorted(RCS))
def test_a_login_shell_whose_start_file_prints(shell: str, lab: Lab, odd_host: Callable[..., Host]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    host = odd_host("odd", shell=program)
    start = host.home / RCS[shell]
    start.parent.mkdir(parents=True, exist_ok=True)
    start.write_text('echo "You have mail: it\'s 100% new"\necho read >> $HOME/start-file\n')
    works(lab, "odd")
    if shell != "bash":  # which reads it only where sshd starts it
        assert (host.home / "start-file").exists()


def test_a_umask_that_leaves_nothing_to_others(
    lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\numask 077\nexec /bin/sh "$@"\n')
    shell.chmod(0o755)
    host = odd_host("private", shell=str(shell))
    works(lab, "private")
    cache = host.path_of(".cache/quine")
    assert [path for path in cache.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077] == []
    made = lab.run(["run", "--on", "private", "--", "sh", "-c", "umask"], check=True)
    assert made.stdout.strip() == b"0077", "a job has the mask of the login"


def test_a_home_that_allows_no_programs(lab: Lab, odd_host: Callable[..., Host], tmp_path: Path) -> None:
    host = odd_host("strict", mount="noexec,size=200m")
    text = refused(lab, "strict")
    assert "mounted noexec" in text and CURE in text
    assert os.listdir(host.path_of(".")) == [], "it is seen before anything is sent"
    checked = lab.run(["hosts", "check", "strict"])
    assert checked.returncode == 69 and checked.stdout.splitlines()[1].split()[1] == b"unusable"
    assert b"mounted noexec" in checked.stderr
    planned = lab.run(["deploy", "--plan", "strict"])
    assert (planned.returncode, planned.stdout) == (69, b"strict: cannot be deployed to\n")
    works(lab, scratch(lab, host, "cured", tmp_path / "scratch"))


def test_a_home_on_a_read_only_file_system(lab: Lab, odd_host: Callable[..., Host], tmp_path: Path) -> None:
    host = odd_host("frozen", mount="ro,size=200m")
    text = refused(lab, "frozen")
    assert "its cache for quine cannot be written" in text and CURE in text
    works(lab, scratch(lab, host, "cured", tmp_path / "scratch"))
    assert os.listdir(host.path_of(".")) == []


def test_a_home_that_cannot_be_entered(lab: Lab, odd_host: Callable[..., Host], tmp_path: Path) -> None:
    host = odd_host("closed", env={"HOME": "/proc/none"})
    text = refused(lab, "closed")
    assert "its cache for quine cannot be written" in text and CURE in text
    works(lab, scratch(lab, host, "cured", tmp_path / "scratch"))


def test_a_host_whose_node_can_write_no_file(lab: Lab, odd_host: Callable[..., Host], tmp_path: Path) -> None:
    """As with a full /tmp: the node has no log to say it in."""
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\n[ -e {tmp_path}/free ] || ulimit -f 0\nexec /bin/sh "$@"\n')
    shell.chmod(0o755)
    host = odd_host("short", shell=str(shell))
    (tmp_path / "free").touch()
    lab.run(["deploy", "short"], check=True)
    (tmp_path / "free").unlink()
    text = said(lab.run(["run", "--on", "short", "--", "true"]), "short")
    assert f": its node does not start: {host.run}/" in text and ": file too large" in text
    assert "hint: raise `ulimit -f`" in text and "this machine" not in text


def test_a_quota_that_the_free_space_does_not_show(
    lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    """A limit on the number of files is the quota that a file system in memory has: bytes are free, and none can be
    written.
    """
    host = odd_host("quota", mount="size=200m,nr_inodes=60")
    text = refused(lab, "quota")
    assert "its disk is full: " in text and "no space left on device" in text.lower() and CURE in text
    assert os.listdir(host.path_of(".cache/quine")) == [], (
        "nothing is left of it, so that the quota is not used up"
    )
    works(lab, scratch(lab, host, "cured", tmp_path / "scratch"))


def test_a_full_disk_and_another_one_with_room(
    lab: Lab, odd_host: Callable[..., Host], tmp_path: Path
) -> None:
    host = odd_host("full", mount="size=2m")
    assert CURE in said(lab.run(["deploy", "full"]), "full")
    works(lab, scratch(lab, host, "cured", tmp_path / "scratch"))


def test_two_origins_at_once(lab: Lab, odd_host: Callable[..., Host], tmp_path: Path) -> None:
    """Each with a node and a cache of its own. One installation comes of it, and both use it."""
    host = odd_host("shared")
    shutil.copytree(lab.home / ".ssh", tmp_path / ".ssh")
    other = {"HOME": str(tmp_path), "XDG_CACHE_HOME": None, "QUINE_DATA_DIR": str(tmp_path / "data")}
    words = ["run", "--on", "shared", "--", "echo", "on"]
    try:
        both = [
            lab.popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for env in ({}, other)
        ]
        outputs = [process.communicate(timeout=120) for process in both]
    finally:
        processes.kill_marked(f"HOME={tmp_path}")  # its node: later tests take the lab's for the only one
    assert outputs == [(b"on\n", b"")] * 2
    assert os.listdir(host.path_of(".cache/quine")) == [build().sha256]
