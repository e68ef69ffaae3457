"""Files that are obeyed belong to the user: links, owners, write bits of others on the way and at its end."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from transport.provenance import safe_path
from transport.provenance.safe_path import FILE, FOLDER, Unsafe, found, made, named

OTHER = 54321
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to give files away")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir(mode=0o755)
    (tmp_path / "folder" / "file").write_text("x")
    return tmp_path


def text(fd: int) -> str:
    with os.fdopen(fd) as file:
        return file.read()


def shut(fd: int) -> bool:
    os.close(fd)
    return True


def test_what_is_the_users_is_opened(place: Path) -> None:
    assert text(named("folder/../folder/./file")) == text(named(str(place / "folder/file"))) == "x"
    assert shut(found("folder", FOLDER)) and shut(named("folder", FOLDER)) and shut(named("/", FOLDER))
    fd = found("folder", FOLDER)
    assert text(found("file", FILE, fd)) == "x"
    os.close(fd)
    for way in (found, named):
        with pytest.raises(FileNotFoundError):
            way("missing")
        with pytest.raises(NotADirectoryError):
            way("folder/file", FOLDER)


def test_a_link_is_followed_only_where_it_was_named(place: Path) -> None:
    (place / "link").symlink_to("folder/file")
    (place / "folder" / "up").symlink_to("../link")
    (place / "folder" / "far").symlink_to(place / "folder")
    for link in ("link", "folder/up", "folder/far/far/up"):
        assert text(named(link)) == "x", link
    with pytest.raises(Unsafe, match="link is a symlink"):
        found("link")
    with pytest.raises(Unsafe, match="far is a symlink"):
        found("folder/far", FOLDER)
    (place / "round").symlink_to("round")
    with pytest.raises(OSError, match="Too many levels"):
        named("round")


@pytest.mark.parametrize("what", ["folder/file", "folder"])
@pytest.mark.parametrize("mode", [0o666, 0o622, 0o602, 0o660])
def test_what_others_can_write_is_refused(
    place: Path, what: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit for the group is allowed if that is the user's private one."""
    monkeypatch.setattr(safe_path, "_is_private", lambda group: False)
    path = place / what
    path.chmod(mode | (0o111 if path.is_dir() else 0))
    flags = FOLDER if path.is_dir() else FILE
    for way in (found, named):
        with pytest.raises(Unsafe, match=f"bad permissions of {what}: others can write it") as refused:
            way(what, flags)
        assert f"chmod go-w {what}" in refused.value.hint
    if path.is_dir():
        with pytest.raises(Unsafe, match=f"bad permissions of {path}"):
            named("folder/file")
    monkeypatch.setattr(safe_path, "_is_private", lambda group: True)
    if not mode & 0o002:
        assert shut(found(what, flags)) and shut(named(what, flags))


def test_a_directory_is_made_for_the_user_alone(place: Path) -> None:
    """Whatever the umask is, also above; one that is there keeps its mode, and is judged."""
    (place / "link").symlink_to("folder")
    mask = os.umask(0)
    try:
        assert made(str(place / "link" / "one" / "two")) == str(place / "link" / "one" / "two")
    finally:
        os.umask(mask)
    for name in ("one", "one/two"):
        assert (place / "folder" / name).stat().st_mode & 0o777 == 0o700
    (place / "folder").chmod(0o777)
    with pytest.raises(Unsafe, match=r"bad permissions of .*/folder: others can write it"):
        made(str(place / "link" / "one" / "two"))
    with pytest.raises(NotADirectoryError):
        made(str(place / "folder" / "file" / "x"))


def test_in_a_directory_with_the_sticky_bit_others_replace_nothing(place: Path) -> None:
    (place / "folder").chmod(0o1777)
    assert text(named("folder/file")) == "x"
    with pytest.raises(Unsafe):
        named("folder", FOLDER)


@as_root
def test_another_owner_is_refused_wherever_it_stands(place: Path) -> None:
    def refused(given: str, path: str, of: str) -> None:
        before = os.lstat(given)
        os.lchown(given, OTHER, -1)
        with pytest.raises(Unsafe, match=f"bad owner of {of}: user id {OTHER}, neither root nor you"):
            named(path)
        os.lchown(given, before.st_uid, -1)
        assert text(named(path)) == "x"

    (place / "link").symlink_to("folder/file")
    refused("folder/file", "folder/file", "folder/file")
    refused("folder", "folder/file", str(place / "folder"))
    refused("link", "link", str(place / "link"))
    refused("folder", "link", str(place / "folder"))


def test_a_descriptor_that_the_caller_passes_is_taken(place: Path) -> None:
    """As `--inventory <(command)` does."""
    read, write = os.pipe()
    os.write(write, b"piped")
    os.close(write)
    assert text(named(f"/dev/fd/{read}")) == "piped"
    os.close(read)


def test_a_pipe_is_no_file_and_holds_nobody_up(place: Path) -> None:
    os.mkfifo("pipe")
    for way in (found, named):
        with pytest.raises(Unsafe, match="pipe is no regular file"):
            way("pipe")


def test_the_private_group(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = pwd.struct_passwd(("me", "x", os.geteuid(), 1000, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: ours)

    def group(number: int, name: str, *members: str) -> Callable[[int], grp.struct_group]:
        return lambda gid: grp.struct_group((name, "x", number, list(members)))

    for number, name, members, private in (
        (1000, "me", (), True), (1000, "me", ("me",), True), (1000, "me", ("me", "you"), False),
        (1000, "users", (), False), (1001, "me", (), False), (0, "root", (), True), (0, "root", ("you",), False),
    ):  # fmt: skip
        monkeypatch.setattr(grp, "getgrgid", group(number, name, *members))
        assert safe_path._is_private(number) == private, (number, name, members)
