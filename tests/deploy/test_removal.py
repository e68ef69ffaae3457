"""`quine deploy --plan` and `--remove`, against real sshds: the things that would be done, and those taken away."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.build import build
from deploy.probe import Place
from deploy.upkeep import remove
from tests.lab import Lab
from tests.lab.host import Host
from tests.support.waiting import read_until, until
from transport import address


def cache(host: Host) -> Path:
    return host.path_of(".cache/quine")


def installation(host: Host, name: str) -> Path:
    """One that looks like an old build."""
    folder = cache(host) / name
    (folder / "lib").mkdir(parents=True)
    (folder / "quine.pyz").write_bytes(b"old")
    return folder


def said(lab: Lab, *words: str) -> list[str]:
    done = lab.run(["deploy", *words], check=True)
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


def test_a_plan_names_each_host_and_changes_nothing(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("blank")
    odd_host("bare", python=False)
    part = cache(host) / f".part-{build().sha256}"
    lab.alias("shut", of="blank", via=1)
    size = build().size
    assert said(lab, "--plan", "blank") == [f"blank: send {(size + 1023) >> 10} kB"]
    assert not cache(host).exists()
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * (size - 10_000))
    done = lab.run(["deploy", "--plan", "blank,bare", "shut", "bare"])
    assert done.stdout.decode().splitlines() == [
        "blank: send 10 kB", "bare: needs Python", "shut: cannot be deployed to",
    ]  # fmt: skip
    assert done.returncode == 69
    errors = [line for line in done.stderr.decode().splitlines() if ": error: " in line]
    assert errors == [
        "quine: bare: error: it has no python3", "quine: shut: error: connection refused by 127.0.0.1 port 1",
    ]  # fmt: skip
    assert os.listdir(part.parent) == [part.name] and part.stat().st_size == size - 10_000


def test_a_deployment_is_removed_and_nothing_else_is(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("tidy", bare=False)  # this build is there
    assert said(lab, "--plan", "tidy") == ["tidy: already there"]
    for name in (".part-a", ".new-a", ".old-a"):
        (cache(host) / name).mkdir()
    installation(host, "a" * 64)
    for name in ("python-a", "layer-a"):
        (cache(host) / name).mkdir()
    (cache(host) / "build").mkdir()
    (cache(host) / "note").write_text("mine")
    assert said(lab, "--remove", "tidy") == ["tidy: removed 3 installations"]
    assert sorted(os.listdir(cache(host))) == ["build", "note"]
    assert said(lab, "--remove", "tidy") == ["tidy: nothing to remove"]
    shutil.rmtree(cache(host))
    assert said(lab, "--remove", "tidy") == ["tidy: nothing to remove"]
    installation(host, "a" * 64)
    assert said(lab, "--remove", "tidy") == ["tidy: removed 1 installation"]
    assert not cache(host).exists(), "the empty cache goes, too"


@pytest.mark.long
def test_an_installation_in_use_stays_and_is_named(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("busy")
    old = installation(host, "0" * 64)
    lab.run(["run", "--on", "busy", "--", "true"], check=True)  # its node waits for the next job
    name = build().sha256
    for layer, folder in (("layer-a", name), ("layer-b", "0" * 64)):
        (cache(host) / layer).mkdir()
        (cache(host) / folder / "layer-s3").symlink_to(f"../{layer}")
    done = lab.run(["deploy", "--remove", "busy"])
    assert (done.returncode, done.stdout) == (69, b"busy: removed 1 installation\n")
    error, hint = done.stderr.decode().splitlines()
    both = f"~/.cache/quine/{name}, ~/.cache/quine/layer-a"
    assert error == f"quine: busy: error: in use, not removed: {both}"
    assert hint.startswith("quine: busy: hint: quine deploy --remove --now busy ends a node without work; ")
    assert lab.run(["deploy", "--remove", "busy"]).stdout == b"busy: removed nothing\n"
    assert not (cache(host) / "layer-b").exists()
    assert not old.exists() and (cache(host) / name / "quine").exists()
    assert lab.run(["run", "--on", "busy", "--", "echo", "on"], check=True).stdout == b"on\n"
    lab.stop_nodes()
    assert said(lab, "--remove", "busy") == ["busy: removed 1 installation"]


def test_a_node_without_work_ends_for_it_at_once(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("leaving")
    with lab.popen(
        ["run", "--on", "leaving", "--", "sh", "-c", "echo up; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as job:
        assert job.stdout and job.stdout.readline() == b"up\n"
        done = lab.run(["deploy", "--remove", "--now", "leaving"])
        assert (done.returncode, done.stdout) == (69, b"leaving: removed nothing\n")
        job.communicate(b"end\n")
    assert job.returncode == 0, "its node went on"
    assert said(lab, "--remove", "--now", "leaving") == ["leaving: removed 1 installation"]
    assert not cache(host).exists()
    assert lab.run(["deploy", "--now", "leaving"]).returncode == 2


@pytest.mark.long
def test_a_host_without_python_is_cleaned_too(lab: Lab, odd_host: Callable[..., Host]) -> None:
    host = odd_host("bare", python=False, shell="/bin/sh", banner="Welcome!\n")
    old = installation(host, "0" * 64)
    assert said(lab, "--remove", "bare") == ["bare: removed 1 installation"]
    assert not old.exists()


def test_nothing_is_removed_where_it_fails_or_use_cannot_be_seen(
    lab: Lab, odd_host: Callable[..., Host]
) -> None:
    host = odd_host("stuck", scripts={"rm": "#!/bin/sh\nexit 1\n"})
    old = installation(host, "0" * 64)
    done = lab.run(["deploy", "--remove", "stuck"])
    assert (done.returncode, done.stdout) == (69, b"stuck: removed nothing\n")
    assert f"stuck: error: cannot be removed: ~/.cache/quine/{old.name}" in done.stderr.decode()
    assert old.exists()
    (host.base / "bin" / "rm").unlink()
    (host.base / "bin" / "grep").write_text("#!/bin/sh\nexit 2\n")
    (host.base / "bin" / "grep").chmod(0o755)
    done = lab.run(["deploy", "--remove", "stuck"])
    assert (done.returncode, done.stdout) == (69, b"") and old.exists()
    assert "quine: stuck: error: nothing was removed: " in done.stderr.decode()


@pytest.mark.parametrize("cache", ["~/.cache/quine", "{}/.cache/quine"], ids=["below the home", "elsewhere"])
def test_nothing_is_started_or_removed_in_a_cache_that_others_can_change(cache: str, tmp_path: Path) -> None:
    """They may have made any name in it, and its programs would run as the user."""
    base = tmp_path / ".cache" / "quine"
    folder = base / ("a" * 64)
    folder.mkdir(parents=True)
    (folder / "quine.pyz").touch()
    (folder / "quine").write_text("#!/bin/sh\ntouch ran\n")
    (folder / "quine").chmod(0o755)
    command = remove.command(Place(cache=cache.format(tmp_path)), "MARKER", now=True)

    def answer() -> str:
        env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", command], env=env, cwd=tmp_path, capture_output=True, check=False)
        return done.stdout.decode().removeprefix("MARKER ").strip()

    def refused() -> bool:
        return answer() == f"fail owner {base}" and folder.exists() and not (tmp_path / "ran").exists()

    for mode in (0o777, 0o1777, 0o757):
        base.chmod(mode)
        assert refused(), oct(mode)
    base.chmod(0o755)
    (tmp_path / ".cache").chmod(0o777)
    assert refused(), "they can put another directory in its place"
    (tmp_path / ".cache").chmod(0o755)
    if os.geteuid() == 0:
        os.chown(base, 65534, -1)
        assert refused(), "another user's"
        os.chown(base, 0, -1)
        os.chown(folder, 65534, -1)
        assert answer() == f"removed 0 used left {folder.name}"
        assert folder.exists() and not (tmp_path / "ran").exists()
        os.chown(folder, 0, -1)
    assert answer() == "removed 1 used left" and (tmp_path / "ran").exists() and not base.exists()


def test_an_installation_that_another_host_runs_is_named_and_stays(tmp_path: Path) -> None:
    """Hosts with one home do not see each other's processes, but the notes of each other."""
    base = tmp_path / ".cache" / "quine"
    late = time.time() - 3600
    for name, host, when in (
        ("a", "other", None),
        ("b", "other", (late, late)),
        ("c", os.uname().nodename, None),  # of an older build
        ("d", f"{os.uname().nodename}-{address.boot_id()}", None),
        ("e", f"{os.uname().nodename}-another-boot", None),
    ):
        (base / name).mkdir(parents=True)
        (base / name / "quine.pyz").touch()
        (base / name / f"used-{host}").touch()
        os.utime(base / name / f"used-{host}", when)
    (base / "python-1").mkdir()  # which may run it
    (tmp_path / "bin").mkdir()
    find = tmp_path / "bin" / "find"
    find.write_text("#!/bin/sh\nexit 1\n")  # as one that knows no -mmin
    find.chmod(0o755)
    for path, answer in (
        (f"{tmp_path}/bin:/usr/bin:/bin", "removed 2 used a b e python-1 left"),
        ("/usr/bin:/bin", "removed 1 used a e python-1 left"),
    ):
        env = {"HOME": str(tmp_path), "PATH": path}
        argv = ["sh", "-c", remove.command(Place(), "MARKER")]
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, check=False)
        assert done.stdout.decode() == f"MARKER {answer}\n"
    assert sorted(os.listdir(base)) == ["a", "e", "python-1"]


