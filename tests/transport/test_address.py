"""The hash of this build, read once and noted; directories of the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transport import address, this_build
from transport.errors import Refused


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of a build of its own, and a runtime directory."""
    for package in this_build.PACKAGES:
        (tmp_path / "root" / package / "below").mkdir(parents=True)
        for name in ("a.py", "b.md", "below/c.toml", "below/not.pyc"):
            (tmp_path / "root" / package / name).write_text(f"{package}/{name}")
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(this_build, "ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def asked(monkeypatch: pytest.MonkeyPatch) -> str:
    """By a process that has not asked before."""
    monkeypatch.setattr(this_build, "_build", "")
    return this_build.build_hash()


def notes(root: Path) -> list[Path]:
    return list(root.parent.glob("run/*/build-*"))


def test_sources_that_are_new_are_read_each_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(asked(monkeypatch)) == 64 and not notes(root)


def test_sources_that_have_stood_for_a_while_are_read_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_build, "NEW", -(10**12))
    with monkeypatch.context() as patch:
        first = asked(patch)
        assert len(notes(root)) == 1
        patch.setattr(this_build, "hash_of", lambda contents: "read again")
        assert asked(patch) == first
    path, before = root / "quine" / "a.py", os.stat(root / "quine" / "a.py")
    path.write_text("x" * before.st_size)  # as if nothing had happened to it
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = asked(monkeypatch)
    (root / "deploy" / "below" / "not.pyc").write_text("no source")
    assert asked(monkeypatch) == second
    (root / "deploy" / "below" / "new.py").write_text("a source")
    third = asked(monkeypatch)
    (root / "deploy" / "below" / "new.py").rename(root / "deploy" / "new.py")
    assert len({first, second, third, asked(monkeypatch)}) == 4


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"0" * 129, b" " * 200])
def test_a_note_that_is_damaged_is_none(root: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    monkeypatch.setattr(this_build, "NEW", -(10**12))
    first = asked(monkeypatch)
    (note,) = notes(root)
    whole = note.read_bytes()
    for text in (damage, whole[:-1], whole[1:]):
        note.write_bytes(text)
        assert asked(monkeypatch) == first and note.read_bytes() == whole


def test_an_installation_has_it_in_a_stamp_and_looks_at_no_source(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = root / "transport" / this_build.STAMP
    stamp.write_text("5" * 64)
    with monkeypatch.context() as patch:
        patch.setattr(this_build, "sources", lambda: 1 // 0)
        assert asked(patch) == "5" * 64
    for damaged in ("", "5" * 63, "5" * 65):
        stamp.write_text(damaged)
        assert asked(monkeypatch) == this_build.hash_of(
            (name, Path(path).read_bytes()) for name, path, _ in this_build.sources()
        )


def test_a_directory_of_another_user_is_not_asked_to_be_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(root.parent))
    monkeypatch.setattr(address, "TMP", str(root))
    assert address.runtime_directory()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(Refused, match="quine-4711 belongs to another user") as caught:
        address.runtime_directory()
    assert "XDG_RUNTIME_DIR" in caught.value.hint and "rm " not in caught.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give files away")
def test_directories_of_other_users_lock_nobody_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_RUNTIME_DIR as `su` leaves it; /tmp/quine-UID made by somebody who was faster."""
    home, tmp, given = root.parent / "home", root.parent / "tmp", root.parent / "run"
    tmp.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(address, "TMP", str(tmp))
    assert address.runtime_directory() == f"{given}/quine-0"
    os.chown(given, 65534, -1)
    assert address.runtime_directory() == f"{tmp}/quine-0"
    os.chown(tmp / "quine-0", 65534, -1)
    mask = os.umask(0o002)
    try:
        assert address.runtime_directory() == f"{home}/.cache/quine/run"
    finally:
        os.umask(mask)
    for made in (".cache", ".cache/quine", ".cache/quine/run"):
        assert (home / made).stat().st_mode & 0o777 == 0o700
    (home / ".cache").chmod(0o777)
    with pytest.raises(Refused, match=f"bad permissions of {home}/.cache: others can write it") as refused:
        address.runtime_directory()
    assert refused.value.hint == f"chmod go-w {home}/.cache; or set XDG_RUNTIME_DIR to a directory of yours"
    (home / ".cache").chmod(0o700)
    os.chown(given, 0, -1)
    for mode, base in ((0o777, tmp), (0o1777, given)):  # others could rename what is in the first one
        given.chmod(mode)
        assert address.runtime_places()[0] == f"{base}/quine-0"
    os.chown(given / "quine-0", 65534, -1)
    assert address.runtime_directory() == f"{home}/.cache/quine/run"


@pytest.mark.parametrize(
    ("kind", "default"), [("config", ".config"), ("state", ".local/state"), ("cache", ".cache")]
)
def test_directories_of_the_user_are_where_xdg_has_them(kind: str, default: str) -> None:
    name = f"XDG_{kind.upper()}_HOME"
    assert address.user_directory(kind, {"HOME": "/home/u", name: "/x"}) == "/x"
    for ignored in ({}, {name: ""}, {name: "relative/x"}):
        assert address.user_directory(kind, {"HOME": "/home/u", **ignored}) == f"/home/u/{default}"
