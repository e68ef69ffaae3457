"""The single-file binary: the same bytes for the same inputs, from a checkout or from itself; honest when it cannot."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from deploy import build, paths, wheels
from deploy.there import installer
from quine.archive import local_mirror
from quine.files.stores.local.store import Local
from transport import this_build
from transport.errors import Refused


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def test_same_inputs_same_bytes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build()
    assert first.path.parent.parent == home / ".cache" / "quine" / "build"
    before = first.path.stat().st_ino
    assert build.build().path.stat().st_ino == before, "the second time it is there"
    os.truncate(first.path, 1000)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    mask = os.umask(0o007)
    try:
        again = build.build(home / "out")
    finally:
        os.umask(mask)
    content = again.path.read_bytes()
    assert again.sha256 == first.sha256 == hashlib.sha256(content).hexdigest(), (
        "a damaged one is made again, and alike"
    )
    assert os.access(again.path, os.X_OK)
    assert sorted(os.listdir(home / ".cache" / "quine" / "build")) == [first.path.parent.name, "lock"]

    with zipfile.ZipFile(again.path) as archive:
        with zipfile.ZipFile(BytesIO(archive.read(installer.CONTENT))) as content:
            names = content.namelist()
        assert {*archive.namelist()} - {installer.CONTENT} < {*names}
    assert "quine/__main__.py" in names and "quine/agent/prompt.md" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert "fsspec/__init__.py" in names
    assert [name for name in names if name.startswith("fsspec-") and "LICENSE" in name]
    assert not [name for name in names if name.endswith(".so")]
    assert not [name for name in names if "github" in name or "conftest" in name], "they need other packages"
    assert again.size <= 1_300_000, "it is sent to every host"

    # it runs without anything of this environment, and says that it is the same build
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    for _ in range(2):  # the second time it has been unpacked
        said = subprocess.run(
            [sys.executable, "-S", again.path, "--version"],
            env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said.stdout.endswith(f"(build {this_build.build_hash()[:12]})\n")
    (unpacked,) = (home / ".cache" / "quine" / "unpacked").iterdir()
    assert unpacked.name == again.sha256 and unpacked.stat().st_mode & 0o077 == 0


def test_a_file_that_cannot_be_unpacked_says_where_and_why(home: Path) -> None:
    made = build.build(home / "quine.pyz").path
    (home / "other").mkdir()
    (home / "other" / ".cache").write_text("a file")
    env = {"HOME": str(home / "other"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-S", made, "--version"], env=env, capture_output=True, text=True, check=False
    )
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (69, "")
    assert error == f"quine: error: cannot unpack {made}: {home}/other/.cache/quine/unpacked: not a directory"
    assert hint.startswith("quine: hint: set XDG_CACHE_HOME ")


def test_an_old_python_is_told_so_in_a_sentence() -> None:
    """Its parser would stop at the first of our files."""
    main = Path(this_build.ROOT, "quine", "one_file.py").read_text()
    ast.parse(main, feature_version=(3, 4))
    said = subprocess.run(
        [sys.executable, "-c", "import sys; sys.version_info = (3, 6, 9); sys.argv = ['q']; exec(sys.stdin.read())"],
        input=main, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 1
    assert said.stderr == "quine: error: this is Python 3.6, quine needs 3.9 or newer\n"


def test_sources_that_changed_under_us(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_build, "build_hash", lambda: "0" * 64)
    with pytest.raises(Refused, match="the sources have changed since this process was started"):
        build.build()
    assert os.listdir(home / ".cache" / "quine" / "build") == ["lock"]


def test_builds_facts_and_the_mirror_are_in_the_users_cache(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, cache in ((f"{tmp_path}/c", f"{tmp_path}/c"), ("relative", f"{home}/.cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert str(build.cache_directory()) == paths.cache() == f"{cache}/quine"
        assert local_mirror._made_equal(Local(f"{tmp_path}/empty")).parent == Path(cache, "quine", "tier")


def test_a_cache_that_another_user_can_change_is_not_used(home: Path, tmp_path: Path) -> None:
    """Its files run on hosts. A home that links its cache to a scratch directory is as good as any."""
    shared = tmp_path / "scratch"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "me").mkdir(mode=0o700)
    (home / ".cache").symlink_to(shared / "me")
    mask = os.umask(0o002)
    try:
        first = build.build()
    finally:
        os.umask(mask)
    for path in (shared / "me" / "quine", *first.path.parents[:2]):
        assert path.stat().st_mode & 0o777 == 0o700, path
    first.path.chmod(0o777)
    build._known.clear()
    build.build()
    assert first.path.stat().st_mode & 0o777 == 0o755, "made anew"
    build._known.clear()
    shared.chmod(0o777)  # others can rename what is in it
    with pytest.raises(Refused, match=f"bad permissions of {shared}: others can write it") as refused:
        build.build()
    assert refused.value.hint == f"chmod go-w {shared}; or set XDG_CACHE_HOME to a directory of yours"


def test_a_cache_that_cannot_be_written(home: Path) -> None:
    (home / ".cache").write_text("a file")
    with pytest.raises(Refused, match=r"the binary for hosts cannot be kept: .*/\.cache: not a directory"):
        build.build()


def test_an_output_that_cannot_be_is_said_before_anything_is_built(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> None:
        raise AssertionError("built")

    monkeypatch.setattr(build, "_cached", never)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name, why in (
        ("none/x", "cannot write .*: no such file or directory$"),
        ("file/x", "cannot write .*: not a directory$"),
        ("folder", "cannot write .*: it is not a file$"),
    ):
        with pytest.raises(build.Unwritable, match=why) as caught:
            build.build(tmp_path / name)
        assert caught.value.status == 74 and caught.value.hint


def test_old_builds_are_forgotten(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"b{number}").mkdir()
        os.utime(tmp_path / f"b{number}", (number, number))
    (tmp_path / "new-under-way").mkdir()
    build._forget_old(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["b3", "b4", "b5", "b6", "new-under-way"]


@pytest.mark.parametrize("forget", [build._forget_old, wheels._forget_old])
def test_what_another_process_has_forgotten_meanwhile_is_no_failure(
    forget: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.stat

    def stat(path: Path, **words: bool) -> os.stat_result:
        facts = real(path, **words)
        if path.parent == tmp_path:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
        return facts

    (tmp_path / "build").mkdir()
    (tmp_path / "layer").touch()
    monkeypatch.setattr(Path, "stat", stat)
    forget(tmp_path)