def test_an_empty_name_is_no_host(lab: Lab) -> None:
    """As of an unset variable: it does not mean every host."""
    for words in ("deploy --remove |", "deploy |", "deploy h1 |", "hosts |", "hosts check | "):
        head, _, empty = words.partition("|")
        done = lab.run([*head.split(), empty])
        assert (done.returncode, done.stdout) == (2, b""), words
        assert done.stderr == b"quine: error: WHERE is empty\nquine: hint: name a host, @tag or any\n", words


def test_a_plan_and_a_removal_do_not_mix(lab: Lab) -> None:
    for words, text in (
        ("--plan --remove h1", "one of --plan, --remove"),
        ("--remove", "--remove needs WHERE"),
        ("--plan build", "--plan, --python and --remove are for hosts"),
        ("--remove h1 -o x", "--output belongs to quine deploy build"),
    ):
        done = lab.run(["deploy", *words.split()])
        assert done.returncode == 2 and text in done.stderr.decode(), words


def test_a_node_whose_installation_is_removed_by_hand_gets_it_anew(
    lab: Lab, odd_host: Callable[..., Host]
) -> None:
    """It has loaded most of itself and goes on; the rest fails until its origin dials again. No job is lost by that."""
    host = odd_host("shorn", bare=False, env={"QUINE_NODE_IDLE": "0.4"})
    words = ["run", "--on", "shorn", "--", "sh", "-c", "echo up; read line; echo $line"]
    with lab.popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout
        read_until(job.stdout.fileno(), b"up\n")
        shutil.rmtree(cache(host))
        until(lambda: not lab.run(["ps", "--on", "shorn"]).returncode, "an installation that is whole")
        assert job.communicate(b"on\n", timeout=120)[0] == b"on\n" and job.returncode == 0
